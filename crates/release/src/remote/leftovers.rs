//! The mappings of lowtide in a process: where to put them, and how to find those that an earlier release left.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task;
use lowtide_probe::target::Target;

use crate::stub::numbers::{CODE_BYTES, OFF_INJECTOR};
use crate::stub::{BLOCK_BYTES, Code, NAME};

/// Size of both mappings together, in bytes.
pub(crate) const BYTES: u64 = CODE_BYTES + BLOCK_BYTES;
/// Free bytes on both sides, so that the kernel merges no mapping with ours.
const GAP_BYTES: u64 = 1 << 20;
/// Maximum number of waits for the thread of an earlier release to end.
const MAX_WAITS: u32 = 4;
/// End of the address space of a process with four levels of page tables.
const ADDRESS_SPACE_END: u64 = 1 << 47;

/// Mappings that an earlier release has left, or that another release uses now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftover {
    /// The code, and the part of the block that is mapped after it.
    pub range: Range<u64>,
    /// Whether the start of the block is still there.
    has_block: bool,
}

/// The lowtide process that has mapped the code, as the block records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Injector {
    /// Its PID.
    pub pid: u64,
    /// Its start time, in clock ticks since the machine booted.
    pub start_ticks: u64,
    /// The PID namespace that the PID belongs to.
    pub namespace: u64,
}

impl Injector {
    /// Returns this process.
    pub(crate) fn current() -> Self {
        let pid = std::process::id();
        let start_ticks = Target::open(pid).map_or(0, |own| own.start_ticks);
        Self { pid: pid.into(), start_ticks, namespace: namespace() }
    }

    /// Returns its words in the block.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.pid, self.start_ticks, self.namespace]
    }

    /// Returns whether it still runs; `None` if it is in another PID namespace, where this cannot be determined.
    fn is_alive(self) -> Option<bool> {
        if self.namespace != namespace() {
            return None;
        }
        let pid = u32::try_from(self.pid).ok()?;
        Some(Target::open(pid).is_ok_and(|found| found.start_ticks == self.start_ticks))
    }
}

/// Returns this process's PID namespace.
fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

/// Finds the mappings of releases in a process.
pub(crate) fn find(memory: &LiveMemory, maps: &[Mapping]) -> Vec<Leftover> {
    let named = format!("[anon:{NAME}]");
    let mut found: Vec<Leftover> = Vec::new();
    let mut name_of_last = "";
    for (place, mapping) in maps.iter().enumerate().filter(|(_, m)| !m.has_file()) {
        let is_code = mapping.permissions == "r-xp" && mapping.size() == CODE_BYTES;
        let is_nameless = mapping.name.is_empty();
        let is_unwritten =
            || maps.get(place + 1).is_some_and(|next| is_unwritten(memory, mapping, next));
        if is_code
            && (mapping.name == named
                || is_nameless && (is_ours(memory, mapping.start) || is_unwritten()))
        {
            let range = mapping.start..mapping.end;
            found.push(Leftover { range, has_block: false });
            name_of_last = &mapping.name;
        } else if let Some(last) = found.last_mut()
            && mapping.start == last.range.end
            && mapping.name == name_of_last
            && mapping.permissions == "rw-p"
            && mapping.end <= last.range.start + BYTES
        {
            last.range.end = mapping.end;
            last.has_block = true;
        } else if mapping.name == named {
            // A block whose code is not mapped any more, or not yet.
            found.push(Leftover { range: mapping.start..mapping.end, has_block: false });
        }
    }
    found
}

/// Returns whether both mappings are at a place, exactly as requested. Any other mapping there is the target's.
pub(crate) fn are_both_at(maps: &[Mapping], place: u64) -> bool {
    let block = place + CODE_BYTES;
    let is_at = |range: Range<u64>, permissions: &str| {
        let found = maps.iter().find(|m| m.start == range.start && !m.has_file());
        found.is_some_and(|m| m.end == range.end && m.permissions == permissions)
    };
    is_at(place..block, "r-xp") && is_at(block..block + BLOCK_BYTES, "rw-p")
}

/// Returns whether anything is mapped at a place.
pub(crate) fn is_taken(maps: &[Mapping], place: u64) -> bool {
    maps.iter().any(|m| m.start < place + BYTES && place < m.end)
}

/// Returns whether a mapping contains our code: the only evidence on kernels that do not name mappings.
fn is_ours(memory: &LiveMemory, at: u64) -> bool {
    let mut bytes = [0; 64];
    memory.read(at, &mut bytes) == bytes.len() && Code::begins_with(&bytes)
}

/// Returns whether two nameless mappings are ours and not written yet: they are adjacent, have exactly our sizes, and
/// that of the code contains only zeros.
fn is_unwritten(memory: &LiveMemory, code: &Mapping, block: &Mapping) -> bool {
    let mut bytes = [1; CODE_BYTES as usize];
    block.start == code.end
        && block.size() == BLOCK_BYTES
        && block.permissions == "rw-p"
        && block.name.is_empty()
        && !block.has_file()
        && (memory.resident(code.start..code.end).is_empty()
            || memory.read(code.start, &mut bytes) == bytes.len()
                && bytes == [0; CODE_BYTES as usize])
}

impl Leftover {
    /// Returns the part to which a thread may return: the code. Of a block whose code is not mapped any more, returns all,
    /// because what it is for is unknown.
    ///
    /// The block is left out: its 64 pages may contain a number on a stack that is no address, half of it left by an
    /// earlier call.
    pub(crate) fn code(&self) -> Range<u64> {
        let Range { start, end } = self.range;
        if self.has_block { start..start + CODE_BYTES } else { start..end }
    }

    /// Returns whether a release still uses it. `wait` lets some time pass.
    pub(crate) fn is_active(&self, target: &Target, memory: &LiveMemory, wait: impl Fn()) -> bool {
        let own_thread = || {
            let threads = task::threads(target.pid).unwrap_or_default();
            threads.iter().any(|t| t.stat().is_ok_and(|stat| stat.name == NAME))
        };
        if !self.has_block {
            return own_thread();
        }
        let mut injector = self.injector(memory);
        if injector.is_some_and(|injector| injector.namespace == 0) {
            // A release has mapped this, and has not recorded itself yet, or was killed before it could.
            wait();
            injector = self.injector(memory);
        }
        if let Some(injector) = injector {
            match injector.is_alive() {
                // An earlier release of this process, which failed: it is no longer active.
                Some(true) if injector == Injector::current() => {}
                Some(true) => return true,
                Some(false) => {}
                None if injector.namespace == 0 => {}
                // It is invisible from here, so only its heartbeat shows whether it is active.
                None => {
                    let before = self.heartbeat(memory);
                    wait();
                    if self.heartbeat(memory) != before {
                        return true;
                    }
                }
            }
        }
        // A worker thread without a heartbeat ends after a while.
        for _ in 0..MAX_WAITS {
            if !own_thread() {
                return false;
            }
            wait();
        }
        own_thread()
    }

    fn injector(&self, memory: &LiveMemory) -> Option<Injector> {
        let at = self.range.start + CODE_BYTES + OFF_INJECTOR;
        let mut bytes = [0; 24];
        let word = |bytes: &[u8; 24], n: usize| {
            bytes[n * 8..n * 8 + 8].try_into().map_or(0, u64::from_le_bytes)
        };
        let is_read = memory.read(at, &mut bytes) == bytes.len();
        is_read.then(|| Injector {
            pid: word(&bytes, 0),
            start_ticks: word(&bytes, 1),
            namespace: word(&bytes, 2),
        })
    }

    fn heartbeat(&self, memory: &LiveMemory) -> Option<u64> {
        let at = self.range.start + CODE_BYTES + crate::stub::numbers::OFF_HEARTBEAT;
        lowtide_heap::memory::word(memory, at)
    }
}

/// Finds a free place for both mappings: near others, so that it needs no new page tables, but not adjacent to
/// them. `salt` makes two releases choose different places.
pub(crate) fn find_place(maps: &[Mapping], salt: u64) -> Option<u64> {
    const NEEDED_BYTES: u64 = BYTES + 2 * GAP_BYTES;
    let below = maps
        .iter()
        .rev()
        .filter(|m| m.end < ADDRESS_SPACE_END)
        .zip(maps.iter().rev().filter(|m| m.end < ADDRESS_SPACE_END).skip(1));
    // From the highest gap downwards, as the kernel does.
    below
        .filter(|(above, below)| !above.name.starts_with("[stack") && below.end < above.start)
        .find(|(above, below)| above.start - below.end >= NEEDED_BYTES + (64 << 20))
        .map(|(above, _)| {
            let within = salt % (32 << 20);
            (above.start - NEEDED_BYTES - within) & !4095
        })
}

/// Returns a number that makes two releases choose different places.
pub(crate) fn salt() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = now.map_or(0, |d| u64::from(d.subsec_nanos()));
    nanoseconds.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(std::process::id()) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_probe::proc::maps;

    const MAPS: &str = "\
        55d000000000-55d000021000 rw-p 00000000 00:00 0        [heap]\n\
        7f1200000000-7f1200021000 rw-p 00000000 00:00 0 \n\
        7f1300004000-7f1300006000 rw-p 00104000 fe:01 11   /lib/libc.so.6\n\
        7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0    [stack]\n";

    #[test]
    fn our_mappings_are_placed_near_others_with_a_gap_on_both_sides() {
        let maps = maps::parse(MAPS).unwrap();
        for salt in [0, 12_345, u64::MAX] {
            let at = find_place(&maps, salt).unwrap();
            assert!(at.is_multiple_of(4096));
            assert!(
                at > 0x7f12_0002_1000 + GAP_BYTES && at + BYTES + GAP_BYTES <= 0x7f13_0000_4000
            );
        }
    }

    #[test]
    fn a_mapping_of_the_target_at_our_address_is_not_mistaken_for_ours() {
        const PLACE: u64 = 0x7f12_0000_0000;
        let is_ours = |text: &str| {
            let maps = maps::parse(text).unwrap();
            assert!(is_taken(&maps, PLACE), "{text}");
            are_both_at(&maps, PLACE)
        };
        let code = "7f1200000000-7f1200001000 r-xp 00000000 00:00 0 \n";
        assert!(is_ours(&format!("{code}7f1200001000-7f1200041000 rw-p 00000000 00:00 0 \n")));
        assert!(!is_ours(code));
        assert!(!is_ours(&format!("{code}7f1200001000-7f1210000000 ---p 00000000 00:00 0 \n")));
        assert!(!is_ours("7f11f0000000-7f1210000000 ---p 00000000 00:00 0 \n"));
        assert!(!is_ours("7f11f0000000-7f1210000000 rw-p 00000000 00:00 0 \n"));
        assert!(!is_taken(&maps::parse(MAPS).unwrap(), PLACE - BYTES));
    }

    #[test]
    fn a_mapping_with_our_name_is_found_with_its_block() {
        let text = "\
            7f1200000000-7f1200001000 r-xp 00000000 00:00 0        [anon:lowtide]\n\
            7f1200001000-7f1200041000 rw-p 00000000 00:00 0        [anon:lowtide]\n\
            7f1300000000-7f1300001000 r-xp 00000000 00:00 0        [anon:lowtide]\n\
            7f1400000000-7f1400001000 rw-p 00000000 00:00 0 \n";
        let memory = LiveMemory::open(std::process::id()).unwrap();
        let found = find(&memory, &maps::parse(text).unwrap());
        let ranges: Vec<_> =
            found.iter().map(|l| (l.range.start, l.range.end - l.range.start)).collect();
        assert_eq!(ranges, [(0x7f12_0000_0000, BYTES), (0x7f13_0000_0000, CODE_BYTES)]);
        for leftover in found {
            let start = leftover.range.start;
            assert_eq!(leftover.code(), start..start + CODE_BYTES);
        }
    }
}

//! What of ours is in a process: where it goes, and what an earlier release may have left there.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_probe::inspect::Target;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task;

use crate::stub::numbers::OFF_OWNER;
use crate::stub::{BLOCK_BYTES, CODE, CODE_BYTES, NAME};

/// Both mappings together, in bytes.
pub(crate) const BYTES: u64 = CODE_BYTES + BLOCK_BYTES;
/// On both sides, so much stays free, so that the kernel joins nothing with ours.
const APART: u64 = 1 << 20;
/// So many times it is waited for a thread of an earlier release to leave.
const PATIENCE: u32 = 4;
/// The highest address of a process with four levels of page tables.
const HIGHEST: u64 = 1 << 47;

/// Something that an earlier release has left, or that another one has there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftover {
    /// Where it is: the code, and what lies behind it of its block.
    pub range: Range<u64>,
    /// Whether the block's beginning is still there.
    has_block: bool,
}

/// Who put it there, as the block says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Its number.
    pub pid: u64,
    /// When it began, in clock ticks since the machine booted.
    pub start_ticks: u64,
    /// The PID namespace in which it has that number.
    pub namespace: u64,
}

impl Owner {
    /// Ourselves.
    pub(crate) fn ourselves() -> Self {
        let pid = std::process::id();
        let start_ticks = Target::open(pid).map_or(0, |own| own.start_ticks);
        Self { pid: pid.into(), start_ticks, namespace: namespace() }
    }

    /// Its words in the block.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.pid, self.start_ticks, self.namespace]
    }

    /// Whether it still runs; `None` of one in another namespace, of which that cannot be told.
    fn is_alive(self) -> Option<bool> {
        if self.namespace != namespace() {
            return None;
        }
        let pid = u32::try_from(self.pid).ok()?;
        Some(Target::open(pid).is_ok_and(|found| found.start_ticks == self.start_ticks))
    }
}

fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

/// What is there of a release.
pub(crate) fn leftovers(memory: &LiveMemory, maps: &[Mapping]) -> Vec<Leftover> {
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
            // Code that was not mapped any more, or not yet.
            found.push(Leftover { range: mapping.start..mapping.end, has_block: false });
        }
    }
    found
}

/// Whether both mappings are at a place, as they are asked for: what else is mapped there is the target's.
pub(crate) fn are_both_at(maps: &[Mapping], place: u64) -> bool {
    let block = place + CODE_BYTES;
    let is_at = |range: Range<u64>, permissions: &str| {
        let found = maps.iter().find(|m| m.start == range.start && !m.has_file());
        found.is_some_and(|m| m.end == range.end && m.permissions == permissions)
    };
    is_at(place..block, "r-xp") && is_at(block..block + BLOCK_BYTES, "rw-p")
}

/// Whether anything is mapped at a place.
pub(crate) fn is_taken(maps: &[Mapping], place: u64) -> bool {
    maps.iter().any(|m| m.start < place + BYTES && place < m.end)
}

/// Whether our code stands there: kernels without names of mappings tell nothing else.
fn is_ours(memory: &LiveMemory, at: u64) -> bool {
    let mut bytes = [0; 64];
    memory.read(at, &mut bytes) == bytes.len() && CODE.starts_with(&bytes)
}

/// Whether both are ours before anything was written there: two mappings just as large as ours, side by
/// side, and the code nothing but zeros.
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
    /// Whether somebody is still at work in it. `wait` passes some time.
    pub(crate) fn is_active(&self, target: &Target, memory: &LiveMemory, wait: impl Fn()) -> bool {
        let own_thread = || {
            let threads = task::threads(target.pid).unwrap_or_default();
            threads.iter().any(|t| t.stat().is_ok_and(|stat| stat.name == NAME))
        };
        if !self.has_block {
            return own_thread();
        }
        let mut owner = self.owner(memory);
        if owner.is_some_and(|owner| owner.namespace == 0) {
            // Somebody has mapped this and not said yet who it is; or will not say it any more.
            wait();
            owner = self.owner(memory);
        }
        if let Some(owner) = owner {
            match owner.is_alive() {
                // What we have left ourselves, in an earlier release that failed, is at work no more.
                Some(true) if owner == Owner::ourselves() => {}
                Some(true) => return true,
                Some(false) => {}
                None if owner.namespace == 0 => {}
                // Of one that cannot be seen, what it does must tell.
                None => {
                    let before = self.beat(memory);
                    wait();
                    if self.beat(memory) != before {
                        return true;
                    }
                }
            }
        }
        // A thread that hears nothing any more leaves, in its time.
        for _ in 0..PATIENCE {
            if !own_thread() {
                return false;
            }
            wait();
        }
        own_thread()
    }

    fn owner(&self, memory: &LiveMemory) -> Option<Owner> {
        let at = self.range.start + CODE_BYTES + OFF_OWNER;
        let mut bytes = [0; 24];
        let word = |bytes: &[u8; 24], n: usize| {
            bytes[n * 8..n * 8 + 8].try_into().map_or(0, u64::from_le_bytes)
        };
        let is_read = memory.read(at, &mut bytes) == bytes.len();
        is_read.then(|| Owner {
            pid: word(&bytes, 0),
            start_ticks: word(&bytes, 1),
            namespace: word(&bytes, 2),
        })
    }

    fn beat(&self, memory: &LiveMemory) -> Option<u64> {
        let at = self.range.start + CODE_BYTES + crate::stub::numbers::OFF_BEAT;
        lowtide_heap::memory::word(memory, at)
    }
}

/// A free place for both mappings: near others, so that it takes no new page tables, but apart.
/// `salt` makes two releases choose different ones.
pub(crate) fn place(maps: &[Mapping], salt: u64) -> Option<u64> {
    const WANTED: u64 = BYTES + 2 * APART;
    let below = maps
        .iter()
        .rev()
        .filter(|m| m.end < HIGHEST)
        .zip(maps.iter().rev().filter(|m| m.end < HIGHEST).skip(1));
    // From the highest gap downwards: that is where the kernel puts mappings as well.
    below
        .filter(|(above, below)| !above.name.starts_with("[stack") && below.end < above.start)
        .find(|(above, below)| above.start - below.end >= WANTED + (64 << 20))
        .map(|(above, _)| {
            let within = salt % (32 << 20);
            (above.start - WANTED - within) & !4095
        })
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
    fn our_place_is_near_others_and_apart_from_them() {
        let maps = maps::parse(MAPS).unwrap();
        for salt in [0, 12_345, u64::MAX] {
            let at = place(&maps, salt).unwrap();
            assert!(at.is_multiple_of(4096));
            assert!(at > 0x7f12_0002_1000 + APART && at + BYTES + APART <= 0x7f13_0000_4000);
        }
    }

    #[test]
    fn what_the_target_has_mapped_in_our_place_is_not_taken_for_ours() {
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
    fn what_is_named_after_us_is_found_with_its_block() {
        let text = "\
            7f1200000000-7f1200001000 r-xp 00000000 00:00 0        [anon:lowtide]\n\
            7f1200001000-7f1200041000 rw-p 00000000 00:00 0        [anon:lowtide]\n\
            7f1300000000-7f1300001000 r-xp 00000000 00:00 0        [anon:lowtide]\n\
            7f1400000000-7f1400001000 rw-p 00000000 00:00 0 \n";
        let memory = LiveMemory::open(std::process::id()).unwrap();
        let found = leftovers(&memory, &maps::parse(text).unwrap());
        let ranges: Vec<_> =
            found.iter().map(|l| (l.range.start, l.range.end - l.range.start)).collect();
        assert_eq!(ranges, [(0x7f12_0000_0000, BYTES), (0x7f13_0000_0000, CODE_BYTES)]);
    }
}

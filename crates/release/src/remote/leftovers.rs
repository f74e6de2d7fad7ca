//! The mappings of lowtide in a process: where to put them, and how to find those that an earlier
//! release left.

use std::io;
use std::ops::Range;

use lowtide_heap::memory::{ADDRESS_END, Memory};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::is_gone;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task::{self, Thread};
use lowtide_probe::target::{Target, TargetError};

use crate::stub::contract::{CODE_BYTES, Field, FieldValue, field};
use crate::stub::{BLOCK_BYTES, Code, NAME};

/// Size of both mappings together, in bytes.
pub(crate) const BYTES: u64 = CODE_BYTES + BLOCK_BYTES;
/// Free bytes on both sides, so that the kernel merges no mapping with ours.
const GAP_BYTES: u64 = 1 << 20;
/// Maximum number of waits for a heartbeat, and for the thread of an earlier release to end.
const MAX_WAITS: u32 = 4;

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
    ///
    /// # Errors
    /// Fails if it cannot be read: another release would take it for one that has ended.
    pub(crate) fn current() -> io::Result<Self> {
        let pid = std::process::id();
        let own = Target::open(pid).map_err(io::Error::other)?;
        Ok(Self { pid: pid.into(), start_ticks: own.start_ticks, namespace: namespace()? })
    }

    /// Returns its words, as the block has them.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.pid, self.start_ticks, self.namespace]
    }

    /// Returns whether it still runs, as far as that can be read; `None` if it is in another PID
    /// namespace or hidden, where this cannot be determined.
    fn is_alive(self) -> Option<bool> {
        if namespace().ok()? != self.namespace {
            return None;
        }
        match Target::open(u32::try_from(self.pid).ok()?) {
            Ok(found) => Some(found.start_ticks == self.start_ticks),
            Err(TargetError::Other(..)) => Some(true),
            Err(TargetError::Hidden(_)) => None,
            Err(_) => Some(false),
        }
    }
}

/// Returns this process's PID namespace.
fn namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Finds the mappings of releases in a process.
pub(crate) fn find(memory: &ProcessMemory, maps: &[Mapping]) -> Vec<Leftover> {
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
            && mapping.permissions.starts_with("rw")
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

/// Returns whether both mappings are at a place, exactly as requested. Any other mapping there is
/// the target's.
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

/// Returns whether a mapping contains our code: the only evidence on kernels that do not name
/// mappings.
fn is_ours(memory: &ProcessMemory, at: u64) -> bool {
    let mut bytes = [0; 64];
    memory.read(at, &mut bytes) == bytes.len() && Code::begins_with(&bytes)
}

/// Returns whether two nameless mappings are ours and not written yet: they are adjacent, have
/// exactly our sizes, and that of the code contains only zeros. A personality may have made the
/// block executable (READ_IMPLIES_EXEC).
fn is_unwritten(memory: &ProcessMemory, code: &Mapping, block: &Mapping) -> bool {
    let mut bytes = [1; CODE_BYTES as usize];
    block.start == code.end
        && block.size() == BLOCK_BYTES
        && block.permissions.starts_with("rw")
        && block.name.is_empty()
        && !block.has_file()
        && memory.read_resident(code.start, &mut bytes) == bytes.len()
        && bytes == [0; CODE_BYTES as usize]
}

impl Leftover {
    /// Returns the part to which a thread may return: the code. Of a block whose code is not mapped
    /// any more, returns all, because what it is for is unknown.
    ///
    /// The block is left out: its 64 pages may contain a number on a stack that is no address, half
    /// of it left by an earlier call.
    pub(crate) fn code(&self) -> Range<u64> {
        let Range { start, end } = self.range;
        if self.has_block { start..start + CODE_BYTES } else { start..end }
    }

    /// Returns whether a release may still use it: if that cannot be read, it may. `wait` lets some
    /// time pass.
    pub(crate) fn is_active(
        &self,
        target: &Target,
        memory: &ProcessMemory,
        wait: impl Fn(),
    ) -> bool {
        self.is_in_use(target, memory, wait).unwrap_or(true)
    }

    fn is_in_use(
        &self,
        target: &Target,
        memory: &ProcessMemory,
        wait: impl Fn(),
    ) -> io::Result<bool> {
        if self.has_block {
            let mut injector = self.injector(memory)?;
            if injector.namespace == 0 {
                // A release has mapped this, and has not recorded itself yet, or was killed before
                // it could.
                wait();
                injector = self.injector(memory)?;
            }
            match injector.is_alive() {
                // An earlier release of this process, which failed: it is no longer active.
                Some(true) if injector == Injector::current()? => {}
                Some(true) => return Ok(true),
                Some(false) => {}
                None if injector.namespace == 0 => {}
                // It is invisible from here, so only its heartbeat shows whether it is active.
                None => {
                    let before = self.get(memory, field::HEARTBEAT)?;
                    for _ in 0..MAX_WAITS {
                        wait();
                        if self.get(memory, field::HEARTBEAT)? != before {
                            return Ok(true);
                        }
                    }
                }
            }
            // A worker thread without a heartbeat ends after a while.
            for _ in 0..MAX_WAITS {
                if !self.has_worker(target, memory)? {
                    return Ok(false);
                }
                wait();
            }
        }
        self.has_worker(target, memory)
    }

    /// Returns whether the target has the worker thread.
    fn has_worker(&self, target: &Target, memory: &ProcessMemory) -> io::Result<bool> {
        // Its TID in the target's own namespace. An older lowtide wrote 1 before it started the
        // thread; the first thread of a PID namespace is never ours.
        let tid = if self.has_block { self.get(memory, field::TID)? } else { 0 };
        let is_ours = |thread: &Thread| -> io::Result<bool> {
            // Up to November 2026, worker threads had our name.
            Ok(thread.stat()?.name == NAME || tid > 1 && thread.status()?.own_pid == tid)
        };
        for thread in task::threads(target.pid)? {
            match is_ours(&thread) {
                Ok(false) => {}
                Err(error) if is_gone(&error) => {}
                found => return found,
            }
        }
        Ok(false)
    }

    fn injector(&self, memory: &ProcessMemory) -> io::Result<Injector> {
        let [pid, start_ticks, namespace] = self.get(memory, field::INJECTOR)?;
        Ok(Injector { pid, start_ticks, namespace })
    }

    /// Reads a field of the block: 0 if it was never written.
    fn get<T: FieldValue>(&self, memory: &ProcessMemory, field: Field<T>) -> io::Result<T> {
        let mut bytes = T::Bytes::default();
        let at = self.range.start + CODE_BYTES + field.offset;
        match memory.read_resident(at, bytes.as_mut()) == bytes.as_ref().len() {
            true => Ok(T::from_bytes(&bytes)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Finds a free place for both mappings: near others, so that it needs no new page tables, but not
/// adjacent to them. `salt` makes two releases choose different places.
pub(crate) fn find_place(maps: &[Mapping], salt: u64) -> Option<u64> {
    const NEEDED_BYTES: u64 = BYTES + 2 * GAP_BYTES;
    let below = maps
        .iter()
        .rev()
        .filter(|m| m.end < ADDRESS_END)
        .zip(maps.iter().rev().filter(|m| m.end < ADDRESS_END).skip(1));
    // From the highest gap downwards, as the kernel does.
    below
        .filter(|(above, below)| !above.name.starts_with("[stack") && below.end < above.start)
        .find(|(above, below)| above.start - below.end >= NEEDED_BYTES + (64 << 20))
        .map(|(above, _)| {
            let within = salt % (32 << 20);
            (above.start - NEEDED_BYTES - within) & !(CODE_BYTES - 1)
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
        let memory = ProcessMemory::open(std::process::id()).unwrap();
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

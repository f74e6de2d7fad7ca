//! The locked memory of a process (`mlock`, `mlockall`). The kernel refuses to drop pages of a
//! locked mapping (`madvise_dontneed_free_valid_vma` in mm/madvise.c), with `MADV_DONTNEED` as well
//! as with `MADV_FREE`.
//!
//! Only `smaps` has the locks of mappings, and it is expensive: for each mapping, the kernel counts
//! the resident pages (80 ms a GiB) while threads that map memory wait. `PROCMAP_QUERY` and
//! `pagemap` do not have them. So it is read only if the process's own count (`VmLck`) leaves a
//! doubt. A mapping is locked as a whole, so a mapping that is larger than the count is not locked;
//! and if the count is the sum of all mappings, all are (`mlockall`).
//!
//! Sealed mappings (`mseal`) need no care: the kernel refuses to drop only those that are not
//! writable, and a heap is writable. Huge pages of the kernel's pool (hugetlb) need none either:
//! their mappings have a file, so they are no heap mappings ([`heap::mapping`]).

use std::fs::File;
use std::io::BufReader;
use std::ops::Range;

use lowtide_heap::ranges::{bytes, hold};

use crate::heap;
use crate::proc::maps::Mapping;
use crate::proc::smaps;
use crate::proc::status::Status;
use crate::target::Target;

/// The locked memory of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockedMemory {
    /// The mappings that are locked and may contain a part of a heap, in order of address.
    pub ranges: Vec<Range<u64>>,
    /// Whether it is not known which mappings are locked. `ranges` then has all that may be.
    pub is_uncertain: bool,
    /// Bytes that the kernel counts as locked, although no mapping is: a driver has pinned them
    /// (VFIO), and their place is unknown. If that is not known, all locked bytes of a process that
    /// uses VFIO, and otherwise 0.
    pub unplaced_bytes: u64,
    /// The mappings of files that are surely locked, in order of address.
    pub files: Vec<Range<u64>>,
}

impl LockedMemory {
    /// Finds the locked memory. `status` and `maps` have just been read.
    pub fn find(target: &Target, status: &Status, maps: &[Mapping]) -> Self {
        let files = surely_locked_files(maps, status.locked_bytes);
        Self { files, ..Self::of_heap(target, status, maps) }
    }

    /// Finds the same, and asks the kernel for the locked mappings of files too if their number is
    /// in doubt.
    pub(crate) fn find_with_files(target: &Target, status: &Status, maps: &[Mapping]) -> Self {
        let found = Self::find(target, status, maps);
        let is_file = |m: &&Mapping| m.has_file() && m.size() <= status.locked_bytes;
        let may_be: u64 = maps.iter().filter(is_file).map(Mapping::size).sum();
        let sure: u64 = bytes(&found.files);
        let is_cheap = smaps::is_cheap_to_walk(maps, status.rss_bytes());
        if may_be == sure || !is_cheap {
            return found;
        }
        let Some(locked) = read(target, status.locked_bytes) else { return found };
        let is_locked = |m: &&Mapping| has(&locked, m.start);
        let files = maps.iter().filter(|m| m.has_file()).filter(is_locked);
        Self { files: files.map(|m| m.start..m.end).collect(), ..found }
    }

    fn of_heap(target: &Target, status: &Status, maps: &[Mapping]) -> Self {
        let ranges = lockable(maps, status.locked_bytes);
        let vfio_bytes = if maps.iter().any(is_of_vfio) { status.locked_bytes } else { 0 };
        if ranges.is_empty() {
            return Self { unplaced_bytes: vfio_bytes, ..Self::default() };
        }
        if is_all(maps, status.locked_bytes) {
            return Self { ranges, ..Self::default() };
        }
        let locked = match smaps::is_cheap_to_walk(maps, status.rss_bytes()) {
            true => read(target, status.locked_bytes),
            false => None,
        };
        let Some(locked) = locked else {
            let unplaced_bytes = vfio_bytes;
            return Self { ranges, is_uncertain: true, unplaced_bytes, ..Self::default() };
        };
        let placed_bytes: u64 = bytes(&locked);
        // The process may have changed its locks meanwhile.
        let now_bytes = target.status().map_or(status.locked_bytes, |status| status.locked_bytes);
        Self {
            unplaced_bytes: status.locked_bytes.min(now_bytes).saturating_sub(placed_bytes),
            ranges: locked,
            ..Self::default()
        }
    }
}

/// Returns whether an address is in one of these ranges, which are in order of address.
pub(crate) fn has(ranges: &[Range<u64>], address: u64) -> bool {
    hold(ranges, &(address..address.saturating_add(1)))
}

/// Returns whether a mapping is of a device that is driven from user space by VFIO.
fn is_of_vfio(mapping: &Mapping) -> bool {
    mapping.name.starts_with("/dev/vfio/") || mapping.name.starts_with("anon_inode:[vfio")
}

/// Returns the mappings that may contain a part of a heap and may be locked, if the process has
/// locked this many bytes.
fn lockable(maps: &[Mapping], locked_bytes: u64) -> Vec<Range<u64>> {
    let heap = maps.iter().filter_map(heap::mapping).map(|mapping| mapping.range);
    heap.filter(|range| range.end - range.start <= locked_bytes).collect()
}

/// Returns the mappings of files that are locked, if the process has locked this many bytes: those
/// without which the others that may be locked do not add up to the count.
fn surely_locked_files(maps: &[Mapping], locked_bytes: u64) -> Vec<Range<u64>> {
    let may_be = |m: &&Mapping| m.size() <= locked_bytes && !m.name.starts_with("[v");
    if maps.iter().any(is_of_vfio) {
        // The count also has what the driver has pinned.
        return Vec::new();
    }
    let all: u64 = maps.iter().filter(may_be).map(Mapping::size).sum();
    let is_needed = |m: &&Mapping| all - m.size() < locked_bytes;
    let files = maps.iter().filter(|m| m.has_file()).filter(may_be).filter(is_needed);
    files.map(|m| m.start..m.end).collect()
}

/// Returns whether all mappings are locked, as by `mlockall`: the count is their sum. The kernel's
/// own mappings are never locked.
fn is_all(maps: &[Mapping], locked_bytes: u64) -> bool {
    let is_own = |m: &&Mapping| !m.name.starts_with("[v");
    maps.iter().filter(is_own).map(Mapping::size).sum::<u64>() == locked_bytes
}

/// Reads the locked mappings; `None` if they are not readable.
fn read(target: &Target, locked_bytes: u64) -> Option<Vec<Range<u64>>> {
    let text = BufReader::new(File::open(target.path("smaps")).ok()?);
    smaps::locked(text, locked_bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    #[test]
    fn all_locked_bytes_of_a_process_with_vfio_have_no_known_place() {
        let of = |name: &str| {
            let maps = maps::parse(&format!(
                "00a00000-09a00000 rw-p 00000000 00:00 0        [heap]\n\
                 7f1200000000-7f1200008000 rw-s 00000000 00:0f 1031   {name}\n"
            ));
            let status = Status { locked_bytes: 4096, ..Status::own().unwrap() };
            let target = Target::open(std::process::id()).unwrap();
            LockedMemory::find(&target, &status, &maps.unwrap()).unplaced_bytes
        };
        assert_eq!(
            ["/dev/vfio/7", "anon_inode:[vfio-device]", "/dev/zero"].map(of),
            [4096, 4096, 0]
        );
    }

    #[test]
    fn files_without_which_the_others_do_not_add_up_to_the_count_are_locked() {
        let maps = maps::parse(
            "00a00000-00b00000 rw-p 00000000 00:00 0        [heap]\n\
             7f1200000000-7f1201000000 r--s 00000000 fe:01 12   /data\n\
             7f1300000000-7f1300001000 r--p 00100000 fe:01 11   /lib/libc.so.6\n",
        );
        let maps = maps.unwrap();
        let data = 0x7f12_0000_0000..0x7f12_0100_0000;
        assert_eq!(surely_locked_files(&maps, 0), []);
        let library = 0x7f13_0000_0000..0x7f13_0000_1000;
        assert_eq!(surely_locked_files(&maps, 4096), std::slice::from_ref(&library));
        // The heap alone, or the file alone.
        assert_eq!(surely_locked_files(&maps, 1 << 20), []);
        assert_eq!(surely_locked_files(&maps, 16 << 20), std::slice::from_ref(&data));
        assert!(has(std::slice::from_ref(&data), data.start + 7) && !has(&[data], 7));
    }

    #[test]
    fn a_mapping_that_is_larger_than_the_count_of_locked_memory_is_not_locked() {
        let maps = maps::parse(
            "00a00000-09a00000 rw-p 00000000 00:00 0        [heap]\n\
             7f1200000000-7f1200008000 rw-p 00000000 00:00 0 \n\
             7f1300000000-7f1300001000 r--p 00100000 fe:01 11   /lib/libc.so.6\n",
        );
        let maps = maps.unwrap();
        let secret = 0x7f12_0000_0000..0x7f12_0000_8000;
        assert_eq!(lockable(&maps, 0), []);
        assert_eq!(lockable(&maps, 4096), []);
        assert_eq!(lockable(&maps, 32 << 10), std::slice::from_ref(&secret));
        assert_eq!(lockable(&maps, 1 << 30), [0xa0_0000..0x9a0_0000, secret]);
        assert!(is_all(&maps, 0x900_9000) && !is_all(&maps, 0x900_8000));
    }
}

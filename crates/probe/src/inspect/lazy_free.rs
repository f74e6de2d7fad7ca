//! Lazily freed memory (`MADV_FREE`) of a process whose `smaps_rollup` is not read.
//!
//! Only the kernel's flags of the pages themselves show it: a lazily freed page is anonymous and
//! not backed by swap. They require the numbers of the pages, which only root reads.

use std::fs::File;
use std::os::unix::fs::FileExt;

use lowtide_heap::memory::Memory;

use super::spread::Spread;
use crate::memory::ProcessMemory;
use crate::proc::maps::Mapping;

/// Flags of `/proc/kpageflags` (include/uapi/linux/kernel-page-flags.h).
const LRU: u64 = 1 << 5;
const ANONYMOUS: u64 = 1 << 12;
const SWAP_BACKED: u64 = 1 << 14;

/// Estimates the lazily freed bytes of the anonymous memory of a process, and returns whether it is
/// an estimate; `None` if the flags of pages may not be read.
pub(super) fn estimate(memory: &ProcessMemory, maps: &[Mapping]) -> Option<(u64, bool)> {
    let flags = File::open("/proc/kpageflags").ok()?;
    let mut resident = Vec::new();
    for mapping in maps.iter().filter(|mapping| mapping.has_anonymous_pages()) {
        resident.extend(memory.anonymous(mapping.start..mapping.end).ok()?);
    }
    let spread = Spread::over(&resident, memory.page_bytes());
    let mut count = 0;
    for address in &spread.pages {
        // A page that has gone meanwhile has no number.
        let Some(number) = memory.page_number(*address) else { continue };
        if number == 0 {
            return None;
        }
        let mut entry = [0; 8];
        flags.read_exact_at(&mut entry, number * 8).ok()?;
        count += usize::from(is_lazily_freed(u64::from_ne_bytes(entry)));
    }
    Some((spread.bytes(count), spread.is_estimate()))
}

fn is_lazily_freed(flags: u64) -> bool {
    flags & ANONYMOUS != 0 && flags & LRU != 0 && flags & SWAP_BACKED == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lazily_freed_memory_is_found_by_the_flags_of_its_pages() {
        use crate::proc::{maps, rollup::Rollup};
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

        const BYTES: usize = 24 << 20;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel selects, of which nothing else knows;
        // it is written within its bounds, and unmapped at the end.
        #[expect(unsafe_code, reason = "a mapping of its own to free lazily")]
        let start = unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE);
            let start = start.unwrap();
            start.cast::<u8>().write_bytes(1, BYTES);
            madvise(start, BYTES, Advice::LinuxFree).unwrap();
            start
        };
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap();
        let found = estimate(&memory, &maps::parse(&read("maps")).unwrap());
        let of_kernel = Rollup::parse(&read("smaps_rollup")).unwrap().lazyfree_bytes;
        // SAFETY: the mapping from above, which nothing uses any more.
        #[expect(unsafe_code, reason = "the mapping from above")]
        unsafe {
            munmap(start, BYTES).unwrap();
        }
        // Without the right to read them, nothing is known. The kernel may have taken some.
        if let Some((bytes, _)) = found {
            assert!(bytes.abs_diff(of_kernel) <= 4 << 20, "{bytes} of {of_kernel}");
        }
    }

    #[test]
    fn only_anonymous_pages_that_swap_does_not_back_are_lazily_freed() {
        assert!(is_lazily_freed(ANONYMOUS | LRU));
        assert!(!is_lazily_freed(ANONYMOUS | LRU | SWAP_BACKED));
        assert!(!is_lazily_freed(LRU));
        assert!(!is_lazily_freed(0));
    }
}

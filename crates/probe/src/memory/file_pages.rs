//! Dirty and locked pages of files, by a sample. `smaps` counts all of them, but the kernel then
//! holds the lock of the mappings for 10 to 50 ms for each GB; one entry of the page map takes
//! microseconds.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst, and `stable_page_flags` in fs/proc/page.c.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::ProcessMemory;

/// Number of pages in a sample: 2 to 10 ms.
const SAMPLE: u64 = 2048;
/// Added to a number of pages in a sample, for the upper end of its 95 % interval if there are none
/// (the rule of three).
const UNSEEN: u64 = 3;
/// Pages of the largest folio of a file (2 MiB).
const FOLIO_PAGES: u64 = 512;

/// `KPF_…` of linux/kernel-page-flags.h.
const DIRTY: u64 = 1 << 4;
const WRITEBACK: u64 = 1 << 8;
const SWAP_BACKED: u64 = 1 << 14;
const TAIL: u64 = 1 << 16;
const UNEVICTABLE: u64 = 1 << 18;
const LOCKED: u64 = 1 << 33;

/// Page map: the page is present, and its number.
pub(super) const IS_PRESENT: u64 = 1 << 63;
pub(super) const PAGE_NUMBER: u64 = (1 << 55) - 1;

/// Maximum numbers of bytes among pages of files: the upper ends of 95 % intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePages {
    /// In pages that are dirty, or being written.
    pub dirty_bytes: u64,
    /// In pages that some process has locked in memory, or that exist in memory only.
    pub locked_bytes: u64,
}

impl ProcessMemory {
    /// Samples pages of files among these pages. `None` if the flags of pages may not be read (this
    /// requires root), or without pages.
    pub(crate) fn sample_of_files(&self, pages: &[Range<u64>]) -> Option<FilePages> {
        let flags = File::open("/proc/kpageflags").ok()?;
        let count = pages.iter().map(|run| (run.end - run.start) / self.page).sum::<u64>();
        let step = count.div_ceil(SAMPLE).max(1);
        let (mut sampled, mut dirty, mut locked) = (0_u64, 0_u64, 0_u64);
        let mut skipped = step / 2;
        for run in pages {
            let in_run = (run.end - run.start) / self.page;
            let mut place = skipped;
            while place < in_run {
                if let Some(found) = self.flags_of_file(run.start + place * self.page, &flags)? {
                    sampled += 1;
                    dirty += u64::from(found & (DIRTY | WRITEBACK) != 0);
                    locked += u64::from(found & (UNEVICTABLE | LOCKED) != 0);
                }
                place += step;
            }
            skipped = place - in_run;
        }
        let at_most = |found| at_most(found, sampled, count * self.page);
        (sampled > 0)
            .then(|| FilePages { dirty_bytes: at_most(dirty), locked_bytes: at_most(locked) })
    }

    /// Returns the flags of a page. `None` if they cannot be read, and `Some(None)` if the page has
    /// since left the file.
    fn flags_of_file(&self, address: u64, flags: &File) -> Option<Option<u64>> {
        let entry = word(self.pagemap().ok()?, address / self.page)?;
        if entry & IS_PRESENT == 0 {
            return Some(None);
        }
        let number = entry & PAGE_NUMBER;
        if number == 0 {
            // The numbers are hidden.
            return None;
        }
        let mut found = word(flags, number)?;
        if found & TAIL != 0 {
            found = head(flags, number)?;
        }
        Some((found & SWAP_BACKED == 0).then_some(found))
    }
}

/// Returns the upper end of the 95 % interval of the bytes of which `found` of `sampled` pages are
/// a sample. The interval of a share is at most that wide.
fn at_most(found: u64, sampled: u64, all_bytes: u64) -> u64 {
    let most = found + UNSEEN + 2 * (found as f64).sqrt().ceil() as u64;
    let bytes = u128::from(all_bytes) * u128::from(most) / u128::from(sampled.max(1));
    (bytes as u64).min(all_bytes)
}

/// Returns the flags of the head of a folio, some of which its other pages lack on older kernels.
fn head(flags: &File, number: u64) -> Option<u64> {
    let before = number.min(FOLIO_PAGES);
    let mut bytes = vec![0; before as usize * 8];
    flags.read_exact_at(&mut bytes, (number - before) * 8).ok()?;
    let words = bytes.chunks_exact(8).rev();
    let mut words = words.map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    words.find(|word| word & TAIL == 0)
}

/// Returns an entry of a list with 8 bytes for each page.
pub(super) fn word(file: &File, place: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, place.checked_mul(8)?).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    #[test]
    #[ignore = "needs root, to read the flags of pages"]
    fn written_pages_of_a_file_are_dirty_and_pages_that_were_synced_are_not() {
        const LENGTH: usize = 8 << 20;
        // The directory of temporary files may be in memory.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; LENGTH]).unwrap();
        file.sync_all().unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses; nothing else refers to it.
        #[expect(unsafe_code, reason = "a mapping of a file")]
        let at = unsafe {
            mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, &file, 0).unwrap()
        };
        let touch = |writes: bool| {
            for place in (0..LENGTH).step_by(4096) {
                let byte = at.cast::<u8>().wrapping_add(place);
                // SAFETY: the byte is in the mapping.
                #[expect(unsafe_code, reason = "a mapping of a file")]
                unsafe {
                    let known = byte.read_volatile();
                    if writes {
                        byte.write_volatile(known + 1);
                    }
                }
            }
        };
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        // Two runs, as the kernel may report them.
        let (first, middle) = (at as u64, at as u64 + LENGTH as u64 / 2);
        let pages = [first..middle, middle..first + LENGTH as u64];
        touch(false);
        let clean = memory.sample_of_files(&pages).unwrap().dirty_bytes;
        touch(true);
        let dirty = memory.sample_of_files(&pages).unwrap().dirty_bytes;
        // SAFETY: the mapping was made above, and nothing refers to it any more.
        #[expect(unsafe_code, reason = "a mapping of a file")]
        unsafe {
            munmap(at, LENGTH).unwrap();
        }
        assert!(clean < LENGTH as u64 / 100, "{clean}");
        assert!(dirty > LENGTH as u64 / 2, "{dirty}");
    }
}

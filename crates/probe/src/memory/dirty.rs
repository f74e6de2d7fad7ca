//! Dirty pages of files, by a sample. `smaps` counts all of them, but the kernel then holds the
//! lock of the mappings for 10 to 50 ms for each GB; one entry of the page map takes microseconds.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst, and `stable_page_flags` in fs/proc/page.c.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::LiveMemory;

/// Number of pages in a sample: 2 to 10 ms.
const SAMPLE: u64 = 2048;
/// Added to the number of dirty pages in a sample, for the upper end of its 95 % interval if there
/// are none (the rule of three).
const UNSEEN: u64 = 3;
/// Pages of the largest folio of a file (2 MiB).
const FOLIO_PAGES: u64 = 512;

/// `KPF_…` of linux/kernel-page-flags.h.
const DIRTY: u64 = 1 << 4;
const WRITEBACK: u64 = 1 << 8;
const SWAP_BACKED: u64 = 1 << 14;
const TAIL: u64 = 1 << 16;

/// Page map: the page is present, and its number.
const IS_PRESENT: u64 = 1 << 63;
const PAGE_NUMBER: u64 = (1 << 55) - 1;

impl LiveMemory {
    /// Returns the maximum number of bytes in dirty pages of files among these pages: the upper
    /// end of the 95 % interval of a sample. `None` if the flags of pages may not be read (this
    /// requires root), or without pages.
    pub fn dirty_bytes_at_most(&self, pages: &[Range<u64>]) -> Option<u64> {
        let flags = File::open("/proc/kpageflags").ok()?;
        let count = pages.iter().map(|run| (run.end - run.start) / self.page).sum::<u64>();
        let step = count.div_ceil(SAMPLE).max(1);
        let (mut sampled, mut dirty) = (0_u64, 0_u64);
        let mut skipped = step / 2;
        for run in pages {
            let in_run = (run.end - run.start) / self.page;
            let mut place = skipped;
            while place < in_run {
                if let Some(is_dirty) = self.is_dirty(run.start + place * self.page, &flags)? {
                    sampled += 1;
                    dirty += u64::from(is_dirty);
                }
                place += step;
            }
            skipped = place - in_run;
        }
        let all = count * self.page;
        // The interval of a share is at most that wide.
        let most = dirty + UNSEEN + 2 * (dirty as f64).sqrt().ceil() as u64;
        (sampled > 0)
            .then(|| (u128::from(all) * u128::from(most) / u128::from(sampled)) as u64)
            .map(|bytes| bytes.min(all))
    }

    /// Returns whether a page of a file is dirty, or being written; `None` in `Some` if it is no
    /// longer a page of a file.
    fn is_dirty(&self, address: u64, flags: &File) -> Option<Option<bool>> {
        let entry = word(&self.pagemap, address / self.page)?;
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
        let is_of_file = found & SWAP_BACKED == 0;
        Some(is_of_file.then_some(found & (DIRTY | WRITEBACK) != 0))
    }
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

fn word(file: &File, place: u64) -> Option<u64> {
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
        let memory = LiveMemory::open(std::process::id()).unwrap();
        // Two runs, as the kernel may report them.
        let (first, middle) = (at as u64, at as u64 + LENGTH as u64 / 2);
        let pages = [first..middle, middle..first + LENGTH as u64];
        touch(false);
        let clean = memory.dirty_bytes_at_most(&pages).unwrap();
        touch(true);
        let dirty = memory.dirty_bytes_at_most(&pages).unwrap();
        // SAFETY: the mapping was made above, and nothing refers to it any more.
        #[expect(unsafe_code, reason = "a mapping of a file")]
        unsafe {
            munmap(at, LENGTH).unwrap();
        }
        assert!(clean < LENGTH as u64 / 100, "{clean}");
        assert!(dirty > LENGTH as u64 / 2, "{dirty}");
    }
}

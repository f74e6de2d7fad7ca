//! The zero page, which is mapped where memory was read before it was ever written to. It belongs
//! to no process, and the kernel does not count it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Bit mask of the frame number in an entry of the page map.
pub(super) const FRAME: u64 = (1 << 55) - 1;
const HUGE: usize = 2 << 20;

/// The frames of the zero pages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ZeroPages {
    page: Option<u64>,
    /// The first frame of the huge zero page.
    huge: Option<u64>,
}

impl ZeroPages {
    /// Returns the zero pages of this machine; none if frames may not be read, which requires
    /// `CAP_SYS_ADMIN`.
    pub(super) fn of_this_machine() -> Self {
        static ZEROS: OnceLock<ZeroPages> = OnceLock::new();
        *ZEROS.get_or_init(|| Self::find().unwrap_or_default())
    }

    /// Returns whether an entry of the page map leads to a zero page.
    pub(super) fn hold(self, entry: u64) -> bool {
        let frame = entry & FRAME;
        let frames = HUGE as u64 / rustix::param::page_size() as u64;
        frame != 0
            && (self.page == Some(frame)
                || self.huge.is_some_and(|first| (first..first + frames).contains(&frame)))
    }

    /// Returns whether the frames could be read.
    #[cfg(test)]
    pub(super) fn are_known(self) -> bool {
        self.page.is_some()
    }

    fn find() -> Option<Self> {
        let page = rustix::param::page_size();
        let [first, _] = frames_of_fresh_memory(page, page)?;
        // A mapping of twice a huge page's size contains a whole aligned one.
        let [huge, next] = frames_of_fresh_memory(2 * HUGE, HUGE)?;
        let is_huge = huge != 0 && huge + 1 == next;
        Some(Self {
            page: Some(first).filter(|frame| *frame != 0),
            huge: Some(huge).filter(|_| is_huge),
        })
    }
}

/// Maps memory, reads the first byte in it whose address is a multiple of `align`, and returns the
/// frames of that byte's page and of the next page. Returns `None` if no such byte lies in the
/// mapping.
#[expect(unsafe_code, reason = "maps memory of our own, and reads it")]
fn frames_of_fresh_memory(bytes: usize, align: usize) -> Option<[u64; 2]> {
    let page = rustix::param::page_size();
    // SAFETY: the kernel chooses an address range that nothing is mapped at, so that no memory in
    // use is replaced; the mapping is private, and its address does not leave this function.
    let start =
        unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE) }.ok()?;
    let at = (start as usize).checked_next_multiple_of(align);
    let offset = at.map(|at| at - start as usize).filter(|offset| *offset < bytes);
    let entries = offset.and_then(|offset| {
        // SAFETY: `offset` is less than `bytes`, the length of the mapping, which is readable and
        // stays mapped until `munmap` below. Every byte is a valid `u8`.
        let at = unsafe { start.cast::<u8>().add(offset) };
        // SAFETY: as above.
        unsafe { std::ptr::read_volatile(at) };
        let mut entries = [0; 16];
        let pagemap = File::open("/proc/self/pagemap").ok()?;
        pagemap.read_exact_at(&mut entries, (at as usize / page * 8) as u64).ok()?;
        Some(entries)
    });
    // SAFETY: `start` and `bytes` are those of the mapping made above, which is unmapped nowhere
    // else; no pointer into it is used after this.
    let _ = unsafe { munmap(start, bytes) };
    let entries = entries?;
    let word = |from: usize| {
        let bytes = entries[from..from + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes) & FRAME
    };
    Some([word(0), word(8)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_read_if_the_mapping_contains_no_aligned_address() {
        let page = rustix::param::page_size();
        assert_eq!(frames_of_fresh_memory(page, 0), None);
        assert_eq!(frames_of_fresh_memory(page, 1 << 62), None);
        assert!(frames_of_fresh_memory(2 * HUGE, HUGE).is_some());
    }
}

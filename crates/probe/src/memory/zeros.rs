//! The page of zeros: what is mapped where memory was read before it was ever written to. It is no
//! process's own, and the kernel does not count it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Of an entry of the page map, the frame.
pub(super) const FRAME: u64 = (1 << 55) - 1;
const HUGE: usize = 2 << 20;

/// The frames that hold zeros.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Zeros {
    page: Option<u64>,
    /// The first of the huge page's.
    huge: Option<u64>,
}

impl Zeros {
    /// Those of this machine. None where frames may not be seen, which takes `CAP_SYS_ADMIN`.
    pub(super) fn of_this_machine() -> Self {
        static ZEROS: OnceLock<Zeros> = OnceLock::new();
        *ZEROS.get_or_init(|| Self::look().unwrap_or_default())
    }

    /// Whether an entry of the page map leads to one of them.
    pub(super) fn hold(self, entry: u64) -> bool {
        let frame = entry & FRAME;
        let frames = HUGE as u64 / rustix::param::page_size() as u64;
        frame != 0
            && (self.page == Some(frame)
                || self.huge.is_some_and(|first| (first..first + frames).contains(&frame)))
    }

    /// Whether they could be seen.
    #[cfg(test)]
    pub(super) fn are_known(self) -> bool {
        self.page.is_some()
    }

    fn look() -> Option<Self> {
        let page = rustix::param::page_size();
        let [first, _] = frames_of_fresh_memory(page, 0)?;
        // In the middle of so much there is a place for a huge page.
        let [huge, next] = frames_of_fresh_memory(2 * HUGE, HUGE)?;
        let is_huge = huge != 0 && huge + 1 == next;
        Some(Self {
            page: Some(first).filter(|frame| *frame != 0),
            huge: Some(huge).filter(|_| is_huge),
        })
    }
}

/// Maps memory, reads one byte of it, where `align` divides the address, and gives the frames of that
/// page and of the next.
#[allow(unsafe_code)]
fn frames_of_fresh_memory(bytes: usize, align: usize) -> Option<[u64; 2]> {
    let page = rustix::param::page_size();
    // SAFETY: a new private mapping at an address of the kernel's choice; nobody else knows of it.
    let start =
        unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE) }.ok()?;
    let at = (start as usize).next_multiple_of(align.max(1));
    // SAFETY: `at` lies in the mapping: it begins at `start`, and where it is aligned up, by less than
    // `HUGE`, the mapping has twice that. It may be read, and any byte is a `u8`.
    unsafe { std::ptr::read_volatile(at as *const u8) };
    let mut entries = [0; 16];
    let read = File::open("/proc/self/pagemap")
        .and_then(|pagemap| pagemap.read_exact_at(&mut entries, (at / page * 8) as u64));
    // SAFETY: the mapping made above, of the same length; nothing points into it any more.
    let _ = unsafe { munmap(start, bytes) };
    read.ok()?;
    let word = |from: usize| {
        let bytes = entries[from..from + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes) & FRAME
    };
    Some([word(0), word(8)])
}

//! The cgroup that the pages of a file are charged to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::file_pages::{IS_PRESENT, PAGE_NUMBER, word};

/// Number of pages of a file that are sampled.
const SAMPLES: u64 = 64;

/// The kernel's list of the owners of all pages, which only root can read.
#[derive(Debug)]
pub(crate) struct PageOwners {
    owners: File,
    pagemap: File,
}

impl PageOwners {
    /// Opens the list.
    ///
    /// # Errors
    /// Fails without root, or if the kernel does not have it.
    pub(crate) fn open() -> io::Result<Self> {
        let (owners, pagemap) =
            (File::open("/proc/kpagecgroup")?, File::open("/proc/self/pagemap")?);
        Ok(Self { owners, pagemap })
    }

    /// Returns the inodes of the cgroups that own a sample of a file's pages, one for each page.
    /// The file must be in shared memory.
    ///
    /// # Errors
    /// Fails if the file cannot be mapped, or on kernels before 5.14.
    pub(crate) fn sample(&self, file: impl AsFd) -> io::Result<Vec<u64>> {
        let page = rustix::param::page_size() as u64;
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let length = usize::try_from(size.next_multiple_of(page)).map_err(io::Error::other)?;
        let view = MappedPart::new(file.as_fd(), 0, length)?;
        let step = (size / SAMPLES).next_multiple_of(page).max(page);
        let mut found = Vec::new();
        let mut last = None;
        for wished in (0..size).step_by(usize::try_from(step).map_err(io::Error::other)?) {
            // Reading a hole would fill it.
            let Ok(at) = seek(&file, SeekFrom::Data(wished)) else { break };
            let at = at - at % page;
            if last.replace(at) != Some(at) {
                found.extend(self.owner(view.populated(at, page)?));
            }
        }
        Ok(found)
    }

    /// Returns the inode of the cgroup that owns the page that lowtide maps at an address.
    pub(super) fn owner(&self, address: u64) -> Option<u64> {
        let page = rustix::param::page_size() as u64;
        let entry = word(&self.pagemap, address / page)?;
        let frame = entry & PAGE_NUMBER;
        // Without CAP_SYS_ADMIN, the frame is 0.
        (entry & IS_PRESENT != 0 && frame != 0).then(|| word(&self.owners, frame))?
    }
}

/// A part of a file, mapped for reading. The mapping is private: a shared one of a file that is
/// open for writing would make the seal against writing fail.
pub(super) struct MappedPart {
    start: NonNull<std::ffi::c_void>,
    length: usize,
}

#[expect(unsafe_code, reason = "maps a file, and never reads through the mapping")]
impl MappedPart {
    pub(super) fn new(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        let (read, private) = (ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the place of a new mapping.
        let start = unsafe { mmap(null_mut(), length, read, private, file, offset) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        let view = Self { start, length };
        // No page beside those that are wanted is read, and none counts as used because of this.
        // SAFETY: the advice does not change the content of the new mapping.
        unsafe { madvise(start.as_ptr(), length, Advice::Random) }?;
        Ok(view)
    }

    /// Returns a byte for each page; bit 0 is set if the page is in the page cache.
    ///
    /// # Errors
    /// Fails if the kernel does not show it.
    pub(super) fn cached(&self) -> io::Result<Vec<u8>> {
        let mut pages = vec![0; self.length.div_ceil(rustix::param::page_size())];
        // SAFETY: the kernel writes a byte for each page of the mapping.
        let done = unsafe { libc::mincore(self.start.as_ptr(), self.length, pages.as_mut_ptr()) };
        if done == 0 { Ok(pages) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps one page, and returns its address. Not by reading it: if the file was truncated
    /// meanwhile, that would end lowtide (SIGBUS).
    pub(super) fn populated(&self, offset: u64, page: u64) -> io::Result<u64> {
        let (at, page) = (offset as usize, page as usize);
        if at.saturating_add(page) > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the page is within the mapping.
        let address = unsafe { self.start.as_ptr().byte_add(at) };
        // SAFETY: as above; the advice does not change the content of memory.
        unsafe { madvise(address, page, Advice::LinuxPopulateRead) }?;
        Ok(address as u64)
    }
}

#[expect(unsafe_code, reason = "unmaps what it has mapped")]
impl Drop for MappedPart {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

//! The cgroup that the pages of a file in shared memory are charged to.

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
    /// The file must be in shared memory, and only open for reading: a seal against writing would
    /// fail while lowtide maps a file that it could write to.
    ///
    /// # Errors
    /// Fails if the file cannot be mapped, or on kernels before 5.14.
    pub(crate) fn sample(&self, file: impl AsFd) -> io::Result<Vec<u64>> {
        let page = rustix::param::page_size() as u64;
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let length = usize::try_from(size.next_multiple_of(page)).map_err(io::Error::other)?;
        let view = View::new(file.as_fd(), length)?;
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

    fn owner(&self, address: u64) -> Option<u64> {
        let page = rustix::param::page_size() as u64;
        let entry = word(&self.pagemap, address / page)?;
        let frame = entry & PAGE_NUMBER;
        // Without CAP_SYS_ADMIN, the frame is 0.
        (entry & IS_PRESENT != 0 && frame != 0).then(|| word(&self.owners, frame))?
    }
}

/// A file, mapped for reading.
struct View {
    start: NonNull<std::ffi::c_void>,
    length: usize,
}

#[expect(unsafe_code, reason = "maps a file, and never reads through the mapping")]
impl View {
    fn new(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place of a new mapping.
        let start =
            unsafe { mmap(null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    /// Maps one page, and returns its address. Not by reading it: if the file was truncated
    /// meanwhile, that would end lowtide (SIGBUS).
    fn populated(&self, offset: u64, page: u64) -> io::Result<u64> {
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
impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

//! The pages of a file in the page cache, without any access to its content.

use std::ffi::c_long;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::fstat;

use super::charged::{MappedPart, PageOwners};

/// `__NR_cachestat`, the same on all architectures.
const SYS_CACHESTAT: c_long = 451;
/// Size of the part of a file whose pages are asked for at once (`mincore`), in bytes.
const WINDOW: u64 = 256 << 20;
/// Maximum size of a file whose pages are asked for one by one, in bytes.
const MAX_SIZE: u64 = 64 << 30;
/// Number of pages whose owners are sampled.
const SAMPLES: u64 = 64;

/// The pages of a file in the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CachedPages {
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Those of them that are to be written back or are being written; `None` before Linux 6.5.
    pub(crate) dirty_bytes: Option<u64>,
}

/// Counts the pages of a file in the page cache: by `cachestat`, or else by `mincore`, for which
/// the file must be open for reading.
///
/// # Errors
/// Fails if the kernel has neither for this file, or permits neither.
pub(crate) fn cached_pages(file: impl AsFd) -> io::Result<CachedPages> {
    let page = rustix::param::page_size() as u64;
    if let Ok([cached, dirty, writeback, ..]) = cachestat(file.as_fd()) {
        let dirty = dirty.saturating_add(writeback).saturating_mul(page);
        let bytes = cached.saturating_mul(page);
        return Ok(CachedPages { bytes, dirty_bytes: Some(dirty.min(bytes)) });
    }
    let mut pages = 0;
    each_window(file.as_fd(), |_, _, resident| pages += resident.len() as u64)?;
    Ok(CachedPages { bytes: pages * page, dirty_bytes: None })
}

/// Returns the inodes of the cgroups that own a sample of the cached pages of a file, which must be
/// open for reading and have that many bytes in the page cache.
///
/// # Errors
/// Fails if the file cannot be mapped, or on kernels before 5.14.
pub(crate) fn owners(file: &File, cached_bytes: u64, list: &PageOwners) -> io::Result<Vec<u64>> {
    let page = rustix::param::page_size() as u64;
    let step = (cached_bytes / page / SAMPLES).max(1) as usize;
    let (mut found, mut seen) = (Vec::new(), 0);
    each_window(file.as_fd(), |view, _, resident| {
        for place in resident {
            // A page that is dropped between both calls is read again.
            if seen % step == 0 && (found.len() as u64) < SAMPLES {
                let address = view.populated(*place as u64 * page, page);
                found.extend(address.ok().and_then(|address| list.owner(address)));
            }
            seen += 1;
        }
    })?;
    Ok(found)
}

/// Calls a function with each part of a file, its offset, and its pages in the page cache.
fn each_window(
    file: BorrowedFd<'_>,
    mut each: impl FnMut(&MappedPart, u64, &[usize]),
) -> io::Result<()> {
    let page = rustix::param::page_size() as u64;
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    if size > MAX_SIZE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    for start in (0..size).step_by(WINDOW as usize) {
        let length = (size - start).min(WINDOW).next_multiple_of(page);
        let view = MappedPart::new(file, start, length as usize)?;
        let pages = view.cached()?;
        let resident: Vec<usize> =
            pages.iter().enumerate().filter(|(_, flags)| **flags & 1 != 0).map(|p| p.0).collect();
        each(&view, start, &resident);
    }
    Ok(())
}

/// Returns the numbers of pages of a file: cached, dirty, being written, evicted, and evicted
/// recently.
#[expect(unsafe_code, reason = "a system call that rustix does not have")]
fn cachestat(file: BorrowedFd<'_>) -> io::Result<[u64; 5]> {
    // Offset and length of the range; length 0 is the whole file.
    let range = [0_u64; 2];
    let mut found = [0; 5];
    // SAFETY: the kernel reads a range of two words, and writes a `struct cachestat` of five.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0)
    };
    if done == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn both_counts_of_the_pages_of_a_new_file_agree() {
        let mut file = tempfile::tempfile().unwrap();
        let page = rustix::param::page_size() as u64;
        file.write_all(&vec![1; 8 * page as usize]).unwrap();
        file.set_len(64 * page).unwrap();
        let found = cached_pages(&file).unwrap();
        assert_eq!(found.bytes, 8 * page);
        let mut pages = 0;
        each_window(file.as_fd(), |_, _, resident| pages += resident.len() as u64).unwrap();
        assert_eq!(pages, 8);
        assert!(found.dirty_bytes.is_none_or(|dirty| dirty <= found.bytes), "{found:?}");
    }
}

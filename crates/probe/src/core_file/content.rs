//! The pages of a core that hold anything but zeros.
//!
//! A core does not contain which pages were resident. The kernel writes a page that was never
//! touched, or was returned, as zeros or leaves a hole in the file (`dump_user_range` in
//! fs/coredump.c); gdb reads it as zeros. So a page with content was resident, or swapped out. One
//! of zeros was resident or not.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};

use super::elf::Segment;

/// Number of bytes that are read at once.
const AT_ONCE: usize = 1 << 20;

/// Returns the addresses of the pages with content, in order and disjoint. Holes of the file are
/// not read.
pub(super) fn pages(file: &File, segments: &[Segment], page: u64) -> io::Result<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut bytes = vec![0; AT_ONCE];
    for segment in segments {
        let end = segment.offset + segment.file_bytes;
        let mut at = segment.offset;
        while let Some(data) = next_data(file, at..end, segment.offset, page) {
            let part = &mut bytes[..AT_ONCE.min((data.end - data.start) as usize)];
            file.read_exact_at(part, data.start)?;
            for (place, bytes) in part.chunks(page as usize).enumerate() {
                if bytes.iter().any(|byte| *byte != 0) {
                    let from = segment.start + (data.start - segment.offset) + place as u64 * page;
                    add(&mut runs, from..from + bytes.len() as u64);
                }
            }
            at = data.start + part.len() as u64;
        }
    }
    Ok(runs)
}

/// Returns the next part of a range of a file that is not a hole: whole pages from `first` on.
fn next_data(file: &File, range: Range<u64>, first: u64, page: u64) -> Option<Range<u64>> {
    if range.start >= range.end {
        return None;
    }
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) => start - (start - first) % page,
        Err(rustix::io::Errno::NXIO) => return None,
        // This file system has no holes.
        Err(_) => range.start,
    };
    let start = start.max(range.start);
    (start < range.end).then_some(start..range.end)
}

/// Adds a run of pages to a list.
fn add(runs: &mut Vec<Range<u64>>, pages: Range<u64>) {
    match runs.last_mut().filter(|last| last.end == pages.start) {
        Some(last) => last.end = pages.end,
        None => runs.push(pages),
    }
}

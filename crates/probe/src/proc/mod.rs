//! The kernel's data about a process under `/proc`: pure parsers, with thin reads beside them.

pub mod cgroup;
pub mod directory;
pub mod environ;
pub mod freezer;
pub(crate) mod group_path;
pub(crate) mod hierarchy;
pub mod kcmp;
pub mod links;
pub mod maps;
pub(crate) mod mountinfo;
pub(crate) mod rollup;
pub(crate) mod smaps;
pub mod stat;
pub mod status;
pub mod task;

use std::borrow::Cow;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::FileExt;

use thiserror::Error;

/// The reason why a text of the kernel could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {what}")]
pub struct ParseError {
    /// Name of the text.
    pub file: &'static str,
    /// Description of the error.
    pub what: String,
}

impl From<ParseError> for io::Error {
    fn from(error: ParseError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Returns the PIDs of the processes that lowtide sees.
///
/// # Errors
/// Fails if `/proc` cannot be read.
pub fn pids() -> io::Result<impl Iterator<Item = io::Result<u32>>> {
    let pid = |entry: DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(fs::read_dir("/proc")?.filter_map(move |entry| entry.map(pid).transpose()))
}

/// Returns the `oom_score_adj` of a process; `None` if it has ended.
pub fn oom_score_adj(pid: u32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?.trim().parse().ok()
}

/// Returns whether an error means that the process has ended, which is normal between two reads.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Reads a short file of `/proc` from the start, through a descriptor that stays open. This saves
/// the path lookup, and a reused PID cannot be mistaken for the process.
///
/// A name in it may be cut in the middle of a character, or not be UTF-8 at all.
pub(crate) fn reread<'b>(file: &File, buffer: &'b mut Vec<u8>) -> io::Result<Cow<'b, str>> {
    const ONE_READ: usize = 4096;
    if buffer.len() < ONE_READ {
        buffer.resize(ONE_READ, 0);
    }
    let mut length = 0;
    loop {
        if length == buffer.len() {
            buffer.resize(length * 2, 0);
        }
        let read = file.read_at(&mut buffer[length..], length as u64)?;
        length += read;
        // The kernel fills the buffer unless the file ends.
        if read == 0 || length < buffer.len() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&buffer[..length]))
}

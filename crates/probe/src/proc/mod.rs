//! What the kernel tells of a process under `/proc`: pure parsers, with thin reads beside them.

pub mod cgroup;
pub mod links;
pub mod maps;
pub mod mountinfo;
pub mod rollup;
pub mod stat;
pub mod status;
pub mod task;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use thiserror::Error;

/// Why a text of the kernel was not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {what}")]
pub struct ParseError {
    /// Which text.
    pub file: &'static str,
    /// What is wrong with it.
    pub what: String,
}

impl From<ParseError> for io::Error {
    fn from(error: ParseError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Whether an error means that the process has ended: between two reads that is normal.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Reads a short file of `/proc` from its beginning, through a descriptor that is kept open: a path
/// need not be walked again, and a number that was given to another process cannot be mistaken.
///
/// A name in it may be cut in the middle of a character, or be no text at all.
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
        // The kernel fills what it is given, unless it is at its end.
        if read == 0 || length < buffer.len() {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&buffer[..length]))
}

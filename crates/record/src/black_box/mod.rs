//! The black box: what a process held, written so that a kill of anything at any moment leaves a
//! readable file.
//!
//! - `store`: the directory with a ring for each process, and the rule who loses.
//! - `ring`: a file of a fixed size, in two halves.
//! - `frame`: a part of it with a checksum.
//! - `lines`: the contents of the frames.

mod frame;
mod lines;
mod ring;
mod store;
#[cfg(test)]
mod tests;

use std::io::Read as _;
use std::path::Path;

use thiserror::Error;

pub use frame::{Frame, MAX_PAYLOAD, frames};
pub use lines::{
    BoxLine, Cause, Course, EndLine, ExitStatus, GroupHead, HeadLine, KernelLine, LedgerLine,
    Member, MembersLine, ReadingLine, ReleaseLine,
};
pub use ring::RingWriter;
pub use store::{LiveRing, MAX_BYTES, Store, is_ring, is_store, rings_in};

/// Maximum size of a ring that is read, in bytes.
const MAX_RING: u64 = 64 << 20;

/// The reason why a ring cannot be read.
#[derive(Debug, Error)]
pub enum BoxError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It has no frame, or none that names its process.
    #[error(
        "it is not a file of a black box, which lowtide attach --black-box writes, or nothing of it is left"
    )]
    Empty,
}

/// The lines of a ring, in the order in which they were written.
#[derive(Debug, Clone)]
pub struct BoxRecord {
    /// The process.
    pub head: HeadLine,
    /// All other lines.
    pub lines: Vec<BoxLine>,
    /// Number of valid frames whose content is not valid.
    pub invalid: u64,
}

/// Reads a ring, which may come from anyone and may be damaged.
///
/// # Errors
/// Fails if it cannot be read, or if nothing of it is left.
pub fn read(path: &Path) -> Result<BoxRecord, BoxError> {
    let file = crate::files::open_read(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_RING).read_to_end(&mut bytes)?;
    parse(&bytes).ok_or(BoxError::Empty)
}

/// Reads the bytes of a ring. `None` if no frame names its process.
pub fn parse(bytes: &[u8]) -> Option<BoxRecord> {
    let mut record = BoxRecord { head: HeadLine::default(), lines: Vec::new(), invalid: 0 };
    let mut head = None;
    for frame in frames(bytes) {
        match BoxLine::from_payload(frame.payload) {
            Some(BoxLine::Head(newest)) => head = Some(newest),
            Some(BoxLine::Unknown) => {}
            Some(line) => record.lines.push(line),
            None => record.invalid += 1,
        }
    }
    Some(BoxRecord { head: head?, ..record })
}

/// Formats a time in seconds since 1970 in UTC, with milliseconds.
pub fn time(unix_s: f64) -> String {
    let since = std::time::Duration::try_from_secs_f64(unix_s.clamp(0.0, 1e11));
    let at = std::time::UNIX_EPOCH + since.unwrap_or_default();
    humantime::format_rfc3339_millis(at).to_string()
}

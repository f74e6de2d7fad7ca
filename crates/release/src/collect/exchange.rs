//! One request to the attach socket of HotSpot, and its reply, which is bounded in size and time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Abort, ReleaseError};
use crate::refusal::Refusal;

/// Time after which a blocked read or write checks whether it should end.
const STEP: Duration = Duration::from_millis(100);
/// Maximum size of a reply, in bytes, and maximum length of the part that is shown.
const MAX_REPLY_BYTES: usize = 64 << 10;
pub(super) const MAX_SHOWN: usize = 200;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// 0 on success.
    pub(super) code: i32,
    /// The first line.
    pub(super) text: String,
}

/// The reason why a request was not answered.
#[derive(Debug)]
pub(super) enum NotAsked {
    /// As the end of a sentence.
    Because(String),
    /// The same, and it may pass.
    ForNow(String),
    /// The process has ended, or is to be left alone.
    Aborted(Abort),
}

impl From<Abort> for NotAsked {
    fn from(abort: Abort) -> Self {
        Self::Aborted(abort)
    }
}

impl From<io::Error> for NotAsked {
    fn from(error: io::Error) -> Self {
        Self::Because(format!("its attach socket cannot be used: {error}"))
    }
}

impl From<Errno> for NotAsked {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl NotAsked {
    pub(super) fn into_abort(self) -> Abort {
        match self {
            Self::Because(why) => Refusal::NoCollection { why, may_pass: false }.into(),
            Self::ForNow(why) => Refusal::NoCollection { why, may_pass: true }.into(),
            Self::Aborted(abort) => abort,
        }
    }
}

/// One request and its reply.
pub(super) struct Exchange<'a> {
    /// Ends the wait for the reply when it is set.
    pub(super) interrupt: &'a AtomicBool,
    /// The latest time of the reply.
    pub(super) until: Instant,
}

impl Exchange<'_> {
    /// Sends a request on a new connection.
    ///
    /// # Errors
    /// Fails with the reason if HotSpot does not reply.
    pub(super) fn ask(&self, mut stream: UnixStream, command: &str) -> Result<Reply, NotAsked> {
        stream.set_read_timeout(Some(STEP))?;
        stream.set_write_timeout(Some(STEP))?;
        // A request fits into the buffer of an empty socket.
        stream.write_all(format!("1\0jcmd\0{command}\0\0\0").as_bytes())?;
        let mut bytes = Vec::new();
        let mut part = [0; 4096];
        while bytes.len() < MAX_REPLY_BYTES {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => bytes.extend_from_slice(&part[..length]),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(Abort::from(ReleaseError::Interrupted).into());
            }
            if Instant::now() >= self.until {
                return Err(NotAsked::ForNow(format!(
                    "it has not answered {command} in time, and may still carry it out"
                )));
            }
        }
        let reply = parse(&bytes);
        reply.ok_or_else(|| {
            NotAsked::Because(format!("its reply to {command} is not one of HotSpot"))
        })
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Parses a reply.
fn parse(bytes: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(bytes);
    let (code, text) = text.split_once('\n')?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line: String = line.chars().filter(|letter| !letter.is_control()).take(MAX_SHOWN).collect();
    Some(Reply { code: code.trim().parse().ok()?, text: line })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_a_code_and_a_line_without_control_characters() {
        assert_eq!(parse(b"1\n\n \x1b[31mno\n").unwrap().text, "[31mno");
        assert_eq!(parse(b"1\n").unwrap(), Reply { code: 1, text: String::new() });
        assert_eq!(
            [parse(b""), parse(b"0"), parse(b"x\ny"), parse(b"\xff\n")],
            [None, None, None, None]
        );
    }
}

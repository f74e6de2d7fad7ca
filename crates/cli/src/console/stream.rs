//! Writes to stdout and stderr so that a stalled reader does not keep lowtide from ending.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::console::interrupt;

/// Maximum number of bytes per write: a pipe that polls as writable accepts this number without
/// blocking (`PIPE_BUF`, pipe(7)).
const WRITTEN_AT_ONCE: usize = 4096;
/// Time between two checks for a request to end.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Writes to stdout. If lowtide is asked to end while a reader has stalled, the error is
/// `BrokenPipe`.
pub(crate) fn write_to_stdout(bytes: &[u8]) -> io::Result<()> {
    static TERMINAL: OnceLock<Option<File>> = OnceLock::new();
    write_all(io::stdout(), TERMINAL.get_or_init(|| terminal(io::stdout())).as_ref(), bytes)
}

/// Writes to stderr, in the same way.
pub(crate) fn write_to_stderr(bytes: &[u8]) -> io::Result<()> {
    write_all(io::stderr(), stderr_terminal(), bytes)
}

/// Writes to a terminal on stderr as much as it accepts without waiting; nothing if stderr is not a
/// terminal.
pub(crate) fn try_write_to_stderr(bytes: &[u8]) {
    if let Some(terminal) = stderr_terminal() {
        let _ = rustix::io::write(terminal, bytes);
    }
}

fn stderr_terminal() -> Option<&'static File> {
    static TERMINAL: OnceLock<Option<File>> = OnceLock::new();
    TERMINAL.get_or_init(|| terminal(io::stderr())).as_ref()
}

/// Opens a terminal a second time: only this file can be made non-blocking without affecting every
/// other process. Returns `None` if that is not permitted.
fn terminal(file: impl AsFd + IsTerminal + AsRawFd) -> Option<File> {
    if !file.is_terminal() {
        return None;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
}

fn write_all(file: impl AsFd, terminal: Option<&File>, mut bytes: &[u8]) -> io::Result<()> {
    let file = terminal.map_or(file.as_fd(), File::as_fd);
    while !bytes.is_empty() {
        if !is_writable(file) {
            if interrupt::is_set() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            continue;
        }
        match rustix::io::write(file, &bytes[..bytes.len().min(WRITTEN_AT_ONCE)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits up to [`POLL_INTERVAL`] until a file accepts output. A file that cannot be polled counts
/// as writable: the write then reports the error.
fn is_writable(file: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&file, PollFlags::OUT)];
    !matches!(poll(&mut polled, Some(&POLL_INTERVAL)), Ok(0) | Err(Errno::INTR))
}

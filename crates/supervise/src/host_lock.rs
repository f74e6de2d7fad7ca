//! One release at a time on a host: two supervisors take turns.
//!
//! The lock is a file in a directory that only the user can write to. A supervisor that cannot open
//! the file, as in a read-only root, works without it: each target has a lock of its own against a
//! second release.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lowtide_record::files;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Maximum time to wait for another supervisor: a release takes seconds.
const MAX_WAIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The lock, which is held until this is dropped.
#[derive(Debug)]
pub(crate) struct HostLock {
    _file: Option<File>,
}

impl HostLock {
    /// Returns a lock of nothing.
    pub(crate) fn none() -> Self {
        Self { _file: None }
    }

    /// Returns whether no other supervisor has the lock now.
    pub(crate) fn is_free() -> bool {
        Self::acquire(|| true).is_some()
    }

    /// Waits for the lock. Returns `None` if another supervisor keeps it for too long.
    pub(crate) fn acquire(is_over: impl Fn() -> bool) -> Option<Self> {
        let Some(file) = open() else { return Some(Self::none()) };
        let begin = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self { _file: Some(file) }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(_) => return Some(Self::none()),
            }
            if begin.elapsed() > MAX_WAIT || is_over() {
                return None;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Opens the file: `/run/lowtide.lock` for root, else in the user's runtime directory.
fn open() -> Option<File> {
    let directory = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/run"),
        false => std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?,
    };
    files::append_private(&directory.join("lowtide.lock")).ok()
}

//! File descriptors that the service inherits, and that the reaper releases.

#![expect(unsafe_code, reason = "file descriptors that this process has inherited as numbers")]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::{ReaperError, system};

/// The file descriptors that the service inherits, except stderr.
pub(super) struct InheritedDescriptors {
    numbers: Vec<RawFd>,
    /// `/dev/null`, to which they refer in the reaper after the release.
    null: OwnedFd,
}

impl InheritedDescriptors {
    /// Lists stdin, stdout and the file descriptors that are not closed on exec. Without `/proc`,
    /// only the first two.
    pub(super) fn list() -> Result<Self, ReaperError> {
        let opened = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        // It fails to read and to write, which serves the same purpose.
        let nothing = OFlags::PATH | OFlags::CLOEXEC;
        let null = opened.or_else(|_: Errno| rustix::fs::open("/", nothing, Mode::empty()));
        let null = null.map_err(system("open /dev/null"))?;
        let mut numbers = vec![libc::STDIN_FILENO, libc::STDOUT_FILENO];
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let open = open.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
        numbers
            .extend(open.filter(|number| *number > libc::STDERR_FILENO && is_inherited(*number)));
        Ok(Self { numbers, null })
    }

    /// Replaces the file descriptors by `/dev/null`. The numbers stay in use: no file that this
    /// process opens later gets a number under which the process still writes elsewhere.
    pub(super) fn release(self) {
        for number in &self.numbers {
            // Programs that the policy starts need stdin and stdout.
            let flags = if *number > libc::STDERR_FILENO { libc::O_CLOEXEC } else { 0 };
            // SAFETY: it takes only numbers. The file descriptors are those that this process was
            // started with. Files that Rust code opens are closed on exec, so no `OwnedFd` owns any
            // of them.
            unsafe { libc::dup3(self.null.as_raw_fd(), *number, flags) };
        }
    }
}

/// Returns whether a file descriptor is open and is not closed on exec.
fn is_inherited(number: RawFd) -> bool {
    // SAFETY: it takes only numbers, and changes nothing.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

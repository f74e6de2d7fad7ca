//! File descriptors that the service inherits, and that the reaper lets go of.

#![expect(unsafe_code, reason = "file descriptors that this process has inherited as numbers")]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::{ReaperError, system};

/// The descriptors that the service inherits, stderr excepted.
pub(super) struct InheritedDescriptors {
    numbers: Vec<RawFd>,
    /// What they refer to in the reaper from then on.
    null: OwnedFd,
}

impl InheritedDescriptors {
    /// Lists stdin, stdout and the descriptors that are not closed on exec. Without `/proc`, only the first two.
    pub(super) fn list() -> Result<Self, ReaperError> {
        let opened = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        // It fails to read and to write, which is as good.
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

    /// Replaces the descriptors by `/dev/null`. The numbers stay in use: nothing that this process opens later gets
    /// a number under which it still writes elsewhere.
    pub(super) fn release(self) {
        for number in &self.numbers {
            // stdin and stdout are those of programs that the policy may start.
            let flags = if *number > libc::STDERR_FILENO { libc::O_CLOEXEC } else { 0 };
            // SAFETY: it takes only numbers. The descriptors are those that this process was started with: what Rust
            // code opens is closed on exec, so that no `OwnedFd` owns any of them.
            unsafe { libc::dup3(self.null.as_raw_fd(), *number, flags) };
        }
    }
}

/// Returns whether a descriptor is open and is not closed on exec.
fn is_inherited(number: RawFd) -> bool {
    // SAFETY: it takes only numbers, and changes nothing.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

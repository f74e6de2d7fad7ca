//! The files that a thread waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

/// Returns whether a socket of a process has a receive timeout, which would restart with the call; `None` if the socket
/// cannot be inspected.
pub(super) fn receive_timeout(process: BorrowedFd<'_>, file: u64) -> Option<bool> {
    let file = i32::try_from(file).ok()?;
    let socket: OwnedFd = pidfd_getfd(process, file, PidfdGetfdFlags::empty()).ok()?;
    let timeout =
        rustix::net::sockopt::socket_timeout(socket.as_fd(), rustix::net::sockopt::Timeout::Recv);
    timeout.ok().map(|timeout| timeout.is_some())
}

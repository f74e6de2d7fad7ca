//! The files that a thread waits for.

use std::io;
use std::os::fd::OwnedFd;

use lowtide_probe::target::Target;
use rustix::net::sockopt::{Timeout, socket_timeout};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

/// Returns whether a socket of a process has a receive timeout, which would restart with the call.
///
/// # Errors
/// Fails on kernels before 5.6 ([`io::ErrorKind::Unsupported`]), which do not show that from
/// outside, or if the socket may not be inspected or was closed.
pub(super) fn has_receive_timeout(target: &Target, file: u64) -> io::Result<bool> {
    let file = i32::try_from(file).map_err(io::Error::other)?;
    let socket: OwnedFd = pidfd_getfd(target.pidfd()?, file, PidfdGetfdFlags::empty())?;
    Ok(socket_timeout(socket, Timeout::Recv)?.is_some())
}

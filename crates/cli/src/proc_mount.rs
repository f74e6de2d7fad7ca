//! The checks of `/proc` itself: without it, no process would seem to exist.

use std::fs;

use crate::failure::exit::Failure;

/// Checks that `/proc` shows processes, of whatever PID namespace.
///
/// # Errors
/// Fails if it is not mounted.
pub(crate) fn check_mounted() -> Result<(), Failure> {
    // This entry exists in each /proc, also in one of another PID namespace, where it leads
    // nowhere.
    match fs::symlink_metadata("/proc/self") {
        Ok(_) => Ok(()),
        Err(_) => Err(failure("/proc is not mounted")),
    }
}

/// Checks that the PIDs in `/proc` are those of system calls.
///
/// # Errors
/// Fails if it is not mounted, or shows another PID namespace.
pub(crate) fn check_namespace() -> Result<(), Failure> {
    let shown = fs::read_link("/proc/self").ok();
    match shown.and_then(|link| link.to_str()?.parse::<u32>().ok()) {
        Some(pid) if pid == std::process::id() => Ok(()),
        Some(_) => Err(failure("/proc shows the processes of another PID namespace")),
        None => Err(failure("/proc is not mounted")),
    }
}

fn failure(problem: &str) -> Failure {
    Failure::failed(problem).next("mount -t proc proc /proc")
}

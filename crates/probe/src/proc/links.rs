//! The links of a process under `/proc`: its program, working directory and root (proc_pid_exe(5)).

use std::path::PathBuf;
use std::{fs, io};

/// Returns the path of a process's program. ` (deleted)` is appended if the file was removed or
/// replaced.
///
/// # Errors
/// Fails if the link may not be read, or the process has ended.
pub fn exe(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe"))
}

/// Returns the path of a process's working directory.
///
/// # Errors
/// Fails if the link may not be read, or the process has ended.
pub fn directory(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd"))
}

/// Returns the path of a process's root directory: `/` unless it has its own (`chroot`).
///
/// # Errors
/// Fails if the link may not be read, or the process has ended.
pub fn root(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/root"))
}

/// Returns whether a process is known to be in another mount namespace than the caller.
pub fn has_other_mounts(pid: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let (own, other) = (namespace("self"), namespace(&pid.to_string()));
    own.zip(other).is_some_and(|(own, other)| own != other)
}

/// Returns whether this process is in the first PID namespace (`PROC_PID_INIT_INO` in
/// include/linux/proc_ns.h), so that it sees all processes by the PIDs of the kernel.
pub fn is_in_first_pid_namespace() -> bool {
    const FIRST: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.as_os_str() == FIRST)
}

//! The number of a tracepoint, which the kernel keeps in tracefs.

#![expect(unsafe_code, reason = "fsopen(2), fsconfig(2) and fsmount(2)")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Where tracefs is usually mounted.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// `FSOPEN_CLOEXEC`, `FSMOUNT_CLOEXEC`, `FSCONFIG_CMD_CREATE`, `MOUNT_ATTR_RDONLY`.
const CLOSE_ON_EXEC: libc::c_long = 1;
const CREATE: libc::c_long = 6;
const READ_ONLY: libc::c_long = 1;

/// Returns the number of a tracepoint, such as `syscalls/sys_exit_mmap`.
///
/// # Errors
/// Fails if the kernel does not have it, or does not permit it.
pub(super) fn number(name: &str) -> io::Result<u64> {
    let mounted = MOUNTS.iter().find_map(|mount| read(mount, name).ok());
    if let Some(number) = mounted {
        return Ok(number);
    }
    let detached = detached()?;
    read(&format!("/proc/self/fd/{}", detached.as_raw_fd()), name)
}

fn read(mount: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("{mount}/events/{name}/id"))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Returns tracefs, mounted nowhere (Linux 5.2).
fn detached() -> io::Result<OwnedFd> {
    // SAFETY: the name is a string that ends with 0.
    let opened = unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), CLOSE_ON_EXEC) };
    let context = descriptor(opened)?;
    let (none, zero) = (ptr::null::<libc::c_char>(), 0 as libc::c_long);
    // SAFETY: this command takes neither key nor value.
    let created =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, zero) };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes no address.
    descriptor(unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOSE_ON_EXEC, READ_ONLY)
    })
}

/// Takes the file descriptor that a call returned.
fn descriptor(made: libc::c_long) -> io::Result<OwnedFd> {
    let made = i32::try_from(made).map_err(io::Error::other)?;
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: these calls return a new file descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

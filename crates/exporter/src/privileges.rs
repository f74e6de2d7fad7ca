//! Gives up the privileges that reading processes does not require.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid, getuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Capabilities that reading processes requires: access to the files of `/proc/PID`, and to files
/// with mode 0400.
const READING: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);
/// User and group `nobody` (`/proc/sys/kernel/overflowuid`).
const NOBODY: u32 = 65534;

/// The user that a process has after it gave up its privileges.
#[derive(Debug)]
pub enum User {
    /// A user other than root.
    Unprivileged,
    /// Root, because the user could not be changed: it lacks CAP_SETUID or CAP_SETGID, or the user
    /// namespace does not have `nobody`.
    Root(io::Error),
}

/// Changes from root to `nobody`, and keeps no capability except CAP_SYS_PTRACE and
/// CAP_DAC_READ_SEARCH, if this process has them. The process becomes undumpable: other processes
/// of the user cannot trace it.
///
/// # Errors
/// Fails if the process has several threads, of which this would reach one only, or if the kernel
/// refuses to remove a capability.
pub fn keep_reading_only() -> io::Result<User> {
    check_single_thread()?;
    empty_bounding_set();
    let user = match getuid().is_root() || geteuid().is_root() {
        true => change_user(NOBODY, NOBODY).map_or_else(User::Root, |()| User::Unprivileged),
        false => User::Unprivileged,
    };
    keep(READING)?;
    Ok(user)
}

/// Changes from root to the owner of a directory, and keeps no capability. The owner may create,
/// rename and remove the files of the directory. A user other than root stays the same.
///
/// # Errors
/// Like [`keep_reading_only`], and if the directory cannot be read.
pub(crate) fn become_owner(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    check_single_thread()?;
    empty_bounding_set();
    let owner = directory.metadata()?;
    if geteuid().is_root() && owner.uid() != 0 {
        change_user(owner.uid(), owner.gid())?;
    }
    keep(CapabilitySet::empty())
}

/// The kernel keeps user and capabilities per thread.
fn check_single_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("a thread was started before the privileges were given up")),
    }
}

/// Changes the user and the group. Permitted capabilities are kept.
fn change_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Removes all capabilities from the bounding set, if CAP_SETPCAP permits it, which a change of the
/// user makes ineffective. The set only affects the execution of programs, which the seal forbids.
fn empty_bounding_set() {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The capability does not exist, or CAP_SETPCAP is missing.
            Err(_) => return,
        }
    }
}

/// Keeps only these capabilities.
fn keep(kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    let permitted = capabilities(None)?.permitted & kept;
    let inheritable = CapabilitySet::empty();
    let wanted = CapabilitySets { effective: permitted, permitted, inheritable };
    // Also removed with the inheritable ones, but a kernel that has none (before 4.3) is not asked
    // for them.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    match set_capabilities(None, wanted) {
        // A filter of the service manager may forbid the call. Inheritable ones have no effect
        // without `execve`.
        Err(Errno::PERM) if capabilities(None)?.permitted == permitted => Ok(()),
        done => Ok(done?),
    }
}

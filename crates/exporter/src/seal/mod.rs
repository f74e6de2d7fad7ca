//! Restricts the system calls of this process with seccomp filters.
//!
//! The exporter listens, and may read the memory of every process. An attacker who takes it over
//! must not be able to do more than read. The filters therefore contain the calls that are
//! permitted, with their arguments ([`calls`]); all others fail with `EPERM`, and the kernel's
//! audit log shows them (type 1326). A call of another architecture ends the process. An x32 call
//! has a number that is not in the list.
//!
//! Landlock is unsuitable: it would also forbid reading other processes.

pub mod calls;

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};
use thiserror::Error;

use calls::{Condition, PermittedCall};

/// The reason why the seccomp filters could not be installed.
#[derive(Debug, Error)]
#[error("the exporter cannot install its seccomp filters: {0}")]
pub struct SealError(String);

/// A process of the exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reads processes, and serves the metrics. It writes no files.
    Exporter,
    /// Writes the files of the exporter. It reads no processes.
    Files,
}

/// The filters of a process. The kernel evaluates both for each call, and the stricter result
/// counts.
#[derive(Debug)]
pub struct SealFilters {
    /// Makes `clone3` fail with `ENOSYS`, so that the C library starts threads with `clone`: the
    /// arguments of `clone3` are in memory, which filters cannot read.
    pub clone3: BpfProgram,
    /// Permits the calls of the list, and `clone3`. The kernel logs the others.
    pub list: BpfProgram,
}

/// Restricts all threads of this process, and all threads that start later.
///
/// # Errors
/// Fails if the kernel does not accept the filters.
pub fn seal(role: Role) -> Result<(), SealError> {
    let filters = filters(role).map_err(|error| SealError(error.to_string()))?;
    apply_filter_all_threads(&filters.clone3).map_err(|error| SealError(error.to_string()))?;
    apply_with_log(&filters.list).map_err(|error| SealError(error.to_string()))
}

/// Returns the filters of a process.
///
/// # Errors
/// Fails on a processor for which seccompiler has no filters.
pub fn filters(role: Role) -> Result<SealFilters, BackendError> {
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let mut list = clone3.clone();
    for call in calls::permitted(role) {
        // A call can be in the list several times, with other arguments.
        list.entry(call.number).or_default().extend(rules(call)?);
    }
    let (allow, errno) = (SeccompAction::Allow, |errno: i32| SeccompAction::Errno(errno as u32));
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SealFilters {
        clone3: SeccompFilter::new(clone3, allow.clone(), errno(libc::ENOSYS), arch)?.try_into()?,
        list: SeccompFilter::new(list, errno(libc::EPERM), allow, arch)?.try_into()?,
    })
}

/// Returns the rules of a call, of which one must match; none if its arguments do not matter.
fn rules(call: &PermittedCall) -> Result<Vec<SeccompRule>, BackendError> {
    // One list of conditions for each combination of values.
    let mut combinations = vec![Vec::new()];
    for condition in call.conditions {
        let alternatives = alternatives(condition)?;
        combinations = combinations
            .iter()
            .flat_map(|so_far: &Vec<SeccompCondition>| {
                let with = |more: &SeccompCondition| {
                    [so_far.as_slice(), std::slice::from_ref(more)].concat()
                };
                alternatives.iter().map(with).collect::<Vec<_>>()
            })
            .collect();
    }
    combinations.retain(|conditions| !conditions.is_empty());
    combinations.into_iter().map(SeccompRule::new).collect()
}

/// Returns the conditions of which one must hold.
fn alternatives(condition: &Condition) -> Result<Vec<SeccompCondition>, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq};
    match *condition {
        Condition::OneOf(place, values) => {
            values.iter().map(|value| SeccompCondition::new(place, Dword, Eq, *value)).collect()
        }
        Condition::Bits { place, mask, value } => {
            SeccompCondition::new(place, Dword, MaskedEq(mask), value).map(|one| vec![one])
        }
        Condition::Null(place) => SeccompCondition::new(place, Qword, Eq, 0).map(|one| vec![one]),
        Condition::OwnProcess(place) => {
            let pid = u64::from(std::process::id());
            SeccompCondition::new(place, Dword, Eq, pid).map(|one| vec![one])
        }
    }
}

/// Installs a filter in all threads. The kernel logs the calls that it does not permit, which
/// seccompiler has no option for.
#[expect(unsafe_code, reason = "a system call that libc has no wrapper for")]
fn apply_with_log(filter: &BpfProgram) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog {
        len: length,
        filter: filter.as_ptr().cast_mut().cast::<libc::sock_filter>(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: the kernel reads a `struct sock_fprog` and the `len` instructions that it points to,
    // both of which outlive the call, and writes to neither. seccompiler's `sock_filter` is
    // `repr(C)` with the fields of the kernel's.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match done {
        0 => Ok(()),
        // With TSYNC, the ID of a thread that has other filters.
        1.. => Err(io::Error::other("a thread has filters of its own")),
        _ => Err(io::Error::last_os_error()),
    }
}

//! Forbids this process to act on others: a filter of system calls that it cannot remove.
//!
//! The exporter listens, and may read the memory of every process. Somebody who takes it over must not be able to use it to
//! change one. Landlock does not fit: it would also forbid to read other processes.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use thiserror::Error;

/// The reason that the process could not be sealed.
#[derive(Debug, Error)]
#[error("the exporter cannot seal itself by a seccomp filter: {0}")]
pub struct SealError(String);

/// System calls that fail with `EPERM` from then on.
const FORBIDDEN: [libc::c_long; 30] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    // `openat2` takes its flags in memory, which no filter reads. A file that was opened for writing by it, such as
    // /proc/PID/mem, can still not be written to at a place: these calls do that,
    libc::SYS_lseek,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_copy_file_range,
    // and these make system calls that no filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_process_mrelease,
];

/// Seals the calling thread and all that it starts later.
///
/// # Errors
/// If the kernel does not accept the filter.
pub fn seal() -> Result<(), SealError> {
    let failed = |error: &dyn std::fmt::Display| SealError(error.to_string());
    let filter = filter().map_err(|error| failed(&error))?;
    apply_filter(&filter).map_err(|error| failed(&error))
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_openat, opening_for_writing(2)?);
    // Calls that only x86-64 has.
    #[cfg(target_arch = "x86_64")]
    {
        rules.insert(libc::SYS_open, opening_for_writing(1)?);
        rules.insert(libc::SYS_creat, Vec::new());
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let forbidden = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, forbidden, arch)?.try_into()
}

/// Returns rules that match if a file is opened for writing, unless the call must create it: a file that exists, such as
/// `/proc/PID/mem`, cannot be written to. `place` is the number of the argument with the flags.
fn opening_for_writing(place: u8) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let condition = |mask: i32, value: i32| {
        let operator = SeccompCmpOp::MaskedEq(mask as u64);
        SeccompCondition::new(place, SeccompCmpArgLen::Dword, operator, value as u64)
    };
    let mut rules = Vec::new();
    for mode in [libc::O_WRONLY, libc::O_RDWR, libc::O_ACCMODE] {
        for missing in [libc::O_CREAT, libc::O_EXCL] {
            let conditions = vec![condition(libc::O_ACCMODE, mode)?, condition(missing, 0)?];
            rules.push(SeccompRule::new(conditions)?);
        }
    }
    Ok(rules)
}

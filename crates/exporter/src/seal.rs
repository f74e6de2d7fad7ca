//! Installs a seccomp filter that forbids this process to trace other processes or to write to their memory.
//!
//! The exporter listens, and may read the memory of every process. An attacker who takes it over must not be able to modify
//! processes through it. Landlock is unsuitable: it would also forbid reading other processes.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use thiserror::Error;

/// The reason why the seccomp filter could not be installed.
#[derive(Debug, Error)]
#[error("the exporter cannot install its seccomp filter: {0}")]
pub struct SealError(String);

/// Whether the exporter writes files: a text file, or a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnFiles {
    /// The exporter creates, renames and removes no files.
    None,
    /// The exporter creates, renames and removes files.
    Some,
}

/// System calls that the filter makes fail with `EPERM`.
const FORBIDDEN: &[libc::c_long] = &[
    // They act on other processes,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpriority,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // start programs,
    libc::SYS_execve,
    libc::SYS_execveat,
    // change the system,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mknodat,
    // open or write files in ways that a filter cannot check: it sees numbers only, not memory,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_lseek,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_copy_file_range,
    // or make system calls that bypass the filter.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// System calls that are also forbidden if the exporter writes no files.
const FOR_FILES: &[libc::c_long] = &[
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_truncate,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
];

/// System calls like [`FOR_FILES`] that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const FOR_FILES_X86: &[libc::c_long] = &[
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
];

/// Installs the filter in the calling thread and all threads that it starts later.
///
/// # Errors
/// Fails if the kernel does not accept the filter.
pub fn seal(files: OwnFiles) -> Result<(), SealError> {
    let failed = |error: &dyn std::fmt::Display| SealError(error.to_string());
    let filter = filter(files).map_err(|error| failed(&error))?;
    apply_filter(&filter).map_err(|error| failed(&error))
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter(files: OwnFiles) -> Result<BpfProgram, seccompiler::BackendError> {
    let always = |calls: &[libc::c_long]| -> Rules {
        calls.iter().map(|call| (*call, Vec::new())).collect()
    };
    let mut rules = always(FORBIDDEN);
    rules.insert(libc::SYS_openat, opening_for_writing(2, files)?);
    // A thread may signal its own process, as `abort` does, and read its own limits.
    rules.insert(libc::SYS_tgkill, unless_first_is(u64::from(std::process::id()))?);
    rules.insert(libc::SYS_prlimit64, unless_first_is(0)?);
    #[cfg(target_arch = "x86_64")]
    {
        rules.insert(libc::SYS_open, opening_for_writing(1, files)?);
        rules.extend(always(&[libc::SYS_creat, libc::SYS_mknod]));
    }
    if files == OwnFiles::None {
        rules.extend(always(FOR_FILES));
        #[cfg(target_arch = "x86_64")]
        rules.extend(always(FOR_FILES_X86));
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let forbidden = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, forbidden, arch)?.try_into()
}

/// Returns a rule that matches unless the first argument is a process ID.
fn unless_first_is(pid: u64) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, pid)?;
    Ok(vec![SeccompRule::new(vec![other])?])
}

/// Returns rules that match if a file is opened for writing. With [`OwnFiles::Some`], a call may create a file, but must then
/// fail for an existing file, such as `/proc/PID/mem`. `place` is the index of the argument with the flags.
fn opening_for_writing(
    place: u8,
    files: OwnFiles,
) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let condition = |mask: i32, value: i32| {
        let operator = SeccompCmpOp::MaskedEq(mask as u64);
        SeccompCondition::new(place, SeccompCmpArgLen::Dword, operator, value as u64)
    };
    let mut rules = Vec::new();
    for mode in [libc::O_WRONLY, libc::O_RDWR, libc::O_ACCMODE] {
        let for_writing = || condition(libc::O_ACCMODE, mode);
        match files {
            OwnFiles::None => rules.push(SeccompRule::new(vec![for_writing()?])?),
            OwnFiles::Some => {
                for missing in [libc::O_CREAT, libc::O_EXCL] {
                    rules.push(SeccompRule::new(vec![for_writing()?, condition(missing, 0)?])?);
                }
            }
        }
    }
    Ok(rules)
}

//! The system calls that the exporter's processes may make.
//!
//! `crates/exporter/tests/seal/` has the list as the filters themselves decide it.

use super::Role;

/// A system call that is permitted.
#[derive(Debug, Clone, Copy)]
pub struct PermittedCall {
    /// Its name in libc, such as `SYS_read`.
    pub name: &'static str,
    /// Its number.
    pub number: libc::c_long,
    /// Conditions that must all hold.
    pub conditions: &'static [Condition],
}

/// A condition on the argument of a call, by its index.
#[derive(Debug, Clone, Copy)]
pub enum Condition {
    /// The lower half has one of these values.
    OneOf(u8, &'static [u64]),
    /// The masked bits of the lower half have this value.
    Bits {
        /// Index of the argument.
        place: u8,
        /// The bits that are compared.
        mask: u64,
        /// Their value.
        value: u64,
    },
    /// The argument is a null pointer.
    Null(u8),
    /// The argument is the PID of this process.
    OwnProcess(u8),
}

use Condition::{Bits, Null, OneOf, OwnProcess};

macro_rules! calls {
    ($($name:ident $([$($condition:expr),+])?),* $(,)?) => {
        &[$(PermittedCall {
            name: stringify!($name),
            number: libc::$name,
            conditions: &[$($($condition),+)?],
        }),*]
    };
}

/// Memory that is mapped here is never executable: an attacker can run only the code of lowtide
/// itself.
const NOT_EXECUTABLE: Condition = without(2, libc::PROT_EXEC);

/// Commands that duplicate a file descriptor, or read and change its own flags. Others can make the
/// kernel send signals.
const FCNTL: &[u64] = &[
    libc::F_DUPFD_CLOEXEC as u64,
    libc::F_GETFD as u64,
    libc::F_SETFD as u64,
    libc::F_GETFL as u64,
];

/// The pages of a process (`PAGEMAP_SCAN` of include/uapi/linux/fs.h), the blocking mode of a
/// socket (`FIONBIO` of include/uapi/asm-generic/ioctls.h), and the settings of the terminal that
/// messages may go to (`TCGETS`).
const IOCTL: &[u64] = &[0xc060_6610, 0x5421, 0x5401];

/// The name of a thread, and the auxiliary vector of this process (`PR_GET_AUXV` of
/// include/uapi/linux/prctl.h).
const PRCTL: &[u64] = &[libc::PR_SET_NAME as u64, 0x4155_5856];

/// Flags of `clone` for a thread, with which no process and no namespace can be created.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;
/// musl adds `CLONE_DETACHED`, which has no effect.
const THREAD_OF_MUSL: u64 = THREAD | libc::CLONE_DETACHED as u64;

/// The access mode. musl's `O_ACCMODE` also contains `O_PATH`.
const ACCESS_MODE: i32 = 3;
/// Flags that create or change a file.
const WRITING: i32 = ACCESS_MODE | libc::O_CREAT | libc::O_TRUNC;
/// Flags of a new file. The call fails for an existing one, such as `/proc/PID/mem`.
const NEW_FILE: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;

/// Calls of every process.
const COMMON: &[PermittedCall] = calls![
    // Files that are open, standard streams and sockets included
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_close,
    SYS_fstat,
    SYS_fcntl[OneOf(1, FCNTL)],
    // Metadata by path
    SYS_statx,
    SYS_newfstatat,
    // Memory of this process
    SYS_mmap[NOT_EXECUTABLE],
    SYS_mprotect[NOT_EXECUTABLE],
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    // Time, randomness, identity
    SYS_clock_gettime,
    SYS_getrandom,
    SYS_getpid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_uname,
    // Synchronisation and signals; `abort` signals its own process
    SYS_futex,
    SYS_sched_yield,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_tgkill[OwnProcess(0)],
    SYS_exit,
    SYS_exit_group,
];

/// Calls of the exporter.
const EXPORTER: &[PermittedCall] = calls![
    // Files, for reading only
    SYS_openat[without(2, WRITING)],
    SYS_readlinkat,
    SYS_getdents64,
    SYS_pread64,
    SYS_lseek,
    SYS_fstatfs,
    SYS_ioctl[OneOf(1, IOCTL)],
    // Whether another process exists
    SYS_kill[OneOf(1, &[0])],
    // Whether two processes use the same memory (`KCMP_VM` of include/uapi/linux/kcmp.h)
    SYS_kcmp[OneOf(2, &[1])],
    // Threads
    SYS_clone[OneOf(0, &[THREAD, THREAD_OF_MUSL])],
    SYS_set_robust_list,
    SYS_rseq,
    SYS_prctl[OneOf(0, PRCTL)],
    SYS_sched_getaffinity,
    SYS_prlimit64[OneOf(0, &[0]), Null(2)],
    SYS_clock_nanosleep,
    SYS_nanosleep,
    // Connections of clients
    SYS_accept4,
    SYS_recvfrom,
    SYS_sendto,
    SYS_shutdown,
    SYS_getsockname,
    SYS_setsockopt[
        OneOf(1, &[libc::IPPROTO_TCP as u64]),
        OneOf(2, &[libc::TCP_NODELAY as u64])
    ],
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    // Messages to a standard error that may be full
    SYS_ppoll,
];

/// Calls of the exporter that not every processor has.
#[cfg(target_arch = "x86_64")]
const EXPORTER_BY_ARCHITECTURE: &[PermittedCall] =
    calls![SYS_open[without(1, WRITING)], SYS_stat, SYS_lstat, SYS_readlink, SYS_epoll_wait,];

/// Calls of the process that writes files.
const FILES: &[PermittedCall] = calls![
    SYS_openat[with(2, NEW_FILE)],
    // The directories of the file, of which nothing can be read
    SYS_openat
        [Bits { place: 2, mask: (libc::O_PATH | WRITING) as u64, value: libc::O_PATH as u64 }],
    SYS_readlinkat,
    SYS_renameat,
    SYS_unlinkat,
    SYS_recvfrom,
    SYS_sendto,
];

/// Calls of the process that writes files, which differ by processor.
#[cfg(target_arch = "x86_64")]
const FILES_BY_ARCHITECTURE: &[PermittedCall] =
    calls![SYS_open[with(1, NEW_FILE)], SYS_stat, SYS_lstat, SYS_rename, SYS_unlink,];

/// Returns the calls that a process may make.
pub fn permitted(role: Role) -> impl Iterator<Item = &'static PermittedCall> {
    let (own, by_architecture) = match role {
        Role::Exporter => (EXPORTER, EXPORTER_BY_ARCHITECTURE),
        Role::Files => (FILES, FILES_BY_ARCHITECTURE),
    };
    COMMON.iter().chain(own).chain(by_architecture)
}

#[cfg(not(target_arch = "x86_64"))]
const EXPORTER_BY_ARCHITECTURE: &[PermittedCall] = &[];
#[cfg(not(target_arch = "x86_64"))]
const FILES_BY_ARCHITECTURE: &[PermittedCall] = calls![SYS_renameat2];

/// Returns the condition that an argument has none of these bits.
const fn without(place: u8, mask: i32) -> Condition {
    Bits { place, mask: mask as u64, value: 0 }
}

/// Returns the condition that an argument has the access mode and all flags of `flags`.
const fn with(place: u8, flags: i32) -> Condition {
    Bits { place, mask: (ACCESS_MODE | flags) as u64, value: flags as u64 }
}

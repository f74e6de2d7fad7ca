//! The calls that are made in a target, as they are made and as its seccomp filters are asked about them.

use super::frame::{Call, RT_SIGRETURN};
use super::seccomp;
use crate::stub::numbers::OFF_ALL;
use crate::stub::{BLOCK_BYTES, CODE_BYTES, SYSCALL_BYTES};

pub(super) const MMAP: u64 = 9;
pub(super) const MUNMAP: u64 = 11;
pub(super) const RT_SIGPROCMASK: u64 = 14;
pub(super) const PRCTL: u64 = 157;

/// What threads of one process share, and that the kernel clears the new one's number when it ends.
pub(super) const CLONE_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;
/// Where our thread's thread-local storage is in the block.
pub(super) const STORAGE_AT: u64 = 0x30000;
pub(super) const CLONE_SETTLS: u64 = libc::CLONE_SETTLS as u64;

/// The calls that map our code and its block, and name both. They are given where the name stands.
pub(super) fn mapping_calls(place: u64) -> impl Fn(u64) -> Vec<Call> {
    let block = place + CODE_BYTES;
    move |name| {
        let map = |at, bytes, rights: i32| {
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            Call { number: MMAP, args: [at, bytes, rights as u64, how as u64, u64::MAX, 0] }
        };
        let call_it = |at, bytes| {
            let (what, which) = (libc::PR_SET_VMA as u64, libc::PR_SET_VMA_ANON_NAME as u64);
            Call { number: PRCTL, args: [what, which, at, bytes, name, 0] }
        };
        vec![
            map(place, CODE_BYTES, libc::PROT_READ | libc::PROT_EXEC),
            map(block, BLOCK_BYTES, libc::PROT_READ | libc::PROT_WRITE),
            call_it(place, CODE_BYTES),
            call_it(block, BLOCK_BYTES),
        ]
    }
}

pub(super) fn name_of(number: u64) -> &'static str {
    match number {
        MMAP => "mmap",
        MUNMAP => "munmap",
        PRCTL => "prctl",
        _ => "a call",
    }
}

pub(super) fn seccomp_call(call: &Call, syscall_ret: u64) -> seccomp::Call {
    seccomp::Call {
        number: call.number as u32,
        instruction_pointer: syscall_ret + SYSCALL_BYTES,
        args: call.args,
    }
}

pub(super) fn sigreturn_call(at: u64) -> seccomp::Call {
    seccomp::Call { number: RT_SIGRETURN as u32, instruction_pointer: at, args: [0; 6] }
}

/// The calls that our code makes.
pub(super) fn code_calls(place: u64) -> Vec<(&'static str, seccomp::Call)> {
    let call = |name, number: libc::c_long, args| {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        (name, seccomp::Call { number, instruction_pointer: place + SYSCALL_BYTES, args })
    };
    let block = place + CODE_BYTES;
    vec![
        call("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 6]),
        call("rt_sigprocmask", libc::SYS_rt_sigprocmask, [2, block + OFF_ALL, 0, 8, 0, 0]),
        call("rt_sigprocmask", libc::SYS_rt_sigprocmask, [77, block, 0, 8, 0, 0]),
        call("clock_gettime", libc::SYS_clock_gettime, [1, block, 0, 0, 0, 0]),
        call("rt_sigpending", libc::SYS_rt_sigpending, [block, 8, 0, 0, 0, 0]),
        call("rt_sigaction", libc::SYS_rt_sigaction, [1, 0, block, 8, 0, 0]),
        call("madvise", libc::SYS_madvise, [block, 4096, libc::MADV_DONTNEED as u64, 0, 0, 0]),
        call("nanosleep", libc::SYS_nanosleep, [block, 0, 0, 0, 0, 0]),
        call("futex", libc::SYS_futex, [block, 128, 2, block, 0, 0]),
        call("futex", libc::SYS_futex, [block, 129, 1, 0, 0, 0]),
        call("futex", libc::SYS_futex, [block, 132, 0, 0, block, 0]),
        call("prctl", libc::SYS_prctl, [15, block, 0, 0, 0, 0]),
        call("prctl", libc::SYS_prctl, [66, 0, 0, 0, 0, 0]),
        call("clone", libc::SYS_clone, [CLONE_FLAGS, block, block, block, 0, 0]),
        call("exit", libc::SYS_exit, [0; 6]),
    ]
}

//! The system calls that are made in a target, for frame chains and for the check of its seccomp
//! filters.

use super::seccomp;
use crate::arch::{FrameCall, SYSCALL_BYTES};
use crate::stub::BLOCK_BYTES;
use crate::stub::contract::*;

pub(super) const MMAP: u64 = libc::SYS_mmap as u64;
pub(super) const MUNMAP: u64 = libc::SYS_munmap as u64;

// The numbers in the code must match those of the system that lowtide is built for.
const _: () = {
    assert!(NR_RT_SIGACTION == libc::SYS_rt_sigaction as u64);
    assert!(NR_RT_SIGPROCMASK == libc::SYS_rt_sigprocmask as u64);
    assert!(NR_RT_SIGRETURN == libc::SYS_rt_sigreturn as u64);
    assert!(NR_MADVISE == libc::SYS_madvise as u64);
    assert!(NR_CLONE == libc::SYS_clone as u64);
    assert!(NR_EXIT == libc::SYS_exit as u64);
    assert!(NR_RT_SIGPENDING == libc::SYS_rt_sigpending as u64);
    assert!(NR_PRCTL == libc::SYS_prctl as u64);
    assert!(NR_FUTEX == libc::SYS_futex as u64);
    assert!(NR_CLOCK_GETTIME == libc::SYS_clock_gettime as u64);
    assert!(FUTEX_WAIT_PRIVATE == (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64);
    assert!(FUTEX_WAKE_PRIVATE == (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64);
    assert!(
        FUTEX_CMP_REQUEUE_PRIVATE == (libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG) as u64
    );
    assert!(MADV_DONTNEED == libc::MADV_DONTNEED as u64);
    assert!(PR_GET_MDWE == libc::PR_GET_MDWE as u64);
    assert!(PR_GET_TSC == libc::PR_GET_TSC as u64);
    assert!(TSC_ENABLED == libc::PR_TSC_ENABLE as u64);
    assert!(SIGPROCMASK_SETMASK == libc::SIG_SETMASK as u64);
    assert!(CLOCK_MONOTONIC == libc::CLOCK_MONOTONIC as u64);
};

/// Flags of `clone` for a thread of the same process, whose TID the kernel clears in the block when
/// the thread ends.
pub(super) const CLONE_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;

/// Number of the first calls of [`mapping_calls`] that map memory.
pub(super) const MAPPING_CALLS: usize = 2;

/// Returns a function from the address of the name to the calls that map our code and its block,
/// and name both.
pub(super) fn mapping_calls(place: u64) -> impl Fn(u64) -> Vec<FrameCall> {
    let block = place + CODE_BYTES;
    move |name| {
        let map = |at, bytes, rights: i32| {
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            FrameCall { number: MMAP, args: [at, bytes, rights as u64, how as u64, u64::MAX, 0] }
        };
        let call_it = |at, bytes| {
            let (what, which) = (libc::PR_SET_VMA as u64, libc::PR_SET_VMA_ANON_NAME as u64);
            FrameCall { number: NR_PRCTL, args: [what, which, at, bytes, name, 0] }
        };
        vec![
            map(place, CODE_BYTES, libc::PROT_READ | libc::PROT_EXEC),
            map(block, BLOCK_BYTES, libc::PROT_READ | libc::PROT_WRITE),
            call_it(place, CODE_BYTES),
            call_it(block, BLOCK_BYTES),
        ]
    }
}

/// Returns the name of a call in [`mapping_calls`].
pub(super) fn name_of(number: u64) -> &'static str {
    match number {
        MMAP => "mmap",
        MUNMAP => "munmap",
        NR_PRCTL => "prctl",
        _ => "a call",
    }
}

/// Returns a call of a frame chain as a filter sees it.
pub(super) fn seccomp_call(call: &FrameCall, syscall_ret: u64) -> seccomp::Call {
    seccomp::Call {
        number: call.number as u32,
        instruction_pointer: syscall_ret + SYSCALL_BYTES,
        args: call.args,
    }
}

/// Returns an `rt_sigreturn` as a filter sees it. `end` is the end of its instruction.
pub(super) fn sigreturn_call(end: u64) -> seccomp::Call {
    seccomp::Call { number: NR_RT_SIGRETURN as u32, instruction_pointer: end, args: [0; 6] }
}

/// Returns `restart_syscall` as a filter sees it, by which the kernel continues some waits. It has
/// no arguments.
pub(super) fn restart_call(end: u64) -> (&'static str, seccomp::Call) {
    let number = libc::SYS_restart_syscall as u32;
    ("restart_syscall", seccomp::Call { number, instruction_pointer: end, args: [0; 6] })
}

/// Returns the calls that our code at a place makes by the instruction `syscall_ret`, as a filter
/// sees them.
pub(super) fn code_calls(place: u64, syscall_ret: u64) -> Vec<(&'static str, seccomp::Call)> {
    let value = |argument: &Argument| match argument {
        Argument::Constant(value) => *value,
        Argument::Address => place + CODE_BYTES,
        Argument::Value => 0,
        Argument::Length => CODE_BYTES,
        Argument::SignalNumber => 1,
        Argument::CloneFlags => CLONE_FLAGS,
    };
    let call = |call: &StubCall| seccomp::Call {
        number: u32::try_from(call.number).unwrap_or(u32::MAX),
        instruction_pointer: syscall_ret + SYSCALL_BYTES,
        args: call.args.each_ref().map(value),
    };
    CALLS.iter().map(|one| (one.name, call(one))).collect()
}

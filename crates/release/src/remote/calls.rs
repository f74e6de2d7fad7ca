//! The system calls that are made in a target, for frame chains and for the check of its seccomp
//! filters.

use super::frame::FrameCall;
use super::seccomp;
use crate::stub::numbers::*;
use crate::stub::{BLOCK_BYTES, SYSCALL_BYTES};

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
    let call = |name, number: u64, args| {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        (name, seccomp::Call { number, instruction_pointer: syscall_ret + SYSCALL_BYTES, args })
    };
    let block = place + CODE_BYTES;
    vec![
        call("rt_sigreturn", NR_RT_SIGRETURN, [0; 6]),
        call("rt_sigprocmask", NR_RT_SIGPROCMASK, [2, block + OFF_ALL_SIGNALS, 0, 8, 0, 0]),
        call("rt_sigprocmask", NR_RT_SIGPROCMASK, [SIGPROCMASK_INVALID, block, 0, 8, 0, 0]),
        call("clock_gettime", NR_CLOCK_GETTIME, [CLOCK_MONOTONIC, block, 0, 0, 0, 0]),
        call("rt_sigpending", NR_RT_SIGPENDING, [block, 8, 0, 0, 0, 0]),
        call("rt_sigaction", NR_RT_SIGACTION, [1, 0, block, 8, 0, 0]),
        call("madvise", NR_MADVISE, [block, 4096, MADV_DONTNEED, 0, 0, 0]),
        call("futex", NR_FUTEX, [block, FUTEX_WAIT_PRIVATE, 2, block, 0, 0]),
        call("futex", NR_FUTEX, [block, FUTEX_WAIT_PRIVATE, 0, block, 0, 0]),
        call("futex", NR_FUTEX, [block, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]),
        call("futex", NR_FUTEX, [block, FUTEX_CMP_REQUEUE_PRIVATE, 0, 0, block, 0]),
        call("prctl", NR_PRCTL, [PR_GET_MDWE, 0, 0, 0, 0, 0]),
        call("prctl", NR_PRCTL, [PR_GET_TSC, block, 0, 0, 0, 0]),
        call("clone", NR_CLONE, [CLONE_FLAGS, block, block, block, 0, 0]),
        call("exit", NR_EXIT, [0; 6]),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SOURCE: &str = concat!(
        include_str!("../../stub/stub.c"),
        include_str!("../../stub/ptmalloc.h"),
        include_str!("../../stub/guarded.h")
    );
    const HEADER: &str = include_str!("../../stub/shared.h");

    /// Returns the words of a text that start with `begin`.
    fn words<'t>(text: &'t str, begin: &str) -> BTreeSet<&'t str> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with(begin))
            .collect()
    }

    /// Returns the number that the header defines for a name.
    fn number(name: &str) -> u64 {
        let define = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        define
            .unwrap_or_else(|| panic!("shared.h has no {name}"))
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    #[test]
    fn every_system_call_of_the_stub_is_checked_against_filters() {
        let asked = code_calls(0x1000, 0x8000);
        let numbers: BTreeSet<u64> = asked.iter().map(|(_, call)| call.number.into()).collect();
        let made: BTreeSet<u64> = words(SOURCE, "NR_").into_iter().map(number).collect();
        assert!(made.len() >= 10, "{made:?}");
        assert_eq!(numbers, made);
        // The operation of a call is its first, second or third argument.
        for (begin, call, place) in [
            ("FUTEX_", NR_FUTEX, 1),
            ("PR_", NR_PRCTL, 0),
            ("SIGPROCMASK_", NR_RT_SIGPROCMASK, 0),
            ("MADV_", NR_MADVISE, 2),
            ("CLOCK_", NR_CLOCK_GETTIME, 0),
        ] {
            let names = words(SOURCE, begin);
            assert!(!names.is_empty(), "{begin}");
            for name in names {
                let is_it = |c: &seccomp::Call| {
                    u64::from(c.number) == call && c.args[place] == number(name)
                };
                assert!(asked.iter().any(|(_, call)| is_it(call)), "{name}");
            }
        }
    }

    /// Returns the text of a function of the stub.
    fn function(name: &str) -> &'static str {
        let begin = SOURCE.find(&format!(" {name}(")).unwrap();
        let end = SOURCE[begin..].find("\n}\n").unwrap();
        &SOURCE[begin..begin + end]
    }

    #[test]
    fn the_worker_thread_makes_only_calls_of_any_program_with_threads() {
        let usual = [NR_FUTEX, NR_MADVISE, NR_RT_SIGPROCMASK, NR_EXIT];
        let running = function("work_in_thread");
        // All that the thread may call, but for the clock that it does not use.
        let others = [
            "sleep_ns",
            "is_word",
            "is_page",
            "lock",
            "unlock",
            "drop_pages",
            "run_locked",
            "has_value",
            "run_unlocked",
            "drop_guarded",
            "drop_claimed",
            "drop_owned",
            "consolidate_one",
            "drop_chunk",
        ];
        let texts = others.map(function).into_iter().chain([running]);
        let made: BTreeSet<u64> = texts.flat_map(|text| words(text, "NR_")).map(number).collect();
        assert_eq!(made, BTreeSet::from(usual));
    }

    #[test]
    fn the_stub_makes_system_calls_only_by_named_constants() {
        let calls: Vec<&str> = ["call3(", "call4(", "call6("]
            .iter()
            .flat_map(|call| {
                SOURCE.match_indices(call).map(|(at, call)| &SOURCE[at + call.len()..])
            })
            // Leaves out the functions themselves.
            .filter(|rest| !rest.starts_with("nr") && !rest.starts_with("long nr"))
            .filter(|rest| !rest.starts_with("(nr"))
            .collect();
        assert!(calls.len() >= 11, "{}", calls.len());
        for rest in calls {
            assert!(rest.starts_with("NR_"), "{}", rest.lines().next().unwrap());
        }
        // In assembler, only call numbers are moved to eax, except by the one call in C.
        let moves = SOURCE.match_indices("eax").filter(|(at, _)| SOURCE[..*at].ends_with('%'));
        let moves =
            moves.filter_map(|(at, _)| SOURCE[..at].rsplit_once("mov ").map(|(_, what)| what));
        let numbers = moves.filter(|what| what.len() < 40 && what.starts_with('$'));
        let numbers: Vec<&str> = numbers.collect();
        assert!(numbers.len() >= 3, "{numbers:?}");
        assert!(numbers.iter().all(|what| what.starts_with("$\" S(NR_")), "{numbers:?}");
    }
}

//! Seccomp filters for the calling thread.

use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::sock_filter;

/// Offsets of a call's number and of its first argument in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARGUMENTS: u32 = 16;
/// Calls that a container's usual filter denies, by their numbers: clocks, mounts, modules, keys,
/// swap, NUMA policies, BPF, perf, io_uring, other processes' files and memory, and obsolete calls.
const DENIED_IN_CONTAINERS: [RangeInclusive<u32>; 28] = [
    103..=103,
    134..=134,
    136..=136,
    139..=139,
    153..=153,
    155..=156,
    161..=161,
    163..=185,
    212..=212,
    227..=227,
    236..=239,
    246..=246,
    248..=250,
    256..=256,
    272..=272,
    279..=279,
    298..=298,
    300..=300,
    304..=304,
    308..=308,
    312..=313,
    320..=321,
    323..=323,
    425..=433,
    438..=438,
    440..=440,
    442..=443,
    450..=450,
];
/// The last call that the usual filter of a container knows.
const LAST_IN_CONTAINERS: u32 = 462;

/// A seccomp filter, made of rules. The first rule that applies to a call decides.
#[derive(Debug, Clone)]
pub(crate) struct Rules(Vec<sock_filter>);

impl Rules {
    pub(crate) fn new() -> Self {
        Self(vec![load(NUMBER)])
    }

    /// Adds an action for a call.
    pub(crate) fn call(self, number: libc::c_long, action: u32) -> Self {
        self.calls(number as u32..=number as u32, action)
    }

    /// Adds an action for calls.
    pub(crate) fn calls(mut self, numbers: RangeInclusive<u32>, action: u32) -> Self {
        self.0.extend([
            jump(libc::BPF_JGE, *numbers.start(), 0, 2),
            jump(libc::BPF_JGT, *numbers.end(), 1, 0),
            ret(action),
        ]);
        self
    }

    /// Adds an action for a call if `condition` (`BPF_J…`) holds for the lower half of an argument
    /// and `value`.
    pub(crate) fn argument(
        mut self,
        number: libc::c_long,
        place: u32,
        (condition, value): (u32, u32),
        action: u32,
    ) -> Self {
        self.0.extend([
            jump(libc::BPF_JEQ, number as u32, 0, 4),
            load(ARGUMENTS + place * 8),
            jump(condition, value, 0, 1),
            ret(action),
            load(NUMBER),
        ]);
        self
    }

    /// Completes the filter with the action for all other calls.
    pub(crate) fn otherwise(mut self, action: u32) -> Vec<sock_filter> {
        self.0.push(ret(action));
        self.0
    }
}

/// Returns a filter like the one that containers usually have.
pub(crate) fn of_a_container() -> Vec<sock_filter> {
    const CLONE_NEW: u32 = 0x7e02_0000;
    const AF_VSOCK: u32 = 40;
    let allow = libc::SECCOMP_RET_ALLOW;
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut rules = Rules::new()
        .argument(libc::SYS_clone, 0, (libc::BPF_JSET, CLONE_NEW), errno(libc::EPERM))
        .argument(libc::SYS_socket, 0, (libc::BPF_JEQ, AF_VSOCK), errno(libc::EPERM))
        .argument(libc::SYS_personality, 0, (libc::BPF_JEQ, 0), allow)
        .argument(libc::SYS_personality, 0, (libc::BPF_JEQ, u32::MAX), allow)
        .call(libc::SYS_personality, errno(libc::EPERM))
        .call(libc::SYS_clone3, errno(libc::ENOSYS));
    for numbers in DENIED_IN_CONTAINERS {
        rules = rules.calls(numbers, errno(libc::EPERM));
    }
    rules.calls(0..=LAST_IN_CONTAINERS, allow).otherwise(errno(libc::EPERM))
}

/// Installs a filter in the calling thread. Threads and processes that it starts inherit the
/// filter.
#[expect(unsafe_code, reason = "system calls that std does not have")]
pub(crate) fn install(code: &[sock_filter]) {
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    // SAFETY: the first call takes numbers only. The second reads a `struct sock_fprog` and the
    // instructions that it points to, both of which outlive the call; the kernel does not write to
    // them.
    let done = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(done, [0, 0], "{}", std::io::Error::last_os_error());
}

/// Installs a filter like [`install`], and returns the file through which a supervisor decides
/// about calls.
#[expect(unsafe_code, reason = "system calls that std does not have")]
pub(crate) fn install_with_supervisor(code: &[sock_filter]) -> OwnedFd {
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    // SAFETY: the first call takes numbers only. The second reads a `struct sock_fprog` and the
    // instructions that it points to, both of which outlive the call; the kernel does not write to
    // them.
    let file = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)
    };
    assert!(file >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just opened this file for us.
    unsafe { OwnedFd::from_raw_fd(file as i32) }
}

fn load(offset: u32) -> sock_filter {
    let code = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    sock_filter { code, jt: 0, jf: 0, k: offset }
}

fn ret(action: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: action }
}

fn jump(condition: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_K | condition) as u16;
    sock_filter { code, jt: if_true, jf: if_false, k: value }
}

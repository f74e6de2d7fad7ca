//! The system calls in which a thread may be borrowed, and how each of them restarts.
//!
//! A stop interrupts a waiting call. The kernel restarts most calls by itself; some return EINTR
//! instead, which the program would not have seen without the stop; and some restart with their
//! full timeout. This module classifies the calls (from the calls' sources in the kernel, 5.4 to
//! 6.18; signal(7)).

use std::time::Duration;

use crate::arch::OLDER_WAITS;
use crate::stub::contract::{RESTARTS_ALWAYS, RESTARTS_IF_ASKED, RESTARTS_NEVER};

/// Result of an interrupted call that the kernel restarts, except after a handler without
/// SA_RESTART (linux/errno.h).
pub(crate) const ERESTARTSYS: i64 = -512;
/// Result of an interrupted call that the kernel always restarts.
pub(crate) const ERESTARTNOINTR: i64 = -513;
/// Result of an interrupted call that the kernel restarts unless a handler has run.
pub(crate) const ERESTARTNOHAND: i64 = -514;
/// Like [`ERESTARTNOHAND`], but the kernel continues the call by `restart_syscall`, which knows the
/// remaining timeout. `rt_sigreturn` discards that (`do_no_restart_syscall`), so such a call
/// restarts as itself, with the remaining timeout.
pub(crate) const ERESTART_RESTARTBLOCK: i64 = -516;
pub(crate) const EINTR: i64 = -4;

/// The calls in which a thread may be borrowed, by their numbers. `OLDER_WAITS` has those that only
/// some processors have.
const WAITS: [(libc::c_long, &str); 20] = [
    (libc::SYS_read, "read"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_semop, "semop"),
    (libc::SYS_msgrcv, "msgrcv"),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_semtimedop, "semtimedop"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_mq_timedreceive, "mq_timedreceive"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
];
/// The same, of calls whose numbers all processors share (include/uapi/asm-generic/unistd.h).
const NEWER_WAITS: [(libc::c_long, &str); 2] = [(441, "epoll_pwait2"), (449, "futex_waitv")];

/// Returns the name of a call in which a thread may be borrowed.
fn name_of(number: u64) -> Option<&'static str> {
    let all = WAITS.iter().chain(&NEWER_WAITS).chain(OLDER_WAITS);
    let found = all.copied().find(|(other, _)| *other as u64 == number);
    found.map(|(_, name)| name)
}

/// The index of an argument among the six of a call.
type ArgumentPlace = usize;

/// A call in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The call's name.
    pub name: &'static str,
    /// Its timeout.
    pub timeout: Timeout,
    /// Whether it returns EINTR after a stop, even if no handler has run.
    pub gives_up: bool,
    /// The file descriptor that it waits for, if the kind of file matters.
    pub file: Option<u64>,
    /// The location of its own signal mask, if it has one.
    pub mask: Option<MaskAt>,
}

/// The location of a call's own signal mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaskAt {
    /// At this address.
    Address(u64),
    /// At the address in the word at this address.
    Indirect(u64),
}

/// The effect of a restart of the call with the same arguments on its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// It is kept: there is none, or it is an absolute time, or the kernel has written the
    /// remaining time to the program's memory.
    Kept,
    /// The kernel has written the remaining time to the `struct timespec` that this argument points
    /// to, when the call was interrupted. The time spent since then is not subtracted.
    Updated(ArgumentPlace, u64),
    /// It restarts: this argument, and its value in milliseconds.
    Milliseconds(ArgumentPlace, u64),
    /// It restarts: this argument, and the address of the `struct timespec` in it.
    Timespec(ArgumentPlace, u64),
}

impl Wait {
    /// Returns whether an allocator itself may wait in such a call: for a lock, or for another
    /// thread.
    pub(crate) fn may_be_in_allocator(&self) -> bool {
        ["futex", "futex_waitv", "nanosleep", "clock_nanosleep"].contains(&self.name)
    }

    /// Returns the result of such a call when a signal interrupts it, for a processor on which the
    /// kernel does not show that: whether a handler with SA_RESTART lets it continue. (From the
    /// calls' sources, as the table below.)
    #[cfg_attr(
        all(target_arch = "x86_64", not(test)),
        expect(dead_code, reason = "the kernel shows it there")
    )]
    pub(crate) fn interrupted_result(&self, args: &[u64; 6]) -> i64 {
        match self.name {
            "read" | "accept" | "accept4" | "recvfrom" | "recvmsg" | "wait4" | "waitid"
            | "mq_timedreceive" | "futex_waitv" => ERESTARTSYS,
            // Without a timeout.
            "futex" if args[3] == 0 => ERESTARTSYS,
            _ => ERESTARTNOHAND,
        }
    }

    /// Classifies a call by its number and arguments; `None` if no thread may be borrowed in it.
    pub(crate) fn from_call(number: u64, args: &[u64; 6]) -> Option<Self> {
        let plain =
            |name, timeout, gives_up| Self { name, timeout, gives_up, file: None, mask: None };
        let wait = |name, timeout, gives_up| Some(plain(name, timeout, gives_up));
        let on = |name, file| Some(Self { file: Some(file), ..plain(name, Timeout::Kept, false) });
        let masked = |name, timeout, gives_up, place: ArgumentPlace| {
            let mask = Some(args[place]).filter(|at| *at != 0).map(MaskAt::Address);
            Some(Self { mask, ..plain(name, timeout, gives_up) })
        };
        let millis = |place: ArgumentPlace| match args[place] as i32 {
            ms if ms < 0 => Timeout::Kept,
            ms => Timeout::Milliseconds(place, ms.unsigned_abs().into()),
        };
        let span = |place: ArgumentPlace| match args[place] {
            0 => Timeout::Kept,
            at => Timeout::Timespec(place, at),
        };
        let updated = |place: ArgumentPlace| match args[place] {
            0 => Timeout::Kept,
            at => Timeout::Updated(place, at),
        };
        const MSG_WAITALL: u64 = 0x100;
        const IS_ABSOLUTE: u64 = 1;
        const HAS_MORE: u64 = 8;
        match name_of(number)? {
            name @ ("read" | "accept" | "accept4") => on(name, args[0]),
            name @ "poll" => wait(name, millis(2), false),
            // With MSG_WAITALL they would return the part that has arrived.
            name @ "recvfrom" if args[3] & MSG_WAITALL == 0 => on(name, args[0]),
            name @ "recvmsg" if args[2] & MSG_WAITALL == 0 => on(name, args[0]),
            name @ ("select" | "pause" | "wait4" | "waitid" | "msgrcv" | "mq_timedreceive"
            | "futex_waitv") => wait(name, Timeout::Kept, false),
            name @ "nanosleep" => wait(name, span(0), false),
            name @ "semop" => wait(name, Timeout::Kept, true),
            name @ "semtimedop" => wait(name, span(3), true),
            name @ "rt_sigtimedwait" => wait(name, span(2), true),
            name @ "rt_sigsuspend" => masked(name, Timeout::Kept, false, 0),
            name @ "futex" => match args[1] & 0x7f {
                // FUTEX_WAIT; FUTEX_WAIT_BITSET, whose timeout is absolute.
                0 => wait(name, span(3), false),
                9 => wait(name, Timeout::Kept, false),
                _ => None,
            },
            name @ "clock_nanosleep" if args[1] & IS_ABSOLUTE != 0 => {
                wait(name, Timeout::Kept, false)
            }
            name @ "clock_nanosleep" => wait(name, span(2), false),
            name @ "pselect6" => {
                let mask = Some(args[5]).filter(|at| *at != 0).map(MaskAt::Indirect);
                Some(Self { mask, ..plain(name, updated(4), false) })
            }
            name @ "ppoll" => masked(name, updated(2), false, 3),
            name @ "epoll_wait" => wait(name, millis(3), true),
            name @ "epoll_pwait" => masked(name, millis(3), true, 4),
            name @ "epoll_pwait2" => masked(name, span(3), true, 4),
            // If it has submitted entries, it would return their number and not restart.
            name @ "io_uring_enter" if args[3] & HAS_MORE == 0 && args[1] == 0 => {
                masked(name, Timeout::Kept, true, 4)
            }
            _ => None,
        }
    }
}

/// The way in which a thread resumes after it was borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resume {
    /// Whether the call restarts; otherwise it returns the result that it had.
    pub again: bool,
    /// The result of the call that the kernel sees, so that it treats a handler that runs before
    /// our code as it would have done without us.
    pub code: i64,
    /// Whether the call restarts after a handler, for the code in the target (`RESTARTS_…` of
    /// stub/shared.h).
    pub restarts: u64,
}

impl Resume {
    /// Returns the way in which a thread resumes after its call has returned `result`. The kernel's
    /// EINTR for a wait that gives up too easily is not passed on.
    pub(crate) fn from_result(wait: &Wait, result: i64) -> Self {
        match result {
            ERESTARTSYS => Self { again: true, code: result, restarts: RESTARTS_IF_ASKED },
            ERESTARTNOINTR => Self { again: true, code: result, restarts: RESTARTS_ALWAYS },
            ERESTARTNOHAND | ERESTART_RESTARTBLOCK => {
                Self { again: true, code: ERESTARTNOHAND, restarts: RESTARTS_NEVER }
            }
            EINTR if wait.gives_up => {
                Self { again: true, code: ERESTARTNOHAND, restarts: RESTARTS_NEVER }
            }
            _ => Self { again: false, code: ERESTARTNOHAND, restarts: RESTARTS_NEVER },
        }
    }

    /// Returns the result of the call if a handler interrupts it.
    pub(crate) fn interrupted_result(&self, result: i64) -> i64 {
        if self.again { EINTR } else { result }
    }
}

/// The calls that may wait on a socket, for at most its own timeout.
#[cfg(target_arch = "x86_64")]
const SOCKET_CALLS: [libc::c_long; 13] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_accept4,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
];

/// Returns the result to set for a call that a stop has interrupted, if nothing was done during the
/// stop; `None` if the kernel already does the right thing. A call that gives up too easily
/// restarts, unless a handler runs. One that the kernel would continue by `restart_syscall`, which
/// the thread's filters may not permit (`may_restart`), restarts as itself: its timeout may begin
/// anew.
#[cfg(target_arch = "x86_64")]
pub(crate) fn result_if_untouched(
    number: u64,
    args: &[u64; 6],
    result: i64,
    may_restart: impl FnOnce() -> bool,
) -> Option<i64> {
    // Calls on sockets with a timeout of their own give up as well: read, write, readv, writev,
    // accept, and all that send and receive.
    let may_be_socket = SOCKET_CALLS.iter().any(|call| *call as u64 == number);
    let gives_up =
        || may_be_socket || Wait::from_call(number, args).is_some_and(|wait| wait.gives_up);
    let restarts = match result {
        EINTR => gives_up(),
        ERESTART_RESTARTBLOCK => !may_restart(),
        _ => false,
    };
    restarts.then_some(ERESTARTNOHAND)
}

/// Converts a timeout to milliseconds, rounded up so that it never ends early.
pub(crate) fn in_ms(left: Duration) -> u64 {
    u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Converts a `struct timespec`; `None` for an invalid one, which the kernel rejects.
pub(crate) fn duration([seconds, nanoseconds]: [u64; 2]) -> Option<Duration> {
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|n| *n < 1_000_000_000)?;
    i64::try_from(seconds).ok()?;
    Some(Duration::new(seconds, nanoseconds))
}

// The numbers of the calls are those of x86-64.
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_found_among_the_arguments_of_each_call() {
        let timeout = |number, args| Wait::from_call(number, &args).map(|w| w.timeout);
        assert_eq!(timeout(232, [3, 0, 0, 250, 0, 0]), Some(Timeout::Milliseconds(3, 250)));
        let never = u64::from(u32::MAX);
        assert_eq!(timeout(232, [3, 0, 0, never, 0, 0]), Some(Timeout::Kept));
        assert_eq!(timeout(202, [1, 128, 0, 0, 0, 0]), Some(Timeout::Kept));
        assert_eq!(timeout(202, [1, 128, 0, 0x10, 0, 0]), Some(Timeout::Timespec(3, 0x10)));
        assert_eq!(timeout(202, [1, 137, 0, 0x10, 0, 0]), Some(Timeout::Kept));
        assert_eq!(timeout(230, [1, 1, 0x10, 0, 0, 0]), Some(Timeout::Kept));
    }

    #[test]
    fn no_thread_is_borrowed_in_calls_that_are_not_known_to_be_safe() {
        // mmap, vfork, futex(FUTEX_LOCK_PI), ioctl.
        for (number, op) in [(9, 0), (58, 0), (202, 6), (16, 0)] {
            assert_eq!(Wait::from_call(number, &[0, op, 0, 0, 0, 0]), None);
        }
    }

    #[test]
    fn a_timeout_never_ends_early() {
        let after = |us| in_ms(Duration::from_millis(10).saturating_sub(Duration::from_micros(us)));
        assert_eq!(
            (after(0), after(1), after(1000), after(9001), after(20_000)),
            (10, 10, 9, 1, 0)
        );
    }

    #[test]
    fn the_signal_mask_is_found_among_the_arguments_of_each_call() {
        let mask = |number, args| Wait::from_call(number, &args).and_then(|w| w.mask);
        assert_eq!(mask(271, [0, 0, 0, 0x10, 8, 0]), Some(MaskAt::Address(0x10)));
        assert_eq!(mask(270, [0, 0, 0, 0, 0, 0x10]), Some(MaskAt::Indirect(0x10)));
        assert_eq!(mask(281, [0, 0, 0, 5, 0, 0]), None);
    }
}

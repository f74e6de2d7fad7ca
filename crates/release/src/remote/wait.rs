//! The system calls in which a thread may be borrowed, and how each is begun again.
//!
//! A stop breaks a waiting call off. The kernel begins most of them again by itself; some come back with
//! EINTR instead, which the program would not have seen; and some begin their time-out anew. Here is
//! known, for each call, which it is (the calls' sources in the kernel, 5.4 to 6.18; signal(7)).

use std::time::Duration;

use crate::stub::numbers::{RESTARTS_ALWAYS, RESTARTS_IF_ASKED, RESTARTS_NEVER};

/// Result codes of a call that was broken off and that the kernel would begin again (linux/errno.h).
pub(crate) const ERESTARTSYS: i64 = -512;
/// See [`ERESTARTSYS`]: without a handler only.
pub(crate) const ERESTARTNOINTR: i64 = -513;
/// See there.
pub(crate) const ERESTARTNOHAND: i64 = -514;
/// See there: by `restart_syscall`, which knows what is left of the time-out. `rt_sigreturn` makes it
/// forget (`do_no_restart_syscall`), so that such a call is begun again as itself, with what is left.
pub(crate) const ERESTART_RESTARTBLOCK: i64 = -516;
const EINTR: i64 = -4;

/// The place of an argument among the six of a call.
type Place = usize;

/// A call in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The call's name.
    pub name: &'static str,
    /// Its time-out.
    pub timeout: Timeout,
    /// Whether it comes back with EINTR when it is broken off, though no handler has run.
    pub gives_up: bool,
    /// The file that it waits for, where it matters what that is.
    pub file: Option<u64>,
    /// Where the signals are told that it blocks while it waits, if those are others than the thread's.
    pub mask: Option<MaskAt>,
}

/// Where a call's own signal mask is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaskAt {
    /// At this address.
    Address(u64),
    /// Where the word at this address points to.
    Indirect(u64),
}

/// What becomes of a time-out when the call is begun again with the same arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// There is none, or it is a moment in time, or the kernel has left what remains in the program's
    /// own memory.
    Kept,
    /// The kernel has left what remains where this argument points to, as a `struct timespec`, when the call
    /// was broken off: what is spent meanwhile is not taken off.
    Updated(Place, u64),
    /// It begins anew: so many milliseconds, in this argument.
    Milliseconds(Place, u64),
    /// It begins anew: a `struct timespec` at the address in this argument.
    Timespec(Place, u64),
}

impl Wait {
    /// The wait that a call is, by its number and arguments; `None` for one in which no thread is
    /// borrowed.
    pub(crate) fn of(number: u64, args: &[u64; 6]) -> Option<Self> {
        let plain =
            |name, timeout, gives_up| Self { name, timeout, gives_up, file: None, mask: None };
        let wait = |name, timeout, gives_up| Some(plain(name, timeout, gives_up));
        let on = |name, file| Some(Self { file: Some(file), ..plain(name, Timeout::Kept, false) });
        let masked = |name, timeout, gives_up, place: Place| {
            let mask = Some(args[place]).filter(|at| *at != 0).map(MaskAt::Address);
            Some(Self { mask, ..plain(name, timeout, gives_up) })
        };
        let millis = |place: Place| match args[place] as i32 {
            ms if ms < 0 => Timeout::Kept,
            ms => Timeout::Milliseconds(place, ms.unsigned_abs().into()),
        };
        let span = |place: Place| match args[place] {
            0 => Timeout::Kept,
            at => Timeout::Timespec(place, at),
        };
        let updated = |place: Place| match args[place] {
            0 => Timeout::Kept,
            at => Timeout::Updated(place, at),
        };
        const MSG_WAITALL: u64 = 0x100;
        const IS_ABSOLUTE: u64 = 1;
        const HAS_MORE: u64 = 8;
        match number {
            0 => on("read", args[0]),
            7 => wait("poll", millis(2), false),
            23 => wait("select", Timeout::Kept, false),
            34 => wait("pause", Timeout::Kept, false),
            35 => wait("nanosleep", span(0), false),
            43 => on("accept", args[0]),
            // Broken off, they come back with the part that was there.
            45 if args[3] & MSG_WAITALL == 0 => on("recvfrom", args[0]),
            47 if args[2] & MSG_WAITALL == 0 => on("recvmsg", args[0]),
            61 => wait("wait4", Timeout::Kept, false),
            65 => wait("semop", Timeout::Kept, true),
            70 => wait("msgrcv", Timeout::Kept, false),
            128 => wait("rt_sigtimedwait", span(2), true),
            130 => masked("rt_sigsuspend", Timeout::Kept, false, 0),
            202 => match args[1] & 0x7f {
                // FUTEX_WAIT; FUTEX_WAIT_BITSET, whose time-out is a moment.
                0 => wait("futex", span(3), false),
                9 => wait("futex", Timeout::Kept, false),
                _ => None,
            },
            220 => wait("semtimedop", span(3), true),
            230 if args[1] & IS_ABSOLUTE != 0 => wait("clock_nanosleep", Timeout::Kept, false),
            230 => wait("clock_nanosleep", span(2), false),
            232 => wait("epoll_wait", millis(3), true),
            243 => wait("mq_timedreceive", Timeout::Kept, false),
            247 => wait("waitid", Timeout::Kept, false),
            270 => {
                let mask = Some(args[5]).filter(|at| *at != 0).map(MaskAt::Indirect);
                Some(Self { mask, ..plain("pselect6", updated(4), false) })
            }
            271 => masked("ppoll", updated(2), false, 3),
            281 => masked("epoll_pwait", millis(3), true, 4),
            288 => on("accept4", args[0]),
            // What it has submitted, it would not submit again, but come back with.
            426 if args[3] & HAS_MORE == 0 && args[1] == 0 => {
                masked("io_uring_enter", Timeout::Kept, true, 4)
            }
            441 => masked("epoll_pwait2", span(3), true, 4),
            449 => wait("futex_waitv", Timeout::Kept, false),
            _ => None,
        }
    }
}

/// How a thread goes on after it was borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resume {
    /// Whether the call is begun again; else it comes back with what it had.
    pub again: bool,
    /// What the kernel is told the call was, so that it treats a handler that comes before us as it would
    /// have without us.
    pub code: i64,
    /// Whether a handler that has run breaks it off, for the code in the target
    /// (`RESTARTS_…` of stub/shared.h).
    pub restarts: u64,
}

impl Resume {
    /// How a thread goes on whose call has come to this result: of a wait that gives up too easily,
    /// the kernel's EINTR is not passed on.
    pub(crate) fn of(wait: &Wait, result: i64) -> Self {
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

    /// What a broken-off call comes back with.
    pub(crate) fn broken_off(&self, result: i64) -> i64 {
        if self.again { EINTR } else { result }
    }
}

/// What a call is said to have come to that a stop has broken off, when nothing was done meanwhile: one that
/// gives up too easily is begun again, unless a handler runs. `None` where the kernel does by itself what
/// it should.
pub(crate) fn unless_done(number: u64, args: &[u64; 6], result: i64) -> Option<i64> {
    // Sockets with a time-out of their own give up as well: read, write, readv, writev, accept, and all
    // that send and receive.
    let may_be_socket = matches!(number, 0 | 1 | 19 | 20 | 42..=47 | 288 | 299 | 307);
    let gives_up = may_be_socket || Wait::of(number, args).is_some_and(|wait| wait.gives_up);
    (result == EINTR && gives_up).then_some(ERESTARTNOHAND)
}

/// A time-out in milliseconds, rounded up: never early.
pub(crate) fn in_ms(left: Duration) -> u64 {
    u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What a `struct timespec` says; `None` for what no time can be, which is the kernel's to refuse.
pub(crate) fn duration([seconds, nanoseconds]: [u64; 2]) -> Option<Duration> {
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|n| *n < 1_000_000_000)?;
    i64::try_from(seconds).ok()?;
    Some(Duration::new(seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_is_found_where_the_call_has_it() {
        let of = |number, args| Wait::of(number, &args).map(|w| w.timeout);
        assert_eq!(of(232, [3, 0, 0, 250, 0, 0]), Some(Timeout::Milliseconds(3, 250)));
        let never = u64::from(u32::MAX);
        assert_eq!(of(232, [3, 0, 0, never, 0, 0]), Some(Timeout::Kept));
        assert_eq!(of(202, [1, 128, 0, 0, 0, 0]), Some(Timeout::Kept));
        assert_eq!(of(202, [1, 128, 0, 0x10, 0, 0]), Some(Timeout::Timespec(3, 0x10)));
        assert_eq!(of(202, [1, 137, 0, 0x10, 0, 0]), Some(Timeout::Kept));
        assert_eq!(of(230, [1, 1, 0x10, 0, 0, 0]), Some(Timeout::Kept));
    }

    #[test]
    fn no_thread_is_borrowed_in_calls_that_are_not_known_to_be_safe() {
        // mmap, vfork, futex(FUTEX_LOCK_PI), ioctl.
        for (number, op) in [(9, 0), (58, 0), (202, 6), (16, 0)] {
            assert_eq!(Wait::of(number, &[0, op, 0, 0, 0, 0]), None);
        }
    }

    #[test]
    fn a_time_out_never_ends_early() {
        let after = |us| in_ms(Duration::from_millis(10).saturating_sub(Duration::from_micros(us)));
        assert_eq!(
            (after(0), after(1), after(1000), after(9001), after(20_000)),
            (10, 10, 9, 1, 0)
        );
    }

    #[test]
    fn a_mask_of_its_own_is_found_where_the_call_has_it() {
        let of = |number, args| Wait::of(number, &args).and_then(|w| w.mask);
        assert_eq!(of(271, [0, 0, 0, 0x10, 8, 0]), Some(MaskAt::Address(0x10)));
        assert_eq!(of(270, [0, 0, 0, 0, 0, 0x10]), Some(MaskAt::Indirect(0x10)));
        assert_eq!(of(281, [0, 0, 0, 5, 0, 0]), None);
    }
}

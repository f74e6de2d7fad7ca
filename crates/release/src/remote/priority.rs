//! Not being interrupted while others wait for us, as far as that is permitted (CAP_SYS_NICE).

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::time::Duration;

use lowtide_probe::proc::task::Thread;

use crate::repeating::Repeating;

/// While it lives, this thread goes before all ordinary ones: between the stop of a thread and letting it
/// go, nothing else should come.
#[derive(Debug)]
pub(crate) struct Urgent {
    before: Option<(i32, libc::sched_param)>,
    /// It is one thread's.
    _thread: PhantomData<*const ()>,
}

impl Urgent {
    pub(crate) fn begin() -> Self {
        // SAFETY: 0 is this thread; both calls only read numbers, and a struct that lives long enough.
        let (policy, mut param) =
            unsafe { (libc::sched_getscheduler(0), libc::sched_param { sched_priority: 0 }) };
        // SAFETY: the kernel writes a `struct sched_param` to one.
        let known = policy >= 0 && unsafe { libc::sched_getparam(0, &raw mut param) } == 0;
        let before = (known && first_of_all(0)).then_some((policy, param));
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some((policy, param)) = &self.before {
            // SAFETY: 0 is this thread, and the struct lives until behind the call.
            unsafe { libc::sched_setscheduler(0, *policy, std::ptr::from_ref(param)) };
        }
    }
}

/// While it lives, Ctrl-Z and its like wait: a thread of the target may be standing still. It is for this
/// thread, and for those that are started meanwhile.
#[derive(Debug)]
pub(crate) struct Unstopped {
    before: libc::sigset_t,
    /// It is one thread's.
    _thread: PhantomData<*const ()>,
}

impl Unstopped {
    pub(crate) fn begin() -> Self {
        // SAFETY: a set of signals is made of integers, of which zeros are values.
        let (mut stops, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are ours and live until behind the calls.
        unsafe {
            libc::sigemptyset(&raw mut stops);
            for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
                libc::sigaddset(&raw mut stops, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const stops, &raw mut before);
        }
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Unstopped {
    fn drop(&mut self) {
        // SAFETY: the set is what this thread had before.
        unsafe {
            let none = std::ptr::null_mut();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, none);
        }
    }
}

/// Puts a thread before all ordinary ones, or at least before those that are as nice.
pub(crate) fn raise(tid: u32) {
    const NICEST: i32 = -20;
    let Ok(tid) = i32::try_from(tid) else { return };
    if !first_of_all(tid) {
        // SAFETY: only numbers are handed over; where it is not permitted, nothing changes.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.unsigned_abs(), NICEST) };
    }
}

/// What this thread sleeps is not stretched by more than this: the kernel rounds by 50 µs otherwise.
pub(crate) fn sleep_exactly() {
    const NANOSECONDS: libc::c_ulong = 1000;
    // SAFETY: only numbers are handed over.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECONDS, 0, 0, 0) };
}

/// Has this thread give way to others where it can.
pub(crate) fn give_way() {
    const NICE: i32 = 5;
    // SAFETY: only numbers are handed over; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// While it lives, this thread runs where a processor has nothing else to do (`SCHED_IDLE`): the target's threads
/// want the same ones, and the scheduler lets an ordinary thread go on for up to 3 ms while they wait, however
/// nice it is. Where it has waited for a turn itself, it is an ordinary thread for one: it may hold a lock of
/// the kernel's that the target wants, and it must get on where processors are never idle. Where coming back
/// is not permitted, nothing changes. [`Urgent`] is not for the same time.
#[derive(Debug)]
pub(crate) struct Background {
    /// The thread, and what sees to it that it is not forgotten there.
    guarded: Option<(Thread, Repeating)>,
}

impl Background {
    /// So often it is looked whether the thread waits: after twice that at most it is an ordinary one. (The
    /// kernel counts what a thread has had once in 4 ms, or when its turn ends.)
    const PATIENCE: Duration = Duration::from_millis(5);

    pub(crate) fn begin() -> Self {
        // SAFETY: only a number is given back.
        let tid = unsafe { libc::gettid() }.unsigned_abs();
        // SAFETY: 0 is this thread; only numbers are handed over.
        let is_ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
        let thread = Thread { pid: std::process::id(), tid };
        if !is_ordinary || thread.ran().is_none() || !may_come_back() {
            return Self { guarded: None };
        }
        // Begun before, the guard does not run in the background itself.
        let guard = Repeating::begin(Self::PATIENCE, lift_where_it_waits(thread));
        let guarded = guard.ok().map(|guard| (thread, guard));
        if guarded.is_some() {
            set_policy(tid, libc::SCHED_IDLE);
        }
        Self { guarded }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some((thread, guard)) = self.guarded.take() {
            drop(guard);
            set_policy(thread.tid, libc::SCHED_OTHER);
        }
    }
}

/// Looks at a thread in the background: one that has had nothing since the last look, and wants a processor, is
/// an ordinary one until it has had its turn.
fn lift_where_it_waits(thread: Thread) -> impl FnMut() -> bool {
    let (mut before, mut is_lifted) = (None, false);
    move || {
        let now = thread.ran();
        let waits = now.is_some() && now == before && is_runnable(thread);
        if waits != is_lifted {
            set_policy(thread.tid, if waits { libc::SCHED_OTHER } else { libc::SCHED_IDLE });
            is_lifted = waits;
        }
        before = now;
        true
    }
}

/// Whether a thread runs, or would if it had a processor.
fn is_runnable(thread: Thread) -> bool {
    thread.stat().is_ok_and(|stat| stat.state == 'R')
}

/// Whether a thread that has gone to the background may come back (`CAP_SYS_NICE`, or RLIMIT_NICE): tried with
/// one that is not needed.
fn may_come_back() -> bool {
    let there_and_back = || set_policy(0, libc::SCHED_IDLE) && set_policy(0, libc::SCHED_OTHER);
    let thread = std::thread::Builder::new().spawn(there_and_back);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Whether a thread of this process is scheduled like that from now on; 0 is this one.
fn set_policy(tid: u32, policy: libc::c_int) -> bool {
    let Ok(tid) = libc::pid_t::try_from(tid) else { return false };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the struct lives until behind the call.
    unsafe { libc::sched_setscheduler(tid, policy, &raw const param) == 0 }
}

fn first_of_all(tid: i32) -> bool {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the struct lives until behind the call.
    unsafe { libc::sched_setscheduler(tid, libc::SCHED_FIFO, &raw const param) == 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: only numbers are handed over; 0 is this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_comes_back_from_the_background_and_goes_there_only_where_it_may() {
        let before = policy();
        let background = Background::begin();
        if before == libc::SCHED_OTHER && may_come_back() {
            // Where it has to wait for a processor, it is lifted for a turn.
            let deadline = Instant::now() + Duration::from_secs(60);
            while policy() != libc::SCHED_IDLE {
                assert!(Instant::now() < deadline, "it never went to the background");
                std::thread::yield_now();
            }
        } else {
            assert_eq!(policy(), before);
        }
        drop(background);
        assert_eq!(policy(), before);
    }

    #[test]
    fn what_a_thread_has_had_of_a_processor_is_read_and_whether_it_runs() {
        // SAFETY: only a number is given back.
        let tid = unsafe { libc::gettid() }.unsigned_abs();
        let thread = Thread { pid: std::process::id(), tid };
        let before = thread.ran().unwrap();
        assert!(is_runnable(thread));
        std::thread::sleep(Duration::from_millis(1));
        assert!(thread.ran().unwrap() > before);
    }
}

//! Not being interrupted while others wait for us, as far as that is permitted (CAP_SYS_NICE).

#![expect(
    unsafe_code,
    reason = "scheduling and signal masks of single threads, which std does not have"
)]

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task::{self, Thread};

use crate::repeating::Repeating;

/// While it lives, this thread goes before all ordinary ones: between the stop of a thread and letting it
/// go, nothing else should come.
#[derive(Debug)]
pub(crate) struct Urgent {
    /// Policy and priority.
    before: Option<(libc::c_int, libc::c_int)>,
    /// It is one thread's.
    _thread: PhantomData<*const ()>,
}

impl Urgent {
    pub(crate) fn begin() -> Self {
        let before = policy(0).zip(priority(0)).filter(|_| first_of_all(0));
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some((policy, priority)) = self.before {
            schedule(0, policy, priority);
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
        // SAFETY: `sigset_t` consists of integers, for which all zeros are valid.
        let (mut stops, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the pointers are to two `sigset_t` of this function, which outlive the calls; the signals
        // are valid numbers.
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
        // SAFETY: the first pointer is to the `sigset_t` that `begin` filled in, the second may be null. The
        // mask is that of this thread, as it was: the type is not `Send`.
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
        // SAFETY: it takes only numbers, of the declared types; if it is not permitted, nothing changes.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.unsigned_abs(), NICEST) };
    }
}

/// Takes back what [`raise`] gave.
pub(crate) fn lower(tid: u32) {
    set_policy(tid, libc::SCHED_OTHER);
    // SAFETY: it takes only numbers, of the declared types; if it is not permitted, nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, 0) };
}

/// What this thread sleeps is not stretched by more than this: the kernel rounds by 50 µs otherwise.
pub(crate) fn sleep_exactly() {
    const NANOSECONDS: libc::c_ulong = 1000;
    const UNUSED: libc::c_ulong = 0;
    // SAFETY: PR_SET_TIMERSLACK takes only numbers; prctl is variadic and reads each as an `unsigned long`,
    // which each is.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECONDS, UNUSED, UNUSED, UNUSED) };
}

/// Has this thread give way to others where it can.
pub(crate) fn give_way() {
    const NICE: i32 = 5;
    // SAFETY: it takes only numbers, of the declared types; 0 is this thread.
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

    /// With `interrupt` set, it comes back: it is in the way of ending.
    pub(crate) fn begin(interrupt: &Arc<AtomicBool>) -> Self {
        let is_ordinary = policy(0) == Some(libc::SCHED_OTHER);
        let thread = Thread::current();
        if !is_ordinary || thread.ran().is_none() || !may_come_back() {
            return Self { guarded: None };
        }
        // Begun before, the guard does not run in the background itself.
        let guard =
            Repeating::begin(Self::PATIENCE, lift_where_it_waits(thread, Arc::clone(interrupt)));
        let guarded = guard.ok().map(|guard| (thread, guard));
        if guarded.is_some() {
            set_policy(thread.tid, libc::SCHED_IDLE);
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
fn lift_where_it_waits(thread: Thread, interrupt: Arc<AtomicBool>) -> impl FnMut() -> bool {
    let (mut before, mut is_lifted) = (None, false);
    move || {
        let now = thread.ran();
        if interrupt.load(Ordering::Relaxed) {
            // As an ordinary one it would have to wait for seconds where many want a processor: what it has had in
            // the background counts 300 times (`vlag` in kernel/sched/fair.c). It is about to end.
            if !i32::try_from(thread.tid).is_ok_and(first_of_all) {
                set_policy(thread.tid, libc::SCHED_OTHER);
            }
            return false;
        }
        let waits = now.is_some() && now == before && is_runnable(thread);
        if waits != is_lifted {
            set_policy(thread.tid, if waits { libc::SCHED_OTHER } else { libc::SCHED_IDLE });
            is_lifted = waits;
        }
        before = now;
        true
    }
}

/// Has all threads of ours that are in the background go before others: they are to end, and each must have a
/// processor once for that.
pub(crate) fn leave_background() {
    for thread in task::threads(std::process::id()).unwrap_or_default() {
        let Ok(tid) = i32::try_from(thread.tid) else { continue };
        if policy(tid) == Some(libc::SCHED_IDLE) && !first_of_all(tid) {
            set_policy(thread.tid, libc::SCHED_OTHER);
        }
    }
}

/// Whether a thread runs, or would if it had a processor.
fn is_runnable(thread: Thread) -> bool {
    thread.stat().is_ok_and(|stat| stat.state == 'R')
}

/// Whether a thread that has gone to the background may come back: with CAP_SYS_NICE, or where RLIMIT_NICE permits
/// what it has been (`user_check_sched_setscheduler` in kernel/sched/syscalls.c). It is not tried: a thread that is
/// there, be it for an instant, may wait for seconds where many want a processor.
fn may_come_back() -> bool {
    const CAP_SYS_NICE: u64 = 1 << 23;
    if Status::own().is_ok_and(|own| own.capabilities & CAP_SYS_NICE != 0) {
        return true;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes a `struct rlimit` to `limit`, which is one and outlives the call.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NICE, &raw mut limit) } == 0;
    // SAFETY: it takes only numbers, of the declared types; 0 is this thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    is_known && i64::try_from(limit.rlim_cur).unwrap_or(i64::MAX) >= 20 - i64::from(nice)
}

/// Whether a thread of this process is scheduled like that from now on; 0 is this one.
fn set_policy(tid: u32, policy: libc::c_int) -> bool {
    libc::pid_t::try_from(tid).is_ok_and(|tid| schedule(tid, policy, 0))
}

fn first_of_all(tid: i32) -> bool {
    // No thread that it starts has that from it.
    schedule(tid, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)
}

// Scheduling goes by the system calls themselves: musl's functions only return ENOSYS, since its threads share
// what POSIX means for a process. The kernel's `struct sched_param` is one `int`, the priority.

/// Returns the scheduling policy of a thread; 0 is this one.
fn policy(tid: libc::pid_t) -> Option<libc::c_int> {
    // SAFETY: it takes a number, as wide as a register, and returns one.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, libc::c_long::from(tid)) };
    libc::c_int::try_from(policy).ok().filter(|policy| *policy >= 0)
}

/// Returns the real-time priority of a thread; 0 is this one.
fn priority(tid: libc::pid_t) -> Option<libc::c_int> {
    let (tid, mut priority) = (libc::c_long::from(tid), 0);
    // SAFETY: the kernel writes an `int` to `priority`, which is one and outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_sched_getparam, tid, &raw mut priority) };
    (done == 0).then_some(priority)
}

/// Sets the policy and priority of a thread, and returns whether that was permitted; 0 is this one.
fn schedule(tid: libc::pid_t, policy: libc::c_int, priority: libc::c_int) -> bool {
    let (tid, policy) = (libc::c_long::from(tid), libc::c_long::from(policy));
    // SAFETY: the kernel reads an `int` from `priority`, which is one and outlives the call.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const priority) };
    done == 0
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_comes_back_from_the_background_and_goes_there_only_where_it_may() {
        let before = policy(0);
        let background = Background::begin(&Arc::default());
        if before == Some(libc::SCHED_OTHER) && may_come_back() {
            // Where it has to wait for a processor, it is lifted for a turn.
            let deadline = Instant::now() + Duration::from_secs(60);
            while policy(0) != Some(libc::SCHED_IDLE) {
                assert!(Instant::now() < deadline, "it never went to the background");
                std::thread::yield_now();
            }
        } else {
            assert_eq!(policy(0), before);
        }
        drop(background);
        assert_eq!(policy(0), before);
    }

    #[test]
    fn what_a_thread_has_had_of_a_processor_is_read_and_whether_it_runs() {
        let thread = Thread::current();
        let before = thread.ran().unwrap();
        assert!(is_runnable(thread));
        std::thread::sleep(Duration::from_millis(1));
        assert!(thread.ran().unwrap() > before);
    }
}

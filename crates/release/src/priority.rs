//! Scheduling and signal masks of lowtide's own threads and of its thread in the target, as far as
//! they may be changed (CAP_SYS_NICE): a thread of the target must not stay stopped for longer than
//! necessary.

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

use crate::options::Options;
use crate::periodic::PeriodicThread;

/// Gives the calling thread a realtime priority until it is dropped: no other thread should run on
/// its processor between the stop of a thread of the target and its resumption.
#[derive(Debug)]
pub(crate) struct RealtimeGuard {
    /// Policy and priority before.
    before: Option<(libc::c_int, libc::c_int)>,
    /// It applies to the thread that created it.
    _thread: PhantomData<*const ()>,
}

impl RealtimeGuard {
    pub(crate) fn new() -> Self {
        let before = policy(0).zip(priority(0)).filter(|_| set_realtime(0));
        Self { before, _thread: PhantomData }
    }
}

impl Drop for RealtimeGuard {
    fn drop(&mut self) {
        if let Some((policy, priority)) = self.before {
            schedule(0, policy, priority);
        }
    }
}

/// Gives the calling thread a realtime priority for as long as it lives, if this is permitted. It
/// must sleep most of the time.
pub fn prefer_this_thread() {
    set_realtime(0);
}

/// Gives a thread of this process a realtime priority, if this is permitted, until it calls
/// [`end_preference`]: something urgent waits for it.
pub fn prefer_thread(tid: u32) {
    if let Ok(tid) = i32::try_from(tid) {
        set_realtime(tid);
    }
}

/// Makes the calling thread an ordinary one again.
pub fn end_preference() {
    if policy(0).is_some_and(|policy| policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO) {
        schedule(0, libc::SCHED_OTHER, 0);
    }
}

/// Blocks the signals of job control (Ctrl-Z and the like) until it is dropped, for the calling
/// thread and for those that it starts meanwhile: lowtide must not be suspended while a thread of
/// the target is stopped.
#[derive(Debug)]
pub(crate) struct JobControlBlocked {
    before: libc::sigset_t,
    /// It applies to the thread that created it.
    _thread: PhantomData<*const ()>,
}

impl JobControlBlocked {
    pub(crate) fn new() -> Self {
        // SAFETY: `sigset_t` consists of integers, for which all zeros are valid.
        let (mut stops, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the pointers are to two `sigset_t` of this function, which outlive the calls; the
        // signals are valid numbers.
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

impl Drop for JobControlBlocked {
    fn drop(&mut self) {
        // SAFETY: the first pointer is to the `sigset_t` that `new` filled in, the second may be
        // null. The mask is that of this thread, as it was: the type is not `Send`.
        unsafe {
            let none = std::ptr::null_mut();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, none);
        }
    }
}

/// Gives a thread a realtime priority, or at least the lowest nice value.
pub(crate) fn boost(tid: u32) {
    const LOWEST_NICE: i32 = -20;
    let Ok(tid) = i32::try_from(tid) else { return };
    if !set_realtime(tid) {
        // SAFETY: it takes only numbers, of the declared types; if it is not permitted, nothing
        // changes.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.unsigned_abs(), LOWEST_NICE) };
    }
}

/// Reverts [`boost`].
pub(crate) fn unboost(tid: u32) {
    set_policy(tid, libc::SCHED_OTHER);
    // SAFETY: it takes only numbers, of the declared types; if it is not permitted, nothing
    // changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, 0) };
}

/// Reduces the calling thread's timer slack to 1 µs: by default the kernel extends each sleep by up
/// to 50 µs.
pub(crate) fn reduce_timer_slack() {
    const NANOSECONDS: libc::c_ulong = 1000;
    const UNUSED: libc::c_ulong = 0;
    // SAFETY: PR_SET_TIMERSLACK takes only numbers; prctl is variadic and reads each as an
    // `unsigned long`, which each is.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECONDS, UNUSED, UNUSED, UNUSED) };
}

/// Lowers the calling thread's priority below that of ordinary threads, if this is permitted.
pub(crate) fn lower() {
    const NICE: i32 = 5;
    // SAFETY: it takes only numbers, of the declared types; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Schedules the calling thread as idle (`SCHED_IDLE`) until it is dropped. The target's threads
/// want the same processors, and the scheduler runs an ordinary thread for up to 3 ms while they
/// wait, however nice it is.
///
/// When the thread has waited for a processor itself, it becomes an ordinary one for one turn: it
/// may hold a kernel lock that the target wants, and it must make progress on processors that are
/// never idle. If leaving `SCHED_IDLE` is not permitted, nothing changes. Must not be combined with
/// [`RealtimeGuard`].
#[derive(Debug)]
pub(crate) struct IdleGuard {
    /// The thread, and the thread that prevents it from starving.
    guarded: Option<(Thread, PeriodicThread)>,
}

impl IdleGuard {
    /// Interval of the checks whether the thread starves: after twice this time at most it is an
    /// ordinary one. (The kernel updates a thread's run time once in 4 ms, or when its turn ends.)
    const CHECK_INTERVAL: Duration = Duration::from_millis(5);

    /// Makes the calling thread idle for the work of a release, unless that is urgent.
    pub(crate) fn for_release(options: &Options) -> Self {
        match options.is_urgent {
            true => Self { guarded: None },
            false => Self::new(&options.interrupt),
        }
    }

    /// Makes the calling thread idle. When `interrupt` is set, the thread becomes an ordinary one
    /// again, so that it can end soon.
    pub(crate) fn new(interrupt: &Arc<AtomicBool>) -> Self {
        let is_ordinary = policy(0) == Some(libc::SCHED_OTHER);
        let thread = Thread::current();
        if !is_ordinary || thread.ran().is_none() || !can_leave_idle() {
            return Self { guarded: None };
        }
        // Started before, this thread is not idle itself.
        let guard = PeriodicThread::start(
            Self::CHECK_INTERVAL,
            boost_when_starved(thread, Arc::clone(interrupt)),
        );
        let guarded = guard.ok().map(|guard| (thread, guard));
        if guarded.is_some() {
            set_policy(thread.tid, libc::SCHED_IDLE);
        }
        Self { guarded }
    }
}

impl Drop for IdleGuard {
    fn drop(&mut self) {
        if let Some((thread, guard)) = self.guarded.take() {
            drop(guard);
            set_policy(thread.tid, libc::SCHED_OTHER);
        }
    }
}

/// Returns a function that checks an idle thread: if it has not run since the last check and wants
/// a processor, it becomes an ordinary one until it has had its turn.
fn boost_when_starved(thread: Thread, interrupt: Arc<AtomicBool>) -> impl FnMut() -> bool {
    let (mut before, mut is_boosted) = (None, false);
    move || {
        let now = thread.ran();
        if interrupt.load(Ordering::Relaxed) {
            // As an ordinary thread it could wait for seconds on a busy machine: its run time while
            // idle counts 300 times (`vlag` in kernel/sched/fair.c). It is about to end.
            if !i32::try_from(thread.tid).is_ok_and(set_realtime) {
                set_policy(thread.tid, libc::SCHED_OTHER);
            }
            return false;
        }
        let waits = now.is_some() && now == before && is_runnable(thread);
        if waits != is_boosted {
            set_policy(thread.tid, if waits { libc::SCHED_OTHER } else { libc::SCHED_IDLE });
            is_boosted = waits;
        }
        before = now;
        true
    }
}

/// Boosts all idle threads of this process: they are about to end, and each needs a processor once
/// for that.
pub(crate) fn boost_idle_threads() {
    for thread in task::threads(std::process::id()).unwrap_or_default() {
        let Ok(tid) = i32::try_from(thread.tid) else { continue };
        if policy(tid) == Some(libc::SCHED_IDLE) && !set_realtime(tid) {
            set_policy(thread.tid, libc::SCHED_OTHER);
        }
    }
}

/// Returns whether a thread runs, or waits for a processor.
fn is_runnable(thread: Thread) -> bool {
    thread.stat().is_ok_and(|stat| stat.state == 'R')
}

/// Returns whether an idle thread may become an ordinary one again: with CAP_SYS_NICE, or if
/// RLIMIT_NICE permits its nice value (`user_check_sched_setscheduler` in kernel/sched/syscalls.c).
/// This is computed and not tried: a thread that is idle even for an instant may wait for seconds
/// on a busy machine.
fn can_leave_idle() -> bool {
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

/// Sets the scheduling policy of a thread of this process, 0 for the calling one. Returns whether
/// it succeeded.
fn set_policy(tid: u32, policy: libc::c_int) -> bool {
    libc::pid_t::try_from(tid).is_ok_and(|tid| schedule(tid, policy, 0))
}

/// Gives a thread a realtime priority, 0 for the calling one. Returns whether it succeeded.
fn set_realtime(tid: i32) -> bool {
    // Threads that it starts do not inherit this.
    schedule(tid, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)
}

// These are the system calls themselves. musl's functions only return ENOSYS, because POSIX defines
// them for processes and the kernel for threads. The kernel's `struct sched_param` is one `int`,
// the priority.

/// Returns the scheduling policy of a thread, 0 for the calling one.
fn policy(tid: libc::pid_t) -> Option<libc::c_int> {
    // SAFETY: it takes a number, as wide as a register, and returns one.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, libc::c_long::from(tid)) };
    libc::c_int::try_from(policy).ok().filter(|policy| *policy >= 0)
}

/// Returns the real-time priority of a thread, 0 for the calling one.
fn priority(tid: libc::pid_t) -> Option<libc::c_int> {
    let (tid, mut priority) = (libc::c_long::from(tid), 0);
    // SAFETY: the kernel writes an `int` to `priority`, which is one and outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_sched_getparam, tid, &raw mut priority) };
    (done == 0).then_some(priority)
}

/// Sets policy and priority of a thread, 0 for the calling one. Returns whether it succeeded.
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
    fn a_thread_becomes_idle_only_if_it_is_permitted_to_leave_the_idle_policy() {
        let before = policy(0);
        let guard = IdleGuard::new(&Arc::default());
        if before == Some(libc::SCHED_OTHER) && can_leave_idle() {
            // If it has to wait for a processor, it is an ordinary thread for a turn.
            let deadline = Instant::now() + Duration::from_secs(60);
            while policy(0) != Some(libc::SCHED_IDLE) {
                assert!(Instant::now() < deadline, "it never became idle");
                std::thread::yield_now();
            }
        } else {
            assert_eq!(policy(0), before);
        }
        drop(guard);
        assert_eq!(policy(0), before);
    }

    #[test]
    fn the_run_time_and_the_runnable_state_of_a_thread_are_read() {
        let thread = Thread::current();
        let before = thread.ran().unwrap();
        assert!(is_runnable(thread));
        std::thread::sleep(Duration::from_millis(1));
        assert!(thread.ran().unwrap() > before);
    }
}

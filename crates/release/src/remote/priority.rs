//! Not being interrupted while others wait for us, as far as that is permitted (CAP_SYS_NICE).

#![allow(unsafe_code)]

use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

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
    guard: Option<Guard>,
}

impl Background {
    pub(crate) fn begin() -> Self {
        // SAFETY: only a number is given back.
        let tid = unsafe { libc::gettid() };
        // SAFETY: 0 is this thread; only numbers are handed over.
        let is_ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
        if !is_ordinary || !may_come_back() {
            return Self { guard: None };
        }
        Self { guard: Guard::begin(tid) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(Guard { tid, stop, thread }) = self.guard.take() {
            stop.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            let _ = thread.join();
            set_policy(tid, libc::SCHED_OTHER);
        }
    }
}

/// Sees to it that a thread in the background is not forgotten there.
#[derive(Debug)]
struct Guard {
    tid: libc::pid_t,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Guard {
    /// So often it is looked whether the thread waits: after twice that at most it is an ordinary one. (The
    /// kernel counts what a thread has had once in 4 ms, or when its turn ends.)
    const PATIENCE: Duration = Duration::from_millis(5);

    fn begin(tid: libc::pid_t) -> Option<Self> {
        let directory = format!("/proc/self/task/{tid}");
        let stat = File::open(format!("{directory}/stat")).ok()?;
        let turns = File::open(format!("{directory}/schedstat")).ok()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watch = move || {
            let (mut before, mut is_lifted) = (None, false);
            while !stopped.load(Ordering::Relaxed) {
                let now = had(&turns);
                let waits = now.is_some() && now == before && is_runnable(&stat);
                if waits != is_lifted {
                    set_policy(tid, if waits { libc::SCHED_OTHER } else { libc::SCHED_IDLE });
                    is_lifted = waits;
                }
                before = now;
                std::thread::park_timeout(Self::PATIENCE);
            }
        };
        // Begun before, it does not run in the background itself.
        let thread = std::thread::Builder::new().spawn(watch).ok()?;
        set_policy(tid, libc::SCHED_IDLE);
        Some(Self { tid, stop, thread })
    }
}

/// What a thread has had of a processor: in nanoseconds, and in turns. (Of /proc/PID/schedstat.)
fn had(schedstat: &File) -> Option<(u64, u64)> {
    let mut text = [0; 96];
    let length = schedstat.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let mut words = text.split_whitespace();
    let ran = words.next()?.parse().ok()?;
    let turns = words.nth(1)?.parse().ok()?;
    Some((ran, turns))
}

/// Whether a thread runs, or would if it had a processor.
fn is_runnable(stat: &File) -> bool {
    let mut text = [0; 64];
    let length = stat.read_at(&mut text, 0).unwrap_or(0);
    let behind_name = text[..length].windows(3).rfind(|part| part.starts_with(b") "));
    behind_name.is_some_and(|part| part[2] == b'R')
}

/// Whether a thread that has gone to the background may come back (`CAP_SYS_NICE`, or RLIMIT_NICE): tried with
/// one that is not needed.
fn may_come_back() -> bool {
    let there_and_back = || set_policy(0, libc::SCHED_IDLE) && set_policy(0, libc::SCHED_OTHER);
    let thread = std::thread::Builder::new().spawn(there_and_back);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Whether a thread of this process is scheduled like that from now on; 0 is this one.
fn set_policy(tid: libc::pid_t, policy: libc::c_int) -> bool {
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
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: only numbers are handed over; 0 is this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_comes_back_from_the_background_and_goes_there_only_where_it_may() {
        let before = policy();
        let background = Background::begin();
        let is_there = policy() == libc::SCHED_IDLE;
        assert_eq!(is_there, before == libc::SCHED_OTHER && may_come_back());
        drop(background);
        assert_eq!(policy(), before);
    }

    #[test]
    fn what_a_thread_has_had_of_a_processor_is_read_and_whether_it_runs() {
        let turns = File::open("/proc/thread-self/schedstat").unwrap();
        let stat = File::open("/proc/thread-self/stat").unwrap();
        let before = had(&turns).unwrap();
        assert!(is_runnable(&stat));
        std::thread::sleep(Duration::from_millis(1));
        assert!(had(&turns).unwrap().1 > before.1);
    }
}

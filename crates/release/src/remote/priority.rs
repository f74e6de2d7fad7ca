//! Not being interrupted while others wait for us, as far as that is permitted (CAP_SYS_NICE).

#![allow(unsafe_code)]

use std::marker::PhantomData;

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

/// Has this thread run for a short time at once where others wait, and not for the scheduler's usual 3 ms: what
/// it looks at may take long, and the target's threads want the same processors. (Linux 6.12 and later; before,
/// it is at least nice.)
pub(crate) fn give_way() {
    /// `struct sched_attr`, in its first form.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SLICE_NS: u64 = 100_000;
    const NICE: i32 = 5;
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: NICE,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads as many bytes as `size` says from a struct that has them; 0 is this thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

fn first_of_all(tid: i32) -> bool {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the struct lives until behind the call.
    unsafe { libc::sched_setscheduler(tid, libc::SCHED_FIFO, &raw const param) == 0 }
}

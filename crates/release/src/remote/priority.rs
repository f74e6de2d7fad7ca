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

fn first_of_all(tid: i32) -> bool {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the struct lives until behind the call.
    unsafe { libc::sched_setscheduler(tid, libc::SCHED_FIFO, &raw const param) == 0 }
}

//! A counter for each thread, and their sum.
//!
//! A thread gets its counter with its first allocation. When the thread ends, it passes the
//! counter, with its value, to another thread. So there are as many counters as there were threads
//! at once, and no value is added up when a thread ends. A counter that all threads share is used
//! before a thread has its own, and in destructors after it has passed it on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{null, null_mut, without_provenance};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr};

/// The counter of a thread. It has two cache lines for itself, since processors fetch them in
/// pairs.
#[repr(align(128))]
struct Counter {
    /// Bytes that threads with this counter have allocated, less those that they have freed, which
    /// may be the blocks of other threads. Only the thread that holds the counter writes here.
    bytes: AtomicI64,
    is_held: AtomicBool,
    /// The counter that was created before.
    next: *const Counter,
}

/// The counter that was created last. Counters are never freed.
static LAST: AtomicPtr<Counter> = AtomicPtr::new(null_mut());
/// Bytes counted by threads without a counter.
static SHARED: AtomicI64 = AtomicI64::new(0);
/// Whether anything was counted without a counter.
static IS_SHARED_USED: AtomicBool = AtomicBool::new(false);

/// The value of `OWN` in a thread that has no counter now, and gets none: while it looks for one,
/// and at its end.
const NO_COUNTER: *const Counter = without_provenance(1);

thread_local! {
    /// The counter of this thread; null before its first allocation. It has no destructor, so that
    /// it exists as long as the thread.
    static OWN: Cell<*const Counter> = const { Cell::new(null()) };
    /// Passes the counter on at the end of the thread.
    static LEASE: Lease = const { Lease };
}

struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let counter = OWN.replace(NO_COUNTER);
        if counter > NO_COUNTER {
            // SAFETY: a counter is never freed.
            let counter = unsafe { &*counter };
            // The next thread sees the value that this one has left.
            counter.is_held.store(false, Release);
        }
    }
}

/// Counts bytes that were allocated, or freed if they are negative.
#[inline]
pub(super) fn add(bytes: i64) {
    let counter = OWN.get();
    if counter > NO_COUNTER {
        // SAFETY: a counter is never freed.
        let counter = unsafe { &*counter };
        // No other thread writes to it.
        counter.bytes.store(counter.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
    } else {
        add_without_counter(bytes);
    }
}

#[cold]
fn add_without_counter(bytes: i64) {
    if OWN.get().is_null() {
        // Registering a destructor may allocate.
        OWN.set(NO_COUNTER);
        if LEASE.try_with(|_| ()).is_ok()
            && let Some(counter) = take()
        {
            OWN.set(counter);
            return add(bytes);
        }
    }
    SHARED.fetch_add(bytes, Relaxed);
    IS_SHARED_USED.store(true, Relaxed);
}

/// Returns a counter that no thread holds, or else a new one; `None` if there is no memory.
fn take() -> Option<*const Counter> {
    let mut place = LAST.load(Acquire).cast_const();
    // SAFETY: it is null or points to a counter, which is never freed.
    while let Some(counter) = unsafe { place.as_ref() } {
        if counter.is_held.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
            return Some(place);
        }
        place = counter.next;
    }
    // SAFETY: the layout has a size.
    let made = unsafe { System.alloc(Layout::new::<Counter>()) }.cast::<Counter>();
    if made.is_null() {
        return None;
    }
    let mut next = LAST.load(Acquire);
    loop {
        let counter = Counter { bytes: AtomicI64::new(0), is_held: AtomicBool::new(true), next };
        // SAFETY: the block has the layout of a counter, and no other thread knows it yet.
        unsafe { made.write(counter) };
        match LAST.compare_exchange_weak(next, made, AcqRel, Acquire) {
            Ok(_) => return Some(made),
            Err(now) => next = now,
        }
    }
}

/// Returns the bytes that the program has allocated and not freed; `None` if
/// [`Tracked`](super::Tracked) is not its `#[global_allocator]`.
///
/// The counters are read one after the other. While other threads allocate or free, the sum may
/// miss these operations.
pub fn allocated_bytes() -> Option<u64> {
    let mut place = LAST.load(Acquire).cast_const();
    if place.is_null() && !IS_SHARED_USED.load(Relaxed) {
        return None;
    }
    let mut sum = SHARED.load(Relaxed);
    // SAFETY: it is null or points to a counter, which is never freed.
    while let Some(counter) = unsafe { place.as_ref() } {
        sum = sum.wrapping_add(counter.bytes.load(Relaxed));
        place = counter.next;
    }
    // A block that one thread has allocated and another has freed may be missed in the first alone.
    Some(u64::try_from(sum).unwrap_or(0))
}

/// Returns the number of counters.
#[cfg(test)]
fn count() -> usize {
    let mut place = LAST.load(Acquire).cast_const();
    let mut count = 0;
    // SAFETY: it is null or points to a counter, which is never freed.
    while let Some(counter) = unsafe { place.as_ref() } {
        count += 1;
        place = counter.next;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_ended_threads_are_reused() {
        for _ in 0..1000 {
            std::thread::spawn(|| {
                add(1000);
                add(-1000);
            })
            .join()
            .unwrap();
        }
        // This thread may have a counter, and the threads of other tests too.
        assert!(count() <= 8, "{}", count());
    }
}

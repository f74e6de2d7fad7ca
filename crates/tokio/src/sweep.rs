//! Runs a function on every worker of a runtime.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::Allocator;
use crate::clamp::clamp;

/// Maximum time for which a worker waits for the others. Without that, an idle worker would run the
/// tasks of the others.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_micros(500);
/// Time between two attempts of a sweep.
const PAUSE: Duration = Duration::from_millis(2);

/// The result of [`sweep`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// Number of workers of the runtime. 0 if the allocator needs no sweep, or the runtime has
    /// ended.
    pub workers: usize,
    /// Number of workers that have freed their caches. The others were busy, and do it when they
    /// are free.
    pub reached: usize,
}

/// Makes every worker of a runtime free the cache that the allocator keeps for its thread. glibc
/// needs no sweep: then it returns at once.
///
/// It spawns a task for each worker, and blocks the calling thread until all have run, or until the
/// timeout. Tasks that have not run yet run later. Do not call it on a worker of this runtime,
/// which would be blocked until the timeout. A worker waits for the others for at most half a
/// millisecond at a time.
pub fn sweep(runtime: &Handle, allocator: Allocator, timeout: Duration) -> SweepReport {
    let mut runtime = SweptRuntime::new(runtime.clone());
    runtime.sweep(allocator, timeout).unwrap_or_default()
}

/// A runtime that is swept again and again.
#[derive(Debug)]
pub(crate) struct SweptRuntime {
    handle: Handle,
    /// The last sweep. Its tasks that have not run yet keep it.
    last: Weak<Rendezvous>,
}

impl SweptRuntime {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle, last: Weak::new() }
    }

    /// Sweeps the runtime: [`sweep`]. `None` if the runtime has ended.
    pub(crate) fn sweep(&mut self, allocator: Allocator, timeout: Duration) -> Option<SweepReport> {
        let Some(flush) = allocator.flush() else { return Some(SweepReport::default()) };
        // Tasks would accumulate in a runtime that does not run now.
        if self.last.strong_count() > 0 {
            return Some(SweepReport { workers: self.handle.metrics().num_workers(), reached: 0 });
        }
        let rendezvous = Arc::new(Rendezvous::default());
        self.last = Arc::downgrade(&rendezvous);
        run_on_each_worker(&self.handle, flush, timeout, &rendezvous)
    }
}

/// The state of a sweep.
#[derive(Debug, Default)]
struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads that have run the function.
    reached: HashSet<ThreadId>,
    /// Number of tasks that have started in this attempt.
    begun: usize,
    /// Number of tasks that have ended in this attempt, or were dropped.
    ended: usize,
}

impl Rendezvous {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task of an attempt. It ends when it is dropped, because a runtime that shuts down drops tasks
/// without running them.
struct SweepTask {
    rendezvous: Arc<Rendezvous>,
}

impl Drop for SweepTask {
    fn drop(&mut self) {
        self.rendezvous.state().ended += 1;
        self.rendezvous.changed.notify_all();
    }
}

/// Returns `None` if the runtime has ended.
fn run_on_each_worker(
    runtime: &Handle,
    flush: fn(),
    timeout: Duration,
    rendezvous: &Arc<Rendezvous>,
) -> Option<SweepReport> {
    let workers = runtime.metrics().num_workers();
    let deadline = Instant::now() + clamp(timeout);
    let mut swept = SweepReport { workers, reached: 0 };
    loop {
        {
            let mut state = rendezvous.state();
            (state.begun, state.ended) = (0, 0);
        }
        for _ in 0..workers {
            let task = SweepTask { rendezvous: Arc::clone(rendezvous) };
            runtime.spawn(async move { task.run(flush, workers) });
        }
        let mut state = rendezvous.state();
        while state.ended < workers {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            state = rendezvous
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        swept.reached = state.reached.len().min(workers);
        // A runtime that has shut down drops its tasks without running them.
        if state.ended == workers && state.begun == 0 {
            return None;
        }
        // Tasks that have not run yet flush later.
        let is_late = state.ended < workers || Instant::now() >= deadline;
        if swept.reached >= workers || is_late {
            return Some(swept);
        }
        drop(state);
        thread::sleep(PAUSE);
    }
}

impl SweepTask {
    fn run(&self, flush: fn(), workers: usize) {
        let is_first = {
            let mut state = self.rendezvous.state();
            state.begun += 1;
            state.reached.insert(thread::current().id())
        };
        if is_first {
            flush();
        }
        let begin = Instant::now();
        while self.rendezvous.state().begun < workers && begin.elapsed() < RENDEZVOUS_TIMEOUT {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokio::runtime::Builder;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn every_worker_flushes_once() {
        static FLUSHES: AtomicUsize = AtomicUsize::new(0);
        let runtime = Builder::new_multi_thread().worker_threads(4).build().unwrap();
        let flush = || {
            FLUSHES.fetch_add(1, Ordering::Relaxed);
        };
        let allocator = Allocator::Other { release: || {}, flush: Some(flush) };
        let swept = sweep(runtime.handle(), allocator, LONG);
        assert_eq!(swept, SweepReport { workers: 4, reached: 4 });
        assert_eq!(FLUSHES.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_blocked_worker_is_reported_and_flushes_once_it_is_unblocked() {
        static FLUSHES: AtomicUsize = AtomicUsize::new(0);
        static IS_BLOCKED: AtomicBool = AtomicBool::new(true);
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.spawn(async {
            while IS_BLOCKED.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let flush = || {
            FLUSHES.fetch_add(1, Ordering::Relaxed);
        };
        let allocator = Allocator::Other { release: || {}, flush: Some(flush) };
        let swept = sweep(runtime.handle(), allocator, Duration::from_millis(20));
        assert_eq!(swept, SweepReport { workers: 1, reached: 0 });
        IS_BLOCKED.store(false, Ordering::Relaxed);
        while FLUSHES.load(Ordering::Relaxed) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_sweep_handles_single_threaded_and_shut_down_runtimes() {
        let allocator = Allocator::Other { release: || {}, flush: Some(|| {}) };
        let runtime = Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        let swept = thread::spawn(move || sweep(&handle, allocator, LONG));
        let swept = runtime.block_on(async {
            while !swept.is_finished() {
                tokio::task::yield_now().await;
            }
            swept.join().unwrap()
        });
        assert_eq!(swept, SweepReport { workers: 1, reached: 1 });
        let handle = runtime.handle().clone();
        drop(runtime);
        assert_eq!(sweep(&handle, allocator, LONG / 600).reached, 0);
    }
}

//! Reaches every worker of a runtime.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::Allocator;

/// Maximum time for which a worker waits for the others: one that is not yet idle would otherwise miss its task, which
/// an idle worker would take.
const MEETING: Duration = Duration::from_micros(500);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// The account of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Number of workers of the runtime.
    pub workers: usize,
    /// How many of them have flushed. The others were busy all the time, and flush when they get to it.
    pub reached: usize,
}

/// Makes every worker of a runtime give back the memory that its thread keeps for itself, by a task for each of them.
/// Workers that are busy are tried again until `patience` has passed. With an allocator that has nothing in its threads
/// that a release does not reach (glibc), it returns at once.
///
/// It blocks the calling thread, which should not be a worker of this runtime. A worker waits for the others for at most
/// half a millisecond at a time.
pub fn sweep(runtime: &Handle, allocator: Allocator, patience: Duration) -> Swept {
    match allocator.flush() {
        Some(flush) => run_on_each_worker(runtime, flush, patience),
        None => Swept::default(),
    }
}

/// The state of a sweep.
#[derive(Default)]
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The threads that have run the function.
    reached: HashSet<ThreadId>,
    /// Number of tasks that have begun in this attempt.
    begun: usize,
    /// Number of tasks that have ended in this attempt, or were dropped.
    ended: usize,
}

impl Meeting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task of an attempt. It ends when it is dropped, because a runtime that shuts down drops tasks without running them.
struct Task {
    meeting: Arc<Meeting>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.meeting.state().ended += 1;
        self.meeting.changed.notify_all();
    }
}

fn run_on_each_worker(runtime: &Handle, flush: fn(), patience: Duration) -> Swept {
    let workers = runtime.metrics().num_workers();
    let deadline = Instant::now() + patience;
    let meeting = Arc::new(Meeting::default());
    let mut swept = Swept { workers, reached: 0 };
    loop {
        {
            let mut state = meeting.state();
            (state.begun, state.ended) = (0, 0);
        }
        for _ in 0..workers {
            let task = Task { meeting: Arc::clone(&meeting) };
            runtime.spawn(async move { task.run(flush, workers) });
        }
        let mut state = meeting.state();
        while state.ended < workers {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            state =
                meeting.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        swept.reached = state.reached.len().min(workers);
        // A runtime that has shut down drops its tasks without running them.
        let is_over = state.begun == 0;
        // Tasks that have not run yet flush later.
        let is_late = state.ended < workers || Instant::now() >= deadline;
        if swept.reached >= workers || is_over || is_late {
            return swept;
        }
        drop(state);
        thread::sleep(PAUSE);
    }
}

impl Task {
    fn run(&self, flush: fn(), workers: usize) {
        let is_first = {
            let mut state = self.meeting.state();
            state.begun += 1;
            state.reached.insert(thread::current().id())
        };
        if is_first {
            flush();
        }
        let begin = Instant::now();
        while self.meeting.state().begun < workers && begin.elapsed() < MEETING {
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
        assert_eq!(swept, Swept { workers: 4, reached: 4 });
        assert_eq!(FLUSHES.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_worker_that_is_blocked_is_reported_and_flushes_when_it_is_free_again() {
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
        assert_eq!(swept, Swept { workers: 1, reached: 0 });
        IS_BLOCKED.store(false, Ordering::Relaxed);
        while FLUSHES.load(Ordering::Relaxed) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_runtime_of_one_thread_and_one_that_has_shut_down_are_survived() {
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
        assert_eq!(swept, Swept { workers: 1, reached: 1 });
        let handle = runtime.handle().clone();
        drop(runtime);
        assert_eq!(sweep(&handle, allocator, LONG / 600).reached, 0);
    }
}

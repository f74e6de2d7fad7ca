//! A worker thread that serves requests, in addition to its regular work.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The requests to a worker. They can be made before it starts.
#[derive(Debug)]
pub(crate) struct Requests<R>(Arc<Mailbox<R>>);

#[derive(Debug)]
struct Mailbox<R> {
    state: Mutex<MailboxState<R>>,
    changed: Condvar,
}

#[derive(Debug)]
struct MailboxState<R> {
    pending: Vec<R>,
    /// Number of requests that were made, and of those that were served.
    made: u64,
    served: u64,
    stop: bool,
}

impl<R> Default for Requests<R> {
    fn default() -> Self {
        let state = MailboxState { pending: Vec::new(), made: 0, served: 0, stop: false };
        Self(Arc::new(Mailbox { state: Mutex::new(state), changed: Condvar::new() }))
    }
}

impl<R> Clone for Requests<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Requests<R> {
    /// Makes a request, without waiting for it. Returns the number of the request.
    pub(crate) fn ask(&self, request: R) -> u64 {
        let mut state = self.state();
        state.pending.push(request);
        state.made += 1;
        self.0.changed.notify_all();
        state.made
    }

    /// Makes a request, and waits until it is served. Returns whether it was.
    pub(crate) fn ask_and_wait(&self, request: R, timeout: Duration) -> bool {
        let mine = self.ask(request);
        let is_open = |state: &mut MailboxState<R>| state.served < mine && !state.stop;
        let waited = self.0.changed.wait_timeout_while(self.state(), timeout, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.served >= mine
    }

    /// Tells the worker to stop, without waiting for it.
    pub(crate) fn stop(&self) {
        self.state().stop = true;
        self.0.changed.notify_all();
    }

    /// Returns whether the worker should stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stop
    }

    /// Waits until there is a request, or the worker should stop. Returns whether either happened
    /// in time.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let is_idle = |state: &mut MailboxState<R>| state.pending.is_empty() && !state.stop;
        let waited = self.0.changed.wait_timeout_while(self.state(), timeout, is_idle);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Takes the pending requests. They are served when the batch is dropped.
    pub(crate) fn take(&self) -> PendingRequests<R> {
        let mut state = self.state();
        let requests = std::mem::take(&mut state.pending);
        PendingRequests { requests, last: state.made, source: self.clone() }
    }

    fn state(&self) -> MutexGuard<'_, MailboxState<R>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests that are being served.
#[derive(Debug)]
pub(crate) struct PendingRequests<R> {
    /// The requests, in order.
    pub(crate) requests: Vec<R>,
    last: u64,
    source: Requests<R>,
}

impl<R> Drop for PendingRequests<R> {
    fn drop(&mut self) {
        self.source.state().served = self.last;
        self.source.0.changed.notify_all();
    }
}

/// A running worker thread. Dropping it tells the thread to stop.
#[derive(Debug)]
pub(crate) struct OnDemand<R, T> {
    requests: Requests<R>,
    thread: Option<JoinHandle<T>>,
}

impl<R: Send + 'static, T: Send + 'static> OnDemand<R, T> {
    /// Starts a thread that serves `requests` until they are stopped.
    pub(crate) fn start(
        requests: Requests<R>,
        work: impl FnOnce(&Requests<R>) -> T + Send + 'static,
    ) -> Self {
        let of_thread = StopOnDrop(requests.clone());
        let thread = thread::spawn(move || work(&of_thread.0));
        Self { requests, thread: Some(thread) }
    }

    /// Stops the thread, and waits for its result; returns `None` if it has panicked.
    pub(crate) fn finish(mut self) -> Option<T> {
        self.requests.stop();
        self.thread.take()?.join().ok()
    }
}

impl<R, T> std::ops::Deref for OnDemand<R, T> {
    type Target = Requests<R>;

    fn deref(&self) -> &Requests<R> {
        &self.requests
    }
}

impl<R, T> Drop for OnDemand<R, T> {
    fn drop(&mut self) {
        self.requests.stop();
    }
}

/// Stops the requests when the thread ends, even by a panic, so that no caller waits for it.
struct StopOnDrop<R>(Requests<R>);

impl<R> Drop for StopOnDrop<R> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Maximum time to wait for an event that must come.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Serves requests until it is stopped, and returns the batches.
    fn serve(requests: &Requests<u32>) -> Vec<Vec<u32>> {
        let mut served = Vec::new();
        loop {
            requests.wait(TIMEOUT);
            if requests.is_stopped() {
                return served;
            }
            served.push(requests.take().requests.clone());
        }
    }

    #[test]
    fn a_request_is_served_before_the_caller_continues() {
        let worker = OnDemand::start(Requests::default(), serve);
        assert!(worker.ask_and_wait(1, TIMEOUT));
        assert!(worker.ask_and_wait(2, TIMEOUT));
        assert_eq!(worker.finish(), Some(vec![vec![1], vec![2]]));
    }

    #[test]
    fn requests_queued_before_the_worker_starts_are_served_together() {
        let requests = Requests::default();
        requests.ask(1);
        requests.ask(2);
        assert!(!requests.ask_and_wait(3, Duration::ZERO), "no worker serves it yet");
        let worker = OnDemand::start(requests.clone(), serve);
        assert!(requests.ask_and_wait(4, TIMEOUT));
        let served = worker.finish().unwrap();
        assert_eq!(served.concat(), [1, 2, 3, 4]);
        assert_eq!(served[0][..3], [1, 2, 3]);
    }

    #[test]
    fn a_worker_without_requests_continues_after_its_timeout() {
        let requests = Requests::<u32>::default();
        assert!(!requests.wait(Duration::from_millis(1)));
        requests.ask(1);
        assert!(requests.wait(TIMEOUT));
        assert_eq!(requests.take().requests, [1]);
        assert!(requests.take().requests.is_empty());
    }

    #[test]
    fn a_caller_does_not_wait_for_a_worker_that_has_ended() {
        let begin = Instant::now();
        let requests = Requests::<u32>::default();
        let worker = OnDemand::start(requests.clone(), |requests| {
            requests.wait(TIMEOUT);
            panic!("as the test wants it");
        });
        assert!(!requests.ask_and_wait(1, TIMEOUT));
        assert_eq!(worker.finish().map(|(): ()| ()), None);
        drop(OnDemand::start(requests.clone(), serve));
        assert!(requests.is_stopped());
        assert!(!requests.ask_and_wait(1, TIMEOUT));
        assert!(begin.elapsed() < TIMEOUT);
    }
}

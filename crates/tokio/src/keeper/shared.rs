//! The state that the keeper's thread, its handles and the connections share.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::KeeperReport;
use super::metrics::Metrics;
use super::settings::KeeperSettings;
use crate::sweep::SweptRuntime;
use crate::{allocated_bytes, memory};

/// Time without an event after which the load has fallen, and after which a connection that has
/// drained is recycled.
pub(super) const QUIET: Duration = Duration::from_millis(100);
/// Minimum peak for which a fall to an eighth is an event. A fall to zero always is one.
const MIN_PEAK: usize = 8;
/// Divisor of the peak: a connection has drained, and a load has fallen, when no more than this
/// part of the peak is left.
pub(super) const DRAINED_DIVISOR: usize = 8;

/// A connection that has drained or is due, as the keeper's thread needs it.
pub(super) trait Recyclable: fmt::Debug + Send + Sync {
    /// Shuts the connection down, unless it has become busy again.
    fn recycle(self: Arc<Self>, now: Instant) -> Decision;
}

/// The decision about a connection that had drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It shuts down, or has become busy again.
    Done,
    /// It is younger than `min_age`, or has drained only now. The keeper decides at this time.
    Later(Instant),
    /// Too many others are shutting down.
    Wait,
}

/// A count of concurrent things, with its peak. All workers write to it, so it shares no cache line
/// with data that they only read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct LoadCount {
    count: AtomicUsize,
    /// The largest count since the load last fell.
    peak: AtomicUsize,
}

impl LoadCount {
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn begin(&self) {
        let count = self.count.fetch_add(1, Relaxed) + 1;
        if count > self.peak.load(Relaxed) {
            self.peak.store(count, Relaxed);
        }
    }

    /// Decrements the count. Returns whether the load has fallen.
    fn end(&self) -> bool {
        let left = self.count.fetch_sub(1, Relaxed) - 1;
        let peak = self.peak.load(Relaxed);
        let is_low = left == 0 || peak >= MIN_PEAK && left * DRAINED_DIVISOR <= peak;
        is_low && self.peak.compare_exchange(peak, left, Relaxed, Relaxed).is_ok()
    }
}

/// The shared state.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) settings: KeeperSettings,
    /// The keeper's thread, once it runs.
    pub(super) thread: OnceLock<Thread>,
    is_stopped: AtomicBool,
    /// Number of events so far: reasons for the keeper's thread to check.
    events: AtomicU64,
    /// Whether an event must wake the keeper's thread. Otherwise, it wakes by itself soon.
    is_resting: AtomicBool,
    connections: LoadCount,
    /// Requests in flight, without the endless ones.
    requests: LoadCount,
    /// Responses of unknown length in flight, and upgrades.
    endless: LoadCount,
    /// Pinned connections. Negative for an instant if one is unpinned while it is pinned.
    pub(super) pinned: AtomicIsize,
    pub(super) pinned_streams: AtomicIsize,
    pub(super) closing: AtomicUsize,
    pub(super) recycled: AtomicU64,
    pub(super) cut: AtomicU64,
    /// Errors of `accept` that concern the process.
    pub(crate) accept_errors: AtomicU64,
    /// Connections that were refused before they had a task.
    pub(crate) refused_connections: AtomicU64,
    /// Requests that were refused because there were too many.
    pub(crate) refused_requests: AtomicU64,
    /// Connections that have drained or are due.
    drained: Mutex<VecDeque<Weak<dyn Recyclable>>>,
    runtimes: Mutex<Vec<SweptRuntime>>,
    /// The callers that wait for a release; `None` when the keeper's thread has ended.
    waiting: Mutex<Option<Vec<oneshot::Sender<KeeperReport>>>>,
    pub(super) totals: Mutex<WorkTotals>,
}

/// The work of the keeper's thread so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WorkTotals {
    pub(super) releases: u64,
    pub(super) unproductive_releases: u64,
    pub(super) returned_bytes: u64,
    pub(super) last_release: Duration,
    pub(super) longest_lock: Option<Duration>,
    pub(super) busy_workers: u64,
}

/// Locks a mutex whose data is valid at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(settings: KeeperSettings, runtimes: Vec<Handle>) -> Self {
        Self {
            settings,
            thread: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
            events: AtomicU64::new(0),
            is_resting: AtomicBool::new(false),
            connections: LoadCount::default(),
            requests: LoadCount::default(),
            endless: LoadCount::default(),
            pinned: AtomicIsize::new(0),
            pinned_streams: AtomicIsize::new(0),
            closing: AtomicUsize::new(0),
            recycled: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            refused_requests: AtomicU64::new(0),
            drained: Mutex::default(),
            runtimes: Mutex::new(runtimes.into_iter().map(SweptRuntime::new).collect()),
            waiting: Mutex::new(Some(Vec::new())),
            totals: Mutex::default(),
        }
    }

    /// Makes the keeper's thread check now.
    pub(super) fn event(&self) {
        self.events.fetch_add(1, SeqCst);
        self.wake();
    }

    /// Makes the keeper's thread check soon.
    fn fall(&self) {
        self.events.fetch_add(1, SeqCst);
        if self.is_resting.load(SeqCst) && self.is_resting.swap(false, SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Sets whether the fall of a load must wake the keeper's thread. Check [`Shared::events`]
    /// after it.
    pub(super) fn set_resting(&self, is_resting: bool) {
        self.is_resting.store(is_resting, SeqCst);
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(SeqCst)
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
        self.event();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Relaxed)
    }

    /// Returns the number of requests in flight, endless ones included.
    pub(crate) fn in_flight(&self) -> usize {
        self.requests.count() + self.endless.count()
    }

    /// Returns the number of requests in flight, without endless ones.
    pub(super) fn finite_requests(&self) -> usize {
        self.requests.count()
    }

    pub(super) fn begin_request(&self) {
        self.requests.begin();
    }

    pub(super) fn end_request(&self) {
        if self.requests.end() {
            self.fall();
        }
    }

    /// Moves a request to the endless ones.
    pub(super) fn make_endless(&self) {
        self.endless.begin();
        self.end_request();
    }

    pub(super) fn end_endless(&self) {
        if self.endless.end() {
            self.fall();
        }
    }

    pub(super) fn begin_connection(&self) {
        self.connections.begin();
    }

    pub(super) fn end_connection(&self) {
        if self.connections.end() {
            self.fall();
        }
    }

    pub(super) fn add_drained(&self, connection: Weak<dyn Recyclable>) {
        lock(&self.drained).push_back(connection);
        self.fall();
    }

    pub(super) fn take_drained(&self) -> VecDeque<Weak<dyn Recyclable>> {
        std::mem::take(&mut lock(&self.drained))
    }

    pub(super) fn put_drained_back(&self, mut waiting: VecDeque<Weak<dyn Recyclable>>) {
        let mut drained = lock(&self.drained);
        waiting.append(&mut drained);
        *drained = waiting;
    }

    pub(super) fn add_runtime(&self, runtime: Handle) {
        lock(&self.runtimes).push(SweptRuntime::new(runtime));
    }

    pub(super) fn take_runtimes(&self) -> Vec<SweptRuntime> {
        std::mem::take(&mut lock(&self.runtimes))
    }

    pub(super) fn put_runtimes_back(&self, mut runtimes: Vec<SweptRuntime>) {
        let mut added = lock(&self.runtimes);
        runtimes.append(&mut added);
        *added = runtimes;
    }

    /// Requests a release. The sender is dropped if the keeper's thread has ended.
    pub(super) fn request_release(&self, sender: oneshot::Sender<KeeperReport>) {
        if let Some(waiting) = lock(&self.waiting).as_mut() {
            waiting.push(sender);
        }
        self.event();
    }

    pub(super) fn take_waiting(&self) -> Vec<oneshot::Sender<KeeperReport>> {
        lock(&self.waiting).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Refuses requests for a release from now on, and those that wait.
    pub(super) fn refuse_releases(&self) {
        *lock(&self.waiting) = None;
    }

    pub(super) fn metrics(&self) -> Metrics {
        let totals = *lock(&self.totals);
        let clamped = |count: &AtomicIsize| usize::try_from(count.load(Relaxed)).unwrap_or(0);
        Metrics {
            connections: self.connections.count(),
            in_flight: self.in_flight(),
            pinned_connections: clamped(&self.pinned),
            pinned_bytes: clamped(&self.pinned_streams) as u64 * super::BYTES_PER_STREAM,
            closing_connections: self.closing.load(Relaxed),
            recycled_connections: self.recycled.load(Relaxed),
            cut_connections: self.cut.load(Relaxed),
            accept_errors: self.accept_errors.load(Relaxed),
            refused_connections: self.refused_connections.load(Relaxed),
            refused_requests: self.refused_requests.load(Relaxed),
            releases: totals.releases,
            unproductive_releases: totals.unproductive_releases,
            returned_bytes: totals.returned_bytes,
            last_release: totals.last_release,
            longest_lock: totals.longest_lock,
            busy_workers: totals.busy_workers,
            anonymous_bytes: memory::anonymous_bytes().unwrap_or(0),
            allocated_bytes: allocated_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_falls_at_an_eighth_of_its_peak_and_at_zero() {
        let load = LoadCount::default();
        let ends = |count: usize| (0..count).filter(|_| load.end()).count();
        (0..100).for_each(|_| load.begin());
        assert_eq!((ends(87), load.count()), (0, 13));
        assert_eq!((ends(1), load.count()), (1, 12));
        // 12 is the new peak, and 1 an eighth of it.
        assert_eq!((ends(10), ends(1), ends(1)), (0, 1, 1));
        (0..7).for_each(|_| load.begin());
        assert_eq!((ends(6), ends(1)), (0, 1));
    }
}

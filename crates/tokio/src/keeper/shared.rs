//! What the keeper's thread, its handles and the connections share.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Report;
use super::connection::Connection;
use super::figures::Figures;
use super::settings::Settings;
use crate::{allocated_bytes, memory};

/// Minimum number of requests at once, after which a fall is worth a look.
const MIN_PEAK: usize = 100;
/// Divisor of the peak: load has gone when no more than that part of it is left.
pub(super) const DRAINED_DIVISOR: usize = 8;

/// The shared state.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) settings: Settings,
    /// The keeper's thread, as soon as it runs.
    pub(super) thread: OnceLock<Thread>,
    is_stopped: AtomicBool,
    /// Number of events so far: reasons for the keeper to look.
    events: AtomicU64,
    pub(super) connections: AtomicUsize,
    in_flight: AtomicUsize,
    /// The most requests at once since the last fall.
    peak: AtomicUsize,
    pub(super) pinned: AtomicUsize,
    pub(super) pinned_streams: AtomicUsize,
    pub(super) closing: AtomicUsize,
    pub(super) recycled: AtomicU64,
    pub(super) cut: AtomicU64,
    /// Connections that were refused before they had a task.
    pub(crate) refused_connections: AtomicU64,
    /// Requests that were refused because there were too many.
    pub(crate) refused_requests: AtomicU64,
    /// Connections that were wide and have drained.
    drained: Mutex<VecDeque<Weak<Connection>>>,
    runtimes: Mutex<Vec<Handle>>,
    requests: Mutex<Vec<oneshot::Sender<Report>>>,
    pub(super) acts: Mutex<Acts>,
}

/// What the keeper's thread has done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Acts {
    pub(super) releases: u64,
    pub(super) returned_bytes: u64,
    pub(super) last_release: Duration,
    pub(super) longest_lock: Option<Duration>,
    pub(super) busy_workers: u64,
}

/// Locks a mutex whose data is sound at all times.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(settings: Settings, runtimes: Vec<Handle>) -> Self {
        Self {
            settings,
            thread: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
            events: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            pinned_streams: AtomicUsize::new(0),
            closing: AtomicUsize::new(0),
            recycled: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            refused_requests: AtomicU64::new(0),
            drained: Mutex::default(),
            runtimes: Mutex::new(runtimes),
            requests: Mutex::default(),
            acts: Mutex::default(),
        }
    }

    /// Makes the keeper look.
    pub(super) fn event(&self) {
        self.events.fetch_add(1, Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Acquire)
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
        self.event();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Relaxed)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Counts a request that begins.
    pub(super) fn begin(&self) {
        let count = self.in_flight.fetch_add(1, Relaxed) + 1;
        if count > self.peak.load(Relaxed) {
            self.peak.store(count, Relaxed);
        }
    }

    /// Counts a request that has ended. If only a small part of the load is left, the keeper looks.
    pub(super) fn end(&self) {
        let left = self.in_flight.fetch_sub(1, Relaxed) - 1;
        let peak = self.peak.load(Relaxed);
        if peak >= MIN_PEAK
            && left * DRAINED_DIVISOR <= peak
            && self.peak.compare_exchange(peak, left, Relaxed, Relaxed).is_ok()
        {
            self.event();
        }
    }

    pub(super) fn add_drained(&self, connection: Weak<Connection>) {
        lock(&self.drained).push_back(connection);
        self.event();
    }

    pub(super) fn take_drained(&self) -> VecDeque<Weak<Connection>> {
        std::mem::take(&mut lock(&self.drained))
    }

    pub(super) fn put_drained_back(&self, mut waiting: VecDeque<Weak<Connection>>) {
        let mut drained = lock(&self.drained);
        waiting.append(&mut drained);
        *drained = waiting;
    }

    pub(super) fn add_runtime(&self, runtime: Handle) {
        lock(&self.runtimes).push(runtime);
    }

    pub(super) fn runtimes(&self) -> Vec<Handle> {
        lock(&self.runtimes).clone()
    }

    pub(super) fn request(&self, sender: oneshot::Sender<Report>) {
        lock(&self.requests).push(sender);
        self.event();
    }

    pub(super) fn take_requests(&self) -> Vec<oneshot::Sender<Report>> {
        std::mem::take(&mut lock(&self.requests))
    }

    pub(super) fn figures(&self) -> Figures {
        let acts = *lock(&self.acts);
        Figures {
            connections: self.connections.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            pinned_connections: self.pinned.load(Relaxed),
            pinned_bytes: self.pinned_streams.load(Relaxed) as u64 * super::BYTES_PER_STREAM,
            closing_connections: self.closing.load(Relaxed),
            recycled_connections: self.recycled.load(Relaxed),
            cut_connections: self.cut.load(Relaxed),
            refused_connections: self.refused_connections.load(Relaxed),
            refused_requests: self.refused_requests.load(Relaxed),
            releases: acts.releases,
            returned_bytes: acts.returned_bytes,
            last_release: acts.last_release,
            longest_lock: acts.longest_lock,
            busy_workers: acts.busy_workers,
            anonymous_bytes: memory::anonymous_bytes().unwrap_or(0),
            allocated_bytes: allocated_bytes(),
        }
    }
}

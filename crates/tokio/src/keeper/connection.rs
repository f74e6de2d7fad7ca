//! What is known of one connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::time::Instant;

use tokio::sync::Notify;

use super::shared::{DRAINED_DIVISOR, Shared};

/// It serves, and need not go.
const SERVING: u8 = 0;
/// It was wide and has drained: it waits for the keeper.
const DRAINED: u8 = 1;
/// It was asked to go.
const ASKED: u8 = 2;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) since: Instant,
    state: AtomicU8,
    /// Requests so far.
    begun: AtomicUsize,
    /// Requests that have ended so far.
    ended: AtomicUsize,
    /// The most requests at once.
    peak: AtomicUsize,
    /// Responses of unknown length, and upgrades, in flight.
    endless: AtomicUsize,
    /// The number of streams by which this connection counts as pinned; 0 if it does not.
    pinned: AtomicUsize,
    is_http1: AtomicBool,
    /// Whether a large body has made its read buffer large (HTTP/1.1).
    has_large_buffer: AtomicBool,
    /// Whether the next response closes it (HTTP/1.1).
    pub(super) closes_next: AtomicBool,
    /// Wakes its driver when it is asked to go.
    pub(super) go: Notify,
    /// Whether it counts among those that are closing.
    is_closing: AtomicBool,
}

/// What the keeper does about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It was asked to go, or need not go.
    Done,
    /// It is too young, until then.
    Young(Instant),
    /// Too many others are closing.
    Wait,
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        shared.connections.fetch_add(1, Relaxed);
        Arc::new(Self {
            shared,
            since: Instant::now(),
            state: AtomicU8::new(SERVING),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            endless: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            is_http1: AtomicBool::new(false),
            has_large_buffer: AtomicBool::new(false),
            closes_next: AtomicBool::new(false),
            go: Notify::new(),
            is_closing: AtomicBool::new(false),
        })
    }

    /// Counts a request that begins, until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.shared.begin();
        let count = self.begun.fetch_add(1, Relaxed) + 1 - self.ended.load(Relaxed);
        if count > self.peak.load(Relaxed) {
            self.peak.store(count, Relaxed);
        }
        InFlight { connection: Arc::clone(self), is_endless: false }
    }

    pub(super) fn in_flight(&self) -> usize {
        // Read in this order, the difference is never negative.
        let ended = self.ended.load(Acquire);
        self.begun.load(Relaxed) - ended
    }

    #[cfg(feature = "serve")]
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Relaxed)
    }

    /// Enters that it must go, for another reason than its memory.
    pub(super) fn set_asked(&self) {
        self.state.store(ASKED, Relaxed);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.state.load(Relaxed) == ASKED
    }

    /// Takes note of a request on HTTP/1.1. `body_bytes` is the size of its body; `None` if that is unknown.
    pub(super) fn note_http1(&self, body_bytes: Option<u64>) {
        self.is_http1.store(true, Relaxed);
        if body_bytes.unwrap_or(u64::MAX) >= self.shared.settings.recycle.http1_min_body {
            self.has_large_buffer.store(true, Relaxed);
        }
    }

    pub(super) fn is_wide(&self) -> bool {
        self.peak.load(Relaxed) >= self.shared.settings.recycle.min_peak
    }

    fn has_drained(&self) -> bool {
        self.in_flight() * DRAINED_DIVISOR <= self.peak.load(Relaxed)
    }

    /// Reports to the keeper if it was wide and has drained.
    fn check(self: &Arc<Self>) {
        let is_worth_it = self.is_wide() || self.has_large_buffer.load(Relaxed);
        if !is_worth_it || !self.has_drained() || self.state.load(Relaxed) != SERVING {
            return;
        }
        if self.endless.load(Relaxed) > 0 {
            self.pin();
            return;
        }
        self.unpin();
        if self.state.compare_exchange(SERVING, DRAINED, Relaxed, Relaxed).is_ok() {
            self.shared.add_drained(Arc::downgrade(self));
        }
    }

    fn pin(&self) {
        let streams = self.peak.load(Relaxed).max(1);
        if self.pinned.compare_exchange(0, streams, Relaxed, Relaxed).is_ok() {
            self.shared.pinned.fetch_add(1, Relaxed);
            self.shared.pinned_streams.fetch_add(streams, Relaxed);
        }
    }

    fn unpin(&self) {
        let streams = self.pinned.swap(0, Relaxed);
        if streams > 0 {
            self.shared.pinned.fetch_sub(1, Relaxed);
            self.shared.pinned_streams.fetch_sub(streams, Relaxed);
        }
    }

    /// Asks a connection that has drained to go, unless it has become busy again.
    pub(super) fn recycle(self: &Arc<Self>, now: Instant) -> Decision {
        let (shared, recycle) = (&self.shared, &self.shared.settings.recycle);
        if self.state.load(Relaxed) != DRAINED {
            return Decision::Done;
        }
        if !self.has_drained() || self.endless.load(Relaxed) > 0 {
            self.state.store(SERVING, Relaxed);
            // It may have drained since.
            self.check();
            return Decision::Done;
        }
        let of_age = self.since + recycle.min_age;
        if now < of_age {
            return Decision::Young(of_age);
        }
        if self.is_http1.load(Relaxed) {
            self.state.store(ASKED, Relaxed);
            self.closes_next.store(true, Relaxed);
        } else {
            if shared.closing.load(Relaxed) >= recycle.at_once {
                return Decision::Wait;
            }
            shared.closing.fetch_add(1, Relaxed);
            self.is_closing.store(true, Relaxed);
            self.state.store(ASKED, Relaxed);
            self.go.notify_one();
        }
        shared.recycled.fetch_add(1, Relaxed);
        Decision::Done
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.unpin();
        if *self.is_closing.get_mut() {
            self.shared.closing.fetch_sub(1, Relaxed);
            // Another one may go now.
            self.shared.event();
        }
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    connection: Arc<Connection>,
    is_endless: bool,
}

impl InFlight {
    /// The response may never end.
    pub(super) fn set_endless(&mut self) {
        if !std::mem::replace(&mut self.is_endless, true) {
            self.connection.endless.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.is_endless {
            self.connection.endless.fetch_sub(1, Relaxed);
        }
        self.connection.ended.fetch_add(1, Release);
        self.connection.shared.end();
        self.connection.check();
    }
}

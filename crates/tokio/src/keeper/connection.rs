//! The state of one connection. [`Keeper`](super::Keeper) defines *wide*, *drained* and *pinned*.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use super::shared::{DRAINED_DIVISOR, Decision, QUIET, Recyclable, Shared, lock};

/// State of a connection that serves requests.
const SERVING: u8 = 0;
/// State of a connection that has drained, or has reached `max_requests`: it waits for the keeper's
/// thread.
const DRAINED: u8 = 1;
/// State of a connection that shuts down gracefully, or closes with its next response (HTTP/1.1).
const CLOSING: u8 = 2;

/// Minimum peak of a connection whose close is an event, because it frees large tables.
const WIDE: usize = 100;
/// Maximum size of a write that does not count as progress: a PING, a WINDOW_UPDATE.
const MAX_CONTROL_BYTES: usize = 64;

/// The lingering close of a transport.
pub(super) type Linger = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One connection. It exists until its transport, its requests and its service are dropped.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(super) since: Instant,
    state: AtomicU8,
    requests: RequestCounts,
    /// Time when the keeper's thread first noticed that it had drained.
    drained_since: Mutex<Option<Instant>>,
    /// The number of streams for which this connection counts as pinned; 0 if it does not.
    pinned: AtomicUsize,
    /// Whether a stream was upgraded (HTTP/2). The end of an upgraded stream is not observable.
    has_tunnel: AtomicBool,
    is_http1: AtomicBool,
    is_grpc: AtomicBool,
    buffer: Http1Buffer,
    /// Number of bytes that were written so far, without small frames.
    written_bytes: AtomicUsize,
    closing: Closing,
    /// Makes [`Watch::drive`](super::Watch::drive) shut it down gracefully.
    pub(super) shut_down: Notify,
    /// Values that are dropped when the connection is closed.
    held: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// The numbers of the requests on a connection.
#[derive(Default)]
struct RequestCounts {
    /// Number of requests so far.
    begun: AtomicUsize,
    /// Number of requests that have ended so far.
    ended: AtomicUsize,
    /// Maximum number of concurrent requests.
    peak: AtomicUsize,
    /// Number of responses of unknown length in flight, and of upgrades.
    endless: AtomicUsize,
    /// Number of requests in flight that wait for the app, not for the client: a handler or a body
    /// is pending.
    pending: AtomicUsize,
    /// Number of requests up to the time when the connection had drained.
    begun_before: AtomicUsize,
}

impl RequestCounts {
    /// Counts a request that starts.
    fn begin(&self) {
        let count = self.begun.fetch_add(1, Relaxed) + 1 - self.ended.load(Relaxed);
        if count > self.peak.load(Relaxed) {
            self.peak.store(count, Relaxed);
        }
    }

    fn in_flight(&self) -> usize {
        // Read in this order, the difference is never negative.
        let ended = self.ended.load(SeqCst);
        self.begun.load(Relaxed) - ended
    }

    fn have_drained(&self) -> bool {
        self.in_flight() * DRAINED_DIVISOR <= self.peak.load(Relaxed)
    }

    /// Returns whether few have started since the connection drained. A busy one drains between two
    /// batches.
    fn are_few(&self) -> bool {
        let begun = self.begun.load(Relaxed).wrapping_sub(self.begun_before.load(Relaxed));
        begun * DRAINED_DIVISOR <= self.peak.load(Relaxed)
    }
}

/// What was read from a connection. On HTTP/1.1, a large body makes the read buffer large.
#[derive(Default)]
struct Http1Buffer {
    /// Number of bytes that were read so far.
    read_bytes: AtomicUsize,
    /// Number of bytes that had been read when the last request on HTTP/1.1 ended.
    read_before_bytes: AtomicUsize,
    /// Whether the read buffer cannot become large.
    is_bounded: AtomicBool,
    /// Whether a large body has made the read buffer large.
    is_large: AtomicBool,
}

impl Http1Buffer {
    /// Ends a request on HTTP/1.1, whose body is large from `min_bytes` on.
    fn end_request(&self, min_bytes: u64) {
        let read = self.read_bytes.load(Relaxed);
        let before = self.read_before_bytes.swap(read, Relaxed);
        let body_bytes = read.wrapping_sub(before) as u64;
        if body_bytes >= min_bytes && !self.is_bounded.load(Relaxed) {
            self.is_large.store(true, Relaxed);
        }
    }
}

/// How a connection closes.
#[derive(Default)]
struct Closing {
    /// Whether the next response closes it (HTTP/1.1).
    is_next: AtomicBool,
    /// Whether the transport must be read to its end.
    lingers: AtomicBool,
    /// Whether the connection is counted in [`Shared::closing`].
    is_counted: AtomicBool,
    /// The lingering close, once the transport was dropped.
    linger: Mutex<Option<Linger>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = out.debug_struct("Connection");
        text.field("in_flight", &self.in_flight())
            .field("peak", &self.requests.peak)
            .finish_non_exhaustive()
    }
}

/// The activity of a connection so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activity {
    pub(super) begun: usize,
    ended: usize,
    written_bytes: usize,
}

/// Adds to a number that only one thread changes at a time.
fn add(number: &AtomicUsize, count: usize) {
    number.store(number.load(Relaxed).wrapping_add(count), Relaxed);
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        shared.begin_connection();
        Arc::new(Self {
            shared,
            since: Instant::now(),
            state: AtomicU8::new(SERVING),
            requests: RequestCounts::default(),
            drained_since: Mutex::new(None),
            pinned: AtomicUsize::new(0),
            has_tunnel: AtomicBool::new(false),
            is_http1: AtomicBool::new(false),
            is_grpc: AtomicBool::new(false),
            buffer: Http1Buffer::default(),
            written_bytes: AtomicUsize::new(0),
            closing: Closing::default(),
            shut_down: Notify::new(),
            held: Mutex::default(),
        })
    }

    /// Counts a request that starts, until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, is_http1: bool) -> InFlight {
        self.shared.begin_request();
        if is_http1 {
            self.is_http1.store(true, Relaxed);
        }
        self.requests.begin();
        InFlight {
            connection: Arc::clone(self),
            is_http1,
            is_endless: false,
            is_pending: false,
            is_upgrade: false,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    pub(super) fn activity(&self) -> Activity {
        Activity {
            begun: self.requests.begun.load(Relaxed),
            ended: self.requests.ended.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }

    /// Returns whether an inactive connection, or a request on it, waits for the client.
    pub(super) fn waits_for_client(&self) -> bool {
        let in_flight = self.in_flight();
        let is_unread = in_flight > self.requests.pending.load(Relaxed);
        !self.has_tunnel.load(Relaxed) && (in_flight == 0 || is_unread)
    }

    pub(super) fn add_read_bytes(&self, count: usize) {
        add(&self.buffer.read_bytes, count);
    }

    pub(super) fn add_written_bytes(&self, count: usize) {
        if count > MAX_CONTROL_BYTES {
            add(&self.written_bytes, count);
        }
    }

    pub(super) fn set_grpc(&self) {
        self.is_grpc.store(true, Relaxed);
    }

    #[cfg(feature = "serve")]
    pub(super) fn set_bounded_buffer(&self) {
        self.buffer.is_bounded.store(true, Relaxed);
    }

    /// Marks the connection as closing, and makes its close linger.
    pub(super) fn set_closing(&self) {
        self.state.store(CLOSING, SeqCst);
        self.closing.lingers.store(true, Relaxed);
    }

    /// Sets that the transport is read to its end when it is closed.
    #[cfg(feature = "serve")]
    pub(crate) fn set_lingers(&self) {
        self.closing.lingers.store(true, Relaxed);
    }

    pub(super) fn lingers(&self) -> bool {
        self.closing.lingers.load(Relaxed)
    }

    pub(super) fn set_linger(&self, linger: Linger) {
        *lock(&self.closing.linger) = Some(linger);
    }

    pub(super) fn take_linger(&self) -> Option<Linger> {
        lock(&self.closing.linger).take()
    }

    /// Keeps a value until the connection is closed.
    pub(super) fn hold(&self, value: Box<dyn Any + Send>) {
        lock(&self.held).push(value);
    }

    /// Returns whether this response must close the connection (HTTP/1.1).
    fn closes_now(&self) -> bool {
        let closes =
            self.closing.is_next.load(Relaxed) && self.closing.is_next.swap(false, Relaxed);
        if closes {
            self.shared.recycled.fetch_add(1, Relaxed);
        }
        closes
    }

    /// Returns the time from which it has been drained for long enough, unless further requests
    /// start.
    fn quiet_from(&self, now: Instant) -> Instant {
        let mut since = lock(&self.drained_since);
        *since.get_or_insert_with(|| {
            self.requests.begun_before.store(self.requests.begun.load(Relaxed), Relaxed);
            now
        }) + QUIET
    }

    /// Returns whether it has reached `max_requests`.
    fn is_due(&self) -> bool {
        self.requests.begun.load(Relaxed) >= self.shared.settings.recycle.max_requests
    }

    fn may_be_recycled(&self) -> bool {
        let is_allowed = self.shared.settings.recycle.grpc || !self.is_grpc.load(Relaxed);
        is_allowed && self.requests.endless.load(SeqCst) == 0
    }

    /// Reports the connection to the keeper's thread if it keeps memory and has drained, or has
    /// reached `max_requests`.
    fn check(self: &Arc<Self>) {
        let min_peak = self.shared.settings.recycle.min_peak;
        let is_wide = self.requests.peak.load(Relaxed) >= min_peak;
        let keeps_memory = is_wide || self.buffer.is_large.load(Relaxed);
        let is_ready = keeps_memory && self.requests.have_drained() || self.is_due();
        if !is_ready || self.state.load(SeqCst) != SERVING {
            return;
        }
        if !self.may_be_recycled() {
            self.pin();
            return;
        }
        self.unpin();
        if self.state.compare_exchange(SERVING, DRAINED, SeqCst, SeqCst).is_ok() {
            let drained: Weak<Self> = Arc::downgrade(self);
            self.shared.add_drained(drained);
        }
    }

    fn pin(&self) {
        let streams = self.requests.peak.load(Relaxed).max(1);
        if self.pinned.compare_exchange(0, streams, SeqCst, SeqCst).is_ok() {
            self.shared.pinned.fetch_add(1, Relaxed);
            self.shared.pinned_streams.fetch_add(streams as isize, Relaxed);
            // Its last endless response may have ended since.
            if self.may_be_recycled() {
                self.unpin();
            }
        }
    }

    fn unpin(&self) {
        let streams = self.pinned.swap(0, SeqCst);
        if streams > 0 {
            self.shared.pinned.fetch_sub(1, Relaxed);
            self.shared.pinned_streams.fetch_sub(streams as isize, Relaxed);
        }
    }

    /// Stops counting the connection towards `max_at_once`.
    pub(super) fn stop_counting_as_closing(&self) {
        if self.closing.is_counted.swap(false, Relaxed) {
            self.shared.closing.fetch_sub(1, Relaxed);
            self.shared.event();
        }
    }
}

impl Recyclable for Connection {
    fn recycle(self: Arc<Self>, now: Instant) -> Decision {
        let (shared, recycle) = (&self.shared, &self.shared.settings.recycle);
        if self.state.load(SeqCst) != DRAINED {
            return Decision::Done;
        }
        let of_age = self.since + recycle.min_age;
        // On HTTP/1.1, the next response closes it.
        let is_urgent = self.is_due() || self.is_http1.load(Relaxed);
        let from = if is_urgent { of_age } else { of_age.max(self.quiet_from(now)) };
        let is_ready =
            self.is_due() || self.requests.have_drained() && (is_urgent || self.requests.are_few());
        if !is_ready || !self.may_be_recycled() {
            *lock(&self.drained_since) = None;
            self.state.store(SERVING, SeqCst);
            // It may have drained since.
            self.check();
            return Decision::Done;
        }
        if now < from {
            return Decision::Later(from);
        }
        if self.is_http1.load(Relaxed) {
            self.set_closing();
            self.closing.is_next.store(true, Relaxed);
            return Decision::Done;
        }
        if shared.closing.load(Relaxed) >= recycle.max_at_once {
            return Decision::Wait;
        }
        shared.closing.fetch_add(1, Relaxed);
        self.closing.is_counted.store(true, Relaxed);
        self.set_closing();
        self.shut_down.notify_one();
        shared.recycled.fetch_add(1, Relaxed);
        Decision::Done
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.unpin();
        // Upgrades end with their connection.
        for _ in 0..self.in_flight() {
            self.shared.end_endless();
        }
        self.shared.end_connection();
        self.stop_counting_as_closing();
        // The tables of a wide connection are free now.
        if *self.requests.peak.get_mut() >= WIDE {
            self.shared.event();
        }
    }
}

/// A request in flight on a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    connection: Arc<Connection>,
    is_http1: bool,
    is_endless: bool,
    /// Whether it is counted in [`RequestCounts::pending`].
    is_pending: bool,
    is_upgrade: bool,
}

impl InFlight {
    /// Marks the response as one that may never end.
    pub(super) fn set_endless(&mut self) {
        if !std::mem::replace(&mut self.is_endless, true) {
            self.connection.requests.endless.fetch_add(1, SeqCst);
            self.connection.shared.make_endless();
        }
    }

    /// Sets whether it waits for the app: its handler or its body is pending.
    pub(super) fn set_pending(&mut self, is_pending: bool) {
        if std::mem::replace(&mut self.is_pending, is_pending) != is_pending {
            let count = &self.connection.requests.pending;
            _ = if is_pending { count.fetch_add(1, Relaxed) } else { count.fetch_sub(1, Relaxed) };
        }
    }

    pub(super) fn is_http1(&self) -> bool {
        self.is_http1
    }

    /// Returns whether the response must close the connection (HTTP/1.1).
    pub(super) fn closes_now(&self) -> bool {
        self.connection.closes_now()
    }

    /// Turns the request into a tunnel, whose end is not observable. On HTTP/1.1, it counts until
    /// the connection is closed. On HTTP/2, it pins the connection.
    pub(super) fn upgrade(mut self) {
        if self.is_http1 {
            self.set_endless();
            self.is_upgrade = true;
        } else if !self.connection.has_tunnel.swap(true, Relaxed) {
            self.connection.requests.endless.fetch_add(1, SeqCst);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let connection = &self.connection;
        if !self.is_upgrade {
            if self.is_pending {
                connection.requests.pending.fetch_sub(1, Relaxed);
            }
            if self.is_http1 {
                let recycle = &connection.shared.settings.recycle;
                connection.buffer.end_request(recycle.http1_min_body);
            }
            if self.is_endless {
                connection.requests.endless.fetch_sub(1, SeqCst);
                connection.shared.end_endless();
            } else {
                connection.shared.end_request();
            }
            connection.requests.ended.fetch_add(1, SeqCst);
        }
        connection.check();
    }
}

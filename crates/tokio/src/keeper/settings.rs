//! The settings of a keeper.

use std::io;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Keeper;
use crate::Allocator;
use crate::clamp::clamp;

/// When connections are recycled.
///
/// ```
/// use std::time::Duration;
/// use lowtide_tokio::Recycle;
///
/// let recycle = Recycle::new().min_peak(500).max_drain(Some(Duration::from_secs(60)));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Recycle {
    pub(super) min_peak: usize,
    pub(super) max_requests: usize,
    pub(super) min_age: Duration,
    pub(super) max_at_once: usize,
    pub(super) jitter: Duration,
    pub(super) max_drain: Option<Duration>,
    pub(super) linger: Duration,
    pub(super) stall_timeout: Duration,
    pub(super) http1_min_body: u64,
    pub(super) grpc: bool,
}

impl Default for Recycle {
    fn default() -> Self {
        Self {
            min_peak: 100,
            max_requests: usize::MAX,
            min_age: Duration::from_secs(1),
            max_at_once: 64,
            jitter: Duration::from_millis(50),
            max_drain: None,
            linger: Duration::from_secs(1),
            stall_timeout: Duration::from_secs(30),
            http1_min_body: 128 << 10,
            grpc: false,
        }
    }
}

impl Recycle {
    /// Returns the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Recycles no connection: for clients that do not retry after GOAWAY.
    pub fn never() -> Self {
        Self::new().min_peak(usize::MAX).http1_min_body(u64::MAX).max_requests(usize::MAX)
    }

    /// Sets the minimum peak of concurrent requests of a connection that is recycled. Default: 100, which is about 90 KiB
    /// of tables.
    #[must_use]
    pub fn min_peak(mut self, requests: usize) -> Self {
        self.min_peak = requests;
        self
    }

    /// Sets the number of requests after which a connection is recycled even if it has not drained. Default: no limit.
    #[must_use]
    pub fn max_requests(mut self, count: usize) -> Self {
        self.max_requests = count;
        self
    }

    /// Sets the minimum age of a connection that is recycled. Default: 1 s.
    #[must_use]
    pub fn min_age(mut self, time: Duration) -> Self {
        self.min_age = clamp(time);
        self
    }

    /// Sets the maximum number of HTTP/2 connections that are shutting down at the same time, lingering ones included. The
    /// others wait. A connection that takes more than 10 s no longer counts. Default: 64.
    #[must_use]
    pub fn max_at_once(mut self, count: usize) -> Self {
        self.max_at_once = count;
        self
    }

    /// Sets the maximum random delay before GOAWAY, which spreads the reconnects of clients. Default: 50 ms.
    #[must_use]
    pub fn jitter(mut self, time: Duration) -> Self {
        self.jitter = clamp(time);
        self
    }

    /// Sets the maximum duration of the graceful shutdown of a connection. Requests that are in flight after that fail. Default: `None`, no maximum.
    #[must_use]
    pub fn max_drain(mut self, time: Option<Duration>) -> Self {
        self.max_drain = time.map(clamp);
        self
    }

    /// Sets how long a connection that shuts down may neither have requests in flight nor send anything. Then it is closed. hyper
    /// waits for the answer to a PING, which a client may never send. Default: 30 s.
    #[must_use]
    pub fn stall_timeout(mut self, time: Duration) -> Self {
        self.stall_timeout = clamp(time).max(Duration::from_millis(10));
        self
    }

    /// Sets the duration of a lingering close: the socket is closed for writing, and read until the client closes it, or sends
    /// nothing for this time. If a socket with unread data is closed, the kernel resets the connection, and the client may
    /// lose the GOAWAY, which says which requests were not processed. Default: 1 s.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = clamp(time);
        self
    }

    /// Sets whether connections with gRPC requests are recycled. tonic's client returns an error to its caller for some of the
    /// requests that it has sent before it read the GOAWAY. Default: false.
    #[must_use]
    pub fn grpc(mut self, is_recycled: bool) -> Self {
        self.grpc = is_recycled;
        self
    }

    /// Sets the minimum size of a request on HTTP/1.1, in bytes, after which the next response closes the connection: hyper
    /// keeps a read buffer of up to 408 KiB for a large body. `serve` limits the buffer instead. Default: 128 KiB.
    #[must_use]
    pub fn http1_min_body(mut self, bytes: u64) -> Self {
        self.http1_min_body = bytes;
        self
    }
}

/// Settings of a keeper.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) allocator: Allocator,
    pub(super) recycle: Recycle,
    pub(super) release_above: u64,
    pub(super) min_interval: Duration,
    pub(super) patience: Duration,
}

/// Builds a [`Keeper`].
#[derive(Debug, Clone)]
pub struct KeeperBuilder {
    settings: Settings,
    runtimes: Vec<Handle>,
}

impl Default for KeeperBuilder {
    fn default() -> Self {
        let settings = Settings {
            allocator: Allocator::default(),
            recycle: Recycle::default(),
            release_above: 16 << 20,
            min_interval: Duration::from_secs(1),
            patience: Duration::from_millis(50),
        };
        Self { settings, runtimes: Vec::new() }
    }
}

impl KeeperBuilder {
    /// Sets the allocator of the program. Default: mimalloc or jemalloc if their feature is on, else the system's.
    #[must_use]
    pub fn allocator(mut self, allocator: Allocator) -> Self {
        self.settings.allocator = allocator;
        self
    }

    /// Sets when connections are recycled.
    #[must_use]
    pub fn recycle(mut self, recycle: Recycle) -> Self {
        self.settings.recycle = recycle;
        self
    }

    /// Sets how much free memory triggers a release, in bytes beyond what there was at the start. Default: 16 MiB.
    ///
    /// With [`Tracked`](crate::Tracked), free memory is anonymous memory less allocated bytes. Without it, it is all
    /// anonymous memory. After a release that returned less than this, the next one waits until there is this much more, or
    /// for a minute.
    #[must_use]
    pub fn release_above(mut self, bytes: u64) -> Self {
        self.settings.release_above = bytes;
        self
    }

    /// Sets the minimum time between two releases. If half of what a release has returned is resident again within 5 s, the
    /// time doubles, up to a minute. Default: 1 s.
    #[must_use]
    pub fn min_interval(mut self, time: Duration) -> Self {
        self.settings.min_interval = clamp(time);
        self
    }

    /// Sets the maximum time for which a sweep tries to reach workers that are busy. Default: 50 ms.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.settings.patience = clamp(time);
        self
    }

    /// Adds a runtime to sweep. Default: the runtime in which [`KeeperBuilder::start`] is called, if any.
    #[must_use]
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtimes.push(runtime);
        self
    }

    /// Starts the keeper.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(mut self) -> io::Result<Keeper> {
        if self.runtimes.is_empty() {
            self.runtimes.extend(Handle::try_current());
        }
        Keeper::with(self.settings, self.runtimes)
    }
}

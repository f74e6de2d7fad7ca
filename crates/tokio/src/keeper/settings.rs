//! The settings of a keeper.

use std::io;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Keeper;
use crate::Allocator;

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
    pub(super) min_age: Duration,
    pub(super) at_once: usize,
    pub(super) jitter: Duration,
    pub(super) max_drain: Option<Duration>,
    pub(super) linger: Duration,
    pub(super) http1_min_body: u64,
}

impl Default for Recycle {
    fn default() -> Self {
        Self {
            min_peak: 100,
            min_age: Duration::from_secs(1),
            at_once: 64,
            jitter: Duration::from_millis(50),
            max_drain: None,
            linger: Duration::from_secs(1),
            http1_min_body: 128 << 10,
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
        Self::new().min_peak(usize::MAX).http1_min_body(u64::MAX)
    }

    /// Sets the minimum peak of concurrent requests of a connection that is recycled. Default: 100, which is about 90 KiB
    /// of tables.
    #[must_use]
    pub fn min_peak(mut self, requests: usize) -> Self {
        self.min_peak = requests;
        self
    }

    /// Sets the minimum age of a connection that is recycled. Default: 1 s.
    #[must_use]
    pub fn min_age(mut self, time: Duration) -> Self {
        self.min_age = time;
        self
    }

    /// Sets the maximum number of HTTP/2 connections that are shutting down at once, lingering ones included. The others
    /// wait. Default: 64.
    #[must_use]
    pub fn at_once(mut self, count: usize) -> Self {
        self.at_once = count;
        self
    }

    /// Sets the maximum random delay before GOAWAY, which spreads the reconnects of clients. Default: 50 ms.
    #[must_use]
    pub fn jitter(mut self, time: Duration) -> Self {
        self.jitter = time;
        self
    }

    /// Sets the maximum time from the start of a graceful shutdown of a connection, whatever its reason, to its end. Requests
    /// that are still in flight then fail. Default: `None`, no maximum.
    #[must_use]
    pub fn max_drain(mut self, time: Option<Duration>) -> Self {
        self.max_drain = time;
        self
    }

    /// Sets the maximum time of a lingering close: the socket is closed for writing, and read until the client closes it
    /// too. If a socket with unread data is closed, the kernel resets the connection, and the client may lose the GOAWAY,
    /// which says which requests were not processed. Default: 1 s.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Sets the minimum size of a request body on HTTP/1.1, in bytes, after which the next response closes the connection:
    /// hyper keeps a read buffer of up to 408 KiB for it. Use `u64::MAX` where the buffer is limited (`max_buf_size`), as
    /// `serve` does. Default: 128 KiB.
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
    pub(super) at_most_every: Duration,
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
            at_most_every: Duration::from_secs(1),
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

    /// Sets the minimum time between two releases. Default: 1 s.
    #[must_use]
    pub fn at_most_every(mut self, time: Duration) -> Self {
        self.settings.at_most_every = time;
        self
    }

    /// Sets the maximum time for which a sweep tries to reach workers that are busy. Default: 50 ms.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.settings.patience = time;
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

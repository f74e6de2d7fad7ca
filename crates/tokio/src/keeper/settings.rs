//! The settings of a keeper.

use std::io;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Keeper;
use crate::Allocator;
use crate::clamp::clamp;

/// Settings of the recycling of connections.
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

    /// Sets the minimum peak of concurrent requests of a connection that is recycled. Default: 100,
    /// which is about 90 KiB of tables.
    #[must_use]
    pub fn min_peak(mut self, requests: usize) -> Self {
        self.min_peak = requests;
        self
    }

    /// Sets the number of requests after which a connection is recycled even if it has not drained,
    /// on HTTP/1.1 as well. It still serves requests that arrive before the client reads the
    /// GOAWAY. Default: no limit.
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

    /// Sets the maximum number of HTTP/2 connections that are shutting down at the same time,
    /// lingering ones included. The others wait. A graceful shutdown that takes more than 10 s no
    /// longer counts. Default: 64.
    #[must_use]
    pub fn max_at_once(mut self, count: usize) -> Self {
        self.max_at_once = count;
        self
    }

    /// Sets the maximum random delay before GOAWAY, which spreads the reconnects of clients.
    /// Default: 50 ms.
    #[must_use]
    pub fn jitter(mut self, time: Duration) -> Self {
        self.jitter = clamp(time);
        self
    }

    /// Sets the maximum duration of the graceful shutdown of a connection. Requests that are in
    /// flight after that fail. Default: `None`, no maximum.
    #[must_use]
    pub fn max_drain(mut self, time: Option<Duration>) -> Self {
        self.max_drain = time.map(clamp);
        self
    }

    /// Sets the maximum inactivity of a connection that shuts down: no request begins or ends, no
    /// handler runs, and no write is larger than 64 bytes. Then the connection is closed. Without
    /// this bound, a client that does not acknowledge hyper's PING, or does not read, would keep it
    /// open. Default: 30 s. Minimum: 10 ms.
    #[must_use]
    pub fn stall_timeout(mut self, time: Duration) -> Self {
        self.stall_timeout = clamp(time).max(Duration::from_millis(10));
        self
    }

    /// Sets the timeout of a lingering close: the socket is closed for writing, and read until the
    /// client closes it, or sends nothing for this time. It takes at most
    /// [`Recycle::stall_timeout`], or this time if it is longer. If a socket with unread data were
    /// closed, the kernel would reset the connection, and the client could lose the GOAWAY, which
    /// reports the requests that were not processed. Zero switches it off. Default: 1 s.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = clamp(time);
        self
    }

    /// Sets whether connections with gRPC requests (`content-type: application/grpc…`) are
    /// recycled. tonic's client fails some of the calls that it sends before it reads the GOAWAY.
    /// Default: false.
    #[must_use]
    pub fn grpc(mut self, is_recycled: bool) -> Self {
        self.grpc = is_recycled;
        self
    }

    /// Sets the minimum size of an HTTP/1.1 request in bytes, headers included, after which a later
    /// response closes the connection. hyper's read buffer grows up to 408 KiB for a large body,
    /// and does not shrink. `serve` bounds the buffer instead: there, this has an effect only if
    /// `Limits::http1_max_buf_size` is above 128 KiB. Default: 128 KiB.
    #[must_use]
    pub fn http1_min_body(mut self, bytes: u64) -> Self {
        self.http1_min_body = bytes;
        self
    }
}

/// Settings of a keeper.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeeperSettings {
    pub(super) allocator: Allocator,
    pub(super) recycle: Recycle,
    pub(super) release_above: u64,
    pub(super) min_interval: Duration,
    pub(super) sweep_timeout: Duration,
}

/// Builds a [`Keeper`].
#[derive(Debug, Clone)]
pub struct KeeperBuilder {
    settings: KeeperSettings,
    runtimes: Vec<Handle>,
}

impl Default for KeeperBuilder {
    fn default() -> Self {
        let settings = KeeperSettings {
            allocator: Allocator::default(),
            recycle: Recycle::default(),
            release_above: 16 << 20,
            min_interval: Duration::from_secs(1),
            sweep_timeout: Duration::from_millis(50),
        };
        Self { settings, runtimes: Vec::new() }
    }
}

impl KeeperBuilder {
    /// Sets the allocator of the program. Default: [`Allocator::default`].
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

    /// Sets how much free memory triggers a release, in bytes beyond what there was at the start.
    /// Default: 16 MiB.
    ///
    /// With [`Tracked`](crate::Tracked), free memory is anonymous memory less allocated bytes.
    /// Without it, all anonymous memory counts as free. After a release that returned less than
    /// this, the next one waits until there is this much more, or for a minute.
    #[must_use]
    pub fn release_above(mut self, bytes: u64) -> Self {
        self.settings.release_above = bytes;
        self
    }

    /// Sets the minimum time between two releases, which [`Keeper::release_now`] ignores. If at
    /// least half of the memory that a release has returned is resident again within 5 s, the time
    /// doubles, up to a minute. After a release whose memory stays away, it is this time again.
    /// Default: 1 s.
    #[must_use]
    pub fn min_interval(mut self, time: Duration) -> Self {
        self.settings.min_interval = clamp(time);
        self
    }

    /// Sets the timeout of the sweep of one runtime. Runtimes are swept one after the other.
    /// Default: 50 ms.
    #[must_use]
    pub fn sweep_timeout(mut self, time: Duration) -> Self {
        self.settings.sweep_timeout = clamp(time);
        self
    }

    /// Adds a runtime to sweep. If none is added, it is the runtime in which
    /// [`KeeperBuilder::start`] is called, if any.
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

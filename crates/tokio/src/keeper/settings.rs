//! The settings of a keeper.

use std::io;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Keeper;
use crate::Allocator;

/// When connections are recycled. Start from [`Recycle::default`] or [`Recycle::never`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Recycle {
    /// Minimum number of requests that a connection had in flight at once. Default: 100, which is about 90 KiB.
    pub from_peak: usize,
    /// Minimum age of a connection. Default: 1 s.
    pub min_age: Duration,
    /// Maximum number of connections that are asked to go at once. The others wait. Default: 64.
    pub at_once: usize,
    /// Maximum random delay before a connection is asked to go, so that not all clients connect again at the same
    /// moment. Default: 50 ms.
    pub jitter: Duration,
    /// Maximum time that a connection which was asked to go has for the rest of its requests. Then it is closed, and they
    /// fail. Default: `None`, as long as they take.
    pub max_drain: Option<Duration>,
    /// Time for which a connection is read after it was closed for writing. Without that, the kernel would reset it if
    /// the client has just sent something, and the client would not see which of its requests were served. Default: 1 s.
    pub linger: Duration,
    /// Minimum size of a request body on HTTP/1.1, in bytes, after which the next response closes the connection: hyper
    /// keeps a read buffer of up to 400 KiB for it. Default: 128 KiB. `u64::MAX` if the size of that buffer is limited
    /// (`max_buf_size`).
    pub http1_from_bytes: u64,
}

impl Default for Recycle {
    fn default() -> Self {
        Self {
            from_peak: 100,
            min_age: Duration::from_secs(1),
            at_once: 64,
            jitter: Duration::from_millis(50),
            max_drain: None,
            linger: Duration::from_secs(1),
            http1_from_bytes: 128 << 10,
        }
    }
}

impl Recycle {
    /// Recycles no connection: for gRPC clients that do not try again by themselves.
    pub fn never() -> Self {
        Self { from_peak: usize::MAX, http1_from_bytes: u64::MAX, ..Self::default() }
    }
}

/// All settings.
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

    /// Sets how many bytes a release must promise to return. Default: 16 MiB.
    ///
    /// With [`Tracked`](crate::Tracked), this is anonymous memory that is not allocated, beyond what there was of it at
    /// the start. Without, it is anonymous memory beyond what there was after the last release.
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

    /// Sweeps this runtime. Without it, the runtime is swept in which [`KeeperBuilder::start`] is called, if any.
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

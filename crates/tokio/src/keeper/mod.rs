//! The keeper: its thread decides when to recycle connections, and when to release memory.

mod connection;
mod counted;
mod layer;
mod lingering;
mod metrics;
mod request_guard;
mod settings;
pub(crate) mod shared;
mod watch;
mod work;

use std::io;
use std::sync::Arc;
#[cfg(feature = "serve")]
use std::sync::atomic::Ordering::Relaxed;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use counted::{WatchedBody, WatchedFuture, WatchedService};
pub use layer::{CountLayer, CountService, CountServiceFuture};
pub use lingering::LingeringIo;
pub use metrics::Metrics;
pub use request_guard::RequestGuard;
pub use settings::{KeeperBuilder, Recycle};
pub use watch::Watch;

use crate::{ReleaseReport, SweepReport};
pub(crate) use connection::Connection;
#[cfg(feature = "serve")]
pub(crate) use counted::{Waiting, poll_response};
use settings::KeeperSettings;
use shared::Shared;

/// Keeps the memory of a server low. When the load has fallen, it does three things:
///
/// 1. *Recycle*: it shuts down connections with large tables or buffers, gracefully. Clients open
///    new ones.
/// 2. *Sweep*: it makes every worker of the runtime free the cache that the allocator keeps for its
///    thread, if there is one.
/// 3. *Release*: it returns free memory to the OS.
///
/// A connection is *wide* if it has had many concurrent requests ([`Recycle::min_peak`]): on
/// HTTP/2, it keeps about 0.9 KiB for each of them until it is closed. It has *drained* when at
/// most an eighth of them are left. A wide connection that has drained is recycled. It is *pinned*,
/// and not recycled, while a response of unknown length is in flight, and after an upgrade: the
/// client would open a second connection, and the first would stay. Connections with gRPC requests
/// are pinned unless [`Recycle::grpc`] is set.
///
/// The load falls when the requests in flight, the responses of unknown length, or the connections
/// drop to an eighth of their last peak, or to zero. The keeper then waits until 100 ms pass
/// without another such event, for at most 1 s, and checks the free memory; it checks again after
/// 0.3, 1, 10 and 60 s. A check releases if there is enough of it
/// ([`KeeperBuilder::release_above`]).
///
/// The keeper has a thread of its own, which sleeps between these checks. An idle server has no
/// periodic wake-ups. The thread ends when the last clone of the keeper is dropped. Watches, layers
/// and guards do not keep it: keep a clone until the server ends. Connections that are open then
/// stay open.
///
/// Use one keeper per process, and pass clones to all servers: two keepers would release the same
/// heap.
#[derive(Debug, Clone)]
pub struct Keeper {
    owner: Arc<ThreadOwner>,
}

/// Ends the thread on drop.
#[derive(Debug)]
struct ThreadOwner {
    shared: Arc<Shared>,
}

impl Drop for ThreadOwner {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// The result of [`Keeper::release_now`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeeperReport {
    /// The sweep of each runtime that has not ended.
    pub sweeps: Vec<SweepReport>,
    /// The release.
    pub release: ReleaseReport,
}

/// The error of [`Keeper::release_now`]: the keeper's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperEnded;

impl std::fmt::Display for KeeperEnded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the keeper has ended")
    }
}

impl std::error::Error for KeeperEnded {}

impl Keeper {
    /// Returns a builder with the default settings.
    pub fn builder() -> KeeperBuilder {
        KeeperBuilder::default()
    }

    /// Starts a keeper with the default settings. It sweeps the tokio runtime in which this is
    /// called. Outside a runtime, nothing is swept until [`Keeper::watch_runtime`] adds one; glibc
    /// needs no sweep.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    fn with(settings: KeeperSettings, runtimes: Vec<Handle>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(settings, runtimes));
        work::start(Arc::clone(&shared))?;
        Ok(Self { owner: Arc::new(ThreadOwner { shared }) })
    }

    /// Returns the watch of a new connection, for an accept loop of your own. Connections of
    /// `serve` have one.
    pub fn connection(&self) -> Watch {
        Watch::new(Connection::new(Arc::clone(&self.owner.shared)))
    }

    /// Returns a tower layer that counts requests, for servers that run their connections
    /// themselves: `axum::serve`, tonic's `Server`, axum-server. The keeper then releases when the
    /// load has fallen. It cannot recycle their connections: for that, an accept loop with
    /// [`Keeper::connection`] is needed. A response of unknown length counts as a request in
    /// flight: while many are open, the load does not fall.
    ///
    /// ```no_run
    /// # async fn run(app: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
    /// let keeper = lowtide_tokio::Keeper::start()?;
    /// axum::serve(listener, app.layer(keeper.layer())).await
    /// # }
    /// ```
    #[must_use]
    pub fn layer(&self) -> CountLayer {
        CountLayer { shared: Arc::clone(&self.owner.shared) }
    }

    /// Counts a request until the guard is dropped, for servers that are not made of tower services
    /// (actix-web, salvo). As with [`Keeper::layer`], connections are not recycled. Drop the guard
    /// when a response of unknown length begins.
    pub fn count_request(&self) -> RequestGuard {
        RequestGuard::new(Arc::clone(&self.owner.shared))
    }

    /// Adds a runtime to sweep, for servers with several.
    pub fn watch_runtime(&self, runtime: Handle) {
        self.owner.shared.add_runtime(runtime);
    }

    /// Sweeps and releases now, however little memory there is to return. Waits for the result.
    ///
    /// # Errors
    /// Fails if the keeper's thread has ended, because a function of
    /// [`Allocator::Other`](crate::Allocator::Other) panicked.
    pub async fn release_now(&self) -> Result<KeeperReport, KeeperEnded> {
        let (sender, receiver) = oneshot::channel();
        self.owner.shared.request_release(sender);
        receiver.await.map_err(|_| KeeperEnded)
    }

    /// Counts a connection that was refused before it had a watch.
    #[cfg(feature = "serve")]
    pub(crate) fn count_refused_connection(&self) {
        self.owner.shared.refused_connections.fetch_add(1, Relaxed);
    }

    /// Counts an error of `accept` that concerns the process.
    #[cfg(feature = "serve")]
    pub(crate) fn count_accept_error(&self) {
        self.owner.shared.accept_errors.fetch_add(1, Relaxed);
    }

    /// Returns the current metrics.
    pub fn metrics(&self) -> Metrics {
        self.owner.shared.metrics()
    }
}

/// Estimated memory that an HTTP/2 connection keeps per concurrent stream of its peak, in bytes:
/// the entries for a stream in the tables of the crate `h2`, by `size_of` in h2 0.4.20 (stream 328,
/// received events 248, frames to send 312, key 30). The tables grow by doubling, and never become
/// smaller.
pub(crate) const BYTES_PER_STREAM: u64 = 918;

//! The keeper: its thread decides when to recycle connections, and when to release memory.

mod connection;
mod counted;
mod figures;
mod layer;
mod lingering;
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

pub use counted::{Counted, CountedBody, CountedFuture};
pub use figures::Figures;
pub use layer::{CountLayer, CountService, CountServiceFuture, RequestGuard};
pub use lingering::Lingering;
pub use settings::{KeeperBuilder, Recycle};
pub use watch::Watch;

use crate::{Released, Swept};
pub(crate) use connection::Connection;
use settings::Settings;
use shared::Shared;

/// Keeps the memory of a server low. When the load has fallen, it does three things:
///
/// 1. *Recycle*: it shuts down HTTP/2 connections that keep memory, gracefully (GOAWAY). The client opens a new connection.
/// 2. *Sweep*: every worker of the runtime gives back the memory that its thread caches, if the allocator has such caches.
/// 3. *Release*: it returns free memory to the OS.
///
/// A connection is *wide* if it has had many concurrent requests ([`Recycle::min_peak`]): it keeps about 0.9 KiB for each of
/// them until it is closed. It has *drained* when at most an eighth of them are left. A wide connection that has drained is
/// recycled. It is *pinned*, and not recycled, while a response of unknown length is in flight, or once it was upgraded: the
/// client would open a second connection, and the first would stay.
///
/// The load has fallen when at most an eighth of the concurrent requests of the last peak are left, for 100 ms. Then the
/// keeper releases if there is enough free memory ([`KeeperBuilder::release_above`]).
///
/// The keeper has a thread of its own, which sleeps while nothing happens. It ends when the last clone of the keeper is
/// dropped. Connections that are open then stay open.
#[derive(Debug, Clone)]
pub struct Keeper {
    owner: Arc<Owner>,
}

/// Ends the thread when it is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// The result of [`Keeper::release_now`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// One for each runtime.
    pub swept: Vec<Swept>,
    /// The release.
    pub released: Released,
}

/// The error of [`Keeper::release_now`]: the keeper's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the keeper has ended")
    }
}

impl std::error::Error for Ended {}

impl Keeper {
    /// Returns a builder with the default settings.
    pub fn builder() -> KeeperBuilder {
        KeeperBuilder::default()
    }

    /// Starts a keeper with the default settings. It sweeps the tokio runtime in which this is called. Outside a runtime, call
    /// [`Keeper::watch_runtime`] later.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    fn with(settings: Settings, runtimes: Vec<Handle>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(settings, runtimes));
        work::start(Arc::clone(&shared))?;
        Ok(Self { owner: Arc::new(Owner { shared }) })
    }

    /// Returns the watch of a new connection, for an accept loop of your own. Connections of `serve` have one.
    pub fn connection(&self) -> Watch {
        Watch::new(Connection::new(Arc::clone(&self.owner.shared)))
    }

    /// Returns a tower layer that counts requests, for servers that run their connections themselves: `axum::serve`, tonic's
    /// `Server`, axum-server. The keeper then releases when the load has fallen. It cannot recycle their connections: for
    /// that, an accept loop with [`Keeper::connection`] is needed.
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

    /// Counts a request until the guard is dropped, for servers that are not made of tower services (actix-web, salvo). As
    /// with [`Keeper::layer`], connections are not recycled.
    pub fn count_request(&self) -> RequestGuard {
        RequestGuard::new(Arc::clone(&self.owner.shared))
    }

    /// Adds a runtime to sweep, for servers with several.
    pub fn watch_runtime(&self, runtime: Handle) {
        self.owner.shared.add_runtime(runtime);
    }

    /// Sweeps and releases now, however little there is to return.
    ///
    /// # Errors
    /// Fails if the keeper's thread has ended.
    pub async fn release_now(&self) -> Result<Report, Ended> {
        let (sender, receiver) = oneshot::channel();
        self.owner.shared.request_release(sender);
        receiver.await.map_err(|_| Ended)
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

    /// Returns the current figures.
    pub fn figures(&self) -> Figures {
        self.owner.shared.figures()
    }
}

/// Estimated memory that an HTTP/2 connection keeps for each stream that it had at once, in bytes: what the crate `h2`
/// has in its tables for a stream, by `size_of` in h2 0.4.20 (stream 328, received events 248, frames to send 312, key
/// 30). The tables grow by doubling, and never become smaller.
pub(crate) const BYTES_PER_STREAM: u64 = 918;

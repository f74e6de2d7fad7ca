//! The keeper: a thread that decides when to recycle connections, and when to release memory.

mod connection;
mod counted;
mod figures;
mod lingering;
mod settings;
pub(crate) mod shared;
mod watch;
mod work;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use counted::{Counted, CountedBody};
pub use figures::Figures;
pub use lingering::Lingering;
pub use settings::{KeeperBuilder, Recycle};
pub use watch::Watch;

use crate::{Released, Swept};
use connection::Connection;
use settings::Settings;
use shared::Shared;

/// Keeps the memory of a server low. It watches connections and requests, and acts when load has gone:
///
/// 1. *Recycle*: a connection of HTTP/2 that had many streams at once keeps about 0.9 KiB for each of them. When they
///    have ended, the keeper asks the client to go on with a new connection (GOAWAY).
/// 2. *Sweep*: every worker of the runtime gives back the memory that its thread keeps for itself, if the allocator has
///    such memory.
/// 3. *Release*: free memory goes back to the OS, if there is enough of it.
///
/// The keeper has a thread of its own, which sleeps while nothing happens. It ends when the last clone of the keeper is
/// dropped; connections that are still open stay open.
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

/// The account of what [`Keeper::release_now`] has done.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// One for each runtime.
    pub swept: Vec<Swept>,
    /// The release.
    pub released: Released,
}

/// The keeper has ended before it could answer.
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

    /// Starts a keeper with the default settings. If this is called in a tokio runtime, that runtime is swept.
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

    /// Returns the watch of a new connection, for an accept loop.
    pub fn connection(&self) -> Watch {
        Watch::new(Connection::new(Arc::clone(&self.owner.shared)))
    }

    /// Sweeps this runtime from now on, too: for servers with several.
    pub fn watch_runtime(&self, runtime: Handle) {
        self.owner.shared.add_runtime(runtime);
    }

    /// Sweeps and releases now, whatever there is to gain.
    ///
    /// # Errors
    /// Fails if the keeper's thread has ended.
    pub async fn release_now(&self) -> Result<Report, Ended> {
        let (sender, receiver) = oneshot::channel();
        self.owner.shared.request(sender);
        receiver.await.map_err(|_| Ended)
    }

    /// Counts a connection that was refused before it had a watch.
    #[cfg(feature = "serve")]
    pub(crate) fn count_refused_connection(&self) {
        self.owner.shared.refused_connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns the figures so far.
    pub fn figures(&self) -> Figures {
        self.owner.shared.figures()
    }
}

/// Estimated memory that a connection of HTTP/2 keeps for each stream that it had at once, in bytes: what the crate `h2`
/// has in its tables for a stream, by `size_of` in h2 0.4.20 (stream 328, received events 248, frames to send 312, key
/// 30). The tables grow by doubling, and never become smaller.
pub(crate) const BYTES_PER_STREAM: u64 = 918;

/// Longest time until a connection that was asked to go is closed, when nothing is in flight any more. A client that never
/// answers a PING would keep it open for ever.
const GO_TIMEOUT: Duration = Duration::from_secs(1);

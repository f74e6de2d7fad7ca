//! The watch of one connection.

use std::any::Any;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;

use super::connection::Connection;
use super::counted::WatchedService;
use super::lingering::LingeringIo;
use super::settings::Recycle;

/// Maximum time between two checks of a connection that shuts down.
const TICK: Duration = Duration::from_secs(1);
/// Time after which a connection that shuts down no longer counts towards [`Recycle::max_at_once`]:
/// a connection that takes long must not prevent the recycling of others.
const MAX_CLOSING: Duration = Duration::from_secs(10);

/// The watch of one connection, for an accept loop. Wrap the transport by [`Watch::io`] and the
/// service by [`Watch::service`], make a hyper connection of both, and run it by [`Watch::drive`].
///
/// Both wrappers are needed. Without `io`, a slow response can be cut by a graceful shutdown.
/// Without `service`, the connection is never recycled.
///
/// ```no_run
/// use hyper_util::rt::{TokioExecutor, TokioIo};
/// use hyper_util::server::conn::auto;
/// use lowtide_tokio::Keeper;
///
/// # async fn answer(_: hyper::Request<hyper::body::Incoming>) -> Result<http::Response<String>, std::convert::Infallible> {
/// #     Ok(http::Response::new(String::new()))
/// # }
/// # async fn run() -> std::io::Result<()> {
/// let keeper = Keeper::start()?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// loop {
///     let (stream, _) = listener.accept().await?;
///     let watch = keeper.connection();
///     tokio::spawn(async move {
///         let builder = auto::Builder::new(TokioExecutor::new());
///         let io = TokioIo::new(watch.io(stream));
///         let service = watch.service(hyper::service::service_fn(answer));
///         let connection = builder.serve_connection_with_upgrades(io, service);
///         if let Err(error) = watch.drive(connection).await {
///             eprintln!("{error}");
///         }
///     });
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a connection is recycled only if its watch drives it"]
pub struct Watch {
    connection: Arc<Connection>,
}

impl Watch {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// Wraps the transport of the connection, so that its close lingers after a graceful shutdown.
    /// See [`LingeringIo`].
    pub fn io<T>(&self, transport: T) -> LingeringIo<T>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        LingeringIo::new(transport, Arc::clone(&self.connection))
    }

    /// Wraps the hyper service of the connection, so that its requests are counted. For a tower
    /// service, use `hyper_util::service::TowerToHyperService`.
    pub fn service<S>(&self, service: S) -> WatchedService<S> {
        WatchedService::new(service, Arc::clone(&self.connection))
    }

    /// Keeps a value until the connection is closed, also if it is upgraded: the permit of a
    /// semaphore, for instance.
    pub fn hold(&self, value: impl Any + Send) {
        self.connection.hold(Box::new(value));
    }

    /// Runs the connection until it is closed or upgraded, the lingering close included. When the
    /// keeper recycles it, it shuts down gracefully.
    ///
    /// # Errors
    /// Returns the error of the connection. A shutdown that [`Recycle::max_drain`] or
    /// [`Recycle::stall_timeout`] has cut is not an error.
    ///
    /// # Panics
    /// Panics if the runtime has no timers.
    pub async fn drive<C: GracefulConnection>(self, connection: C) -> Result<(), C::Error> {
        self.drive_until(connection, pending()).await
    }

    /// Runs the connection like [`Watch::drive`], and shuts it down gracefully when `shutdown` is
    /// ready, with the same settings.
    ///
    /// # Errors
    /// See [`Watch::drive`].
    ///
    /// # Panics
    /// See [`Watch::drive`].
    pub async fn drive_until<C: GracefulConnection>(
        self,
        connection: C,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), C::Error> {
        // The connection is dropped at the end of this, and the transport with it.
        let result = self.run(connection, shutdown).await;
        if let Some(linger) = self.connection.take_linger() {
            linger.await;
        }
        result
    }

    async fn run<C: GracefulConnection>(
        &self,
        connection: C,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), C::Error> {
        let state = &self.connection;
        let recycle = state.shared.settings.recycle;
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = shutdown => state.set_closing(),
            () = async {
                state.shut_down.notified().await;
                sleep(jitter(recycle.jitter)).await;
            } => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = wait_until_it_must_end(state, &recycle) => {}
        }
        state.shared.cut.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Waits until the connection is idle: it has had no request within `first`, or has waited for
    /// its client for `idle`.
    #[cfg(feature = "serve")]
    pub(crate) fn idle(
        &self,
        first: Duration,
        idle: Duration,
    ) -> impl Future<Output = ()> + Send + use<> {
        let connection = Arc::clone(&self.connection);
        async move {
            sleep(first).await;
            loop {
                let activity = connection.activity();
                if activity.begun == 0 {
                    return;
                }
                sleep(idle).await;
                if connection.activity() == activity && connection.waits_for_client() {
                    return;
                }
            }
        }
    }

    /// Sets that hyper's read buffer is bounded (HTTP/1.1). A large body is then no reason to
    /// recycle the connection.
    #[cfg(feature = "serve")]
    pub(crate) fn set_bounded_buffer(&self) {
        self.connection.set_bounded_buffer();
    }

    /// Returns the state of the connection.
    #[cfg(feature = "serve")]
    pub(crate) fn state(&self) -> &Arc<Connection> {
        &self.connection
    }
}

/// Waits until a connection that shuts down has had nothing to send for `stall_timeout`, or
/// `max_drain` is over.
async fn wait_until_it_must_end(connection: &Connection, recycle: &Recycle) {
    let begin = Instant::now();
    let mut last = (connection.activity(), begin);
    let tick = TICK.min(recycle.stall_timeout);
    loop {
        let left = recycle.max_drain.map(|max| max.saturating_sub(begin.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return;
        }
        sleep(left.unwrap_or(tick).min(tick)).await;
        if begin.elapsed() >= MAX_CLOSING {
            connection.stop_counting_as_closing();
        }
        let activity = connection.activity();
        if activity != last.0 || !connection.waits_for_client() && connection.in_flight() > 0 {
            last = (activity, Instant::now());
        } else if activity.begun == 0 || last.1.elapsed() >= recycle.stall_timeout {
            // A client that has not sent a request by now loses nothing.
            return;
        }
    }
}

/// Returns a random time up to a maximum.
fn jitter(max: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0) >> 32;
    max.mul_f64(random as f64 / u32::MAX as f64)
}

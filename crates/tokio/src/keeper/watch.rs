//! The watch of one connection.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;

use super::GO_TIMEOUT;
use super::connection::Connection;
use super::counted::Counted;
use super::lingering::Lingering;
#[cfg(feature = "serve")]
use super::shared::Shared;

/// The watch of one connection, in an accept loop. Wrap the transport with [`Watch::io`] and the service with
/// [`Watch::service`], make a connection of both, and [`Watch::drive`] it.
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
pub struct Watch {
    connection: Arc<Connection>,
}

impl Watch {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// Wraps the transport of the connection, so that it is closed with care when the connection was asked to go.
    pub fn io<T>(&self, transport: T) -> Lingering<T>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Lingering::new(transport, Arc::clone(&self.connection))
    }

    /// Wraps the service of the connection, so that its requests are counted.
    pub fn service<S>(&self, service: S) -> Counted<S> {
        Counted::new(service, Arc::clone(&self.connection))
    }

    /// Runs the connection to its end, and asks it to go when the keeper decides so. It needs a runtime with timers.
    ///
    /// # Errors
    /// Fails if the connection does.
    pub async fn drive<C: GracefulConnection>(self, connection: C) -> Result<(), C::Error> {
        self.drive_until(connection, pending()).await
    }

    /// Drives like [`Watch::drive`], and asks the connection to go when `must_go` is ready, too.
    pub(crate) async fn drive_until<C: GracefulConnection>(
        self,
        connection: C,
        must_go: impl Future<Output = ()>,
    ) -> Result<(), C::Error> {
        let state = &self.connection;
        let recycle = state.shared.settings.recycle;
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = must_go => state.set_asked(),
            () = async {
                state.go.notified().await;
                sleep(jitter(recycle.jitter)).await;
            } => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = wait_until_it_must_end(state, recycle.max_drain) => {}
        }
        if state.in_flight() > 0 {
            state.shared.cut.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Waits until no request has begun within `first`, or none was in flight for `idle`.
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
                let begun = connection.begun();
                if begun == 0 {
                    return;
                }
                let was_idle = connection.in_flight() == 0;
                sleep(idle).await;
                if was_idle && connection.begun() == begun {
                    return;
                }
            }
        }
    }

    /// Returns the state that all connections of the keeper share.
    #[cfg(feature = "serve")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.connection.shared
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.connection.shared.connections.fetch_sub(1, Relaxed);
        if self.connection.is_wide() {
            self.connection.shared.event();
        }
    }
}

/// Waits until a connection that was asked to go has had nothing in flight for [`GO_TIMEOUT`], or `max_drain` is over.
async fn wait_until_it_must_end(connection: &Connection, max_drain: Option<Duration>) {
    let begin = Instant::now();
    loop {
        let was_idle = connection.in_flight() == 0;
        let left = max_drain.map(|max| max.saturating_sub(begin.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return;
        }
        sleep(left.unwrap_or(GO_TIMEOUT).min(GO_TIMEOUT)).await;
        let is_whole = left.is_none_or(|left| left >= GO_TIMEOUT);
        if was_idle && is_whole && connection.in_flight() == 0 {
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

//! A server on hyper, with limits and a keeper.

mod limited;
mod limits;

use std::fmt;
use std::future::{Future, IntoFuture, Pending, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

pub use limits::{Limits, Overload};

use crate::Keeper;
use limited::{BoxError, Limited};
use limits::{Addresses, Entered};

/// Time to wait after an error of `accept` that concerns the process: too many open files, no
/// memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The address of the client, in the extensions of each request: [`Serve::with_peer_addr`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

/// Serves an app on a listener, HTTP/1.1 and HTTP/2 without TLS. The app is any tower service, for
/// instance an axum `Router`. The result must be awaited. It ends only after a graceful shutdown
/// ([`Serve::with_graceful_shutdown`]).
///
/// # Errors
/// Awaiting fails if the server must start a keeper, and its thread cannot be started. Errors of
/// `accept` are counted in [`Metrics::accept_errors`](crate::Metrics::accept_errors), and do not
/// end the server.
///
/// ```no_run
/// use axum::{Router, routing::get};
///
/// # async fn run() -> std::io::Result<()> {
/// let app = Router::new().route("/", get(|| async { "hello" }));
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// lowtide_tokio::serve(listener, app).await
/// # }
/// ```
pub fn serve<S>(listener: TcpListener, app: S) -> Serve<S> {
    let settings = ServerSettings {
        keeper: None,
        limits: Limits::default(),
        admit: None,
        http: auto::Builder::new(TokioExecutor::new()),
        inserts_peer: false,
        shutdown_timeout: None,
    };
    Serve { listener, app, settings, signal: pending() }
}

/// Decides whether a connection is accepted, by its address.
type Admit = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// A server: [`serve`].
#[must_use = "a server does nothing until it is awaited"]
pub struct Serve<S, F = Pending<()>> {
    listener: TcpListener,
    app: S,
    settings: ServerSettings,
    signal: F,
}

/// The settings of a server.
struct ServerSettings {
    keeper: Option<Keeper>,
    limits: Limits,
    admit: Option<Admit>,
    http: auto::Builder<TokioExecutor>,
    inserts_peer: bool,
    shutdown_timeout: Option<Duration>,
}

impl<S, F> fmt::Debug for Serve<S, F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = out.debug_struct("Serve");
        let limits = &self.settings.limits;
        text.field("listener", &self.listener).field("limits", limits).finish_non_exhaustive()
    }
}

impl<S, F> Serve<S, F> {
    /// Uses this keeper. Without it, the server starts one with the default settings. If a process
    /// has several servers, pass clones of one keeper to all of them.
    pub fn keeper(mut self, keeper: Keeper) -> Self {
        self.settings.keeper = Some(keeper);
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Accepts only connections for whose address this returns `true`. It is called before a task
    /// or a buffer exists, and must not block. Other connections are reset.
    pub fn admit(mut self, admit: impl Fn(SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        self.settings.admit = Some(Arc::new(admit));
        self
    }

    /// Gives the address of the client to each request, as an extension of the type [`PeerAddr`];
    /// with the feature `axum`, also as `axum::extract::ConnectInfo<SocketAddr>`. This costs about
    /// 0.1 µs per request.
    pub fn with_peer_addr(mut self) -> Self {
        self.settings.inserts_peer = true;
        self
    }

    /// Configures hyper's connections further. The [`Limits`] are applied afterwards, and override
    /// these settings.
    ///
    /// ```no_run
    /// # async fn run(app: axum::Router, listener: tokio::net::TcpListener) -> std::io::Result<()> {
    /// lowtide_tokio::serve(listener, app)
    ///     .configure(|http| {
    ///         http.http2().initial_stream_window_size(1 << 20);
    ///     })
    ///     .await
    /// # }
    /// ```
    pub fn configure(mut self, configure: impl FnOnce(&mut auto::Builder<TokioExecutor>)) -> Self {
        configure(&mut self.settings.http);
        self
    }

    /// Shuts the server down gracefully when `signal` is ready: it accepts no further connection,
    /// and each open connection is closed when its requests in flight have ended. It does not wait
    /// for upgraded HTTP/1.1 connections (WebSockets). An HTTP/2 connection with an upgraded stream
    /// is closed once it has been inactive for
    /// [`Recycle::stall_timeout`](crate::Recycle::stall_timeout).
    pub fn with_graceful_shutdown<G>(self, signal: G) -> Serve<S, G>
    where
        G: Future<Output = ()>,
    {
        let Self { listener, app, settings, signal: _ } = self;
        Serve { listener, app, settings, signal }
    }

    /// Sets the maximum duration of a graceful shutdown ([`Serve::with_graceful_shutdown`]). Then
    /// connections are closed, and their requests fail. Default: no maximum.
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.settings.shutdown_timeout = Some(time);
        self
    }
}

impl<S, F, B> IntoFuture for Serve<S, F>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The stage of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ServerStage {
    Serving,
    /// Connections end when their requests have ended.
    ShuttingDown,
    /// Connections end now.
    Over,
}

/// The state that all connections of a server share.
#[derive(Clone)]
struct Common<S> {
    app: S,
    keeper: Keeper,
    limits: Limits,
    http: auto::Builder<TokioExecutor>,
    inserts_peer: bool,
    stage: watch::Receiver<ServerStage>,
    /// Closed when all connections have ended.
    _open: mpsc::Sender<()>,
}

/// A connection that was accepted, with its permits: one of the server, and one of its address.
struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    permits: (OwnedSemaphorePermit, Entered),
}

impl<S, F, B> Serve<S, F>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    F: Future<Output = ()> + Send + 'static,
{
    async fn run(self) -> io::Result<()> {
        #[cfg_attr(not(feature = "axum"), expect(unused_mut))]
        let Self { listener, mut app, settings, signal } = self;
        #[cfg(feature = "axum")]
        finish_routes(&mut app);
        let ServerSettings { keeper, limits, admit, mut http, inserts_peer, shutdown_timeout } =
            settings;
        limits.apply(&mut http);
        let keeper = keeper.map_or_else(Keeper::start, Ok)?;
        let places = Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS)));
        let (stages, stage) = watch::channel(ServerStage::Serving);
        let (open, mut all_ended) = mpsc::channel(1);
        let common = Common { app, keeper, limits, http, inserts_peer, stage, _open: open };
        let accept = Accept { listener, places, addresses: Addresses::default(), limits, admit };
        let mut signal = pin!(signal);
        loop {
            let accepted = tokio::select! {
                biased;
                () = signal.as_mut() => break,
                accepted = accept.next(&common.keeper) => accepted,
            };
            tokio::spawn(common.clone().run(accepted));
        }
        // New connections are refused from now on.
        drop(accept);
        drop(common);
        stages.send_replace(ServerStage::ShuttingDown);
        let mut ended = pin!(async { while all_ended.recv().await.is_some() {} });
        if let Some(time) = shutdown_timeout
            && timeout(time, ended.as_mut()).await.is_err()
        {
            stages.send_replace(ServerStage::Over);
        }
        ended.await;
        Ok(())
    }
}

/// Creates the routes of a router now. Otherwise, the router creates a route for each request.
#[cfg(feature = "axum")]
fn finish_routes<S: 'static>(app: &mut S) {
    if let Some(router) = (app as &mut dyn std::any::Any).downcast_mut::<axum::Router>() {
        *router = std::mem::take(router).with_state(());
    }
}

/// Accepts connections.
struct Accept {
    listener: TcpListener,
    places: Arc<Semaphore>,
    addresses: Addresses,
    limits: Limits,
    admit: Option<Admit>,
}

impl Accept {
    /// Returns the next connection that is admitted.
    async fn next(&self, keeper: &Keeper) -> Accepted {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                // It is never closed.
                return pending().await;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let is_admitted = self.admit.as_ref().is_none_or(|admit| admit(peer));
                    let entered = is_admitted
                        .then(|| {
                            self.addresses.enter(peer.ip(), self.limits.max_connections_per_address)
                        })
                        .flatten();
                    let Some(entered) = entered else {
                        reset(&stream);
                        keeper.count_refused_connection();
                        continue;
                    };
                    return Accepted { stream, peer, permits: (place, entered) };
                }
                Err(error) if is_of_the_connection(&error) => {}
                Err(_) => {
                    keeper.count_accept_error();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Returns whether an error of `accept` concerns only one connection, or is transient
/// (`Interrupted`).
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Makes the kernel send RST when the connection is closed, and discard its buffers.
fn reset(stream: &TcpStream) {
    // If this fails, the connection is closed as usual.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

impl<S, B> Common<S>
where
    S: tower_service::Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Serves one connection until it is closed.
    async fn run(self, accepted: Accepted) {
        let mut stage = self.stage.clone();
        let is_over = async move {
            // A server that was dropped lets its connections end.
            if stage.wait_for(|stage| *stage == ServerStage::Over).await.is_err() {
                pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = is_over => {}
            () = self.serve(accepted) => {}
        }
    }

    async fn serve(self, accepted: Accepted) {
        let Accepted { stream, peer, permits } = accepted;
        let Self { app, keeper, limits, http, inserts_peer, mut stage, _open } = self;
        let mut shut_down = pin!(async move {
            // If the server was dropped, its connections shut down gracefully.
            let _ = stage.wait_for(|stage| *stage != ServerStage::Serving).await;
        });
        tokio::select! {
            biased;
            // It is also readable when the client has closed it.
            first = timeout(limits.first_byte_timeout, stream.readable()) => {
                if !matches!(first, Ok(Ok(()))) {
                    return;
                }
            }
            // A request that has arrived is answered.
            () = shut_down.as_mut() => return,
        }
        limits.apply_to_socket(&stream);
        let watch = keeper.connection();
        watch.hold(permits);
        // A connection does not keep the keeper's thread alive.
        drop(keeper);
        if limits.has_bounded_buffer() {
            watch.set_bounded_buffer();
        }
        let connection = Arc::clone(watch.state());
        let app = TowerToHyperService::new(app);
        let service = Limited { app, peer, inserts_peer, limits, connection };
        let io = TokioIo::new(watch.io(stream));
        let connection = http.serve_connection_with_upgrades(io, service);
        let idle = watch.idle(limits.header_timeout, limits.idle_timeout);
        let must_end = async {
            tokio::select! {
                () = shut_down => {}
                () = idle => {}
            }
        };
        // The client sees the error of its connection.
        let _ = watch.drive_until(connection, must_end).await;
    }
}

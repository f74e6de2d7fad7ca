//! Accepts and serves connections, on hyper's low-level loop.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension, Query, State};
use axum::http::Version;
use axum::response::Response;
use axum::routing::get;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use lowtide_tokio::{Allocator, Keeper, Recycle, Watch};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service as _;

use crate::figures::Counters;
use crate::options::Acts;
use crate::runtime::Rolling;

/// Maximum number of streams of one connection.
const STREAMS: u32 = 1_000_000;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Time for which no connection is accepted when the process has no more open files.
const PATIENCE: Duration = Duration::from_millis(50);

/// Serves until the process is ended.
pub(crate) async fn serve(
    listener: TcpListener,
    counters: Counters,
    rolling: &Rolling,
    keeper: Option<Keeper>,
) -> Result<(), String> {
    let app = Router::new()
        .route("/", get(index))
        .route("/figures", get(figures))
        .with_state(counters.clone());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (app, connected) = (app.clone(), counters.connect());
                let watch = keeper.as_ref().map(Keeper::connection);
                rolling.handle().spawn(async move {
                    let _connected = connected;
                    match watch {
                        Some(watch) => kept_connection(app, stream, peer, watch).await,
                        None => connection(app, stream, peer).await,
                    }
                });
            }
            Err(error) => {
                println!("error accepting: {error}");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

/// Returns the app as in the post: a layer passes the address to the handler for each request.
fn service_of(
    app: Router,
    peer: SocketAddr,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone
{
    service_fn(move |request: Request<Incoming>| {
        app.clone().layer(Extension(ConnectInfo(peer))).call(request)
    })
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(STREAMS).keep_alive_timeout(KEEP_ALIVE);
    builder
}

async fn connection(app: Router, stream: TcpStream, peer: SocketAddr) {
    let service = service_of(app, peer);
    let served = builder().serve_connection_with_upgrades(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        println!("error serving connection from {peer:?}: {error:#}");
    }
}

/// Serves a connection that a keeper watches.
async fn kept_connection(app: Router, stream: TcpStream, peer: SocketAddr, watch: Watch) {
    let service = watch.service(service_of(app, peer));
    let builder = builder();
    let io = TokioIo::new(watch.io(stream));
    let served = watch.drive(builder.serve_connection_with_upgrades(io, service)).await;
    if let Err(error) = served {
        println!("error serving connection from {peer:?}: {error:#}");
    }
}

/// Starts a keeper that does these acts.
pub(crate) fn keep(acts: Acts, rolling: &Rolling) -> io::Result<Keeper> {
    let mut builder = Keeper::builder().runtime(rolling.handle());
    if !acts.recycle {
        builder = builder.recycle(Recycle::never());
    }
    if !acts.sweep {
        let release = || drop(lowtide_tokio::release(Allocator::default()));
        builder = builder.allocator(Allocator::Other { release, flush: None });
    }
    if !acts.release {
        builder = builder.release_above(u64::MAX);
    }
    builder.start()
}

/// Sleeps for the number of ms in `expire`, and returns the server, the version of HTTP, and the
/// client.
async fn index(
    version: Version,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    State(counters): State<Counters>,
    Query(parameters): Query<HashMap<String, String>>,
) -> String {
    let _handled = counters.begin();
    if let Some(Ok(expire)) = parameters.get("expire").map(|text| text.parse()) {
        tokio::time::sleep(Duration::from_millis(expire)).await;
    }
    format!("axum({}) {version:?} {peer:?}", std::process::id())
}

async fn figures(State(counters): State<Counters>) -> String {
    counters.json()
}

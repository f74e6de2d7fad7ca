//! axum on hyper's low-level loop, which is the only way to raise its limit of streams.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Query, State};
use axum::http::{StatusCode, Version};
use axum::response::Response;
use axum::routing::{get, post};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use lowtide_tokio::{Keeper, Watch};
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tower_service::Service as _;

use crate::figures::Counters;
use crate::options::Framework;
use crate::{MOST_UPLOADED, STREAMS, answer, expire, pictures};

/// Time for which no connection is accepted when the process has no more open files.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Asked {
    expire: Option<u64>,
}

/// Serves until the process is ended.
pub(crate) fn serve(
    listener: std::net::TcpListener,
    counters: Counters,
    keeper: Option<Keeper>,
) -> io::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(accept(listener, counters, keeper))
}

async fn accept(
    listener: std::net::TcpListener,
    counters: Counters,
    keeper: Option<Keeper>,
) -> io::Result<()> {
    if let Some(keeper) = &keeper {
        keeper.watch_runtime(Handle::current());
    }
    let listener = TcpListener::from_std(listener)?;
    let app = Router::new()
        .route("/", get(index))
        .route("/upload", post(upload))
        .route("/decode", post(decode))
        .route("/figures", get(async |State(counters): State<Counters>| counters.json()))
        .layer(DefaultBodyLimit::max(MOST_UPLOADED))
        .with_state(counters);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let app = app.clone();
                match keeper.as_ref().map(Keeper::connection) {
                    Some(watch) => tokio::spawn(kept_connection(app, stream, peer, watch)),
                    None => tokio::spawn(connection(app, stream, peer)),
                };
            }
            Err(error) => {
                println!("error accepting: {error}");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

fn service_of(
    app: Router,
    peer: SocketAddr,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone
{
    let app = app.layer(Extension(peer));
    service_fn(move |request: Request<Incoming>| app.clone().call(request))
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(STREAMS);
    builder
}

async fn connection(app: Router, stream: TcpStream, peer: SocketAddr) {
    let service = service_of(app, peer);
    report(builder().serve_connection(TokioIo::new(stream), service).await, peer);
}

/// Serves a connection that a keeper watches.
async fn kept_connection(app: Router, stream: TcpStream, peer: SocketAddr, watch: Watch) {
    let service = watch.service(service_of(app, peer));
    let (builder, io) = (builder(), TokioIo::new(watch.io(stream)));
    report(watch.drive(builder.serve_connection(io, service)).await, peer);
}

fn report<E: Display>(served: Result<(), E>, peer: SocketAddr) {
    if let Err(error) = served {
        println!("error serving connection from {peer:?}: {error:#}");
    }
}

async fn index(
    version: Version,
    Extension(peer): Extension<SocketAddr>,
    State(counters): State<Counters>,
    Query(asked): Query<Asked>,
) -> String {
    let _handled = counters.begin();
    expire(asked.expire).await;
    answer(Framework::Axum, version, peer)
}

async fn upload(State(counters): State<Counters>, picture: Bytes) -> String {
    let _handled = counters.begin();
    picture.len().to_string()
}

/// Decodes a picture in the pool of blocking threads, as servers do with long computations.
async fn decode(State(counters): State<Counters>, picture: Bytes) -> Result<String, StatusCode> {
    let _handled = counters.begin();
    let decoded = tokio::task::spawn_blocking(move || pictures::decode(&picture)).await;
    match decoded {
        Ok(Ok((width, height))) => Ok(format!("{width} × {height}")),
        _ => Err(StatusCode::BAD_REQUEST),
    }
}

//! axum, on hyper's low-level loop: there alone its limit of streams can be raised.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Query, State};
use axum::http::Version;
use axum::routing::{get, post};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

use crate::figures::Counters;
use crate::options::Framework;
use crate::{MOST_UPLOADED, STREAMS, answer, expire};

/// How long nothing is accepted when the process has no more open files.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Asked {
    expire: Option<u64>,
}

/// Serves until the process is ended.
pub(crate) fn serve(listener: std::net::TcpListener, counters: Counters) -> io::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(accept(listener, counters))
}

async fn accept(listener: std::net::TcpListener, counters: Counters) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let app = Router::new()
        .route("/", get(index))
        .route("/upload", post(upload))
        .route("/figures", get(async |State(counters): State<Counters>| counters.json()))
        .layer(DefaultBodyLimit::max(MOST_UPLOADED))
        .with_state(counters);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                tokio::spawn(connection(app.clone(), stream, peer));
            }
            Err(error) => {
                println!("error accepting: {error}");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

async fn connection(app: Router, stream: TcpStream, peer: SocketAddr) {
    let app = app.layer(Extension(peer));
    let service = service_fn(move |request: Request<Incoming>| app.clone().call(request));
    let served = auto::Builder::new(TokioExecutor::new())
        .http2()
        .max_concurrent_streams(STREAMS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
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

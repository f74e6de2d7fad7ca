//! Accepting and serving, on hyper's low-level loop.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension, Query, State};
use axum::http::Version;
use axum::routing::get;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

use crate::figures::Counters;
use crate::runtime::Rolling;

/// How many streams one connection may have.
const STREAMS: u32 = 1_000_000;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long nothing is accepted when the process has no more open files.
const PATIENCE: Duration = Duration::from_millis(50);

/// Serves until the process is ended.
pub(crate) async fn serve(
    listener: TcpListener,
    counters: Counters,
    rolling: &Rolling,
) -> Result<(), String> {
    let app = Router::new()
        .route("/", get(index))
        .route("/figures", get(figures))
        .with_state(counters.clone());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (app, connected) = (app.clone(), counters.connect());
                rolling.handle().spawn(async move {
                    let _connected = connected;
                    connection(app, stream, peer).await;
                });
            }
            Err(error) => {
                println!("error accepting: {error}");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

async fn connection(app: Router, stream: TcpStream, peer: SocketAddr) {
    let service = service_fn(move |request: Request<Incoming>| {
        // As the document has it: the address is laid into the handler by a layer for each request.
        app.clone().layer(Extension(ConnectInfo(peer))).call(request)
    });
    let served = auto::Builder::new(TokioExecutor::new())
        .http2()
        .max_concurrent_streams(STREAMS)
        .keep_alive_timeout(KEEP_ALIVE)
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        println!("error serving connection from {peer:?}: {error:#}");
    }
}

/// Sleeps for as many ms as `expire` says, and tells who answered.
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

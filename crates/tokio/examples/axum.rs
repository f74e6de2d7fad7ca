//! An axum server whose memory falls again after a load.
//!
//!     cargo run --release -p lowtide-tokio --example axum -- 127.0.0.1:3000
//!     cargo run --release -p lowtide-tokio --example axum -- 127.0.0.1:3000 5000     at most 5,000 requests at once
//!
//! `/?expire=1000` answers after 1,000 ms, `/endless` never ends, `/upload` counts bytes,
//! `/figures` and `/metrics` have the metrics of the keeper, as JSON and for Prometheus.

use std::alloc::System;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::response::Response;
use axum::routing::{get, post};
use lowtide_tokio::{Keeper, Limits, Tracked, serve};
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

#[tokio::main]
pub(crate) async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let keeper = Keeper::start()?;
    let (of_json, of_prometheus) = (keeper.clone(), keeper.clone());
    let app = Router::new()
        .route("/", get(sleep))
        .route("/endless", get(endless))
        .route("/upload", post(|body: Bytes| async move { body.len().to_string() }))
        .route("/figures", get(|| async move { of_json.metrics().to_json() }))
        .route("/metrics", get(|| async move { of_prometheus.metrics().to_prometheus() }));
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let most = std::env::args().nth(2).and_then(|word| word.parse().ok()).unwrap_or(usize::MAX);
    let limits = Limits::new().max_concurrent_streams(1_000_000).max_requests(most);
    serve(listener, app).keeper(keeper).limits(limits).await
}

/// The parameters of a request.
#[derive(serde::Deserialize)]
struct Parameters {
    /// Time until the answer, in ms.
    #[serde(default)]
    expire: u64,
}

async fn sleep(Query(Parameters { expire }): Query<Parameters>) -> &'static str {
    tokio::time::sleep(Duration::from_millis(expire)).await;
    "hello\n"
}

async fn endless() -> Response {
    let first = std::iter::once(Ok::<_, Infallible>("tick\n"));
    let stream = futures_util::stream::iter(first);
    let stream = futures_util::StreamExt::chain(stream, futures_util::stream::once(pending()));
    Response::new(Body::from_stream(stream))
}

//! A server that recycles each connection after so many requests. Usage: server ADDRESS REQUESTS
//! LINGER_MS. It echoes bodies, and has the health service of gRPC; `/figures` has the figures of
//! the keeper.

use std::alloc::System;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use lowtide_tokio::{Keeper, Limits, Recycle, Tracked, serve};
use tonic::service::Routes;

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let recycle = Recycle::new()
        .max_requests(arguments[1].parse().unwrap())
        .linger(Duration::from_millis(arguments[2].parse().unwrap()))
        .min_age(Duration::ZERO)
        .grpc(true);
    let keeper = Keeper::builder().recycle(recycle).start().unwrap();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let figures = keeper.clone();
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/echo", post(|body: Bytes| async move { body }))
        .route("/figures", get(move || async move { figures.metrics().to_json() }))
        .merge(Routes::new(health).into_axum_router());
    let listener = tokio::net::TcpListener::bind(&arguments[0]).await.unwrap();
    let limits = Limits::new().max_concurrent_streams(1000);
    serve(listener, app).keeper(keeper).limits(limits).await.unwrap();
}

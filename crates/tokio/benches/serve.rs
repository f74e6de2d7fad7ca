//! Measures the cost of `serve`: CPU time of a request, compared with the same app on
//! `axum::serve`, in pairs.
//!
//!     cargo bench -p lowtide-tokio --features axum --bench serve
//!
//! Prints one JSON line per pair: the version of HTTP, and the CPU time of the server per request
//! in µs, with `axum::serve`, with `serve`, and with `axum::serve` once more, which shows the
//! noise.

#![allow(clippy::unwrap_used, reason = "a bench that cannot continue has failed")]

mod server;

use std::alloc::System;

use axum::Router;
use axum::routing::get;
use lowtide_load::{HttpVersion, Shape};
use lowtide_tokio::{Tracked, serve};
use tokio::net::TcpListener;

use server::{Server, load};

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

const REQUESTS: u64 = 200_000;
const PAIRS: usize = 15;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(name @ ("axum" | "lowtide")) => server(name),
        _ => compare(),
    }
}

#[tokio::main]
async fn server(name: &str) {
    let app = Router::new().route("/", get(|| async { "hello" }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    match name {
        "axum" => axum::serve(listener, app).await.unwrap(),
        _ => serve(listener, app).await.unwrap(),
    }
}

fn compare() {
    for (version, connections, streams) in
        [(HttpVersion::Http1, 64, 1), (HttpVersion::Http2, 8, 100)]
    {
        for pair in 0..PAIRS {
            let measure = |name| measure(name, version, connections, streams);
            let [axum, lowtide, again] = if pair % 2 == 0 {
                [measure("axum"), measure("lowtide"), measure("axum")]
            } else {
                let lowtide = measure("lowtide");
                [measure("axum"), lowtide, measure("axum")]
            };
            println!(
                "{{\"version\":\"{version:?}\",\"axum_us\":{axum:.3},\"lowtide_us\":{lowtide:.3},\"again_us\":{again:.3}}}"
            );
        }
    }
}

/// Returns the CPU time of a request in µs.
fn measure(name: &str, version: HttpVersion, connections: usize, streams: usize) -> f64 {
    let server = Server::start(name);
    let before = cpu_us(server.child.id());
    load(server.address, Shape::Burst(REQUESTS), version, connections, streams);
    let after = cpu_us(server.child.id());
    (after - before) / REQUESTS as f64
}

/// Returns the CPU time of all threads of a process in µs, from the scheduler's own counts.
fn cpu_us(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let times = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1000.0
    });
    times.sum()
}

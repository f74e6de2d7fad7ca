//! Measures the cost of a sweep and a release in the middle of requests: the longest time that a
//! request takes, in pairs of windows with and without a release.
//!
//!     cargo bench -p lowtide-tokio --features axum --bench gap
//!
//! In each window, 1,000 requests a second arrive for 1.5 s over 8 HTTP/1.1 connections. After 0.5
//! s, every worker has freed many blocks. After 1 s, the keeper sweeps and releases, or does
//! nothing. Prints one JSON line per pair: the longest time in ms without, with, and without once
//! more, which shows the noise; and the bytes that were returned.

#![allow(clippy::unwrap_used, reason = "a bench that cannot continue has failed")]

mod server;

use std::alloc::System;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lowtide_load::{HttpVersion, Shape};
use lowtide_tokio::{Keeper, Recycle, Tracked, serve};
use tokio::net::TcpListener;

use server::{Server, load};

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

const PAIRS: usize = 30;
const REQUESTS: u64 = 1500;
/// Bytes of the blocks that a request to `/free` allocates and frees.
const FREED: usize = 64 << 20;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("server") => server(),
        _ => compare(),
    }
}

#[tokio::main]
async fn server() {
    // It does nothing on its own.
    let keeper = Keeper::builder().recycle(Recycle::never()).release_above(u64::MAX);
    let keeper = keeper.start().unwrap();
    let of_route = keeper.clone();
    let release = || async move {
        of_route.release_now().await.unwrap().release.returned_bytes().to_string()
    };
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/nothing", get(|| async { "0" }))
        .route("/free", get(free))
        .route("/release", get(release));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    serve(listener, app).keeper(keeper).await.unwrap();
}

/// Leaves free memory between blocks that stay.
async fn free() -> &'static str {
    let blocks: Vec<Vec<u8>> = (0..FREED / 1000).map(|_| vec![1; 1000]).collect();
    let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(1000).collect();
    // A window is shorter than this.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(black_box(kept));
    });
    "0"
}

fn compare() {
    let server = Server::start("server");
    for pair in 0..PAIRS {
        let measure = |path| measure(server.address, path);
        let [without, with, again] = if pair % 2 == 0 {
            [measure("/nothing"), measure("/release"), measure("/nothing")]
        } else {
            let with = measure("/release");
            [measure("/nothing"), with, measure("/nothing")]
        };
        println!(
            "{{\"without_ms\":{:.3},\"with_ms\":{:.3},\"again_ms\":{:.3},\"returned_bytes\":{}}}",
            without.0, with.0, again.0, with.1
        );
    }
}

/// Returns the longest time of a request in ms, and the number with which a path responds in the
/// middle of the requests.
fn measure(address: SocketAddr, path: &'static str) -> (f64, u64) {
    let middle = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        ask(address, "/free");
        std::thread::sleep(Duration::from_millis(500));
        ask(address, path).parse().unwrap()
    });
    let shape = Shape::Ramp { rate: "1000/s".parse().unwrap(), count: REQUESTS };
    let round = load(address, shape, HttpVersion::Http1, 8, 1);
    (round.latency_s.max * 1000.0, middle.join().unwrap())
}

/// Returns the body of an answer.
fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.rsplit("\r\n").next().unwrap_or_default().to_owned()
}

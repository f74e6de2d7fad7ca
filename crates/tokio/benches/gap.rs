//! What a sweep and a release in the middle of requests cost: the longest time that a request takes, in pairs of windows with
//! and without one.
//!
//!     cargo bench -p lowtide-tokio --features axum --bench gap
//!
//! In each window, 1,000 requests a second come for 1.5 s over 8 HTTP/1.1 connections. After 0.5 s, every worker has freed many
//! blocks; after 1 s, the keeper sweeps and releases, or does nothing. Prints one JSON line for each pair: the longest time in ms
//! without, with, and without once more, which shows the noise; and what was returned.

#![allow(clippy::unwrap_used, reason = "a bench that cannot continue has failed")]

use std::alloc::System;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lowtide_load::{Available, HttpVersion, Plan, RequestTemplate, Shape};
use lowtide_tokio::{Keeper, Recycle, Tracked, serve};
use tokio::net::TcpListener;

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
    // It does nothing by itself.
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
    let server = Server::start();
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

/// A server in a process of its own.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg("server").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim().parse().unwrap() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the longest time of a request in ms, and the number that a path answers in the middle of them.
fn measure(address: SocketAddr, path: &'static str) -> (f64, u64) {
    let middle = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        ask(address, "/free");
        std::thread::sleep(Duration::from_millis(500));
        ask(address, path).parse().unwrap()
    });
    let plan = Plan {
        targets: vec![format!("http://{address}/").parse().unwrap()],
        connections: 8,
        streams: 1,
        shape: Shape::Ramp { rate: "1000/s".parse().unwrap(), count: REQUESTS },
        linger: Duration::ZERO,
        timeout: Duration::from_secs(60),
        idle_close: None,
        request: RequestTemplate {
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Arc::default(),
        },
        version: HttpVersion::Http1,
        insecure: false,
        sample_interval: Duration::from_secs(1),
    };
    let available = Available {
        files: lowtide_load::raise_open_files(),
        memory_bytes: None,
        ports: lowtide_load::ephemeral_ports(),
    };
    let report = lowtide_load::run(&plan, &available, &mut (), &AtomicBool::new(false)).unwrap();
    assert_eq!(report.rounds[0].failed, 0, "{:?}", report.rounds[0].errors);
    (report.rounds[0].latency_s.max * 1000.0, middle.join().unwrap())
}

/// Returns the body of an answer.
fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.rsplit("\r\n").next().unwrap_or_default().to_owned()
}

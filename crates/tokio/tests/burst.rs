//! The axum example under bursts: every request is answered, and the memory falls again.

#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_load::{Available, HttpVersion, LoadSpec, RequestTemplate, Shape};
use lowtide_testing::Running;
use serde_json::Value;

const MIB: f64 = (1 << 20) as f64;

#[path = "../examples/axum.rs"]
mod example;

/// Variable that is set in the environment of a process that is a server.
const IS_SERVER: &str = "LOWTIDE_TOKIO_TEST_SERVER";

#[test]
fn the_example_serves_if_the_environment_marks_it_as_the_server() {
    if std::env::var_os(IS_SERVER).is_some() {
        example::main().unwrap();
    }
}

/// The example, in a process of its own.
struct Server {
    _child: Running,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        // The example reads the first argument; the rest select one test.
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "127.0.0.1:0",
                "--exact",
                "the_example_serves_if_the_environment_marks_it_as_the_server",
            ])
            .arg("--nocapture")
            .env(IS_SERVER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.find_map(|line| line.trim().parse().ok()).unwrap();
        Self { _child: child.into(), address }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn metrics(&self) -> Value {
        serde_json::from_str(&self.get("/figures")).unwrap()
    }

    fn figure(&self, name: &str) -> f64 {
        self.metrics()[name].as_f64().unwrap()
    }

    /// Waits until the metrics meet a condition.
    fn wait_until(&self, condition: impl Fn(&Value) -> bool) {
        const LONG: Duration = Duration::from_secs(100);
        let begin = Instant::now();
        loop {
            let metrics = self.metrics();
            if condition(&metrics) {
                return;
            }
            assert!(begin.elapsed() < LONG, "{metrics}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends bursts to it. All requests must be answered.
    fn burst(&self, connections: usize, streams: usize, rounds: u32) {
        let between = Box::new(Shape::Idle { time: Duration::from_secs(2), trickle: None });
        let all = (connections * streams) as u64;
        let plan = LoadSpec {
            targets: vec![format!("http://{}/?expire=300", self.address).parse().unwrap()],
            connections,
            streams,
            shape: Shape::Repeat { times: rounds, round: vec![Shape::Burst(all)], between },
            linger: Duration::ZERO,
            timeout: Duration::from_secs(100),
            idle_close: None,
            request: RequestTemplate {
                method: "GET".to_owned(),
                headers: Vec::new(),
                body: Arc::default(),
            },
            version: HttpVersion::Http2,
            insecure: false,
            sample_interval: Duration::from_millis(100),
        };
        let available = Available {
            files: lowtide_load::raise_open_files(),
            memory_bytes: None,
            ports: lowtide_load::ephemeral_ports(),
        };
        let report =
            lowtide_load::run(&plan, &available, &mut (), &AtomicBool::new(false)).unwrap();
        for round in report.rounds {
            assert_eq!((round.succeeded, round.failed), (all, 0), "{:?}", round.errors);
        }
    }
}

fn number(metrics: &Value, name: &str) -> f64 {
    metrics[name].as_f64().unwrap()
}

#[test]
fn memory_falls_after_each_burst_and_every_request_is_answered() {
    let server = Server::start();
    let before = server.figure("anonymous_bytes");
    server.burst(8, 5000, 3);
    // The connections were recycled after each of the first two bursts, and closed by the client
    // after the last.
    server.wait_until(|metrics| {
        number(metrics, "anonymous_bytes") < before + 12.0 * MIB
            && number(metrics, "allocated_bytes") < 4.0 * MIB
    });
    let metrics = server.metrics();
    assert!(number(&metrics, "recycled_connections") >= 16.0, "{metrics}");
    assert!(number(&metrics, "returned_bytes") > 32.0 * MIB, "{metrics}");
    assert_eq!(number(&metrics, "cut_connections"), 0.0, "{metrics}");
    assert!(server.get("/metrics").contains("\nlowtide_releases_total "));
}

#[test]
fn many_narrow_connections_are_also_recycled() {
    let server = Server::start();
    let before = server.figure("anonymous_bytes");
    server.burst(100, 200, 2);
    server.wait_until(|metrics| number(metrics, "anonymous_bytes") < before + 12.0 * MIB);
    assert!(server.figure("recycled_connections") >= 100.0);
}

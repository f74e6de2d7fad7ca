//! A server in its own process, and a load on it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lowtide_load::{Available, HttpVersion, LoadSpec, RequestTemplate, Shape};
use lowtide_model::load::LoadRound;

/// A process of this program that serves.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts this program with an argument. It prints its address, and serves.
    pub(crate) fn start(argument: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(argument).stdout(Stdio::piped()).spawn().unwrap();
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

/// Sends requests to a server, none of which may fail.
pub(crate) fn load(
    address: SocketAddr,
    shape: Shape,
    version: HttpVersion,
    connections: usize,
    streams: usize,
) -> LoadRound {
    let plan = LoadSpec {
        targets: vec![format!("http://{address}/").parse().unwrap()],
        connections,
        streams,
        shape,
        linger: Duration::ZERO,
        timeout: Duration::from_secs(60),
        idle_close: None,
        request: RequestTemplate {
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Arc::default(),
        },
        version,
        insecure: false,
        sample_interval: Duration::from_secs(1),
    };
    let available = Available {
        files: lowtide_load::raise_open_files(),
        memory_bytes: None,
        ports: lowtide_load::ephemeral_ports(),
    };
    let report = lowtide_load::run(&plan, &available, &mut (), &AtomicBool::new(false)).unwrap();
    let round = report.rounds.into_iter().next().unwrap();
    assert_eq!(round.failed, 0, "{:?}", round.errors);
    round
}

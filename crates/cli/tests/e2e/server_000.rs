//! The server of document 000 under a burst: what `lowtide inspect` finds at the drain and after the close is
//! what subjects/000-server/verdicts.toml expects.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::support::{free_port, lowtide, until};

#[derive(Deserialize)]
struct Verdicts {
    expected: Vec<Expected>,
}

/// What is expected under an allocator at a moment.
#[derive(Deserialize)]
struct Expected {
    allocator: String,
    moment: String,
    verdicts: Vec<String>,
    #[serde(default)]
    least: BTreeMap<String, f64>,
    #[serde(default)]
    most: BTreeMap<String, f64>,
}

impl Expected {
    fn hold(&self, found: &Value) {
        let (allocator, moment) = (&self.allocator, &self.moment);
        let verdict = found["verdict"]["kind"].as_str().unwrap();
        let told = format!("{allocator}, {moment}: {found:#}");
        assert!(self.verdicts.iter().any(|v| v == verdict), "{verdict} {told}");
        let rss = found["rss_bytes"].as_f64().unwrap();
        let share = |owner: &str| {
            let rows = found["ledger"].as_array().unwrap().iter();
            let of_owner = rows.filter(|row| row["owner"] == owner);
            of_owner.filter_map(|row| row["bytes"].as_f64()).sum::<f64>() / rss
        };
        for (owner, least) in &self.least {
            assert!(share(owner) >= *least, "{owner} {} {told}", share(owner));
        }
        for (owner, most) in &self.most {
            assert!(share(owner) <= *most, "{owner} {} {told}", share(owner));
        }
    }
}

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../subjects/000-server")
}

fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("000-server");
    let built = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(folder().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .status()
        .unwrap();
    assert!(built.success());
    target.join("release/subject-000-server")
}

fn start(program: &Path, address: SocketAddr, allocator: &str) -> Running {
    let mut command = Command::new(program);
    if let Some(library) = lowtide_allocators::bundled().find(|b| b.name() == allocator) {
        command.env("LD_PRELOAD", library.unpack().unwrap());
    }
    let server = Running(command.arg(address.to_string()).stdout(Stdio::null()).spawn().unwrap());
    until("the server", || std::net::TcpStream::connect(address).ok());
    server
}

fn inspect(server: &Running) -> Value {
    let output =
        lowtide().args(["--json", "inspect", &server.0.id().to_string()]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "builds the server of document 000 with its frameworks"]
fn the_server_of_document_000_gets_the_verdicts_that_stand_beside_it() {
    let program = build();
    let text = std::fs::read_to_string(folder().join("verdicts.toml")).unwrap();
    let verdicts: Verdicts = toml::from_str(&text).unwrap();
    let home = tempfile::tempdir().unwrap();
    for allocator in ["glibc", "jemalloc", "mimalloc"] {
        let expected = |moment: &str| {
            let all = verdicts.expected.iter().filter(|e| e.allocator == allocator);
            all.filter(|e| e.moment == moment).collect::<Vec<_>>()
        };
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let server = start(&program, address, allocator);
        let record = home.path().join(format!("{allocator}.jsonl"));
        let load = lowtide()
            .args(["load", "--http2", "-c", "4", "-m", "5000", "--linger", "10m", "-o"])
            .arg(&record)
            .arg(format!("http://{address}/?expire=2000"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let load = Running(load.unwrap());
        until("the drain", || {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            text.contains("\"mark\":\"drained\"").then_some(())
        });
        let drained = inspect(&server);
        assert!(drained["sockets_established"].as_u64().unwrap() >= 4, "{drained}");
        expected("drained").into_iter().for_each(|e| e.hold(&drained));
        drop(load);
        let closed = until("the close", || {
            Some(inspect(&server)).filter(|found| found["sockets_established"] == 0)
        });
        expected("closed").into_iter().for_each(|e| e.hold(&closed));
    }
}

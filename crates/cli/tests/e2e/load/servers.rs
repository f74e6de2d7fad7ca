//! Third-party servers.

use std::process::{Command, Stdio};

use lowtide_testing::Running;

use super::{load, report};
use crate::support::{free_port, until};

const CERTIFICATE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../load/tests/driver/certificate/cert.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../load/tests/driver/certificate/key.pem");

fn start(command: &mut Command, port: u16) -> Running {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let server = Running::from(child);
    until("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    server
}

/// Sends 2000 requests over four connections, with 100 in flight on each.
fn two_thousand(url: &str, flags: &[&str]) {
    let mut words = vec![url, "-c", "4", "-m", "100", "-n", "2000", "-k"];
    words.extend(flags);
    let round = report(&load(&words))["rounds"][0].clone();
    assert_eq!((&round["succeeded"], &round["failed"]), (&2000.into(), &0.into()), "{round}");
}

const NODE: &str = "
    const [, port, kind, cert, key] = process.argv, fs = require('fs'), http2 = require('http2');
    const tls = () => ({ cert: fs.readFileSync(cert), key: fs.readFileSync(key) });
    const server = kind == 'plain' ? http2.createServer() : http2.createSecureServer(tls());
    server.on('stream', (stream) => { stream.respond({ ':status': 200 }); stream.end('node'); });
    server.listen(+port, '127.0.0.1');";

#[test]
#[ignore = "needs node"]
fn node_answers_with_and_without_tls() {
    for (kind, scheme) in [("plain", "http"), ("tls", "https")] {
        let port = free_port();
        let mut node = Command::new("node");
        node.args(["-e", NODE, &port.to_string(), kind, CERTIFICATE, KEY]);
        let _server = start(&mut node, port);
        two_thousand(&format!("{scheme}://127.0.0.1:{port}/"), &[]);
    }
}

#[test]
#[ignore = "needs nghttpd"]
fn nghttpd_answers_with_and_without_tls() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("index.html"), "x".repeat(100_000)).unwrap();
    for (tls, scheme) in [(false, "http"), (true, "https")] {
        let port = free_port();
        let mut nghttpd = Command::new("nghttpd");
        nghttpd.args(["-d", home.path().to_str().unwrap()]);
        if !tls {
            nghttpd.arg("--no-tls");
        }
        nghttpd.arg(port.to_string());
        if tls {
            nghttpd.args([KEY, CERTIFICATE]);
        }
        let _server = start(&mut nghttpd, port);
        two_thousand(&format!("{scheme}://127.0.0.1:{port}/"), &[]);
    }
}

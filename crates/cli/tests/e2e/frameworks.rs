//! `subjects/frameworks` at a small size: `lowtide inspect` finds the expected verdict in each of
//! its servers.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::expected::{Expected, RunningSubject, build};
use crate::support::{free_port, lowtide, until};

#[test]
#[ignore = "builds axum, actix-web and salvo"]
fn every_server_gets_its_expected_verdict() {
    let program = build("frameworks");
    for expected in Expected::of("frameworks") {
        assert_eq!(expected.moment, "closed", "no other is tried yet");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(&program);
        command.args(&expected.arguments).arg(address.to_string());
        let server = RunningSubject::under(&expected.allocator, &mut command).at(address);
        let load = lowtide()
            .args(["--json", "load", "--http2", "-c", "4", "-m", "5000"])
            .arg(format!("http://{address}/?expire=2000"))
            .output()
            .unwrap();
        let text: Value = serde_json::from_slice(&load.stdout).unwrap();
        assert_eq!(text["rounds"][0]["succeeded"], 20_000, "{text:#}");
        let closed = until("the close", || {
            Some(server.inspect()).filter(|found| found["sockets_established"] == 0)
        });
        expected.hold(&closed);
        assert_eq!(uploaded(address, 300_000), "300000", "{:?}", expected.arguments);
    }
}

/// Uploads a picture, and returns the status of the response.
fn uploaded(address: SocketAddr, bytes: usize) -> String {
    let load = lowtide()
        .args(["--json", "load", "-X", "POST", "-n", "1", "-c", "1", "--body-size"])
        .arg(bytes.to_string())
        .arg(format!("http://{address}/upload"))
        .output()
        .unwrap();
    let text: Value = serde_json::from_slice(&load.stdout).unwrap();
    text["rounds"][0]["responses"].as_object().unwrap().keys().next().unwrap().clone()
}

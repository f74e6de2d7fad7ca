//! `subjects/million-streams` under a burst: `lowtide inspect` finds the verdicts of its
//! verdicts.toml at the drain and after the close.

use std::net::SocketAddr;
use std::process::Command;

use lowtide_testing::Running;

use crate::expected::{Expected, RunningSubject, build};
use crate::support::{free_port, lowtide, until};

#[test]
#[ignore = "builds a server with axum and tokio"]
fn the_server_gets_its_expected_verdicts() {
    let program = build("million-streams");
    let verdicts = Expected::of("million-streams");
    let home = tempfile::tempdir().unwrap();
    for allocator in ["glibc", "jemalloc", "mimalloc"] {
        let expected = |moment: &str| {
            let all = verdicts.iter().filter(|e| e.allocator == allocator);
            all.filter(|e| e.moment == moment).collect::<Vec<_>>()
        };
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let server =
            RunningSubject::under(allocator, Command::new(&program).arg(address.to_string()))
                .at(address);
        let record = home.path().join(format!("{allocator}.jsonl"));
        let load = lowtide()
            .args(["load", "--http2", "-c", "4", "-m", "5000", "--hold", "10m", "-o"])
            .arg(&record)
            .arg(format!("http://{address}/?expire=2000"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let load = Running::from(load.unwrap());
        until("the drain", || {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            text.contains("\"mark\":\"drained\"").then_some(())
        });
        let drained = server.inspect();
        assert!(drained["sockets_established"].as_u64().unwrap() >= 4, "{drained}");
        expected("drained").into_iter().for_each(|e| e.hold(&drained));
        drop(load);
        let closed = until("the close", || {
            Some(server.inspect()).filter(|found| found["sockets_established"] == 0)
        });
        expected("closed").into_iter().for_each(|e| e.hold(&closed));
    }
}

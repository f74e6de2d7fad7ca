//! The subjects of document 001, run small: what `lowtide inspect` finds in them is what stands beside them,
//! and their studies tell what the document asks.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::expected::{Expected, Running, build};
use crate::support::{free_port, lowtide, number, study, until};

#[test]
#[ignore = "builds a subject with tokio and dashmap"]
fn the_containers_of_document_001_get_the_verdicts_that_stand_beside_them() {
    let program = build("001-containers");
    for expected in Expected::of("001-containers") {
        let mut command = Command::new(&program);
        command.args(["count=200000", "rounds=1", "pause=1"]).args(&expected.arguments);
        command.arg(format!("until={}", expected.moment));
        let subject = Running::under(&expected.allocator, &mut command);
        let comm = format!("/proc/{}/comm", subject.0.id());
        until(&expected.moment, || {
            (std::fs::read_to_string(&comm).unwrap().trim() == expected.moment).then_some(())
        });
        expected.hold(&subject.inspect());
    }
}

#[test]
#[ignore = "builds axum, actix-web and salvo"]
fn the_servers_of_document_001_get_the_verdicts_that_stand_beside_them() {
    let program = build("001-frameworks");
    for expected in Expected::of("001-frameworks") {
        assert_eq!(expected.moment, "closed", "no other is tried yet");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(&program);
        command.args(&expected.arguments).arg(address.to_string());
        let server = Running::under(&expected.allocator, &mut command).at(address);
        let load = lowtide()
            .args(["--json", "load", "--http2", "-c", "4", "-m", "5000"])
            .arg(format!("http://{address}/?expire=2000"))
            .output()
            .unwrap();
        let told: Value = serde_json::from_slice(&load.stdout).unwrap();
        assert_eq!(told["rounds"][0]["succeeded"], 20_000, "{told:#}");
        let closed = until("the close", || {
            Some(server.inspect()).filter(|found| found["sockets_established"] == 0)
        });
        expected.hold(&closed);
        assert_eq!(uploaded(address, 300_000), "300000", "{:?}", expected.arguments);
    }
}

/// What the server answers to a picture.
fn uploaded(address: SocketAddr, bytes: usize) -> String {
    let load = lowtide()
        .args(["--json", "load", "-X", "POST", "-n", "1", "-c", "1", "--body-size"])
        .arg(bytes.to_string())
        .arg(format!("http://{address}/upload"))
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&load.stdout).unwrap();
    told["rounds"][0]["responses"].as_object().unwrap().keys().next().unwrap().clone()
}

#[test]
#[ignore = "builds a subject with tokio and dashmap, and needs leave to trace other processes"]
fn the_study_of_containers_runs_small_and_marks_every_phase_of_every_round() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/001-containers.toml");
    let only = "glibc/tasks-one-stays,glibc/map,glibc/map-of-vec,\
                glibc/map-of-vec + release when dropped";
    let set = ["count=100000", "rounds=2", "pause=50"].map(|s| ["--set", s]).concat();
    let ran = study(&[&[file, "--only", only, "--settle", "2s"], &set[..]].concat());
    let trials = ran.trials();
    for trial in &trials {
        assert_eq!(trial["allocator_active"], true, "{trial}");
        let phases = trial["phases"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str());
        let told: Vec<&str> = phases.filter(|p| !["baseline", "load_end"].contains(p)).collect();
        assert_eq!(told, ["filled", "emptied", "dropped"].repeat(2), "{trial:#}");
    }
    let settled = |policy: &str| {
        let of = |t: &&Value| {
            t["treatment"]["tune"] == "map-of-vec" && t["treatment"]["policy"] == policy
        };
        number(trials.iter().find(of).unwrap(), "settled_ratio")
    };
    assert!(settled("none") > 0.3, "{trials:#?}");
    assert!(settled("release when dropped") < 0.2, "{trials:#?}");
}

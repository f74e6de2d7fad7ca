//! `subjects/containers` at a small size: `lowtide inspect` finds the expected verdict in each
//! mode, and the study marks every phase.

use std::process::Command;

use serde_json::Value;

use crate::expected::{Expected, RunningSubject, build};
use crate::support::{number, study, until};

#[test]
#[ignore = "builds a subject with tokio and dashmap"]
fn every_mode_gets_its_expected_verdict() {
    let program = build("containers");
    for expected in Expected::of("containers") {
        let mut command = Command::new(&program);
        command.args(["count=200000", "rounds=1", "pause=1"]).args(&expected.arguments);
        command.arg(format!("until={}", expected.moment));
        let subject = RunningSubject::under(&expected.allocator, &mut command);
        let comm = format!("/proc/{}/comm", subject.0.id());
        until(&expected.moment, || {
            (std::fs::read_to_string(&comm).unwrap().trim() == expected.moment).then_some(())
        });
        expected.hold(&subject.inspect());
    }
}

#[test]
#[ignore = "builds a subject with tokio and dashmap, and needs leave to trace other processes"]
fn a_small_study_of_containers_marks_every_phase_of_every_round() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/containers.toml");
    let only = "glibc/tasks-one-stays,glibc/map,glibc/map-of-vec,\
                glibc/map-of-vec + release when dropped";
    let set = ["count=100000", "rounds=2", "pause=50"].map(|s| ["--set", s]).concat();
    let ran = study(&[&[file, "--only", only, "--settle", "2s"], &set[..]].concat());
    let trials = ran.trials();
    for trial in &trials {
        assert_eq!(trial["allocator_active"], true, "{trial}");
        let phases = trial["phases"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str());
        let text: Vec<&str> = phases.filter(|p| !["baseline", "load_end"].contains(p)).collect();
        assert_eq!(text, ["filled", "emptied", "dropped"].repeat(2), "{trial:#}");
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

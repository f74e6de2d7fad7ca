//! The requests of rounds, their counts, and records.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::{Server, load, report};
use crate::support::{lines, lowtide, until};

#[test]
fn a_burst_is_in_flight_at_once_and_every_response_is_counted() {
    let server = Server::start();
    let output = load(&[&server.url("?expire=10000"), "-m", "100"]);
    assert_eq!(output.status.code(), Some(0));
    let round = &report(&output)["rounds"][0];
    assert_eq!((&round["succeeded"], &round["peak_in_flight"]), (&800.into(), &800.into()));
    assert_eq!(round["distinct_responses"], 8);
}

#[test]
fn without_a_terminal_the_round_is_printed_without_progress() {
    let server = Server::start();
    let url = server.url("");
    let output = lowtide().args(["load", &url, "--http2", "-n", "1000"]).output().unwrap();
    let (reported, noted) = (output.stdout.as_slice(), output.stderr.as_slice());
    let reported = String::from_utf8_lossy(reported);
    for part in ["1,000 succeeded (100.00 %)", " latency   50% ", "lowtide-demo("] {
        assert!(reported.contains(part), "{reported}");
    }
    assert!(noted.is_empty(), "{}", String::from_utf8_lossy(noted));
}

#[test]
fn a_server_killed_during_the_load_leaves_consistent_counts() {
    let mut server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("load.jsonl");
    let child = lowtide()
        .args(["--json", "load", &server.url("?expire=60000"), "-m", "100", "-o"])
        .arg(&record)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_requests_in_flight(&record, 800);
    server.child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let round = &report(&output)["rounds"][0];
    assert_eq!((&round["requests"], &round["failed"]), (&800.into(), &800.into()));
    assert!(round["errors"].as_object().unwrap().len() <= 3, "{round}");
}

#[test]
fn ctrl_c_prints_the_report_so_far() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("load.jsonl");
    let child = lowtide()
        .args(["--json", "load", &server.url("?expire=60000"), "-m", "10", "--rounds", "9", "-o"])
        .arg(&record)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_requests_in_flight(&record, 80);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().try_into().unwrap()),
        nix::sys::signal::Signal::SIGINT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report = report(&output);
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["rounds"].as_array().unwrap().len(), 1);
}

/// Waits until the record that is being written shows `count` requests in flight.
fn wait_for_requests_in_flight(record: &Path, count: u64) {
    until("the requests", || {
        let text = std::fs::read_to_string(record).ok()?;
        // The last line may not be complete yet.
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.any(|line| line["in_flight"] == count).then_some(())
    });
}

#[test]
fn the_record_and_the_study_both_get_samples_marks_and_rounds() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let (own, handed) = (home.path().join("load.jsonl"), home.path().join("handed.jsonl"));
    let output = lowtide()
        .args(["--json", "load", &server.url("?expire=3000"), "-m", "10", "--rounds", "2"])
        .args(["--pause", "300ms", "--idle-close", "100ms", "-o"])
        .arg(&own)
        .env(lowtide_record::LOAD_SAMPLES, &handed)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for file in [own, handed] {
        let lines = lines(&file);
        crate::schemas::hold_record(&lines);
        let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
        assert_eq!((of("header"), of("load_plan"), of("load")), (1, 1, 2));
        assert!(lines.iter().any(|line| line["in_flight"] == 80), "{lines:?}");
        let marks: Vec<&str> = lines.iter().filter_map(|line| line["mark"].as_str()).collect();
        let round = ["load_begin", "drained", "load_end", "closed"];
        assert_eq!(marks, [round, round].concat());
    }
}

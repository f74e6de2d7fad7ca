//! Tests that the record of a load is overlaid on the trials at the same time, on this host or on
//! another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use lowtide_record::v1::{ClockReading, FileKind, Header, LoadSample, SCHEMA};
use lowtide_record::{LoadRecord, TrialRecord};
use lowtide_report::read::{self, LoadedRecord};
use lowtide_report::{View, overlay};

/// Returns a trial that no load of a study drove.
fn record() -> LoadedRecord {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/trials/001-glibc.jsonl");
    read::load(&path).unwrap()
}

fn trial(record: &LoadedRecord) -> &TrialRecord {
    &record.trials[0].1
}

/// Returns a load that started `after_s` seconds after the trial, by the wall clock.
fn load(after_s: f64) -> LoadRecord {
    let sample = |t_s| LoadSample { t_s, round: 1, in_flight: 7, ..LoadSample::default() };
    LoadRecord {
        header: Header {
            schema: SCHEMA.to_owned(),
            holds: FileKind::Load,
            started_unix_s: trial(&record()).header.started_unix_s + after_s,
            ..trial(&record()).header.clone()
        },
        plan: Default::default(),
        samples: vec![sample(-100.0), sample(0.0), sample(0.25)],
        marks: Vec::new(),
        rounds: Vec::new(),
    }
}

#[test]
fn a_load_from_another_host_is_aligned_by_the_wall_clock() {
    let mut records = [record()];
    overlay(&load(1.0), "load.jsonl", &mut records);
    let times: Vec<f64> = trial(&records[0]).load_samples.iter().map(|s| s.t_s).collect();
    assert!(times.len() == 2 && (times[0] - 1.0).abs() < 1e-3, "{times:?}");
    assert!(View::new(&records).has_in_flight());
}

#[test]
fn a_load_from_this_host_is_aligned_by_the_monotonic_clock() {
    let mut records = [record()];
    let mut load = load(9999.0);
    let clock = |monotonic_s| Some(ClockReading { boot: "this".to_owned(), monotonic_s });
    load.header.clock = clock(52.0);
    records[0].trials[0].1.header.clock = clock(50.0);
    overlay(&load, "load.jsonl", &mut records);
    assert_eq!(trial(&records[0]).load_samples[0].t_s, 2.0);
}

#[test]
fn a_load_that_does_not_overlap_is_left_out_with_a_note() {
    let mut records = [record()];
    overlay(&load(86_400.0), "load.jsonl", &mut records);
    assert!(trial(&records[0]).load_samples.is_empty());
    assert!(
        records[0].notes[0]
            .starts_with("load.jsonl is not drawn: by both clocks, nothing was recorded")
    );
    let mut records = [record()];
    overlay(&load(1.0), "one", &mut records);
    overlay(&load(1.0), "two", &mut records);
    assert!(records[0].notes[0].contains("two is not drawn"), "{:?}", records[0].notes);
}

//! Validates printed objects and records against the schemas that ship with lowtide.

use std::path::Path;

use lowtide_model::release::{Hazard, Method, Regained, Release, ReleaseOutcome, RunsIn};
use lowtide_release::Refusal;
use serde_json::Value;

use crate::support::{lines, lowtide, study, subject};

fn validator(name: &str) -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas").join(name);
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn hold(validator: &jsonschema::Validator, object: &Value) {
    let errors: Vec<String> =
        validator.iter_errors(object).map(|e| format!("{} at {}", e, e.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{object:#}");
}

/// Validates every line of a record's file against the schema.
pub(crate) fn hold_record(lines: &[Value]) {
    let record = validator("lowtide.record.1.json");
    for line in lines {
        hold(&record, line);
    }
}

/// Validates the output of `lowtide load` against its schema.
pub(crate) fn hold_load(found: &Value) {
    hold(&validator("lowtide.load.1.json"), found);
}

/// Validates the totals of several processes against their schema.
pub(crate) fn hold_whole(found: &Value) {
    hold(&validator("lowtide.whole.1.json"), found);
}

/// Validates the output of `lowtide inspect` against its schema.
pub(crate) fn hold_inspection(found: &Value) {
    hold(&validator("lowtide.inspect.1.json"), found);
}

/// Validates the output of `lowtide study` against its schema.
pub(crate) fn hold_study(found: &Value) {
    hold(&validator("lowtide.study.1.json"), found);
}

/// Validates the difference of two heap files against its schema.
pub(crate) fn hold_difference(found: &Value) {
    hold(&validator("lowtide.difference.1.json"), found);
}

/// Validates the report of a black box against its schema.
pub(crate) fn hold_black_box(found: &Value) {
    hold(&validator("lowtide.blackbox.1.json"), found);
}

/// Validates the output of `lowtide leaks` against its schema.
pub(crate) fn hold_leaks(found: &Value) {
    hold(&validator("lowtide.leaks.1.json"), found);
}

/// Validates a reading of `lowtide watch --cgroup` against its schema.
pub(crate) fn hold_charge(found: &Value) {
    hold(&validator("lowtide.charge.1.json"), found);
}

/// Validates the output of `lowtide top` against its schema.
pub(crate) fn hold_top(found: &Value) {
    hold(&validator("lowtide.top.1.json"), found);
}

/// Validates a line of the log of `lowtide run` or `lowtide attach` against its schema.
pub(crate) fn hold_act(found: &Value) {
    hold(&validator("lowtide.act.1.json"), found);
}

/// Validates the output of `lowtide release` against its schema.
pub(crate) fn hold_release(found: &Value) {
    hold(&validator("lowtide.release.1.json"), found);
}

/// The kinds of lines in records of studies.
const KINDS: [&str; 13] = [
    "end",
    "header",
    "ledger",
    "load",
    "mark",
    "plan",
    "process",
    "process_end",
    "process_sample",
    "sample",
    "trial",
    "trial_begin",
    "trial_end",
];

#[test]
fn studies_and_every_line_of_their_records_match_their_schemas() {
    let subject = subject(&[]);
    let report = "echo '{\"schema\":\"lowtide.load/1\",\"rounds\":[{\"round\":1,\"failed\":0,\"succeeded\":1}]}'";
    let ran = study(&[
        "-a",
        "glibc,jemalloc",
        "-t",
        "glibc/arena_max",
        "--repeat",
        "2",
        "--rounds",
        "2",
        "--pause",
        "100ms",
        "--settle",
        "300ms",
        "--interval",
        "50ms",
        "--ready",
        "after:50ms",
        "--phase",
        "up=log:^up",
        "--load",
        report,
        "--",
        &subject,
        "fork:2",
        "say:up",
        "fill:4",
        "ms:600000",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr());
    hold_study(&ran.json());
    let record = validator("lowtide.record.1.json");
    let mut kinds: Vec<String> = Vec::new();
    let mut heaps = 0;
    let trials = std::fs::read_dir(ran.record.join("trials")).unwrap().flatten().map(|e| e.path());
    let files = trials.filter(|p| p.extension().is_some_and(|x| x == "jsonl"));
    for file in files.chain([ran.record.join("study.jsonl")]) {
        for line in lines(&file) {
            hold(&record, &line);
            kinds.push(line["kind"].as_str().unwrap().to_owned());
            heaps += u32::from(line["heap"].is_object());
        }
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, KINDS);
    assert!(heaps > 0, "no ledger has a heap");
}

#[test]
fn a_failed_study_matches_its_schema() {
    let ran = study(&["-a", "glibc,jemalloc", "--repeat", "1", "--", &subject(&[]), "exit:3"]);
    assert_eq!(ran.code(), Some(1));
    hold_study(&ran.json());
    let record = validator("lowtide.record.1.json");
    for line in lines(&ran.record.join("study.jsonl")) {
        hold(&record, &line);
    }
}

#[test]
fn errors_match_their_schema() {
    let validator = validator("lowtide.error.1.json");
    for arguments in [
        vec!["study"],
        vec!["study", "-a", "x", "--", "true"],
        vec!["report", "/nothing"],
        vec!["fly"],
    ] {
        let output = lowtide().arg("--json").args(&arguments).output().unwrap();
        hold(&validator, &serde_json::from_slice(&output.stdout).unwrap());
    }
}

#[test]
fn the_demo_succeeds_and_its_load_report_matches_its_schema() {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("demo");
    let output = lowtide()
        .args(["--json", "demo", "--streams", "200", "--repeat", "1", "-o"])
        .arg(&record)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let study: Value = serde_json::from_slice(&output.stdout).unwrap();
    hold(&validator("lowtide.study.1.json"), &study);
    for trial in study["trials"].as_array().unwrap() {
        assert_eq!(trial["allocator_active"], true, "{trial}");
        assert_eq!(trial["rounds"][0]["load"]["succeeded"], 200);
        assert_eq!(trial["rounds"][0]["load"]["peak_in_flight"], 200);
    }
    let load = record.join("trials").read_dir().unwrap().flatten().map(|e| e.path());
    let load = load.into_iter().find(|p| p.to_string_lossy().ends_with(".load-1.out")).unwrap();
    hold(
        &validator("lowtide.load.1.json"),
        &serde_json::from_slice(&std::fs::read(load).unwrap()).unwrap(),
    );
}

#[test]
fn inspections_match_their_schema() {
    use crate::inspect::{Subject, plain};
    let validator = validator("lowtide.inspect.1.json");
    hold(&validator, &Subject::of(&["threads:3:5", "small:5:100", "keep:2"]).inspect());
    hold(&validator, &Subject::of(&["leak:100"]).inspect_with(&["--watch", "1s", "--arenas"]));
    let jemalloc = lowtide_allocators::bundled().find(|b| b.name() == "jemalloc").unwrap();
    let program = crate::support::fixture("memory", &["-pthread"]);
    let mut command = plain(&program);
    command.env("LD_PRELOAD", jemalloc.unpack().unwrap()).arg("blocks:20");
    hold(&validator, &Subject::start(&mut command).inspect());
    let output = lowtide().args(["--json", "inspect", "0"]).output().unwrap();
    let error = serde_json::from_slice(&output.stdout).unwrap();
    hold(&self::validator("lowtide.error.1.json"), &error);
}

/// Returns a fabricated release with all optional fields set.
fn made_up_release(outcome: ReleaseOutcome) -> Release {
    Release {
        outcome,
        allocator: Some("glibc".to_owned()),
        allocator_version: Some("2.36".to_owned()),
        runs_in: Some(RunsIn::OwnThread),
        thread: Some(1),
        waiting_in: Some("epoll_wait".to_owned()),
        predicted_bytes: 2,
        returned_bytes: 1,
        rss_before_bytes: 3,
        rss_after_bytes: 2,
        elapsed_s: 0.5,
        cpu_s: 0.1,
        pauses: 1,
        longest_pause_s: 0.001,
        median_pause_s: 0.001,
        pause_bound_s: 0.001,
        lock_holds: 1,
        longest_lock_s: 0.001,
        p99_lock_s: 0.001,
        passes: 1,
        regained: Some(Regained { after_s: 60.0, rss_bytes: 1, huge_bytes: Some(0) }),
        notes: vec!["a note".to_owned()],
        ..Release::of(1, 1, vec!["x".to_owned()])
    }
}

/// Returns a fabricated refused release with almost no optional fields.
fn refused_release(hazard: Hazard) -> Release {
    Release {
        reason: Some("for a reason".to_owned()),
        hazard: Some(hazard),
        allocator: None,
        allocator_version: None,
        runs_in: None,
        thread: None,
        waiting_in: None,
        returned_bytes: 0,
        regained: None,
        notes: Vec::new(),
        ..made_up_release(ReleaseOutcome::Refused)
    }
}

#[test]
fn releases_of_every_outcome_match_their_schema() {
    let unseen = Regained { after_s: 1.0, rss_bytes: 0, huge_bytes: None };
    let done = made_up_release(ReleaseOutcome::Released);
    let releases = [
        done.clone(),
        Release { regained: Some(unseen), runs_in: Some(RunsIn::Slices), ..done.clone() },
        Release { method: Method::Trim, regained: None, ..done.clone() },
        Release { method: Method::Purge, ..done.clone() },
        Release { dry_run: true, returned_bytes: 0, regained: None, ..done },
        Release { returned_bytes: 0, ..made_up_release(ReleaseOutcome::NothingToRelease) },
        Release { reason: Some("so".to_owned()), ..made_up_release(ReleaseOutcome::Partial) },
        Release { dry_run: true, ..refused_release(Hazard::Traced) },
    ];
    for release in releases {
        hold_release(&serde_json::to_value(release).unwrap());
    }
    let validator = validator("lowtide.release.1.json");
    let unsound = [
        Release { reason: None, ..refused_release(Hazard::Traced) },
        Release { returned_bytes: 1, ..refused_release(Hazard::Traced) },
        Release { hazard: None, ..refused_release(Hazard::Traced) },
        made_up_release(ReleaseOutcome::Partial),
        Release { dry_run: true, ..made_up_release(ReleaseOutcome::Released) },
    ];
    for release in unsound {
        assert!(!validator.is_valid(&serde_json::to_value(&release).unwrap()), "{release:?}");
    }
    let mut unknown = serde_json::to_value(refused_release(Hazard::Traced)).unwrap();
    unknown["hazard"] = "no_such_hazard".into();
    assert!(!validator.is_valid(&unknown), "{unknown}");
}

#[test]
fn every_hazard_is_in_the_schema() {
    let text = String::new;
    let refusals = [
        Refusal::Held { path: text(), reason: None },
        Refusal::Traced { tracer: 1 },
        Refusal::AnotherRelease,
        Refusal::Stopped { pid: 1 },
        Refusal::Frozen,
        Refusal::Machine,
        Refusal::Allocator { name: text() },
        Refusal::NoHeap,
        Refusal::Sanitizer { name: "" },
        Refusal::NotChosen { name: text() },
        Refusal::LeftAlone { name: text() },
        Refusal::Unguarded { name: text(), why: "" },
        Refusal::Locks { name: text(), c_library: text() },
        Refusal::Untested { name: text(), version: text(), tested: text() },
        Refusal::HeapNotWhole { what: text() },
        Refusal::Seccomp { call: "" },
        Refusal::SeccompUnread { why: text() },
        Refusal::SeccompUntried { why: text() },
        Refusal::ShadowStack,
        Refusal::WriteExecuteDenied,
        Refusal::Locked { bytes: 1 },
        Refusal::Pinned { bytes: 1 },
        Refusal::Hugetlb { bytes: 1 },
        Refusal::SharedMemory { other: 1 },
        Refusal::NoThread { threads: 1, why: text() },
        Refusal::LockTaken { locked: 1, attempts: 1 },
        Refusal::Gadget { what: "" },
        Refusal::NoPurge { why: "" },
        Refusal::NoTrim,
        Refusal::NotForTrim { name: text() },
        Refusal::NoCollection { why: text(), may_pass: false },
    ];
    for refusal in refusals {
        hold_release(&serde_json::to_value(refused_release(refusal.hazard())).unwrap());
    }
}

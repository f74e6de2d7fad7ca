//! What is printed and recorded, held against the schemas that ship with lowtide.

use std::path::Path;

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

/// Holds every line of a record's file against the schema.
pub(crate) fn hold_record(lines: &[Value]) {
    let record = validator("lowtide.record.1.json");
    for line in lines {
        hold(&record, line);
    }
}

#[test]
fn studies_and_every_line_of_their_records_hold_to_their_schemas() {
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
    hold(&validator("lowtide.study.1.json"), &ran.json());
    let record = validator("lowtide.record.1.json");
    let mut kinds: Vec<String> = Vec::new();
    let trials = std::fs::read_dir(ran.record.join("trials")).unwrap().flatten().map(|e| e.path());
    let files = trials.filter(|p| p.extension().is_some_and(|x| x == "jsonl"));
    for file in files.chain([ran.record.join("study.jsonl")]) {
        for line in lines(&file) {
            hold(&record, &line);
            kinds.push(line["kind"].as_str().unwrap().to_owned());
        }
    }
    kinds.sort();
    kinds.dedup();
    let all = [
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
    assert_eq!(kinds, all);
}

#[test]
fn a_study_that_failed_holds_to_its_schema_too() {
    let ran = study(&["-a", "glibc,jemalloc", "--repeat", "1", "--", &subject(&[]), "exit:3"]);
    assert_eq!(ran.code(), Some(1));
    hold(&validator("lowtide.study.1.json"), &ran.json());
    let record = validator("lowtide.record.1.json");
    for line in lines(&ran.record.join("study.jsonl")) {
        hold(&record, &line);
    }
}

#[test]
fn errors_hold_to_their_schema() {
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
fn the_demos_load_holds_to_its_schema_and_the_demo_ends_well() {
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
fn what_inspect_finds_holds_to_its_schema() {
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

//! Two versions of a command: `study --against`, and the files that run it for each change.

use std::path::Path;
use std::process::Command;

use crate::schemas::{hold_record, hold_study};
use crate::support::{lines, lowtide, study, subject};

#[test]
fn two_versions_are_compared_within_each_repeat() {
    let subject = subject(&[]);
    let old = format!("'{subject}' fill:20 pin ms:900");
    let ran = study(&[
        "--against",
        &old,
        "--repeat",
        "1",
        "--fail-on",
        "worse",
        "--",
        &subject,
        "fill:30",
        "pin",
        "ms:900",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr());
    let found = ran.json();
    hold_study(&found);
    hold_record(&lines(&ran.record.join("study.jsonl")));
    let comparison = &found["comparison"];
    assert_eq!(comparison["against"][1], "fill:20");
    // One repeat decides nothing, and so raises no alarm.
    assert_eq!(comparison["verdict"], "not_resolved", "{comparison:#}");
    assert!(comparison["repeats_needed"].as_u64().unwrap() >= 9, "{comparison:#}");
    let labels: Vec<&str> = found["treatments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["treatment"]["tune"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["base", "head"]);
    assert!(ran.stderr().contains("--fail-on worse was not checked: it needs 10 repeats"));
    let report = lowtide().arg("report").arg(&ran.record).arg("--markdown").output().unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let (first, _) = text.split_once("<details>").unwrap();
    assert!(first.contains("**Not resolved: ") && first.contains("| peak memory |"), "{text}");
    assert!(first.lines().count() < 25, "it is one screen: {first}");
}

#[test]
fn a_version_that_fails_is_an_error_and_no_verdict() {
    let ran = study(&["--against", "false", "--repeat", "1", "--", "true"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.stderr());
    assert!(ran.stderr().contains("own/base, repeat 1: "), "{}", ran.stderr());
    assert_eq!(ran.json()["comparison"]["verdict"], "not_resolved");
}

#[test]
fn equal_commands_are_noted_and_bad_combinations_are_usage_errors() {
    let ran = study(&["--against", "true", "--repeat", "1", "--", "true"]);
    assert!(ran.stderr().contains("both versions are the same command"), "{}", ran.stderr());
    for (words, sentence) in [
        (vec!["--against", "true", "-t", "glibc/arena_max"], "cannot be combined with -t"),
        (vec!["--against", "true", "-a", "glibc,jemalloc"], "-a has several: name one"),
        (vec!["--against", "a 'b"], "a quote is not closed"),
        (vec!["--against", "no-such-command"], "there is no command `no-such-command`"),
        (vec!["--against", "true", "--fail-on", "difference<5%"], "write `difference>5%`"),
        (vec!["--against", "true", "--repeat", "2", "--shard", "1/4"], "increase --repeat"),
        (vec!["--fail-on", "worse"], "name the other one with --against"),
    ] {
        let ran = study(&[words.as_slice(), &["--", "true"]].concat());
        assert_eq!(ran.code(), Some(2), "{words:?}: {}", ran.stdout());
        assert!(ran.stdout().contains(sentence), "{words:?}: {}", ran.stdout());
    }
}

#[test]
#[ignore = "needs PyYAML, in the Python beside LOWTIDE_TEST_KUBERNETES_VALIDATE"]
fn the_action_and_the_job_for_gitlab_run_and_comment_once() {
    let python = std::env::var_os("LOWTIDE_TEST_KUBERNETES_VALIDATE").map_or_else(
        || "python3".into(),
        |program| Path::new(&program).with_file_name("python3").into_os_string(),
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = Command::new(python)
        .arg(root.join("packaging/gate/check.py"))
        .arg(env!("CARGO_BIN_EXE_lowtide"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

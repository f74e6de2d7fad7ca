//! Reports in every format, thresholds, and comparisons.

use std::fs;

use serde_json::Value;

use crate::support::{lowtide, study, subject};

#[test]
fn a_record_is_drawn_in_every_format() {
    let ran = study(&[
        "-a",
        "glibc,jemalloc",
        "--repeat",
        "2",
        "--interval",
        "50ms",
        "--",
        &subject(&[]),
        "fill:8",
        "ms:1500",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr());
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name);
    let output = lowtide()
        .arg("report")
        .arg(&ran.record)
        .arg("--html")
        .arg(file("r.html"))
        .arg("--svg")
        .arg(file("r.svg"))
        .arg("--png")
        .arg(file("r.png"))
        .arg("--markdown")
        .arg(file("r.md"))
        .arg("--csv")
        .arg(file("r.csv"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |name: &str| fs::read_to_string(file(name)).unwrap();
    let page = read("r.html");
    for outside in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
    assert!(page.contains("jemalloc") && page.contains("How to read the numbers"));
    assert!(read("r.svg").starts_with("<svg "));
    assert!(fs::read(file("r.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(read("r.md").contains("| treatment | baseline | peak | settled |"));
    let csv = read("r.csv");
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().count() > 20 && csv.lines().all(|l| l.split(',').count() == columns));
    let terminal = lowtide().arg("report").arg(&ran.record).output().unwrap();
    let text = String::from_utf8_lossy(&terminal.stdout);
    assert!(text.contains("RSS over time since the start") && text.contains("glibc 2."), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours where none are wanted");
}

#[test]
fn tables_go_to_stdout_if_no_file_is_named() {
    let ran = study(&["-a", "glibc", "--repeat", "1", "--", &subject(&[]), "ms:1000"]);
    let output = lowtide().arg("report").arg(&ran.record).arg("--csv").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("record,trial,treatment,"));
    let output = lowtide().arg("report").arg(&ran.record).arg("--markdown").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("### lowtide: subject"));
}

#[test]
fn several_records_are_combined_in_one_report() {
    let one =
        study(&["-a", "glibc", "--name", "one", "--repeat", "1", "--", &subject(&[]), "ms:1000"]);
    let two =
        study(&["-a", "glibc", "--name", "two", "--repeat", "1", "--", &subject(&[]), "ms:1000"]);
    let output = lowtide().arg("report").args([&one.record, &two.record]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("glibc (one)") && text.contains("glibc (two)"), "{text}");
    let output =
        lowtide().args(["--json", "report"]).args([&one.record, &two.record]).output().unwrap();
    let names: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].clone())
        .collect();
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn a_crossed_threshold_or_growth_since_a_baseline_exits_with_99() {
    let subject = subject(&[]);
    let run = |mib: &str, more: &[&str]| {
        let mut words = vec!["-a", "glibc", "--repeat", "1"];
        words.extend(more);
        words.extend(["--", &subject, mib, "pin", "ms:1200"]);
        study(&words)
    };
    let small = run("fill:8", &["--fail-on", "settled_bytes>100MiB"]);
    assert_eq!(small.code(), Some(0), "{}", small.stderr());
    let crossed = run("fill:8", &["--fail-on", "settled_bytes>1MiB", "--fail-on", "wall_s>1h"]);
    assert_eq!(crossed.code(), Some(99));
    assert!(crossed.stderr().contains("crossed: glibc, repeat 1: settled_bytes>1MiB (it is "));
    let before = small.record.to_str().unwrap();
    assert_eq!(run("fill:8", &["--baseline", before]).code(), Some(0));
    let grown = run("fill:24", &["--baseline", before, "--tolerance", "50%"]);
    assert_eq!(grown.code(), Some(99));
    assert!(
        grown.stderr().contains("crossed: glibc: settled memory grew from"),
        "{}",
        grown.stderr()
    );
    assert_eq!(run("fill:24", &["--baseline", before, "--tolerance", "900%"]).code(), Some(0));
}

#[test]
fn on_github_a_crossed_threshold_is_an_annotation_and_the_table_a_summary() {
    let home = tempfile::tempdir().unwrap();
    let summary = home.path().join("summary.md");
    let output = lowtide()
        .env("GITHUB_ACTIONS", "true")
        .env("GITHUB_STEP_SUMMARY", &summary)
        .args([
            "study",
            "--json",
            "-a",
            "glibc",
            "--repeat",
            "1",
            "--fail-on",
            "settled_bytes>1",
            "-o",
        ])
        .arg(home.path().join("r"))
        .args(["--", &subject(&[]), "ms:1200"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(99));
    assert!(String::from_utf8_lossy(&output.stderr).contains("::error::lowtide: glibc, repeat 1:"));
    assert!(fs::read_to_string(summary).unwrap().contains("| treatment |"));
}

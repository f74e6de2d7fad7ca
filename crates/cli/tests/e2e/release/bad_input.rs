//! Requests that cannot be carried out: lowtide prints a sentence, and exits with the right code.

use std::process::{Child, Command};

use serde_json::Value;

use super::stderr;
use crate::inspect::{failure_of, nobody};
use crate::support::{lowtide, until};

/// Runs a release that must fail. Returns the error message.
fn failure(flags: &[&str], exit: i32, code: &str) -> String {
    failure_of("release", flags, exit, code)
}

/// Starts a process that ends and is not reaped.
fn zombie() -> Child {
    let child = Command::new("true").spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    until("the end", || {
        std::fs::read_to_string(&status).unwrap().contains("State:\tZ").then_some(())
    });
    child
}

#[test]
fn an_unknown_or_invalid_pid_is_reported() {
    for pid in [&nobody(), "0", "4294967295"] {
        let said = failure(&[pid], 4, "gone");
        assert!(said.starts_with(&format!("there is no process {pid}")), "{said}");
    }
    for word in ["-1", "abc", "", "99999999999999999999"] {
        failure(&[word], 2, "usage");
    }
    failure(&[], 2, "usage");
}

#[test]
fn a_kernel_thread_or_a_zombie_is_an_error() {
    // Kernel threads are not visible in a separate PID namespace.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let said = failure(&["2"], 2, "usage");
        assert!(said.contains("a kernel thread"), "{said}");
    }
    let mut child = zombie();
    let said = failure(&[&child.id().to_string()], 4, "gone");
    assert!(said.contains("a zombie"), "{said}");
    child.wait().unwrap();
}

#[test]
fn an_out_of_range_pause_is_an_error_with_the_range() {
    for pause in ["0", "99us", "2s", "10m"] {
        let said = failure(&["--max-pause", pause, "1"], 2, "usage");
        assert!(said.starts_with(&format!("--max-pause: {pause} is out of range")), "{said}");
        assert!(said.ends_with("use 100 µs to 1.00 s"), "{said}");
    }
    for pause in ["-1ms", "soon", "5", "", "99999999999999999999h"] {
        failure(&[&format!("--max-pause={pause}"), "1"], 2, "usage");
    }
}

#[test]
fn an_unknown_method_is_an_error_with_the_known_methods() {
    let said = failure(&["--method", "magic", "1"], 2, "usage");
    assert!(said.contains("magic"), "{said}");
    let output = lowtide().args(["release", "--method", "magic", "1"]).output().unwrap();
    for method in ["auto", "chunks", "trim"] {
        assert!(stderr(&output).contains(method), "{}", stderr(&output));
    }
}

#[test]
fn a_purge_with_an_unbounded_pause_requires_a_flag() {
    let said = failure(&["--method", "purge", "1"], 2, "usage");
    assert!(said.contains("--unbounded permits that"), "{said}");
}

#[test]
fn a_watch_that_is_too_short_or_of_a_dry_run_is_an_error() {
    let said = failure(&["--watch", "10ms", "1"], 2, "usage");
    assert!(said.contains("use at least 1.00 s"), "{said}");
    for time in ["0s", "-5s", "soon", "60"] {
        failure(&[&format!("--watch={time}"), "1"], 2, "usage");
    }
    let said = failure(&["--watch", "5s", "--dry-run", "1"], 2, "usage");
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn each_of_several_missing_processes_is_reported() {
    let mut child = zombie();
    let pids = [nobody(), child.id().to_string()];
    let output = lowtide().args(["--json", "release"]).args(&pids).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    for (line, pid) in lines.iter().zip(&pids) {
        assert_eq!((&line["schema"], &line["code"]), (&"lowtide.error/1".into(), &"gone".into()));
        assert!(line["message"].as_str().unwrap().contains(pid), "{line}");
    }
    // A process that is given twice is handled once.
    let output = lowtide().args(["release", &pids[1], &pids[1]]).output().unwrap();
    assert_eq!(stderr(&output).matches("a zombie").count(), 1, "{}", stderr(&output));
    child.wait().unwrap();
}

#[test]
fn a_warning_is_printed_before_a_trim() {
    let warned = |flags: &[&str]| {
        let output = lowtide().arg("release").args(flags).arg(nobody()).output().unwrap();
        stderr(&output).starts_with("lowtide: malloc_trim holds each arena's lock")
    };
    assert!(warned(&["--method", "trim"]));
    assert!(!warned(&["--method", "trim", "--dry-run"]));
    assert!(!warned(&[]));
}

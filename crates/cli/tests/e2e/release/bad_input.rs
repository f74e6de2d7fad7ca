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
fn who_is_nobody_is_told_so() {
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
fn a_thread_of_the_kernel_has_nothing_to_release_and_a_zombie_no_memory_any_more() {
    // Kernel threads are not visible in a separate PID namespace.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let said = failure(&["2"], 2, "usage");
        assert!(said.contains("a thread of the kernel"), "{said}");
    }
    let mut child = zombie();
    let said = failure(&[&child.id().to_string()], 4, "gone");
    assert!(said.contains("a zombie"), "{said}");
    child.wait().unwrap();
}

#[test]
fn a_pause_that_is_out_of_range_is_refused_with_the_range() {
    for pause in ["0", "99us", "2s", "10m"] {
        let said = failure(&["--max-pause", pause, "1"], 2, "usage");
        assert!(said.starts_with(&format!("--max-pause: {pause} is out of range")), "{said}");
        assert!(said.ends_with("give it from 100 µs to 1.00 s"), "{said}");
    }
    for pause in ["-1ms", "soon", "5", "", "99999999999999999999h"] {
        failure(&[&format!("--max-pause={pause}"), "1"], 2, "usage");
    }
}

#[test]
fn a_method_that_there_is_not_is_told_with_those_that_there_are() {
    let said = failure(&["--method", "magic", "1"], 2, "usage");
    assert!(said.contains("magic"), "{said}");
    let output = lowtide().args(["release", "--method", "magic", "1"]).output().unwrap();
    for method in ["auto", "chunks", "trim"] {
        assert!(stderr(&output).contains(method), "{}", stderr(&output));
    }
}

#[test]
fn a_purge_whose_pause_has_no_bound_takes_a_word_for_it() {
    let said = failure(&["--method", "purge", "1"], 2, "usage");
    assert!(said.contains("--unbounded permits that"), "{said}");
}

#[test]
fn a_watch_that_is_too_short_or_of_a_dry_run_is_told_so() {
    let said = failure(&["--watch", "10ms", "1"], 2, "usage");
    assert!(said.contains("give it at least 1.00 s"), "{said}");
    for time in ["0s", "-5s", "soon", "60"] {
        failure(&[&format!("--watch={time}"), "1"], 2, "usage");
    }
    let said = failure(&["--watch", "5s", "--dry-run", "1"], 2, "usage");
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn of_several_processes_each_is_told() {
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
fn a_trim_is_warned_of_before_it_is_done() {
    let warned = |flags: &[&str]| {
        let output = lowtide().arg("release").args(flags).arg(nobody()).output().unwrap();
        stderr(&output).starts_with("lowtide: malloc_trim holds each arena's lock")
    };
    assert!(warned(&["--method", "trim"]));
    assert!(!warned(&["--method", "trim", "--dry-run"]));
    assert!(!warned(&[]));
}

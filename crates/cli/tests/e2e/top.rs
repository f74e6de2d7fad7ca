//! `lowtide top`, on processes that the tests start.

use std::path::Path;
use std::process::Command;

use lowtide_testing::Running;
use serde_json::Value;

use crate::inspect::{Subject, failure_of, object};
use crate::schemas::hold_top;
use crate::support::{copy_program, lowtide, processes_with, unique_seconds, until};
use crate::terminal::{Keys, Terminal};

/// A copy of `sleep` with a unique name.
pub(crate) struct Named {
    pub(crate) child: Running,
    pub(crate) name: String,
    _home: tempfile::TempDir,
}

impl Named {
    /// Starts a copy. The name must not exceed the 15 bytes that the kernel keeps.
    pub(crate) fn start(name: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join(name);
        let sleep = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|p| Path::new(p).exists());
        copy_program(sleep.unwrap(), &program);
        let child = Command::new(&program).arg(unique_seconds()).spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        until("the program", || {
            std::fs::read(&comm)
                .is_ok_and(|found| found == format!("{name}\n").into_bytes())
                .then_some(())
        });
        Self { child: child.into(), name: name.to_owned(), _home: home }
    }
}

fn top(words: &[&str]) -> Value {
    let output = lowtide().args(["--json", "top", "--once"]).args(words).output().unwrap();
    let found = object(&output);
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    hold_top(&found);
    found
}

#[test]
fn all_processes_are_listed() {
    let named = Named::start(&format!("tp{}", std::process::id()));
    let found = top(&["--sort", "rss"]);
    let processes = found["processes"].as_array().unwrap();
    let own = processes.iter().find(|process| process["pid"] == named.child.id()).unwrap();
    assert_eq!(own["comm"], named.name.as_str(), "{own:#}");
    assert!(own["exe"].as_str().unwrap().ends_with(&named.name), "{own:#}");
    let rss: Vec<u64> = processes.iter().map(|p| p["rss_bytes"].as_u64().unwrap()).collect();
    assert!(rss.is_sorted_by(|one, next| one >= next), "{rss:?}");
    assert_eq!(found["groups"], Value::Array(Vec::new()));
}

#[test]
#[ignore = "needs root, to run as another user"]
fn unreadable_processes_are_counted() {
    let named = Named::start(&format!("tu{}", std::process::id()));
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(lowtide().get_program())
        .args(["--json", "top", "--once", "--comm", &named.name])
        .output()
        .expect("setpriv (util-linux)");
    let found = object(&output);
    hold_top(&found);
    assert_eq!((output.status.code(), &found["unreadable"]), (Some(0), &1.into()), "{found:#}");
}

#[test]
fn selected_processes_are_read_and_grouped() {
    let name = format!("tg{}", std::process::id());
    let (_one, _two) = (Named::start(&name), Named::start(&name));
    let found = top(&["--comm", &name, "--by", "comm"]);
    let processes = found["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2, "{found:#}");
    for process in processes {
        let is_read = process["allocated_bytes"].is_u64() && process["verdict"].is_string();
        assert!(is_read, "{process:#}");
    }
    assert_eq!(found["groups"][0]["name"], name.as_str(), "{found:#}");
    assert_eq!(found["groups"][0]["processes"], 2, "{found:#}");
    let words = ["top", "--once", "--comm", &name, "--by", "exe"];
    let text = String::from_utf8(lowtide().args(words).output().unwrap().stdout).unwrap();
    assert!(text.contains("2 processes: RSS ") && text.contains(&name), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
}

#[test]
fn a_process_whose_first_thread_has_ended_is_listed_and_read() {
    let mut subject = Subject::of(&["blocks:10"]);
    subject.say("end-thread");
    assert_eq!(subject.line(), "ready");
    until("the end of its first thread", || {
        let stat = subject.proc("stat");
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z ")).then_some(())
    });
    let comm = subject.proc("comm");
    let found = top(&["--comm", comm.trim()]);
    let mut processes = found["processes"].as_array().into_iter().flatten();
    let process = processes.find(|process| process["pid"] == subject.pid()).unwrap();
    assert!(process["rss_bytes"].as_u64() > Some(10 << 20), "{found:#}");
    assert!(process["allocated_bytes"].as_u64() > Some(10 << 20), "{found:#}");
}

#[test]
fn a_selector_without_matches_and_invalid_flags_are_reported() {
    let said = failure_of("top", &["--once", "--comm", "no-such-name"], 4, "gone");
    assert!(said.contains("no process matches --comm no-such-name"), "{said}");
    for flags in [["--sort", "size"], ["--by", "user"], ["--interval", "1ms"], ["--cgroup", "x"]] {
        failure_of("top", &flags, 2, "usage");
    }
    failure_of("top", &["--all", "--comm", "x"], 2, "usage");
}

#[test]
fn the_live_view_opens_the_watch_of_a_process_and_returns() {
    let named = Named::start(&format!("tl{}", std::process::id()));
    let words = ["--comm", &named.name, "--interval", "200ms"];
    let mut terminal = Terminal::start("top", &words, Keys::Read);
    terminal.shows("files");
    terminal.press("r");
    terminal.shows("[y/N]");
    terminal.press("n");
    terminal.press("\r");
    terminal.shows("peak");
    terminal.press("q");
    terminal.shows("q quit · s order");
    terminal.press("q");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn processes_that_start_and_end_during_a_scan_cause_no_error() {
    let marker = unique_seconds();
    let script = format!("for i in $(seq 3000); do /bin/true; done; exec sleep {marker}");
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let mut rounds = 0;
    while processes_with(&format!("sleep {marker}")).is_empty() || rounds < 2 {
        top(&[]);
        rounds += 1;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for pid in processes_with(&format!("sleep {marker}")) {
        let pid = nix::unistd::Pid::from_raw(pid as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

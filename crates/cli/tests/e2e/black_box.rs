//! `lowtide attach --black-box`, `lowtide run --black-box`, and `lowtide report DIR`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::inspect::{Subject, plain};
use crate::schemas::hold_black_box;
use crate::supervision::{Attached, MIB, pid_of};
use crate::support::{lowtide, until};

fn report(path: &Path, flags: &[&str]) -> Output {
    lowtide().arg("report").arg(path).args(flags).output().unwrap()
}

/// Returns what the report of a directory shows.
fn shown(directory: &Path) -> Value {
    let output = report(directory, &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    hold_black_box(&found);
    found
}

/// Starts to record a process, and waits until it was inspected.
fn recorded(pid: u32, directory: &Path, flags: &[&str]) -> Attached {
    let path = directory.display().to_string();
    let pid = pid.to_string();
    let attached = Attached::start(&[&["--black-box", &path, &pid], flags].concat());
    until("a ledger", || {
        let is_ready = directory.exists() && !files(directory).is_empty();
        // Before the first frame, the file is not that of a black box.
        let output = is_ready.then(|| report(directory, &["--json"]))?;
        let found: Value = serde_json::from_slice(&output.stdout).ok()?;
        found["ledger"].is_array().then_some(())
    });
    attached
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "box")).collect()
}

#[test]
fn a_crash_is_shown_with_the_memory_by_owner_before_it() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("box");
    let mut subject = Subject::of(&["blocks:40"]);
    let mut attached = recorded(subject.pid(), &directory, &["-p", "none"]);
    kill_process(pid_of(subject.pid()), Signal::SEGV).unwrap();
    let _ = subject.child().wait();
    assert_eq!(attached.wait().status.code(), Some(0));
    let found = shown(&directory);
    assert_eq!(found["cause"], "signal", "{found:#}");
    // Before Linux 6.15, the parent may reap it before its exit status is read.
    assert!(found["signal"] == 11 || found["signal"].is_null(), "{found:#}");
    assert_eq!(found["pid"], subject.pid());
    assert!(found["ledger"][0]["bytes"].as_u64().unwrap() > 0, "{found:#}");
    let output = report(&directory, &[]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("ended it") && page.contains("memory by owner"), "{page}");
    let html = home.path().join("page.html");
    let output = report(&directory, &["--html", &html.display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read_to_string(html).unwrap().contains("memory by owner"));
}

#[test]
fn a_killed_recorder_leaves_a_readable_record_and_the_next_one_keeps_it() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("box");
    let subject = Subject::of(&["blocks:40"]);
    let attached = recorded(subject.pid(), &directory, &["-p", "none"]);
    let output = lowtide()
        .args(["attach", "-p", "none", &subject.pid().to_string(), "--black-box"])
        .arg(&directory)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("another lowtide records in"), "{said}");
    // This kills it.
    drop(attached);
    let found = shown(&directory);
    assert_eq!(
        (&found["cause"], found["pid"].as_u64()),
        (&"peak".into(), Some(u64::from(subject.pid())))
    );
    assert!(found["peak"]["rss_bytes"].as_u64().unwrap() > 20 * MIB, "{found:#}");
    let mut attached = Attached::start(&[
        "-p",
        "none",
        &subject.pid().to_string(),
        "--black-box",
        &directory.display().to_string(),
    ]);
    until("a second record", || (files(&directory).len() == 2).then_some(()));
    assert_eq!(attached.interrupt().status.code(), Some(0));
    assert_eq!(shown(&directory)["other_records"].as_array().unwrap().len(), 1);
    for file in files(&directory) {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{}: {mode:o}", file.display());
    }
}

#[test]
fn run_records_its_command_and_passes_on_its_exit_status() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("box");
    let mut child = lowtide()
        .args(["run", "-p", "none", "--black-box"])
        .arg(&directory)
        .args(["--", "sh", "-c", "read x; exit 7"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    until("a record", || (directory.exists() && !files(&directory).is_empty()).then_some(()));
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let found = shown(&directory);
    assert_eq!(found["cause"], "exit", "{found:#}");
    assert!(found["exit_code"] == 7 || found["exit_code"].is_null(), "{found:#}");
}

#[test]
fn bad_directories_are_refused_with_a_sentence() {
    let home = tempfile::tempdir().unwrap();
    let shared = home.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let subject = Subject::of(&["blocks:1"]);
    for (path, expected) in [(&shared, "other users may write"), (&file, "is not a directory")] {
        let output = lowtide()
            .args(["attach", "-p", "none", &subject.pid().to_string(), "--black-box"])
            .arg(path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let damaged = home.path().join("x.box");
    fs::write(&damaged, "anything").unwrap();
    let output = report(&damaged, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is not a file of a black box"), "{said}");
}

#[test]
fn a_directory_without_a_record_is_explained() {
    let home = tempfile::tempdir().unwrap();
    let refused = || {
        let output = report(home.path(), &[]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let neither = refused();
    assert!(neither.contains("no study.jsonl and no .box file of a black box"), "{neither}");
    // Its recorder has not recorded a process yet.
    fs::write(home.path().join("lock"), "").unwrap();
    let unused = refused();
    assert!(unused.contains("the directory of a black box without a record"), "{unused}");
}

/// A memory cgroup with a limit, of version 1 or 2.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: u64) -> Self {
        let root = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let root = root.into_iter().find(|root| root.join("cgroup.procs").exists());
        let name = format!("lowtide-{name}-{}", std::process::id());
        let directory = root.expect("a memory cgroup hierarchy").join(name);
        fs::create_dir(&directory).unwrap();
        let files = ["memory.limit_in_bytes", "memory.max"].map(|file| directory.join(file));
        let file = files.iter().find(|file| file.exists()).unwrap();
        fs::write(file, limit.to_string()).unwrap();
        Self(directory)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("the group to be empty", || fs::remove_dir(&self.0).ok());
    }
}

#[test]
#[ignore = "needs root: it makes a memory cgroup"]
fn an_oom_kill_is_recognised_with_its_limit_and_the_owner_that_grew() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("box");
    let group = Group::new("oom", 96 * MIB);
    // It allocates 4 MiB each 50 ms, after a line on stdin.
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec python3 -u -c \"
import sys, time
print('ready')
sys.stdin.readline()
kept = []
while True:
    kept.append(bytearray(1 << 20))
    time.sleep(0.02)
\"",
        group.0.display()
    );
    let mut subject = Subject::start(plain("sh").args(["-c", &script]));
    let metrics = home.path().join("lowtide.prom");
    let flags = ["-p", "none", "--textfile", metrics.to_str().unwrap()];
    let mut attached = recorded(subject.pid(), &directory, &flags);
    subject.say("go");
    assert!(!subject.child().wait().unwrap().success());
    assert_eq!(attached.wait().status.code(), Some(0));
    let found = shown(&directory);
    assert_eq!(found["cause"], "oom_kill", "{found:#}");
    assert_eq!(found["limit_bytes"], 96 * MIB, "{found:#}");
    assert_eq!(found["dominant"]["owner"], "allocated", "{found:#}");
    assert_eq!(found["limit"]["is_own"], true);
    let metrics = fs::read_to_string(metrics).unwrap();
    let expected = "lowtide_oom_kills_total{program=\"python3\",owner=\"allocated\"} 1";
    assert!(metrics.contains(expected), "{metrics}");
}

//! Checks that a release has the outcome that its dry run predicts.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{release, stderr};
use crate::inspect::{Subject, inspect, object, predicted};
use crate::schemas::{hold_release, hold_whole};
use crate::support::{lowtide, until};

/// Returns exit code, outcome and hazard of a dry run and of a release of the same process.
fn both(pid: u32) -> [(Option<i32>, Value, Value); 2] {
    [&["--dry-run"][..], &[]].map(|flags| {
        let output = release(flags, pid);
        let found = object(&output);
        hold_release(&found);
        (output.status.code(), found["outcome"].clone(), found["hazard"].clone())
    })
}

#[test]
#[ignore = "needs root: only with CAP_SYS_ADMIN can filters be read"]
fn the_dry_run_detects_a_seccomp_filter_that_blocks_a_release() {
    let subject = Subject::of(&["blocks:30", "keep:10", "filter:0"]);
    let [dry, real] = both(subject.pid());
    assert_eq!(dry, (Some(5), "refused".into(), "seccomp".into()));
    assert_eq!(real, dry);
}

#[test]
#[ignore = "needs root: only with CAP_SYS_ADMIN can filters be read"]
fn the_dry_run_detects_a_seccomp_filter_that_permits_a_release() {
    let subject = Subject::of(&["blocks:30", "keep:10", "filter:1"]);
    let [dry, real] = both(subject.pid());
    assert_eq!(dry, (Some(0), "released".into(), Value::Null));
    assert_eq!(real, dry);
}

#[test]
fn a_process_with_an_unreadable_seccomp_filter_is_refused() {
    let subject = Subject::of(&["blocks:30", "keep:10", "filter:1"]);
    let without = "-sys_admin";
    let run = |verb: &[&str]| {
        let mut command = match rustix::process::geteuid().is_root() {
            false => lowtide(),
            true => {
                let mut command = Command::new("setpriv");
                let lost = ["bounding-set", "inh-caps"].map(|set| format!("--{set}={without}"));
                command.args(lost).arg(env!("CARGO_BIN_EXE_lowtide"));
                command
            }
        };
        let output = command.arg("--json").args(verb).arg(subject.pid().to_string()).output();
        output.expect("setpriv (Debian: util-linux)")
    };
    for verb in [&["release", "--dry-run"][..], &["release"]] {
        let output = run(verb);
        let found = object(&output);
        assert_eq!((output.status.code(), &found["hazard"]), (Some(5), &"seccomp_unread".into()));
    }
    let found = object(&run(&["inspect"]));
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
    let cures = found["cures"].as_array().unwrap();
    assert!(cures.iter().all(|cure| cure["cure"] != "release"), "{found:#}");
    assert!(found["notes"].to_string().contains("lowtide release would refuse it"), "{found:#}");
}

#[test]
#[ignore = "needs root and the freezer of control groups"]
fn a_frozen_process_is_refused_even_by_a_dry_run_and_released_once_it_thaws() {
    let subject = Subject::of(&["blocks:30", "keep:10"]);
    let group = Frozen::around(subject.pid());
    let [dry, real] = both(subject.pid());
    assert_eq!(dry, (Some(5), "refused".into(), "frozen".into()));
    assert_eq!(real, dry);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| release(&["--wait", "60s"], subject.pid()));
        group.thaw();
        waiting.join().unwrap()
    });
    assert_eq!(object(&waiting)["outcome"], "released", "{}", stderr(&waiting));
}

/// A frozen control group around one process.
struct Frozen(std::path::PathBuf);

impl Frozen {
    fn around(pid: u32) -> Self {
        let path = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"]
            .map(|root| std::path::Path::new(root).join(format!("lowtide-{pid}")))
            .into_iter()
            .find(|path| path.parent().unwrap().join("cgroup.procs").exists())
            .expect("control groups");
        std::fs::create_dir(&path).unwrap();
        let frozen = Self(path);
        std::fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).unwrap();
        frozen.set("FROZEN", "1");
        frozen
    }

    fn set(&self, v1: &str, v2: &str) {
        let old = self.0.join("freezer.state");
        match old.exists() {
            true => std::fs::write(old, v1).unwrap(),
            false => std::fs::write(self.0.join("cgroup.freeze"), v2).unwrap(),
        }
    }

    fn thaw(&self) {
        self.set("THAWED", "0");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        let root = self.0.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines()
        {
            let _ = std::fs::write(&root, pid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_temporary_refusal_is_retried_for_the_duration_of_the_wait() {
    let subject = Subject::of(&["blocks:30", "keep:10"]);
    let pid = rustix::process::Pid::from_raw(subject.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    until("its stop", || subject.proc("status").contains("State:\tT").then_some(()));
    let begin = Instant::now();
    let output = release(&["--wait", "1s"], subject.pid());
    let found = object(&output);
    assert_eq!((&found["hazard"], &found["may_pass"]), (&"stopped".into(), &true.into()));
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| release(&["--wait", "60s"], subject.pid()));
        kill_process(pid, Signal::CONT).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(object(&waiting)["outcome"], "released", "{}", stderr(&waiting));
}

#[test]
fn processes_selected_by_name_are_released_together_only_with_the_yes_flag() {
    let name = format!("lr{}", std::process::id());
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join(&name);
    crate::support::copy_program(crate::support::fixture("memory", &["-pthread"]), &program);
    let start = || {
        let program = program.display().to_string();
        Subject::start(crate::inspect::plain(&program).args(["blocks:30", "keep:10"]))
    };
    let subjects = [start(), start()];
    let run = |words: &[&str]| {
        lowtide().arg("--json").args(words).args(["--comm", &name]).output().unwrap()
    };
    let refused = run(&["release"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        String::from_utf8_lossy(&refused.stdout).contains("the release from 2 processes"),
        "{refused:?}"
    );
    let predicted: u64 = subjects.iter().map(|s| predicted(&s.inspect(), "release")).sum();
    let output = run(&["release", "--yes"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (whole, each) = lines.split_last().unwrap();
    each.iter().for_each(hold_release);
    hold_whole(whole);
    assert_eq!((each.len(), &whole["returned_bytes"]), (2, &predicted.into()), "{whole:#}");
    assert!(whole["pss_bytes"].as_u64() < whole["pss_before_bytes"].as_u64(), "{whole:#}");
    let by_exe = lowtide().args(["--json", "inspect", "--exe"]).arg(&program).output().unwrap();
    assert_eq!(String::from_utf8(by_exe.stdout).unwrap().lines().count(), 3);
    drop(subjects);
    let nobody = run(&["inspect"]);
    assert_eq!(nobody.status.code(), Some(4), "{nobody:?}");
    // A name in place of a PID.
    let output = inspect(&["x"], 1);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("pgrep -fa x searches in command lines"), "{said}");
}

//! Processes whose program is on a slow file system: a verb ends, and one such process does not
//! delay the others.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use lowtide_testing::Running;
use serde_json::Value;

use crate::exporter::Exporter;
use crate::inspect::{Subject, failure_of, object};
use crate::support::{fixture, lowtide, until};

/// A process whose program file a FUSE server holds.
struct Slow {
    subject: Subject,
    home: tempfile::TempDir,
}

impl Slow {
    /// Starts a process. Each further read of its program then takes `delay_ms`; 0: it never ends.
    fn start(delay_ms: &str) -> Self {
        Self::start_with(delay_ms, |_| ())
    }

    /// Starts one whose file system is in no list of mounts.
    fn start_detached(delay_ms: &str) -> Self {
        Self::start_with(delay_ms, |command| {
            command.env("DETACHED", "1");
        })
    }

    fn start_with(delay_ms: &str, change: impl FnOnce(&mut Command)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let [mount, slow] = ["mount", "slow"].map(|name| home.path().join(name));
        fs::create_dir(&mount).unwrap();
        let mut command = Command::new(fixture("slow_files", &[]));
        command.arg(&mount).arg(fixture("memory", &["-pthread"])).arg(delay_ms).arg(&slow);
        change(&mut command);
        let subject = Subject::start(command.args(["blocks:30", "keep:10"]));
        fs::write(&slow, "").unwrap();
        Self { subject, home }
    }

    fn pid(&self) -> u32 {
        self.subject.pid()
    }

    /// Ends the slowness.
    fn recover(&self) {
        fs::remove_file(self.home.path().join("slow")).unwrap();
    }
}

/// Returns the message of a verb that fails.
fn failure(words: &[&str], pid: u32) -> String {
    let pid = pid.to_string();
    let flags = [&words[1..], &[pid.as_str()]].concat();
    failure_of(words[0], &flags, 1, "failed")
}

#[test]
#[ignore = "needs root and FUSE"]
fn each_verb_ends_for_a_process_whose_files_are_read_slowly() {
    let slow = Slow::start("200");
    for words in [&["inspect"][..], &["release"], &["release", "--dry-run"]] {
        let message = failure(words, slow.pid());
        assert!(message.contains("takes too long"), "{words:?}: {message}");
    }
    failure(&["leaks", "--no-stacks", "--duration", "1s"], slow.pid());
    // On a busy machine, its time may not suffice for all processes.
    until("its row", || {
        let top = object(&lowtide().args(["top", "--once", "--json"]).output().unwrap());
        let row = row(&top, slow.pid());
        assert!(row["verdict"].is_null(), "{row:#}");
        (row["unread"] == "slow").then_some(())
    });
}

#[test]
#[ignore = "needs root and FUSE"]
fn lowtide_itself_ends_although_a_file_is_never_read() {
    each_verb_ends_beside(&Slow::start("0"));
}

#[test]
#[ignore = "needs root and FUSE"]
fn lowtide_itself_ends_although_a_file_of_a_detached_mount_is_never_read() {
    each_verb_ends_beside(&Slow::start_detached("0"));
}

fn each_verb_ends_beside(silent: &Slow) {
    let pid = silent.pid().to_string();
    for words in [
        &["inspect", &pid][..],
        &["release", &pid],
        &["leaks", "--no-stacks", "--duration", "1s", &pid],
        &["leaks", "--duration", "1s", &pid],
        &["top", "--once"],
    ] {
        let mut verb = lowtide();
        let mut verb =
            verb.args(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Not only its message: the kernel ends a process when all its threads have ended.
        let status = until("its end", || verb.try_wait().unwrap());
        let mut message = String::new();
        verb.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let is_top = words[0] == "top";
        assert_eq!(status.code(), Some(i32::from(!is_top)), "{words:?}: {message}");
        assert!(is_top || message.contains("does not respond"), "{words:?}: {message}");
    }
}

fn row(top: &Value, pid: u32) -> &Value {
    let rows = top["processes"].as_array().unwrap();
    rows.iter().find(|row| row["pid"] == pid).unwrap()
}

#[test]
#[ignore = "needs root and FUSE"]
fn a_longer_deadline_reads_a_slow_process_and_a_shorter_one_gives_up_sooner() {
    let slow = Slow::start("20");
    let mut inspect = lowtide();
    inspect.args(["inspect", "--json", "--deadline", "5m", &slow.pid().to_string()]);
    let found = object(&inspect.output().unwrap());
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
    let message = failure(&["inspect", "--deadline", "1ms"], slow.pid());
    assert!(message.contains("takes too long"), "{message}");
}

#[test]
#[ignore = "needs root and FUSE"]
fn a_slow_process_does_not_keep_the_exporter_from_the_others() {
    let slow = Slow::start("500");
    let _hoard = Subject::of(&["blocks:30", "keep:10"]);
    for words in [&[][..], &["--remote-files"]] {
        let exporter = Exporter::on_any_port(words);
        let is_hoard = |line: &str| {
            let is_its = line.starts_with("lowtide_resident_bytes{") && line.contains("/memory");
            is_its && line.contains("reclaimable") && !line.ends_with(" 0")
        };
        let is_slow = |line: &str| {
            let is_its = line.starts_with("lowtide_unreadable_processes{");
            is_its && line.contains("reason=\"slow\"") && !line.ends_with(" 0")
        };
        let is_asked_for = !words.is_empty();
        until("the hoard", || {
            let text = exporter.get("/metrics", "");
            let has_slow = text.lines().any(is_slow);
            assert!(is_asked_for || !has_slow, "{text}");
            (text.lines().any(is_hoard) && has_slow == is_asked_for).then_some(())
        });
    }
    slow.recover();
}

#[test]
#[ignore = "needs root and FUSE"]
fn a_slow_process_does_not_keep_attach_from_releasing_another() {
    let slow = Slow::start("500");
    let hoard = Subject::of(&["blocks:30", "keep:10"]);
    let log = slow.home.path().join("log");
    let mut attach = lowtide();
    attach.args(["attach", "-p", "periodic=1s", "--log"]).arg(&log);
    let mut attach =
        attach.args([slow.pid(), hoard.pid()].map(|pid| pid.to_string())).spawn().unwrap();
    until("the release of the other process", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["outcome"] == "released" && line["pid"] == hoard.pid())
    });
    assert!(Path::new(&format!("/proc/{}", slow.pid())).exists());
    attach.kill().unwrap();
    attach.wait().unwrap();
}

/// Returns the lines of a log about a process.
fn lines_about(log: &Path, pid: u32) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["pid"] == pid).collect()
}

#[test]
#[ignore = "needs root and FUSE"]
fn the_lock_of_the_host_is_free_while_a_slow_process_is_examined() {
    let slow = Slow::start("500");
    let log = slow.home.path().join("log");
    let mut attach = lowtide();
    attach.args(["attach", "-p", "periodic=1s", "--log"]).arg(&log);
    let mut attach = Running::from(attach.arg(slow.pid().to_string()).spawn().unwrap());
    let holder = format!(" {} ", attach.id());
    until("the end of the examination", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let own = locks.lines().find(|line| line.contains("FLOCK") && line.contains(&holder));
        let is_of_host = own.is_some_and(|line| line.contains(&inode_of("/run/lowtide.lock")));
        assert!(!is_of_host, "{own:?}");
        let lines = lines_about(&log, slow.pid());
        lines.iter().any(|line| line.to_string().contains("takes too long")).then_some(())
    });
    attach.kill().unwrap();
    attach.wait().unwrap();
}

/// Returns the end of the identity of a file, as `/proc/locks` shows it.
fn inode_of(path: &str) -> String {
    fs::metadata(path).map_or_else(|_| "no file".to_owned(), |found| format!(":{} ", found.ino()))
}

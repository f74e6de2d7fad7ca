//! Processes whose program is on a slow file system: a verb ends, and one such process does not
//! delay the others.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use lowtide_testing::Running;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::exporter::Exporter;
use crate::inspect::{Subject, failure_of, object, plain};
use crate::supervision::pid_of;
use crate::supervision::wild::children;
use crate::support::{NO_HOLD, fixture, lowtide, until};

/// A process whose program file a FUSE server holds.
struct Slow {
    subject: Subject,
    home: tempfile::TempDir,
}

impl Slow {
    /// Starts a process. Each further read of its program then takes `delay_ms`; 0: it never ends.
    fn start(delay_ms: &str) -> Self {
        Self::start_with(delay_ms, None)
    }

    /// Starts one whose program is never read, with the variable for its file system: `DETACHED`,
    /// which is in no list of mounts, or `OVERLAY`, above it.
    fn start_silent(variable: &str) -> Self {
        Self::start_with("0", Some(variable))
    }

    fn start_with(delay_ms: &str, variable: Option<&str>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let [mount, overlay, slow] =
            ["mount", "overlay", "slow"].map(|name| home.path().join(name));
        [&mount, &overlay].into_iter().for_each(|place| fs::create_dir(place).unwrap());
        let mut command = Command::new(fixture("slow_files", &[]));
        command.arg(&mount).arg(fixture("memory", &["-pthread"])).arg(delay_ms).arg(&slow);
        command.envs(variable.map(|name| (name, overlay)));
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

/// Checks that a slow process has the exit code 1, and a result without its memory.
fn is_outline(words: &[&str], pid: u32) {
    let output = lowtide().args(words).arg(pid.to_string()).output().unwrap();
    let (found, said) = (object(&output), String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        (output.status.code(), &found["unreadable"]),
        (Some(1), &"slow".into()),
        "{found:#}"
    );
    assert!(found["rss_bytes"].as_u64() > Some(0) && found["ledger"].is_array(), "{found:#}");
    assert!(said.contains("takes too long"), "{said}");
}

#[test]
#[ignore = "needs root and FUSE"]
fn each_verb_ends_for_a_process_whose_files_are_read_slowly() {
    let slow = Slow::start("200");
    is_outline(&["inspect", "--json"], slow.pid());
    for words in [&["release"][..], &["release", "--dry-run"]] {
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
    each_verb_ends_beside(&Slow::start_silent("DETACHED"));
}

#[test]
#[ignore = "needs root and FUSE"]
fn lowtide_itself_ends_although_a_file_in_an_overlay_above_fuse_is_never_read() {
    each_verb_ends_beside(&Slow::start_silent("OVERLAY"));
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
    is_outline(&["inspect", "--json", "--deadline", "1ms"], slow.pid());
    // The time is that of the verb: nothing is left for a second process.
    let other = Subject::of(&["blocks:30"]);
    let mut inspect = lowtide();
    inspect.args(["inspect", "--json", "--deadline", "300ms"]);
    let output =
        inspect.args([slow.pid(), other.pid()].map(|pid| pid.to_string())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failures = text.matches("takes too long").count();
    assert_eq!((output.status.code(), failures), (Some(1), 2), "{text}");
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
        lines_about(&log, hoard.pid()).into_iter().find(|line| line["outcome"] == "released")
    });
    assert!(Path::new(&format!("/proc/{}", slow.pid())).exists());
    attach.kill().unwrap();
    attach.wait().unwrap();
}

/// Returns the lines of a log.
fn log_lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
#[ignore = "needs root and FUSE: it makes a PID namespace"]
fn with_all_a_process_with_remote_files_does_not_keep_attach_from_the_others_or_from_its_end() {
    // With all processes of a namespace: it must not release those of other tests.
    let script = r#"home=$1 slow_files=$2 memory=$3 lowtide=$4; shift 4; cd "$home" && mkdir mount || exit
        sleep 1000 | "$slow_files" "$home/mount" "$memory" 0 "$home/slow" blocks:30 keep:10 &
        sleep 1000 | "$memory" blocks:60 keep:10 &
        until [ -e slow ]; do sleep 0.1; done
        exec "$lowtide" attach --all --min-rss 20M -p periodic=1s --log "$home/log" "$@""#;
    let (slow_files, memory) = (fixture("slow_files", &[]), fixture("memory", &["-pthread"]));
    for flags in [&[][..], &["--remote-files"]] {
        let home = tempfile::tempdir().unwrap();
        let mut unshare = plain("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, "sh"]);
        unshare.env("LOWTIDE_HOLD", NO_HOLD).arg(home.path()).args([
            &slow_files,
            &memory,
            env!("CARGO_BIN_EXE_lowtide"),
        ]);
        let mut namespace = Subject::start(unshare.args(flags));
        assert_eq!(namespace.line(), "ready");
        fs::write(home.path().join("slow"), "").unwrap();
        let log = home.path().join("log");
        until("releases of one, and the reason why the other is left alone", || {
            let lines = log_lines(&log);
            let is_released = |line: &Value| line["returned_bytes"].as_u64() > Some(20 << 20);
            let says = |line: &Value| line.to_string().contains("does not respond");
            // A file that is left unread is reported later: it is tried again first.
            let is_reported = flags.is_empty() || lines.iter().any(says);
            (lines.len() > 3 && lines.iter().any(is_released) && is_reported).then_some(())
        });
        let attach = children(namespace.pid())[0];
        kill_process(pid_of(attach), Signal::TERM).unwrap();
        let status = until("its end", || namespace.child().try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

/// Returns the lines of a log about a process.
fn lines_about(log: &Path, pid: u32) -> Vec<Value> {
    log_lines(log).into_iter().filter(|line| line["pid"] == pid).collect()
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

//! The target of a supervision under faults.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::ptrace;
use rustix::process::{Signal, kill_process};

use super::wild::{
    INTACT, children, has_stub, program, start, terminate, threads, until_released, until_stub,
};
use super::{Attached, MIB, acts, pid_of, rss, until_below};
use crate::inspect::Subject;
use crate::support::{NO_HOLD, compiled, fixture, lines, lowtide, until};

#[test]
fn a_target_that_forks_and_execs_constantly_is_intact_after_many_releases() {
    for words in [&["forks"][..], &["execs"], &["forks", "execs"]] {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("acts.jsonl");
        let mut target = start(words);
        let pid = target.pid().to_string();
        let path = log.display().to_string();
        let flags = [&pid, "--subprocesses", "-p", "periodic=100ms", "--max-pause", "1s"];
        let mut attached = Attached::start(&[&flags[..], &["--log", &path]].concat());
        until_released(&log, 3);
        assert_eq!(attached.interrupt().status.code(), Some(0));
        assert_eq!(terminate(target.child()), Some(INTACT), "{words:?}");
    }
}

#[test]
fn a_command_that_ends_during_a_release_exits_as_it_would_without_lowtide() {
    for _ in 0..5 {
        let mut command = lowtide();
        command.args(["run", "-p", "periodic=100ms", "--max-pause", "1s", "--"]);
        command.args([&program(), "ends:20", "forks"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(INTACT), "{output:?}");
        // Only the totals.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.lines().count() <= 1 && said.lines().all(|line| line.contains("release")),
            "{said}"
        );
    }
}

#[test]
fn an_attach_interrupted_or_killed_during_a_release_leaves_the_target_intact() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut target = start(&["mib:60"]);
    let pid = target.pid().to_string();
    let path = log.display().to_string();
    let arguments = [&pid, "-p", "periodic=100ms", "--max-pause", "1s", "--log", &path];
    for round in 0..6 {
        // The first release removes the leftovers of a killed one.
        let mut attached = Attached::start(&arguments);
        until_released(&log, 1);
        until_stub(target.pid());
        assert_eq!(attached.interrupt().status.code(), Some(0));
        assert!(!has_stub(target.pid()));
        assert_eq!(threads(target.pid()), 1);
        if round < 5 {
            let attached = Attached::start(&arguments);
            until_stub(target.pid());
            // It is killed.
            drop(attached);
        }
    }
    let all = acts(&log, "left_alone");
    assert!(all.is_empty(), "{all:#?}");
    assert_eq!(terminate(target.child()), Some(INTACT));
}

#[test]
fn a_policy_process_killed_during_a_release_restarts_and_the_command_is_intact() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut command = lowtide();
    command.args(["run", "-p", "periodic=100ms", "--max-pause", "1s", "--log"]).arg(&log);
    command.args(["--", &program(), "mib:60"]).stderr(Stdio::null());
    let mut reaper = Subject::start(&mut command);
    let service = children(reaper.pid())[0];
    let policy = || children(reaper.pid()).into_iter().find(|pid| *pid != service);
    let first = until("the policy", policy);
    until_stub(service);
    kill_process(pid_of(first), Signal::KILL).unwrap();
    let second = until("another policy", || policy().filter(|pid| *pid != first));
    until_released(&log, 2);
    kill_process(pid_of(second), Signal::TERM).unwrap();
    until("the policy has ended", || policy().is_none().then_some(()));
    assert!(!has_stub(service));
    assert_eq!(terminate(reaper.child()), Some(INTACT));
}

#[test]
fn a_command_survives_a_reaper_that_is_killed_during_a_release() {
    let mut command = lowtide();
    command.args(["run", "-p", "periodic=100ms", "--", &program(), "mib:60"]);
    let mut reaper = Subject::start(&mut command);
    let service = children(reaper.pid())[0];
    let policy = until("the policy", || children(reaper.pid()).get(1).copied());
    until_stub(service);
    kill_process(pid_of(reaper.pid()), Signal::KILL).unwrap();
    reaper.child().wait().unwrap();
    let has_ended = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
    };
    until("the policy has ended", || has_ended(policy).then_some(()));
    assert!(!has_ended(service) && !has_stub(service));
    kill_process(pid_of(service), Signal::TERM).unwrap();
    until("the command has ended", || has_ended(service).then_some(()));
}

#[test]
fn two_supervisors_of_a_process_take_turns() {
    let home = tempfile::tempdir().unwrap();
    let logs = ["one", "other"].map(|name| home.path().join(name));
    let mut target = start(&[]);
    let pid = target.pid().to_string();
    let mut both = logs.clone().map(|log| {
        let log = log.display().to_string();
        Attached::start(&[&pid, "-p", "periodic=100ms", "--max-pause", "1s", "--log", &log])
    });
    logs.iter().for_each(|log| until_released(log, 2));
    both.iter_mut().for_each(|attached| drop(attached.interrupt()));
    assert!(!has_stub(target.pid()));
    assert_eq!(terminate(target.child()), Some(INTACT));
}

#[test]
fn a_supervisor_that_was_stopped_and_continued_works_as_before() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut target = start(&[]);
    let (pid, path) = (target.pid().to_string(), log.display().to_string());
    let mut attached =
        Attached::start(&[&pid, "-p", "periodic=100ms", "--max-pause", "1s", "--log", &path]);
    for _ in 0..5 {
        until_released(&log, 1);
        kill_process(pid_of(attached.pid()), Signal::STOP).unwrap();
        kill_process(pid_of(attached.pid()), Signal::CONT).unwrap();
    }
    assert_eq!(attached.interrupt().status.code(), Some(0));
    assert_eq!(terminate(target.child()), Some(INTACT));
}

#[test]
fn a_process_that_is_stopped_is_released_after_it_continues() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let subject = Subject::of(&["blocks:60", "keep:20"]);
    kill_process(pid_of(subject.pid()), Signal::STOP).unwrap();
    until("its stop", || subject.proc("status").contains("State:\tT").then_some(()));
    let (pid, path) = (subject.pid().to_string(), log.display().to_string());
    let _attached = Attached::start(&[&pid, "--log", &path]);
    let act = until("a refusal", || acts(&log, "act").into_iter().next());
    assert_eq!((&act["outcome"], &act["hazard"]), (&"refused".into(), &"stopped".into()));
    kill_process(pid_of(subject.pid()), Signal::CONT).unwrap();
    until_below(subject.pid(), 30 * MIB);
    assert!(acts(&log, "left_alone").is_empty());
}

#[test]
fn a_traced_process_is_released_after_its_debugger_detaches() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let subject = Subject::of(&["blocks:60", "keep:20"]);
    let traced = nix::unistd::Pid::from_raw(subject.pid().cast_signed());
    ptrace::seize(traced, ptrace::Options::empty()).unwrap();
    let (pid, path) = (subject.pid().to_string(), log.display().to_string());
    let _attached = Attached::start(&[&pid, "-p", "periodic=100ms", "--log", &path]);
    let act = until("a refusal", || acts(&log, "act").into_iter().next());
    assert_eq!(act["hazard"], "traced", "{act:#}");
    assert!(rss(subject.pid()) > 60 * MIB);
    ptrace::interrupt(traced).unwrap();
    nix::sys::wait::waitpid(traced, None).unwrap();
    ptrace::detach(traced, None).unwrap();
    until_below(subject.pid(), 30 * MIB);
}

#[test]
fn a_log_continues_after_its_removed_directory_is_recreated() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("log");
    fs::create_dir(&directory).unwrap();
    let [log, metrics] = ["acts.jsonl", "lowtide.prom"].map(|name| directory.join(name));
    let mut target = start(&[]);
    let (pid, path, textfile) =
        (target.pid().to_string(), log.display().to_string(), metrics.display().to_string());
    let files = ["--log", &path, "--textfile", &textfile];
    let arguments = [&[&pid, "-p", "periodic=100ms", "--max-pause", "1s"], &files[..]].concat();
    let mut attached = Attached::start(&arguments);
    until_released(&log, 1);
    // A file may be created again during the removal.
    until("the directory is gone", || fs::remove_dir_all(&directory).ok());
    attached.until_said("lines are lost until it is");
    attached.until_said("the metrics could not be written");
    fs::create_dir(&directory).unwrap();
    until_released(&log, 2);
    until("the metrics", || metrics.exists().then_some(()));
    let output = attached.interrupt();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for problem in ["lines are lost until it is", "the metrics could not be written"] {
        assert_eq!(said.matches(problem).count(), 1, "{said}");
    }
    assert_eq!(terminate(target.child()), Some(INTACT));
}

#[test]
#[ignore = "needs root: it mounts a small file system"]
fn a_full_disk_loses_only_log_lines() {
    let home = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(home.path().join("disk"));
    let (log, filler) = (disk.0.join("acts.jsonl"), disk.0.join("filler"));
    let mut target = start(&[]);
    let (pid, path) = (target.pid().to_string(), log.display().to_string());
    let mut attached =
        Attached::start(&[&pid, "-p", "periodic=100ms", "--max-pause", "1s", "--log", &path]);
    until_released(&log, 1);
    // Fills the disk: the write fails, but writes as much as fits.
    let _ = fs::write(&filler, [1; 1 << 20]);
    attached.until_said("lines are lost until it is");
    fs::remove_file(&filler).unwrap();
    // Each line is complete.
    until_released(&log, 2);
    let output = attached.interrupt();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("lines are lost until it is").count(), 1, "{said}");
    assert_eq!(terminate(target.child()), Some(INTACT));
}

/// A file system of 64 KiB that is unmounted when its test ends.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(place: std::path::PathBuf) -> Self {
        fs::create_dir(&place).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=64k,mode=755", "none"];
        assert!(Command::new("mount").args(options).arg(&place).status().unwrap().success());
        Self(place)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn releases_continue_with_more_processes_than_the_open_file_limit() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let limited = r#"ulimit -n 160; exec "$@""#;
    let mut command = Command::new("sh");
    command.env("LOWTIDE_HOLD", NO_HOLD);
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_lowtide"), "run", "--log"]).arg(&log);
    command.args(["-p", "periodic=100ms", "--max-pause", "1s", "--"]).stderr(Stdio::null());
    command.arg(fixture("memory", &["-pthread"])).args(["fork:60", "blocks:60", "keep:20"]);
    let mut subject = Subject::start(&mut command);
    until_released(&log, 1);
    until("a warning", || (!acts(&log, "left_alone").is_empty()).then_some(()));
    subject.end();
    let warnings = acts(&log, "left_alone");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0]["reason"].as_str().unwrap().contains("ulimit -n"), "{warnings:#?}");
}

#[test]
fn processes_of_a_program_left_alone_for_the_same_reason_are_printed_once() {
    let mut command = lowtide();
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let allocator = "../preload/tests/programs/allocator.c";
    let library = compiled("of-one-s-own.so", allocator, &["-shared", "-fPIC", "-fno-builtin"]);
    let own = format!("own={library}");
    command.args(["run", "-a", &own, "-p", "periodic=100ms", "--log"]).arg(&log);
    command.args(["--", &fixture("memory", &["-pthread"]), "blocks:20", "fork:3"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    until("all are left alone", || (acts(&log, "left_alone").len() == 4).then_some(()));
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("is left alone for").count(), 1, "{said}");
    assert_eq!(lines(&log).len(), 4);
}

#[test]
fn lowtide_itself_is_not_supervised() {
    let mut command = lowtide();
    command.args(["run", "-p", "none", "--", &fixture("memory", &["-pthread"])]);
    let mut subject = Subject::start(command.args(["blocks:60", "keep:20"]));
    let reaper = subject.pid().to_string();
    let output = lowtide().args(["attach", &reaper]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("process {reaper} is lowtide itself")), "{said}");
    let program = env!("CARGO_BIN_EXE_lowtide");
    let mut attached = Attached::start(&["--exe", program]);
    attached.until_said("lowtide itself, and are left out");
    attached.until_said("Ctrl-C ends it");
    assert!(attached.interrupt().stdout.is_empty());
    // Its descendants are supervised.
    let mut attached = Attached::start(&[&reaper, "--subprocesses"]);
    until_below(children(subject.pid())[0], 30 * MIB);
    attached.interrupt();
    subject.end();
}

#[test]
fn a_closed_json_output_ends_the_supervision() {
    let subject = Subject::of(&["blocks:20", "keep:20"]);
    let mut attached =
        Attached::start(&[&subject.pid().to_string(), "-p", "periodic=100ms", "--json"]);
    drop(attached.child.as_mut().unwrap().stdout.take());
    assert_eq!(attached.wait().status.code(), Some(0));
}

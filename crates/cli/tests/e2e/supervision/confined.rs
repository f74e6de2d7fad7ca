//! `lowtide run` confined by a container, by another user, or by a missing `/proc`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use super::wild::{INTACT, children, program, releases, until_released};
use super::{MIB, acts, pid_of};
use crate::inspect::Subject;
use crate::support::{NO_HOLD, fixture, lowtide, until};

/// The user without rights.
const NOBODY: &str = "65534";

/// Returns a command that runs lowtide as in a container: as PID 1, under a seccomp filter, without
/// the capabilities to read filters or trace other processes.
fn in_container() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    let lost = ["bounding-set", "inh-caps"].map(|set| format!("--{set}=-sys_admin,-sys_ptrace"));
    command.arg("setpriv").args(lost).arg(fixture("filtered", &[]));
    command
        .arg(env!("CARGO_BIN_EXE_lowtide"))
        .env_remove("LD_PRELOAD")
        .env("LOWTIDE_HOLD", NO_HOLD);
    command
}

/// Returns a command that runs lowtide as a user without rights, in a directory that this user can
/// read.
fn as_nobody(home: &Path) -> Command {
    let binary = home.join("lowtide");
    crate::support::copy_program(env!("CARGO_BIN_EXE_lowtide"), &binary);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(home, mode).unwrap();
    let mut command = Command::new("setpriv");
    let ids = ["--reuid", "--regid"].map(|id| format!("{id}={NOBODY}"));
    command.args(ids).arg("--clear-groups").arg(binary);
    command.env_remove("LD_PRELOAD").env("LOWTIDE_HOLD", NO_HOLD);
    command
}

#[test]
#[ignore = "needs root: it makes a PID namespace"]
fn in_a_container_the_memory_of_a_service_and_of_its_children_is_released() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let mut command = in_container();
    command.args(["run", "-p", "periodic=200ms", "--max-pause", "1s", "--log"]).arg(&log);
    command.args(["--", &program(), "mib:40", "workers:3"]);
    let mut outside = Subject::start(&mut command);
    let init = children(outside.pid())[0];
    let released = || {
        let pids = releases(&log).into_iter().filter_map(|act| act["pid"].as_u64());
        pids.collect::<std::collections::BTreeSet<_>>()
    };
    until("four processes are released", || (released().len() == 4).then_some(()));
    // The workers sleep forever.
    let is_large = |act: &serde_json::Value| act["returned_bytes"].as_u64() > Some(20 * MIB);
    assert!(releases(&log).iter().any(is_large));
    // The signal reaches the service, and its exit code is passed on.
    kill_process(pid_of(init), Signal::TERM).unwrap();
    assert_eq!(outside.child().wait().unwrap().code(), Some(INTACT));
    assert!(acts(&log, "left_alone").is_empty());
}

#[test]
#[ignore = "needs root: it makes a PID namespace"]
fn in_a_container_a_child_with_its_own_filter_is_left_alone_and_zombies_are_reaped() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    // Orphans, a child with another filter, and a service that waits for it.
    let script = r#"for i in $(seq 20); do (sh -c : &); done; "$@" & wait; exit 9"#;
    let mut command = in_container();
    command.args(["run", "-p", "periodic=200ms", "--log"]).arg(&log);
    command.args(["--", "sh", "-c", script, "sh", &fixture("filtered", &[]), &program(), "mib:20"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let outside = command.spawn().unwrap();
    let left_alone = || acts(&log, "left_alone");
    let act = until("it is left alone", || left_alone().into_iter().next());
    assert!(act["reason"].as_str().unwrap().contains("seccomp filter"), "{act:#}");
    let init = children(outside.id())[0];
    let zombies = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tZ")
    };
    until("all orphans are reaped", || (!children(init).iter().any(zombies)).then_some(()));
    let service = children(init)[0];
    kill_process(pid_of(children(service)[0]), Signal::TERM).unwrap();
    let output = outside.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("seccomp filter").count(), 1, "{said}");
    assert_eq!(left_alone().len(), 1, "{:#?}", left_alone());
}

#[test]
#[ignore = "needs root: it hides /proc"]
fn without_a_matching_proc_the_command_runs_and_the_problem_is_printed_once() {
    let hidden = "mount -t tmpfs none /proc && exec \"$@\"";
    for (hide, problem) in [
        (&["--mount", "sh", "-c", hidden, "sh"][..], "/proc is not mounted"),
        (&["--pid", "--fork"], "/proc shows the processes of another PID namespace"),
    ] {
        let unshared = |words: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(hide).arg(env!("CARGO_BIN_EXE_lowtide")).args(words);
            let output = command.stdin(Stdio::null()).output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let ends = ["run", "-p", "periodic=100ms", "--", &program(), "ends:50"];
        let (code, said) = unshared(&ends);
        assert_eq!(code, Some(INTACT), "{said}");
        assert_eq!(said.matches(problem).count(), 1, "{said}");
        let (code, said) = unshared(&["attach", "1"]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(problem), "{said}");
        // The others read what it shows, if it shows anything.
        let is_mounted = problem != "/proc is not mounted";
        let verbs = [
            &["inspect", "1"][..],
            &["release", "--dry-run", "1"],
            &["leaks", "1"],
            &["top", "--once"],
        ];
        for verb in verbs {
            let (code, said) = unshared(verb);
            assert_eq!(said.contains("/proc is not mounted"), !is_mounted, "{verb:?} {said}");
            assert!(is_mounted || code == Some(1), "{verb:?} {code:?}");
        }
    }
}

#[test]
#[ignore = "needs root: it becomes another user"]
fn an_unprivileged_user_can_supervise_only_its_own_commands() {
    let home = tempfile::tempdir().unwrap();
    let subject = Subject::of(&["blocks:1"]);
    let pid = subject.pid().to_string();
    let output = as_nobody(home.path()).args(["attach", &pid]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&format!("not permitted to trace process {pid}")), "{said}");
    assert!(said.ends_with(&format!("next: sudo lowtide attach {pid}\n")), "{said}");

    let target = home.path().join("wild");
    crate::support::copy_program(program(), &target);
    let log = home.path().join("acts");
    fs::create_dir(&log).unwrap();
    std::os::unix::fs::chown(&log, NOBODY.parse().ok(), None).unwrap();
    let log = log.join("acts.jsonl");
    let mut command = as_nobody(home.path());
    command.args(["run", "-p", "periodic=100ms", "--log"]).arg(&log).arg("--").arg(target);
    let mut reaper = Subject::start(&mut command);
    until_released(&log, 1);
    assert_eq!(super::wild::terminate(reaper.child()), Some(INTACT));
}

#[test]
#[ignore = "needs root: it becomes another user"]
fn the_frees_of_a_command_that_drops_root_are_counted() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    let program = home.path().join("wild");
    crate::support::copy_program(super::wild::program(), &program);
    fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = lowtide();
    command.env_remove("XDG_CACHE_HOME").args(["run", "-p", "freed=20MiB", "--log"]).arg(&log);
    let ids = ["--reuid", "--regid"].map(|id| format!("{id}={NOBODY}"));
    command.args(["--", "setpriv"]).args(ids).arg("--clear-groups").arg(&program);
    let mut reaper = Subject::start(&mut command);
    until_released(&log, 1);
    assert_eq!(super::wild::terminate(reaper.child()), Some(INTACT));
}

#[test]
fn a_process_that_has_ended_is_not_supervised() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    // It is a zombie until it is reaped.
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z");
    until("a zombie", || stat().then_some(()));
    for problem in ["has ended", "there is no process"] {
        let output = lowtide().args(["attach", &pid]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(problem), "{said}");
        child.wait().unwrap();
    }
}

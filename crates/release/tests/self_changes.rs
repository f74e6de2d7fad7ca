//! Tests that a process can change itself at any step of a release: what it changes is harmless, or
//! noticed.
//!
//! [`CHANGES`] is the list of what a process can change about itself and a release rests on.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/steady.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod steady;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lowtide_model::release::{Hazard, Release, ReleaseOutcome, RunsIn};
use lowtide_probe::target::Target;
use lowtide_release::{Options, ReleaseError, release};
use steady::{Kind, NO_HEARTBEAT, Steady};

/// Number of programs that are released at the same time.
const LANES: usize = 4;
/// Maximum number of steps in a release of these programs.
const MAX_STEPS: usize = 1500;
/// Time after which a condition counts as never met.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a process changes about itself in the middle of a release.
struct Change {
    /// Its name in `programs/steady.c`.
    name: &'static str,
    /// The reasons for which this or the next release may leave the process alone. None: both
    /// complete.
    refusals: &'static [Hazard],
    /// Whether memory may be missing for the release.
    may_fail: bool,
    /// Whether it kills a thread that is running our code at that moment, which is the known risk
    /// (docs/is-it-safe.md). Then it is made as soon as no thread of the program runs. With few
    /// processors, a thread that has just continued may not have run for a long time.
    kills_our_code: bool,
}

const fn harmless(name: &'static str) -> Change {
    Change { name, refusals: &[], may_fail: false, kills_our_code: false }
}

/// Changes that any user may make.
const CHANGES: [Change; 15] = [
    harmless("undumpable"),
    Change { refusals: &[Hazard::PrivilegesChanged], ..harmless("no-new-privileges") },
    Change {
        refusals: &[Hazard::PrivilegesChanged, Hazard::Seccomp, Hazard::SeccompUnread],
        kills_our_code: true,
        ..harmless("sandbox")
    },
    Change { refusals: &[Hazard::PrivilegesChanged], ..harmless("no-capabilities") },
    Change { refusals: &[Hazard::WriteExecuteDenied], ..harmless("mdwe") },
    Change { refusals: &[Hazard::Locked], may_fail: true, ..harmless("lock") },
    Change { may_fail: true, ..harmless("no-memory") },
    harmless("no-tsc"),
    harmless("no-files"),
    Change { refusals: &[Hazard::NoThread], may_fail: true, ..harmless("personality") },
    harmless("seal"),
    harmless("idle"),
    harmless("one-processor"),
    harmless("timer"),
    harmless("trim"),
];

/// Changes that need root.
const CHANGES_BY_ROOT: [Change; 2] = [
    Change { refusals: &[Hazard::PrivilegesChanged], ..harmless("setuid") },
    harmless("namespaces"),
];

/// Returns the distance between the steps that are tested: smaller with `LOWTIDE_TEST_EXHAUSTIVE`.
fn stride() -> usize {
    if std::env::var_os("LOWTIDE_TEST_EXHAUSTIVE").is_some() { 7 } else { 17 }
}

/// Returns the kinds of programs, by the way in which a release runs in them.
fn kinds(home: &tempfile::TempDir) -> [Kind; 3] {
    let program = support::compile(home.path(), "steady.c", &[]);
    let in_slices = Kind { min_privileged_age: Duration::MAX, ..Kind::new(&program, 3, "epoll") };
    [Kind::new(&program, 1, "read"), Kind::new(&program, 4, "cond"), in_slices]
}

/// Asserts that a program lives, works, and has no thread or mapping of ours.
fn is_whole(steady: &mut Steady, context: &str) {
    steady.wait_for_our_thread();
    assert!(!steady.has_stopped(), "{context}: {}", steady.describe());
    let mut seen = steady.check();
    // One of several threads is woken for a signal that another one gets (signal(7)).
    seen.interrupted = 0;
    assert!(seen.is_well(), "{context}: {seen:?}");
}

/// Asserts that a release has completed, or has noticed the change.
fn is_expected(change: &Change, result: &Result<Release, ReleaseError>, context: &str) {
    let is_one = match result {
        Ok(release) => match release.outcome {
            ReleaseOutcome::Released | ReleaseOutcome::NothingToRelease => true,
            ReleaseOutcome::Partial => true,
            ReleaseOutcome::Refused => {
                release.hazard.is_some_and(|hazard| change.refusals.contains(&hazard))
                    // On a busy machine, no thread may wait for a while.
                    || release.hazard == Some(Hazard::NoThread)
            }
        },
        Err(ReleaseError::Failed(reason)) => change.may_fail || reason.contains(NO_HEARTBEAT),
        Err(_) => false,
    };
    assert!(is_one, "{context}: {result:?}");
}

/// Makes one change at steps of a release. Returns the number of steps.
fn change_at_each_step(kind: &Kind, change: &Change) -> usize {
    let tried = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                let mut steady = Steady::start(kind);
                for step in (lane * stride()..MAX_STEPS).step_by(LANES * stride()) {
                    let mut at = None;
                    let (result, is_step) = steady.release_until(step, |steady, now| {
                        at = Some(now);
                        if change.kills_our_code {
                            steady.wait_while("a thread runs on", |steady| steady.has_state('R'));
                        }
                        steady.send(&format!("change {}", change.name));
                        // Its first thread may be the one that is stopped.
                        if steady.has_line_within(Duration::from_millis(200)) {
                            assert_eq!(steady.read_line(), "so");
                            at = None;
                        }
                    });
                    if !is_step {
                        return;
                    }
                    let context = format!("{} at {step} {at:?} of {kind:?}", change.name);
                    if at.is_some() {
                        assert_eq!(steady.read_line(), "so", "{context}");
                    }
                    is_expected(change, &result, &context);
                    is_whole(&mut steady, &context);
                    let again = format!("again: {context}");
                    let second = steady.release();
                    is_expected(change, &second, &again);
                    is_whole(&mut steady, &again);
                    let is_refused = |release: &Release| release.hazard.is_some();
                    if !second.is_ok_and(|release| is_refused(&release)) {
                        assert_eq!(steady.left_bytes(), 0, "{again}");
                    }
                    steady.replace();
                    tried.fetch_add(1, Ordering::Relaxed);
                }
                panic!("a release took more than {MAX_STEPS} steps");
            });
        }
    });
    tried.load(Ordering::Relaxed)
}

fn change_everything(changes: &[Change]) {
    let home = tempfile::tempdir().unwrap();
    for kind in kinds(&home) {
        for change in changes {
            let steps = change_at_each_step(&kind, change);
            println!("{}: {steps} steps, {} threads in {}", change.name, kind.threads, kind.wait);
            assert!(steps > 3, "only {steps} steps");
        }
    }
}

#[test]
fn what_a_process_changes_about_itself_during_a_release_is_harmless_or_noticed() {
    change_everything(&CHANGES);
}

#[test]
#[ignore = "needs root, to change the user"]
fn what_root_changes_about_itself_during_a_release_is_harmless_or_noticed() {
    change_everything(&CHANGES_BY_ROOT);
}

/// Returns the number of threads whose real, effective, saved or file system user is root.
fn threads_of_root(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let is_root = |status: &String| {
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        users.is_some_and(|users| users.split_ascii_whitespace().any(|user| user == "0"))
    };
    statuses.filter(is_root).count()
}

#[test]
#[ignore = "needs root, to change the user"]
fn a_process_that_drops_root_during_a_release_keeps_no_thread_of_root() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    let (mut met_worker, mut ended_meanwhile) = (false, false);
    for step in (20..60).step_by(4) {
        let mut steady = Steady::start(&Kind::new(&program, 4, "cond"));
        let (mut has_changed, mut was_left) = (false, false);
        let (result, is_step) = steady.release_until(step, |steady, _| {
            let had_worker = steady.has_our_thread();
            met_worker |= had_worker;
            steady.send("change setuid");
            // The release stands still meanwhile: only what watches over its thread can end that.
            has_changed = steady.has_line_within(Duration::from_secs(1));
            let begin = Instant::now();
            while has_changed && threads_of_root(steady.pid) > 0 {
                // The watch begins some steps after the thread. Then the release notices it.
                was_left = begin.elapsed() > Duration::from_secs(5);
                if was_left {
                    return;
                }
                std::thread::yield_now();
            }
            ended_meanwhile |= has_changed && had_worker;
        });
        assert!(is_step, "{result:?}");
        let reason = result.as_ref().ok().and_then(|release| release.reason.as_deref());
        let has_noticed = reason.is_some_and(|reason| reason.starts_with("it changed its user"));
        assert!(!was_left || has_noticed, "{result:?}");
        let begin = Instant::now();
        while has_changed && threads_of_root(steady.pid) > 0 {
            assert!(begin.elapsed() < DEADLINE, "root is left: {}", steady.describe());
            std::thread::yield_now();
        }
    }
    assert!(ended_meanwhile, "the watch ended no worker thread");
    assert!(met_worker, "no step had a worker thread");
}

#[test]
#[ignore = "needs root: only a process with privileges is left to slices"]
fn a_young_process_with_privileges_gets_slices() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    let young = Kind {
        min_privileged_age: Options::default().min_privileged_age,
        ..Kind::new(&program, 4, "cond")
    };
    for (kind, runs_in) in
        [(young, RunsIn::Slices), (Kind::new(&program, 4, "cond"), RunsIn::OwnThread)]
    {
        let mut steady = Steady::start(&kind);
        assert_eq!(steady.release().unwrap().runs_in, Some(runs_in));
    }
}

/// Starts a program that answers each line with `alive`, releases it, and checks that it lives on.
/// Returns `None` if what it needs is not supported here.
fn released_and_alive(name: &str, arguments: &[&str]) -> Option<Release> {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), name, &[]);
    let mut child = support::start(Command::new(program).args(arguments));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let mut released = None;
    if first != "unsupported" {
        assert_eq!(first, format!("ready {}", child.id()));
        let (untested, min_privileged_age) = (true, Duration::ZERO);
        let options = Options { untested, min_privileged_age, ..Options::default() };
        released = Some(release(&Target::open(child.id()).unwrap(), &options).unwrap());
        for _ in 0..3 {
            writeln!(child.stdin.as_ref().unwrap()).unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "alive", "{released:?}");
        }
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "{released:?}");
    released
}

#[test]
fn a_process_whose_system_calls_are_dispatched_lives_on() {
    let Some(release) = released_and_alive("dispatch.c", &[]) else { return };
    // Before 6.4, the kernel does not show it. Then all calls are made where the process may make
    // them.
    let is_refused = release.hazard == Some(Hazard::UserDispatch);
    assert!(is_refused || release.outcome == ReleaseOutcome::Released, "{release:?}");
}

#[test]
fn an_arena_that_protection_keys_deny_is_left_alone() {
    for rights in ["none", "read"] {
        let Some(release) = released_and_alive("pkeys.c", &[rights]) else { return };
        assert_eq!(release.returned_bytes, 0, "{release:?}");
    }
}

#[test]
fn a_thread_with_a_working_directory_of_its_own_keeps_it() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    let kind = Kind { hazard: "own-directories", ..Kind::new(&program, 4, "cond") };
    let mut steady = Steady::start(&kind);
    let release = steady.release().unwrap();
    assert_eq!(release.runs_in, Some(RunsIn::Slices), "{release:?}");
    is_whole(&mut steady, "own directories");
}

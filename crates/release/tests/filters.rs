//! Releases where lowtide and its target are under the same seccomp filter, as in a container.
//!
//! A filter that a thread installs applies to that thread, and to the threads and processes that it
//! starts. So each test is a thread, which starts the target and releases it.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/filter.rs"]
mod filter;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "support/steady.rs"]
mod steady;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use filter::Rules;
use lowtide_model::release::{Hazard, Release, ReleaseOutcome};
use lowtide_release::testing::{TargetStep, release_observed};
use lowtide_release::{Options, release};
use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};
use steady::{Kind, Steady};

/// A lock that a test holds while it has children, so that it can identify its own.
static CHILDREN: Mutex<()> = Mutex::new(());

/// A call of every release, which no other code makes here.
const RARE_CALL: libc::c_long = libc::SYS_rt_sigpending;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// Starts a program under a filter, with as many threads, and passes it to a test under the same
/// filter.
fn under(
    filter: &[libc::sock_filter],
    threads: u32,
    hazard: &'static str,
    test: impl FnOnce(&mut Steady) + Send,
) {
    let _lock = CHILDREN.lock().unwrap_or_else(|error| error.into_inner());
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    let wait = if threads > 1 { "cond" } else { "read" };
    let kind = Kind { hazard, ..Kind::new(&program, threads, wait) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            filter::install(filter);
            let mut steady = Steady::start(&kind);
            test(&mut steady);
            assert_eq!(children("self"), [steady.pid], "a scratch process is left");
        });
    });
}

/// Returns the PIDs of a process's children; none if it has ended.
fn children(process: &str) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let lists =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()
        })
        .collect()
}

/// Releases a program that is known to have inherited its filters from the same process.
fn release_it(steady: &Steady) -> Release {
    release_with(steady, steady.kind.options())
}

/// Waits until all threads of a program are in their waits: a dry run makes one attempt only.
fn wait_until_all_sleep(steady: &Steady) {
    let is_awake = |steady: &Steady| steady.threads().iter().any(|(_, state)| *state != 'S');
    steady.wait_while("a thread does not wait", is_awake);
}

/// Predicts what [`release_it`] does.
fn predict(steady: &Steady) -> Release {
    wait_until_all_sleep(steady);
    release_with(steady, Options { dry_run: true, ..steady.kind.options() })
}

/// Releases a program. If that is refused, no thread of it may have been stopped.
fn release_with(steady: &Steady, options: Options) -> Release {
    let options = Options { shares_inherited_filters: true, ..options };
    let mut is_traced = false;
    let mut observe = |step| is_traced |= step == TargetStep::Seize;
    let release = release_observed(&steady.target(), &options, &mut observe).unwrap();
    assert!(!is_traced || release.outcome != ReleaseOutcome::Refused, "{release:?}");
    release
}

/// Asserts that a release was refused, and has left the program as it was.
fn is_refused(steady: &mut Steady, release: &Release, hazard: Hazard, reason: &str) {
    assert_eq!(release.outcome, ReleaseOutcome::Refused, "{release:?}");
    assert_eq!(release.hazard, Some(hazard), "{release:?}");
    assert!(release.reason.as_ref().unwrap().contains(reason), "{release:?}");
    assert_eq!(steady.left_bytes(), 0);
    let check = steady.check();
    assert!(check.is_well(), "{check:?}");
}

/// Asserts that releases return memory, and leave the program as it was.
fn is_released(steady: &mut Steady) {
    for _ in 0..3 {
        let dry_run =
            Options { dry_run: true, shares_inherited_filters: true, ..steady.kind.options() };
        wait_until_all_sleep(steady);
        let described = release(&steady.target(), &dry_run).unwrap();
        assert_eq!(described.outcome, ReleaseOutcome::Released, "{described:?}");
        let release = release_it(steady);
        assert_eq!(release.outcome, ReleaseOutcome::Released, "{release:?}");
        assert!(release.returned_bytes > 1 << 20, "{release:?}");
        assert_eq!(steady.left_bytes(), 0);
        let check = steady.check();
        assert!(check.is_well(), "{check:?}");
        steady.hoard();
    }
}

#[test]
fn a_release_succeeds_under_a_filter_that_allows_everything() {
    for threads in [1, 4] {
        under(&Rules::new().otherwise(ALLOW), threads, "", is_released);
    }
}

#[test]
fn a_release_succeeds_under_the_usual_filter_of_a_container() {
    for threads in [1, 4] {
        under(&filter::of_a_container(), threads, "", is_released);
    }
}

#[test]
fn a_release_succeeds_under_a_filter_that_only_logs_a_call() {
    let filter = Rules::new().call(RARE_CALL, libc::SECCOMP_RET_LOG).otherwise(ALLOW);
    under(&filter, 1, "", is_released);
}

#[test]
fn a_call_that_only_one_of_two_filters_denies_causes_a_refusal() {
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let first = Rules::new().call(RARE_CALL, denied).otherwise(ALLOW);
    under(&first, 1, "", |steady| {
        let second = steady.kind.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                filter::install(&Rules::new().otherwise(ALLOW));
                let mut steady = Steady::start(&second);
                let release = release_it(&steady);
                is_refused(&mut steady, &release, Hazard::Seccomp, "rt_sigpending");
            });
        });
    });
}

#[test]
fn a_filter_that_does_not_allow_a_call_causes_a_refusal_and_the_program_survives() {
    for action in [
        libc::SECCOMP_RET_KILL_PROCESS,
        libc::SECCOMP_RET_KILL_THREAD,
        libc::SECCOMP_RET_TRAP,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        // The kernel's own errno for these arguments, in a process that does not have the target's
        // memory.
        libc::SECCOMP_RET_ERRNO | libc::EFAULT as u32,
        // Looks like success.
        libc::SECCOMP_RET_ERRNO,
        libc::SECCOMP_RET_USER_NOTIF,
        libc::SECCOMP_RET_TRACE,
    ] {
        let filter = Rules::new().call(RARE_CALL, action).otherwise(ALLOW);
        under(&filter, 4, "", |steady| {
            let release = release_it(steady);
            is_refused(steady, &release, Hazard::Seccomp, "rt_sigpending");
            let described = predict(steady);
            is_refused(steady, &described, Hazard::Seccomp, "rt_sigpending");
        });
    }
}

#[test]
fn a_filter_that_denies_certain_arguments_causes_a_refusal() {
    let errno = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let requeue = libc::FUTEX_CMP_REQUEUE as u32 | libc::FUTEX_PRIVATE_FLAG as u32;
    let equals = |value| (libc::BPF_JEQ, value);
    for (call, number, place, value) in [
        ("futex", libc::SYS_futex, 1, requeue),
        ("prctl", libc::SYS_prctl, 0, libc::PR_GET_MDWE as u32),
        ("rt_sigprocmask", libc::SYS_rt_sigprocmask, 0, 77),
    ] {
        let filter = Rules::new().argument(number, place, equals(value), errno).otherwise(ALLOW);
        under(&filter, 1, "", |steady| {
            let release = release_it(steady);
            is_refused(steady, &release, Hazard::Seccomp, call);
        });
    }
}

#[test]
fn a_program_with_an_additional_filter_is_refused() {
    for threads in [1, 4] {
        under(&Rules::new().otherwise(ALLOW), threads, "seccomp-allow", |steady| {
            let release = release_it(steady);
            is_refused(steady, &release, Hazard::SeccompUnread, "differ from those of lowtide");
        });
    }
}

#[test]
fn a_program_not_known_to_share_our_filters_is_refused() {
    under(&Rules::new().otherwise(ALLOW), 1, "", |steady| {
        let release = release(&steady.target(), &steady.kind.options()).unwrap();
        is_refused(steady, &release, Hazard::SeccompUnread, "lowtide run");
    });
}

#[test]
fn a_filter_supervisor_that_does_not_respond_causes_a_refusal() {
    let code = Rules::new().call(RARE_CALL, libc::SECCOMP_RET_USER_NOTIF).otherwise(ALLOW);
    under(&Rules::new().otherwise(ALLOW), 1, "", |steady| {
        let kind = steady.kind.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _supervisor = filter::install_with_supervisor(&code);
                let mut steady = Steady::start(&kind);
                let release = release_it(&steady);
                is_refused(&mut steady, &release, Hazard::Seccomp, "rt_sigpending");
            });
        });
    });
}

#[test]
fn no_scratch_process_outlives_a_killed_lowtide() {
    const TRIES: usize = 15;
    const DEADLINE: Duration = Duration::from_secs(60);
    let mut killed = 0;
    under(&Rules::new().otherwise(ALLOW), 1, "", |steady| {
        // A process that lowtide leaves becomes a child of this process.
        set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        for place in 1..=TRIES {
            let mut lowtide = Command::new(env!("CARGO_BIN_EXE_release_until"))
                .args([steady.pid.to_string(), u32::MAX.to_string(), "1000".to_owned()])
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let (begin, mut seen) = (Instant::now(), BTreeSet::new());
            while seen.len() < place && lowtide.try_wait().unwrap().is_none() {
                assert!(begin.elapsed() < DEADLINE, "it hangs");
                seen.extend(children(&lowtide.id().to_string()));
            }
            killed += usize::from(seen.len() == place);
            lowtide.kill().unwrap();
            lowtide.wait().unwrap();
            let is_other = |pid: &u32| *pid != steady.pid;
            while let Some(orphan) = children("self").into_iter().find(is_other) {
                assert!(begin.elapsed() < DEADLINE, "{orphan} is left");
                let orphan = Pid::from_raw(orphan as i32);
                let _ = waitpid(orphan, WaitOptions::NOHANG);
            }
            let check = steady.check();
            assert!(check.is_well(), "{check:?}");
            steady.hoard();
        }
        set_child_subreaper(None).unwrap();
        is_released(steady);
    });
    println!("{killed} of {TRIES} were killed during a trial");
    assert!(killed > 0);
}

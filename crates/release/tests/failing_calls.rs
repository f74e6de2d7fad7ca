//! Tests that a target stays whole whichever system call of lowtide fails during a release.
//!
//! strace(1) makes the n-th call of a kind fail, in each thread of lowtide, for every n. Where an
//! error would be no state that a kernel produces, it kills lowtide instead.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/steady.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod steady;
mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lowtide_model::release::ReleaseOutcome;
use steady::{Kind, Steady};

/// Number of programs that are released at the same time.
const LANES: usize = 4;

/// A kind of system call, and what strace does to one of them.
#[derive(Debug, Clone, Copy)]
struct Failure {
    call: &'static str,
    injected: &'static str,
}

const fn fails(call: &'static str, injected: &'static str) -> Failure {
    Failure { call, injected }
}

/// The calls of a release. The kernel makes those of ptrace(2) fail only if the thread has ended,
/// or may not be traced.
const FAILURES: [Failure; 22] = [
    fails("ptrace", "signal=KILL"),
    fails("wait4", "signal=KILL"),
    fails("exit", "signal=KILL"),
    fails("munmap", "signal=KILL"),
    fails("pwrite64", "error=EIO"),
    fails("pwrite64", "signal=KILL"),
    fails("pread64", "error=EIO"),
    fails("read", "error=EIO"),
    fails("openat", "error=EMFILE"),
    fails("openat", "error=ENOENT"),
    fails("getdents64", "error=EIO"),
    fails("ioctl", "error=ENOTTY"),
    fails("readlink", "error=ENOENT"),
    fails("statx", "error=EACCES"),
    fails("flock", "error=EINTR"),
    fails("kcmp", "error=EPERM"),
    fails("clone3", "error=EAGAIN"),
    fails("mmap", "error=ENOMEM"),
    fails("prctl", "error=EINVAL"),
    fails("pidfd_open", "error=ENOSYS"),
    fails("sched_setscheduler", "error=EPERM"),
    fails("process_madvise", "error=EPERM"),
];

/// Returns the distance between the calls that fail: smaller with `LOWTIDE_TEST_EXHAUSTIVE`. A
/// release makes hundreds of the most frequent calls; the first ones of each kind all fail.
fn next(number: usize) -> usize {
    let is_exhaustive = std::env::var_os("LOWTIDE_TEST_EXHAUSTIVE").is_some();
    let (first, stride) = if is_exhaustive { (8, 19) } else { (5, 29) };
    if number < first { number + 1 } else { number + stride }
}

/// Releases a program while the n-th call of lowtide fails. Returns whether there was such a call.
fn release_with(steady: &Steady, failure: Failure, number: usize, log: &std::path::Path) -> bool {
    let Failure { call, injected } = failure;
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(log)
        .args([
            "-e",
            &format!("trace={call}"),
            "-e",
            &format!("inject={call}:{injected}:when={number}"),
        ])
        .arg(env!("CARGO_BIN_EXE_release_until"))
        .args([steady.pid.to_string(), u32::MAX.to_string()])
        .arg(steady.kind.options().max_pause.as_micros().to_string())
        .stdin(Stdio::null())
        .output()
        .expect("strace is installed");
    let text = fs::read_to_string(log).unwrap_or_default();
    // A signal leaves no trace in the line of the call itself.
    text.contains("(INJECTED)") || injected.starts_with("signal") && !output.status.success()
}

/// Asserts that the program works, and that another release completes and leaves nothing.
fn is_whole(steady: &mut Steady, context: &str) {
    steady.wait_for_our_thread();
    assert!(!steady.has_stopped(), "{context}: {}", steady.describe());
    let mut seen = steady.check();
    // A wait that was interrupted is restarted by lowtide, unless it is killed.
    seen.interrupted = 0;
    assert!(seen.is_well(), "{context}: {seen:?}");
    let begin = Instant::now();
    let release = loop {
        let release = steady.release().unwrap();
        if release.may_pass != Some(true) || begin.elapsed().as_secs() > 60 {
            break release;
        }
    };
    let outcomes = [ReleaseOutcome::Released, ReleaseOutcome::NothingToRelease];
    assert!(outcomes.contains(&release.outcome), "{context}: {release:?}");
    assert_eq!(steady.left_bytes(), 0, "{context}");
    steady.hoard();
}

#[test]
#[ignore = "needs strace, and the right to trace a tracer"]
fn a_target_stays_whole_whichever_call_of_lowtide_fails() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    for kind in [Kind::new(&program, 1, "read"), Kind::new(&program, 4, "cond")] {
        let (left, tried) = (&Mutex::new(FAILURES.to_vec()), &AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for lane in 0..LANES {
                let (kind, log) = (&kind, home.path().join(format!("strace-{lane}")));
                scope.spawn(move || {
                    let mut steady = Steady::start(kind);
                    loop {
                        let Some(failure) = left.lock().unwrap().pop() else { return };
                        let mut number = 1;
                        while release_with(&steady, failure, number, &log) {
                            let context = format!("{failure:?} {number}, {} threads", kind.threads);
                            is_whole(&mut steady, &context);
                            tried.fetch_add(1, Ordering::Relaxed);
                            number = next(number);
                        }
                        is_whole(&mut steady, &format!("{failure:?} {number}, which was not made"));
                    }
                });
            }
        });
        let tried = tried.load(Ordering::Relaxed);
        println!("{} threads: {tried} failures", kind.threads);
        assert!(tried > 100, "only {tried} calls failed");
    }
}

//! Releases of a process whose only thread waits in one call for years: that call must not end, and
//! the thread must stay one that can be borrowed.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod support;

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lowtide_model::release::{Hazard, Release, ReleaseOutcome};
use lowtide_probe::proc::task::{Doing, Thread};
use lowtide_probe::target::Target;
use lowtide_release::{Options, release};
use lowtide_testing::Running;

/// The calls in which `programs/waits.c` can wait, with their numbers.
const WAITS: [(&str, u32); 15] = [
    ("sleep", 35),
    ("sleep-left", 35),
    ("sleep-only", 35),
    ("clock", 230),
    ("clock-until", 230),
    ("poll", 7),
    ("poll-forever", 7),
    ("ppoll", 271),
    ("select", 23),
    ("pselect", 270),
    ("epoll", 232),
    ("futex", 202),
    ("futex-until", 202),
    ("futex-forever", 202),
    ("signals", 128),
];

/// A program in its wait. Dropping this ends it.
struct Waiting {
    child: Running,
    wait: &'static str,
    number: u32,
}

impl Waiting {
    fn start(program: &Path, (wait, number): (&'static str, u32), killed: &[i64]) -> Self {
        let killed = killed.iter().map(ToString::to_string);
        let mut child = support::start(Command::new(program).arg(wait).args(killed));
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let mut waiting = Self { child: child.into(), wait, number };
        waiting.is_in_its_wait();
        waiting
    }

    /// Waits until its thread is in its call.
    ///
    /// # Panics
    /// Panics if the program ends, or if the thread is in another call.
    fn is_in_its_wait(&mut self) {
        let pid = self.child.id();
        loop {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}: {ended:?}", self.wait);
            match (Thread { pid, tid: pid }).doing() {
                Ok(Doing::In(call)) if call.number == self.number => return,
                Ok(Doing::In(call)) if call.number == libc::SYS_restart_syscall as u32 => {
                    panic!("{}: it is in restart_syscall", self.wait)
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn release(&mut self, options: Options) -> Release {
        // Several slices.
        let max_pause = Duration::from_micros(300);
        let options =
            Options { max_pause, untested: true, min_privileged_age: Duration::ZERO, ..options };
        let release = release(&Target::open(self.child.id()).unwrap(), &options).unwrap();
        self.is_in_its_wait();
        release
    }

    /// Asserts that a prediction is made, twice, and that memory is released then.
    fn is_released(&mut self) {
        let wait = self.wait;
        for _ in 0..2 {
            let described = self.release(Options { dry_run: true, ..Options::default() });
            assert_eq!(described.outcome, ReleaseOutcome::Released, "{wait}: {described:?}");
        }
        let release = self.release(Options::default());
        assert_eq!(release.outcome, ReleaseOutcome::Released, "{wait}: {release:?}");
        assert!(release.returned_bytes > 1 << 20, "{wait}: {release:?}");
    }
}

/// Runs a test on the program in each of its waits, under filters that kill for these calls.
fn in_each_wait(killed: &[i64], test: impl Fn(&mut Waiting)) {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "waits.c", &[]);
    for wait in WAITS {
        test(&mut Waiting::start(&program, wait, killed));
    }
}

#[test]
fn a_thread_that_waits_for_years_is_released_and_waits_on() {
    in_each_wait(&[], Waiting::is_released);
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN, to read the filters of a thread"]
fn a_filtered_thread_that_waits_for_years_is_released_and_waits_on() {
    // Whether or not its filter permits the call by which the kernel continues some waits.
    for killed in [libc::SYS_kexec_load, libc::SYS_restart_syscall] {
        in_each_wait(&[killed], Waiting::is_released);
    }
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN, to read the filters of a thread"]
fn a_filter_that_permits_neither_a_release_nor_restart_syscall_leaves_the_process_alive() {
    in_each_wait(&[libc::SYS_mmap, libc::SYS_restart_syscall], |waiting| {
        let wait = waiting.wait;
        for dry_run in [true, false, true] {
            let refused = waiting.release(Options { dry_run, ..Options::default() });
            assert_eq!(refused.outcome, ReleaseOutcome::Refused, "{wait}: {refused:?}");
            assert_eq!(refused.hazard, Some(Hazard::Seccomp), "{wait}: {refused:?}");
        }
    });
}

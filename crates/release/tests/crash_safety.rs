//! Tests that the target continues as before, whatever happens at any step of a release.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/steady.rs"]
mod steady;
mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lowtide_model::release::{Hazard, Release, ReleaseOutcome, RunsIn};
use lowtide_probe::target::TargetError;
use lowtide_release::testing::TargetStep;
use lowtide_release::{EndKind, ReleaseError};
use rustix::process::Signal;
use steady::{DEADLINE, Kind, Steady};

/// Number of programs that are released at the same time.
const LANES: usize = 4;
/// Maximum number of steps in a release of these programs.
const MAX_STEPS: usize = 1500;

/// Returns the distance between the steps that are tested: 1 with `LOWTIDE_TEST_EXHAUSTIVE`.
fn stride() -> usize {
    if std::env::var_os("LOWTIDE_TEST_EXHAUSTIVE").is_some() { 1 } else { 5 }
}

/// Calls `act` for each step of a release, or for one in [`stride`] steps, until a release has
/// fewer steps. Returns the number of steps that were tested.
fn at_each_step(
    threads: u32,
    wait: &'static str,
    act: impl Fn(&mut Steady, usize) -> bool + Sync,
) -> usize {
    at_each_step_with(None, threads, wait, act)
}

/// Calls `act` like [`at_each_step`], with a bundled allocator.
fn at_each_step_with(
    allocator: Option<&str>,
    threads: u32,
    wait: &'static str,
    act: impl Fn(&mut Steady, usize) -> bool + Sync,
) -> usize {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    let allocator = allocator.map(|name| {
        let carried = lowtide_allocators::bundled().find(|carried| carried.name() == name);
        carried.unwrap().unpack_into(home.path()).unwrap()
    });
    let kind = Kind { allocator, ..Kind::new(&program, threads, wait) };
    let (act, kind, tried) = (&act, &kind, &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let hold = home.path().join(format!("hold-{lane}"));
            scope.spawn(move || {
                let mut steady = Steady::start(&Kind { hold, ..kind.clone() });
                for step in (lane * stride()..MAX_STEPS).step_by(LANES * stride()) {
                    if !act(&mut steady, step) {
                        return;
                    }
                    tried.fetch_add(1, Ordering::Relaxed);
                }
                panic!("a release took more than {MAX_STEPS} steps");
            });
        }
    });
    let tried = tried.load(Ordering::Relaxed);
    println!("{threads} threads in {wait}: {tried} steps");
    assert!(tried * stride() > 40, "only {tried} steps");
    tried
}

/// Asserts that a release completes and leaves nothing of ours.
fn release_goes_through(steady: &mut Steady, context: &str) {
    steady.wait_for_our_thread();
    let left = steady.left_bytes();
    let mut cleaned_bytes = 0;
    // On a busy machine, a thread that owns the memory may be scheduled too late.
    let release = loop {
        let release = steady.release().unwrap();
        cleaned_bytes += release.cleaned_bytes;
        if release.may_pass != Some(true) {
            break release;
        }
        println!("{context}: {release:?}");
    };
    let is_done =
        [ReleaseOutcome::Released, ReleaseOutcome::NothingToRelease].contains(&release.outcome);
    assert!(is_done, "{context}: {release:?}");
    assert_eq!(cleaned_bytes, left, "{context}: {release:?}");
    assert_eq!(steady.left_bytes(), 0, "{context}");
    let expected = if steady.kind.threads > 1 { RunsIn::OwnThread } else { RunsIn::Slices };
    assert!(release.runs_in.is_none_or(|runs_in| runs_in == expected), "{context}: {release:?}");
    steady.wait_for_our_thread();
    let seen = steady.check();
    assert!(seen.is_well(), "{context}: {seen:?}");
}

/// Releases the program in a separate process that kills itself at a step. Returns the step's name;
/// `None` if the release completed before.
fn killed_at(steady: &Steady, step: usize) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_release_until"))
        .args([steady.pid.to_string(), step.to_string()])
        .arg(steady.kind.options().max_pause.as_micros().to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        let (_, name) = text.rsplit_once("at ").unwrap();
        return Some(name.trim().to_owned());
    }
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    None
}

/// Counts events that the kernel causes without us as well: a run may have only a few of them. A
/// real loss at every step would be far more.
#[derive(Default)]
struct Forgiven(AtomicUsize);

impl Forgiven {
    /// Moves one event from a count to this one, if there is any.
    fn one_of(&self, count: &mut u32) {
        if *count > 0 {
            *count -= 1;
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asserts that the events were rare: at most one in `rarity` steps, plus a constant.
    fn are_few(&self, steps: usize, rarity: usize) {
        const ALWAYS: usize = 3;
        let count = self.0.load(Ordering::Relaxed);
        println!("forgiven: {count} in {steps} steps");
        assert!(
            count <= ALWAYS + steps / rarity,
            "{count} events in {steps} steps are no accident"
        );
    }
}

fn lives_on_when_we_are_killed(threads: u32, wait: &'static str) {
    lives_on_with(None, threads, wait);
}

fn lives_on_with(allocator: Option<&str>, threads: u32, wait: &'static str) {
    at_each_step_with(allocator, threads, wait, |steady, step| {
        let Some(name) = killed_at(steady, step) else { return false };
        let context = format!("killed at {step} ({name}), {threads} threads in {wait}");
        assert!(!steady.has_stopped(), "{context}: {}", steady.describe());
        let mut seen = steady.check();
        // If the thread was interrupted and its registers are not set yet, epoll_wait returns, and
        // only we could have restarted it.
        let is_between = ["Wait", "Read", "Write", "Set"].contains(&name.as_str());
        if wait.starts_with("epoll") && is_between && seen.interrupted == 1 {
            seen.interrupted = 0;
        }
        assert!(seen.is_well() && seen.handled == 0, "{context}: {seen:?}");
        release_goes_through(steady, &context);
        steady.hoard();
        true
    });
}

#[test]
fn a_single_threaded_target_in_read_survives_when_lowtide_is_killed() {
    lives_on_when_we_are_killed(1, "read");
}

#[test]
fn a_single_threaded_target_in_epoll_wait_survives_when_lowtide_is_killed() {
    lives_on_when_we_are_killed(1, "epoll");
}

#[test]
fn a_single_threaded_target_in_a_timed_epoll_wait_survives_when_lowtide_is_killed() {
    lives_on_when_we_are_killed(1, "epoll-timed");
}

#[test]
fn a_single_threaded_target_in_sigsuspend_survives_when_lowtide_is_killed() {
    lives_on_when_we_are_killed(1, "suspend");
}

#[test]
fn a_target_that_runs_our_thread_survives_when_lowtide_is_killed() {
    lives_on_when_we_are_killed(4, "cond");
}

#[test]
fn a_target_with_another_allocator_survives_when_lowtide_is_killed() {
    for allocator in ["jemalloc", "mimalloc", "mimalloc2"] {
        lives_on_with(Some(allocator), 1, "read");
        lives_on_with(Some(allocator), 3, "read");
    }
}

#[test]
fn a_target_whose_threads_all_sleep_survives_when_lowtide_is_killed() {
    lives_on_when_we_are_killed(3, "sleep");
}

fn reports_its_end(threads: u32, wait: &'static str) {
    at_each_step(threads, wait, |steady, step| {
        let mut at = None;
        let (result, reached) = steady.release_until(step, |steady, now| {
            at = Some(now);
            steady.signal(Signal::KILL);
        });
        if !reached {
            return false;
        }
        let is_gone = match &result {
            Err(ReleaseError::Target(TargetError::Gone(_))) => true,
            Err(ReleaseError::Ended(end)) => {
                end.how.is_none_or(|how| how == EndKind::Signal(libc::SIGKILL))
            }
            // The release had just completed.
            Ok(release) => {
                release.outcome == ReleaseOutcome::Released && at == Some(TargetStep::Await)
            }
            Err(_) => false,
        };
        assert!(is_gone, "ended at {step} {at:?}: {result:?}");
        steady.replace();
        true
    });
}

#[test]
fn a_single_threaded_target_killed_at_any_step_is_reported_as_gone() {
    reports_its_end(1, "read");
}

#[test]
fn a_multithreaded_target_killed_at_any_step_is_reported_as_gone() {
    reports_its_end(4, "cond");
}

fn a_hold_ends_a_release(threads: u32, wait: &'static str) {
    let partial = AtomicUsize::new(0);
    at_each_step(threads, wait, |steady, step| {
        let hold = steady.kind.hold.clone();
        let (result, reached) =
            steady.release_until(step, |_, _| std::fs::write(&hold, "INC-1234").unwrap());
        if !reached {
            return false;
        }
        let context = format!("held at {step}, {threads} threads in {wait}: {result:?}");
        let release = result.as_ref().unwrap();
        match release.outcome {
            // It appeared after the last operation.
            ReleaseOutcome::Released => {}
            ReleaseOutcome::Refused => assert_eq!(release.hazard, Some(Hazard::Held), "{context}"),
            ReleaseOutcome::Partial => {
                assert!(release.reason.as_ref().unwrap().contains("INC-1234"), "{context}");
                partial.fetch_add(1, Ordering::Relaxed);
            }
            ReleaseOutcome::NothingToRelease => panic!("{context}"),
        }
        assert!(!steady.has_stopped(), "{context}: {}", steady.describe());
        steady.wait_for_our_thread();
        assert_eq!(steady.left_bytes(), 0, "{context}");
        let seen = steady.check();
        assert!(seen.is_well(), "{context}: {seen:?}");
        let again = steady.release_until(0, |_, step| panic!("{step:?} while it is held"));
        assert_eq!(again.0.unwrap().hazard, Some(Hazard::Held), "{context}");
        std::fs::remove_file(&hold).unwrap();
        release_goes_through(steady, &context);
        steady.hoard();
        true
    });
    assert!(partial.into_inner() > 0, "no release was held after its first operation");
}

#[test]
fn a_hold_that_appears_during_a_release_in_slices_ends_it() {
    a_hold_ends_a_release(1, "read");
}

#[test]
fn a_hold_that_appears_during_a_release_in_our_thread_ends_it() {
    a_hold_ends_a_release(4, "cond");
}

fn another_program_is_left_alone(threads: u32, wait: &'static str) {
    at_each_step(threads, wait, |steady, step| {
        let mut said = Vec::new();
        let (result, reached) = steady.release_until(step, |steady, _| {
            steady.send("exec");
            // Wait until it has ended. It cannot end while its first thread is stopped, or while
            // another stopped thread has been ended and is not detached yet.
            while said.len() < 2 {
                if steady.has_line_within(Duration::from_millis(1)) {
                    said.push(steady.read_line());
                } else if steady.first_state() == 't' || steady.has_state('Z') {
                    break;
                }
            }
        });
        if !reached {
            return false;
        }
        let context = format!("another program at {step}, {threads} threads in {wait}: {result:?}");
        while said.len() < 2 {
            said.push(steady.read_line());
        }
        assert!(said[0] == "execs" && said[1].starts_with("ready"), "{context}: {said:?}");
        // The release completed before, or reports the end of its target.
        let outcomes =
            [ReleaseOutcome::Released, ReleaseOutcome::Partial, ReleaseOutcome::NothingToRelease];
        let is_clear = match &result {
            Ok(release) => outcomes.contains(&release.outcome),
            Err(ReleaseError::Target(TargetError::Gone(_) | TargetError::Replaced(_))) => true,
            Err(ReleaseError::Ended(_) | ReleaseError::Replaced(_)) => true,
            Err(_) => false,
        };
        assert!(is_clear, "{context}");
        assert!(!steady.has_stopped(), "{context}: {}", steady.describe());
        assert_eq!(steady.left_bytes(), 0, "{context}");
        let seen = steady.check();
        assert!(seen.is_well(), "{context}: {seen:?}");
        release_goes_through(steady, &context);
        steady.hoard();
        true
    });
}

#[test]
fn a_program_executed_by_a_single_threaded_target_is_left_alone() {
    another_program_is_left_alone(1, "read");
}

#[test]
fn a_program_executed_by_a_multithreaded_target_is_left_alone() {
    another_program_is_left_alone(4, "cond");
}

/// Returns whether a release has returned all, or what it could on a machine that is so busy that
/// its thread got no heartbeat in time.
fn has_released(release: &Release) -> bool {
    let is_starved = |reason: &String| reason.contains("received no heartbeat in time");
    release.outcome == ReleaseOutcome::Released || release.reason.as_ref().is_some_and(is_starved)
}

/// The recipient of a signal.
#[derive(Debug, Clone, Copy)]
enum For {
    Process,
    Thread,
}

fn handlers_run_once(threads: u32, wait: &'static str, with: &'static str, whom: For) {
    let (lost, interrupted) = (Forgiven::default(), Forgiven::default());
    let steps = at_each_step(threads, wait, |steady, step| {
        if step < LANES * stride() {
            steady.send(with);
            assert_eq!(steady.read_line(), "so");
        }
        let mut at = None;
        let (result, reached) = steady.release_until(step, |steady, now| {
            at = Some(now);
            match whom {
                For::Process => steady.signal(Signal::USR1),
                For::Thread => steady.signal_held(),
            }
        });
        let context = format!("SIGUSR1 at {step} {at:?}, {threads} threads in {wait}: {result:?}");
        assert!(has_released(&result.unwrap()), "{context}");
        steady.wait_for_delivery();
        let mut seen = steady.check();
        assert_eq!(seen.handled, u32::from(reached), "{context} {seen:?}");
        if wait != "suspend"
            && matches!(at, Some(TargetStep::Await | TargetStep::Write | TargetStep::Seize))
        {
            // The thread was just detached, and the kernel restarts its wait: a handler that runs
            // after the kernel has checked for one, and before the thread is in its call again,
            // does not end the call. (The same happens after any stop, for instance SIGSTOP and
            // SIGCONT.) A call with a mask of its own misses none.
            lost.one_of(&mut seen.lost);
        }
        if threads > 1 {
            // The kernel wakes one thread for a signal of the process, and delivers it to another
            // one that is faster: this happens without us as well.
            interrupted.one_of(&mut seen.interrupted);
        }
        assert!(seen.is_well(), "{context} {seen:?}");
        assert_eq!(steady.left_bytes(), 0, "{context}");
        steady.hoard();
        reached
    });
    lost.are_few(steps, 10);
    // One of several threads that wait for a signal of the process is woken spuriously every few
    // steps: 16 in 60.
    let rarity = if matches!(whom, For::Process) && threads > 1 { 2 } else { 10 };
    interrupted.are_few(steps, rarity);
}

#[test]
fn a_handler_runs_once_while_the_only_thread_waits_for_events() {
    handlers_run_once(1, "epoll", "norestart", For::Process);
}

#[test]
fn a_handler_runs_once_while_the_only_thread_waits_for_signals() {
    handlers_run_once(1, "suspend", "norestart", For::Process);
}

#[test]
fn a_handler_runs_once_while_the_only_thread_pauses() {
    handlers_run_once(1, "pause", "restart", For::Process);
}

#[test]
fn a_handler_runs_once_while_a_read_restarts() {
    handlers_run_once(1, "read", "restart", For::Process);
}

#[test]
fn a_handler_runs_once_while_a_read_is_interrupted() {
    handlers_run_once(1, "read", "norestart", For::Process);
}

#[test]
fn a_handler_runs_once_while_a_sleep_is_interrupted() {
    handlers_run_once(1, "sleep", "norestart", For::Process);
}

#[test]
fn a_handler_for_a_signal_to_the_stopped_thread_runs_once_among_several_threads() {
    handlers_run_once(3, "epoll", "norestart", For::Thread);
}

#[test]
fn a_handler_for_a_signal_to_the_process_runs_once_among_several_threads() {
    handlers_run_once(4, "cond", "restart", For::Process);
}

fn it_continues_after_a_stop(threads: u32, wait: &'static str) {
    at_each_step(threads, wait, |steady, step| {
        let (result, reached) = steady.release_until(step, |steady, _| steady.signal(Signal::STOP));
        steady.signal(Signal::CONT);
        let context = format!("stopped at {step}, {threads} threads in {wait}: {result:?}");
        assert!(result.is_ok() || matches!(result, Err(ReleaseError::Failed(_))), "{context}");
        let mut seen = steady.check();
        if wait.starts_with("epoll") || wait == "cond" {
            // This happens without us as well (signal(7)).
            seen.interrupted = 0;
        }
        assert!(seen.is_well(), "{context}: {seen:?}");
        assert!(!steady.has_stopped(), "{context}: {}", steady.describe());
        release_goes_through(steady, &context);
        steady.hoard();
        reached
    });
}

#[test]
fn a_single_threaded_target_continues_after_sigstop_and_sigcont() {
    it_continues_after_a_stop(1, "read");
}

#[test]
fn a_multithreaded_target_continues_after_sigstop_and_sigcont() {
    it_continues_after_a_stop(4, "cond");
}

/// The place of our code is chosen before it is mapped. The target may map memory there meanwhile.
fn keeps_what_it_maps(how: &str) {
    /// Number of steps until our code is mapped.
    const STEPS: usize = 12;
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    let mut steady = Steady::start(&Kind::new(&program, 4, "read"));
    for step in 0..STEPS {
        let (result, is_step) = steady.release_until(step, |steady, _| {
            steady.send(how);
            assert_eq!(steady.read_line(), "so");
        });
        assert!(is_step);
        let release = result.unwrap();
        assert_eq!(release.outcome, ReleaseOutcome::Released, "{step}: {release:?}");
        let seen = steady.check();
        assert!(seen.is_well(), "{how} at {step}: {seen:?}");
        assert_eq!(steady.left_bytes(), 0, "{how} at {step}");
        steady.hoard();
    }
}

#[test]
fn memory_that_the_target_maps_at_the_address_of_our_code_is_preserved() {
    keeps_what_it_maps("map");
}

#[test]
fn a_range_that_the_target_reserves_at_the_address_of_our_code_is_preserved() {
    keeps_what_it_maps("reserve");
}

fn the_second_is_refused(threads: u32, wait: &'static str) {
    at_each_step(threads, wait, |steady, step| {
        let mut second = None;
        let (first, reached) =
            steady.release_until(step, |steady, now| second = Some((now, steady.release())));
        let context = format!("a second one at {step}, {threads} threads in {wait}: {second:?}");
        assert!(has_released(&first.unwrap()), "{context}");
        if let Some((_, second)) = &second {
            let second = second.as_ref().unwrap();
            let allowed = [Hazard::AnotherRelease, Hazard::Traced];
            assert_eq!(second.outcome, ReleaseOutcome::Refused, "{context}");
            assert!(allowed.map(Some).contains(&second.hazard), "{context}");
        }
        assert_eq!(steady.left_bytes(), 0, "{context}");
        let seen = steady.check();
        assert!(seen.is_well(), "{context}: {seen:?}");
        steady.hoard();
        reached
    });
}

#[test]
fn a_concurrent_second_release_of_a_single_threaded_target_is_refused() {
    the_second_is_refused(1, "epoll");
}

#[test]
fn a_concurrent_second_release_of_a_multithreaded_target_is_refused() {
    the_second_is_refused(4, "cond");
}

/// Returns a kind of program with a hazard.
fn with_hazard(home: &Path, threads: u32, hazard: &'static str) -> Kind {
    let program = support::compile(home, "steady.c", &[]);
    Kind { hazard, ..Kind::new(&program, threads, if threads > 1 { "cond" } else { "read" }) }
}

/// Asserts that the program was left alone: it contains nothing of ours, and nothing has changed.
fn is_untouched(steady: &mut Steady, context: &str) {
    assert_eq!(steady.left_bytes(), 0, "{context}");
    steady.wait_for_our_thread();
    let seen = steady.check();
    assert!(seen.is_well(), "{context}: {seen:?}");
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN, to make namespaces"]
fn a_target_in_other_mount_and_pid_namespaces_is_released() {
    let home = tempfile::tempdir().unwrap();
    for threads in [1, 4] {
        let kind = with_hazard(home.path(), threads, "");
        let by = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
        let mut steady = Steady::start_by(&kind, &by);
        assert_ne!(steady.pid, 0);
        release_goes_through(&mut steady, "namespaces");
        let seen = steady.check();
        assert!(seen.is_well(), "{seen:?}");
    }
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN, to read the filters of a thread"]
fn a_release_succeeds_under_a_filter_that_allows_its_calls() {
    let home = tempfile::tempdir().unwrap();
    for threads in [1, 4] {
        let mut steady = Steady::start(&with_hazard(home.path(), threads, "seccomp-allow"));
        release_goes_through(&mut steady, "seccomp-allow");
    }
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN, to read the filters of a thread"]
fn a_filter_that_kills_or_denies_causes_a_refusal_and_nothing_is_left_behind() {
    let home = tempfile::tempdir().unwrap();
    for hazard in ["seccomp-mmap", "seccomp-clone", "seccomp-errno"] {
        let mut steady = Steady::start(&with_hazard(home.path(), 4, hazard));
        let release = steady.release().unwrap();
        assert_eq!(release.outcome, ReleaseOutcome::Refused, "{release:?}");
        assert_eq!(release.hazard, Some(Hazard::Seccomp), "{release:?}");
        is_untouched(&mut steady, hazard);
    }
}

#[test]
fn a_program_that_denies_writable_and_executable_memory_is_refused() {
    let home = tempfile::tempdir().unwrap();
    for threads in [1, 4] {
        let kind = with_hazard(home.path(), threads, "mdwe");
        // Kernels before 6.3 do not know it.
        let Some(mut steady) = Steady::try_start(&kind) else { return };
        let release = steady.release().unwrap();
        assert_eq!(release.outcome, ReleaseOutcome::Refused, "{release:?}");
        assert_eq!(release.hazard, Some(Hazard::WriteExecuteDenied), "{release:?}");
        is_untouched(&mut steady, "mdwe");
    }
}

/// A memory cgroup. Dropping this removes it, when no process is in it any more.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(name: &str) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let root = if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") };
        let group = root.join(format!("lowtide-test-{name}-{}", std::process::id()));
        fs::create_dir(&group).expect("root may make memory cgroups");
        Self(group)
    }

    /// Writes to a file, by its name in version 1 or 2.
    fn write(&self, names: [&str; 2], value: u64) {
        let mut files = names.iter().map(|name| self.0.join(name));
        let file = files.find(|file| file.exists()).expect("the group has the memory controller");
        fs::write(&file, value.to_string()).unwrap();
    }

    fn limit(&self, bytes: u64) {
        self.write(["memory.limit_in_bytes", "memory.max"], bytes);
    }

    fn usage(&self) -> u64 {
        let names = ["memory.usage_in_bytes", "memory.current"];
        let text = names.iter().find_map(|name| fs::read_to_string(self.0.join(name)).ok());
        text.unwrap().trim().parse().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "needs root, to make a memory cgroup"]
fn a_release_needs_memory_of_the_cgroup() {
    const MIB: u64 = 1 << 20;
    let home = tempfile::tempdir().unwrap();
    let group = MemoryGroup::new("headroom");
    let mut steady = Steady::start(&with_hazard(home.path(), 4, ""));
    group.write(["cgroup.procs", "cgroup.procs"], steady.pid.into());
    // Its memory is charged to where it was allocated: this is allocated here.
    steady.hoard();
    group.limit(group.usage() + MIB / 2);
    let release = steady.release().unwrap();
    assert_eq!(release.hazard, Some(Hazard::NoHeadroom), "{release:?}");
    is_untouched(&mut steady, "no headroom");
    group.limit(group.usage() + 8 * MIB);
    release_goes_through(&mut steady, "headroom");
    drop(steady);
}

#[test]
fn a_release_succeeds_where_the_kernel_permits_its_code_to_be_written_by_words_only() {
    let home = tempfile::tempdir().unwrap();
    for threads in [1, 4] {
        let kind = Kind { words_only: true, ..with_hazard(home.path(), threads, "") };
        release_goes_through(&mut Steady::start(&kind), "words only");
    }
}

#[test]
fn a_release_succeeds_where_threads_must_not_read_the_time_stamp_counter() {
    let home = tempfile::tempdir().unwrap();
    for threads in [1, 4] {
        let mut steady = Steady::start(&with_hazard(home.path(), threads, "no-tsc"));
        release_goes_through(&mut steady, "no-tsc");
    }
}

#[test]
fn a_full_address_space_is_reported_and_nothing_is_left_behind() {
    let home = tempfile::tempdir().unwrap();
    for threads in [1, 4] {
        let mut steady = Steady::start(&with_hazard(home.path(), threads, "address-space"));
        let Err(ReleaseError::Failed(why)) = steady.release() else { panic!("it went through") };
        assert!(why.contains("address space"), "{why}");
        is_untouched(&mut steady, "address-space");
    }
}

#[test]
fn an_exhausted_thread_limit_is_reported_and_nothing_is_left_behind() {
    let home = tempfile::tempdir().unwrap();
    let mut steady = Steady::start(&with_hazard(home.path(), 4, "threads"));
    let Err(ReleaseError::Failed(why)) = steady.release() else { panic!("it went through") };
    assert!(why.contains("limits"), "{why}");
    is_untouched(&mut steady, "threads");
}

#[test]
fn a_program_without_a_waiting_thread_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "steady.c", &[]);
    for threads in [1, 2] {
        let mut steady = Steady::start(&Kind::new(&program, threads, "spin"));
        let release = steady.release().unwrap();
        assert_eq!(release.outcome, ReleaseOutcome::Refused, "{release:?}");
        assert_eq!(release.hazard, Some(Hazard::NoThread), "{release:?}");
        assert_eq!(steady.left_bytes(), 0);
        assert!(!steady.has_stopped());
    }
}

/// A release from another PID namespace has only that sign.
#[test]
fn a_release_shows_a_sign_of_life_while_its_code_is_mapped() {
    let home = tempfile::tempdir().unwrap();
    for (threads, runs_in) in [(1, RunsIn::Slices), (4, RunsIn::OwnThread)] {
        let mut steady = Steady::start(&with_hazard(home.path(), threads, ""));
        let (mut step, mut seen) = (0, 0);
        loop {
            let (release, is_there) = steady.release_until(step, |steady, now| {
                // The last thread that is stopped unmaps the code: from its stop on, nothing is
                // written. Before a write, the code may have been mapped a moment ago.
                use TargetStep::{Interrupt, Read, Seize, Wait};
                let [_, block] = &steady.left()[..] else { return };
                if ![Seize, Interrupt, Wait, Read].contains(&now) {
                    return;
                }
                let file = fs::File::open(format!("/proc/{}/mem", steady.pid)).unwrap();
                let read = || {
                    let mut page = vec![0; 4096];
                    file.read_exact_at(&mut page, block.start).unwrap();
                    page
                };
                let (before, begin) = (read(), Instant::now());
                while read() == before {
                    assert!(begin.elapsed() < DEADLINE, "{threads} threads, before {now:?} {step}");
                }
                seen += 1;
            });
            if !is_there {
                assert_eq!(release.unwrap().runs_in, Some(runs_in));
                break;
            }
            steady.hoard();
            step += 3;
        }
        assert!(seen > 2, "{seen} of {step} steps");
    }
}

/// Another release, which saw no sign of life for long, may have unmapped it.
#[test]
fn a_block_that_is_no_longer_that_of_this_release_is_not_entered() {
    let home = tempfile::tempdir().unwrap();
    let mut steady = Steady::start(&with_hazard(home.path(), 1, ""));
    let own = u64::from(std::process::id()).to_le_bytes();
    let mut step = 0;
    let release = loop {
        let mut is_changed = false;
        let (release, is_there) = steady.release_until(step, |steady, now| {
            let [_, block] = &steady.left()[..] else { return };
            let path = format!("/proc/{}/mem", steady.pid);
            let file = fs::File::options().read(true).write(true).open(path).unwrap();
            let mut page = vec![0; 4096];
            file.read_exact_at(&mut page, block.start).unwrap();
            let place = page.chunks_exact(8).position(|word| word == own);
            if let (TargetStep::Seize, Some(place)) = (now, place) {
                file.write_all_at(&[0; 8], block.start + 8 * place as u64).unwrap();
                is_changed = true;
            }
        });
        if is_changed {
            break release;
        }
        assert!(is_there, "{release:?}");
        steady.hoard();
        step += 1;
    };
    let said = release.unwrap_err().to_string();
    assert!(said.contains("another release has removed the code of lowtide"), "{said}");
    is_untouched(&mut steady, "the block of another");
}

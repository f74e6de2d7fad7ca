//! The policy process and its restarts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setpgid};

use super::end::ChildEnd;
use super::{OWN_FAILURE, child, message, signals};

/// Maximum number of restarts of the policy process.
const RESTARTS: u32 = 3;
/// Run time of a policy process after which its earlier failures are forgotten. In the life of a
/// service, the policy may be killed more often than the maximum, for instance whenever memory runs
/// out.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Pause before the first restart of the policy process. It doubles with each further restart.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Exit code of a policy that has panicked, as for any Rust program.
const PANICKED: u8 = 101;

/// The argument with which the policy is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyContext {
    /// PID of the service. It stays valid: when the service ends, the policy process gets SIGTERM.
    pub service: u32,
    /// PID of the reaper: all descendants of the service are its descendants.
    pub reaper: u32,
    /// Number of policy processes that have failed in succession, each within ten minutes of its
    /// start.
    pub failures: u32,
}

/// A policy.
#[derive(Clone, Copy)]
pub struct Policy<'a> {
    /// Called in a forked process. Returns the exit code of that process.
    pub run: &'a dyn Fn(PolicyContext) -> u8,
    /// Whether the kernel kills this process, rather than the service, when memory runs out. One
    /// that records the end of the service has to outlive it.
    pub is_first_victim: bool,
}

/// The policy process of a reaper.
pub(super) struct PolicyProcess<'a> {
    policy: Option<Policy<'a>>,
    reaper: Pid,
    context: PolicyContext,
    started: Instant,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Running(Pid),
    StartsAt(Instant),
    Ended,
}

impl<'a> PolicyProcess<'a> {
    /// Starts the policy process, if there is a policy.
    pub(super) fn start(policy: Option<Policy<'a>>, reaper: Pid, service: Pid) -> Self {
        let [service, of_reaper] = [service, reaper].map(|pid| pid.as_raw_nonzero().get() as u32);
        let context = PolicyContext { service, reaper: of_reaper, failures: 0 };
        let started = Instant::now();
        let mut process = Self { policy, reaper, context, started, state: State::Ended };
        process.fork();
        process
    }

    /// Returns the PID, unless it was reaped.
    pub(super) fn pid(&self) -> Option<Pid> {
        match self.state {
            State::Running(pid) => Some(pid),
            State::StartsAt(_) | State::Ended => None,
        }
    }

    /// Returns the time until the process is to be restarted.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self.state {
            State::StartsAt(time) => Some(time.saturating_duration_since(Instant::now())),
            State::Running(_) | State::Ended => None,
        }
    }

    /// Restarts the process when its pause is over.
    pub(super) fn start_if_due(&mut self) {
        if self.pause() == Some(Duration::ZERO) {
            self.fork();
        }
    }

    /// Handles the end of a child, which may be the policy process. `is_last`: the service has
    /// ended, so there is no restart.
    pub(super) fn reaped(&mut self, child: Pid, end: ChildEnd, is_last: bool) {
        if self.pid() == Some(child) {
            self.state = State::Ended;
            if !is_last {
                self.ended(end);
            }
        }
    }

    fn ended(&mut self, end: ChildEnd) {
        if end == ChildEnd::Exited(0) {
            return;
        }
        if self.started.elapsed() >= FORGOTTEN_AFTER {
            self.context.failures = 0;
        }
        let pause = pause_after(self.context.failures);
        self.context.failures = self.context.failures.saturating_add(1);
        message::policy_failed(end, pause);
        if let Some(time) = pause.and_then(|pause| Instant::now().checked_add(pause)) {
            self.state = State::StartsAt(time);
        }
    }

    fn fork(&mut self) {
        let Some(policy) = self.policy else { return };
        self.started = Instant::now();
        match child::fork() {
            Ok(Some(pid)) => self.state = State::Running(pid),
            Ok(None) => child::exit_now(self.be_policy(policy)),
            Err(_) => self.ended(ChildEnd::Exited(OWN_FAILURE)),
        }
    }

    /// Runs the policy in the forked process. Returns its exit code.
    fn be_policy(&self, policy: Policy<'_>) -> u8 {
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        // From here on, the signal is sent if the reaper ends.
        if getppid() != Some(self.reaper) {
            return OWN_FAILURE;
        }
        // Neither Ctrl-C nor a signal that the service sends to its group must reach the policy.
        let _ = setpgid(None, None);
        let _ = rustix::thread::set_name(c"lowtide-policy");
        if policy.is_first_victim {
            prefer_for_oom_kill();
        }
        signals::prepare_policy();
        catch_unwind(AssertUnwindSafe(|| (policy.run)(self.context))).unwrap_or(PANICKED)
    }
}

/// Makes the kernel kill this process, rather than the service, when memory runs out.
fn prefer_for_oom_kill() {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open("/proc/self/oom_score_adj", flags, Mode::empty()) {
        let _ = rustix::io::write(file, b"1000");
    }
}

/// Returns the pause after a failure that was preceded by others; `None` if the process is not
/// restarted.
fn pause_after(failures: u32) -> Option<Duration> {
    (failures < RESTARTS).then(|| FIRST_PAUSE.saturating_mul(1 << failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_fails_is_restarted_three_times_after_growing_pauses() {
        let pauses = [0, 1, 2, 3, u32::MAX].map(pause_after);
        assert_eq!(
            pauses.map(|pause| pause.map(|p| p.as_secs())),
            [Some(1), Some(2), Some(4), None, None]
        );
    }

    #[test]
    fn a_long_run_of_a_policy_resets_its_failure_count() {
        let mut policy = PolicyProcess::start(None, Pid::INIT, Pid::INIT);
        let killed = ChildEnd::Signalled(9);
        let failures = [FORGOTTEN_AFTER / 2, FORGOTTEN_AFTER].map(|ran| {
            policy.context.failures = RESTARTS;
            policy.started = Instant::now().checked_sub(ran).unwrap();
            policy.ended(killed);
            (policy.context.failures, policy.pause().is_some())
        });
        assert_eq!(failures, [(RESTARTS + 1, false), (1, true)]);
    }

    #[test]
    fn a_policy_that_succeeds_is_not_restarted() {
        let pid = Pid::INIT;
        let mut policy = PolicyProcess::start(None, pid, pid);
        policy.state = State::Running(pid);
        policy.reaped(pid, ChildEnd::Exited(0), false);
        assert_eq!((policy.pid(), policy.pause()), (None, None));
    }
}

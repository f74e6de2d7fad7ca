//! The entry point of a container: runs a service to completion, with a policy process next to it.
//!
//! The reaper is the parent of both. It forwards signals to the service, reaps every orphan, and
//! ends in the same way as the service. The policy runs in its own process, so that the service
//! survives any failure of it: a crash, a kill, or the out-of-memory killer.
//!
//! - The service starts as if the reaper had executed it: with the inherited signal mask and
//!   dispositions, process group, file descriptors, limits and working directory.
//! - It shares the process group, for the job control of a shell. A signal that the terminal sends
//!   to the group reaches the service once, one that another process sends to the group twice, as
//!   under `timeout`.
//! - All signals are forwarded, except for those of faults (such as SIGSEGV), those that the
//!   service itself sends, and those with which a shell stops and continues the group, unless the
//!   reaper is PID 1.
//! - The reaper releases the inherited file descriptors, except for stderr: a reader of the
//!   service's stdout reaches the end of the file when the service closes it.
//! - The policy process has its own process group: signals to the service's group do not reach it.
//! - Descendants that outlive the service are left alone. If the reaper is PID 1, the kernel kills
//!   them.
//! - A process that dies while another one traces it becomes visible to its parent when the tracer
//!   detaches. A policy that hangs while it traces the service therefore hides the end of the
//!   service.
//!
//! Once the service and the policy have started, the reaper makes no allocation on the heap.

mod child;
mod descriptors;
mod end;
mod error;
mod message;
mod policy;
mod received;
mod service;
mod signals;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

pub use end::ChildEnd;
pub use error::{ReaperError, ServiceError};
pub use policy::{Policy, PolicyContext};
pub use service::ServiceCommand;

use descriptors::InheritedDescriptors;
use policy::PolicyProcess;
use received::Addressees;
use signals::InheritedSignals;

/// Exit code of a failure of lowtide itself, as for `env` and `timeout`.
pub const OWN_FAILURE: u8 = 125;

/// Maximum time for the policy to complete its current work after the service has ended.
const POLICY_GRACE: Duration = Duration::from_secs(2);
/// Maximum number of children to reap before signals are forwarded again.
const REAPED_PER_TURN: usize = 64;

/// Runs a service to completion.
///
/// If the process of the policy fails, it is restarted, at most three times. It gets SIGTERM when
/// the service ends, and SIGKILL two seconds later.
///
/// When this returns, signals are still blocked, and after a success stdin and stdout are
/// `/dev/null`: the caller can print an error to stderr and ends the process, by
/// [`ChildEnd::pass_on`] or [`ReaperError::code`].
///
/// # Errors
/// Fails if the service cannot be started. Refuses to start it if this process has other threads:
/// locks that they hold would stay locked in the forked processes.
pub fn run(service: &ServiceCommand, policy: Option<Policy<'_>>) -> Result<ChildEnd, ReaperError> {
    child::require_single_thread()?;
    let us = getpid();
    let inherited = InheritedSignals::take(us.is_init());
    let descriptors = InheritedDescriptors::list()?;
    // A PID other than zero sets the attribute.
    rustix::process::set_child_subreaper(Some(us))
        .map_err(error::system("become a child subreaper"))?;
    let pid = child::start(service, &inherited)?;
    descriptors.release();
    let mut reaper = Reaper {
        addressees: Addressees {
            us: us.as_raw_nonzero().get(),
            service: pid.as_raw_nonzero().get(),
            leads_session: child::leads_session(),
        },
        signals: inherited.blocked(),
        service: pid,
        end: None,
        policy: PolicyProcess::start(policy, us, pid),
    };
    Ok(reaper.run())
}

/// The state of a reaper that has started its service.
struct Reaper<'a> {
    addressees: Addressees,
    signals: signals::Blocked,
    service: Pid,
    end: Option<ChildEnd>,
    policy: PolicyProcess<'a>,
}

impl Reaper<'_> {
    fn run(&mut self) -> ChildEnd {
        loop {
            let may_be_more = self.reap();
            if let Some(end) = self.end {
                self.stop_policy();
                return end;
            }
            self.policy.start_if_due();
            let timeout = if may_be_more { Some(Duration::ZERO) } else { self.policy.pause() };
            if let Some(signal) = self.signals.wait(timeout)
                && signal.is_for_service(self.addressees)
            {
                signal.forward(self.addressees.service);
            }
        }
    }

    /// Reaps children that have ended. Returns whether there may be more.
    fn reap(&mut self) -> bool {
        for _ in 0..REAPED_PER_TURN {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.service => {
                    self.end = Some(ChildEnd::new(status));
                }
                Ok(Some((pid, status))) => {
                    self.policy.reaped(pid, ChildEnd::new(status), self.end.is_some());
                }
                Ok(None) => return false,
                // No child is left. The service was a child, unless its end is known.
                Err(_) => {
                    self.end.get_or_insert(ChildEnd::Exited(OWN_FAILURE));
                    return false;
                }
            }
        }
        true
    }

    /// Ends the policy process: sends SIGTERM, and kills the process if it takes too long.
    fn stop_policy(&mut self) {
        for signal in [Signal::TERM, Signal::KILL] {
            let Some(policy) = self.policy.pid() else { return };
            let _ = kill_process(policy, signal);
            // A stopped process handles SIGTERM only when it is continued.
            let _ = kill_process(policy, Signal::CONT);
            let asked = Instant::now();
            while self.policy.pid().is_some() {
                let remaining = POLICY_GRACE.saturating_sub(asked.elapsed());
                if remaining.is_zero() {
                    break;
                }
                // Signals for the service come too late; SIGCHLD ends the wait.
                let _ = self.signals.wait(Some(remaining));
                self.reap();
            }
        }
    }
}

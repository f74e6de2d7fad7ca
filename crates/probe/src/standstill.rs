//! Whether a process ran during a watch. What did not run cannot have grown, and shows nothing
//! about growth.

use std::fs;
use std::time::Duration;

use crate::proc::task::{Thread, threads};
use crate::target::Target;

/// The time that each thread of a process has run.
#[derive(Debug, PartialEq, Eq)]
pub struct RunTimes(Vec<(Thread, Duration)>);

/// Why a process did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standstill {
    /// A signal or a tracer has stopped it.
    Stopped,
    /// Its cgroup is frozen.
    Frozen,
    /// All its threads waited.
    Waited,
}

impl RunTimes {
    /// Reads the times of a process; `None` if the kernel does not report them, or if a thread ends
    /// meanwhile.
    pub fn read(pid: u32) -> Option<Self> {
        let with_time = |thread: Thread| thread.ran().map(|time| (thread, time));
        threads(pid).ok()?.into_iter().map(with_time).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Returns why a process has not run since these times; `None` if it has run, or if that is not
    /// known.
    pub fn standstill(&self, target: &Target) -> Option<Standstill> {
        if self.0.is_empty() || Self::read(target.pid)? != *self {
            return None;
        }
        let is_stopped = target.status().is_ok_and(|status| status.is_stopped());
        Some(match is_stopped {
            true => Standstill::Stopped,
            false if is_frozen(target) => Standstill::Frozen,
            false => Standstill::Waited,
        })
    }
}

/// Returns whether the first thread waits in the kernel's freezer, by the function in which it
/// waits (kernel/freezer.c, kernel/cgroup/freezer.c).
fn is_frozen(target: &Target) -> bool {
    let waits_in = fs::read_to_string(target.path("wchan")).unwrap_or_default();
    ["do_freezer_trap", "__refrigerator", "cgroup_enter_frozen", "cgroup_leave_frozen"]
        .contains(&waits_in.trim())
}

impl Standstill {
    /// Returns a sentence about a process that a watch has seen nothing of.
    pub fn sentence(self, pid: u32) -> String {
        match self {
            Self::Stopped => format!("process {pid} was stopped, and did not run"),
            Self::Frozen => format!("the cgroup of process {pid} is frozen, so it did not run"),
            Self::Waited => format!("no thread of process {pid} ran: all of them waited"),
        }
    }

    /// Returns whether it needs someone else to run again, so that the watch says nothing about
    /// growth.
    pub fn is_forced(self) -> bool {
        self != Self::Waited
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use lowtide_testing::{Running, until_true};
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_stopped_process_stands_still_and_one_that_runs_does_not() {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let child = Running::from(child);
        let target = Target::open_to_read(child.id()).unwrap();
        let ran = RunTimes::read(child.id()).unwrap();
        until_true("it runs", || RunTimes::read(child.id()).is_some_and(|now| now != ran));
        assert_eq!(ran.standstill(&target), None);
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        until_true("it is stopped", || target.status().is_ok_and(|status| status.is_stopped()));
        let ran = RunTimes::read(child.id()).unwrap();
        assert_eq!(ran.standstill(&target), Some(Standstill::Stopped));
    }
}

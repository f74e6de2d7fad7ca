//! A process to inspect: its pidfd and start time, not only its PID.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use crate::proc::stat::Stat;
use crate::proc::status::Status;
use crate::proc::{is_gone, maps};

/// A process to inspect.
#[derive(Debug)]
pub struct Target {
    /// PID in lowtide's namespace.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// A pidfd of this process, which stays valid if its PID is reused.
    handle: OwnedFd,
}

/// The reason why a process cannot be inspected.
#[derive(Debug, Error)]
pub enum TargetError {
    /// No process has this PID.
    #[error("there is no process {0}: it may have ended; pgrep -a NAME finds others")]
    NoSuchProcess(u32),
    /// It is a kernel thread.
    #[error("process {0} is a kernel thread, which has no memory of its own")]
    KernelThread(u32),
    /// It has already ended (a zombie).
    #[error("process {0} has ended and waits for its parent (a zombie): it no longer has memory")]
    Zombie(u32),
    /// Its first thread has ended, and others continue: the kernel shows a process by its first thread.
    #[error(
        "the first thread of process {0} has ended while others continue, and the kernel shows no memory \
         for its PID: cat /proc/{0}/task/*/smaps_rollup shows that of the other threads"
    )]
    FirstThreadEnded(u32),
    /// It ended during the inspection.
    #[error("process {0} ended during the inspection")]
    Gone(u32),
    /// It executed another program, and did so again during another attempt.
    #[error("process {0} executed another program during the inspection: try again")]
    Replaced(u32),
    /// Reading it does not finish.
    #[error(
        "process {0} cannot be inspected: reading it has made no progress for 5 s. A file system that it uses, \
         or a program that serves its memory, does not respond: cat /proc/{0}/mountinfo lists its file systems"
    )]
    Blocked(u32),
    /// Something else.
    #[error("process {0} cannot be inspected: {1}")]
    Other(u32, io::Error),
}

impl Target {
    /// Opens a process.
    ///
    /// # Errors
    /// Fails if no process has this PID, or if it has no memory to inspect.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        let failed = |error: io::Error| match () {
            () if is_gone(&error) => TargetError::NoSuchProcess(pid),
            () => TargetError::Other(pid, error),
        };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(TargetError::NoSuchProcess(pid))?;
        let handle = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(handle) => handle,
            // The PID belongs to a thread, not a process.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
                return Err(TargetError::NoSuchProcess(pid));
            }
            Err(error) => return Err(failed(error.into())),
        };
        let stat = read_stat(pid).map_err(failed)?;
        if stat.has_ended() {
            return Err(match stat.threads {
                0 | 1 => TargetError::Zombie(pid),
                _ => TargetError::FirstThreadEnded(pid),
            });
        }
        if stat.is_kernel_thread() {
            return Err(TargetError::KernelThread(pid));
        }
        Ok(Self { pid, start_ticks: stat.start_ticks, handle })
    }

    /// Opens the same process a second time.
    ///
    /// # Errors
    /// Fails if no more files can be opened.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { handle: self.handle.try_clone()?, ..*self })
    }

    /// Returns its pidfd.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Returns whether it is still running.
    pub fn is_alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Waits until it ends or the time is over. Returns whether it has ended. A signal makes it return early,
    /// with `false`.
    pub fn ends_within(&self, time: Duration) -> bool {
        // A pidfd becomes readable when its process ends.
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let timeout = Timespec::try_from(time).ok();
        matches!(poll(&mut fds, timeout.as_ref()), Ok(1..))
    }

    /// Reads its current `/proc/PID/stat`.
    ///
    /// # Errors
    /// Fails if it has ended, or if its PID was reused.
    pub fn stat(&self) -> Result<Stat, TargetError> {
        match read_stat(self.pid) {
            Ok(stat) if stat.start_ticks == self.start_ticks && !stat.has_ended() => Ok(stat),
            Ok(_) => Err(TargetError::Gone(self.pid)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Reads its current `/proc/PID/status`.
    ///
    /// # Errors
    /// Fails if it may not be read, or it has ended.
    pub fn status(&self) -> Result<Status, TargetError> {
        let text = fs::read(self.path("status")).map_err(|error| self.failed(error))?;
        let status = Status::parse(&String::from_utf8_lossy(&text));
        status.map_err(|error| self.failed(error.into()))
    }

    /// Reads its current mappings, in order of address.
    ///
    /// # Errors
    /// Fails if they may not be read, or if it has ended; [`Target::failed`] distinguishes the two.
    pub fn maps(&self) -> io::Result<Vec<maps::Mapping>> {
        self.each_mapping()?.collect()
    }

    /// Reads its mappings one by one, in order of address.
    ///
    /// # Errors
    /// Fails, or its items do, like [`Target::maps`].
    pub fn each_mapping(&self) -> io::Result<impl Iterator<Item = io::Result<maps::Mapping>>> {
        Ok(maps::read(BufReader::new(File::open(self.path("maps"))?)))
    }

    /// Returns the path of one of its files under `/proc`.
    pub fn path(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.pid)
    }

    /// Returns the meaning of a read error: that the process has ended, or the error itself.
    pub fn failed(&self, error: io::Error) -> TargetError {
        if is_gone(&error) || !self.is_alive() {
            TargetError::Gone(self.pid)
        } else {
            TargetError::Other(self.pid, error)
        }
    }
}

fn read_stat(pid: u32) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    Ok(Stat::parse(&String::from_utf8_lossy(&text))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn unknown_pids_and_zombies_are_distinct_errors() {
        assert!(matches!(Target::open(0), Err(TargetError::NoSuchProcess(0))));
        assert!(matches!(Target::open(u32::MAX), Err(TargetError::NoSuchProcess(_))));
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        while !read_stat(pid).unwrap().has_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(Target::open(pid), Err(TargetError::Zombie(_))));
        child.wait().unwrap();
        assert!(matches!(Target::open(pid), Err(TargetError::NoSuchProcess(_))));
    }

    #[test]
    fn a_target_reports_when_its_process_has_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        assert!(target.is_alive() && !target.ends_within(Duration::from_millis(1)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!target.is_alive() && target.ends_within(Duration::from_secs(3600)));
        assert!(matches!(target.stat(), Err(TargetError::Gone(_))));
    }
}

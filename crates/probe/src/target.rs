//! A process to inspect: its open `/proc/PID` and start time, not only its PID.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_model::text::reason;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use thiserror::Error;

use crate::proc::directory::ProcessDirectory;
use crate::proc::stat::Stat;
use crate::proc::status::Status;
use crate::proc::task::{Thread, program_threads};
use crate::proc::{is_gone, maps};
use crate::process::Units;

/// Time between two checks whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Number of intervals to wait for the other threads of a process whose first thread has ended.
const MAX_POLLS: u32 = 10;

/// A process to inspect.
#[derive(Debug)]
pub struct Target {
    /// PID in lowtide's namespace, or the TID by which the process is read
    /// ([`Target::open_to_read`]).
    pub pid: u32,
    /// PID in lowtide's namespace.
    pub process: u32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    directory: ProcessDirectory,
}

/// The reason why a process cannot be inspected.
#[derive(Debug, Error)]
pub enum TargetError {
    /// No process has this PID.
    #[error("there is no process {0}: it may have ended; pgrep -a NAME finds others")]
    NoSuchProcess(u32),
    /// `/proc` does not show it to the user.
    #[error(
        "process {0} is hidden: /proc is mounted with hidepid, so reading it requires CAP_SYS_PTRACE, running \
         lowtide as the user of the process, or the group that the mount option gid names"
    )]
    Hidden(u32),
    /// It is a kernel thread.
    #[error("process {0} is a kernel thread, which has no memory of its own")]
    KernelThread(u32),
    /// It has already ended (a zombie).
    #[error("process {0} has ended and waits for its parent (a zombie): it no longer has memory")]
    Zombie(u32),
    /// Its first thread has ended, and others continue: the kernel shows a process by its first
    /// thread.
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
        "process {0} cannot be inspected: reading it makes no progress. A file system that it uses, \
         or a program that serves its memory, does not respond: cat /proc/{0}/mountinfo lists its file systems"
    )]
    Blocked(u32),
    /// Reading it takes too long.
    #[error(
        "process {0} cannot be inspected: reading it takes too long. A file system that it uses, or a program that \
         serves its memory, may be slow"
    )]
    Slow(u32),
    /// Something else.
    #[error("process {0} cannot be inspected: {why}", why = reason(.1))]
    Other(u32, io::Error),
}

impl Target {
    /// Opens a process.
    ///
    /// # Errors
    /// Fails if no process has this PID, or if it has no memory to inspect.
    pub fn open(pid: u32) -> Result<Self, TargetError> {
        let failed = |error: io::Error| match () {
            () if is_gone(&error) && is_hidden(pid) => TargetError::Hidden(pid),
            () if is_gone(&error) => TargetError::NoSuchProcess(pid),
            () => TargetError::Other(pid, error),
        };
        let directory = ProcessDirectory::open(pid).map_err(failed)?;
        let mut stat = directory.stat().map_err(failed)?;
        // Where a process exits, its first thread can end a moment before the others.
        for _ in 0..MAX_POLLS {
            if !stat.has_ended() || stat.threads <= 1 {
                break;
            }
            thread::sleep(POLL_INTERVAL);
            stat = directory.stat().map_err(failed)?;
        }
        // The TID of another thread of a process has a directory as well.
        if read_status(&directory).map_err(failed)?.process != pid {
            return Err(TargetError::NoSuchProcess(pid));
        }
        if stat.has_ended() {
            return Err(match stat.threads {
                0 | 1 => TargetError::Zombie(pid),
                _ => TargetError::FirstThreadEnded(pid),
            });
        }
        if stat.is_kernel_thread() {
            return Err(TargetError::KernelThread(pid));
        }
        Ok(Self { pid, process: pid, start_ticks: stat.start_ticks, directory })
    }

    /// Opens a process to read it, also if its first thread has ended while others continue: the
    /// kernel shows the memory of such a process by its other threads only. The PID of the target
    /// is then the TID of one of them ([`Target::is_by_thread`]), and nothing may be changed by it.
    ///
    /// # Errors
    /// Fails like [`Target::open`].
    pub fn open_to_read(pid: u32) -> Result<Self, TargetError> {
        let error = match Self::open(pid) {
            Err(error @ TargetError::FirstThreadEnded(_)) => error,
            opened => return opened,
        };
        let of_thread = |thread: Thread| {
            let directory = ProcessDirectory::open(thread.tid).ok()?;
            let is_of_it = read_status(&directory).ok()?.process == pid;
            let stat = directory.stat().ok().filter(|stat| is_of_it && !stat.has_ended())?;
            let (tid, start_ticks) = (thread.tid, stat.start_ticks);
            Some(Self { pid: tid, process: pid, start_ticks, directory })
        };
        let threads = program_threads(pid).unwrap_or_default();
        threads.into_iter().find_map(of_thread).ok_or(error)
    }

    /// Returns whether this is a thread of a process whose first thread has ended, as
    /// [`Target::open_to_read`] opened it.
    pub fn is_by_thread(&self) -> bool {
        self.pid != self.process
    }

    /// Opens the same process a second time.
    ///
    /// # Errors
    /// Fails if no more files can be opened.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, ..*self })
    }

    /// Returns the time since it was started; `None` if the clock of the machine cannot be read.
    pub fn age(&self) -> Option<Duration> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let now = Duration::try_from(now).ok()?;
        let ticks_per_s = Units::of_this_machine().ticks_per_s;
        let started = Duration::try_from_secs_f64(self.start_ticks as f64 / ticks_per_s).ok()?;
        Some(now.saturating_sub(started))
    }

    /// Opens a pidfd of it, for system calls that require one.
    ///
    /// # Errors
    /// Fails on kernels before 5.3 ([`io::ErrorKind::Unsupported`]), if it has ended, or if no more
    /// files can be opened.
    pub fn pidfd(&self) -> io::Result<OwnedFd> {
        let gone = rustix::io::Errno::SRCH;
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(gone)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // If it is alive, its PID was its own when the pidfd was opened.
        if self.is_alive() { Ok(pidfd) } else { Err(gone.into()) }
    }

    /// Returns whether it is still running.
    pub fn is_alive(&self) -> bool {
        !self.directory.has_ended()
    }

    /// Waits until it ends or the time is over. Returns whether it has ended.
    pub fn ends_within(&self, time: Duration) -> bool {
        let begin = Instant::now();
        while self.is_alive() {
            let rest = time.saturating_sub(begin.elapsed());
            if rest.is_zero() {
                return false;
            }
            thread::sleep(rest.min(POLL_INTERVAL));
        }
        true
    }

    /// Reads its current `/proc/PID/stat`.
    ///
    /// # Errors
    /// Fails if it has ended.
    pub fn stat(&self) -> Result<Stat, TargetError> {
        match self.directory.stat() {
            Ok(stat) if !stat.has_ended() => Ok(stat),
            Ok(_) => Err(TargetError::Gone(self.pid)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Reads its current `/proc/PID/status`.
    ///
    /// # Errors
    /// Fails if it may not be read, or it has ended.
    pub fn status(&self) -> Result<Status, TargetError> {
        read_status(&self.directory).map_err(|error| self.failed(error))
    }

    /// Reads its current mappings, in order of address.
    ///
    /// # Errors
    /// Fails if they are too many, may not be read, or if it has ended; [`Target::failed`]
    /// distinguishes these.
    pub fn maps(&self) -> io::Result<Vec<maps::Mapping>> {
        maps::read_all(BufReader::new(self.directory.file("maps")?))
    }

    /// Opens one of its files under `/proc`.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        self.directory.file(name)
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

/// Returns whether a process without a directory in `/proc` exists: `/proc` hides only processes of
/// other users.
fn is_hidden(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::PERM))
}

fn read_status(directory: &ProcessDirectory) -> io::Result<Status> {
    Ok(Status::parse(&directory.text("status")?)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use lowtide_testing::{Running, until_true};

    use super::*;

    #[test]
    fn unknown_pids_and_zombies_are_distinct_errors() {
        assert!(matches!(Target::open(0), Err(TargetError::NoSuchProcess(0))));
        assert!(matches!(Target::open(u32::MAX), Err(TargetError::NoSuchProcess(_))));
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        let directory = ProcessDirectory::open(pid).unwrap();
        while !directory.has_ended() {
            thread::yield_now();
        }
        assert!(matches!(Target::open(pid), Err(TargetError::Zombie(_))));
        child.wait().unwrap();
        assert!(matches!(Target::open(pid), Err(TargetError::NoSuchProcess(_))));
    }

    #[test]
    fn the_tid_of_another_thread_is_not_a_process() {
        let tid = || crate::proc::task::Thread::current().tid;
        let opened = thread::spawn(move || Target::open(tid())).join().unwrap();
        assert!(matches!(opened, Err(TargetError::NoSuchProcess(_))), "{opened:?}");
        assert!(Target::open(std::process::id()).is_ok());
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_read_by_another_one() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("first");
        let source = home.path().join("first.c");
        let text = "#include <pthread.h>\n#include <unistd.h>\n\
                    static void *wait_for_ever(void *p) { for (;;) pause(); return p; }\n\
                    int main(void) { pthread_t t; pthread_create(&t, 0, wait_for_ever, 0); pthread_exit(0); }\n";
        std::fs::write(&source, text).unwrap();
        lowtide_testing::compile(&program, [Path::new("-pthread"), &source]);
        let mut child = Running::from(Command::new(&program).spawn().unwrap());
        let pid = child.id();
        until_true("its first thread has ended", || {
            matches!(Target::open(pid), Err(TargetError::FirstThreadEnded(_)))
        });
        let target = Target::open_to_read(pid).unwrap();
        assert!(target.is_by_thread() && target.process == pid && target.is_alive());
        assert!(target.status().unwrap().rss_bytes() > 0);
        assert!(target.maps().unwrap().iter().any(|mapping| mapping.name.ends_with("/first")));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!target.is_alive());
    }

    #[test]
    fn a_target_reports_when_its_process_has_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        assert!(target.is_alive() && !target.ends_within(Duration::from_millis(1)));
        child.kill().unwrap();
        // Still a zombie.
        assert!(target.ends_within(Duration::from_secs(3600)));
        child.wait().unwrap();
        assert!(!target.is_alive() && target.ends_within(Duration::from_secs(3600)));
        assert!(matches!(target.stat(), Err(TargetError::Gone(_))));
        assert!(is_gone(&target.pidfd().unwrap_err()));
    }
}

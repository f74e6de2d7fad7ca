//! The end of a process during a release: how it ended.

use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use lowtide_probe::pressure::PressureSource;
use lowtide_probe::target::Target;

/// A process that ended during a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndDuringRelease {
    /// Its PID.
    pub pid: u32,
    /// How it ended; `None` if the kernel does not say.
    pub how: Option<EndKind>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// The kernel killed it because its memory cgroup, or the machine, had no memory left.
    OomKilled,
    /// A signal ended it.
    Signal(i32),
    /// It exited, with this code.
    Exited(i32),
}

impl EndDuringRelease {
    /// Returns whether the release may have caused it.
    pub fn may_be_caused(&self) -> bool {
        match self.how {
            Some(EndKind::OomKilled) => true,
            Some(EndKind::Signal(signal)) => FAULTS.contains(&signal),
            Some(EndKind::Exited(_)) | None => false,
        }
    }
}

impl fmt::Display for EndDuringRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid;
        match self.how {
            None => write!(f, "process {pid} ended during the release"),
            Some(EndKind::Exited(code)) => {
                write!(f, "process {pid} exited during the release, with code {code}")
            }
            Some(EndKind::OomKilled) => write!(
                f,
                "process {pid} was killed by the OOM killer during the release: its memory cgroup, or the machine, \
                 had no memory left"
            ),
            Some(EndKind::Signal(signal)) => {
                write!(f, "process {pid} ended during the release, by {}", name_of(signal))?;
                match FAULTS.contains(&signal) {
                    true => write!(
                        f,
                        ": if it does not end like this without lowtide, please report it"
                    ),
                    false => Ok(()),
                }
            }
        }
    }
}

/// Signals that a fault of a release could cause.
const FAULTS: [i32; 7] = [
    libc::SIGSYS,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGFPE,
    libc::SIGABRT,
];

/// The names of the signals from 1 on, as on x86 and ARM (signal(7)).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Returns the name of a signal, such as `SIGSYS`, or its number.
fn name_of(signal: i32) -> String {
    let place = usize::try_from(signal).ok().and_then(|number| number.checked_sub(1));
    let name = place.and_then(|place| NAMES.get(place));
    name.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name}"))
}

/// What is read before a release, to learn afterwards how the process has ended.
#[derive(Debug)]
pub(crate) struct EndWatch {
    pid: u32,
    /// Before 5.3, there is none.
    pidfd: Option<OwnedFd>,
    source: PressureSource,
    oom_kills: Option<u64>,
}

impl EndWatch {
    /// Starts to watch a process.
    pub(crate) fn new(target: &Target) -> Self {
        let pid = target.pid;
        let source = PressureSource::for_process(pid);
        let oom_kills = source.oom_kills();
        Self { pid, pidfd: target.pidfd().ok(), source, oom_kills }
    }

    /// Returns the end of the process, which has ended.
    pub(crate) fn end(&self) -> EndDuringRelease {
        let was_oom = || self.source.oom_kills() > self.oom_kills;
        let status = self.pidfd.as_ref().and_then(exit_status).or_else(|| zombie_status(self.pid));
        let how = status.map(|status| match libc::WTERMSIG(status) {
            _ if libc::WIFEXITED(status) => EndKind::Exited(libc::WEXITSTATUS(status)),
            libc::SIGKILL if was_oom() => EndKind::OomKilled,
            signal => EndKind::Signal(signal),
        });
        let how = how.or_else(|| was_oom().then_some(EndKind::OomKilled));
        EndDuringRelease { pid: self.pid, how }
    }
}

/// Returns the status of a process that has ended, as wait(2) would (include/uapi/linux/pidfd.h,
/// from 6.15 on).
#[expect(unsafe_code, reason = "an ioctl that neither libc nor rustix has")]
fn exit_status(pidfd: &OwnedFd) -> Option<i32> {
    /// `struct pidfd_info`, as far as its first version goes.
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    /// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
    const GET_INFO: u32 = 3 << 30 | (size_of::<PidfdInfo>() as u32) << 16 | 0xff << 8 | 11;
    /// `PIDFD_INFO_EXIT`.
    const EXIT: u64 = 1 << 3;
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the request says how many bytes the structure has, and the kernel reads and writes no
    // more than that at its address; it outlives the call.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut info) };
    (done == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}

/// Returns the status of a process that its parent has not waited for, from the last field of its
/// `stat`. It is 0 for a caller who may not trace the process.
fn zombie_status(pid: u32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let is_zombie = fields.next() == Some("Z");
    fields.next_back()?.parse().ok().filter(|status| is_zombie && *status != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns how a command ended that waits for a line of its input.
    fn end_of(script: &str) -> Option<EndKind> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read line; {script}")]).stdin(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        let watch = EndWatch::new(&target);
        drop(child.stdin.take());
        while target.is_alive() {
            std::thread::yield_now();
        }
        // As long as it is a zombie, every kernel knows it.
        let end = watch.end();
        child.wait().unwrap();
        assert_eq!(end.pid, child.id());
        end.how
    }

    #[test]
    fn the_signal_that_ended_a_process_is_named() {
        assert_eq!(end_of("kill -SYS $$"), Some(EndKind::Signal(libc::SIGSYS)));
        assert_eq!(end_of("exit 3"), Some(EndKind::Exited(3)));
        let sentence = |how| EndDuringRelease { pid: 7, how }.to_string();
        let killed = sentence(Some(EndKind::Signal(libc::SIGKILL)));
        assert_eq!(killed, "process 7 ended during the release, by SIGKILL");
        assert!(sentence(Some(EndKind::Signal(libc::SIGSYS))).contains("by SIGSYS: if it"));
        let may_be_caused = |how| EndDuringRelease { pid: 7, how }.may_be_caused();
        assert!(may_be_caused(Some(EndKind::Signal(libc::SIGSYS))));
        assert!(!may_be_caused(Some(EndKind::Exited(3))) && !may_be_caused(None));
        assert!(sentence(Some(EndKind::Signal(40))).contains("by signal 40"));
    }
}

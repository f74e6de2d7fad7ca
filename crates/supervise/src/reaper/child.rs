//! Forks of the reaper.

#![expect(unsafe_code, reason = "fork(2), _exit(2) and getsid(2)")]

use std::io;
use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PTracer, Pid, WaitOptions, getpid, set_ptracer, waitpid};

use super::OWN_FAILURE;
use super::error::{ReaperError, system};
use super::service::ServiceCommand;
use super::signals::InheritedSignals;

/// Fails if this process has more than one thread, as far as `/proc` shows them.
pub(super) fn require_single_thread() -> Result<(), ReaperError> {
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(threads) if threads > 1 => Err(ReaperError::Threads(threads)),
        _ => Ok(()),
    }
}

/// Forks this process, which must have one thread. Returns the PID of the child, and none in the
/// child.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: there is no other thread ([`require_single_thread`]; the reaper starts none) that
    // could hold a lock or have left data incomplete, so that the child can do what the parent
    // could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the process at once: a forked child does not run the exit handlers of its parent.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: it takes a number, and runs no code of this process.
    unsafe { libc::_exit(code.into()) }
}

/// Returns whether this process is the leader of its session. The leader may be outside the PID
/// namespace: it then has the PID 0, for which rustix has no value.
pub(super) fn leads_session() -> bool {
    // SAFETY: they take a number and return one; 0 is this process.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Starts a service. Returns its PID once it runs the program.
pub(super) fn start(
    service: &ServiceCommand,
    inherited: &InheritedSignals,
) -> Result<Pid, ReaperError> {
    let (result, failure) = pipe_with(PipeFlags::CLOEXEC).map_err(system("create a pipe"))?;
    let reaper = getpid();
    let Some(pid) = fork().map_err(system("fork"))? else {
        // For Yama: the policy, a descendant of the reaper, may trace the service. Without Yama it
        // fails.
        let _ = set_ptracer(PTracer::ProcessID(reaper));
        inherited.restore();
        let errno = service.exec();
        let _ = rustix::io::write(&failure, &errno.to_ne_bytes());
        exit_now(OWN_FAILURE)
    };
    drop(failure);
    match read_errno(&result) {
        None => Ok(pid),
        Some(errno) => {
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(failed(service, errno))
        }
    }
}

/// Reads the error of execve(2). There is none if execve closed the pipe.
fn read_errno(pipe: impl AsFd) -> Option<i32> {
    let mut bytes = [0; size_of::<i32>()];
    let count = rustix::io::retry_on_intr(|| rustix::io::read(&pipe, &mut bytes));
    // A pipe accepts this few bytes at once, so they are written, and read, as a whole.
    (count == Ok(bytes.len())).then_some(i32::from_ne_bytes(bytes))
}

fn failed(service: &ServiceCommand, errno: i32) -> ReaperError {
    let program = service.program().to_owned();
    match errno {
        libc::ENOENT => ReaperError::NotFound { program },
        _ => {
            let source = io::Error::from_raw_os_error(errno);
            ReaperError::NotExecutable { program, source }
        }
    }
}

//! A thread of the target that is stopped, and how it resumes.

use std::io;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::Thread;

use super::tracee::{Registers, Stop, Tracee};
use super::wait::{Resume, Timeout};
use super::{STOP_TIMEOUT, Step};
use crate::stub::SYSCALL_BYTES;

/// A thread that is stopped at a safe point. Dropping it lets the thread continue.
pub(super) struct StoppedThread {
    pub(super) tracee: Tracee,
    pub(super) registers: Registers,
    pub(super) resume: Resume,
    /// Its registers when it resumes its call.
    pub(super) back: Registers,
    /// Its registers when a handler has interrupted its call.
    pub(super) interrupted: Registers,
    /// The remaining timeout, if it must be rewritten: its form, the time, and the instant of that time.
    pub(super) left: Option<(Timeout, Duration, Instant)>,
    pub(super) mask: u64,
    /// The signals that its call blocks while it waits, if they differ from the thread's own.
    pub(super) wait_mask: Option<u64>,
    pub(super) thread: Thread,
    /// The time of the stop.
    pub(super) since: Instant,
}

impl StoppedThread {
    /// Returns whether a pending signal may end the wait. A call with a signal mask of its own is not ended by the
    /// signals in that mask, even if the thread's mask lets them through.
    fn may_end(&self) -> bool {
        let Some(wait_mask) = self.wait_mask else { return true };
        self.thread.status().is_ok_and(|status| {
            let signals = status.signals;
            let pending = (signals.pending | signals.pending_shared) & signals.caught;
            pending & !self.mask & !wait_mask != 0
        })
    }

    /// Traces the thread while it makes `calls` calls, and puts it back to where it was before them, its wait just
    /// interrupted. The kernel continues from there: it restarts the wait, or, if a signal has come meanwhile, runs
    /// the handler and ends the wait with EINTR, as it would have done without the stop. Without the escort, the
    /// thread would restart its wait in any case, and a handler that runs before that would not end it.
    pub(super) fn escort(mut self, calls: usize, observe: &mut dyn FnMut(Step)) -> io::Result<()> {
        // Each call and each rt_sigreturn has an entry and an exit; one rt_sigreturn precedes all of them.
        let stops = 2 * (2 * calls + 1);
        for _ in 0..stops {
            self.tracee.next_call()?;
            match self.tracee.wait(STOP_TIMEOUT)? {
                Stop::Call => {}
                // A handler runs before the first call, which cancels all of them.
                Stop::Signal(signal) => return self.tracee.detach(signal),
                Stop::Requested | Stop::Group => return self.tracee.detach(0),
                Stop::Ended => return Ok(()),
                Stop::TimedOut => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        observe(Step::Set);
        let mut registers = self.tracee.registers()?;
        let is_there = registers.rip == self.back.rip && registers.rsp == self.back.rsp;
        if self.resume.again && is_there && self.may_end() {
            registers.rip += SYSCALL_BYTES;
            registers.orig_rax = self.back.rax;
            registers.rax = self.resume.code as u64;
            self.tracee.set_registers(&registers)?;
        }
        self.tracee.detach(0)
    }

    /// Returns the remaining timeout by now, and its form.
    pub(super) fn left(&self) -> Option<(Timeout, Duration)> {
        let (timeout, left, since) = self.left?;
        Some((timeout, left.saturating_sub(since.elapsed())))
    }
}

//! A thread of the target that is stopped at a safe point, and how it resumes.

use std::io;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::{SystemCall, Thread};

use super::candidates::Filters;
use super::frame::ResumeState;
use super::seccomp;
use super::tracee::{PtraceStop, Tracee};
use super::wait::{Resume, Timeout};
use super::{STOP_TIMEOUT, TargetStep, calls};
use crate::arch::{self, Registers};
use crate::refusal::Refusal;
use crate::stub::contract::RESTARTS_NEVER;

/// A thread that is stopped at a safe point. Dropping it lets the thread continue.
pub(super) struct StoppedThread {
    pub(super) tracee: Tracee,
    pub(super) registers: Registers,
    /// The call in which it waits.
    pub(super) call: SystemCall,
    pub(super) resume: Resume,
    /// Its registers when it resumes its call.
    pub(super) back: Registers,
    /// Its registers when a handler has interrupted its call.
    pub(super) interrupted: Registers,
    /// The remaining timeout, if it must be rewritten: its form, the time, and the instant of that
    /// time.
    pub(super) left: Option<(Timeout, Duration, Instant)>,
    pub(super) mask: u64,
    /// The signals that its call blocks while it waits, if they differ from the thread's own.
    pub(super) wait_mask: Option<u64>,
    pub(super) thread: Thread,
    /// Its filters, as they were when the thread was chosen.
    pub(super) filters: Filters,
    /// The time of the stop.
    pub(super) since: Instant,
}

impl StoppedThread {
    /// Returns the form of its timeout, if that must be rewritten.
    pub(super) fn timeout(&self) -> Option<Timeout> {
        self.left.map(|(timeout, ..)| timeout)
    }

    /// Returns the remaining timeout by now, and its form.
    pub(super) fn left(&self) -> Option<(Timeout, Duration)> {
        let (timeout, left, since) = self.left?;
        Some((timeout, left.saturating_sub(since.elapsed())))
    }

    /// Reads the state in which it resumes; `None` if its extended state cannot be put into a
    /// frame.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(super) fn resume_state(&self) -> io::Result<Option<ResumeState>> {
        let Some(vectors) = self.tracee.vectors()? else { return Ok(None) };
        let (registers, interrupted, mask) = (self.back, self.interrupted, self.mask);
        Ok(Some(ResumeState { registers, interrupted, mask, vectors, timespec: None }))
    }

    /// Sets its registers and detaches it. If it makes `escorted` calls then, it is traced until it
    /// has made them, and their results are added to `results`.
    ///
    /// Until the last moment, another thread of the process can install a filter for all threads,
    /// which may not permit the calls: then the thread continues as if it had not been stopped.
    ///
    /// # Errors
    /// Fails if the thread has new filters. The result is an error if it has ended.
    pub(super) fn redirect(
        self,
        registers: &Registers,
        escorted: Option<usize>,
        results: &mut Vec<i64>,
        observe: &mut dyn FnMut(TargetStep),
    ) -> Result<io::Result<()>, Refusal> {
        observe(TargetStep::Set);
        let set = self.tracee.set_registers(registers);
        observe(TargetStep::Detach);
        let now = self.thread.status().ok();
        let is_same = now.as_ref().is_some_and(|now| Filters::of(now) == self.filters);
        if set.is_ok() && !is_same {
            let mode = now.map_or(libc::SECCOMP_MODE_FILTER, |now| now.seccomp);
            let may_restart = || permits_restart(self.thread, mode, &self.registers);
            let untouched = arch::if_untouched(&self.registers, &self.call, may_restart)
                .unwrap_or(self.registers);
            let _ = self.tracee.set_registers(&untouched);
            return Err(Refusal::PrivilegesChanged);
        }
        if arch::BLOCKS_SIGNALS && set.is_ok() {
            // After the registers: if lowtide is killed in between, the thread continues and
            // returns with its own mask.
            let _ = self.tracee.block_signals();
        }
        let detached = match escorted {
            Some(calls) if set.is_ok() => self.escort(calls, results, observe),
            _ => self.tracee.detach(0),
        };
        Ok(set.and(detached))
    }

    /// Traces the thread while it makes `calls` calls, and puts it back to where it was before
    /// them, its wait just interrupted. The kernel continues from there: it restarts the wait, or,
    /// if a signal has come meanwhile, runs the handler and ends the wait with EINTR, as it would
    /// have done without the stop. Without the escort, the thread would restart its wait in any
    /// case, and a handler that runs before that would not end it.
    fn escort(
        mut self,
        calls: usize,
        results: &mut Vec<i64>,
        observe: &mut dyn FnMut(TargetStep),
    ) -> io::Result<()> {
        // Each call and each rt_sigreturn has an entry and an exit; one rt_sigreturn precedes all
        // of them.
        let stops = 2 * (2 * calls + 1);
        for stop in 0..stops {
            self.tracee.next_call()?;
            match self.tracee.wait(STOP_TIMEOUT)? {
                PtraceStop::Call if stop % 4 == 3 => {
                    results.push(self.tracee.registers()?.returned());
                }
                PtraceStop::Call => {}
                // A handler runs before the first call, which cancels all of them.
                PtraceStop::Signal(signal) => return self.tracee.detach(signal),
                PtraceStop::Requested | PtraceStop::Group | PtraceStop::Event(_) => {
                    return self.tracee.detach(0);
                }
                PtraceStop::Ended => return Ok(()),
                PtraceStop::TimedOut => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        observe(TargetStep::Set);
        let now = self.tracee.registers()?;
        let place = |registers: &Registers| (registers.instruction(), registers.stack());
        let is_there = self.resume.again && place(&now) == place(&self.back);
        match now.interrupted_again(&self.back, self.resume.code) {
            Some(interrupted) if is_there && self.may_end() => {
                self.tracee.set_registers(&interrupted)?;
            }
            None if is_there => return self.watch_restart(),
            _ => {}
        }
        self.tracee.detach(0)
    }

    /// Traces the thread until it makes its own call again. If the handler of a signal runs before
    /// that, the wait ends as the kernel would have ended it, where the rule is known from outside.
    /// A call that restarts after a handler with SA_RESTART restarts after any handler.
    fn watch_restart(mut self) -> io::Result<()> {
        self.tracee.next_call()?;
        match self.tracee.wait(STOP_TIMEOUT)? {
            PtraceStop::Signal(signal) => {
                if self.resume.restarts == RESTARTS_NEVER && self.is_handled(signal) {
                    self.tracee.set_registers(&self.interrupted)?;
                }
                self.tracee.detach(signal)
            }
            PtraceStop::Ended => Ok(()),
            PtraceStop::TimedOut => Err(io::ErrorKind::TimedOut.into()),
            _ => self.tracee.detach(0),
        }
    }

    /// Returns whether a signal has a handler, and the call does not block it.
    fn is_handled(&self, signal: i32) -> bool {
        let bit = u32::try_from(signal - 1).ok().and_then(|place| 1_u64.checked_shl(place));
        let is_blocked = |bit| self.wait_mask.is_some_and(|mask| mask & bit != 0);
        bit.is_some_and(|bit| {
            let caught = self.thread.status().is_ok_and(|status| status.signals.caught & bit != 0);
            caught && !is_blocked(bit)
        })
    }

    /// Returns whether a pending signal may end the wait. A call with a signal mask of its own is
    /// not ended by the signals in that mask, even if the thread's mask lets them through.
    fn may_end(&self) -> bool {
        let Some(wait_mask) = self.wait_mask else { return true };
        self.thread.status().is_ok_and(|status| {
            let signals = status.signals;
            let pending = (signals.pending | signals.pending_shared) & signals.caught;
            pending & !self.mask & !wait_mask != 0
        })
    }
}

/// Returns whether the filters of a stopped thread can be read, and permit `restart_syscall`.
pub(super) fn permits_restart(thread: Thread, mode: u32, registers: &Registers) -> bool {
    let tid = thread.tid.cast_signed();
    seccomp::permits(tid, mode, &[calls::restart_call(registers.instruction())]).is_ok()
}

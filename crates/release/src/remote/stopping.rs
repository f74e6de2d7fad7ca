//! Stopping a thread of the target at a safe point.

use std::io;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::{Doing, Thread};

use super::borrow::ThreadBorrower;
use super::candidates::Candidate;
use super::stopped_thread::{StoppedThread, permits_restart};
use super::tracee::{PtraceStop, Tracee};
use super::wait::{self, Resume, Timeout};
use super::{STOP_TIMEOUT, TargetStep};
use crate::arch::{BLOCKS_SIGNALS, Registers, SYSCALL, SYSCALL_BYTES, hazard, if_untouched};
use crate::error::{Abort, failed};
use crate::refusal::Refusal;
use crate::stub::NAME;

/// The reason why a thread cannot be used after all, as the end of a sentence.
type Unused = &'static str;
const LEFT_CALL: Unused = "it left its system call before it could be stopped";
const ENDED: Unused = "it ended before it could be stopped";

impl ThreadBorrower<'_> {
    /// Stops a thread and reads its state. The inner error is the reason why this thread cannot be
    /// used.
    pub(super) fn stop(
        &mut self,
        candidate: &Candidate,
    ) -> Result<Result<StoppedThread, Unused>, Abort> {
        if self.was_just_rewritten(candidate) {
            return Ok(Err("its timeout was rewritten less than 1 ms ago"));
        }
        let (mut tracee, since) = match self.seize(candidate)? {
            Ok(stopped) => stopped,
            Err(why) => return Ok(Err(why)),
        };
        self.io.observe(TargetStep::Read);
        let read_failed = |error| self.io.failed(error);
        let registers = tracee.registers().map_err(read_failed)?;
        let may_restart = || self.may_restart(candidate.thread, &registers);
        let untouched = if_untouched(&registers, &candidate.call, may_restart);
        if let Some(registers) = untouched {
            tracee.restore_on_drop(registers);
        }
        self.check_state(&tracee, candidate.thread)?;
        let mask = tracee.signal_mask().map_err(read_failed)?;
        let is_same_wait =
            candidate.asleep.is_none_or(|asleep| asleep.is_same_wait(candidate.thread));
        if !registers.is_in(&candidate.call) || !is_same_wait {
            return Ok(Err(LEFT_CALL));
        }
        if !self.is_on_own_stack(&registers, candidate) {
            return Ok(Err("it runs on a stack whose extent is unknown"));
        }
        let call = &candidate.call;
        let result = registers.result(call, &candidate.wait);
        let resume = Resume::from_result(&candidate.wait, result);
        let interrupted = registers.returning(call, resume.interrupted_result(result));
        let mut back = registers.returning(call, result);
        let mut left = None;
        if resume.again {
            back = registers.again(call);
            left = self.remaining_timeout(candidate);
            if let (Some(mut again), Some((Timeout::Milliseconds(place, _), left, _))) =
                (untouched, left)
            {
                again.set_argument(place, wait::in_ms(left));
                tracee.restore_on_drop(again);
            }
        }
        let wait_mask = candidate.wait_mask;
        Ok(Ok(StoppedThread {
            tracee,
            thread: candidate.thread,
            call: candidate.call,
            filters: candidate.filters,
            registers,
            resume,
            back,
            interrupted,
            left,
            mask,
            wait_mask,
            since,
        }))
    }

    /// Returns whether the timeout of a thread was rewritten a moment ago, to as many milliseconds
    /// as before.
    fn was_just_rewritten(&self, candidate: &Candidate) -> bool {
        let (Timeout::Milliseconds(_, ms), Some(asleep)) =
            (candidate.wait.timeout, &candidate.asleep)
        else {
            return false;
        };
        self.last_timeout.is_unchanged(candidate.thread, asleep, ms, Instant::now())
    }

    /// Checks that a stopped thread has no state with which it cannot run our code.
    fn check_state(&self, tracee: &Tracee, thread: Thread) -> Result<(), Abort> {
        // Its calls must not reach a handler that does not expect them. From 5.11 to 6.3, the
        // kernel has this dispatch but does not show it: the thread makes all calls where it also
        // made its own.
        if tracee.has_user_dispatch() == Some(true) {
            return Err(Refusal::UserDispatch.into());
        }
        let hazard = hazard(thread.tid.cast_signed()).map_err(|error| self.io.failed(error))?;
        match hazard {
            Some(what) => Err(Refusal::Processor { what }.into()),
            None => Ok(()),
        }
    }

    /// Returns the remaining timeout of a thread that has just been stopped, with its form and the
    /// current time.
    fn remaining_timeout(&mut self, candidate: &Candidate) -> Option<(Timeout, Duration, Instant)> {
        let now = Instant::now();
        let timeout = candidate.wait.timeout;
        if let (Timeout::Milliseconds(_, ms), Some(asleep)) = (timeout, &candidate.asleep) {
            // If it were repeatedly rewritten in whole ms, it would grow by a fraction of 1 ms each
            // time.
            let left = self.last_timeout.remaining(candidate.thread, asleep, ms, now);
            return Some((timeout, left, now));
        }
        let given = match timeout {
            Timeout::Kept => None,
            Timeout::Milliseconds(_, ms) => Some(Duration::from_millis(ms)),
            Timeout::Timespec(..) => candidate.timespec.and_then(wait::duration),
            // The kernel has just written the remaining time there, so we may write there as well.
            Timeout::Updated(_, at) => {
                let words = self.io.word(at).zip(self.io.word(at.wrapping_add(8)));
                words.and_then(|(seconds, rest)| wait::duration([seconds, rest]))
            }
        }?;
        let asleep = candidate.asleep.map(|asleep| asleep.at(now)).unwrap_or_default();
        Some((timeout, given.saturating_sub(asleep), now))
    }

    /// Traces and stops a thread, and returns the time of the stop as well. The inner error is the
    /// reason why this thread cannot be used.
    fn seize(&mut self, candidate: &Candidate) -> Result<Result<(Tracee, Instant), Unused>, Abort> {
        // If the thread is in another call, the stop could interrupt that call needlessly. After
        // this last check, it has only a few microseconds to change.
        if candidate.thread.doing().ok() != Some(Doing::In(candidate.call)) {
            return Ok(Err(LEFT_CALL));
        }
        let tid = candidate.thread.tid;
        self.io.observe(TargetStep::Seize);
        let mut tracee = match Tracee::seize(tid) {
            Ok(tracee) => tracee,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(Err(ENDED)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // A thread that is ending causes this error as well.
                if let Some(error) = self.io.lost() {
                    return Err(error.into());
                }
                return match candidate.thread.stat() {
                    Ok(stat) if !stat.has_ended() => Err(self.not_traced(candidate)),
                    _ => Ok(Err(ENDED)),
                };
            }
            Err(error) => return Err(self.io.target.failed(error).into()),
        };
        self.io.observe(TargetStep::Interrupt);
        let since = Instant::now();
        if tracee.interrupt().is_err() {
            return Ok(Err(ENDED));
        }
        self.io.observe(TargetStep::Wait);
        match tracee.wait(STOP_TIMEOUT).map_err(|error| self.io.failed(error))? {
            PtraceStop::Requested => Ok(Ok((tracee, since))),
            PtraceStop::Signal(signal) => {
                // Where the kernel does not decide about a restart, the signal ends the call.
                let registers = (!BLOCKS_SIGNALS).then(|| tracee.registers().ok()).flatten();
                let untouched = registers.and_then(|registers| {
                    let may_restart = || self.may_restart(candidate.thread, &registers);
                    if_untouched(&registers, &candidate.call, may_restart)
                });
                if let Some(registers) = untouched {
                    let _ = tracee.set_registers(&registers);
                }
                let _ = tracee.detach(signal);
                Ok(Err("it received a signal before it could be stopped"))
            }
            PtraceStop::Group => {
                let _ = tracee.detach(0);
                Err(Refusal::Stopped { pid: self.io.target.pid }.into())
            }
            PtraceStop::Ended | PtraceStop::Call | PtraceStop::Event(_) => Ok(Err(ENDED)),
            PtraceStop::TimedOut => {
                crate::checks::check_frozen(self.io.target)?;
                Err(failed("a thread could not be stopped: the kernel holds it"))
            }
        }
    }

    /// Returns whether the filters of a stopped thread certainly permit the call by which the
    /// kernel continues its wait.
    fn may_restart(&self, thread: Thread, registers: &Registers) -> bool {
        let mode = thread.status().map_or(libc::SECCOMP_MODE_FILTER, |status| status.seccomp);
        match &self.shared_filters {
            Some(filters) if mode != 0 => filters.permit_restart(),
            _ => permits_restart(thread, mode, registers),
        }
    }

    /// Returns whether a stopped thread still is one of the target's, in a 64-bit call, and on its
    /// own stack.
    fn is_on_own_stack(&self, registers: &Registers, candidate: &Candidate) -> bool {
        let mut call = [0; SYSCALL.len()];
        let at = candidate.call.instruction_pointer.wrapping_sub(SYSCALL_BYTES);
        let is_read = self.io.read(at, &mut call).is_ok();
        // Not another instruction, which has other call numbers.
        if !registers.is_64_bit()
            || !is_read
            || call != SYSCALL
            || candidate.thread.stat().is_err()
            || !self.io.target.is_alive()
        {
            return false;
        }
        match &candidate.unguarded {
            None => true,
            // glibc's data of a thread is at the upper end of that thread's stack. The extent of
            // other stacks, which a program has made itself, is unknown.
            Some(stack) => {
                let own_data = registers.own_data();
                stack.contains(&own_data) && registers.stack() < own_data
            }
        }
    }

    /// Returns the reason why a thread may be inspected but not traced: another process traces it.
    fn not_traced(&self, candidate: &Candidate) -> Abort {
        match candidate.thread.status() {
            Ok(status) if status.tracer != 0 => {
                let tracer = Thread { pid: status.tracer, tid: status.tracer };
                if tracer.stat().is_ok_and(|stat| stat.name == NAME) {
                    return Refusal::AnotherRelease.into();
                }
                Refusal::Traced { tracer: status.tracer }.into()
            }
            _ => match crate::checks::check_permission(self.io.target) {
                Err(error) => error.into(),
                Ok(()) => Refusal::AnotherRelease.into(),
            },
        }
    }
}

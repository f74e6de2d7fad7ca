//! Stopping a thread of the target at a safe point.

use std::io;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::{Doing, Thread};

use super::borrow::ThreadBorrower;
use super::candidates::Candidate;
use super::frame::set_argument;
use super::stopped_thread::{StoppedThread, if_untouched, permits_restart};
use super::tracee::{PtraceStop, Registers, Tracee};
use super::wait::{self, Resume, Timeout};
use super::{STOP_TIMEOUT, TargetStep};
use crate::error::{Abort, failed};
use crate::refusal::Refusal;
use crate::stub::{NAME, SYSCALL_BYTES};

/// The reason why a thread cannot be used after all, as the end of a sentence.
type Unused = &'static str;
const LEFT_CALL: Unused = "it left its system call before it could be stopped";
const ENDED: Unused = "it ended before it could be stopped";

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl ThreadBorrower<'_> {
    /// Stops a thread and reads its state. The inner error is the reason why this thread cannot be
    /// used.
    pub(super) fn stop(
        &mut self,
        candidate: &Candidate,
    ) -> Result<Result<StoppedThread, Unused>, Abort> {
        if let (Timeout::Milliseconds(_, ms), Some(asleep)) =
            (candidate.wait.timeout, &candidate.asleep)
            && self.last_timeout.is_unchanged(candidate.thread, asleep, ms, Instant::now())
        {
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
        let untouched = if_untouched(&registers, may_restart);
        if let Some(registers) = untouched {
            tracee.restore_on_drop(registers);
        }
        // Its calls must not reach a handler that does not expect them. From 5.11 to 6.3, the
        // kernel has this dispatch but does not show it: the thread makes all calls where it also
        // made its own.
        if tracee.has_user_dispatch() == Some(true) {
            return Err(Refusal::UserDispatch.into());
        }
        let mask = tracee.signal_mask().map_err(read_failed)?;
        let is_same_wait =
            candidate.asleep.is_none_or(|asleep| asleep.is_same_wait(candidate.thread));
        if !is_same_call(&registers, candidate) || !is_same_wait {
            return Ok(Err(LEFT_CALL));
        }
        if !self.is_on_own_stack(&registers, candidate) {
            return Ok(Err("it runs on a stack whose extent is unknown"));
        }
        let result = registers.rax as i64;
        let resume = Resume::from_result(&candidate.wait, result);
        let (mut back, mut interrupted) = (registers, registers);
        interrupted.rax = resume.interrupted_result(result) as u64;
        let mut left = None;
        if resume.again {
            back.rip -= SYSCALL_BYTES;
            back.rax = registers.orig_rax;
            left = self.remaining_timeout(candidate);
            if let (Some(mut again), Some((Timeout::Milliseconds(place, _), left, _))) =
                (untouched, left)
            {
                set_argument(&mut again, place, wait::in_ms(left));
                tracee.restore_on_drop(again);
            }
        }
        back.orig_rax = u64::MAX;
        interrupted.orig_rax = u64::MAX;
        let wait_mask = candidate.wait_mask;
        Ok(Ok(StoppedThread {
            tracee,
            thread: candidate.thread,
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
                let untouched = tracee.registers().ok().and_then(|registers| {
                    if_untouched(&registers, || self.may_restart(candidate.thread, &registers))
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
        const USER_CODE_64: u64 = 0x33;
        let mut call = [0; 2];
        let is_read = self.io.read(registers.rip.wrapping_sub(2), &mut call).is_ok();
        // Not `int $0x80`, which has other call numbers.
        if registers.cs != USER_CODE_64
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
            Some(stack) => stack.contains(&registers.fs_base) && registers.rsp < registers.fs_base,
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

/// Returns whether a stopped thread is still in the call in which it was inspected.
fn is_same_call(registers: &Registers, candidate: &Candidate) -> bool {
    let r = registers;
    let call = &candidate.call;
    r.orig_rax == u64::from(call.number)
        && [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] == call.args
        && r.rsp == call.stack_pointer
        && r.rip == call.instruction_pointer
}

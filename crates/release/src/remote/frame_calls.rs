//! System calls that a borrowed thread makes by a chain of frames, without any code of ours.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant};

use lowtide_probe::proc::is_gone;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task::Doing;

use super::borrow::{Escort, ThreadBorrower};
use super::calls::{MUNMAP, code_calls, mapping_calls, name_of, seccomp_call, sigreturn_call};
use super::candidates::Candidate;
use super::frame::chain;
use super::heartbeat::Heartbeat;
use super::leftovers;
use super::stopped_thread::StoppedThread;
use super::wait::{self, Timeout};
use super::{ACTION_TIMEOUT, seccomp};
use crate::arch::{FrameCall, RESTORE, Registers, SYSCALL_BYTES};
use crate::error::{Abort, failed};

/// Maximum number of attempts to make calls that a signal handler cancels.
const MAX_ATTEMPTS: u32 = 10;

impl ThreadBorrower<'_> {
    /// Makes a thread unmap a range. `heartbeat` beats there, until the thread is about to do so:
    /// whatever the target maps there next is its own.
    pub(super) fn unmap(
        &mut self,
        range: &Range<u64>,
        heartbeat: Option<&Heartbeat>,
    ) -> Result<(), Abort> {
        let (start, bytes) = (range.start, range.end - range.start);
        let call = FrameCall { number: MUNMAP, args: [start, bytes, 0, 0, 0, 0] };
        let calls = |text_at| {
            // Each attempt plans its calls, with address 0, before it stops a thread.
            if let Some(heartbeat) = heartbeat {
                heartbeat.pause(text_at != 0);
            }
            vec![call]
        };
        // Memory that the target maps there at once is not ours, and must not be unmapped.
        let mapping = |maps: &[Mapping]| maps.iter().find(|m| m.start == start).cloned();
        let ours = mapping(&self.maps);
        let is_gone = |borrower: &Self| Ok(mapping(&borrower.io.maps()?) != ours);
        if self.call_until(&[], &[], &calls, &is_gone)? {
            Ok(())
        } else {
            let why =
                "the mapping of lowtide in it could not be removed: a later release does that";
            Err(self.io.because(why))
        }
    }

    /// Makes a thread perform calls until `holds` returns true; returns whether it did. A signal
    /// handler that runs first cancels the calls, so they are retried. Fails before that if its
    /// filters do not permit these calls or `later` ones, and after it if `holds` does: whether to
    /// repeat the calls is then unknown.
    pub(super) fn call_until(
        &mut self,
        later: &[(&'static str, seccomp::Call)],
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<FrameCall>,
        holds: &dyn Fn(&Self) -> Result<bool, Abort>,
    ) -> Result<bool, Abort> {
        /// Interval of the checks of `holds` before the thread has returned.
        const CHECK_INTERVAL: Duration = Duration::from_millis(2);
        for _ in 0..MAX_ATTEMPTS {
            let (thread, _) = self.call(later, text, calls, false)?;
            let (is_made, checked) = (RefCell::new(Ok(false)), Cell::new(Instant::now()));
            let is_over = self.io.until(ACTION_TIMEOUT, || {
                // First whether the thread has returned, and then the effect of its calls.
                let has_returned = self.has_returned(&thread);
                if has_returned || checked.get().elapsed() >= CHECK_INTERVAL {
                    *is_made.borrow_mut() = holds(self);
                    checked.set(Instant::now());
                }
                has_returned || !matches!(*is_made.borrow(), Ok(false))
            });
            let is_made = is_made.into_inner()?;
            if is_made || !is_over {
                return Ok(is_made);
            }
        }
        Ok(false)
    }

    /// Makes a thread perform calls. `text` is data that they refer to; `calls` receives its
    /// address. Returns the results as well, if it `watches` the calls, which takes longer.
    pub(super) fn call(
        &mut self,
        later: &[(&'static str, seccomp::Call)],
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<FrameCall>,
        watches: bool,
    ) -> Result<(Candidate, Vec<i64>), Abort> {
        let count = calls(0).len();
        let planned = [&self.planned(&calls(0)), later].concat();
        let escort = Escort { calls: count, always: watches };
        let mut redirected = self.redirect(&planned, Some(escort), |borrower, stopped| {
            borrower.write_chain(stopped, text, calls)
        })?;
        let results = std::mem::take(&mut redirected.results);
        Ok((self.confirm(redirected)?, results))
    }

    /// Stops a thread, calls `act`, and lets it continue in its wait, with the remaining timeout.
    /// The thread makes no calls but `rt_sigreturn` and its own. Without this, the kernel would
    /// continue some waits by `restart_syscall`: no thread can be borrowed in that call, and a
    /// filter may not permit it.
    ///
    /// # Errors
    /// Fails before the stop if its filters do not permit `rt_sigreturn` or `later` calls.
    pub(super) fn pause<T>(
        &mut self,
        later: &[(&'static str, seccomp::Call)],
        mut act: impl FnMut(&mut Self, &StoppedThread) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let planned = [&self.planned(&[]), later].concat();
        let mut done = None;
        let escort = Escort { calls: 0, always: false };
        let redirected = self.redirect(&planned, Some(escort), |borrower, stopped| {
            done = Some(act(borrower, stopped)?);
            borrower.write_chain(stopped, &[], &|_| Vec::new())
        })?;
        self.confirm(redirected)?;
        done.ok_or_else(|| failed("a thread was stopped, and nothing was done"))
    }

    /// Writes a chain of calls to the stack of a stopped thread. Returns the registers with which
    /// the thread enters it; `None` if its state cannot be put into a frame.
    fn write_chain(
        &mut self,
        stopped: &StoppedThread,
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<FrameCall>,
    ) -> Result<Option<Registers>, Abort> {
        let state = stopped.resume_state().map_err(|error| self.io.failed(error))?;
        let Some(mut state) = state else { return Ok(None) };
        match stopped.left() {
            Some((Timeout::Milliseconds(place, _), left)) => {
                state.registers.set_argument(place, wait::in_ms(left));
            }
            Some((Timeout::Timespec(place, _), left)) => {
                let timespec = [left.as_secs(), left.subsec_nanos().into()];
                state.timespec = Some((place, timespec));
            }
            _ => {}
        }
        let (registers, code) = (&stopped.registers, stopped.resume.code);
        let chain = chain(registers, code, &self.code.gadgets, &state, text, calls);
        self.io.write(chain.at, &chain.bytes)?;
        Ok(Some(chain.registers))
    }

    /// Returns whether a borrowed thread has returned, so that all its calls are over. The calls
    /// use the stack below its stack pointer; a handler that ran before them may use another stack.
    pub(super) fn has_returned(&self, candidate: &Candidate) -> bool {
        match candidate.thread.doing() {
            Ok(Doing::Running) => false,
            Ok(doing) => doing.stack_pointer().is_none_or(|now| {
                now >= candidate.call.stack_pointer && !self.inspector().is_in_handler(now)
            }),
            Err(error) => is_gone(&error),
        }
    }

    /// Returns all calls of a release whose code is mapped at a place, as a filter sees them.
    pub(super) fn all_planned(&self, place: u64) -> Vec<(&'static str, seccomp::Call)> {
        let mut calls = mapping_calls(place)(0);
        calls.push(FrameCall { number: MUNMAP, args: [place, leftovers::BYTES, 0, 0, 0, 0] });
        [self.planned(&calls), code_calls(place, self.code.gadgets.syscall_ret)].concat()
    }

    /// Returns the calls of a chain, as a filter sees them.
    fn planned(&self, calls: &[FrameCall]) -> Vec<(&'static str, seccomp::Call)> {
        let mut planned: Vec<(&'static str, seccomp::Call)> = calls
            .iter()
            .map(|call| (name_of(call.number), seccomp_call(call, self.code.gadgets.syscall_ret)))
            .collect();
        planned.push((
            "rt_sigreturn",
            sigreturn_call(self.code.gadgets.restore + RESTORE.len() as u64),
        ));
        planned
            .push(("rt_sigreturn", sigreturn_call(self.code.gadgets.syscall_ret + SYSCALL_BYTES)));
        planned
    }
}

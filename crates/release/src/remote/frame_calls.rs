//! System calls that a borrowed thread makes by a chain of frames, without any code of ours.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::Doing;

use super::borrow::ThreadBorrower;
use super::calls::{MUNMAP, code_calls, mapping_calls, name_of, seccomp_call, sigreturn_call};
use super::candidates::Candidate;
use super::frame::{FrameCall, chain, set_argument};
use super::gadgets::RESTORE_BYTES;
use super::leftovers;
use super::wait::{self, Timeout};
use super::{ACTION_TIMEOUT, seccomp};
use crate::error::Abort;
use crate::stub::SYSCALL_BYTES;

/// Maximum number of attempts to make calls that a signal handler cancels.
const MAX_ATTEMPTS: u32 = 10;

impl ThreadBorrower<'_> {
    /// Makes a thread unmap a range.
    pub(super) fn unmap(&mut self, range: &Range<u64>) -> Result<(), Abort> {
        let (start, bytes) = (range.start, range.end - range.start);
        let call = FrameCall { number: MUNMAP, args: [start, bytes, 0, 0, 0, 0] };
        if self
            .call_until(&[], &[], &|_| vec![call], &|borrower| borrower.io.word(start).is_none())?
        {
            Ok(())
        } else {
            let why =
                "the mapping of lowtide in it could not be removed: a later release does that";
            Err(self.io.because(why))
        }
    }

    /// Makes a thread perform calls until `holds` returns true; returns whether it did. A signal handler that runs first
    /// cancels the calls, so they are retried. Fails before that if its filters do not permit these calls or `later` ones.
    pub(super) fn call_until(
        &mut self,
        later: &[(&'static str, seccomp::Call)],
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<FrameCall>,
        holds: &dyn Fn(&Self) -> bool,
    ) -> Result<bool, Abort> {
        /// Interval of the checks of `holds` before the thread has returned.
        const CHECK_INTERVAL: Duration = Duration::from_millis(2);
        for _ in 0..MAX_ATTEMPTS {
            let thread = self.call(later, text, calls)?;
            let (is_made, checked) = (Cell::new(false), Cell::new(Instant::now()));
            let is_over = self.io.until(ACTION_TIMEOUT, || {
                // First whether the thread has returned, and then the effect of its calls.
                let has_returned = self.has_returned(&thread);
                if has_returned || checked.get().elapsed() >= CHECK_INTERVAL {
                    is_made.set(holds(self));
                    checked.set(Instant::now());
                }
                is_made.get() || has_returned
            });
            if is_made.get() || !is_over {
                return Ok(is_made.get());
            }
        }
        Ok(false)
    }

    /// Makes a thread perform calls. `text` is data that they refer to; `calls` receives its address.
    fn call(
        &mut self,
        later: &[(&'static str, seccomp::Call)],
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<FrameCall>,
    ) -> Result<Candidate, Abort> {
        let count = calls(0).len();
        let planned = [&self.planned(&calls(0)), later].concat();
        let redirected = self.redirect(&planned, Some(count), |borrower, stopped| {
            let state = stopped.resume_state().map_err(|error| borrower.io.failed(error))?;
            let Some(mut state) = state else { return Ok(None) };
            match stopped.left() {
                Some((Timeout::Milliseconds(place, _), left)) => {
                    set_argument(&mut state.registers, place, wait::in_ms(left));
                }
                Some((Timeout::Timespec(place, _), left)) => {
                    let timespec = [left.as_secs(), left.subsec_nanos().into()];
                    state.timespec = Some((place, timespec));
                }
                _ => {}
            }
            let (registers, code) = (&stopped.registers, stopped.resume.code);
            let chain = chain(registers, code, &borrower.gadgets, &state, text, calls);
            borrower.io.write(chain.at, &chain.bytes)?;
            Ok(Some(chain.registers))
        })?;
        self.confirm(redirected)
    }

    /// Returns whether a borrowed thread has returned, so that all its calls are over. The calls use the stack below
    /// its stack pointer; a handler that ran before them may use another stack.
    fn has_returned(&self, candidate: &Candidate) -> bool {
        match candidate.thread.doing() {
            Ok(Doing::Running) => false,
            Ok(doing) => doing.stack_pointer().is_none_or(|now| {
                now >= candidate.call.stack_pointer && !self.inspector().is_in_handler(now)
            }),
            Err(_) => true,
        }
    }

    /// Returns all calls of a release whose code is mapped at a place, as a filter sees them.
    pub(super) fn all_planned(&self, place: u64) -> Vec<(&'static str, seccomp::Call)> {
        let mut calls = mapping_calls(place)(0);
        calls.push(FrameCall { number: MUNMAP, args: [place, leftovers::BYTES, 0, 0, 0, 0] });
        [self.planned(&calls), code_calls(place)].concat()
    }

    /// Returns the calls of a chain, as a filter sees them.
    fn planned(&self, calls: &[FrameCall]) -> Vec<(&'static str, seccomp::Call)> {
        let mut planned: Vec<(&'static str, seccomp::Call)> = calls
            .iter()
            .map(|call| (name_of(call.number), seccomp_call(call, self.gadgets.syscall_ret)))
            .collect();
        planned.push(("rt_sigreturn", sigreturn_call(self.gadgets.restore + RESTORE_BYTES)));
        planned.push(("rt_sigreturn", sigreturn_call(self.gadgets.syscall_ret + SYSCALL_BYTES)));
        planned
    }
}

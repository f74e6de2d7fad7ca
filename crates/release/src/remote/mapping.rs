//! Our code and its block: how they come into a process, and how they leave it.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use lowtide_probe::inspect::TargetError;
use lowtide_probe::proc::task::Doing;

use super::calls::{MUNMAP, code_calls, mapping_calls, name_of, seccomp_call, sigreturn_call};
use super::candidates::Candidate;
use super::frame::{Call, chain, set_argument};
use super::leftovers::{self, Injector};
use super::wait::{self, Timeout};
use super::{ACTION_TIMEOUT, Remote, failed, seccomp};
use crate::checks::Abort;
use crate::refusal::Refusal;
use crate::release::ReleaseError;
use crate::stub::numbers::*;
use crate::stub::{BLOCK_BYTES, CODE, CODE_BYTES, NAME};

/// Run time of a thread after which it must have left our code.
const SURELY_OUT: Duration = Duration::from_millis(100);
/// Maximum number of attempts to make calls that a signal handler cancels.
const MAX_ATTEMPTS: u32 = 10;
/// Time between two readings of another release's heartbeat.
const HEARTBEAT_WAIT: Duration = Duration::from_millis(400);

impl Remote<'_> {
    /// Removes what earlier releases have left: gives the bytes that are gone, and those that stay because a
    /// thread may still come back to them.
    ///
    /// # Errors
    /// When another release is at work there.
    pub(crate) fn clean(&mut self) -> Result<(u64, u64), Abort> {
        let (mut cleaned, mut left) = (0, 0);
        for leftover in leftovers::find(self.live, &self.maps) {
            let wait = || std::thread::sleep(HEARTBEAT_WAIT);
            if leftover.is_active(self.target, self.live, wait) {
                return Err(Refusal::AnotherRelease.into());
            }
            let range = leftover.range;
            if self.inspector().may_be_returned_to(&range) {
                left += range.end - range.start;
                self.left.push(range);
            } else {
                self.unmap(&range)?;
                cleaned += range.end - range.start;
            }
        }
        Ok((cleaned, left))
    }

    /// Maps our code and its block, and writes both.
    pub(crate) fn map(&mut self) -> Result<(), Abort> {
        let place = self.map_somewhere()?;
        // Two that begin at the same time see each other now, at the latest.
        self.maps = self.target.maps().map_err(|error| self.failed(error))?;
        let others = leftovers::find(self.live, &self.maps);
        let is_other = |range: &Range<u64>| range.start != place && !self.left.contains(range);
        if others.iter().any(|other| is_other(&other.range)) {
            self.leave()?;
            return Err(Refusal::AnotherRelease.into());
        }
        self.write(place, CODE)?;
        self.put(OFF_BYTES, BLOCK_BYTES)?;
        for (n, word) in Injector::current().words().into_iter().enumerate() {
            self.put(OFF_INJECTOR + n as u64 * 8, word)?;
        }
        let mut name = [0; 16];
        name[..NAME.len()].copy_from_slice(NAME.as_bytes());
        self.write_block(OFF_NAME, &name)
    }

    /// Maps both where nothing else is. The target maps memory too, and may be first in the place that was
    /// chosen: then another is.
    fn map_somewhere(&mut self) -> Result<u64, Abort> {
        const PLACES: usize = 5;
        let text = format!("{NAME}\0");
        for _ in 0..PLACES {
            self.maps = self.target.maps().map_err(|error| self.failed(error))?;
            let place = leftovers::find_place(&self.maps, salt()).ok_or_else(|| {
                ReleaseError::Failed("its address space has no room for a page of code".to_owned())
            })?;
            let all = mapping_calls(place);
            let are_ours = |remote: &Self| {
                remote.target.maps().is_ok_and(|maps| leftovers::are_both_at(&maps, place))
            };
            self.place = Some(place);
            if self.have_made(text.as_bytes(), &|text| all(text), &are_ours)? {
                return Ok(place);
            }
            if self.lost().is_some() || self.is_stopped() {
                break;
            }
            // Perhaps there was room for a part.
            self.leave()?;
            if !leftovers::is_taken(&self.maps, place) {
                break;
            }
        }
        Err(self
            .because("no memory could be mapped in it: its address space or its cgroup is full"))
    }

    /// Removes all that is ours.
    pub(crate) fn leave(&mut self) -> Result<(), Abort> {
        self.interrupt = None;
        let Some(place) = self.place else { return Ok(()) };
        if self.is_busy {
            return Err(failed(
                "our code in it is still at work: it ends by itself, and a later release \
                               removes what is left",
            ));
        }
        if let Some(error) = self.lost() {
            return Err(error.into());
        }
        // Our thread may have unmapped a part, and the target mapped something there since.
        self.maps = self.target.maps().map_err(|error| self.failed(error))?;
        let ours = leftovers::find(self.live, &self.maps);
        let whole =
            ours.iter().find(|ours| ours.range.start == place).map(|ours| ours.range.clone());
        let code_alone = || {
            let at_place = self.maps.iter().find(|m| m.start == place && !m.has_file())?;
            (at_place.permissions == "r-xp").then_some(place..place + CODE_BYTES)
        };
        let Some(range) = whole.or_else(code_alone) else {
            // Nothing of ours is there, and perhaps nothing at all any more.
            self.place = None;
            // One whose first thread has ended shows no mappings, though others may not have ended yet.
            let gone = || self.maps.is_empty().then_some(TargetError::Gone(self.target.pid));
            return self.lost().or_else(gone).map_or(Ok(()), |error| Err(error.into()));
        };
        if !self.until(ACTION_TIMEOUT, Self::are_all_outside) {
            return Err(self.because(
                "a thread that was borrowed has not left our code yet: a later release removes it",
            ));
        }
        self.unmap(&range)?;
        self.place = None;
        Ok(())
    }

    /// Whether no thread can be in our code any more, or come back to it from a handler.
    pub(super) fn are_all_outside(&self) -> bool {
        let Some(place) = self.place else { return true };
        let code = place..place + CODE_BYTES;
        let inspector = self.inspector();
        self.inside.iter().all(|(thread, ran)| {
            let now = thread.ran();
            inspector.is_elsewhere(*thread, &code)
                || now.zip(*ran).is_some_and(|(now, ran)| now > ran + SURELY_OUT)
        })
    }

    fn unmap(&mut self, range: &Range<u64>) -> Result<(), Abort> {
        let range = range.clone();
        let call =
            Call { number: MUNMAP, args: [range.start, range.end - range.start, 0, 0, 0, 0] };
        let start = range.start;
        if self.have_made(&[], &|_| vec![call], &|remote| remote.word(start).is_none())? {
            Ok(())
        } else {
            Err(self
                .because("what was mapped in it could not be removed: a later release does that"))
        }
    }

    /// Has a thread make some calls until something holds. Whether it does: a handler that comes first
    /// breaks the calls off, and then they are made again.
    fn have_made(
        &mut self,
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<Call>,
        holds: &dyn Fn(&Self) -> bool,
    ) -> Result<bool, Abort> {
        /// Interval of the checks of `holds` before the thread has returned.
        const CHECK_INTERVAL: Duration = Duration::from_millis(2);
        for _ in 0..MAX_ATTEMPTS {
            let thread = self.call(text, calls)?;
            let (is_made, looked) = (Cell::new(false), Cell::new(Instant::now()));
            let is_over = self.until(ACTION_TIMEOUT, |remote| {
                // First whether it is over, and then what came of it.
                let is_back = remote.is_back(&thread);
                if is_back || looked.get().elapsed() >= CHECK_INTERVAL {
                    is_made.set(holds(remote));
                    looked.set(Instant::now());
                }
                is_made.get() || is_back
            });
            if is_made.get() || !is_over {
                return Ok(is_made.get());
            }
        }
        Ok(false)
    }

    /// Whether a thread that was borrowed is itself again: then all that it was sent to do is over. What it
    /// does for us uses the stack below where it was; a handler that came before that may run on another.
    fn is_back(&self, candidate: &Candidate) -> bool {
        match candidate.thread.doing() {
            Ok(Doing::Running) => false,
            Ok(doing) => doing.stack_pointer().is_none_or(|now| {
                now >= candidate.call.stack_pointer && !self.inspector().is_in_handler(now)
            }),
            Err(_) => true,
        }
    }

    /// All calls that a release makes, as a filter would see them.
    pub(super) fn all_planned(&self) -> Vec<(&'static str, seccomp::Call)> {
        let place = leftovers::find_place(&self.maps, salt()).unwrap_or(0);
        let mut calls = mapping_calls(place)(0);
        calls.push(Call { number: MUNMAP, args: [place, leftovers::BYTES, 0, 0, 0, 0] });
        [self.planned(&calls), code_calls(place)].concat()
    }

    /// Calls that a thread makes without any code of ours, as a filter would see them.
    fn planned(&self, calls: &[Call]) -> Vec<(&'static str, seccomp::Call)> {
        let mut planned: Vec<(&'static str, seccomp::Call)> = calls
            .iter()
            .map(|call| (name_of(call.number), seccomp_call(call, self.gadgets.syscall_ret)))
            .collect();
        planned.push(("rt_sigreturn", sigreturn_call(self.gadgets.restore)));
        planned.push(("rt_sigreturn", sigreturn_call(self.gadgets.syscall_ret)));
        planned
    }

    /// Has a thread make some calls, without any code of ours.
    fn call(&mut self, text: &[u8], calls: &dyn Fn(u64) -> Vec<Call>) -> Result<Candidate, Abort> {
        let count = calls(0).len();
        let planned = self.planned(&calls(0));
        self.borrow(&planned, Some(count), |remote, stopped| {
            let Some(mut back) = remote.back(stopped)? else { return Ok(None) };
            match stopped.left() {
                Some((Timeout::Milliseconds(place, _), left)) => {
                    set_argument(&mut back.registers, place, wait::in_ms(left));
                }
                Some((Timeout::Timespec(place, _), left)) => {
                    let timespec = [left.as_secs(), left.subsec_nanos().into()];
                    back.timespec = Some((place, timespec));
                }
                _ => {}
            }
            let chain =
                chain(&stopped.registers, stopped.resume.code, &remote.gadgets, &back, text, calls);
            remote.write(chain.at, &chain.bytes)?;
            Ok(Some(chain.registers))
        })
    }
}

/// Something that makes two releases choose different places.
fn salt() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = now.map_or(0, |d| u64::from(d.subsec_nanos()));
    nanoseconds.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(std::process::id()) << 12)
}

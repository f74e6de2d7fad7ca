//! Mapping our code and its block into a target, and unmapping them.

use std::io;
use std::ops::Range;
use std::time::Duration;

use lowtide_heap::ranges::bytes;
use lowtide_probe::proc::task::Thread;
use lowtide_probe::target::TargetError;

use super::ACTION_TIMEOUT;
use super::block::SharedBlock;
use super::borrow::ThreadBorrower;
use super::calls::{MAPPING_CALLS, mapping_calls};
use super::heartbeat::Heartbeat;
use super::leftovers::{self, Injector};
use super::target_io::TargetIo;
use crate::error::{Abort, failed};
use crate::refusal::Refusal;
use crate::stub::contract::field;
use crate::stub::{BLOCK_BYTES, Code, NAME};

/// Run time of a thread after which it must have left our code.
const SURELY_OUT: Duration = Duration::from_millis(100);
/// Time between two readings of another release's heartbeat.
const HEARTBEAT_WAIT: Duration = Duration::from_millis(400);

/// The result of removing what earlier releases have left.
#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    /// Bytes that were unmapped.
    pub(crate) cleaned_bytes: u64,
    /// Ranges that stay, because a thread may still return to them.
    pub(crate) kept: Vec<Range<u64>>,
}

impl Cleanup {
    /// Returns the size of the ranges that stay.
    pub(crate) fn kept_bytes(&self) -> u64 {
        bytes(&self.kept)
    }
}

/// Our code and its block, mapped into a target. They stay there when this is dropped: only
/// [`Injected::unmap`] removes them, or a later release.
pub(crate) struct Injected<'b, 't> {
    pub(super) borrower: &'b mut ThreadBorrower<'t>,
    pub(super) block: SharedBlock,
    /// Whether a thread may still run our code: then it must not be unmapped.
    pub(super) is_busy: bool,
    /// The worker thread in the target.
    pub(super) worker: Option<Thread>,
    /// Threads that were sent into our code, and the run time of each at that time.
    pub(super) inside: Vec<(Thread, Option<Duration>)>,
    /// The sign of life of this release.
    pub(super) heartbeat: Option<Heartbeat>,
}

impl<'t> ThreadBorrower<'t> {
    /// Removes what earlier releases have left.
    ///
    /// # Errors
    /// Fails if another release is in progress.
    pub(crate) fn clean(&mut self) -> Result<Cleanup, Abort> {
        let mut cleanup = Cleanup::default();
        // Another release may have ended since they were read, and the target may have mapped
        // memory at its place.
        self.refresh_maps()?;
        for leftover in leftovers::find(self.io.live, &self.maps) {
            let wait = || std::thread::sleep(HEARTBEAT_WAIT);
            if leftover.is_active(self.io.target, self.io.live, wait) {
                return Err(Refusal::AnotherRelease.into());
            }
            let code = leftover.code();
            let range = leftover.range;
            if self.inspector().may_be_returned_to(&code) {
                cleanup.kept.push(range);
            } else {
                self.unmap(&range, None)?;
                cleanup.cleaned_bytes += range.end - range.start;
            }
        }
        Ok(cleanup)
    }

    /// Maps a build of our code and its block, and writes both. `kept` are ranges of earlier
    /// releases that stay.
    ///
    /// # Errors
    /// Fails if another release has mapped its code meanwhile, or if nothing can be mapped or
    /// written.
    pub(crate) fn inject(
        &mut self,
        code: Code,
        kept: &[Range<u64>],
    ) -> Result<Injected<'_, 't>, Abort> {
        let place = self.map_somewhere()?;
        let mut injected = Injected::new(self, place);
        // Two releases that start at the same time see each other here at the latest.
        injected.borrower.refresh_maps()?;
        let others = leftovers::find(injected.borrower.io.live, &injected.borrower.maps);
        let is_other = |range: &Range<u64>| range.start != place && !kept.contains(range);
        if others.iter().any(|other| is_other(&other.range)) {
            injected.unmap()?;
            return Err(Refusal::AnotherRelease.into());
        }
        match injected.fill(code) {
            Ok(()) => Ok(injected),
            // Also on an interrupt: a thread must be stopped to write the code, and for that one
            // waits.
            Err(abort) => {
                injected.unmap()?;
                Err(abort)
            }
        }
    }

    /// Maps both at a free place, and returns its address. The target maps memory as well, and may
    /// be faster; then tries another place.
    fn map_somewhere(&mut self) -> Result<u64, Abort> {
        const MAX_PLACES: usize = 5;
        let text = format!("{NAME}\0");
        for _ in 0..MAX_PLACES {
            self.refresh_maps()?;
            let place = self.find_place()?;
            let all = mapping_calls(place);
            let are_ours =
                |borrower: &Self| Ok(leftovers::are_both_at(&borrower.io.maps()?, place));
            // Once the code is mapped, a call that is not permitted would be too late.
            let later = self.all_planned(place);
            self.will_map = true;
            let mapped = self.call_until(&later, text.as_bytes(), &|text| all(text), &are_ours);
            self.will_map = false;
            if mapped? {
                return Ok(place);
            }
            if let Some(error) = self.io.lost() {
                return Err(error.into());
            }
            if self.io.is_stopped() {
                return Err(self.io.because("it was stopped"));
            }
            // A part may have been mapped.
            Injected::new(self, place).unmap()?;
            if !leftovers::is_taken(&self.maps, place) {
                break;
            }
        }
        self.map_watched()
    }

    /// Finds a free place for both.
    fn find_place(&self) -> Result<u64, Abort> {
        let no_room = || self.io.because("its address space has no room for a page of code");
        leftovers::find_place(&self.maps, leftovers::salt()).ok_or_else(no_room)
    }

    /// Maps both once more, and watches the results of the calls, to learn why they fail.
    fn map_watched(&mut self) -> Result<u64, Abort> {
        self.refresh_maps()?;
        let place = self.find_place()?;
        let (text, calls) = (format!("{NAME}\0"), mapping_calls(place));
        let later = self.all_planned(place);
        self.will_map = true;
        let called = self.call(&later, text.as_bytes(), &|text| calls(text), true);
        self.will_map = false;
        let (thread, results) = called?;
        self.io.until(ACTION_TIMEOUT, || self.has_returned(&thread));
        if leftovers::are_both_at(&self.io.maps()?, place) {
            return Ok(place);
        }
        Injected::new(self, place).unmap()?;
        let failed = results.iter().take(MAPPING_CALLS).find(|result| **result < 0);
        Err(match failed.map(|result| i32::try_from(-result).unwrap_or(0)) {
            Some(libc::EACCES | libc::EPERM) => Refusal::CodeDenied.into(),
            Some(libc::EAGAIN) => self.io.because(
                "no memory could be mapped in it: all of its memory is locked, up to its limit (ulimit -l)",
            ),
            Some(libc::ENOMEM) => self.io.because(
                "no memory could be mapped in it: its address space is full (ulimit -v), or the host commits \
                 no more memory (vm.overcommit_memory)",
            ),
            Some(other) => {
                let error = io::Error::from_raw_os_error(other);
                self.io.because(&format!("no memory could be mapped in it: {error}"))
            }
            None if results.is_empty() => {
                self.io.because("no memory could be mapped in it: signals kept arriving")
            }
            None => self.io.because("memory that was mapped in it has other rights, or is gone"),
        })
    }
}

impl<'b, 't> Injected<'b, 't> {
    /// Creates it for code that is mapped at a place, completely or in part.
    fn new(borrower: &'b mut ThreadBorrower<'t>, place: u64) -> Self {
        let block = SharedBlock::new(place);
        let inside = Vec::new();
        Self { borrower, block, is_busy: false, worker: None, inside, heartbeat: None }
    }

    /// Writes what identifies this release, and a build of our code.
    fn fill(&mut self, code: Code) -> Result<(), Abort> {
        // First: a release that sees the mappings without it takes them for left behind.
        let own = Injector::current().map_err(|error| self.io().failed(error))?;
        self.put(field::INJECTOR, own.words())?;
        self.block.injector = Some(own);
        self.heartbeat = Some(Heartbeat::start(self.io(), self.block)?);
        self.put(field::SYSCALL_AT, self.borrower.code.gadgets.syscall_ret)?;
        self.put(field::BYTES, BLOCK_BYTES)?;
        self.put(field::PAGE_BYTES, rustix::param::page_size() as u64)?;
        self.borrower.write_code(self.block.code().start, code.bytes())
    }

    /// Returns the borrower of the target's threads.
    pub(crate) fn borrower(&self) -> &ThreadBorrower<'t> {
        self.borrower
    }

    /// Returns the access to the target.
    pub(crate) fn io(&self) -> &TargetIo<'t> {
        &self.borrower.io
    }

    /// Unmaps our code and its block. Ignores interrupts from now on.
    ///
    /// # Errors
    /// Fails if a thread may still run our code, if the target has ended, or if no thread can be
    /// borrowed. A later release then removes what is left.
    pub(crate) fn unmap(mut self) -> Result<(), Abort> {
        self.borrower.ignore_interrupt();
        if self.is_busy {
            return Err(failed(
                "the code of lowtide in it is still running: it ends by itself, and a later release \
                               removes the rest",
            ));
        }
        if let Some(error) = self.io().lost() {
            return Err(error.into());
        }
        // Our thread may have unmapped a part, and the target may have mapped something there
        // since.
        self.borrower.refresh_maps()?;
        let maps = &self.borrower.maps;
        let code = self.block.code();
        let ours = leftovers::find(self.io().live, maps);
        let whole = ours.iter().find(|ours| ours.range.start == code.start);
        let code_alone = || {
            let at_place = maps.iter().find(|m| m.start == code.start && !m.has_file())?;
            (at_place.permissions == "r-xp").then(|| code.clone())
        };
        let Some(range) = whole.map(|ours| ours.range.clone()).or_else(code_alone) else {
            // Nothing of ours is there, and perhaps no memory at all any more. If only its first
            // thread has ended, a process shows no mappings.
            let gone = || maps.is_empty().then_some(TargetError::Gone(self.io().target.pid));
            return self.io().lost().or_else(gone).map_or(Ok(()), |error| Err(error.into()));
        };
        if !self.io().until(ACTION_TIMEOUT, || self.are_all_outside()) {
            return Err(self.io().because(
                "a borrowed thread still runs the code of lowtide: a later release removes it",
            ));
        }
        let heartbeat = self.heartbeat.take();
        self.borrower.unmap(&range, heartbeat.as_ref())
    }

    /// Returns whether no thread can be in our code any more, or return to it from a handler.
    pub(super) fn are_all_outside(&self) -> bool {
        self.inside.iter().all(|one| self.is_outside(one))
    }

    /// Returns whether a thread that was borrowed cannot be in our code any more. `ran` is how long
    /// it had run when it was borrowed.
    pub(super) fn is_outside(&self, (thread, ran): &(Thread, Option<Duration>)) -> bool {
        let now = thread.ran();
        self.borrower.inspector().is_elsewhere(*thread, &self.block.code())
            || now.zip(*ran).is_some_and(|(now, ran)| now > ran + SURELY_OUT)
    }
}

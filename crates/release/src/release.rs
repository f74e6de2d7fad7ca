//! One release, from the examination to the last pass.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowtide_heap::droppable::Droppers;
use lowtide_heap::ptmalloc;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{Method, Release, ReleaseOutcome, RunsIn};
use lowtide_probe::detect::DetectedAllocator;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::{is_gone, task};
use lowtide_probe::target::{Target, TargetError};

use crate::checks;
use crate::clock::ClockMeasurement;
use crate::dropped::DroppedRanges;
use crate::end::EndWatch;
use crate::error::{Abort, ReleaseError};
use crate::examination::{Examined, ExaminedHeap, TargetHeap, examine};
use crate::headroom;
use crate::heaps::{self, HeapAccount};
use crate::huge::HeapHugePages;
use crate::keep_huge::HugePageKeeper;
use crate::kept::Walk;
use crate::options::Options;
use crate::passes::{MIN_GAIN_BYTES, Passes};
use crate::periodic;
use crate::priority::{IdleGuard, JobControlBlocked, prefer_this_thread};
use crate::privileges::PrivilegeReader;
use crate::purge::Purge;
use crate::refusal::Refusal;
use crate::releasable::ReleasableHeap;
pub use crate::remote::TargetStep;
pub(crate) use crate::remote::check_borrowable as check_threads;
use crate::remote::{Injected, Pause, ThreadBorrower};
use crate::target_code::{SingleThreaded, TargetCode};
use crate::worker::{Worker, WorkerOptions};

/// Makes a process return the free memory of its heaps to the OS, one heap after the other. A
/// refusal is a result: see [`Release::outcome`].
///
/// # Errors
/// Fails if the process cannot be inspected, may not be traced, or ends meanwhile.
pub fn release(target: &Target, options: &Options) -> Result<Release, ReleaseError> {
    release_observed(target, options, &mut |_| {})
}

/// Releases like [`release`], and calls `observe` before every operation on the target.
///
/// # Errors
/// Fails like [`release`].
pub fn release_observed(
    target: &Target,
    options: &Options,
    observe: &mut (dyn FnMut(TargetStep) + Send),
) -> Result<Release, ReleaseError> {
    PreparedRelease::prepare(target, options)?.run_observed(observe).map(|(release, _)| release)
}

/// A release whose process was examined, and not touched yet.
#[derive(Debug)]
pub struct PreparedRelease<'a> {
    /// The heaps, in the order of their releases. There is at least one.
    heaps: Vec<PreparedHeap<'a>>,
    /// The memory of the program, which it leaves when it executes another one.
    program: ProcessMemory,
    begin: Instant,
}

/// A heap that was examined.
#[derive(Debug)]
struct PreparedHeap<'a> {
    run: ReleaseRun<'a>,
    found: Examined,
}

impl<'a> PreparedRelease<'a> {
    /// Examines a process.
    ///
    /// # Errors
    /// Fails if the process cannot be inspected, or ends meanwhile.
    pub fn prepare(target: &'a Target, options: &'a Options) -> Result<Self, ReleaseError> {
        let begin = Instant::now();
        let heaps = PreparedHeap::prepare(target, options, None)?;
        let program =
            ProcessMemory::pages_only(target.pid).map_err(|error| target.failed(error))?;
        Ok(Self { heaps, program, begin })
    }

    /// Returns whether it will touch the process, as far as known.
    pub fn will_act(&self) -> bool {
        self.heaps.iter().any(PreparedHeap::will_act)
    }

    /// Returns the CPU time that it has used, in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.heaps.iter().map(|heap| heap.run.account.release.cpu_s).sum()
    }

    /// Releases like [`release`], and also returns a sample of the dropped pages. With it, the
    /// caller can later determine how many of them came back. The sample is empty if nothing was
    /// dropped, and for [`Method::Trim`].
    ///
    /// # Errors
    /// Fails like [`release`].
    pub fn run(self) -> Result<(Release, DroppedRanges), ReleaseError> {
        self.run_observed(&mut |_| {})
    }

    fn run_observed(
        self,
        observe: &mut (dyn FnMut(TargetStep) + Send),
    ) -> Result<(Release, DroppedRanges), ReleaseError> {
        let failed = |what: &str| ReleaseError::Failed(what.to_owned());
        let cpu_s = periodic::cpu_s();
        let _job_control_blocked = JobControlBlocked::new();
        std::thread::scope(|scope| {
            // Whatever happens, the kernel detaches every thread that a thread traces when the
            // tracer ends.
            let run = std::thread::Builder::new();
            let run = run.spawn_scoped(scope, || {
                let is_saved = |heap: &PreparedHeap<'_>| heap.has_earlier_walk();
                if self.heaps.iter().any(is_saved) {
                    prefer_this_thread();
                }
                run_in_turn(self.heaps, &self.program, observe)
            });
            let run = run.map_err(|_| failed("no thread of lowtide can be started: try again"))?;
            let run = run.join().map_err(|_| failed("a thread of lowtide panicked"))?;
            let joined = heaps::join(run?);
            let (mut release, dropped) = joined.ok_or_else(|| failed("no heap was examined"))?;
            release.cpu_s += periodic::cpu_s() - cpu_s;
            release.elapsed_s = self.begin.elapsed().as_secs_f64();
            Ok((release, dropped))
        })
    }
}

/// Releases one heap after the other. After a heap that was tried, the next one is examined again.
/// What stops the release of one heap in the middle, or concerns the whole process, ends it for the
/// others.
fn run_in_turn(
    heaps: Vec<PreparedHeap<'_>>,
    program: &ProcessMemory,
    observe: &mut dyn FnMut(TargetStep),
) -> Result<Vec<HeapAccount>, ReleaseError> {
    let mut accounts: Vec<HeapAccount> = Vec::with_capacity(heaps.len());
    for mut heap in heaps {
        let has_acted = accounts.iter().any(HeapAccount::has_acted);
        if heap.will_act() {
            if let Some(end) = accounts.iter().find_map(HeapAccount::end) {
                accounts.push(heap.run.account.left_alone(end));
                continue;
            }
            if accounts.iter().any(|account| account.was_tried) {
                let examined = heap.examine_again(program);
                if examined.is_err() {
                    accounts.push(heap.run.finish(examined, has_acted)?);
                    continue;
                }
            }
        }
        let PreparedHeap { mut run, found } = heap;
        let result = run.run(found, observe);
        accounts.push(run.finish(result, has_acted)?);
    }
    Ok(accounts)
}

impl<'a> PreparedHeap<'a> {
    /// Examines the heaps of a process, or only that of one allocator.
    fn prepare(
        target: &'a Target,
        options: &'a Options,
        only: Option<&DetectedAllocator>,
    ) -> Result<Vec<Self>, ReleaseError> {
        let clock = ClockMeasurement::start();
        let watch = Arc::new(EndWatch::new(target));
        let found = examine(target, options, only)?;
        let heap = |ExaminedHeap { library, is_chosen, release, found }| {
            let dropped = DroppedRanges::new(rustix::param::page_size() as u64);
            let pauses_s = Vec::new();
            let was_tried = false;
            let account = HeapAccount { library, is_chosen, release, pauses_s, dropped, was_tried };
            let watch = Arc::clone(&watch);
            Self { run: ReleaseRun { target, options, clock, watch, account }, found }
        };
        Ok(found.into_iter().map(heap).collect())
    }

    /// Examines the heap again. Its process must still run the same program.
    fn examine_again(&mut self, program: &ProcessMemory) -> Result<(), ReleaseError> {
        let Ok((heap, _)) = &self.found else { return Ok(()) };
        let left = |run: &ReleaseRun<'_>| match run.target.is_alive() {
            true => ReleaseError::Replaced(run.target.pid),
            false => run.ended(),
        };
        if !program.is_in_use() {
            return Err(left(&self.run));
        }
        let found = Self::prepare(self.run.target, self.run.options, Some(&heap.allocator))?;
        if !program.is_in_use() {
            return Err(left(&self.run));
        }
        let Some(mut again) = found.into_iter().next() else { return Ok(()) };
        again.run.account.keep_name_of(&self.run.account);
        *self = again;
        Ok(())
    }

    /// Returns whether the ranges of an earlier walk are dropped first.
    fn has_earlier_walk(&self) -> bool {
        let is_earlier = matches!(self.run.options.walk, Walk::Earlier(_));
        is_earlier && self.found.as_ref().is_ok_and(|(heap, _)| !heap.ranges.is_empty())
    }

    fn will_act(&self) -> bool {
        self.found.is_ok() && !self.run.options.dry_run
    }
}

/// The release of one heap in progress.
#[derive(Debug)]
struct ReleaseRun<'a> {
    target: &'a Target,
    options: &'a Options,
    clock: ClockMeasurement,
    watch: Arc<EndWatch>,
    account: HeapAccount,
}

impl ReleaseRun<'_> {
    /// Runs the release and enters it in the account.
    fn run(
        &mut self,
        found: Examined,
        observe: &mut dyn FnMut(TargetStep),
    ) -> Result<(), ReleaseError> {
        let cpu_s = periodic::cpu_s();
        self.account.was_tried = found.is_ok();
        match found.and_then(|(heap, code)| self.execute(&heap, &code, observe)) {
            Ok(()) => {}
            // If the process has ended meanwhile, any other error is only a consequence.
            Err(_) if !self.target.is_alive() || self.target.maps().is_ok_and(|m| m.is_empty()) => {
                return Err(self.ended());
            }
            Err(Abort::Failed(ReleaseError::Target(TargetError::Replaced(pid)))) => {
                return Err(ReleaseError::Replaced(pid));
            }
            Err(Abort::Refused(refusal)) if self.account.release.returned_bytes > 0 => {
                self.account.release.outcome = ReleaseOutcome::Partial;
                self.account.release.reason = Some(refusal.to_string());
            }
            Err(Abort::Refused(refusal)) => refusal.enter(&mut self.account.release),
            Err(Abort::Failed(error)) if self.is_partial_after(&error) => {
                self.account.release.outcome = ReleaseOutcome::Partial;
                self.account.release.reason = Some(error.to_string());
            }
            Err(Abort::Failed(error)) => return Err(error),
        }
        if !self.options.dry_run {
            let status = self.target.status().map_err(|_| self.ended())?;
            self.account.release.rss_after_bytes = status.rss_bytes();
        }
        self.account.release.cpu_s += periodic::cpu_s() - cpu_s;
        Ok(())
    }

    /// Returns the account after a result of this heap. If another heap was released before, an
    /// error of this one does not hide it, unless the program has ended.
    fn finish(
        mut self,
        result: Result<(), ReleaseError>,
        has_acted: bool,
    ) -> Result<HeapAccount, ReleaseError> {
        match result {
            Ok(()) => {}
            Err(error @ (ReleaseError::Ended(_) | ReleaseError::Replaced(_))) => return Err(error),
            Err(error) if !has_acted => return Err(error),
            Err(error) => {
                let status = self.target.status().map_err(|_| self.ended())?;
                self.account.release.rss_after_bytes = status.rss_bytes();
                self.account.release.outcome = ReleaseOutcome::Partial;
                self.account.release.reason = Some(error.to_string());
            }
        }
        Ok(self.account)
    }

    /// Returns the error for a process that has ended, or is about to.
    fn ended(&self) -> ReleaseError {
        /// Time that a process needs to end after it has released its memory.
        const END_TIME: Duration = Duration::from_secs(1);
        self.target.ends_within(END_TIME);
        ReleaseError::Ended(self.watch.end())
    }

    /// Returns whether the release ended with this error after a part of it was done.
    fn is_partial_after(&self, error: &ReleaseError) -> bool {
        match error {
            ReleaseError::Interrupted => true,
            ReleaseError::Failed(_) => self.account.release.returned_bytes > 0,
            ReleaseError::Target(_)
            | ReleaseError::Ended(_)
            | ReleaseError::Replaced(_)
            | ReleaseError::NotPermitted { .. } => false,
        }
    }

    /// Cleans up after earlier releases, and releases or describes what a release would do.
    fn execute(
        &mut self,
        heap: &TargetHeap,
        code: &TargetCode,
        observe: &mut dyn FnMut(TargetStep),
    ) -> Result<(), Abort> {
        let maps = Arc::clone(&heap.facts.maps);
        // No stack in there is trusted.
        let areas = [&*heap.areas, &*heap.unseen].concat();
        let mut borrower = ThreadBorrower::open(
            self.target,
            &heap.memory,
            maps,
            areas,
            code,
            self.options,
            observe,
        )?;
        borrower.borrow_for(heap.heap.droppers());
        let mut kept = Vec::new();
        if !self.options.dry_run {
            // The walk may have taken seconds.
            self.options.hold.check()?;
            borrower.lock()?;
            let cleanup = borrower.clean()?;
            self.account.release.cleaned_bytes = cleanup.cleaned_bytes;
            let left = cleanup.kept_bytes();
            if left > 0 {
                let note = format!(
                    "{left} bytes left by an earlier release may still be in use, and were not removed"
                );
                self.account.release.notes.push(note);
            }
            kept = cleanup.kept;
        }
        if self.account.release.predicted_bytes < MIN_GAIN_BYTES.max(self.options.min_release_bytes)
        {
            self.account.release.outcome = ReleaseOutcome::NothingToRelease;
            return Ok(());
        }
        headroom::check(self.target.pid)?;
        if self.options.dry_run {
            return self.describe(&mut borrower, heap, code);
        }
        let result = self.act(&mut borrower, &kept, heap, code);
        self.count_pauses(borrower.pauses());
        result
    }

    /// Decides where the injected code runs.
    fn runs_in(&self, heap: &TargetHeap, code: &TargetCode, multiple: Option<bool>) -> RunsIn {
        let needs_borrowed = heap.heap.droppers() != Droppers::Any;
        if needs_borrowed || checks::calls_allocator(self.options) || self.needs_slices() {
            return RunsIn::Slices;
        }
        let threads = task::threads(self.target.pid).map_or(1, |threads| threads.len());
        let takes_locks = match code.single_threaded {
            SingleThreaded::At(flag) => {
                lowtide_heap::memory::word(&heap.memory, flag).is_some_and(|w| w & 0xff == 0)
            }
            SingleThreaded::Absent => multiple.unwrap_or(false),
            SingleThreaded::Unknown => false,
        };
        if threads > 1 && takes_locks { RunsIn::OwnThread } else { RunsIn::Slices }
    }

    /// Returns whether a thread of our own could harm the process. It may be about to drop
    /// privileges, which that thread would keep: it has some, and is young, or its threads differ,
    /// so that they change one by one; or that cannot be read. Or it is known to have a thread that
    /// shares its working directory with no other one, and must not start to.
    fn needs_slices(&self) -> bool {
        let Ok(threads) = task::threads(self.target.pid) else { return true };
        let mut privileges = Vec::new();
        for thread in &threads {
            match PrivilegeReader::open(*thread).and_then(|reader| reader.read()) {
                Ok(read) => privileges.push(read),
                Err(error) if is_gone(&error) => {}
                Err(_) => return true,
            }
        }
        privileges.dedup();
        let is_privileged =
            self.target.status().map_or(true, |status| status.uid == 0 || status.capabilities != 0);
        let is_young = self.target.age().is_none_or(|age| age < self.options.min_privileged_age);
        privileges.len() > 1
            || is_privileged && is_young
            || threads.into_iter().any(checks::has_own_directories)
    }

    /// Describes what a release would do.
    fn describe(
        &mut self,
        borrower: &mut ThreadBorrower<'_>,
        heap: &TargetHeap,
        code: &TargetCode,
    ) -> Result<(), Abort> {
        let candidates = borrower.candidates();
        let Some(best) = candidates.found.first() else {
            return Err(candidates.refusal().into());
        };
        if best.filters.mode != 0 {
            let permitted = borrower.check_filters();
            self.count_pauses(borrower.pauses());
            permitted?;
            let note = "its system calls are filtered (seccomp), and the filter permits a release: a thread \
                        was stopped while the filter was read";
            self.account.release.notes.push(note.to_owned());
        }
        self.account.release.thread = Some(best.thread.tid);
        self.account.release.waiting_in = Some(best.wait.name.to_owned());
        self.account.release.runs_in = Some(self.runs_in(heap, code, Some(candidates.threads > 1)));
        self.account.release.outcome = ReleaseOutcome::Released;
        Ok(())
    }

    /// Maps the code into the target, runs it, and unmaps it.
    fn act(
        &mut self,
        borrower: &mut ThreadBorrower<'_>,
        kept: &[Range<u64>],
        heap: &TargetHeap,
        code: &TargetCode,
    ) -> Result<(), Abort> {
        let pages = ProcessMemory::pages_only(self.target.pid);
        let pages = pages.map_err(|error| self.target.failed(error))?;
        let huge = HeapHugePages::find(&heap.memory, &heap.areas);
        let mut injected = match borrower.inject(heap.heap.code(), kept) {
            Ok(injected) => injected,
            Err(abort) => {
                self.note_thread(borrower);
                return Err(abort);
            }
        };
        self.note_thread(injected.borrower());
        let multiple = injected.borrower().has_multiple_threads();
        let runs_in = self.runs_in(heap, code, multiple);
        self.account.release.runs_in = Some(runs_in);
        let (max_pause, interrupt) = (self.options.max_pause, &*self.options.interrupt);
        let progress = &*self.options.progress;
        let (clock, hold) = (self.clock.finish(), &self.options.hold);
        let options = WorkerOptions {
            runs_in,
            single_threaded_at: code.single_threaded.address(),
            max_pause,
            is_urgent: self.options.is_urgent,
            clock,
            interrupt,
            hold,
            progress,
        };
        let result = self.run_mapped(&mut injected, heap, code, &options);
        let unmapped = injected.unmap();
        if self.account.release.returned_bytes > 0 {
            if !self.options.keep_huge_pages {
                self.account.release.split_bytes = huge.split(self.target, &heap.memory);
            }
            self.account.release.huge_gone_bytes = huge.gone_bytes(&heap.memory);
            let note = huge.note(self.target, &heap.allocator.kind);
            self.account.release.notes.extend(note);
        }
        self.account.dropped.complete(pages);
        result.and(unmapped)?;
        self.account.release.outcome = ReleaseOutcome::Released;
        Ok(())
    }

    /// Records the borrowed thread in the account.
    fn note_thread(&mut self, borrower: &ThreadBorrower<'_>) {
        let first = borrower.first_borrowed();
        self.account.release.thread = first.map(|(tid, _)| tid);
        self.account.release.waiting_in = first.map(|(_, call)| call.to_owned());
    }

    /// Releases by the chosen method while the code is mapped.
    fn run_mapped(
        &mut self,
        injected: &mut Injected<'_, '_>,
        heap: &TargetHeap,
        code: &TargetCode,
        options: &WorkerOptions,
    ) -> Result<(), Abort> {
        if self.account.release.method == Method::Trim {
            return self.run_trim(injected, heap, code);
        }
        if let ReleasableHeap::Purged(purge) = &*heap.heap {
            return self.run_purge(injected, heap, purge);
        }
        let mut worker = Worker::start(injected, heap.heap.ptmalloc(), options)?;
        let passed = self.run_passes(&mut worker, heap);
        let unreached = worker.unreached_owners();
        if let Some(slice) = worker.shortened_slice() {
            let slice = HumanSeconds(slice.as_secs_f64());
            let note =
                format!("pauses exceeded the bound: slices were shortened, to {slice} at least");
            self.account.release.notes.push(note);
        }
        let (counts, ended) = worker.stop();
        self.account.release.returned_bytes = counts.returned_bytes;
        self.account.release.lock_holds = counts.lock_holds;
        self.account.release.longest_lock_s = counts.longest.as_secs_f64();
        self.account.release.p99_lock_s = counts.p99().as_secs_f64();
        self.account.release.skipped_ranges = counts.skipped + counts.busy;
        self.account.release.joined_blocks = counts.consolidated;
        if counts.is_limited {
            let note = "some of its counts are impossible, and were limited: the process has written to them";
            self.account.release.notes.push(note.to_owned());
        }
        passed.and(ended)?;
        match unreached {
            None if counts.returned_bytes == 0 && counts.busy > counts.skipped => {
                let (locked, attempts) = (counts.busy, counts.busy + counts.skipped);
                Err(Refusal::LockTaken { locked, attempts }.into())
            }
            None => Ok(()),
            Some((threads, why)) if counts.returned_bytes == 0 => {
                let why = format!("its free memory belongs to threads that cannot be used ({why})");
                Err(Refusal::NoThread { threads, why }.into())
            }
            Some((threads, why)) => {
                self.account.release.notes.push(format!(
                    "the free memory of {threads} threads was not released, because these could not be used ({why})"
                ));
                Ok(())
            }
        }
    }

    /// Makes passes over the heap until one gains little.
    fn run_passes(
        &mut self,
        worker: &mut Worker<'_, '_, '_>,
        heap: &TargetHeap,
    ) -> Result<(), Abort> {
        // If a thread of the target runs the code, that thread is borrowed meanwhile: it gains
        // nothing from us running in the background.
        let _idle = (self.account.release.runs_in == Some(RunsIn::OwnThread))
            .then(|| IdleGuard::for_release(self.options));
        let passes = Passes {
            memory: &heap.memory,
            heap: &heap.heap,
            mappings: &|| heap.mappings(self.target),
            earlier: match &self.options.walk {
                Walk::Earlier(_) => (&*heap.ranges, self.account.release.predicted_bytes),
                Walk::Own | Walk::Kept => (&[], 0),
            },
            keeper: HugePageKeeper::for_options(self.options, &heap.memory),
            interrupt: &self.options.interrupt,
            dropping: &mut |pages| self.account.dropped.add(pages),
            count: &mut self.account.release.passes,
        };
        passes.run(worker, heap.consolidations.clone())
    }

    /// Makes borrowed threads of the target call their allocator's own function.
    fn run_purge(
        &mut self,
        injected: &mut Injected<'_, '_>,
        heap: &TargetHeap,
        purge: &Purge,
    ) -> Result<(), Abort> {
        let predicted = self.account.release.predicted_bytes;
        let called = purge.run(injected, predicted, self.options);
        let mappings = heap.mappings(self.target)?;
        let left = heap.heap.walk(&heap.memory, &mappings, &mut |_| {})?.release_bytes;
        self.account.release.passes = 1;
        self.account.release.returned_bytes = predicted.saturating_sub(left);
        called
    }

    /// Makes the target call `malloc_trim`, for comparison.
    fn run_trim(
        &mut self,
        injected: &mut Injected<'_, '_>,
        heap: &TargetHeap,
        code: &TargetCode,
    ) -> Result<(), Abort> {
        injected.call(code.malloc_trim_at.ok_or(Refusal::NoTrim)?, 0)?;
        let mappings = heap.mappings(self.target)?;
        let layout = heap.heap.ptmalloc().ok_or(Refusal::NoTrim)?;
        let after = ptmalloc::walk(&heap.memory, layout, &mappings);
        self.account.release.passes = 1;
        self.account.release.returned_bytes = heap.trim_bytes.saturating_sub(after.trim_bytes());
        Ok(())
    }

    /// Records the pauses in the account.
    fn count_pauses(&mut self, pauses: &[Pause]) {
        self.account.pauses_s = pauses.iter().map(|pause| pause.length.as_secs_f64()).collect();
        let over = || pauses.iter().filter(|pause| pause.length > self.options.max_pause);
        let waited_s = over().map(|pause| pause.waited.as_secs_f64()).fold(0.0, |sum, s| sum + s);
        let count = over().count() as u64;
        self.account.release.pauses_over_bound = count;
        self.account.release.waited_over_bound_s = waited_s;
    }
}

//! One release, from the examination to the last pass.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use lowtide_analysis::stats;
use lowtide_heap::ptmalloc;
use lowtide_model::release::{Method, Release, ReleaseOutcome, RunsIn};
use lowtide_probe::heap;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task;
use lowtide_probe::target::{Target, TargetError};

use crate::dropped::DroppedRanges;
use crate::error::{Abort, ReleaseError};
use crate::examination::{TargetHeap, examine};
use crate::huge::HugePages;
use crate::keep_huge::HugePageKeeper;
use crate::options::Options;
use crate::passes::{MIN_GAIN_BYTES, Passes};
use crate::periodic;
use crate::priority::{IdleGuard, JobControlBlocked};
use crate::purge::Purge;
use crate::refusal::Refusal;
use crate::releasable::ReleasableHeap;
pub use crate::remote::TargetStep;
use crate::remote::{Injected, Pause, ThreadBorrower};
use crate::worker::{Worker, WorkerOptions};

/// Makes a process return its free memory to the OS. A refusal is a result: see [`Release::outcome`].
///
/// # Errors
/// Fails if the process cannot be inspected, may not be traced, or ends meanwhile.
pub fn release(target: &Target, options: &Options) -> Result<Release, ReleaseError> {
    release_observed(target, options, &mut |_| {})
}

/// Releases like [`release`], and also returns a sample of the dropped pages. With it, the caller can later
/// determine how many of them came back. The sample is empty if nothing was dropped, and for
/// [`Method::Trim`].
///
/// # Errors
/// Fails like [`release`].
pub fn release_and_sample_dropped(
    target: &Target,
    options: &Options,
) -> Result<(Release, DroppedRanges), ReleaseError> {
    run(target, options, &mut |_| {})
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
    run(target, options, observe).map(|(release, _)| release)
}

fn run(
    target: &Target,
    options: &Options,
    observe: &mut (dyn FnMut(TargetStep) + Send),
) -> Result<(Release, DroppedRanges), ReleaseError> {
    let failed = || ReleaseError::Failed("a thread of lowtide panicked".to_owned());
    let (begin, cpu_s) = (Instant::now(), periodic::cpu_s());
    let (release, heap) = examine(target, options)?;
    let dropped = DroppedRanges::new(rustix::param::page_size() as u64);
    let run = ReleaseRun { target, options, begin, release, dropped };
    let _job_control_blocked = JobControlBlocked::new();
    std::thread::scope(|scope| {
        // Whatever happens, the kernel detaches every thread that a thread traces when the tracer ends.
        let run = scope.spawn(|| run.run(heap, observe));
        let (mut release, dropped) = run.join().map_err(|_| failed())??;
        release.cpu_s += periodic::cpu_s() - cpu_s;
        Ok((release, dropped))
    })
}

/// One release in progress.
struct ReleaseRun<'a> {
    target: &'a Target,
    options: &'a Options,
    begin: Instant,
    release: Release,
    dropped: DroppedRanges,
}

impl ReleaseRun<'_> {
    /// Runs the release and completes its account.
    fn run(
        mut self,
        heap: Result<TargetHeap, Abort>,
        observe: &mut dyn FnMut(TargetStep),
    ) -> Result<(Release, DroppedRanges), ReleaseError> {
        match heap.and_then(|heap| self.execute(&heap, observe)) {
            Ok(()) => {}
            // If the process has ended meanwhile, any other error is only a consequence.
            Err(_) if !self.target.is_alive() || self.target.maps().is_ok_and(|m| m.is_empty()) => {
                return Err(TargetError::Gone(self.target.pid).into());
            }
            Err(Abort::Refused(refusal)) if self.release.returned_bytes > 0 => {
                self.release.outcome = ReleaseOutcome::Partial;
                self.release.reason = Some(refusal.to_string());
            }
            Err(Abort::Refused(refusal)) => refusal.enter(&mut self.release),
            Err(Abort::Failed(error)) if self.is_partial_after(&error) => {
                self.release.outcome = ReleaseOutcome::Partial;
                self.release.reason = Some(error.to_string());
            }
            Err(Abort::Failed(error)) => return Err(error),
        }
        if !self.options.dry_run {
            self.release.rss_after_bytes = self.target.status()?.rss_bytes();
        }
        // This thread has done nothing else.
        self.release.cpu_s += periodic::cpu_s();
        self.release.elapsed_s = self.begin.elapsed().as_secs_f64();
        Ok((self.release, self.dropped))
    }

    /// Returns whether the release ended with this error after a part of it was done.
    fn is_partial_after(&self, error: &ReleaseError) -> bool {
        match error {
            ReleaseError::Interrupted => true,
            ReleaseError::Failed(_) => self.release.returned_bytes > 0,
            ReleaseError::Target(_) | ReleaseError::NotPermitted { .. } => false,
        }
    }

    /// Cleans up after earlier releases, and releases or describes what a release would do.
    fn execute(
        &mut self,
        heap: &TargetHeap,
        observe: &mut dyn FnMut(TargetStep),
    ) -> Result<(), Abort> {
        let c_library = heap.c_library.as_str();
        let maps = Arc::clone(&heap.facts.maps);
        let areas = heap.areas.clone();
        let mut borrower = ThreadBorrower::open(
            self.target,
            &heap.memory,
            maps,
            areas,
            c_library,
            self.options,
            observe,
        )?;
        let mut kept = Vec::new();
        if !self.options.dry_run {
            borrower.lock()?;
            let cleanup = borrower.clean()?;
            self.release.cleaned_bytes = cleanup.cleaned_bytes;
            let left = cleanup.kept_bytes();
            if left > 0 {
                let note = format!(
                    "{left} bytes left by an earlier release may still be in use, and were not removed"
                );
                self.release.notes.push(note);
            }
            kept = cleanup.kept;
        }
        if self.release.predicted_bytes < MIN_GAIN_BYTES.max(self.options.min_release_bytes) {
            self.release.outcome = ReleaseOutcome::NothingToRelease;
            return Ok(());
        }
        let single_threaded_at = self.single_threaded(heap);
        if self.options.dry_run {
            return self.describe(&mut borrower, heap, single_threaded_at);
        }
        let result = self.act(&mut borrower, &kept, heap, single_threaded_at);
        self.count_pauses(borrower.pauses());
        result
    }

    /// Finds the address of the flag by which glibc decides whether to take locks, if this glibc has one.
    fn single_threaded(&self, heap: &TargetHeap) -> Option<u64> {
        const NAME: &str = "__libc_single_threaded";
        let maps = &heap.facts.maps;
        // A program that was linked with it has a copy of its own, which all libraries then use.
        let program = maps.iter().find(|m| m.has_file());
        let library = heap::library(maps, &heap.c_library);
        [program, library]
            .into_iter()
            .flatten()
            .find_map(|file: &Mapping| crate::symbol::address(self.target.pid, maps, file, NAME))
    }

    /// Decides where the injected code runs.
    fn runs_in(
        &self,
        heap: &TargetHeap,
        single_threaded_at: Option<u64>,
        multiple: Option<bool>,
    ) -> RunsIn {
        if heap.heap.is_owned() || matches!(heap.heap, ReleasableHeap::Purged(_)) {
            return RunsIn::Slices;
        }
        let threads = task::threads(self.target.pid).map_or(1, |threads| threads.len());
        let takes_locks = match single_threaded_at {
            Some(at) => lowtide_heap::memory::word(&heap.memory, at).is_some_and(|w| w & 0xff == 0),
            None => multiple.unwrap_or(false),
        };
        if threads > 1 && takes_locks { RunsIn::OwnThread } else { RunsIn::Slices }
    }

    /// Describes what a release would do.
    fn describe(
        &mut self,
        borrower: &mut ThreadBorrower<'_>,
        heap: &TargetHeap,
        single_threaded_at: Option<u64>,
    ) -> Result<(), Abort> {
        let candidates = borrower.candidates();
        let Some(best) = candidates.found.first() else {
            let (threads, why) = (candidates.threads, candidates.why());
            return Err(Refusal::NoThread { threads, why }.into());
        };
        if best.seccomp != 0 {
            let permitted = borrower.check_filters();
            self.count_pauses(borrower.pauses());
            permitted?;
            let note = "its system calls are filtered (seccomp), and the filter permits a release: a thread \
                        was stopped while the filter was read";
            self.release.notes.push(note.to_owned());
        }
        self.release.thread = Some(best.thread.tid);
        self.release.waiting_in = Some(best.wait.name.to_owned());
        self.release.runs_in =
            Some(self.runs_in(heap, single_threaded_at, Some(candidates.threads > 1)));
        self.release.outcome = ReleaseOutcome::Released;
        Ok(())
    }

    /// Maps the code into the target, runs it, and unmaps it.
    fn act(
        &mut self,
        borrower: &mut ThreadBorrower<'_>,
        kept: &[Range<u64>],
        heap: &TargetHeap,
        single_threaded_at: Option<u64>,
    ) -> Result<(), Abort> {
        let pages = LiveMemory::pages_only(self.target.pid);
        let pages = pages.map_err(|error| self.target.failed(error))?;
        let huge = HugePages::find(&heap.memory, &heap.areas);
        let mut injected = match borrower.inject(heap.heap.code(), kept) {
            Ok(injected) => injected,
            Err(abort) => {
                self.note_thread(borrower);
                return Err(abort);
            }
        };
        self.note_thread(injected.borrower());
        let multiple = injected.borrower().has_multiple_threads();
        let runs_in = self.runs_in(heap, single_threaded_at, multiple);
        self.release.runs_in = Some(runs_in);
        let (max_pause, interrupt) = (self.options.max_pause, &*self.options.interrupt);
        let progress = &*self.options.progress;
        let options = WorkerOptions { runs_in, single_threaded_at, max_pause, interrupt, progress };
        let result = self.run_mapped(&mut injected, heap, &options);
        let unmapped = injected.unmap();
        if self.release.returned_bytes > 0 {
            if !self.options.keep_huge_pages {
                self.release.split_bytes = huge.split(self.target, &heap.memory);
            }
            self.release.notes.extend(huge.note());
        }
        self.dropped.complete(pages);
        result.and(unmapped)?;
        self.release.outcome = ReleaseOutcome::Released;
        Ok(())
    }

    /// Records the borrowed thread in the account.
    fn note_thread(&mut self, borrower: &ThreadBorrower<'_>) {
        let first = borrower.first_borrowed();
        self.release.thread = first.map(|(tid, _)| tid);
        self.release.waiting_in = first.map(|(_, call)| call.to_owned());
    }

    /// Releases by the chosen method while the code is mapped.
    fn run_mapped(
        &mut self,
        injected: &mut Injected<'_, '_>,
        heap: &TargetHeap,
        options: &WorkerOptions,
    ) -> Result<(), Abort> {
        if self.release.method == Method::Trim {
            return self.run_trim(injected, heap, options);
        }
        if let ReleasableHeap::Purged(purge) = &heap.heap {
            return self.run_purge(injected, heap, purge);
        }
        let mut worker = Worker::start(injected, heap.heap.ptmalloc(), options)?;
        let passed = self.run_passes(&mut worker, heap);
        let unreached = worker.unreached_owners();
        let (counts, ended) = worker.stop();
        self.release.returned_bytes = counts.returned_bytes;
        self.release.lock_holds = counts.lock_holds;
        self.release.longest_lock_s = counts.longest.as_secs_f64();
        self.release.p99_lock_s = counts.p99().as_secs_f64();
        self.release.skipped_ranges = counts.skipped + counts.busy;
        self.release.joined_blocks = counts.consolidated;
        passed.and(ended)?;
        match unreached {
            0 => Ok(()),
            threads if counts.returned_bytes == 0 => {
                let why = "its free memory belongs to threads that do not wait in a system call"
                    .to_owned();
                Err(Refusal::NoThread { threads, why }.into())
            }
            threads => {
                self.release.notes.push(format!(
                    "the free memory of {threads} threads was not released: they did not wait in a system call, or have ended"
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
        // If a thread of the target runs the code, that thread is borrowed meanwhile: it gains nothing from us
        // running in the background.
        let _idle = (self.release.runs_in == Some(RunsIn::OwnThread))
            .then(|| IdleGuard::new(&self.options.interrupt));
        let passes = Passes {
            memory: &heap.memory,
            heap: &heap.heap,
            mappings: &|| heap.mappings(self.target),
            keeper: HugePageKeeper::for_options(self.options, &heap.memory),
            interrupt: &self.options.interrupt,
            dropping: &mut |pages| self.dropped.add(pages),
            count: &mut self.release.passes,
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
        let predicted = self.release.predicted_bytes;
        let interrupt = &self.options.interrupt;
        let called = crate::worker::purge(injected, purge, predicted, interrupt);
        let mappings = heap.mappings(self.target)?;
        let left = heap.heap.walk(&heap.memory, &mappings, &mut |_| {})?.release_bytes;
        self.release.passes = 1;
        self.release.returned_bytes = predicted.saturating_sub(left);
        called
    }

    /// Makes the target call `malloc_trim`, for comparison.
    fn run_trim(
        &mut self,
        injected: &mut Injected<'_, '_>,
        heap: &TargetHeap,
        options: &WorkerOptions,
    ) -> Result<(), Abort> {
        let maps = &heap.facts.maps;
        let library = heap::library(maps, &heap.c_library);
        let function = library
            .and_then(|file| crate::symbol::address(self.target.pid, maps, file, "malloc_trim"));
        crate::worker::trim(injected, function.ok_or(Refusal::NoTrim)?, options.runs_in)?;
        let mappings = heap.mappings(self.target)?;
        let layout = heap.heap.ptmalloc().ok_or(Refusal::NoTrim)?;
        let after = ptmalloc::walk(&heap.memory, layout, &mappings);
        self.release.passes = 1;
        self.release.returned_bytes = heap.trim_bytes.saturating_sub(after.trim_bytes());
        Ok(())
    }

    /// Records the pauses in the account.
    fn count_pauses(&mut self, pauses: &[Pause]) {
        let mut seconds: Vec<f64> = pauses.iter().map(|p| p.length.as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        let over = || pauses.iter().filter(|pause| pause.length > self.options.max_pause);
        self.release.pauses_over_bound = over().count() as u64;
        self.release.waited_over_bound_s = over().map(|p| p.waited.as_secs_f64()).sum();
        self.release.pauses = seconds.len() as u64;
        self.release.longest_pause_s = seconds.last().copied().unwrap_or(0.0);
        self.release.median_pause_s = stats::median(&seconds).unwrap_or(0.0);
    }
}

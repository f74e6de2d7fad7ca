//! One release, from the checks to the last pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lowtide_analysis::stats;
use lowtide_heap::ptmalloc::{self, Heap, Layout};
use lowtide_model::bytes::Human;
use lowtide_model::release::{Method, Outcome, Release, RunsIn};
use lowtide_probe::heap;
use lowtide_probe::inspect::{Target, TargetError};
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task;
use thiserror::Error;

use crate::checks::Halt;
use crate::huge::HugePages;
use crate::plan::{self, Batch};
use crate::refusal::Refusal;
use crate::remote::{Background, Pause, Remote, Step, Unstopped};
use crate::stub::Op;
use crate::survey::{Known, survey};
use crate::worker::{How, Worker};

/// What is wanted of a release.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest that a thread of the target may be held up, where that can be sliced.
    pub max_pause: Duration,
    /// How.
    pub way: Way,
    /// Permits an allocator's own purge, whose pause cannot be bounded.
    pub unbounded: bool,
    /// Permits versions of glibc that releases were never tortured on.
    pub untested: bool,
    /// Only says what would be done.
    pub dry_run: bool,
    /// Set by somebody else, it ends a release early: what is under way is finished, and all that is ours
    /// leaves the target.
    pub interrupt: Arc<AtomicBool>,
    /// Where it is told how far it has come.
    pub progress: Arc<Progress>,
}

/// How far a release has come, for whoever waits for it.
#[derive(Debug, Default)]
pub struct Progress {
    is_acting: AtomicBool,
    returned_bytes: AtomicU64,
}

impl Progress {
    /// What is being done, for a progress line: `scanning the heap`, `12 MiB returned`.
    pub fn text(&self) -> String {
        match self.is_acting.load(Ordering::Relaxed) {
            false => "scanning the heap".to_owned(),
            true => format!("{} returned", Human(self.returned_bytes.load(Ordering::Relaxed))),
        }
    }

    pub(crate) fn set(&self, returned_bytes: u64) {
        self.is_acting.store(true, Ordering::Relaxed);
        self.returned_bytes.store(returned_bytes, Ordering::Relaxed);
    }
}

/// How memory is to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Way {
    /// As suits the allocator.
    #[default]
    Auto,
    /// Range by range.
    Chunks,
    /// By `malloc_trim`.
    Trim,
    /// By an allocator's own purge.
    Purge,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_pause: Duration::from_millis(1),
            way: Way::Auto,
            unbounded: false,
            untested: false,
            dry_run: false,
            interrupt: Arc::default(),
            progress: Arc::default(),
        }
    }
}

/// Why a release could not be tried, or did not come to its end.
#[derive(Debug, Error)]
pub enum ReleaseError {
    /// It cannot be looked at, or has ended.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// That is not permitted.
    #[error("process {pid} may not be traced: that takes {needs}")]
    NotPermitted {
        /// Which process.
        pid: u32,
        /// The capability or the setting.
        needs: String,
    },
    /// It was asked to end early.
    #[error("it was interrupted")]
    Interrupted,
    /// Something else went wrong; the target runs as before.
    #[error("{0}")]
    Failed(String),
}

/// Less than this is not worth a pause, in bytes.
const LEAST: u64 = 64 << 10;
/// So long passes are begun while the target goes on freeing and taking.
const PASSES_LIMIT: Duration = Duration::from_secs(5);
/// A pass that gains less than this share of what was gained so far is the last.
const LAST_SHARE: u64 = 100;

/// Has a process give its free memory back. What was refused is told by the [`Release`] itself.
///
/// # Errors
/// When the process cannot be looked at or may not be traced, or ends meanwhile.
pub fn release(target: &Target, options: &Options) -> Result<Release, ReleaseError> {
    release_telling(target, options, &mut |_| {})
}

/// The same, and tells every act on the target before it is done.
///
/// # Errors
/// As [`release`].
pub fn release_telling(
    target: &Target,
    options: &Options,
    tell: &mut (dyn FnMut(Step) + Send),
) -> Result<Release, ReleaseError> {
    let failed = || ReleaseError::Failed("a part of lowtide itself broke off".to_owned());
    let begin = Instant::now();
    let (release, known) = survey(target, options)?;
    let work = Work { target, options, begin, release };
    let _unstopped = Unstopped::begin();
    std::thread::scope(|scope| {
        // Whatever happens, the kernel lets go of all that a thread traces when that thread ends.
        let work = scope.spawn(|| work.run(known, tell));
        work.join().map_err(|_| failed())?
    })
}

/// One release.
struct Work<'a> {
    target: &'a Target,
    options: &'a Options,
    begin: Instant,
    release: Release,
}

impl<'a> Work<'a> {
    fn run(
        mut self,
        known: Result<Known, Halt>,
        tell: &mut dyn FnMut(Step),
    ) -> Result<Release, ReleaseError> {
        match known.and_then(|known| self.work(&known, tell)) {
            Ok(()) => {}
            // Of one that has ended meanwhile, nothing is where it was looked for.
            Err(_) if !self.target.is_alive() || self.target.maps().is_ok_and(|m| m.is_empty()) => {
                return Err(TargetError::Gone(self.target.pid).into());
            }
            Err(Halt::Refused(refusal)) => {
                let is_begun = self.release.returned_bytes > 0;
                self.release.outcome = if is_begun { Outcome::Partial } else { Outcome::Refused };
                self.release.hazard = (!is_begun).then(|| refusal.hazard().to_owned());
                self.release.may_pass = (!is_begun).then(|| refusal.may_pass());
                self.release.reason = Some(refusal.to_string());
            }
            Err(Halt::Failed(error)) if self.was_broken_off(&error) => {
                self.release.outcome = Outcome::Partial;
                self.release.reason = Some(error.to_string());
            }
            Err(Halt::Failed(error)) => return Err(error),
        }
        if !self.options.dry_run {
            self.release.rss_after_bytes = self.target.status()?.rss_bytes();
        }
        self.release.elapsed_s = self.begin.elapsed().as_secs_f64();
        Ok(self.release)
    }

    /// Whether a release ended with this after a part of it was done.
    fn was_broken_off(&self, error: &ReleaseError) -> bool {
        match error {
            ReleaseError::Interrupted => true,
            ReleaseError::Failed(_) => self.release.returned_bytes > 0,
            ReleaseError::Target(_) | ReleaseError::NotPermitted { .. } => false,
        }
    }

    fn work(&mut self, known: &Known, tell: &mut dyn FnMut(Step)) -> Result<(), Halt> {
        let malloc = known.malloc.as_str();
        let maps = known.outside.maps.clone();
        let interrupt = &*self.options.interrupt;
        let mut remote = Remote::open(self.target, &known.memory, maps, malloc, interrupt, tell)?;
        remote.set_heap(known.heap.areas.clone());
        if !self.options.dry_run {
            remote.lock()?;
            let (cleaned, left) = remote.clean()?;
            self.release.cleaned_bytes = cleaned;
            if left > 0 {
                let note = format!(
                    "{left} bytes that an earlier release has left may still be in use, and were left alone"
                );
                self.release.notes.push(note);
            }
        }
        if self.release.predicted_bytes < LEAST {
            self.release.outcome = Outcome::NothingToRelease;
            return Ok(());
        }
        let single = self.single_threaded(known);
        if self.options.dry_run {
            return self.say(&mut remote, known, single);
        }
        let result = self.act(&mut remote, known, single);
        self.count_pauses(&remote.pauses);
        result
    }

    /// Where glibc says whether it takes locks, if it does.
    fn single_threaded(&self, known: &Known) -> Option<u64> {
        const NAME: &str = "__libc_single_threaded";
        let maps = &known.outside.maps;
        // A program that was linked with it has a copy of its own, which is then everybody's.
        let program = maps.iter().find(|m| m.has_file());
        let library = heap::library(maps, &known.malloc);
        [program, library].into_iter().flatten().find_map(|file: &Mapping| {
            crate::remote::symbol::address(self.target.pid, maps, file, NAME)
        })
    }

    /// Where the code would run.
    fn runs_in(&self, known: &Known, single: Option<u64>, multiple: Option<bool>) -> RunsIn {
        let threads = task::threads(self.target.pid).map_or(1, |threads| threads.len());
        let takes_locks = match single {
            Some(at) => {
                lowtide_heap::memory::word(&known.memory, at).is_some_and(|w| w & 0xff == 0)
            }
            None => multiple.unwrap_or(false),
        };
        if threads > 1 && takes_locks { RunsIn::OwnThread } else { RunsIn::Slices }
    }

    /// Says what would be done.
    fn say(
        &mut self,
        remote: &mut Remote<'_>,
        known: &Known,
        single: Option<u64>,
    ) -> Result<(), Halt> {
        let candidates = remote.candidates();
        let Some(best) = candidates.found.first() else {
            let (threads, why) = (candidates.threads, candidates.why());
            return Err(Refusal::NoThread { threads, why }.into());
        };
        if best.seccomp != 0 {
            let asked = remote.ask_filters();
            self.count_pauses(&remote.pauses);
            asked?;
            let note = "its system calls are filtered (seccomp), and the filter lets a release through: a thread \
                        stood still while that was read";
            self.release.notes.push(note.to_owned());
        }
        self.release.thread = Some(best.thread.tid);
        self.release.waiting_in = Some(best.wait.name.to_owned());
        self.release.runs_in = Some(self.runs_in(known, single, Some(candidates.threads > 1)));
        self.release.outcome = Outcome::Released;
        Ok(())
    }

    fn act(
        &mut self,
        remote: &mut Remote<'_>,
        known: &Known,
        single: Option<u64>,
    ) -> Result<(), Halt> {
        let huge = HugePages::of(&known.memory, &known.heap.areas);
        let mapped = remote.map();
        self.release.thread = remote.borrowed.map(|(tid, _)| tid);
        self.release.waiting_in = remote.borrowed.map(|(_, call)| call.to_owned());
        mapped?;
        let multiple = remote.has_multiple_threads();
        let runs_in = self.runs_in(known, single, multiple);
        self.release.runs_in = Some(runs_in);
        let (max_pause, interrupt) = (self.options.max_pause, &*self.options.interrupt);
        let progress = &*self.options.progress;
        let how = How { runs_in, single, max_pause, interrupt, progress };
        let result = self.inside(remote, known, &how);
        let left = remote.leave();
        if self.release.returned_bytes > 0 {
            self.release.split_bytes = huge.split(self.target, &known.memory);
            self.release.notes.extend(huge.note());
        }
        result.and(left)?;
        self.release.outcome = Outcome::Released;
        Ok(())
    }

    /// What is done while our code is in the target.
    fn inside(&mut self, remote: &mut Remote<'_>, known: &Known, how: &How) -> Result<(), Halt> {
        if self.release.method == Method::Trim {
            return self.trim(remote, known, how);
        }
        let mut worker = Worker::begin(remote, &known.layout, how)?;
        let passed = self.passes(&mut worker, known);
        let (counts, ended) = worker.end();
        self.release.returned_bytes = counts.returned_bytes;
        self.release.lock_holds = counts.holds;
        self.release.longest_lock_s = counts.longest.as_secs_f64();
        self.release.p99_lock_s = counts.p99().as_secs_f64();
        self.release.skipped_ranges = counts.skipped + counts.busy;
        self.release.joined_blocks = counts.joined;
        passed.and(ended)
    }

    /// Goes over the heap again and again, until a pass gains little.
    fn passes(&mut self, worker: &mut Worker<'_, '_>, known: &Known) -> Result<(), Halt> {
        let begin = Instant::now();
        let mut batch = Batch::default();
        let mut joins = joins(&known.heap, &known.layout);
        let walked = known.memory.until(&self.options.interrupt);
        let mut seen_before = u64::MAX;
        // Where the target's thread does it, that one stands still meanwhile: there is nobody to give way to.
        let _background = (self.release.runs_in == Some(RunsIn::OwnThread))
            .then(|| Background::begin(&self.options.interrupt));
        loop {
            // Where the lists do not tell how they are written, they stay as they are.
            if let Some(links) = ptmalloc::fast_links(&known.memory, &known.layout)
                && !joins.is_empty()
            {
                worker.join(&joins, links)?;
            }
            let before = worker.counts().clone();
            let mappings = known.mappings(self.target)?;
            let mut halted = None;
            batch.begin_pass();
            let heap = ptmalloc::walk_and_tell(&walked, &known.layout, &mappings, &mut |found| {
                if halted.is_none() {
                    batch.add(&found, &known.memory);
                    if batch.is_full() {
                        halted = worker.work(&batch.take()).err();
                    }
                }
            });
            halted.map_or(Ok(()), Err)?;
            worker.work(&batch.take())?;
            worker.finish()?;
            worker.go_on()?;
            self.release.passes += 1;
            let after = worker.counts();
            let returned = after.returned_bytes;
            let gained = returned - before.returned_bytes;
            let is_whole = after.skipped + after.busy == before.skipped + before.busy;
            // What a pass sees is what those before have left, and what was freed since: where that does not
            // become less, the target takes again what it gets back, and it is enough.
            let seen = heap.release_bytes();
            let is_steady = seen > seen_before / 10 * 9;
            let is_little = gained < LEAST.max(returned / LAST_SHARE);
            joins = self::joins(&heap, &known.layout);
            // All that was to be seen is returned: another pass would only find what was freed since.
            let is_all = is_whole && gained >= seen && joins.is_empty();
            if is_all || is_little || is_steady || begin.elapsed() > PASSES_LIMIT {
                return Ok(());
            }
            seen_before = seen;
        }
    }

    /// Has `malloc_trim` do it, for comparison.
    fn trim(&mut self, remote: &mut Remote<'_>, known: &Known, how: &How) -> Result<(), Halt> {
        let maps = &known.outside.maps;
        let library = heap::library(maps, &known.malloc);
        let function = library.and_then(|file| {
            crate::remote::symbol::address(self.target.pid, maps, file, "malloc_trim")
        });
        crate::worker::trim(remote, function.ok_or(Refusal::NoTrim)?, how.runs_in)?;
        let mappings = known.mappings(self.target)?;
        let after = ptmalloc::walk(&known.memory, &known.layout, &mappings);
        self.release.passes = 1;
        self.release.returned_bytes = known.heap.trim_bytes().saturating_sub(after.trim_bytes());
        Ok(())
    }

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

fn joins(heap: &Heap, layout: &Layout) -> Vec<Op> {
    let worth_it = heap.arenas.iter().filter(|arena| arena.is_worth_joining());
    worth_it.flat_map(|arena| plan::joins(arena, layout)).collect()
}

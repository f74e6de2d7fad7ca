//! Examines a process before a release acts on it: checks it and finds its heap. Everything is only read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lowtide_heap::ptmalloc::{self, Heap, HeapMapping, Layout};
use lowtide_model::release::{Method, Release};
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::patience::{GivenUp, patiently};
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::process::ProcReader;
use lowtide_probe::target::{Target, TargetError};

use crate::checks::{self, TargetFacts};
use crate::error::Abort;
use crate::error::ReleaseError;
use crate::keep_huge::HugePageKeeper;
use crate::options::Options;
use crate::periodic;
use crate::plan::Batch;
use crate::priority::{IdleGuard, boost_idle_threads};
use crate::refusal::Refusal;

/// Maximum number of walks over a heap that changes meanwhile, until one agrees with the allocator's own counts.
const MAX_WALKS: usize = 5;

/// A target's heap, and the facts that were read to find it.
pub(crate) struct TargetHeap {
    pub(crate) facts: TargetFacts,
    pub(crate) memory: LiveMemory,
    pub(crate) layout: Layout,
    /// The file that defines `malloc`.
    pub(crate) malloc: String,
    /// The walk that agreed with the allocator's own counts.
    pub(crate) walked: Heap,
}

/// The examination of one process, and the account of the release that it starts.
struct Examination {
    target: Target,
    options: Options,
    release: Release,
}

/// Examines a process: starts the account of a release, and finds the heap unless there is a reason to leave the
/// process alone.
///
/// # Errors
/// Fails if the process has ended, if reading it blocks forever, or on an interrupt.
pub(crate) fn examine(
    target: &Target,
    options: &Options,
) -> Result<(Release, Result<TargetHeap, Abort>), ReleaseError> {
    let of_thread = target.try_clone().map_err(|error| target.failed(error))?;
    let of_options = options.clone();
    let found = patiently(&options.interrupt, move || {
        let mut examination = Examination::new(of_thread, of_options)?;
        let heap = examination.check().and_then(|facts| examination.find_heap(facts));
        // This thread has done nothing else.
        examination.release.cpu_s = periodic::cpu_s();
        Ok((examination.release, heap))
    });
    match found {
        Ok(found) => found,
        Err(GivenUp::Interrupted) => {
            boost_idle_threads();
            Err(ReleaseError::Interrupted)
        }
        Err(GivenUp::Blocked) => Err(TargetError::Blocked(target.pid).into()),
    }
}

impl Examination {
    fn new(target: Target, options: Options) -> Result<Self, ReleaseError> {
        let name = target.stat()?.name;
        let gone = || TargetError::Gone(target.pid);
        let process = ProcReader::open(target.pid).map_err(|error| target.failed(error))?;
        let (process, _) = process.ok_or_else(gone)?;
        let rss_bytes = target.status()?.rss_bytes();
        let release = Release {
            dry_run: options.dry_run,
            method: options.method.unwrap_or(Method::Chunks),
            pause_bound_s: options.max_pause.as_secs_f64(),
            rss_before_bytes: rss_bytes,
            rss_after_bytes: rss_bytes,
            ..Release::of(target.pid, target.start_ticks, process.command_or(&name))
        };
        Ok(Self { target, options, release })
    }

    /// Checks the process. If a child shares its memory, waits in case the child is about to start its own
    /// program (`vfork`, `posix_spawn`).
    fn check(&self) -> Result<TargetFacts, Abort> {
        const MAX_ATTEMPTS: usize = 10;
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        // An examination that was given up may hold it for ever.
        let mut known = self.options.detector.try_lock().ok();
        let mut fresh = Detector::default();
        let detector = known.as_deref_mut().unwrap_or(&mut fresh);
        let mut check = || checks::check(&self.target, detector, &self.options);
        let mut checked = check();
        for _ in 1..MAX_ATTEMPTS {
            if !matches!(checked, Err(Abort::Refused(Refusal::SharedMemory { .. }))) {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
            checked = check();
        }
        checked
    }

    /// Finds and walks the heap. The walk must agree with the allocator's own counts.
    fn find_heap(&mut self, facts: TargetFacts) -> Result<TargetHeap, Abort> {
        let malloc = facts.detected.malloc.as_ref().ok_or(Refusal::NoHeap)?;
        self.release.allocator = Some(malloc.kind.to_string());
        self.release.allocator_version.clone_from(&malloc.version);
        if self.release.method == Method::Purge {
            return Err(Refusal::NoPurge.into());
        }
        let malloc = malloc.path.to_string_lossy().into_owned();
        let memory =
            LiveMemory::open(self.target.pid).map_err(|error| self.target.failed(error))?;
        let maps = &facts.maps;
        let library = heap::library(maps, &malloc).ok_or(Refusal::NoHeap)?;
        let layout = Layout::find(&memory, &heap::data_of(maps, library.file));
        let layout = layout.ok_or(Refusal::NoHeap)?;
        let mut maps = Arc::clone(maps);
        let interrupt = &self.options.interrupt;
        let _idle = IdleGuard::new(interrupt);
        let (mut walked, mut kept_bytes) = self.walk(&memory, &layout, &maps);
        for _ in 1..MAX_WALKS {
            if disagreement(&walked).is_none() || interrupt.load(Ordering::Relaxed) {
                break;
            }
            maps = Arc::new(self.target.maps().map_err(|error| self.target.failed(error))?);
            (walked, kept_bytes) = self.walk(&memory, &layout, &maps);
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(ReleaseError::Interrupted.into());
        }
        if let Some(what) = disagreement(&walked) {
            return Err(Refusal::HeapNotWhole { what }.into());
        }
        self.release.predicted_bytes = match self.release.method {
            Method::Trim => walked.trim_bytes(),
            Method::Chunks | Method::Purge => walked.release_bytes().saturating_sub(kept_bytes),
        };
        let facts = TargetFacts { maps, ..facts };
        Ok(TargetHeap { facts, memory, layout, malloc, walked })
    }

    /// Walks the heap. Returns the free bytes as well that are left alone because they are parts of huge pages.
    fn walk(&self, memory: &LiveMemory, layout: &Layout, maps: &[Mapping]) -> (Heap, u64) {
        let interruptible = memory.until(&self.options.interrupt);
        let mappings = heap::mappings(maps);
        let Some(keeper) = HugePageKeeper::for_options(&self.options, memory) else {
            return (ptmalloc::walk(&interruptible, layout, &mappings), 0);
        };
        let mut batch = Batch::new(Some(keeper));
        let heap = ptmalloc::walk_and_tell(&interruptible, layout, &mappings, &mut |found| {
            // Nothing is submitted, and so nothing can fail.
            let _ = batch.add(&found, memory, &mut |_| Ok(()));
        });
        (heap, batch.kept_bytes())
    }
}

impl TargetHeap {
    /// Reads the target's current mappings, for a walk.
    pub(crate) fn mappings(&self, target: &Target) -> Result<Vec<HeapMapping>, Abort> {
        let all = target.each_mapping().map_err(|error| target.failed(error))?;
        let found = all.filter_map(|mapping| mapping.map(|m| heap::mapping(&m)).transpose());
        Ok(found.collect::<io::Result<_>>().map_err(|error| target.failed(error))?)
    }
}

/// Describes where a walk disagrees with the allocator's own counts; `None` if it agrees.
fn disagreement(heap: &Heap) -> Option<String> {
    let place = heap.arenas.iter().position(|arena| !arena.is_whole())?;
    let arena = &heap.arenas[place];
    Some(format!(
        "of arena {place}, {} of {} bytes were walked",
        arena.walked_bytes - arena.tally.unwalked_bytes.min(arena.walked_bytes),
        arena.system_bytes
    ))
}

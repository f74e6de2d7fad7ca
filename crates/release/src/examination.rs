//! Examines a process before a release acts on it: checks it, finds its heap and reads its code.
//! Everything is only read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lowtide_heap::droppable_heap::{DroppableHeap, FreeRange};
use lowtide_heap::layout::{HeapLayout, Places, Walked};
use lowtide_heap::memory::{Memory, word};
use lowtide_heap::ptmalloc::{self, Heap, HeapMapping, Layout};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::ledger::Owner;
use lowtide_model::release::{Method, Release};
use lowtide_probe::detect::{DetectedAllocator, Detector};
use lowtide_probe::heap;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::patience::GivenUp;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::process::ProcReader;
use lowtide_probe::target::{Target, TargetError};

use crate::checks::{self, TargetFacts};
use crate::error::{Abort, ReleaseError};
use crate::keep_huge::HugePageKeeper;
use crate::kept::{KeptHeap, RangeCollector, Walk};
use crate::options::{HeapName, Options};
use crate::passes::MIN_GAIN_BYTES;
use crate::periodic;
use crate::plan::Batch;
use crate::priority::{IdleGuard, boost_idle_threads, end_preference, prefer_this_thread};
use crate::purge::{NO_FUNCTION, Purge};
use crate::refusal::Refusal;
use crate::releasable::{ReleasableHeap, worthwhile_consolidations};
use crate::stub::Op;
use crate::target_code::TargetCode;

/// Maximum number of walks over a heap that changes meanwhile, until one agrees with the
/// allocator's own counts.
const MAX_WALKS: usize = 5;

/// Time until a heap of another allocator that was not found is searched for again.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A target's heap, and the facts that were read to find it.
#[derive(Debug)]
pub(crate) struct TargetHeap {
    pub(crate) facts: TargetFacts,
    pub(crate) memory: ProcessMemory,
    pub(crate) heap: Arc<ReleasableHeap>,
    /// Its allocator.
    pub(crate) allocator: DetectedAllocator,
    /// The file that holds the C library.
    pub(crate) c_library: String,
    /// The addresses of the heap, in order and disjoint.
    pub(crate) areas: Vec<Range<u64>>,
    /// Mappings that an earlier walk has not seen, where a part of the heap may be as well.
    pub(crate) unseen: Vec<Range<u64>>,
    /// Memory that `malloc_trim` would return, in bytes.
    pub(crate) trim_bytes: u64,
    /// The operations with which the first pass begins.
    pub(crate) consolidations: Vec<Op>,
    /// The free ranges of an earlier walk, which come next; or those of this walk, to be kept.
    pub(crate) ranges: Arc<[FreeRange]>,
}

/// The heap and the code of a process, or the reason to leave the heap alone.
pub(crate) type Examined = Result<(TargetHeap, Arc<TargetCode>), Abort>;

/// A heap that was examined.
#[derive(Debug)]
pub(crate) struct ExaminedHeap {
    /// The library that contains its allocator; `None` for an allocator of the program.
    pub(crate) library: Option<String>,
    /// Whether the caller selected its allocator ([`Options::allocators`]).
    pub(crate) is_chosen: bool,
    /// The account of its release.
    pub(crate) release: Release,
    /// What was found, or the reason to leave it alone.
    pub(crate) found: Examined,
}

/// The examination of one process, and the account of the release that it starts.
struct Examination {
    target: Target,
    options: Options,
    release: Release,
}

/// Examines a process, and finds its code and the heaps of its allocators: of the program's own
/// allocator, of the one that serves `malloc`, and of those that libraries contain. With `only`,
/// the heap of this allocator is the only one. If there is a reason to leave the process alone,
/// that is the one result.
///
/// # Errors
/// Fails if the process has ended, if reading it does not finish in time, or on an interrupt.
pub(crate) fn examine(
    target: &Target,
    options: &Options,
    only: Option<&DetectedAllocator>,
) -> Result<Vec<ExaminedHeap>, ReleaseError> {
    let of_thread = target.try_clone().map_err(|error| target.failed(error))?;
    let (of_options, only) = (options.clone(), only.cloned());
    let found = options.patience.work_on(target, &options.interrupt, move || {
        if matches!(of_options.walk, Walk::Earlier(_)) {
            prefer_this_thread();
        }
        let examination = Examination::new(of_thread, of_options)?;
        let mut found = match examination.check() {
            Ok(facts) => examination.heaps(&facts, only.as_ref()),
            Err(abort) => vec![ExaminedHeap {
                library: None,
                is_chosen: true,
                release: examination.release,
                found: Err(abort),
            }],
        };
        if let Some(heap) = found.first_mut() {
            // This thread has done nothing else.
            heap.release.cpu_s = periodic::cpu_s();
        }
        Ok(found)
    });
    match found {
        Ok(found) => found,
        Err(GivenUp::Interrupted) => {
            boost_idle_threads();
            Err(ReleaseError::Interrupted)
        }
        Err(given_up) => Err(given_up.error(target.pid).into()),
    }
}

/// Returns the account of a release that has not started.
///
/// # Errors
/// Fails if the process has ended.
pub(crate) fn unstarted(target: &Target, options: &Options) -> Result<Release, ReleaseError> {
    let name = target.stat()?.name;
    let gone = || TargetError::Gone(target.pid);
    let process = ProcReader::open(target.pid).map_err(|error| target.failed(error))?;
    let (process, _) = process.ok_or_else(gone)?;
    let rss_bytes = target.status()?.rss_bytes();
    Ok(Release {
        dry_run: options.dry_run,
        method: options.method.unwrap_or(Method::Chunks),
        pause_bound_s: options.max_pause.as_secs_f64(),
        rss_before_bytes: rss_bytes,
        rss_after_bytes: rss_bytes,
        ..Release::of(target.pid, target.start_ticks, process.command_or(&name))
    })
}

impl Examination {
    fn new(target: Target, options: Options) -> Result<Self, ReleaseError> {
        let release = unstarted(&target, &options)?;
        Ok(Self { target, options, release })
    }

    /// Checks the process. If a child shares its memory, waits in case the child is about to start
    /// its own program (`vfork`, `posix_spawn`).
    fn check(&self) -> Result<TargetFacts, Abort> {
        const MAX_ATTEMPTS: usize = 10;
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let check =
            || self.with_detector(|found| checks::check(&self.target, found, &self.options));
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

    /// Calls a function with the detector that remembers files; with a new one if an examination
    /// that was given up still holds it.
    fn with_detector<T>(&self, call: impl FnOnce(&mut Detector) -> T) -> T {
        let mut known = self.options.detector.try_lock().ok();
        call(known.as_deref_mut().unwrap_or(&mut Detector::default()))
    }

    /// Finds and walks the heaps of the program's allocators, and of those that libraries contain.
    fn heaps(&self, facts: &TargetFacts, only: Option<&DetectedAllocator>) -> Vec<ExaminedHeap> {
        if let Walk::Earlier(walk) = &self.options.walk
            && let Some(kept) = walk.heaps(&facts.maps)
        {
            let wanted = kept.iter().filter(|heap| only.is_none_or(|only| *only == heap.allocator));
            let unseen = walk.unseen(&facts.maps);
            return wanted.map(|heap| self.kept_heap(facts.clone(), heap, &unseen)).collect();
        }
        end_preference();
        let mut wanted: Vec<(Option<String>, DetectedAllocator)> = Vec::new();
        for allocator in checks::allocators(&facts.detected) {
            // A walk finds all memory of mimalloc, whichever mimalloc has it.
            let is_mimalloc = allocator.kind == AllocatorKind::Mimalloc;
            if !(is_mimalloc && wanted.iter().any(|(_, other)| other.kind == allocator.kind)) {
                wanted.push((None, allocator.clone()));
            }
        }
        let is_of_program = |only: &DetectedAllocator| wanted.iter().any(|(_, of)| of == only);
        if !only.is_some_and(is_of_program) {
            let _idle = IdleGuard::for_release(&self.options);
            let (maps, detected) = (&facts.maps, &facts.detected);
            let found = facts.libraries.get_or_init(|| {
                self.with_detector(|detector| {
                    let (target, options) = (&self.target, &self.options);
                    checks::library_allocators(target, maps, detected, detector, options)
                })
            });
            wanted.extend(found.iter().cloned().map(|(name, found)| (Some(name), found)));
        }
        wanted.retain(|(_, allocator)| only.is_none_or(|only| only == allocator));
        let examine = |(library, allocator): (Option<String>, DetectedAllocator)| {
            let mut release = self.release.clone();
            release.allocator = Some(allocator.kind.to_string());
            release.allocator_version.clone_from(&allocator.version);
            let checked = self.check_heap(library.as_deref(), &allocator, facts);
            let found = checked
                .map_err(Abort::from)
                .and_then(|()| self.find_heap(facts.clone(), &allocator, &mut release));
            let found = found.and_then(|heap| {
                let (pid, is_static) = (self.target.pid, facts.detected.is_static);
                let code = TargetCode::read(pid, &heap.facts.maps, &heap.c_library, is_static)?;
                Ok((heap, Arc::new(code)))
            });
            let chosen = self.options.allocators.as_ref();
            let is_chosen = chosen.is_none_or(|chosen| chosen.contains(&allocator.kind))
                && !self.is_left_alone(library.as_deref(), &allocator);
            ExaminedHeap { library, is_chosen, release, found }
        };
        let mut found: Vec<ExaminedHeap> = wanted.into_iter().map(examine).collect();
        if found.is_empty() {
            let (release, found_none) = (self.release.clone(), Err(Refusal::NoHeap.into()));
            found.push(ExaminedHeap { library: None, is_chosen: true, release, found: found_none });
        }
        found
    }

    /// Checks one of the heaps, before it is searched for.
    fn check_heap(
        &self,
        library: Option<&str>,
        allocator: &DetectedAllocator,
        facts: &TargetFacts,
    ) -> Result<(), Refusal> {
        if self.is_left_alone(library, allocator) {
            return Err(Refusal::LeftAlone { name: allocator.kind.to_string() });
        }
        match library {
            Some(_) => checks::check_library_heap(allocator, &facts.detected, &self.options),
            None => checks::check_heap(allocator, &facts.detected, &self.options),
        }
    }

    /// Returns whether the caller leaves a heap alone.
    fn is_left_alone(&self, library: Option<&str>, allocator: &DetectedAllocator) -> bool {
        let name = allocator.kind.name();
        let is_same =
            |heap: &HeapName| heap.allocator == name && heap.library.as_deref() == library;
        self.options.left_alone.iter().any(is_same)
    }

    /// Returns a heap that was walked before, after the same checks. `unseen` are the mappings that
    /// this walk has not seen.
    fn kept_heap(
        &self,
        facts: TargetFacts,
        kept: &KeptHeap,
        unseen: &[Range<u64>],
    ) -> ExaminedHeap {
        let mut release = self.release.clone();
        release.allocator = Some(kept.allocator.kind.to_string());
        release.allocator_version.clone_from(&kept.allocator.version);
        release.predicted_bytes = kept.predicted_bytes;
        let library = kept.library.clone();
        let is_chosen = kept.is_chosen && !self.is_left_alone(library.as_deref(), &kept.allocator);
        let checked = self.check_heap(library.as_deref(), &kept.allocator, &facts);
        let found = checked.map_err(Abort::from).and_then(|()| {
            let mut memory =
                ProcessMemory::open(self.target.pid).map_err(|error| self.target.failed(error))?;
            memory.set_locked(facts.locked.ranges.clone());
            let heap = TargetHeap {
                facts,
                memory,
                heap: Arc::clone(&kept.heap),
                allocator: kept.allocator.clone(),
                c_library: kept.c_library.clone(),
                areas: kept.areas.clone(),
                unseen: unseen.to_vec(),
                trim_bytes: 0,
                consolidations: kept.consolidations.clone(),
                ranges: Arc::clone(&kept.ranges),
            };
            Ok((heap, Arc::clone(&kept.code)))
        });
        ExaminedHeap { library, is_chosen, release, found }
    }

    /// Finds and walks the heap of an allocator.
    fn find_heap(
        &self,
        facts: TargetFacts,
        allocator: &DetectedAllocator,
        release: &mut Release,
    ) -> Result<TargetHeap, Abort> {
        check_method(release.method, &allocator.kind)?;
        let path = checks::c_library_of(&facts.detected, allocator).ok_or(Refusal::NoHeap)?;
        let c_library = path.to_string_lossy().into_owned();
        let mut memory =
            ProcessMemory::open(self.target.pid).map_err(|error| self.target.failed(error))?;
        memory.set_locked(facts.locked.ranges.clone());
        let _idle = IdleGuard::for_release(&self.options);
        let found = match allocator.kind {
            AllocatorKind::Glibc => {
                self.find_ptmalloc(facts, memory, c_library, allocator, release)
            }
            _ if release.method == Method::Purge => {
                self.find_purged(facts, memory, c_library, allocator, release)
            }
            _ => self.find_guarded(facts, memory, c_library, allocator, release),
        };
        if self.options.interrupt.load(Ordering::Relaxed) {
            return Err(ReleaseError::Interrupted.into());
        }
        found
    }

    /// Finds and walks the heap of glibc. The walk must agree with the allocator's own counts.
    fn find_ptmalloc(
        &self,
        facts: TargetFacts,
        memory: ProcessMemory,
        c_library: String,
        allocator: &DetectedAllocator,
        release: &mut Release,
    ) -> Result<TargetHeap, Abort> {
        let mut maps = Arc::clone(&facts.maps);
        let library = heap::library(&maps, &allocator.path.to_string_lossy());
        let library = library.ok_or(Refusal::NoHeap)?;
        let layout = Layout::find(&memory, &heap::data_of(&maps, library.file));
        let layout = layout.ok_or(Refusal::NoHeap)?;
        let interrupt = &self.options.interrupt;
        let mut ranges = RangeCollector::new(&self.options.walk);
        let (mut walked, mut kept_bytes) = self.walk(&memory, &layout, &maps, &mut ranges)?;
        for _ in 1..MAX_WALKS {
            if disagreement(&walked).is_none() || interrupt.load(Ordering::Relaxed) {
                break;
            }
            maps = Arc::new(self.target.maps().map_err(|error| self.target.failed(error))?);
            ranges.restart();
            (walked, kept_bytes) = self.walk(&memory, &layout, &maps, &mut ranges)?;
        }
        if interrupt.load(Ordering::Relaxed) {
            return Err(ReleaseError::Interrupted.into());
        }
        if let Some(what) = disagreement(&walked) {
            return Err(match is_in_huge_pages(&memory, &layout, &maps) {
                true => Refusal::Hugetlb { bytes: self.target.status()?.hugetlb_bytes }.into(),
                false => Refusal::HeapNotWhole { what }.into(),
            });
        }
        let predicted_bytes = match release.method {
            Method::Trim => walked.trim_bytes(),
            Method::Chunks | Method::Purge => walked.release_bytes().saturating_sub(kept_bytes),
        };
        predict(release, predicted_bytes, walked.owners().locked_bytes)?;
        Ok(TargetHeap {
            trim_bytes: walked.trim_bytes(),
            consolidations: worthwhile_consolidations(&walked, &layout),
            areas: walked.areas,
            unseen: Vec::new(),
            ranges: ranges.largest(),
            heap: Arc::new(ReleasableHeap::Dropped(DroppableHeap::Ptmalloc(layout))),
            facts: TargetFacts { maps, ..facts },
            memory,
            allocator: allocator.clone(),
            c_library,
        })
    }

    /// Finds the heap of another allocator and its guard, and walks it.
    fn find_guarded(
        &self,
        mut facts: TargetFacts,
        memory: ProcessMemory,
        c_library: String,
        allocator: &DetectedAllocator,
        release: &mut Release,
    ) -> Result<TargetHeap, Abort> {
        let mut found = self.guarded_heap(&facts, &memory, allocator);
        for _ in 1..MAX_WALKS {
            let is_over = || self.options.interrupt.load(Ordering::Relaxed);
            if found.is_ok() || is_over() || !self.target.is_alive() {
                break;
            }
            // It may have changed while it was read.
            std::thread::sleep(RETRY_INTERVAL);
            let maps = self.target.maps().map_err(|error| self.target.failed(error))?;
            facts.maps = Arc::new(maps);
            found = self.guarded_heap(&facts, &memory, allocator);
        }
        let (heap, areas) = found?;
        let heap = ReleasableHeap::Dropped(heap);
        let interruptible = memory.until(&self.options.interrupt);
        let mappings = heap::mappings(&facts.maps);
        let mut batch = Batch::new(HugePageKeeper::for_options(&self.options, &memory));
        let mut ranges = RangeCollector::new(&self.options.walk);
        let sums = heap.walk(&interruptible, &mappings, &mut |found| {
            ranges.add(found);
            // Nothing is submitted, and so nothing can fail.
            let _ = batch.add(found, &memory, &mut |_| Ok(()));
        })?;
        predict(release, sums.release_bytes.saturating_sub(batch.kept_bytes()), sums.locked_bytes)?;
        drop(batch);
        Ok(TargetHeap {
            trim_bytes: 0,
            consolidations: Vec::new(),
            areas,
            unseen: Vec::new(),
            ranges: ranges.largest(),
            heap: Arc::new(heap),
            facts,
            memory,
            allocator: allocator.clone(),
            c_library,
        })
    }

    /// Finds the heap of another allocator, and the function by which the allocator itself returns
    /// free memory.
    fn find_purged(
        &self,
        facts: TargetFacts,
        memory: ProcessMemory,
        c_library: String,
        allocator: &DetectedAllocator,
        release: &mut Release,
    ) -> Result<TargetHeap, Abort> {
        let (layout, library, walked) = self.heap_of(&facts, &memory, allocator)?;
        let arenas = walked.arenas.iter().map(|arena| arena.id).collect();
        let pid = self.target.pid;
        let purge = Purge::find(pid, &facts.maps, library, &allocator.kind, layout, arenas)?;
        let predicted_bytes = walked.prediction.purge_bytes.unwrap_or(0);
        predict(release, predicted_bytes, walked.ledger.bytes(Owner::Locked))?;
        Ok(TargetHeap {
            trim_bytes: 0,
            consolidations: Vec::new(),
            areas: walked.areas,
            unseen: Vec::new(),
            ranges: Arc::default(),
            heap: Arc::new(ReleasableHeap::Purged(purge)),
            facts,
            memory,
            allocator: allocator.clone(),
            c_library,
        })
    }

    /// Returns the heap of another allocator with its guard, and its addresses.
    fn guarded_heap(
        &self,
        facts: &TargetFacts,
        memory: &ProcessMemory,
        allocator: &DetectedAllocator,
    ) -> Result<(DroppableHeap, Vec<Range<u64>>), Refusal> {
        let (layout, _, walked) = self.heap_of(facts, memory, allocator)?;
        let (pid, maps) = (self.target.pid, &facts.maps);
        let memory = memory.until(&self.options.interrupt);
        let mappings = heap::mappings(maps);
        let heap = heap::droppable(pid, maps, allocator, layout, &memory, &mappings);
        let heap =
            heap.map_err(|why| Refusal::Unguarded { name: allocator.kind.to_string(), why })?;
        Ok((heap, walked.areas))
    }

    /// Finds and walks the heap of another allocator. Returns the mapping of its file as well.
    fn heap_of<'f>(
        &self,
        facts: &'f TargetFacts,
        memory: &ProcessMemory,
        allocator: &DetectedAllocator,
    ) -> Result<(HeapLayout, &'f Mapping, Walked), Refusal> {
        let maps = &facts.maps;
        let library = heap::library(maps, &allocator.path.to_string_lossy());
        let library = library.ok_or(Refusal::NoHeap)?;
        let zeroed_data = facts.detected.zeroed_data_of(allocator, maps, memory.page_bytes());
        let data = heap::data_of(maps, library.file);
        let mappings = heap::mappings(maps);
        let places = Places { data: &data, zeroed_data: &zeroed_data, mappings: &mappings };
        let memory = memory.until(&self.options.interrupt);
        let layout = HeapLayout::find(&allocator.kind, &memory, &places);
        let layout = layout.ok_or(Refusal::NoHeap)?;
        let walked = layout.walk(&memory, &mappings, None).map_err(|_| Refusal::NoHeap)?;
        Ok((layout, library, walked))
    }

    /// Walks the heap of glibc. Returns the free bytes as well that are left alone because they are
    /// parts of huge pages.
    fn walk(
        &self,
        memory: &ProcessMemory,
        layout: &Layout,
        maps: &[Mapping],
        ranges: &mut RangeCollector,
    ) -> Result<(Heap, u64), Abort> {
        let interruptible = memory.until(&self.options.interrupt);
        let mappings = heap::mappings(maps);
        let keeper = HugePageKeeper::for_options(&self.options, memory);
        if keeper.is_none() && !ranges.is_active() {
            return Ok((ptmalloc::walk(&interruptible, layout, &mappings), 0));
        }
        let mut batch = keeper.map(|keeper| Batch::new(Some(keeper)));
        let heap = ptmalloc::walk_and_visit(&interruptible, layout, &mappings, &mut |found| {
            let found = FreeRange::Chunk(found);
            ranges.add(&found);
            if let Some(batch) = &mut batch {
                // Nothing is submitted, and so nothing can fail.
                let _ = batch.add(&found, memory, &mut |_| Ok(()));
            }
        });
        Ok((heap, batch.map_or(0, |batch| batch.kept_bytes())))
    }
}

/// Records the memory that the release would return. It leaves locked free memory alone.
///
/// # Errors
/// Refuses if there is no other free memory.
fn predict(release: &mut Release, predicted_bytes: u64, locked_bytes: u64) -> Result<(), Refusal> {
    release.predicted_bytes = predicted_bytes;
    if locked_bytes < MIN_GAIN_BYTES {
        return Ok(());
    }
    if predicted_bytes < MIN_GAIN_BYTES {
        return Err(Refusal::Locked { bytes: locked_bytes });
    }
    let note =
        format!("{locked_bytes} bytes of free memory are locked (mlock), and are left alone");
    release.notes.push(note);
    Ok(())
}

/// Checks that a method suits an allocator.
fn check_method(method: Method, allocator: &AllocatorKind) -> Result<(), Refusal> {
    let is_glibc = *allocator == AllocatorKind::Glibc;
    match method {
        Method::Chunks => Ok(()),
        Method::Trim if is_glibc => Ok(()),
        Method::Trim => Err(Refusal::NotForTrim { name: allocator.to_string() }),
        Method::Purge if is_glibc => {
            Err(Refusal::NoPurge { why: "glibc has no purge function except malloc_trim" })
        }
        Method::Purge if allocator.facts().purge.is_none() => {
            Err(Refusal::NoPurge { why: NO_FUNCTION })
        }
        Method::Purge => Ok(()),
    }
}

impl TargetHeap {
    /// Reads the target's current mappings, for a walk.
    pub(crate) fn mappings(&self, target: &Target) -> Result<Vec<HeapMapping>, Abort> {
        Ok(heap::mappings(&target.maps().map_err(|error| target.failed(error))?))
    }
}

/// Returns whether an arena of glibc is in huge pages from the kernel's pool
/// (`glibc.malloc.hugetlb=2`).
fn is_in_huge_pages(memory: &ProcessMemory, layout: &Layout, maps: &[Mapping]) -> bool {
    let is_huge = |at: u64| {
        let mapping = maps.iter().find(|mapping| mapping.contains(at));
        mapping.is_some_and(|mapping| mapping.name.starts_with("/anon_hugepage"))
    };
    layout.arenas.iter().any(|arena| {
        let top = word(memory, layout.top_at(*arena)).filter(|top| *top != 0);
        is_huge(*arena) || top.is_some_and(is_huge)
    })
}

/// Describes the disagreement of a walk with the allocator's own counts; `None` if it agrees.
fn disagreement(heap: &Heap) -> Option<String> {
    let place = heap.arenas.iter().position(|arena| !arena.is_whole())?;
    let arena = &heap.arenas[place];
    Some(format!(
        "of arena {place}, {} of {} bytes were walked",
        arena.walked_bytes - arena.tally.unwalked_bytes.min(arena.walked_bytes),
        arena.system_bytes
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_is_refused_with_a_reason_about_the_allocator_if_it_has_no_purge_function() {
        for kind in AllocatorKind::releasable() {
            let refusal = check_method(Method::Purge, &kind).err();
            assert_eq!(refusal.is_some(), kind.facts().purge.is_none(), "{kind}");
            let says_glibc = refusal.is_some_and(|refusal| refusal.to_string().contains("glibc"));
            assert_eq!(says_glibc, kind == AllocatorKind::Glibc, "{kind}");
        }
    }
}

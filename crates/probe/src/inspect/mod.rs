//! One inspection of a process: its resident memory by owner, without stopping it.
//!
//! Memory with a proven owner is counted first: the heap that was walked, stacks, data of files.
//! The rest is attributed by its form and marked as an estimate, which never beats a proof (see
//! [`Claim`](detect::Claim)). Every page is counted once: heap pages in the walker's own scan, all
//! others in one scan over the mappings.

mod blocks;
mod core;
mod file_systems;
mod footprint;
mod forked;
mod heaps;
mod huge;
mod lazy_free;
mod limits;
mod malloc_info;
mod pages;
mod spread;

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_heap::blocks::Visitor;
use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Allocator, Manager, Observation, Runtime, Unreadable};
use lowtide_model::ledger::Owner;
use lowtide_model::runtime_kind::RuntimeKind;

use crate::counts::ended_children;
use crate::detect::{self, Detected, DetectedRuntime, Detector};
use crate::hotspot;
use crate::locked::LockedMemory;
use crate::machine::thread_cpu_s;
use crate::mapped;
use crate::memory::ProcessMemory;
use crate::open_memory::open_memory;
use crate::patience::Patience;
use crate::proc::maps::Mapping;
use crate::proc::mountinfo;
use crate::proc::rollup::Rollup;
use crate::proc::smaps;
use crate::process::ProcReader;
use crate::program::ProgramError;
use crate::sockets::{self, Sockets};
use crate::target::{Target, TargetError};

pub use self::core::inspect_core;
pub use blocks::{BlockReader, BlockWalk};
pub use footprint::{Footprint, Proportion};
pub use forked::shared_after_fork;
pub use malloc_info::malloc_info;

/// Maximum number of attempts to inspect a process that keeps executing other programs.
const MAX_ATTEMPTS: usize = 3;
/// Minimum part of RSS, and in bytes, that was not there when it was read, for an inspection to be
/// repeated: a program can move a large mapping meanwhile (`mremap`).
const MIN_MOVED_SHARE: f64 = 0.1;
const MIN_MOVED_BYTES: u64 = 4 << 20;
/// Maximum time between the moment at which an ending process loses its memory and its end.
const END_TIME: Duration = Duration::from_millis(100);

/// The note of a process whose locked mappings are not known.
const UNCERTAIN: &str = "it has locked memory (mlock), and reading where would make its threads wait: each mapping that \
                         may be locked counts as locked";

/// The walk of an inspection: passes the blocks in use on to a visitor, if there is one, and
/// returns the whole inspection.
pub type Walk<'w> = dyn FnMut(Visitor<'_>) -> Result<BlockWalk, TargetError> + 'w;

/// Reads what inspections need once and a seccomp filter may forbid later.
pub fn prepare() {
    file_systems::unmounted_huge_pages();
    mapped::prepare();
}

/// Inspects processes, and caches the files that it has read.
#[derive(Debug, Default)]
pub struct Inspector {
    detector: Detector,
    sockets: Option<Sockets>,
    settings: InspectorSettings,
}

#[derive(Debug, Clone, Copy, Default)]
struct InspectorSettings {
    without_scan: bool,
    without_connections: bool,
    without_open_memory: bool,
    without_predictions: bool,
    has_details: bool,
    has_lazily_freed: bool,
    patience: Patience,
}

impl Inspector {
    /// Returns an inspector with another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.settings.patience = patience;
        self
    }

    /// Returns an inspector that does not use `PAGEMAP_SCAN`, as on kernels before 6.7.
    #[must_use]
    pub fn without_scan(mut self) -> Self {
        self.settings.without_scan = true;
        self
    }

    /// Returns an inspector that does not count connections, which requires a socket of its own.
    #[must_use]
    pub fn without_connections(mut self) -> Self {
        self.settings.without_connections = true;
        self
    }

    /// Returns an inspector that does not read which files in memory the process has open.
    #[must_use]
    pub fn without_open_memory(mut self) -> Self {
        self.settings.without_open_memory = true;
        self
    }

    /// Returns an inspector that does not predict what a release returns of the heap of another
    /// allocator than glibc's: such a prediction takes a second walk.
    #[must_use]
    pub fn without_predictions(mut self) -> Self {
        self.predict(false);
        self
    }

    /// Sets whether the next inspections predict what a release returns of such a heap.
    pub fn predict(&mut self, is_wanted: bool) {
        self.settings.without_predictions = !is_wanted;
    }

    /// Returns an inspector that also reads what a single inspection shows, and what costs too much
    /// for a survey: memory that forked processes share, the unused part of huge pages, and huge
    /// pages and lazily freed memory of large processes.
    #[must_use]
    pub fn with_details(mut self) -> Self {
        self.settings.has_details = true;
        self.with_lazily_freed()
    }

    /// Returns an inspector that also reads the lazily freed memory of large processes: it is no
    /// growth.
    #[must_use]
    pub fn with_lazily_freed(mut self) -> Self {
        self.settings.has_lazily_freed = true;
        self
    }

    /// Inspects a process once. The process is not stopped, and none of its pages becomes resident.
    ///
    /// # Errors
    /// Fails if it ends meanwhile, if it keeps executing other programs, or if reading it does not
    /// finish in time.
    pub fn inspect(&mut self, target: &Target) -> Result<Observation, TargetError> {
        self.inspect_blocks(target, |_, walk| Ok(walk(None)?.observation))
    }

    /// Returns the values in `/proc/PID/stat` and `status`, for a process whose inspection was
    /// given up: the kernel knows them without its memory and files.
    ///
    /// # Errors
    /// Fails if it has ended, or its status may not be read.
    pub fn outline(target: &Target, why: Unreadable) -> Result<Observation, TargetError> {
        let stat = target.stat()?;
        let mut observation = Observation {
            pid: target.pid,
            start_ticks: target.start_ticks,
            // Its command line is in its memory.
            command: vec![format!("[{}]", stat.name)],
            threads: stat.threads,
            unreadable: Some(why),
            image: stat.image,
            ..Observation::default()
        };
        by_status(target, &mut observation)?;
        observation.rss_bytes = observation.ledger.total();
        Ok(observation)
    }

    /// Inspects a process like [`Self::inspect`], and passes the blocks in use in its heaps on, in
    /// the same walk. `collect` gets the inspection, which it calls with its visitor. If the
    /// process executes another program meanwhile, `collect` is called again.
    ///
    /// # Errors
    /// Fails if it ends meanwhile, if it keeps executing other programs, if reading it does not
    /// finish in time, or if `collect` fails.
    pub fn inspect_blocks<T: Send + 'static>(
        &mut self,
        target: &Target,
        mut collect: impl FnMut(&Target, &mut Walk<'_>) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, TargetError> {
        let of_thread = target.try_clone().map_err(|error| target.failed(error))?;
        let settings = self.settings;
        let mut worker = std::mem::take(self);
        let done = settings.patience.work_on(target, &AtomicBool::new(false), move || {
            let observed = worker.inspect_here(&of_thread, &mut collect);
            (worker, observed)
        });
        let (worker, observed) = done.map_err(|given_up| {
            *self = Self { settings, ..Self::default() };
            given_up.error(target.pid)
        })?;
        *self = worker;
        observed
    }

    fn inspect_here<T>(
        &mut self,
        target: &Target,
        mut collect: impl FnMut(&Target, &mut Walk<'_>) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        for attempt in 0..MAX_ATTEMPTS {
            let image = target.stat()?.image;
            let mut has_moved = false;
            let observed = collect(target, &mut |visitor| {
                let walk = self.inspect_once(target, image, visitor)?;
                has_moved = walk.observation.moved_bytes > 0;
                Ok(walk)
            });
            // Much of it moved while it was read: once more, which may find it.
            if has_moved && attempt == 0 && observed.is_ok() {
                continue;
            }
            let is_replaced = match observed {
                Err(TargetError::Replaced(_)) => true,
                // A process that executes a program has no memory for a moment, like one that ends.
                Err(TargetError::Gone(_)) => !target.ends_within(END_TIME),
                _ => false,
            };
            // If it has executed another program, the result mixes the two.
            if target.stat()?.image == image && !is_replaced {
                return observed;
            }
        }
        Err(TargetError::Replaced(target.pid))
    }

    fn inspect_once(
        &mut self,
        target: &Target,
        image: (u64, u64),
        visitor: Visitor<'_>,
    ) -> Result<BlockWalk, TargetError> {
        let (begin, cpu) = (Instant::now(), thread_cpu_s());
        let (memory, mut unreadable) = memory_of(target)?;
        let mut memory =
            memory.map(|m| if self.settings.without_scan { m.without_scan() } else { m });
        let mut walk = BlockWalk { observation: self.outside(target)?, ..BlockWalk::default() };
        let has_maps = match target.maps() {
            Ok(maps) => {
                walk.maps = maps;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
            Err(error) => return Err(target.failed(error)),
        };
        match &mut memory {
            Some(memory) if has_maps => {
                let locked = LockedMemory::find_with_files(target, &target.status()?, &walk.maps);
                memory.set_locked(locked.ranges);
                walk.observation.mappings = Some(walk.maps.len() as u64);
                if !self.settings.without_open_memory {
                    walk.observation.open_memory = open_memory(target.pid, &walk.maps);
                }
                self.walk(target, memory, &mut walk, visitor, unreadable.is_none())?;
                inside(target, memory, &locked.files, &mut walk)?;
                if self.settings.has_lazily_freed {
                    add_lazily_freed(memory, &mut walk);
                }
                if self.settings.has_details {
                    add_details(target, memory, unreadable.is_none(), &mut walk);
                }
                if locked.is_uncertain && walk.observation.ledger.bytes(Owner::Locked) > 0 {
                    walk.observation.notes.push(UNCERTAIN.to_owned());
                }
            }
            _ => {
                unreadable = Some(Unreadable::Maps);
                by_status(target, &mut walk.observation)?;
            }
        }
        if memory.is_some_and(|memory| !memory.is_in_use()) {
            return Err(TargetError::Replaced(target.pid));
        }
        walk.elapsed_s = begin.elapsed().as_secs_f64();
        walk.cpu_s = thread_cpu_s() - cpu;
        let observation = &mut walk.observation;
        observation.moved_bytes = moved_bytes(observation);
        observation.ledger.add_estimate(Owner::Unattributed, observation.moved_bytes);
        observation.rss_bytes = observation.ledger.total();
        observation.unreadable = unreadable;
        observation.image = image;
        (observation.elapsed_s, observation.cpu_s) = (walk.elapsed_s, walk.cpu_s);
        Ok(walk)
    }

    /// Reads the data that need no access to its memory.
    fn outside(&mut self, target: &Target) -> Result<Observation, TargetError> {
        let stat = target.stat()?;
        let gone = || TargetError::Gone(target.pid);
        let (process, _) =
            ProcReader::open(target.pid).map_err(|e| target.failed(e))?.ok_or_else(gone)?;
        let command = process.command_or(&stat.name);
        let open_files = process.descriptors().ok().map(|found| found.len() as u64);
        Ok(Observation {
            pid: target.pid,
            start_ticks: target.start_ticks,
            command,
            threads: stat.threads,
            open_files,
            sockets_established: self.connections(&process, open_files.unwrap_or(0)),
            ..Observation::default()
        })
    }

    fn connections(&mut self, process: &ProcReader, open_files: u64) -> Option<u64> {
        if self.settings.without_connections {
            return None;
        }
        if self.sockets.is_none() {
            self.sockets = Sockets::open().ok();
        }
        let found = self.sockets.as_mut();
        found
            .and_then(|sockets| sockets.count(open_files, std::iter::once(process)))
            .or_else(|| sockets::count_in_its_namespace(process))
    }

    /// Recognises its allocators, and walks their heaps, as far as its memory may be read.
    fn walk(
        &mut self,
        target: &Target,
        memory: &ProcessMemory,
        walk: &mut BlockWalk,
        visitor: Visitor<'_>,
        is_readable: bool,
    ) -> Result<(), TargetError> {
        let BlockWalk { observation, heaps, maps, detected, .. } = walk;
        *detected = match self.detector.detect(target.pid, maps) {
            Ok(detected) => detected,
            Err(ProgramError::Gone) if !target.is_alive() => {
                return Err(TargetError::Gone(target.pid));
            }
            Err(error) => {
                if is_readable {
                    observation
                        .notes
                        .push(format!("its allocator could not be determined: {error}"));
                }
                Detected::default()
            }
        };
        if is_readable {
            let predictor = (!self.settings.without_predictions).then_some(&mut self.detector);
            *heaps = heaps::walk(memory, maps, detected, observation, visitor, predictor);
        }
        describe(detected, observation);
        Ok(())
    }
}

/// Returns the part of RSS that was not there when it was read, in bytes; 0 if that is too little
/// to matter.
fn moved_bytes(observation: &Observation) -> u64 {
    let rss_bytes = observation.kernel_rss_bytes.unwrap_or(0);
    let missed = rss_bytes.saturating_sub(observation.ledger.total());
    let is_much = missed as f64 >= MIN_MOVED_SHARE * rss_bytes as f64;
    if is_much && missed >= MIN_MOVED_BYTES { missed } else { 0 }
}

/// Reads everything else that requires its mappings.
fn inside(
    target: &Target,
    memory: &ProcessMemory,
    locked_files: &[Range<u64>],
    walk: &mut BlockWalk,
) -> Result<(), TargetError> {
    let pointers = detect::stack_pointers(target.pid);
    let mounts = mountinfo::read(&target.pid.to_string()).unwrap_or_default();
    let files = file_systems::FileSystems::parse(&mounts);
    let found = owners(memory, walk, &pointers, &files, locked_files);
    found.map_err(|error| target.failed(error))?.add_to(walk);
    let BlockWalk { observation, maps, detected, .. } = walk;
    observation.runtime_limits = limits::of_runtimes(memory, maps, detected, observation);
    observation.java_collector = hotspot::read_flags(target.pid, memory, maps, detected)
        .and_then(|flags| flags.collector)
        .map(|collector| collector.name().to_owned());
    status(target, maps, observation)
}

/// Counts the resident pages outside of the heaps that were walked, by owner. `pointers` are the
/// stack pointers of the threads, in order.
fn owners(
    memory: &ProcessMemory,
    walk: &BlockWalk,
    pointers: &[u64],
    files: &file_systems::FileSystems,
    locked_files: &[Range<u64>],
) -> io::Result<pages::Attribution> {
    let BlockWalk { heaps: walked, maps, detected, .. } = walk;
    let stacks = &detect::stacks(memory, detected, maps, pointers);
    pages::Attributor { maps, detected, stacks, walked, files, locked_files }.attribute(memory)
}

impl pages::Attribution {
    /// Adds the pages to the observation of a walk.
    fn add_to(self, walk: &mut BlockWalk) {
        let observation = &mut walk.observation;
        observation.ledger.join(&self.ledger);
        observation.managers =
            Manager::join(self.managers(), &heaps::walked_runtimes(&observation.ledger));
        observation.shared = self.shared();
        observation.files = self.files();
        observation.kept_file_bytes = self.kept_file_bytes;
        observation.changed_files = self.changed_files();
        observation.named_anonymous = self.named_anonymous();
        observation.anonymous_mappings = Some(self.anonymous_mappings);
        observation.mapped_again_bytes = Some(self.mapped_again_bytes());
        observation.rooms = self.rooms;
    }
}

/// Opens its memory, as far as permitted. All further reads are of the same program, as long as a
/// process uses this memory.
fn memory_of(target: &Target) -> Result<(Option<ProcessMemory>, Option<Unreadable>), TargetError> {
    match ProcessMemory::open(target.pid) {
        Ok(memory) => Ok((Some(memory), None)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok((ProcessMemory::pages_only(target.pid).ok(), Some(Unreadable::Memory)))
        }
        Err(error) => Err(target.failed(error)),
    }
}

/// Adds the detected allocators and runtimes.
fn describe(detected: &Detected, observation: &mut Observation) {
    observation.allocator = detected.allocator().map(|found| Allocator {
        kind: found.kind.clone(),
        version: found.version.clone(),
        linkage: Some(found.linkage),
    });
    observation.c_library = detected.c_library.clone();
    observation.unread_libraries.clone_from(&detected.unread_libraries);
    // One that has ended can have left memory behind, which its pools show.
    let has_memory =
        |r: &&DetectedRuntime| r.kind == RuntimeKind::Python && observation.cpython.is_some();
    let runtimes = detected.runtimes.iter().filter(|r| r.is_started || has_memory(r));
    observation.runtimes = runtimes
        .map(|r| Runtime { name: r.kind.name().to_owned(), version: r.version.clone() })
        .collect();
    if let Some(sanitizer) = detected.sanitizer {
        observation.notes.push(format!(
            "it runs under {}, which retains freed memory: this is not the normal memory use of the program",
            sanitizer.name()
        ));
    }
    let has_glibc_heap = detected.has_glibc_heap() && !observation.arenas.is_empty();
    if detected.own.is_some() && has_glibc_heap {
        observation.notes.push(
            "the program has its own allocator; the glibc heap is used by libraries".to_owned(),
        );
    }
}

/// Adds the values beside the ledger.
fn status(
    target: &Target,
    maps: &[Mapping],
    observation: &mut Observation,
) -> Result<(), TargetError> {
    let status = target.status()?;
    observation.kernel_rss_bytes = Some(status.rss_bytes());
    if let Some(rollup) = rollup(target, maps, observation.ledger.total()) {
        observation.kernel_rss_bytes = Some(rollup.rss_bytes);
        observation.pss_bytes = Some(rollup.pss_bytes);
        observation.lazyfree_bytes = Some(rollup.lazyfree_bytes);
        observation.anon_huge_bytes = Some(rollup.anon_huge_bytes);
    }
    observation.swap_bytes = status.swap_bytes;
    observation.page_tables_bytes = Some(status.page_tables_bytes);
    observation.hugetlb_bytes = Some(status.hugetlb_bytes);
    observation.notes.extend(pinned(status.pinned_bytes, observation.ledger.total()));
    Ok(())
}

/// Returns a note about memory that is pinned, if that is a notable part: RSS does not count what
/// of it is not mapped.
fn pinned(bytes: u64, rss_bytes: u64) -> Option<String> {
    const MIN_BYTES: u64 = 1 << 20;
    let is_notable = bytes >= MIN_BYTES && bytes.saturating_mul(10) >= rss_bytes;
    is_notable.then(|| {
        format!(
            "{} are pinned for the kernel or a device (buffers that are registered for io_uring, RDMA or a GPU): no \
             release returns them, and what of them is not mapped is not in RSS, but in the charge of its cgroup",
            Human(bytes)
        )
    })
}

/// Adds the lazily freed memory of a process for which `smaps_rollup` was not read.
fn add_lazily_freed(memory: &ProcessMemory, walk: &mut BlockWalk) {
    let BlockWalk { observation, maps, .. } = walk;
    if observation.lazyfree_bytes.is_none()
        && let Some((bytes, is_estimate)) = lazy_free::estimate(memory, maps)
    {
        observation.lazyfree_bytes = Some(bytes);
        observation.lazyfree_estimated = is_estimate;
    }
}

/// Adds what forked processes share, and what `smaps_rollup` does not show of huge pages.
fn add_details(target: &Target, memory: &ProcessMemory, is_readable: bool, walk: &mut BlockWalk) {
    let BlockWalk { observation, maps, detected, .. } = walk;
    observation.ended_children = ended_children(target.pid);
    forked::add(observation, target, memory, maps, detected);
    if observation.anon_huge_bytes == Some(0) {
        return;
    }
    let Some(runs) = huge::runs(memory, maps) else { return };
    observation.anon_huge_bytes = Some(lowtide_heap::ranges::bytes(&runs));
    // Without permission to read the memory, nothing is known about its content.
    observation.huge_pages = (!runs.is_empty() && is_readable)
        .then(|| huge::describe(target.pid, memory, maps, detected, &runs));
}

/// Reads the values that only `smaps_rollup` has, unless a thread would have to wait for it.
fn rollup(target: &Target, maps: &[Mapping], resident_bytes: u64) -> Option<Rollup> {
    if !smaps::is_cheap_to_walk(maps, resident_bytes) {
        return None;
    }
    let text = fs::read_to_string(target.path("smaps_rollup")).ok()?;
    Rollup::parse(&text).ok()
}

/// Adds the values that are available for a process of another user without any capability.
fn by_status(target: &Target, observation: &mut Observation) -> Result<(), TargetError> {
    let status = target.status()?;
    observation.ledger.add(Owner::File, status.file_bytes);
    observation.ledger.add(Owner::Shared, status.shared_bytes);
    observation.ledger.add(Owner::Unattributed, status.anon_bytes);
    observation.kernel_rss_bytes = Some(status.rss_bytes());
    observation.swap_bytes = status.swap_bytes;
    observation.page_tables_bytes = Some(status.page_tables_bytes);
    observation.hugetlb_bytes = Some(status.hugetlb_bytes);
    Ok(())
}

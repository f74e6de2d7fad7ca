//! One look at a process: whose its resident bytes are, without stopping it.
//!
//! What is known for certain is taken first: the heap that was walked, stacks, data of files. What is
//! left is told by what it looks like, and says that it is an estimate. Every page is counted once:
//! those of the heap in the walker's own scan, all others in one over the mappings.

mod footprint;
mod pages;
mod target;

use std::fs;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use lowtide_heap::ptmalloc::{self, Class, Heap, Layout, Settings};
use lowtide_model::cures::cures;
use lowtide_model::inspection::{Allocator, Arena, Bin, Inspection, Runtime, SCHEMA, Tunables};
use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::verdict::{self, Facts, Kind, Verdict};

use crate::allocator::ExamineError;
use crate::heap;
use crate::machine::thread_cpu_s;
use crate::memory::LiveMemory;
use crate::patience::patiently;
use crate::proc::maps::Mapping;
use crate::proc::rollup::Rollup;
use crate::process::Process;
use crate::recognise::{self, Recogniser, Recognition};
use crate::sockets::{self, Sockets};

pub use footprint::{Footprint, Proportion};
pub use target::{Target, TargetError};

/// So often a process is looked at that starts another program meanwhile.
const TRIES: usize = 3;

/// What was not permitted, as a sentence about what it takes: a capability or a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Not even its mappings may be seen.
    Mappings,
    /// Its memory may not be read, so that its heap cannot be walked.
    Memory,
}

/// What one look gave.
#[derive(Debug)]
pub struct Look {
    /// What was found.
    pub inspection: Inspection,
    /// What was not permitted, if so: then the inspection holds what could be seen without.
    pub limit: Option<Limit>,
    /// Which of the programs it is that a process may run one after the other: two looks with the same
    /// are of the same. Zeros where that may not be seen.
    pub image: (u64, u64),
}

/// While the kernel makes `smaps_rollup`, it lets go of the lock of the process's mappings only between
/// two of them (10 to 50 ms per GB): where one is larger than this and resident, its threads would wait.
/// What only that file tells is then not known.
pub const LARGEST_WALKED: u64 = 128 << 20;

/// Looks at processes, and remembers the files that it has read.
#[derive(Debug, Default)]
pub struct Inspector {
    recogniser: Recogniser,
    sockets: Option<Sockets>,
    without_scan: bool,
}

impl Inspector {
    /// Does without `PAGEMAP_SCAN`, as on kernels before 6.7.
    #[must_use]
    pub fn without_scan(mut self) -> Self {
        self.without_scan = true;
        self
    }

    /// Looks at a process once. It is not stopped, and no page of it becomes present.
    ///
    /// # Errors
    /// When it ends meanwhile, or starts other programs again and again, or reading it does not come to
    /// an end.
    pub fn inspect(&mut self, target: &Target) -> Result<Look, TargetError> {
        let of_thread = target.try_clone().map_err(|error| target.failed(error))?;
        let without_scan = self.without_scan;
        let mut worker = std::mem::take(self);
        let done = patiently(&AtomicBool::new(false), move || {
            let look = worker.inspect_here(&of_thread);
            (worker, look)
        });
        let Ok((worker, look)) = done else {
            self.without_scan = without_scan;
            return Err(TargetError::Blocked(target.pid));
        };
        *self = worker;
        look
    }

    fn inspect_here(&mut self, target: &Target) -> Result<Look, TargetError> {
        for _ in 0..TRIES {
            let image = target.stat()?.image;
            let look = self.look(target, image);
            let is_replaced = matches!(look, Err(TargetError::Replaced(_)));
            // Where it has started another program, what was seen is of two.
            if target.stat()?.image == image && !is_replaced {
                return look;
            }
        }
        Err(TargetError::Replaced(target.pid))
    }

    fn look(&mut self, target: &Target, image: (u64, u64)) -> Result<Look, TargetError> {
        let (begin, cpu) = (Instant::now(), thread_cpu_s());
        let (memory, mut limit) = memory_of(target)?;
        let memory = memory.map(|m| if self.without_scan { m.without_scan() } else { m });
        let mut inspection = self.outside(target)?;
        let maps = match target.maps() {
            Ok(maps) => Some(maps),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(target.failed(error)),
        };
        let walked = match (&memory, maps) {
            (Some(memory), Some(maps)) => {
                self.inside(target, memory, &maps, &mut inspection, limit)?
            }
            _ => {
                limit = Some(Limit::Mappings);
                by_status(target, &mut inspection)?;
                None
            }
        };
        if memory.is_some_and(|memory| !memory.is_in_use()) {
            return Err(TargetError::Replaced(target.pid));
        }
        inspection.rss_bytes = inspection.ledger.total();
        conclude(&mut inspection, walked.as_ref(), limit);
        inspection.elapsed_s = begin.elapsed().as_secs_f64();
        inspection.cpu_s = thread_cpu_s() - cpu;
        Ok(Look { inspection, limit, image })
    }

    /// What the kernel tells of it.
    fn outside(&mut self, target: &Target) -> Result<Inspection, TargetError> {
        let stat = target.stat()?;
        let gone = || TargetError::Gone(target.pid);
        let (process, _) =
            Process::open(target.pid).map_err(|e| target.failed(e))?.ok_or_else(gone)?;
        let command = process.command_or(&stat.name);
        let open_files = process.descriptors().ok().map(|found| found.len() as u64);
        Ok(Inspection {
            schema: SCHEMA,
            pid: target.pid,
            start_ticks: target.start_ticks,
            command,
            elapsed_s: 0.0,
            cpu_s: 0.0,
            stopped_s: 0.0,
            allocator: None,
            runtimes: Vec::new(),
            tunables_in_force: None,
            rss_bytes: 0,
            kernel_rss_bytes: None,
            ledger: Ledger::default(),
            managers: Vec::new(),
            shared: Vec::new(),
            unwalked_bytes: 0,
            lazyfree_bytes: None,
            swap_bytes: 0,
            anon_huge_bytes: None,
            page_tables_bytes: None,
            threads: stat.threads,
            open_files,
            sockets_established: self.connections(&process, open_files.unwrap_or(0)),
            arenas: Vec::new(),
            allocated_by_size: Vec::new(),
            mmapped_count: 0,
            mmapped_bytes: 0,
            notes: Vec::new(),
            verdict: Verdict { kind: Kind::Inconclusive, because: Vec::new() },
            cures: Vec::new(),
        })
    }

    fn connections(&mut self, process: &Process, open_files: u64) -> Option<u64> {
        if self.sockets.is_none() {
            self.sockets = Sockets::open().ok();
        }
        let found = self.sockets.as_mut();
        found
            .and_then(|sockets| sockets.count(open_files, std::iter::once(process)))
            .or_else(|| sockets::count_in_its_namespace(process))
    }

    /// Everything that takes its mappings.
    fn inside(
        &mut self,
        target: &Target,
        memory: &LiveMemory,
        maps: &[Mapping],
        inspection: &mut Inspection,
        limit: Option<Limit>,
    ) -> Result<Option<Heap>, TargetError> {
        let recognition = match self.recogniser.recognise(target.pid, maps) {
            Ok(recognition) => recognition,
            Err(ExamineError::Gone) if !target.is_alive() => {
                return Err(TargetError::Gone(target.pid));
            }
            Err(error) => {
                if limit.is_none() {
                    inspection.notes.push(format!("its allocator could not be told: {error}"));
                }
                Recognition::default()
            }
        };
        let walked =
            if limit.is_none() { walk(memory, maps, &recognition, inspection) } else { None };
        describe(&recognition, inspection);
        let pointers = recognise::stack_pointers(target.pid);
        let stacks = recognise::stacks(memory, &recognition, maps, &pointers);
        let taken = walked.as_ref().map(|heap| heap.areas.as_slice()).unwrap_or_default();
        let mounts = fs::read(target.path("mountinfo")).unwrap_or_default();
        let files = &pages::FileSystems::of(&String::from_utf8_lossy(&mounts));
        let seen = pages::Seen { maps, recognition: &recognition, stacks: &stacks, taken, files };
        let rest = seen.attribute(memory).map_err(|error| target.failed(error))?;
        inspection.ledger.join(&rest.ledger);
        inspection.managers = rest.managers();
        inspection.shared = rest.shared();
        self::status(target, maps, inspection)?;
        Ok(walked)
    }
}

/// Takes hold of its memory, as far as that is permitted. From then on all that is seen is of the same
/// program, as long as somebody has this memory.
fn memory_of(target: &Target) -> Result<(Option<LiveMemory>, Option<Limit>), TargetError> {
    match LiveMemory::open(target.pid) {
        Ok(memory) => Ok((Some(memory), None)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok((LiveMemory::pages_only(target.pid).ok(), Some(Limit::Memory)))
        }
        Err(error) => Err(target.failed(error)),
    }
}

/// Walks its heap, when that is glibc's.
fn walk(
    memory: &LiveMemory,
    maps: &[Mapping],
    recognition: &Recognition,
    inspection: &mut Inspection,
) -> Option<Heap> {
    if !recognition.has_glibc_heap() || recognition.sanitizer.is_some() {
        return None;
    }
    let malloc = recognition.malloc.as_ref()?;
    let library = heap::library(maps, &malloc.path.to_string_lossy())?;
    let Some(layout) = Layout::find(memory, &heap::data_of(maps, library.file)) else {
        if maps.iter().any(|m| m.name == "[heap]") {
            inspection.notes.push(
                "its heap is laid out in a way that is not known, and was not walked".to_owned(),
            );
        }
        return None;
    };
    let heap = ptmalloc::walk(memory, &layout, &heap::mappings(maps));
    let owners = heap.owners();
    let ledger = &mut inspection.ledger;
    ledger.add(Owner::Allocated, owners.allocated_bytes);
    ledger.add(Owner::Reclaimable, owners.reclaimable_bytes);
    ledger.add(Owner::Fragmented, owners.fragmented_bytes);
    ledger.add(Owner::Cached, owners.cached_bytes);
    ledger.add(Owner::Metadata, owners.metadata_bytes);
    ledger.add(Owner::Unattributed, owners.unwalked_bytes);
    let total = heap.total();
    inspection.unwalked_bytes = total.unwalked_bytes;
    inspection.allocated_by_size = bins(&total.used_classes);
    inspection.mmapped_count = heap.mmapped.count;
    inspection.mmapped_bytes = heap.mmapped.bytes;
    inspection.arenas =
        heap.arenas.iter().enumerate().map(|(id, found)| arena(id as u64, found)).collect();
    inspection.tunables_in_force = layout.settings.as_ref().map(tunables);
    let torn = heap.arenas.iter().filter(|a| !a.is_whole()).count();
    if torn > 0 && total.unwalked_bytes > 0 {
        inspection.notes.push(format!(
            "{torn} of {} arenas could not be walked to their ends: they changed too fast, or parts \
             of them are swapped out",
            heap.arenas.len()
        ));
    }
    Some(heap)
}

fn arena(id: u64, found: &ptmalloc::Arena) -> Arena {
    let tally = &found.tally;
    Arena {
        id,
        heaps: found.heaps,
        system_bytes: found.system_bytes,
        allocated_bytes: tally.used_bytes,
        free_count: tally.free_count,
        free_bytes: tally.free_bytes,
        fast_count: tally.fast_count,
        fast_bytes: tally.fast_bytes,
        top_bytes: tally.top_bytes,
        reclaimable_bytes: tally.resident.reclaimable_bytes,
        free_resident_bytes: tally.resident.reclaimable_bytes + tally.resident.fragmented_bytes,
        largest_free_bytes: tally.largest_free_bytes,
        whole: found.is_whole(),
        bins: bins(&tally.free_classes),
    }
}

/// Classes of sizes, without those that nothing is of.
fn bins(classes: &[Class]) -> Vec<Bin> {
    let some = classes.iter().enumerate().filter(|(_, class)| class.count > 0);
    some.map(|(place, class)| {
        let (from, to) = Class::bounds(place);
        Bin { from, to: to.unwrap_or(u64::MAX), count: class.count, bytes: class.bytes }
    })
    .collect()
}

fn tunables(settings: &Settings) -> Tunables {
    Tunables {
        arena_max: settings.arena_max,
        trim_threshold_bytes: settings.trim_threshold_bytes,
        top_pad_bytes: settings.top_pad_bytes,
        mmap_threshold_bytes: settings.mmap_threshold_bytes,
        mmap_threshold_dynamic: settings.mmap_threshold_dynamic,
        tcache_count: settings.tcache_count,
        tcache_max_bytes: settings.tcache_max_bytes,
    }
}

/// Who was recognised.
fn describe(recognition: &Recognition, inspection: &mut Inspection) {
    inspection.allocator = recognition.allocator().map(|found| Allocator {
        name: found.name.clone(),
        version: found.version.clone(),
        linkage: Some(found.linkage),
    });
    let runtimes = recognition.runtimes.iter();
    inspection.runtimes = runtimes
        .map(|r| Runtime { name: r.kind.name().to_owned(), version: r.version.clone() })
        .collect();
    if let Some(sanitizer) = recognition.sanitizer {
        inspection.notes.push(format!(
            "it runs under {}, which keeps what was freed: its memory says little about the program",
            sanitizer.name()
        ));
    }
    if recognition.own.is_some() && !inspection.arenas.is_empty() {
        inspection.notes.push(
            "the program brings its own allocator; glibc's heap beside it is what libraries use"
                .to_owned(),
        );
    }
}

/// What stands beside the ledger.
fn status(
    target: &Target,
    maps: &[Mapping],
    inspection: &mut Inspection,
) -> Result<(), TargetError> {
    let status = target.status()?;
    inspection.kernel_rss_bytes = Some(status.rss_bytes());
    if let Some(rollup) = rollup(target, maps, inspection.ledger.total()) {
        inspection.kernel_rss_bytes = Some(rollup.rss_bytes);
        inspection.lazyfree_bytes = Some(rollup.lazyfree_bytes);
        inspection.anon_huge_bytes = Some(rollup.anon_huge_bytes);
    }
    inspection.swap_bytes = status.swap_bytes;
    inspection.page_tables_bytes = Some(status.page_tables_bytes);
    Ok(())
}

/// What only `smaps_rollup` tells, where no thread would wait for it.
fn rollup(target: &Target, maps: &[Mapping], resident_bytes: u64) -> Option<Rollup> {
    let largest = maps.iter().filter(|m| !m.permissions.starts_with("---")).map(Mapping::size);
    if largest.max().unwrap_or(0).min(resident_bytes) > LARGEST_WALKED {
        return None;
    }
    let text = fs::read_to_string(target.path("smaps_rollup")).ok()?;
    Rollup::parse(&text).ok()
}

/// What can be said of a process of another user without any capability.
fn by_status(target: &Target, inspection: &mut Inspection) -> Result<(), TargetError> {
    let status = target.status()?;
    inspection.ledger.add(Owner::File, status.file_bytes);
    inspection.ledger.add(Owner::Shared, status.shared_bytes);
    inspection.ledger.add(Owner::Unattributed, status.anon_bytes);
    inspection.kernel_rss_bytes = Some(status.rss_bytes());
    inspection.swap_bytes = status.swap_bytes;
    inspection.page_tables_bytes = Some(status.page_tables_bytes);
    Ok(())
}

/// Judges what was found.
fn conclude(inspection: &mut Inspection, walked: Option<&Heap>, limit: Option<Limit>) {
    let runtimes: Vec<String> = inspection.runtimes.iter().map(|r| r.name.clone()).collect();
    let facts = Facts {
        ledger: &inspection.ledger,
        managers: &inspection.managers,
        shared: &inspection.shared,
        runtimes: &runtimes,
        heap_was_walked: walked.is_some(),
        arenas: &inspection.arenas,
        tunables: inspection.tunables_in_force.as_ref(),
        trim_bytes: walked.map_or(0, Heap::trim_bytes),
        release_bytes: walked.map_or(0, Heap::release_bytes),
        connections: inspection.sockets_established,
    };
    let verdict = match limit {
        None => verdict::judge(&facts),
        Some(_) => Verdict {
            kind: Kind::Inconclusive,
            because: vec!["its heap may not be read".to_owned()],
        },
    };
    inspection.cures = cures(&facts, &verdict, inspection.pid);
    inspection.verdict = verdict;
}

//! Walks the heaps of a process: those of its allocators, of allocators that libraries contain for
//! their own use, and of runtimes.
//!
//! A walked heap is proven by its structures (see [`Claim`](crate::detect::Claim)). The one
//! estimate among the heaps, that of a HotSpot without readable variables, is made last, from
//! memory that no proof claims.

use std::ops::Range;
use std::path::Path;

use lowtide_heap::blocks::{Visitor, lend};
use lowtide_heap::engine::{self, EngineDetail, EnginePlaces, WalkedEngine};
use lowtide_heap::hotspot::{JavaHeap, Part, PerfData};
use lowtide_heap::layout::{HeapLayout, Places, Walked};
use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::HeapMapping;
use lowtide_heap::ranges::{joined, union, without};
use lowtide_heap::residency::Residency;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Bin, CLibrary, Manager, Observation, WalkedHeap};
use lowtide_model::ledger::{Ledger, Row, State, WalkedRuntime};
use lowtide_model::runtime_kind::RuntimeKind;

use crate::detect::{
    self, Claim, Detected, DetectedAllocator, DetectedRuntime, Detector, OwnMemory, WalkedHeaps,
};
use crate::heap;
use crate::hotspot::perf_data;
use crate::libraries::{Libraries, LibraryHeap};
use crate::memory::ProcessMemory;
use crate::proc::maps::{FileId, Mapping};

/// Walks the heaps of all supported allocators of a process, and passes their blocks in use on.
/// With `predictor`, which recognises the allocators of libraries, it also predicts what a release
/// would return. That takes a second walk of the heap of another allocator than glibc's.
pub(super) fn walk(
    memory: &ProcessMemory,
    maps: &[Mapping],
    detected: &Detected,
    observation: &mut Observation,
    visitor: Visitor<'_>,
    predictor: Option<&mut Detector>,
) -> WalkedHeaps {
    if detected.sanitizer.is_some() {
        return WalkedHeaps::default();
    }
    let (mappings, heaps) = (heap::mappings(maps), WalkedHeaps::default());
    let mut walks =
        HeapWalks { memory, maps, detected, observation, visitor, mappings, heaps, predictor };
    // Heaps that are recognised by structure come first: their memory is excluded from the search
    // for chunks.
    walks.libraries();
    walks.runtimes();
    walks.allocators();
    walks.observation.heaps.sort_by_key(|heap| heap.library.is_some());
    if detected.has(RuntimeKind::HotSpot) && !walks.has_java_heap() {
        walks.guess_hotspot();
    }
    walks.heaps
}

/// The walks of the heaps of one process.
struct HeapWalks<'a, 'v> {
    memory: &'a ProcessMemory,
    maps: &'a [Mapping],
    detected: &'a Detected,
    /// What has been found so far.
    observation: &'a mut Observation,
    heaps: WalkedHeaps,
    /// The mappings in which no heap has been found yet.
    mappings: Vec<HeapMapping>,
    visitor: Visitor<'v>,
    /// Present if it predicts what a release would return.
    predictor: Option<&'a mut Detector>,
}

impl HeapWalks<'_, '_> {
    /// Walks the heaps of the program's allocators.
    fn allocators(&mut self) {
        let (memory, maps, detected) = (self.memory, self.maps, self.detected);
        for allocator in detected.allocators() {
            let Some(library) = heap::library(maps, &allocator.path.to_string_lossy()) else {
                continue;
            };
            let data = heap::data_of(maps, library.file);
            let zeroed_data = detected.zeroed_data_of(allocator, maps, memory.page_bytes());
            let mappings = &self.mappings;
            let places = Places { data: &data, zeroed_data: &zeroed_data, mappings };
            let Some(layout) = HeapLayout::find(&allocator.kind, memory, &places) else {
                let note = self.not_found(allocator);
                self.observation.notes.extend(note);
                continue;
            };
            let mut walked = layout.walk(memory, &self.mappings, lend(&mut self.visitor));
            if let Ok(walked) = &mut walked {
                // Then `release --untested` acts on it, and the refusal of `release` says so.
                let is_only_one = detected.allocators().count() == 1;
                walked.prediction.release_bytes = match allocator.kind {
                    AllocatorKind::Glibc => walked.prediction.release_bytes,
                    _ if self.predictor.is_none() => None,
                    _ if is_only_one => self.guarded_bytes(layout, allocator),
                    _ => self.tested_bytes(layout, allocator),
                };
            }
            self.add_walk((&allocator.kind, None), walked);
            self.name_variable(&allocator.kind, &allocator.path);
        }
    }

    /// Returns the note about an allocator whose heap was not found, if it should have been.
    fn not_found(&self, allocator: &DetectedAllocator) -> Option<String> {
        match allocator.kind {
            AllocatorKind::Glibc => {
                let has_heap = self.maps.iter().any(|m| m.name == "[heap]");
                let note = || "its heap has an unknown layout, and was not walked".to_owned();
                has_heap.then(note)
            }
            AllocatorKind::Musl => Some(no_mallocng(allocator.version.as_deref())),
            _ => None,
        }
    }

    /// Adds the name of the variable from which the heap that was added last reads its settings.
    fn name_variable(&mut self, kind: &AllocatorKind, path: &Path) {
        let (pid, maps) = (self.observation.pid, self.maps);
        let heap = self.observation.heaps.last_mut().filter(|heap| heap.allocator == *kind);
        if *kind == AllocatorKind::Jemalloc
            && let (Some(heap), Some(detector)) = (heap, self.predictor.as_deref_mut())
            && let Some(mapping) = heap::library(maps, &path.to_string_lossy())
        {
            heap.variable = detector.jemalloc_variable(pid.into(), mapping);
        }
    }

    /// Returns the memory that a release of another allocator than glibc's would return to the OS,
    /// in bytes; `None` if it would be refused.
    fn guarded_bytes(&self, layout: HeapLayout, allocator: &DetectedAllocator) -> Option<u64> {
        let has_known_locks = |library: &&CLibrary| allocator.kind.has_known_locks(library.name);
        self.detected.c_library.as_ref().filter(has_known_locks)?;
        let (pid, maps) = (self.observation.pid, self.maps);
        let heap = heap::droppable(pid, maps, allocator, layout, self.memory, &self.mappings);
        let sums = heap.ok()?.walk(self.memory, &self.mappings, &mut |_| ()).ok()?;
        Some(sums.release_bytes)
    }

    /// The same, of a heap that a release leaves alone if the version of its allocator was not
    /// tested.
    fn tested_bytes(&self, layout: HeapLayout, allocator: &DetectedAllocator) -> Option<u64> {
        let is_tested = allocator.kind.is_tested(allocator.version.as_deref());
        is_tested.then(|| self.guarded_bytes(layout, allocator)).flatten()
    }

    /// Walks the heaps of runtimes.
    fn runtimes(&mut self) {
        let (memory, maps, detected) = (self.memory, self.maps, self.detected);
        for (engine, file) in engines(detected) {
            self.engine(engine, file);
        }
        if let Some(JavaHeap::Reserved(heap)) = detect::java_heap(memory, detected, maps)
            && let Some(data) = perf_data(memory, maps)
        {
            // Parts of it may be mapped from the archive of classes.
            let accessible = maps.iter().filter(|m| !m.permissions.starts_with("---"));
            let parts = accessible.map(|m| m.start.max(heap.start)..m.end.min(heap.end));
            let parts = joined(parts.filter(|part| part.start < part.end).collect());
            let areas: Vec<Range<u64>> =
                parts.into_iter().flat_map(|part| without(part, &self.heaps.areas)).collect();
            self.mappings = outside(&self.mappings, &areas);
            self.add_java_heap(&data, areas);
        }
    }

    /// Walks the heap of an engine that a file contains.
    fn engine(&mut self, engine: WalkedRuntime, file: FileId) {
        let data = heap::data_of(self.maps, file);
        let heaps = joined(heap::mappings(self.maps).into_iter().map(|m| m.range).collect());
        let mapped = self.mappings.iter().filter(|mapping| !mapping.is_brk);
        let mapped = joined(mapped.map(|mapping| mapping.range.clone()).collect());
        let reserved = self.anonymous(|_| true);
        let private = self.anonymous(|mapping| !mapping.permissions.starts_with("---"));
        let places = EnginePlaces {
            data: &data,
            heaps: &heaps,
            mapped: &mapped,
            private: &private,
            reserved: &reserved,
        };
        match engine::walk(engine, self.memory, &places, lend(&mut self.visitor)) {
            Some(walked) => self.add_engine(walked),
            None if engine == WalkedRuntime::V8 => {
                self.observation.notes.push(engine::UNKNOWN_V8.to_owned());
            }
            None => {}
        }
    }

    /// Returns the private memory of no file without other owners.
    fn anonymous(&self, is_wanted: impl Fn(&Mapping) -> bool) -> Vec<Range<u64>> {
        let wanted = self.maps.iter().filter(|m| detect::is_private_memory(m) && is_wanted(m));
        joined(wanted.flat_map(|m| without(m.start..m.end, &self.heaps.areas)).collect())
    }

    fn add_engine(&mut self, walked: WalkedEngine) {
        self.observation.ledger.join(&walked.ledger);
        self.observation.unwalked_bytes += walked.unwalked_bytes;
        self.add_areas(&walked.areas);
        self.mappings = outside(&self.mappings, &walked.areas);
        match walked.detail {
            EngineDetail::CPython(heap) => self.observation.cpython = Some(heap),
            EngineDetail::Spaces(heap) => {
                self.add_without_blocks(heap.engine, walked.areas, false);
                self.observation.engines.push(heap);
            }
        }
    }

    /// Adds the heap of Java objects by its size, if HotSpot's variables do not prove its
    /// addresses: some range that no proof claims.
    fn guess_hotspot(&mut self) {
        let (memory, maps, detected) = (self.memory, self.maps, self.detected);
        if maps.iter().any(detect::is_java_heap_file)
            || detect::java_heap(memory, detected, maps).is_some()
        {
            return;
        }
        let Some(data) = perf_data(memory, maps) else { return };
        let proven = proven_memory(memory, maps, detected, &self.heaps);
        let areas = guessed_heap(&data, maps, &proven);
        if !areas.is_empty() {
            self.add_java_heap(&data, areas);
        }
    }

    fn has_java_heap(&self) -> bool {
        self.heaps.without_blocks.iter().any(|claim| claim.owner == WalkedRuntime::HotSpot)
    }

    /// Adds the heap of Java objects.
    fn add_java_heap(&mut self, data: &PerfData, areas: Vec<Range<u64>>) {
        let mut residency = Residency::new(self.memory);
        let resident_bytes: u64 = areas.iter().map(|area| residency.bytes(area.clone())).sum();
        // The performance data do not contain the allocations since the last collection.
        let allocated_bytes = data.used_bytes.min(resident_bytes);
        let free_bytes = resident_bytes - allocated_bytes;
        for (state, bytes) in [(State::Allocated, allocated_bytes), (State::Free, free_bytes)] {
            self.observation.ledger.add_walked_estimate(WalkedRuntime::HotSpot, state, bytes);
        }
        self.add_areas(&areas);
        self.add_without_blocks(WalkedRuntime::HotSpot, areas, true);
    }

    /// Adds addresses of an engine whose blocks are not known.
    fn add_without_blocks(
        &mut self,
        owner: WalkedRuntime,
        areas: Vec<Range<u64>>,
        estimated: bool,
    ) {
        let all = &mut self.heaps.without_blocks;
        all.extend(areas.into_iter().map(|range| Claim { range, owner, estimated }));
        all.sort_unstable_by_key(|claim| claim.range.start);
    }

    /// Walks the heaps of allocators that libraries contain for their own use.
    fn libraries(&mut self) {
        let (memory, maps, detected) = (self.memory, self.maps, self.detected);
        let libraries = Libraries::find(maps, detected);
        for found in libraries.jemallocs(memory, &self.mappings) {
            self.add_library(found);
        }
        if let Some(found) = libraries.mimalloc(memory, detected, &self.mappings) {
            self.add_library(found);
        }
    }

    fn add_library(&mut self, found: LibraryHeap) {
        let mut walked = found.layout.walk(self.memory, &self.mappings, lend(&mut self.visitor));
        let (kind, library) = (found.kind.clone(), found.library().to_owned());
        if let Ok(walked) = &mut walked {
            let (pid, maps) = (self.observation.pid, self.maps);
            let predictor = self.predictor.as_deref_mut();
            let allocator = predictor.and_then(|detector| found.allocator(pid, maps, detector));
            let bytes = allocator.and_then(|allocator| self.tested_bytes(found.layout, &allocator));
            walked.prediction.release_bytes = bytes;
        }
        self.add_walk((&kind, Some(&library)), walked);
        if let Some(path) = &found.path {
            self.name_variable(&kind, path);
        }
    }

    fn add_areas(&mut self, areas: &[Range<u64>]) {
        self.heaps.areas.extend_from_slice(areas);
        self.heaps.areas.sort_unstable_by_key(|area| area.start);
    }

    /// Adds a heap of an allocator, of a library or of the program, and removes it from the
    /// mappings that are searched for others. If it was not walked, adds a note with the reason.
    fn add_walk(
        &mut self,
        (kind, library): (&AllocatorKind, Option<&str>),
        walked: Result<Walked, &str>,
    ) {
        let note = match (walked, library) {
            (Ok(walked), _) => {
                let areas = self.add_heap(kind, library.map(str::to_owned), walked);
                self.mappings = outside(&self.mappings, &areas);
                return;
            }
            (Err(why), None) => format!("its heap was not walked: {why}"),
            (Err(why), Some(library)) => {
                format!("the heap of {kind} of {library} was not walked: {why}")
            }
        };
        self.observation.notes.push(note);
    }

    /// Adds a walked heap to the observation and to the heaps, and returns its addresses.
    fn add_heap(
        &mut self,
        kind: &AllocatorKind,
        library: Option<String>,
        walked: Walked,
    ) -> Vec<Range<u64>> {
        if let Some(other) = overlap(&walked.areas, &self.heaps.areas) {
            self.observation.notes.push(format!(
                "a heap of {kind} was left out: it overlaps another heap at {other:#x}, so one of them was misidentified"
            ));
            return Vec::new();
        }
        let prediction = walked.prediction;
        // The allocator of a library says nothing about that of the program.
        if library.is_none() {
            self.heaps.allocators.push(kind.clone());
        }
        let heap = WalkedHeap::new(kind.clone(), library, &walked.ledger, prediction);
        self.observation.heaps.push(heap);
        self.heaps.structures.extend(walked.structures);
        self.heaps.structures.sort_unstable_by_key(|range| range.start);
        if *kind == AllocatorKind::Glibc {
            self.heaps.chunks.extend_from_slice(&walked.areas);
            self.heaps.chunks.sort_unstable_by_key(|range| range.start);
        }
        self.add_areas(&walked.areas);
        let observation = &mut *self.observation;
        let torn = walked.arenas.iter().filter(|a| !a.whole).count();
        if torn > 0 && walked.unwalked_bytes > 0 {
            observation.notes.push(format!(
                "{torn} of {} arenas could not be walked completely: they changed too fast, or parts \
                 of them are swapped out",
                walked.arenas.len()
            ));
        }
        if walked.arenas.is_empty() && walked.unwalked_bytes > 0 {
            observation.notes.push(format!(
                "parts of the heap of {kind} ({}) could not be walked, because they changed meanwhile or are damaged",
                Human(walked.unwalked_bytes)
            ));
        }
        observation.ledger.join(&walked.ledger);
        observation.unwalked_bytes += walked.unwalked_bytes;
        let bins = std::mem::take(&mut observation.allocated_by_size);
        observation.allocated_by_size = Bin::join(bins, &walked.allocated_by_size);
        observation.mmapped_count += walked.mmapped_count;
        observation.mmapped_bytes += walked.mmapped_bytes;
        observation.arenas.extend(walked.arenas);
        observation.tunables_in_force = observation.tunables_in_force.take().or(walked.tunables);
        observation.heap = Some(observation.heap.unwrap_or_default().and(walked.prediction));
        walked.areas
    }
}

/// Returns the memory whose owner is proven, in order and disjoint.
fn proven_memory(
    memory: &ProcessMemory,
    maps: &[Mapping],
    detected: &Detected,
    heaps: &WalkedHeaps,
) -> Vec<Range<u64>> {
    let stacks = detect::stacks(memory, detected, maps, &[]);
    let areas = detect::areas(memory, detected, maps, &stacks, heaps);
    let mut all = detect::proven(&stacks);
    all.extend(detect::proven(&areas));
    all.extend(heaps.areas.iter().chain(&detected.zeroed_data).cloned());
    union(all)
}

/// Returns the note about a program of musl whose heap has none of mallocng's structures.
fn no_mallocng(version: Option<&str>) -> String {
    const FIRST: [u32; 3] = [1, 2, 1];
    let numbers = |text: &str| text.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>();
    match version.map(|version| (version, numbers(version))) {
        Some((version, Ok(numbers))) if numbers[..] < FIRST[..] => format!(
            "its heap was not walked: the malloc of musl {version} is older than mallocng (musl 1.2.1 and newer), \
             which is the one that lowtide reads"
        ),
        known => format!(
            "its heap was not walked: it has none of musl's mallocng (musl 1.2.1 and newer), because it {}has not \
             allocated yet, never frees memory, or has another malloc",
            if known.is_none() { "is older, " } else { "" }
        ),
    }
}

/// Guesses the heap of Java objects from private mappings, outside of `proven` memory, which is in
/// order and disjoint.
fn guessed_heap(data: &PerfData, maps: &[Mapping], proven: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_private = |m: &&Mapping| m.permissions.ends_with('p') && !m.name.starts_with('[');
    let parts = maps.iter().filter(is_private).flat_map(|m| {
        let is_memory = !m.has_file() && m.permissions.starts_with("rw");
        without(m.start..m.end, proven).into_iter().map(move |range| Part { range, is_memory })
    });
    data.guess_heap(&parts.collect::<Vec<_>>())
}

/// Returns the parts of mappings outside of some areas: no page has two owners.
fn outside(mappings: &[HeapMapping], areas: &[Range<u64>]) -> Vec<HeapMapping> {
    let rest = |mapping: &HeapMapping| {
        let is_brk = mapping.is_brk;
        let rest = without(mapping.range.clone(), areas).into_iter();
        rest.map(move |range| HeapMapping { range, is_brk })
    };
    mappings.iter().flat_map(rest).collect()
}

/// Returns an address that is in both lists of areas. Each list is in order and disjoint.
fn overlap(these: &[Range<u64>], others: &[Range<u64>]) -> Option<u64> {
    these.iter().find_map(|area| {
        let other = others.get(others.partition_point(|other| other.end <= area.start))?;
        (other.start < area.end).then(|| other.start.max(area.start))
    })
}

/// Returns the engines whose heaps are walked, each with the file that contains it.
fn engines(detected: &Detected) -> Vec<(WalkedRuntime, FileId)> {
    let has_own = |found: &&DetectedRuntime| match found.kind {
        RuntimeKind::Python => found.memory == OwnMemory::Pools,
        _ => true,
    };
    let mut found: Vec<(WalkedRuntime, FileId)> = Vec::new();
    for runtime in detected.runtimes.iter().filter(has_own) {
        // V8 is found wherever it is: a second file that contains it adds nothing.
        let is_new = |engine: &WalkedRuntime| {
            *engine != WalkedRuntime::V8 || found.iter().all(|(other, _)| other != engine)
        };
        let engine = engine::walked_as(runtime.kind).filter(is_new);
        found.extend(engine.map(|engine| (engine, runtime.file)));
    }
    found
}

/// Returns the runtimes whose heaps were walked, with their memory in the ledger.
pub(super) fn walked_runtimes(ledger: &Ledger) -> Vec<Manager> {
    let of = |row: &Row| {
        let name = row.manager?.kind().name().to_owned();
        Some(Manager { name, bytes: row.bytes, estimated: row.estimated })
    };
    let found: Vec<Manager> = ledger.rows().iter().filter_map(of).collect();
    Manager::join(Vec::new(), &found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps::parse;
    use lowtide_heap::hotspot::PerfData;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_musl_without_mallocng_is_named_with_its_version_if_it_is_older() {
        for version in ["1.1.24", "1.2.0", "1.0.5"] {
            let note = no_mallocng(Some(version));
            assert!(note.contains(&format!("malloc of musl {version} is older")), "{note}");
        }
        assert!(no_mallocng(None).contains("because it is older, has not"));
        for version in ["1.2.1", "1.2.5", "1.10.0", "2.0.0", "1.x"] {
            let note = no_mallocng(Some(version));
            assert!(note.contains("because it has not allocated yet"), "{note}");
        }
    }

    #[test]
    fn a_proven_heap_of_an_arena_is_never_guessed_to_be_the_java_heap() {
        // The heap of Java objects contains a part of the archive of classes. A full heap of an
        // arena fits the sizes better.
        let maps = parse(
            "fc000000-ffe00000 rw-p 00000000 00:00 0 \n\
             ffe00000-100000000 rw-p 00100000 fe:01 7 /usr/lib/jvm/classes.jsa\n\
             7ff4f8000000-7ff4fbff8000 rw-p 00000000 00:00 0 \n\
             7ff4fbff8000-7ff4fc000000 ---p 00000000 00:00 0 \n",
        )
        .unwrap();
        let data = PerfData::from_sizes(3 * MIB, 64 * MIB, vec![64 * MIB]);
        let arena = 0x7ff4_f800_0000..0x7ff4_fbff_8000;
        assert_eq!(guessed_heap(&data, &maps, &[]), std::slice::from_ref(&arena), "no proof");
        let java = vec![Range { start: 0xfc00_0000, end: 0xffe0_0000 }];
        assert_eq!(guessed_heap(&data, &maps, std::slice::from_ref(&arena)), java);
        // A proof of a part of it is sufficient.
        let part = arena.start + 4096..arena.start + 8192;
        assert_eq!(guessed_heap(&data, &maps, &[part]), java);
        let both = [java[0].clone(), arena];
        assert_eq!(guessed_heap(&data, &maps, &both), []);
    }
}

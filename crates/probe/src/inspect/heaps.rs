//! Walks the heaps of a process: those of its allocators, of allocators that libraries contain for their own
//! use, and of runtimes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use lowtide_heap::blocks::{Visitor, lend};
use lowtide_heap::guarded::GuardedHeap;
use lowtide_heap::hotspot::{Part, PerfData};
use lowtide_heap::layout::{HeapLayout, Places, Walked};
use lowtide_heap::memory::{Memory, pointers_into};
use lowtide_heap::ptmalloc::HeapMapping;
use lowtide_heap::pymalloc;
use lowtide_heap::ranges::{joined, without};
use lowtide_heap::residency::Residency;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{
    Bin, CPythonHeap, CPythonSizeClass, Manager, Observation, WalkedHeap,
};
use lowtide_model::ledger::{Ledger, Owner, Row, State, WalkedRuntime};
use lowtide_model::runtime_kind::RuntimeKind;

use crate::detect::{Detected, OwnMemory, WalkedHeaps};
use crate::heap;
use crate::memory::LiveMemory;
use crate::proc::maps::{FileId, Mapping};

/// Size of the smallest root of a tree from pages to extents, in bytes (jemalloc's, for addresses of 57
/// bits). A library with less zeroed data has no jemalloc.
const MIN_ROOT_BYTES: u64 = 256 << 10;
/// Maximum number of libraries whose mappings are collected, and of libraries that are searched for a root.
const MAX_LIBRARIES: usize = 8 << 10;
const MAX_SEARCHED: usize = 64;
/// Placeholder for the library of an allocator, if it is not known.
const UNKNOWN_LIBRARY: &str = "a library";

/// Walks the heaps of all supported allocators of a process, and passes their blocks in use on.
pub(super) fn walk(
    memory: &LiveMemory,
    maps: &[Mapping],
    detected: &Detected,
    observation: &mut Observation,
    mut visitor: Visitor<'_>,
) -> WalkedHeaps {
    let mut heaps = WalkedHeaps::default();
    if detected.sanitizer.is_some() {
        return heaps;
    }
    let mut mappings = heap::mappings(maps);
    // Heaps that are recognised by structure come first: their memory is excluded from the search for chunks.
    let mut lent = lend(&mut visitor);
    walk_libraries(memory, maps, detected, observation, &mut heaps, &mut mappings, &mut lent);
    walk_runtimes(memory, maps, detected, observation, &mut heaps, &mut mappings, &mut lent);
    for allocator in detected.allocators() {
        let Some(library) = heap::library(maps, &allocator.path.to_string_lossy()) else {
            continue;
        };
        let data = heap::data_of(maps, library.file);
        let zeroed_data = detected.zeroed_data_of(allocator, maps, memory.page_bytes());
        let places = Places { data: &data, zeroed_data: &zeroed_data, mappings: &mappings };
        let Some(layout) = HeapLayout::find(&allocator.kind, memory, &places) else {
            let is_glibc = allocator.kind == AllocatorKind::Glibc;
            if is_glibc && maps.iter().any(|m| m.name == "[heap]") {
                observation
                    .notes
                    .push("its heap has an unknown layout, and was not walked".to_owned());
            }
            continue;
        };
        let mut walked = layout.walk(memory, &mappings, lend(&mut visitor));
        if let Ok(walked) = &mut walked {
            // A release acts on the allocator that serves the program itself.
            let is_served = detected.allocator() == Some(allocator);
            walked.prediction.release_bytes = match allocator.kind {
                _ if !is_served => None,
                AllocatorKind::Glibc => walked.prediction.release_bytes,
                _ => {
                    let module = maps.iter().filter(|m| m.file == library.file);
                    let module: Vec<Range<u64>> = module.map(|m| m.start..m.end).collect();
                    let version = allocator.version.as_deref();
                    guarded_bytes(layout, memory, &mappings, &module, version, detected)
                }
            };
        }
        add_walk(observation, &mut heaps, &mut mappings, (&allocator.kind, None), walked);
    }
    observation.heaps.sort_by_key(|heap| heap.library.is_some());
    heaps
}

/// Returns the memory that a release of another allocator than glibc's would return to the OS, in bytes;
/// `None` if it would be refused.
fn guarded_bytes(
    layout: HeapLayout,
    memory: &LiveMemory,
    mappings: &[HeapMapping],
    module: &[Range<u64>],
    version: Option<&str>,
    detected: &Detected,
) -> Option<u64> {
    detected.c_library.as_ref().filter(|library| library.name == "glibc")?;
    let heap = GuardedHeap::find(layout, memory, mappings, module, version).ok()?;
    let sums = heap.each_droppable(memory, mappings, &mut |_| ()).ok()?;
    Some(sums.guarded_bytes)
}

/// Walks the heaps of runtimes.
fn walk_runtimes(
    memory: &LiveMemory,
    maps: &[Mapping],
    detected: &Detected,
    observation: &mut Observation,
    heaps: &mut WalkedHeaps,
    mappings: &mut Vec<HeapMapping>,
    visitor: &mut Visitor<'_>,
) {
    for runtime in detected.runtimes.iter().filter(|found| found.memory == OwnMemory::Pools) {
        // The array of arenas is on the heap of malloc.
        let heaps_of_all = joined(heap::mappings(maps).into_iter().map(|m| m.range).collect());
        let data = heap::data_of(maps, runtime.file);
        // CPython maps its arenas.
        let mapped = mappings.iter().filter(|mapping| !mapping.is_brk);
        let mapped = joined(mapped.map(|mapping| mapping.range.clone()).collect());
        if let Some(layout) = pymalloc::Layout::find(memory, &data, &heaps_of_all, &mapped) {
            let walked = pymalloc::walk(memory, &layout, &mapped, lend(visitor));
            add_cpython(observation, &walked);
            add_areas(heaps, &walked.areas);
            *mappings = outside(mappings, &walked.areas);
        }
    }
    if detected.has(RuntimeKind::HotSpot) {
        let areas = walk_hotspot(memory, maps, &heaps.areas, observation);
        add_areas(heaps, &areas);
        *mappings = outside(mappings, &areas);
        heaps.without_blocks = areas;
    }
}

/// Adds the heap of Java objects, and returns its addresses; none where HotSpot does not describe it.
fn walk_hotspot(
    memory: &LiveMemory,
    maps: &[Mapping],
    others: &[Range<u64>],
    observation: &mut Observation,
) -> Vec<Range<u64>> {
    // HotSpot reads those of other processes, if at all.
    let is_perf_data = |m: &&Mapping| {
        m.has_file() && m.permissions == "rw-s" && m.name.starts_with("/tmp/hsperfdata_")
    };
    let data = maps.iter().find(is_perf_data);
    let Some(data) = data.and_then(|m| PerfData::read(memory, m.start..m.end)) else {
        return Vec::new();
    };
    let is_private = |m: &&Mapping| m.permissions.ends_with('p') && !m.name.starts_with('[');
    let part = |m: &Mapping| Part {
        range: m.start..m.end,
        is_memory: !m.has_file() && m.permissions.starts_with("rw"),
    };
    let parts: Vec<Part> = maps.iter().filter(is_private).map(part).collect();
    let areas: Vec<Range<u64>> =
        data.heap(&parts).into_iter().flat_map(|area| without(area, others)).collect();
    if areas.is_empty() {
        return areas;
    }
    let mut residency = Residency::new(memory);
    let resident_bytes: u64 = areas.iter().map(|area| residency.bytes(area.clone())).sum();
    // The performance data do not contain the allocations since the last collection.
    let allocated_bytes = data.used_bytes.min(resident_bytes);
    let free_bytes = resident_bytes - allocated_bytes;
    for (state, bytes) in [(State::Allocated, allocated_bytes), (State::Free, free_bytes)] {
        observation.ledger.add_walked_estimate(WalkedRuntime::HotSpot, state, bytes);
    }
    areas
}

/// A library, or the program, with its variables.
struct Library<'m> {
    name: &'m str,
    /// Its writable mappings.
    data: Vec<Range<u64>>,
    /// The zeroed data after them.
    zeroed_data: Vec<Range<u64>>,
}

/// Returns the files that have writable data, except those of the program's allocators.
fn libraries<'m>(maps: &'m [Mapping], detected: &Detected) -> Vec<Library<'m>> {
    let of_program: Vec<&str> =
        detected.allocators().filter_map(|allocator| allocator.path.to_str()).collect();
    let zeroed: HashMap<u64, &Range<u64>> =
        detected.zeroed_data.iter().map(|range| (range.start, range)).collect();
    let mut places: HashMap<FileId, usize> = HashMap::new();
    let mut found: Vec<Library<'_>> = Vec::new();
    for mapping in maps.iter().filter(|m| m.has_file() && m.permissions.starts_with("rw")) {
        if mapping.permissions.ends_with('s') || of_program.contains(&mapping.name.as_str()) {
            continue;
        }
        let place = *places.entry(mapping.file).or_insert(found.len());
        if place == found.len() {
            if place == MAX_LIBRARIES {
                break;
            }
            let name = mapping.name.rsplit('/').next().unwrap_or_default();
            found.push(Library { name, data: Vec::new(), zeroed_data: Vec::new() });
        }
        found[place].data.push(mapping.start..mapping.end);
        // The memory after it may be another mapping.
        found[place].zeroed_data.extend(zeroed.get(&mapping.end).map(|range| (*range).clone()));
    }
    found
}

/// Walks the heaps of allocators that libraries contain for their own use, under any names.
fn walk_libraries(
    memory: &LiveMemory,
    maps: &[Mapping],
    detected: &Detected,
    observation: &mut Observation,
    heaps: &mut WalkedHeaps,
    mappings: &mut Vec<HeapMapping>,
    visitor: &mut Visitor<'_>,
) {
    let libraries = libraries(maps, detected);
    let mut add = |kind: AllocatorKind,
                   library: &str,
                   layout: &HeapLayout,
                   mappings: &mut Vec<HeapMapping>| {
        let walked = layout.walk(memory, mappings, lend(visitor));
        add_walk(observation, heaps, mappings, (&kind, Some(library)), walked);
    };
    let is_large = |data: &Range<u64>| data.end - data.start >= MIN_ROOT_BYTES;
    let may_have_root = libraries.iter().filter(|library| library.zeroed_data.iter().any(is_large));
    for library in may_have_root.take(MAX_SEARCHED) {
        // The data may begin in the last page of the file's own data.
        let page = memory.page_bytes();
        let zeroed_data = library.zeroed_data.iter().map(|data| data.start - page..data.end);
        let zeroed_data: Vec<Range<u64>> = zeroed_data.collect();
        let places = Places { data: &[], zeroed_data: &zeroed_data, mappings };
        if let Some(layout) = HeapLayout::find(&AllocatorKind::Jemalloc, memory, &places) {
            add(AllocatorKind::Jemalloc, library.name, &layout, mappings);
        }
    }
    if detected.allocators().any(|allocator| allocator.kind == AllocatorKind::Mimalloc) {
        return;
    }
    let places = Places { data: &[], zeroed_data: &[], mappings };
    if let Some(layout) = HeapLayout::find(&AllocatorKind::Mimalloc, memory, &places) {
        let library = library_that_leads_to(memory, &libraries, &layout.records());
        add(AllocatorKind::Mimalloc, library.unwrap_or(UNKNOWN_LIBRARY), &layout, mappings);
    }
}

/// Returns the name of the library with the most pointers to an allocator's own records; `None` if no library
/// has more than the others.
fn library_that_leads_to<'m>(
    memory: &LiveMemory,
    libraries: &[Library<'m>],
    records: &[Range<u64>],
) -> Option<&'m str> {
    let pointers = |library: &Library<'m>| {
        let of = |ranges: &[Range<u64>]| pointers_into(memory, ranges, records);
        (of(&library.data) + of(&library.zeroed_data), library.name)
    };
    let mut found: Vec<(u64, &str)> = libraries.iter().map(pointers).collect();
    found.sort_by_key(|(count, _)| Reverse(*count));
    match found[..] {
        [(most, library), (second, _), ..] if most > second => Some(library),
        [(1.., library)] => Some(library),
        _ => None,
    }
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

fn add_areas(heaps: &mut WalkedHeaps, areas: &[Range<u64>]) {
    heaps.areas.extend_from_slice(areas);
    heaps.areas.sort_unstable_by_key(|area| area.start);
}

/// Adds a heap of an allocator, of a library or of the program, and removes it from the mappings that are
/// searched for others. If it was not walked, adds a note with the reason.
fn add_walk(
    observation: &mut Observation,
    heaps: &mut WalkedHeaps,
    mappings: &mut Vec<HeapMapping>,
    (kind, library): (&AllocatorKind, Option<&str>),
    walked: Result<Walked, &str>,
) {
    match (walked, library) {
        (Ok(walked), _) => {
            let areas = add_heap(observation, heaps, kind, library.map(str::to_owned), walked);
            *mappings = outside(mappings, &areas);
        }
        (Err(why), None) => observation.notes.push(format!("its heap was not walked: {why}")),
        (Err(why), Some(library)) => {
            observation.notes.push(format!("the heap of {kind} of {library} was not walked: {why}"))
        }
    }
}

/// Adds a walked heap to an observation and to the heaps, and returns its addresses.
fn add_heap(
    observation: &mut Observation,
    heaps: &mut WalkedHeaps,
    kind: &AllocatorKind,
    library: Option<String>,
    walked: Walked,
) -> Vec<Range<u64>> {
    if let Some(other) = overlap(&walked.areas, &heaps.areas) {
        observation.notes.push(format!(
            "a heap of {kind} was left out: it overlaps another heap at {other:#x}, so one of them was misidentified"
        ));
        return Vec::new();
    }
    let prediction = walked.prediction;
    // A library's allocator is no evidence for the program's.
    if library.is_none() {
        heaps.allocators.push(kind.clone());
    }
    observation.heaps.push(WalkedHeap::new(kind.clone(), library, &walked.ledger, prediction));
    add_areas(heaps, &walked.areas);
    let torn = walked.arenas.iter().filter(|a| !a.whole).count();
    if torn > 0 && walked.unwalked_bytes > 0 {
        observation.notes.push(format!(
            "{torn} of {} arenas could not be walked completely: they changed too fast, or parts \
             of them are swapped out",
            walked.arenas.len()
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

/// Adds the heap of CPython's own allocator to an observation.
fn add_cpython(observation: &mut Observation, walked: &pymalloc::Heap) {
    let (ledger, resident) = (&mut observation.ledger, &walked.resident);
    let free_bytes = resident.free_block_bytes + resident.free_pool_bytes;
    let rows = [
        (State::Allocated, resident.allocated_bytes),
        (State::Free, free_bytes),
        (State::Unknown, resident.unknown_bytes),
    ];
    for (state, bytes) in rows {
        ledger.add_walked(WalkedRuntime::CPython, state, bytes);
    }
    ledger.add(Owner::Metadata, resident.overhead_bytes);
    observation.unwalked_bytes += walked.torn_pools * walked.pool_bytes;
    let size = |(block_bytes, size): (&u64, &pymalloc::SizeClass)| CPythonSizeClass {
        block_bytes: *block_bytes,
        pools: size.pools,
        used_blocks: size.used_blocks,
        free_blocks: size.free_blocks,
        arenas: size.arenas,
        mostly_free_arenas: size.mostly_free_arenas,
    };
    observation.cpython = Some(CPythonHeap {
        arenas: walked.arenas,
        arena_bytes: walked.arena_bytes(),
        mostly_free_arenas: walked.mostly_free_arenas,
        pool_bytes: walked.pool_bytes,
        used_pools: walked.used_pools,
        free_pools: walked.free_pools,
        allocated_bytes: walked.allocated_bytes(),
        free_block_bytes: walked.free_block_bytes(),
        sizes: walked.sizes.iter().map(size).collect(),
    });
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

//! The walkers of all allocators and engines, on saved heaps with changed words, and the reader of
//! saved heaps, on any bytes.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::ledger::WalkedRuntime;

use crate::engine::{self, EnginePlaces};
use crate::guarded::{GuardedHeap, Module};
use crate::layout::{HeapLayout, Places};
use crate::memory::ADDRESS_END;
use crate::ranges::joined;
use crate::saved::{AnyBlocks, SavedHeap};

/// Maximum size of a saved heap that is read from any bytes, in bytes: its text says how much
/// memory it has.
const MAX_SAVED: u64 = 1 << 20;
const END: u64 = ADDRESS_END;

/// Reads a saved heap, and walks it as that of each allocator.
pub fn saved_heap(bytes: &[u8]) {
    let Ok(saved) = SavedHeap::from_bytes(bytes) else { return };
    if size(&saved) <= MAX_SAVED && is_of_a_process(&saved) {
        KINDS.iter().for_each(|(_, kind)| walk(&saved, kind));
        ENGINES.iter().for_each(|(_, engine)| walk_engine(&saved, *engine));
    }
}

/// Changes words of a saved heap, and walks it. The first byte chooses the heap. Each further 12
/// bytes are the number of a word that is not zero, and what is exchanged in it: mostly, these
/// words are of the allocator's own structures.
pub fn damaged_heap(bytes: &[u8]) {
    let Some((choice, changes)) = bytes.split_first() else { return };
    let heaps = heaps();
    let (kind, heap) = &heaps[usize::from(*choice) % heaps.len()];
    let mut saved = heap.clone();
    let places = saved.nonzero_words();
    for change in changes.as_chunks::<12>().0 {
        let (place, mask) = change.split_at(4);
        let place = place.try_into().map_or(0, u32::from_le_bytes) as usize % places.len();
        let (block, at) = places[place];
        let word = &mut saved.memory.blocks[block].1[at..at + 8];
        word.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
    match kind {
        SavedHeapOwner::Allocator(kind) => walk(&saved, kind),
        SavedHeapOwner::Engine(engine) => walk_engine(&saved, *engine),
    }
}

/// The folders of saved heaps of allocators.
const KINDS: [(&str, AllocatorKind); 5] = [
    ("ptmalloc", AllocatorKind::Glibc),
    ("jemalloc", AllocatorKind::Jemalloc),
    ("mimalloc", AllocatorKind::Mimalloc),
    ("gperftools", AllocatorKind::Gperftools),
    ("musl", AllocatorKind::Musl),
];

/// The folders of saved heaps of engines.
const ENGINES: [(&str, WalkedRuntime); 2] =
    [("cpython", WalkedRuntime::CPython), ("v8", WalkedRuntime::V8)];

/// The owner of a saved heap.
#[derive(Debug, Clone)]
enum SavedHeapOwner {
    Allocator(AllocatorKind),
    Engine(WalkedRuntime),
}

/// Returns all saved heaps.
#[expect(clippy::unwrap_used, reason = "it is a part of tests")]
fn heaps() -> &'static [(SavedHeapOwner, SavedHeap)] {
    static HEAPS: OnceLock<Vec<(SavedHeapOwner, SavedHeap)>> = OnceLock::new();
    HEAPS.get_or_init(|| {
        let allocators =
            KINDS.iter().map(|(name, kind)| (*name, SavedHeapOwner::Allocator(kind.clone())));
        let engines = ENGINES.iter().map(|(name, engine)| (*name, SavedHeapOwner::Engine(*engine)));
        let of_owner = |(folder, owner): (&str, SavedHeapOwner)| {
            files(folder).into_iter().map(move |file| (owner.clone(), file))
        };
        let load = |(owner, file)| {
            let bytes = std::fs::read(file).unwrap();
            (owner, SavedHeap::from_bytes(&bytes).unwrap())
        };
        allocators.chain(engines).flat_map(of_owner).map(load).collect()
    })
}

#[expect(clippy::unwrap_used, reason = "it is a part of tests")]
fn files(folder: &str) -> Vec<PathBuf> {
    let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/saved").join(folder);
    let entries = std::fs::read_dir(saved).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "heap")).collect();
    files.sort();
    files
}

/// Returns the resident bytes.
fn size(saved: &SavedHeap) -> u64 {
    saved.memory.blocks.iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

/// Returns whether the ranges are as in `/proc/PID/maps`: in order and disjoint, below the end of
/// addresses.
fn is_of_a_process(saved: &SavedHeap) -> bool {
    let is_ordered = |ranges: &[Range<u64>]| {
        ranges.iter().all(|range| range.start < range.end && range.end <= END)
            && ranges.windows(2).all(|pair| pair[0].end <= pair[1].start)
    };
    let blocks: Option<Vec<Range<u64>>> = saved
        .memory
        .blocks
        .iter()
        .map(|(at, bytes)| Some(*at..at.checked_add(bytes.len() as u64)?))
        .collect();
    let mappings: Vec<_> = saved.mappings.iter().map(|mapping| mapping.range.clone()).collect();
    blocks.is_some_and(|blocks| is_ordered(&blocks))
        && is_ordered(&mappings)
        && is_ordered(&saved.data)
}

fn walk(saved: &SavedHeap, kind: &AllocatorKind) {
    let memory = &saved.memory;
    let places = Places { data: &saved.data, zeroed_data: &saved.data, mappings: &saved.mappings };
    let Some(layout) = HeapLayout::find(kind, memory, &places) else { return };
    if let Ok(walked) = layout.walk(memory, &saved.mappings, Some(&mut AnyBlocks)) {
        assert!(walked.areas.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
    let version = match kind {
        AllocatorKind::Jemalloc => "5.3.1",
        AllocatorKind::Mimalloc => "3.3.2",
        _ => "2.16",
    };
    let module = Module::unknown(Some(version));
    let guarded = GuardedHeap::find(layout, memory, &saved.mappings, &module);
    if let Ok(heap) = guarded {
        let mut bytes = 0_u64;
        let _ = heap.each_droppable(memory, &saved.mappings, &mut |range| {
            bytes += range.resident_bytes;
        });
        assert!(bytes <= size(saved));
    }
}

fn walk_engine(saved: &SavedHeap, engine: WalkedRuntime) {
    let mapped: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let private = joined(mapped.clone());
    let places = EnginePlaces {
        data: &saved.data,
        heaps: &mapped,
        mapped: &mapped,
        private: &private,
        reserved: &private,
    };
    if let Some(walked) = engine::walk(engine, &saved.memory, &places, Some(&mut AnyBlocks)) {
        assert!(walked.areas.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(walked.ledger.total() <= size(saved));
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::fuzzing::run_seeds;

    #[test]
    fn walks_of_damaged_heaps_end() {
        run_seeds("damaged_heap", 2, super::damaged_heap);
    }

    #[test]
    fn damaged_files_of_heaps_are_read_or_rejected() {
        run_seeds("saved_heap", 20, super::saved_heap);
    }
}

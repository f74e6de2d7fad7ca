//! Saved heaps of mimalloc, intact and damaged. They are created by `cargo run -p lowtide-probe
//! --example save_other_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;

use std::ops::Range;

use damage::{damage_each, file, load, resident};
use lowtide_heap::memory::Saved;
use lowtide_heap::mimalloc::{Heap, Layout, Resident, walk};
use lowtide_heap::saved::{AnyBlocks, SavedHeap};
use serde_json::Value;

const ALLOCATOR: &str = "mimalloc";
const NAMES: [&str; 3] = ["2.0.9", "2.3.2", "3.3.2"];
/// Maximum size of the C library's own allocations, in bytes.
const OTHERS: u64 = 64 << 10;

fn walked(saved: &SavedHeap) -> Option<Heap> {
    let mappings: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    Some(walk(&saved.memory, &Layout::find(&saved.memory, &mappings)?, Some(&mut AnyBlocks)))
}

/// Returns the sum of the resident bytes of all rows.
fn rows(heap: &Heap) -> u64 {
    let of_thread = |r: &Resident| {
        r.allocated_bytes + r.fragmented_bytes + r.free_bytes() + r.waiting_bytes + r.torn_bytes
    };
    let of_threads = heap.sum(|thread| of_thread(&thread.resident));
    heap.metadata_bytes + heap.free_slices_bytes + heap.unknown_bytes + of_threads
}

#[test]
fn walked_heaps_match_the_sizes_reported_by_their_program() {
    for name in NAMES {
        let text = std::fs::read_to_string(file(ALLOCATOR, &format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let usable = expected["usable_bytes"].as_u64().unwrap();
        let saved = load(ALLOCATOR, name);
        let heap = walked(&saved).expect("segments or an arena");
        let allocated = heap.sum(|thread| thread.allocated_bytes);
        assert!((usable..usable + OTHERS).contains(&allocated), "{name}: {usable}, {allocated}");
        assert_eq!(heap.sum(|thread| thread.torn_bytes) + heap.unknown_bytes, 0, "{name}");
        assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory), "{name}");
        assert_eq!(resident(&heap.structures, &saved.memory), heap.metadata_bytes, "{name}");
        let purged = expected["purged_bytes"].as_u64().unwrap();
        if name.starts_with('3') {
            // The calling thread also returns its empty pages.
            let empty = heap.threads.values().map(|thread| thread.resident.free_bytes());
            let agrees = |own: u64| (heap.purge_bytes + own).abs_diff(purged) <= 64 << 10;
            assert!(std::iter::once(0).chain(empty).any(agrees), "{name}: {purged}");
        }
    }
}

#[test]
fn an_array_of_ones_is_not_mistaken_for_a_segment() {
    const START: u64 = 1 << 40;
    let ones: Vec<u8> = 1_u64.to_le_bytes().repeat(48 << 17);
    let mapping = START..START + ones.len() as u64;
    let memory = Saved::new(vec![(START, ones)]);
    assert!(Layout::find(&memory, std::slice::from_ref(&mapping)).is_none());
}

#[test]
fn the_walk_of_a_damaged_heap_terminates_and_its_rows_fit_in_resident_memory() {
    let walk = |saved: &SavedHeap| {
        walked(saved).map(|heap| {
            let rows = rows(&heap);
            (heap.areas, rows)
        })
    };
    damage_each(ALLOCATOR, &NAMES, walk, u64::le);
}

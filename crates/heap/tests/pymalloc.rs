//! Saved heaps of CPython, intact and damaged. They are created by `cargo run -p lowtide-probe
//! --example save_cpython_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;
mod debug_malloc_stats;

use std::ops::Range;

use damage::{damage_each, file, load, resident};
use debug_malloc_stats::DebugMallocStats;
use lowtide_heap::pymalloc::{Heap, Layout, walk};
use lowtide_heap::saved::{AnyBlocks, SavedHeap};

const ALLOCATOR: &str = "cpython";
const NAMES: [&str; 7] = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"];

fn walked(saved: &SavedHeap) -> Option<Heap> {
    let mapped = saved.mappings.iter().filter(|mapping| !mapping.is_brk);
    let mapped: Vec<Range<u64>> = mapped.map(|mapping| mapping.range.clone()).collect();
    let heaps: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let layout = Layout::find(&saved.memory, &saved.data, &heaps, &mapped)?;
    Some(walk(&saved.memory, &layout, &mapped, Some(&mut AnyBlocks)))
}

/// Returns the sum of the resident bytes of all rows.
fn rows(heap: &Heap) -> u64 {
    let rows = &heap.resident;
    rows.allocated_bytes
        + rows.free_block_bytes
        + rows.free_pool_bytes
        + rows.overhead_bytes
        + rows.unknown_bytes
}

#[test]
fn walked_heaps_match_the_statistics_of_cpython() {
    for name in NAMES {
        let saved = load(ALLOCATOR, name);
        let heap = walked(&saved).expect(name);
        let text = std::fs::read_to_string(file(ALLOCATOR, &format!("{name}.txt"))).unwrap();
        DebugMallocStats::parse(&text).assert_equal(&heap, name);
        assert_eq!(heap.torn_pools, 0, "{name}");
        assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory), "{name}");
        assert!(heap.mostly_free_arenas > 0, "{name}");
    }
}

#[test]
fn the_walk_of_a_damaged_heap_terminates_and_its_rows_add_up() {
    let walk = |saved: &SavedHeap| {
        walked(saved).map(|heap| {
            let rows = rows(&heap);
            (heap.areas, rows)
        })
    };
    damage_each(ALLOCATOR, &NAMES, walk, u64::eq);
}

//! Saved heaps of gperftools' tcmalloc, intact and damaged. They are created by `cargo run -p
//! lowtide-probe --example save_other_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;

use std::ops::Range;

use damage::{damage_each, file, load, resident};
use lowtide_heap::gperftools::{Heap, Layout, walk};
use lowtide_heap::saved::{AnyBlocks, SavedHeap};
use serde_json::Value;

const ALLOCATOR: &str = "gperftools";
const NAMES: [&str; 3] = ["2.8.1", "2.10", "2.16"];

fn walked(saved: &SavedHeap) -> Option<Heap> {
    let mappings: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let mappings = lowtide_heap::ranges::joined(mappings);
    let layout = Layout::find(&saved.memory, &saved.data, &mappings)?;
    Some(walk(&saved.memory, &layout, &mappings, Some(&mut AnyBlocks)))
}

/// Returns the sum of the resident bytes of all rows.
fn rows(heap: &Heap) -> u64 {
    let rows = heap.resident;
    rows.allocated_bytes
        + rows.fragmented_bytes
        + rows.free_bytes
        + rows.returned_bytes
        + rows.torn_bytes
        + heap.metadata_bytes
}

#[test]
fn walked_heaps_match_the_statistics_of_their_allocator() {
    for name in NAMES {
        let text = std::fs::read_to_string(file(ALLOCATOR, &format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let figure = |key: &str| expected[key].as_u64().unwrap();
        let saved = load(ALLOCATOR, name);
        let heap = walked(&saved).expect(name);
        assert_eq!(heap.allocated_bytes(), figure("allocated_bytes"), "{name}");
        assert_eq!(heap.thread_cache_bytes, figure("cached_bytes"), "{name}");
        assert_eq!(heap.transfer_bytes, figure("transfer_bytes"), "{name}");
        assert_eq!(heap.central_free_bytes, figure("central_bytes"), "{name}");
        assert_eq!(heap.page_heap_free_bytes, figure("free_bytes"), "{name}");
        assert_eq!(heap.resident.free_bytes, figure("purged_bytes"), "{name}");
        assert_eq!(heap.torn_bytes, 0, "{name}");
        assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory), "{name}");
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

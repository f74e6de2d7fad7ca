//! Saved heaps of gperftools' tcmalloc, intact and damaged. They are created by `cargo run -p
//! lowtide-probe --example save_other_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;

use std::ops::Range;

use damage::{damage_each, file, load, resident};
use lowtide_heap::gperftools::{Heap, Layout, walk};
use lowtide_heap::memory::{Memory, Saved};
use lowtide_heap::saved::{AnyBlocks, SavedHeap};
use serde_json::Value;

const ALLOCATOR: &str = "gperftools";
const NAMES: [&str; 3] = ["2.8.1", "2.10", "2.16"];

/// Memory under a kernel with pages of 16 KiB.
struct LargePages<'m>(&'m Saved);

impl Memory for LargePages<'_> {
    fn page_bytes(&self) -> u64 {
        16 << 10
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.0.read(address, buffer)
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.0.resident(range)
    }
}

fn walked(saved: &SavedHeap) -> Option<Heap> {
    walked_in(saved, &saved.memory)
}

fn walked_in(saved: &SavedHeap, memory: &impl Memory) -> Option<Heap> {
    let mappings: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let mappings = lowtide_heap::ranges::joined(mappings);
    let layout = Layout::find(memory, &saved.data, &mappings)?;
    Some(walk(memory, &layout, &mappings, Some(&mut AnyBlocks)))
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
        assert_eq!(resident(&heap.structures, &saved.memory), heap.metadata_bytes, "{name}");
    }
}

#[test]
fn only_whole_pages_of_the_kernel_are_returnable() {
    for name in NAMES {
        let saved = load(ALLOCATOR, name);
        let small = walked(&saved).unwrap();
        let large = walked_in(&saved, &LargePages(&saved.memory)).unwrap();
        assert_eq!((small.has_larger_pages, large.has_larger_pages), (false, true));
        let [small, large] = [small.resident, large.resident];
        assert!(large.free_bytes < small.free_bytes, "{name}: {large:?}");
        let free =
            |rows: lowtide_heap::gperftools::Resident| rows.free_bytes + rows.fragmented_bytes;
        assert_eq!(free(large), free(small), "{name}");
        assert_eq!(large.allocated_bytes, small.allocated_bytes, "{name}");
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

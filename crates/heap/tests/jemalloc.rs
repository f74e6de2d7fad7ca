//! Saved heaps of jemalloc, intact and damaged. They are created by `cargo run -p lowtide-probe
//! --example save_other_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use damage::{damage_each, file, load, resident};
use lowtide_heap::jemalloc::{Heap, Layout, Resident, walk};
use lowtide_heap::memory::{Memory, Saved};
use lowtide_heap::saved::{AnyBlocks, SavedHeap};
use serde_json::Value;

const ALLOCATOR: &str = "jemalloc";
/// The saved heaps: two forms of the tree (48 and 57 address bits), and five versions.
const NAMES: [&str; 7] = ["5.0.1", "5.1.0", "5.2.1", "5.2.1-57", "5.3.0", "5.3.1", "5.3.1-57"];

fn walked(saved: &SavedHeap, memory: &impl Memory) -> Option<Heap> {
    let mappings: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let layout = Layout::find(memory, &saved.data, &mappings)?;
    Some(walk(memory, &layout, &mappings, Some(&mut AnyBlocks)))
}

/// Returns the sum of the resident bytes of all rows.
fn rows(heap: &Heap) -> u64 {
    let of_arena = |r: &Resident| {
        r.allocated_bytes
            + r.fragmented_bytes
            + r.reclaimable_bytes()
            + r.padding_bytes
            + r.torn_bytes
    };
    heap.metadata_bytes + heap.sum(|arena| of_arena(&arena.resident))
}

#[test]
fn walked_heaps_match_the_statistics_of_their_allocator() {
    for name in NAMES {
        let text = std::fs::read_to_string(file(ALLOCATOR, &format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let figure = |key: &str| expected[key].as_u64().unwrap();
        let saved = load(ALLOCATOR, name);
        let heap = walked(&saved, &saved.memory).expect("a tree");
        assert_eq!(heap.sum(|arena| arena.allocated_bytes()), figure("allocated_bytes"), "{name}");
        assert_eq!(heap.sum(|arena| arena.active_bytes), figure("active_bytes"), "{name}");
        assert_eq!(heap.sum(|arena| arena.dirty_bytes), figure("dirty_bytes"), "{name}");
        // A Rust program has allocated the name of the statistic. In 5.0 and 5.1, the bins of large
        // classes do not follow those of small ones, and are not found.
        let has_all_bins = !["5.0.1", "5.1.0"].contains(&name);
        let (cached, own) = (heap.cached_bytes, figure("cached_bytes"));
        assert!(cached > 0 && cached <= own + 64, "{name}: {cached} {own}");
        assert!(!has_all_bins || cached.abs_diff(own) <= 64, "{name}: {cached} {own}");
        let purged = heap.sum(|arena| arena.resident.purge_bytes());
        assert!(purged.abs_diff(figure("purged_bytes")) <= 64 << 10, "{name}: {purged}");
        assert_eq!(heap.sum(|arena| arena.torn_bytes), 0, "{name}");
        assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory), "{name}");
        // With the stacks of the caches of threads, which are in extents.
        assert!(resident(&heap.structures, &saved.memory) >= heap.metadata_bytes, "{name}");
        let by_size: u64 = heap.allocated_by_size().map(|class| class.bytes).sum();
        assert_eq!(by_size, figure("allocated_bytes"), "{name}");
    }
}

/// Memory that changes into another state after a number of reads, as if a thread of the program
/// had run.
struct Changing {
    now: Saved,
    then: Saved,
    reads: Cell<u32>,
}

impl Memory for Changing {
    fn page_bytes(&self) -> u64 {
        self.now.page_bytes()
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.reads.set(self.reads.get().saturating_sub(1));
        if self.reads.get() > 0 {
            self.now.read(address, buffer)
        } else {
            self.then.read(address, buffer)
        }
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.now.resident(range)
    }

    fn wait(&self, _: Duration) -> bool {
        true
    }
}

#[test]
fn an_extent_that_changes_during_the_walk_is_read_again() {
    for name in NAMES {
        let saved = load(ALLOCATOR, name);
        let whole = walked(&saved, &saved.memory).unwrap();
        // The counts of free regions of all slabs are wrong for a while, as between two writes of
        // jemalloc.
        let mut now = saved.memory.clone();
        let records = damage_counts(&mut now);
        assert!(records > 20, "{name}: {records}");
        let torn = walked(&saved, &now).unwrap();
        assert!(torn.sum(|arena| arena.torn_bytes) > 0, "{name}");
        let memory = Changing { now, then: saved.memory.clone(), reads: Cell::new(300) };
        let heap = walked(&saved, &memory).unwrap();
        assert_eq!(heap.sum(|arena| arena.torn_bytes), 0, "{name}");
        assert_eq!(
            heap.sum(|arena| arena.allocated_bytes()),
            whole.sum(|arena| arena.allocated_bytes()),
            "{name}"
        );
    }
}

/// Changes a bit of the count of free regions in each possible record of a slab. Returns the number
/// of such records.
fn damage_counts(memory: &mut Saved) -> usize {
    let mut damaged = 0;
    for (_, bytes) in &mut memory.blocks {
        for place in (0..bytes.len() - 127).step_by(64) {
            let word = |at: usize| {
                u64::from_le_bytes(bytes[place + at..place + at + 8].try_into().unwrap())
            };
            // A slab that is active and committed, and its address.
            let (bits, address) = (word(0), word(8));
            let is_slab = bits & 0x3000 == 0x3000 && bits >> 44 == 0;
            if is_slab && address % 4096 == 0 && address >> 40 == 0x7f && word(16) >> 12 > 0 {
                bytes[place + 3] ^= 0x40;
                damaged += 1;
            }
        }
    }
    damaged
}

#[test]
fn the_walk_of_a_damaged_heap_terminates_and_its_rows_fit_in_resident_memory() {
    let walk = |saved: &SavedHeap| {
        walked(saved, &saved.memory).filter(|heap| !heap.has_huge_pages).map(|heap| {
            let rows = rows(&heap);
            (heap.areas, rows)
        })
    };
    damage_each(ALLOCATOR, &NAMES, walk, u64::le);
}

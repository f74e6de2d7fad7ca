//! Saved heaps of musl's mallocng, intact and damaged. They are created by `cargo run -p
//! lowtide-probe --example save_other_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;

use std::ops::Range;

use damage::{damage_each, file, load, resident};
use lowtide_heap::memory::Saved;
use lowtide_heap::musl::{Heap, Layout, each_slot, walk};
use lowtide_heap::ranges::joined;
use lowtide_heap::saved::{AnyBlocks, SavedHeap};
use serde_json::Value;

const ALLOCATOR: &str = "musl";
const NAMES: [&str; 2] = ["1.2.3", "1.2.3-static"];
/// Maximum size of the C library's own allocations, in bytes.
const OTHERS: u64 = 64 << 10;

fn mappings(saved: &SavedHeap) -> Vec<Range<u64>> {
    joined(saved.mappings.iter().map(|mapping| mapping.range.clone()).collect())
}

fn walked(saved: &SavedHeap) -> Option<Heap> {
    let layout = Layout::find(&saved.memory, &saved.data)?;
    each_slot(&saved.memory, &layout, &mappings(saved), |_| ());
    Some(walk(&saved.memory, &layout, &mappings(saved), Some(&mut AnyBlocks)))
}

/// Returns the sum of the resident bytes of all rows.
fn rows(heap: &Heap) -> u64 {
    heap.allocated_bytes
        + heap.reclaimable_bytes
        + heap.locked_bytes
        + heap.fragmented_bytes
        + heap.metadata_bytes
}

/// Returns the requested bytes of all blocks, and the bytes of slots that could not be read.
fn requested(saved: &SavedHeap) -> (u64, u64) {
    let layout = Layout::find(&saved.memory, &saved.data).unwrap();
    let (mut requested, mut unread) = (0, 0);
    each_slot(&saved.memory, &layout, &mappings(saved), |slot| match slot {
        Ok(slot) => requested += slot.requested_bytes.unwrap(),
        Err(range) => unread += range.end - range.start,
    });
    (requested, unread)
}

#[test]
fn walked_heaps_match_the_sizes_that_their_program_has_requested() {
    for name in NAMES {
        let text = std::fs::read_to_string(file(ALLOCATOR, &format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let usable = expected["usable_bytes"].as_u64().unwrap();
        let saved = load(ALLOCATOR, name);
        let heap = walked(&saved).expect(name);
        let (requested, unread) = requested(&saved);
        // The gaps in files, in which some blocks are, were not saved.
        assert!(unread <= if name.ends_with("static") { 0 } else { OTHERS }, "{name}: {unread}");
        let bytes = requested + unread;
        assert!((usable..usable + OTHERS).contains(&bytes), "{name}: {usable}, {bytes}");
        assert!(heap.used_bytes >= requested && heap.torn_bytes == 0, "{name}: {heap:?}");
        assert!(heap.reclaimable_bytes > 0 && heap.fragmented_bytes > 0, "{name}: {heap:?}");
        assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory), "{name}");
        assert!(resident(&heap.structures, &saved.memory) > 0, "{name}");
    }
}

/// Returns the address of the context, and its secret.
fn context(saved: &SavedHeap) -> (u64, u64) {
    let words = saved.nonzero_words().into_iter().map(|(block, at)| {
        let (start, bytes) = &saved.memory.blocks[block];
        (start + at as u64, u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    });
    let (data, others): (Vec<_>, Vec<_>) =
        words.partition(|(at, _)| saved.data.iter().any(|range| range.contains(at)));
    let is_secret = |(_, word): &&(u64, u64)| others.iter().any(|(_, other)| other == word);
    *data.iter().find(|word| word.1 >> 48 != 0 && is_secret(word)).unwrap()
}

fn write(memory: &mut Saved, at: u64, value: u64) {
    let block = memory.blocks.iter_mut().rfind(|(start, _)| *start <= at).unwrap();
    let place = usize::try_from(at - block.0).unwrap();
    block.1[place..place + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn copies_of_the_secret_are_not_mistaken_for_the_context() {
    let mut saved = load(ALLOCATOR, NAMES[0]);
    let before = walked(&saved).unwrap();
    let (at, secret) = context(&saved);
    let range = saved.data.iter().find(|range| range.contains(&at)).unwrap().clone();
    // A page after the data, with copies that have the fields of a context but no page of records.
    let start = range.end + 0x10000;
    saved.data.insert(0, start..start + 4096);
    saved.memory.blocks.push((start, vec![0; 4096]));
    saved.memory.blocks.sort_by_key(|block| block.0);
    for place in [0, 1024, 2048] {
        for (field, value) in [(0, secret), (8, 1), (56, start), (64, start + place)] {
            write(&mut saved.memory, start + place + field, value);
        }
    }
    assert_eq!(rows(&walked(&saved).unwrap()), rows(&before));
}

#[test]
fn a_chain_of_pages_that_is_a_ring_ends() {
    let mut saved = load(ALLOCATOR, NAMES[0]);
    let before = walked(&saved).unwrap();
    let (at, _) = context(&saved);
    let mut word = [0; 8];
    lowtide_heap::memory::Memory::read(&saved.memory, at + 56, &mut word);
    let head = u64::from_le_bytes(word);
    // If this page is the first and the last of the chain, no valid context is found.
    write(&mut saved.memory, head + 8, head);
    if let Some(heap) = walked(&saved) {
        assert!(heap.torn_bytes > 0 && rows(&heap) <= rows(&before), "{heap:?}");
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
    damage_each(ALLOCATOR, &NAMES, walk, |rows, resident| rows == resident);
}

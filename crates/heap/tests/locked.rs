//! Saved heaps of all allocators of which a part is locked: locked memory counts as free, and is
//! never passed on to be dropped.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "tests of one allocator use more of it")]
mod damage;

use std::ops::Range;

use lowtide_heap::guarded::{GuardedHeap, Module};
use lowtide_heap::layout::{HeapLayout, Places, Walked};
use lowtide_heap::memory::ADDRESS_END;
use lowtide_heap::ptmalloc;
use lowtide_heap::ranges::{joined, without};
use lowtide_heap::residency::Residency;
use lowtide_heap::saved::SavedHeap;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::ledger::Owner;

/// All addresses, because the mapped files of the saved programs are not saved.
const EVERYWHERE: Range<u64> = 0..ADDRESS_END;

const HEAPS: [(AllocatorKind, &str, &str); 10] = [
    (AllocatorKind::Glibc, "ptmalloc/2.36-log-uniform", "2.36"),
    (AllocatorKind::Glibc, "ptmalloc/2.31-pieces", "2.31"),
    (AllocatorKind::Glibc, "ptmalloc/2.44-pieces", "2.44"),
    (AllocatorKind::Jemalloc, "jemalloc/5.3.0", "5.3.0"),
    (AllocatorKind::Jemalloc, "jemalloc/5.3.1", "5.3.1"),
    (AllocatorKind::Mimalloc, "mimalloc/2.3.2", "2.3.2"),
    (AllocatorKind::Mimalloc, "mimalloc/3.3.2", "3.3.2"),
    (AllocatorKind::Gperftools, "gperftools/2.16", "2.16"),
    (AllocatorKind::Gperftools, "gperftools/2.8.1", "2.8.1"),
    (AllocatorKind::Musl, "musl/1.2.3", "1.2.3"),
];

fn load(name: &str) -> SavedHeap {
    let (allocator, name) = name.split_once('/').unwrap();
    damage::load(allocator, name)
}

fn layout(kind: &AllocatorKind, saved: &SavedHeap) -> HeapLayout {
    let places = Places { data: &saved.data, zeroed_data: &saved.data, mappings: &saved.mappings };
    HeapLayout::find(kind, &saved.memory, &places).unwrap()
}

fn walk(kind: &AllocatorKind, saved: &SavedHeap) -> Walked {
    layout(kind, saved).walk(&saved.memory, &saved.mappings, None).unwrap()
}

/// Free ranges that may be dropped, with their resident bytes.
type FreeRanges = Vec<(Range<u64>, u64)>;

/// Returns the free ranges that may be dropped, and the bytes that a release would return; `None`
/// for a version without a guard.
fn droppable(kind: &AllocatorKind, version: &str, saved: &SavedHeap) -> Option<(FreeRanges, u64)> {
    let mut found = Vec::new();
    let (memory, mappings) = (&saved.memory, &saved.mappings);
    let bytes = match layout(kind, saved) {
        HeapLayout::Ptmalloc(layout) => {
            ptmalloc::walk_and_visit(memory, &layout, mappings, &mut |free| {
                found.push((free.pages, free.resident_bytes));
            })
            .arenas
            .iter()
            .map(|arena| arena.tally.single_bytes)
            .sum()
        }
        layout => {
            let module = Module::unknown(Some(version));
            let heap = GuardedHeap::find(layout, memory, mappings, &module).ok()?;
            let mut visit = |free: lowtide_heap::droppable::Droppable| {
                found.push((free.pages, free.resident_bytes));
            };
            heap.each_droppable(memory, mappings, &mut visit).unwrap().guarded_bytes
        }
    };
    Some((found, bytes))
}

/// Returns a lock of every second part of the heap, which cuts free ranges.
fn stripes(areas: &[Range<u64>]) -> Vec<Range<u64>> {
    const STRIPE: u64 = 13 * 4096;
    let of = |area: &Range<u64>| {
        let start = area.start - area.start % 4096;
        (start..area.end).step_by(2 * STRIPE as usize).map(|at| at..at + STRIPE).collect::<Vec<_>>()
    };
    joined(areas.iter().flat_map(of).collect())
}

#[test]
fn locked_free_memory_has_its_own_row_and_the_other_rows_stay() {
    for (kind, name, _) in HEAPS {
        let mut saved = load(name);
        let before = walk(&kind, &saved);
        for locked in [vec![EVERYWHERE], stripes(&before.areas)] {
            let is_all = locked.len() == 1;
            saved.memory.locked = locked;
            let after = walk(&kind, &saved);
            let of = |walked: &Walked, owner| walked.ledger.bytes(owner);
            for owner in Owner::ALL {
                if !matches!(owner, Owner::Reclaimable | Owner::Locked) {
                    assert_eq!(of(&after, owner), of(&before, owner), "{name}: {owner:?}");
                }
            }
            assert_eq!(after.ledger.total(), before.ledger.total(), "{name}");
            let (reclaimable, locked) = (of(&after, Owner::Reclaimable), of(&after, Owner::Locked));
            assert!(locked > 0 && (reclaimable == 0) == is_all, "{name}: {reclaimable} {locked}");
            let prediction = after.prediction;
            let most = [prediction.release_bytes, prediction.purge_bytes].map(|b| b.unwrap_or(0));
            assert!(most.iter().all(|bytes| *bytes <= reclaimable), "{name}: {prediction:?}");
        }
    }
}

#[test]
fn no_locked_page_is_passed_on_and_every_other_free_page_is() {
    for (kind, name, version) in HEAPS {
        let mut saved = load(name);
        let Some((before, _)) = droppable(&kind, version, &saved) else { continue };
        let locked = stripes(&walk(&kind, &saved).areas);
        saved.memory.locked = locked.clone();
        let (after, bytes) = droppable(&kind, version, &saved).unwrap();
        let mut residency = Residency::new(&saved.memory);
        let rest: FreeRanges = before
            .into_iter()
            .flat_map(|(pages, _)| without(pages, &locked))
            .map(|pages| (pages.clone(), residency.bytes(pages)))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        assert!(!rest.is_empty() && after == rest, "{name}");
        assert_eq!(bytes, rest.iter().map(|(_, bytes)| bytes).sum::<u64>(), "{name}");
        saved.memory.locked = vec![EVERYWHERE];
        assert_eq!(droppable(&kind, version, &saved).unwrap(), (Vec::new(), 0), "{name}");
    }
}

//! The free ranges of saved heaps of allocators other than glibc's, with their guards, intact and
//! damaged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "tests of one allocator use more of it")]
mod damage;

use std::ops::Range;

use damage::{damage_each, load};
use lowtide_heap::droppable::{Droppable, Guard, Holds, MAX_CHECKS, Sums};
use lowtide_heap::guarded::{GuardedHeap, Module};
use lowtide_heap::layout::{HeapLayout, Places};
use lowtide_heap::memory::{Memory, word};
use lowtide_heap::musl;
use lowtide_heap::ranges::joined;
use lowtide_heap::saved::SavedHeap;
use lowtide_model::allocator_kind::AllocatorKind;

/// Returns the free ranges of a heap and their sums, or the reason why they are not guarded.
fn droppable(
    kind: &AllocatorKind,
    version: &str,
    saved: &SavedHeap,
) -> Option<Result<(Vec<Droppable>, Sums), &'static str>> {
    let memory = &saved.memory;
    let places = Places { data: &saved.data, zeroed_data: &saved.data, mappings: &saved.mappings };
    let layout = HeapLayout::find(kind, memory, &places)?;
    let found = GuardedHeap::find(layout, memory, &saved.mappings, &Module::unknown(Some(version)));
    let mut ranges = Vec::new();
    let sums = found.and_then(|heap| {
        heap.each_droppable(memory, &saved.mappings, &mut |range| ranges.push(range))
    });
    Some(sums.map(|sums| (ranges, sums)))
}

/// Returns the number of bytes that a purge by the allocator would return to the OS.
fn purge_bytes(kind: &AllocatorKind, saved: &SavedHeap) -> u64 {
    let places = Places { data: &saved.data, zeroed_data: &saved.data, mappings: &saved.mappings };
    let layout = HeapLayout::find(kind, &saved.memory, &places).unwrap();
    let walked = layout.walk(&saved.memory, &saved.mappings, None).unwrap();
    walked.prediction.purge_bytes.unwrap()
}

fn all_hold(range: &Droppable, memory: &impl Memory) -> bool {
    range.checks.iter().all(|check| {
        let is_equal = word(memory, check.at).unwrap() & check.mask == check.value;
        is_equal == (check.holds == Holds::Equal)
    })
}

fn assert_sound(name: &str, found: &[Droppable], sums: Sums, saved: &SavedHeap) {
    let memory = &saved.memory;
    assert!(!found.is_empty(), "{name}");
    let bytes: u64 = found.iter().map(|range| range.resident_bytes).sum();
    assert_eq!(bytes, sums.guarded_bytes, "{name}");
    for range in found {
        let Range { start, end } = range.pages;
        assert!(start < end && start % 4096 == 0 && end % 4096 == 0, "{name}: {range:x?}");
        assert!(range.checks.len() <= MAX_CHECKS, "{name}: {range:x?}");
        assert!(all_hold(range, memory), "{name}: {range:x?}");
        match range.guard {
            Guard::Lock(lock) => assert!(word(memory, lock).unwrap_or(0) as u32 <= 2, "{name}"),
            Guard::Claim { word: at, base, slice_bytes, summary, summary_bits } => {
                let bits = word(memory, at).unwrap();
                for slice in (start - base) / slice_bytes..(end - base).div_ceil(slice_bytes) {
                    assert!(bits >> slice & 1 == 1, "{name}: {range:x?}");
                }
                assert_eq!(word(memory, summary).unwrap() & summary_bits, summary_bits, "{name}");
            }
            Guard::OnlyThread => {}
            Guard::MuslLock { .. } => panic!("{name}: the saved heaps have no code"),
            Guard::Owner { thread, list } => {
                assert_ne!(thread, 0, "{name}: {range:x?}");
                let Some(list) = list else { continue };
                let next = |at: &u64| word(memory, *at).filter(|next| *next != 0);
                let mut listed = std::iter::successors(next(&list.head), next).take(512);
                assert!(listed.any(|block| block == list.block), "{name}: {range:x?}");
                assert!(
                    list.block < start && list.start <= list.block && end <= list.end,
                    "{name}"
                );
            }
        }
    }
    let mut pages: Vec<&Range<u64>> = found.iter().map(|range| &range.pages).collect();
    pages.sort_by_key(|pages| pages.start);
    assert!(pages.windows(2).all(|two| two[0].end <= two[1].start), "{name}");
}

#[test]
fn the_free_memory_of_jemalloc_is_guarded_by_its_locks() {
    let kind = AllocatorKind::Jemalloc;
    for name in ["5.0.1", "5.1.0", "5.2.1", "5.2.1-57", "5.3.0", "5.3.1"] {
        let saved = load("jemalloc", name);
        let (found, sums) = droppable(&kind, name, &saved).unwrap().unwrap();
        assert_sound(name, &found, sums, &saved);
        // The ranges include all that a purge returns, and more.
        let purge_bytes = purge_bytes(&kind, &saved);
        assert!(sums.guarded_bytes >= purge_bytes, "{name}: {sums:?}, {purge_bytes}");
    }
}

#[test]
fn the_free_slices_of_mimalloc_3_can_be_claimed() {
    let kind = AllocatorKind::Mimalloc;
    let saved = load("mimalloc", "3.3.2");
    let (found, sums) = droppable(&kind, "3.3.2", &saved).unwrap().unwrap();
    assert_sound("3.3.2", &found, sums, &saved);
    assert_eq!(sums.unguarded_bytes, 0);
    assert!(sums.guarded_bytes >= purge_bytes(&kind, &saved));
}

#[test]
fn the_free_memory_of_mimalloc_2_belongs_to_its_threads() {
    let kind = AllocatorKind::Mimalloc;
    for name in ["2.0.9", "2.3.2"] {
        let saved = load("mimalloc", name);
        let (found, sums) = droppable(&kind, name, &saved).unwrap().unwrap();
        assert_sound(name, &found, sums, &saved);
        let lists = |range: &&Droppable| matches!(range.guard, Guard::Owner { list: Some(_), .. });
        assert!(found.iter().any(|range| lists(&range)), "{name}: no block of a list");
        assert!(!found.iter().all(|range| lists(&range)), "{name}: no free span");
    }
}

#[test]
fn a_heap_of_another_mimalloc_version_than_the_detected_one_is_rejected() {
    let kind = AllocatorKind::Mimalloc;
    for (name, version) in [("2.3.2", "3.3.2"), ("3.3.2", "2.3.2"), ("2.0.9", "2.3.2")] {
        let why = droppable(&kind, version, &load("mimalloc", name)).unwrap().unwrap_err();
        assert!(why.contains("another mimalloc"), "{name} as {version}: {why}");
    }
}

#[test]
fn the_lock_of_gperftools_is_in_the_page_heap_from_2_11_on_and_is_known_by_its_code_before() {
    let kind = AllocatorKind::Gperftools;
    let saved = load("gperftools", "2.16");
    let (found, sums) = droppable(&kind, "2.16", &saved).unwrap().unwrap();
    assert_sound("2.16", &found, sums, &saved);
    assert_eq!(sums, Sums { guarded_bytes: purge_bytes(&kind, &saved), ..Sums::default() });
    for name in ["2.8.1", "2.10"] {
        let saved = load("gperftools", name);
        let why = droppable(&kind, name, &saved).unwrap().unwrap_err();
        assert!(why.contains("the code that takes the lock"), "{name}: {why}");
    }
}

#[test]
fn the_free_slots_of_musl_are_guarded_by_their_record_and_the_only_thread() {
    let kind = AllocatorKind::Musl;
    for name in ["1.2.3", "1.2.3-static"] {
        let saved = load("musl", name);
        let (found, sums) = droppable(&kind, name, &saved).unwrap().unwrap();
        assert_sound(name, &found, sums, &saved);
        let mappings: Vec<_> = saved.mappings.iter().map(|m| m.range.clone()).collect();
        let layout = musl::Layout::find(&saved.memory, &saved.data).unwrap();
        let walked = musl::walk(&saved.memory, &layout, &joined(mappings), None);
        let guarded_bytes = walked.reclaimable_bytes;
        assert_eq!(sums, Sums { guarded_bytes, ..Sums::default() }, "{name}");
    }
}

#[test]
fn the_free_ranges_of_a_damaged_heap_are_disjoint_and_sum_to_their_resident_bytes() {
    let walk = |kind: AllocatorKind, version: &'static str| {
        move |saved: &SavedHeap| {
            let (found, sums) = droppable(&kind, version, saved)?.ok()?;
            assert!(found.iter().all(|range| range.checks.len() <= MAX_CHECKS));
            let mut pages: Vec<Range<u64>> = found.into_iter().map(|range| range.pages).collect();
            pages.sort_by_key(|pages| pages.start);
            Some((pages, sums.guarded_bytes))
        }
    };
    damage_each("jemalloc", &["5.2.1", "5.3.1"], walk(AllocatorKind::Jemalloc, "5.3.1"), u64::eq);
    damage_each("mimalloc", &["3.3.2"], walk(AllocatorKind::Mimalloc, "3.3.2"), u64::eq);
    damage_each("musl", &["1.2.3-static"], walk(AllocatorKind::Musl, "1.2.3"), u64::eq);
    damage_each("gperftools", &["2.16"], walk(AllocatorKind::Gperftools, "2.16"), u64::eq);
}

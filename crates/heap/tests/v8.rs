//! Saved heaps of V8, intact, changed and damaged. They are created by `cargo run -p lowtide-probe
//! --example save_v8_heaps`, each with the output of `v8.getHeapSpaceStatistics()`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;

use std::collections::BTreeMap;
use std::ops::Range;

use damage::{damage_each, file, load, resident};
use lowtide_heap::engine::{EngineDetail, EnginePlaces, WalkedEngine, walk};
use lowtide_heap::ranges::joined;
use lowtide_heap::saved::SavedHeap;
use lowtide_model::engine::{EngineHeap, EngineSpace, POOL};
use lowtide_model::ledger::{State, WalkedRuntime};

const ENGINE: &str = "v8";
const NAMES: [&str; 10] =
    ["10.2", "10.8", "11.3", "11.8", "12.4", "12.9", "13.6", "14.1", "14.6", "15.0"];
/// Bytes of a chunk: an area from which a thread allocates is at most as large.
const CHUNK: u64 = 256 << 10;

fn walked(saved: &SavedHeap) -> Option<WalkedEngine> {
    let private: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let private = joined(private);
    let places =
        EnginePlaces { data: &[], heaps: &[], mapped: &[], private: &private, reserved: &private };
    walk(WalkedRuntime::V8, &saved.memory, &places, None)
}

fn spaces(walked: &WalkedEngine) -> &EngineHeap {
    match &walked.detail {
        EngineDetail::Spaces(heap) => heap,
        EngineDetail::CPython(_) => panic!("another engine"),
    }
}

/// Returns size and bytes in use by space, as V8 itself counts them.
fn statistics(name: &str) -> BTreeMap<String, [u64; 2]> {
    let text = std::fs::read_to_string(file(ENGINE, &format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn walked_heaps_match_the_statistics_of_v8() {
    for name in NAMES {
        let walked = walked(&load(ENGINE, name)).expect(name);
        let heap = spaces(&walked);
        assert_eq!((heap.version.as_str(), heap.instances), (name, 1));
        for (space, [committed_bytes, used_bytes]) in statistics(name) {
            // Read-only memory that isolates share is in no statistic.
            if space == "read_only_space" && committed_bytes == 0 {
                continue;
            }
            let sum = |of: fn(&EngineSpace) -> u64| heap.sum_of(&space, of);
            assert_eq!(sum(|s| s.committed_bytes), committed_bytes, "{name}: {space}");
            let used = sum(|s| s.used_bytes);
            let most = if space.contains("large_object") { 0 } else { CHUNK };
            assert!(used.abs_diff(used_bytes) <= most, "{name}: {space}: {used} {used_bytes}");
            assert_eq!(sum(|s| s.unknown_bytes), 0, "{name}: {space}");
        }
    }
}

#[test]
fn the_rows_of_a_walked_heap_add_up_to_its_resident_bytes() {
    for name in NAMES {
        let saved = load(ENGINE, name);
        let walked = walked(&saved).expect(name);
        assert_eq!(walked.ledger.total(), resident(&walked.areas, &saved.memory), "{name}");
        assert!(walked.ledger.bytes_of(WalkedRuntime::V8, State::Free) > 1 << 20, "{name}");
    }
}

#[test]
fn the_walk_of_a_damaged_heap_terminates_and_its_rows_add_up() {
    let walk = |saved: &SavedHeap| {
        walked(saved).map(|walked| (walked.areas.clone(), walked.ledger.total()))
    };
    damage_each(ENGINE, &NAMES, walk, u64::eq);
}

/// Returns the saved word at an address.
fn word(saved: &SavedHeap, at: u64) -> Option<u64> {
    let (place, offset) = place(saved, at)?;
    let bytes = &saved.memory.blocks[place].1[offset..offset + 8];
    Some(u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn set(saved: &mut SavedHeap, at: u64, word: u64) {
    let (place, offset) = place(saved, at).unwrap();
    saved.memory.blocks[place].1[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
}

fn place(saved: &SavedHeap, at: u64) -> Option<(usize, usize)> {
    let holds =
        |(start, bytes): &(u64, Vec<u8>)| *start <= at && at + 8 <= start + bytes.len() as u64;
    let place = saved.memory.blocks.iter().position(holds)?;
    Some((place, usize::try_from(at - saved.memory.blocks[place].0).unwrap()))
}

/// A chunk of old space in the middle of its list, in V8 13.6: its record, those of its
/// neighbours, and its space.
struct Listed {
    record: u64,
    next: u64,
    previous: u64,
    space: u64,
}

fn listed(saved: &SavedHeap) -> Listed {
    let areas = walked(saved).unwrap().areas;
    let chunks = areas.iter().flat_map(|area| (area.start..area.end).step_by(CHUNK as usize));
    let listed = |chunk: u64| {
        let record = word(saved, chunk + 8)?;
        let [next, previous] = [word(saved, record + 264)?, word(saved, record + 272)?];
        let space = word(saved, record + 80)?;
        let is_old = word(saved, space + 16)? & 0xff == 2;
        let is_full = word(saved, record + 48)? == CHUNK;
        let is_inner = is_old && is_full && next != 0 && previous != 0;
        is_inner.then_some(Listed { record, next, previous, space })
    };
    chunks.into_iter().find_map(listed).unwrap()
}

/// Takes a chunk out of the list of its space, as V8 does when it puts the chunk in its pool.
fn unlist(saved: &mut SavedHeap, chunk: &Listed) {
    set(saved, chunk.previous + 264, chunk.next);
    set(saved, chunk.next + 272, chunk.previous);
}

#[test]
fn a_chunk_that_no_list_has_is_in_the_pool() {
    let mut saved = load(ENGINE, "13.6");
    let before = walked(&saved).unwrap();
    let chunk = listed(&saved);
    unlist(&mut saved, &chunk);
    let committed_bytes = word(&saved, chunk.space + 24).unwrap();
    set(&mut saved, chunk.space + 24, committed_bytes - CHUNK);
    let after = walked(&saved).unwrap();
    assert_eq!(spaces(&before).sum_of(POOL, |space| space.parts), 0);
    assert_eq!(spaces(&after).sum_of(POOL, |space| space.committed_bytes), CHUNK);
    let old = |walked: &WalkedEngine| spaces(walked).sum_of("old_space", |s| s.committed_bytes);
    assert_eq!(old(&before) - old(&after), CHUNK);
    assert_eq!(before.ledger.total(), after.ledger.total());
}

#[test]
fn a_chunk_is_unknown_if_the_list_of_its_space_lacks_bytes_that_the_space_counts() {
    let mut saved = load(ENGINE, "13.6");
    let chunk = listed(&saved);
    unlist(&mut saved, &chunk);
    let after = walked(&saved).unwrap();
    assert_eq!(spaces(&after).sum_of(POOL, |space| space.parts), 0);
    assert!(after.ledger.bytes_of(WalkedRuntime::V8, State::Unknown) > 0);
    assert!(after.unwalked_bytes > 0);
}

#[test]
fn a_list_that_leads_in_a_circle_is_read_once() {
    let mut saved = load(ENGINE, "13.6");
    let chunk = listed(&saved);
    set(&mut saved, chunk.next + 264, chunk.record);
    let after = walked(&saved).unwrap();
    assert!(after.ledger.bytes_of(WalkedRuntime::V8, State::Unknown) > 0);
}

#[test]
fn a_heap_whose_spaces_have_no_lists_at_the_known_places_is_not_walked() {
    let mut saved = load(ENGINE, "13.6");
    let areas = walked(&saved).unwrap().areas;
    let chunks = areas.iter().flat_map(|area| (area.start..area.end).step_by(CHUNK as usize));
    let records = chunks.filter_map(|chunk| word(&saved, chunk + 8));
    let spaces: Vec<u64> = records.filter_map(|record| word(&saved, record + 80)).collect();
    for space in spaces {
        if word(&saved, space).is_some() {
            set(&mut saved, space + 40, 0);
        }
    }
    assert!(walked(&saved).is_none());
}

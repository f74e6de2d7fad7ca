//! Heaps of CPython that were saved, as they were and damaged. They are made by
//! `cargo run -p lowtide-probe --example save_cpython_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damage;
mod debug_malloc_stats;

use std::ops::Range;
use std::path::{Path, PathBuf};

use damage::{cases, changes, damage, resident};
use debug_malloc_stats::DebugMallocStats;
use lowtide_heap::pymalloc::{Heap, Layout, walk};
use lowtide_heap::saved::SavedHeap;
use proptest::prelude::*;

const NAMES: [&str; 7] = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/saved/cpython").join(name)
}

fn load(name: &str) -> SavedHeap {
    SavedHeap::from_bytes(&std::fs::read(file(&format!("{name}.heap"))).unwrap()).unwrap()
}

fn walked(saved: &SavedHeap) -> Option<Heap> {
    let mapped = saved.mappings.iter().filter(|mapping| !mapping.is_brk);
    let mapped: Vec<Range<u64>> = mapped.map(|mapping| mapping.range.clone()).collect();
    let heaps: Vec<Range<u64>> = saved.mappings.iter().map(|m| m.range.clone()).collect();
    let layout = Layout::find(&saved.memory, &saved.data, &heaps, &mapped)?;
    Some(walk(&saved.memory, &layout, &mapped))
}

/// The resident bytes of its rows.
fn rows(heap: &Heap) -> u64 {
    let rows = &heap.resident;
    rows.allocated_bytes
        + rows.free_block_bytes
        + rows.free_pool_bytes
        + rows.overhead_bytes
        + rows.unknown_bytes
}

#[test]
fn saved_heaps_hold_what_cpython_said() {
    for name in NAMES {
        let saved = load(name);
        let heap = walked(&saved).expect(name);
        let text = std::fs::read_to_string(file(&format!("{name}.txt"))).unwrap();
        DebugMallocStats::parse(&text).assert_equal(&heap, name);
        assert_eq!(heap.torn_pools, 0, "{name}");
        assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory), "{name}");
        assert!(heap.mostly_free_arenas > 0, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_heap_is_walked_to_its_end_and_its_rows_still_add_up(
        name in prop::sample::select(&NAMES[..]),
        changes in changes(),
        in_place in any::<bool>(),
    ) {
        let mut saved = load(name);
        damage(&mut saved, changes, in_place);
        if let Some(heap) = walked(&saved) {
            prop_assert!(heap.areas.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert_eq!(rows(&heap), resident(&heap.areas, &saved.memory));
        }
    }
}

//! Saved heaps, as they are and damaged.

use std::ops::Range;
use std::path::{Path, PathBuf};

use lowtide_heap::memory::Memory;
use lowtide_heap::residency::Residency;
use lowtide_heap::saved::SavedHeap;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Changes of words that are not zero: the index of the word, and its new value or the number of
/// the bit to flip.
type Changes = Vec<(prop::sample::Index, u64)>;

/// Returns the path of a file beside the saved heaps of an allocator.
pub(crate) fn file(allocator: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/saved").join(allocator).join(name)
}

/// Loads a saved heap.
pub(crate) fn load(allocator: &str, name: &str) -> SavedHeap {
    let bytes = std::fs::read(file(allocator, &format!("{name}.heap"))).unwrap();
    SavedHeap::from_bytes(&bytes).unwrap()
}

/// Damages saved heaps at random. `walk` returns the areas of a heap and the sum of its rows, or
/// `None` if no heap is found any more. The areas must be in order and disjoint, and the sum must
/// equal their resident bytes.
pub(crate) fn damage_each(
    allocator: &str,
    names: &'static [&'static str],
    walk: impl Fn(&SavedHeap) -> Option<(Vec<Range<u64>>, u64)>,
    agrees: impl Fn(&u64, &u64) -> bool,
) {
    let config =
        ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
    let damages = (prop::sample::select(names), changes(), any::<bool>());
    let checked = TestRunner::new(config).run(&damages, |(name, changes, in_place)| {
        let mut saved = load(allocator, name);
        damage(&mut saved, changes, in_place);
        if let Some((areas, rows)) = walk(&saved) {
            prop_assert!(areas.windows(2).all(|pair| pair[0].end <= pair[1].start));
            let resident = resident(&areas, &saved.memory);
            prop_assert!(agrees(&rows, &resident), "{rows} of {resident}");
        }
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}

fn changes() -> impl Strategy<Value = Changes> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..200)
}

/// Changes words of a heap.
fn damage(saved: &mut SavedHeap, changes: Changes, in_place: bool) {
    let places = saved.nonzero_words();
    for (index, value) in changes {
        let (block, at) = places[index.index(places.len())];
        let bytes = &mut saved.memory.blocks[block].1[at..at + 8];
        let word = u64::from_le_bytes(bytes.try_into().unwrap());
        let changed = if in_place { word ^ (1 << (value % 64)) } else { value };
        bytes.copy_from_slice(&changed.to_le_bytes());
    }
}

/// Returns the resident bytes of some areas.
pub(crate) fn resident(areas: &[Range<u64>], memory: &impl Memory) -> u64 {
    let mut residency = Residency::new(memory);
    areas.iter().map(|area| residency.bytes(area.clone())).sum()
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

//! Changes in saved heaps, for tests of what damaged ones do.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::residency::Residency;
use lowtide_heap::saved::SavedHeap;
use proptest::prelude::*;

/// Words to change: which of those that are not zero, and the new value, or the bit to turn over.
pub(crate) type Changes = Vec<(prop::sample::Index, u64)>;

pub(crate) fn changes() -> impl Strategy<Value = Changes> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..200)
}

/// Changes words of a heap. Those that are not zero are mostly of the allocator's own structures.
pub(crate) fn damage(saved: &mut SavedHeap, changes: Changes, in_place: bool) {
    let mut places = Vec::new();
    for (block, (_, bytes)) in saved.memory.blocks.iter().enumerate() {
        let words = bytes.chunks_exact(8).enumerate();
        places.extend(words.filter(|(_, w)| **w != [0; 8]).map(|(word, _)| (block, word * 8)));
    }
    for (index, value) in changes {
        let (block, at) = places[index.index(places.len())];
        let bytes = &mut saved.memory.blocks[block].1[at..at + 8];
        let word = u64::from_le_bytes(bytes.try_into().unwrap());
        let changed = if in_place { word ^ (1 << (value % 64)) } else { value };
        bytes.copy_from_slice(&changed.to_le_bytes());
    }
}

/// The resident bytes of some areas.
pub(crate) fn resident(areas: &[Range<u64>], memory: &impl Memory) -> u64 {
    let mut residency = Residency::new(memory);
    areas.iter().map(|area| residency.bytes(area.clone())).sum()
}

pub(crate) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

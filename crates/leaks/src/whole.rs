//! Whether a walk has seen the whole heap.

use lowtide_heap::ranges::{bytes, joined};
use lowtide_model::inspection::Observation;
use lowtide_probe::inspect::BlockWalk;

/// Maximum part of a heap that could not be walked in a complete snapshot.
pub(crate) const MAX_TORN: f64 = 0.02;

/// Returns whether nearly all of the heap was walked.
pub(crate) fn is_whole(walk: &BlockWalk) -> bool {
    let Observation { arenas, unwalked_bytes, .. } = &walk.observation;
    // A glibc arena that could not be walked has not been counted at all.
    let missing = arenas.iter().filter(|arena| !arena.whole && arena.is_of_glibc()).map(|arena| {
        let walked = arena.allocated_bytes + arena.all_free_bytes() + arena.top_bytes();
        arena.system_bytes.saturating_sub(walked)
    });
    let missing = missing.sum::<u64>().max(*unwalked_bytes);
    let all = bytes(&joined(walk.heaps.areas.clone()));
    has_heap(&walk.observation) && missing as f64 <= MAX_TORN * all as f64
}

/// Returns whether a heap was walked.
pub(crate) fn has_heap(observation: &Observation) -> bool {
    !observation.heaps.is_empty() || observation.cpython.is_some()
}

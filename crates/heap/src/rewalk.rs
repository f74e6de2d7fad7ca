//! Walks a heap again if too much of it changed meanwhile.

use std::time::Duration;

use crate::blocks::{BlockCollector, Visitor, lend};
use crate::memory::Memory;

/// Delays before the second and the third walk.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];
/// Maximum torn share of a heap. Above it, the heap is walked again.
const MAX_TORN: f64 = 0.01;

/// Walks a heap, and again if more of it is torn than allowed. Each walk collects its blocks for
/// the visitor. Returns the walk with the smallest torn share.
pub(crate) fn least_torn<H>(
    memory: &impl Memory,
    mut visitor: Visitor<'_>,
    mut walk: impl FnMut(BlockCollector<'_>) -> H,
    torn_share: impl Fn(&H) -> f64,
) -> H {
    let mut best = walk(BlockCollector::new(lend(&mut visitor)));
    for pause in PAUSES {
        if torn_share(&best) <= MAX_TORN || memory.is_over() || !memory.wait(pause) {
            break;
        }
        let next = walk(BlockCollector::new(lend(&mut visitor)));
        if torn_share(&next) < torn_share(&best) {
            best = next;
        }
    }
    best
}

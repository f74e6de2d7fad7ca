//! The free spans, which the lock of the page heap guards.
//!
//! A span on a normal free list (`Span::ON_NORMAL_FREELIST`) is free and resident. It leaves the
//! list only under the lock of the page heap, and the contents of its pages are never read: the
//! links of the list are in the record of the span.

use std::ops::Range;

use super::page_map::{LEAF_BITS, PageMap};
use super::{Layout, PageHeapLock};
use crate::droppable::{Check, Droppable, Guard, Sums};
use crate::memory::Memory;
use crate::residency::Residency;

/// Place of the location in a record in bytes, its bits, and their value in a free span.
const LOCATION_AT: u64 = 40;
const LOCATION_BITS: u64 = 3 << 24;
const FREE: u64 = 1 << 24;

/// Passes the resident free spans to `visit`, and returns their sums. `anonymous` are the private
/// writable anonymous mappings in order, adjacent ones merged.
pub fn each_droppable(
    memory: &impl Memory,
    layout: &Layout,
    lock: PageHeapLock,
    anonymous: &[Range<u64>],
    visit: &mut dyn FnMut(Droppable),
) -> Sums {
    let (mut sums, mut residency) = (Sums::default(), Residency::new(memory));
    let mut map = PageMap::new(memory, anonymous);
    let leaves = map.leaves(layout.root);
    let slot_of = |page: u64| {
        let place = leaves.binary_search_by_key(&(page >> LEAF_BITS), |(key, _)| *key).ok()?;
        let (_, leaf) = leaves.get(place)?;
        Some(leaf + 8 * (page & ((1 << LEAF_BITS) - 1)))
    };
    for span in map.spans(&leaves).iter().filter(|span| span.is_free()) {
        if memory.is_over() {
            break;
        }
        let resident_bytes = residency.bytes(span.range());
        if resident_bytes == 0 {
            continue;
        }
        let (Some(first), Some(last)) = (slot_of(span.first), slot_of(span.last())) else {
            sums.unguarded_bytes += resident_bytes;
            continue;
        };
        let checks = vec![
            Check::word(span.record, span.first),
            Check::word(span.record + 8, span.pages),
            Check::bits(span.record + LOCATION_AT, LOCATION_BITS, FREE),
            Check::word(first, span.record),
            Check::word(last, span.record),
        ];
        sums.guarded_bytes += resident_bytes;
        let guard = Guard::Lock(lock.0);
        visit(Droppable { pages: span.range(), resident_bytes, guard, checks });
    }
    sums
}

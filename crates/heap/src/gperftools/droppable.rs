//! The free spans, which the lock of the page heap guards.
//!
//! A span on a normal free list (`Span::ON_NORMAL_FREELIST`) is free and resident. It leaves the
//! list only under the lock of the page heap, and the contents of its pages are never read: the
//! links of the list are in the record of the span. From 2.11 on, the lock is the first member of
//! `PageHeap`. The cache of size classes (`PackedCache`, 2^16 words) and the root of the page map
//! follow it (`page_heap.h`). Up to 2.10 it is a separate variable.
//!
//! A `SpinLock` is 0 when it is free, 1 when it is held, and 2 when threads may wait for it. They
//! wait on a private futex, for a few milliseconds at most, and a thread that finds 2 when it
//! unlocks wakes one (`spinlock.h`, `spinlock_linux-inl.h`). `lll_lock` has the same rules.

use std::ops::Range;

use super::Layout;
use super::page_map::{LEAF_BITS, PageMap};
use crate::droppable::{Check, Droppable, Guard, Sums, Unguarded};
use crate::memory::{Memory, word};
use crate::residency::Residency;

/// Distance from the lock to the root of the page map.
const LOCK_TO_ROOT: u64 = 8 + (8 << 16);
/// The first version in which the place of the lock is known.
const FIRST: (u32, u32) = (2, 11);
/// Place of the location in a record in bytes, its bits, and their value in a free span.
const LOCATION_AT: u64 = 40;
const LOCATION_BITS: u64 = 3 << 24;
const FREE: u64 = 1 << 24;

/// The place of the lock of the page heap.
#[derive(Debug, Clone, Copy)]
pub struct Lock(u64);

/// Finds the lock of the page heap. `version` is that of gperftools, from its file.
///
/// # Errors
/// Fails with the reason if its place is not known.
pub fn lock(
    memory: &impl Memory,
    layout: &Layout,
    version: Option<&str>,
) -> Result<Lock, Unguarded> {
    let mut numbers = version.unwrap_or_default().split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err("the location of its lock depends on its version, which is unknown");
    };
    if (major, minor) < FIRST {
        return Err("the lock of the page heap cannot be located in gperftools 2.10 and older");
    }
    const ELSEWHERE: Unguarded = "the lock of its page heap is not where it is expected";
    let at = layout.root.checked_sub(LOCK_TO_ROOT).ok_or(ELSEWHERE)?;
    let is_inside = layout.data.iter().any(|range| range.start <= at && layout.root < range.end);
    // The other half is padding.
    let is_lock = word(memory, at).is_none_or(|word| word <= 2);
    if is_inside && is_lock { Ok(Lock(at)) } else { Err(ELSEWHERE) }
}

/// Passes the resident free spans to `visit`, and returns their sums. `anonymous` are the private
/// writable anonymous mappings in order, adjacent ones merged.
pub fn each_droppable(
    memory: &impl Memory,
    layout: &Layout,
    lock: Lock,
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

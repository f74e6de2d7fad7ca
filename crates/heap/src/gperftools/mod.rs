//! The heap of gperftools' tcmalloc, from 2.8 on.
//!
//! - `page_map`: the spans. A span is a large block, is cut into blocks of one size class, or is
//!   free.
//! - `size_class`: the sizes of blocks.
//! - `caches`: free blocks that threads cache, and those that move between threads.
//! - `droppable`, `lock`: free spans, and the lock that guards them.
//! - `tally`: the sums, in the terms of `MallocExtension::GetNumericProperty`.
//!
//! Sources: gperftools 2.8.1 to 2.18.1, `src/span.h`, `pagemap.h`, `central_freelist.h`,
//! `thread_cache.h`, `common.cc`.

mod allocator;
mod caches;
mod droppable;
mod lock;
mod page_map;
mod size_class;
mod tally;

use std::ops::Range;

use crate::blocks::{BlockCollector, Visitor};
use crate::memory::Memory;
use crate::ranges::{joined, union};
use crate::residency::Residency;
use crate::rewalk::least_torn;
use crate::rooms::RoomKind;
use crate::scattered::Scattered;
pub use droppable::each_droppable;
pub use lock::{PageHeapLock, lock};
use page_map::{LEAF_BYTES, PAGE_BITS, PageMap, RECORD, Span, SpanLocation};
pub use tally::{Heap, Resident};

/// Place of the list of free blocks in the record of a span (`objects`).
const OBJECTS_AT: u64 = 32;
/// Maximum number of times that the list of a span is read again.
const REREADS: u32 = 2;

/// The places of the page map, the sizes and the caches.
#[derive(Debug)]
pub struct Layout {
    /// The root of the page map.
    root: u64,
    /// The sizes of blocks by the index of their class; the first is 0.
    sizes: Vec<u64>,
    /// The zeroed data of the library or program.
    data: Vec<Range<u64>>,
}

impl Layout {
    /// Finds a tcmalloc. `data` are the ranges of zeroed data of the program or library that
    /// contains it, `anonymous` the private writable anonymous mappings in order, adjacent ones
    /// merged.
    pub fn find(
        memory: &impl Memory,
        data: &[Range<u64>],
        anonymous: &[Range<u64>],
    ) -> Option<Self> {
        let mut map = PageMap::new(memory, anonymous);
        let root = data.iter().find_map(|range| map.root(range))?;
        let sizes = size_class::find(memory, data)?;
        Some(Self { root, sizes, data: data.to_vec() })
    }
}

/// Returns the addresses of tcmalloc's spans, in order and disjoint. Returns an empty list if the
/// program has no tcmalloc. The arguments are those of [`Layout::find`].
pub fn spans(
    memory: &impl Memory,
    data: &[Range<u64>],
    anonymous: &[Range<u64>],
) -> Vec<Range<u64>> {
    let mut map = PageMap::new(memory, anonymous);
    let mut found = Vec::new();
    for range in data {
        if let Some(root) = map.root(range) {
            let leaves = map.leaves(root);
            found.extend(map.spans(&leaves).iter().map(page_map::Span::range));
        }
    }
    union(found)
}

/// Walks the heap, as far as it lies in `anonymous`.
pub fn walk(
    memory: &impl Memory,
    layout: &Layout,
    anonymous: &[Range<u64>],
    visitor: Visitor<'_>,
) -> Heap {
    let walk = |mut blocks: BlockCollector<'_>| walk_once(memory, layout, anonymous, &mut blocks);
    least_torn(memory, visitor, walk, Heap::torn_share)
}

fn walk_once(
    memory: &impl Memory,
    layout: &Layout,
    anonymous: &[Range<u64>],
    blocks: &mut BlockCollector<'_>,
) -> Heap {
    let mut map = PageMap::new(memory, anonymous);
    let leaves = map.leaves(layout.root);
    let spans = map.spans(&leaves);
    let mut residency = Residency::new(memory);
    let has_larger_pages = memory.page_bytes() > 1 << PAGE_BITS;
    let mut heap = Heap { has_larger_pages, ..Heap::default() };
    let mut words = Scattered::new(memory);
    for span in &spans {
        let range = span.range();
        let bytes = range.end - range.start;
        let resident_bytes = residency.bytes(range.clone());
        match (span.location, layout.sizes.get(span.class)) {
            (SpanLocation::Free, _) => {
                let whole = residency.free_bytes(whole_pages(&range, memory.page_bytes()));
                heap.add_free(bytes, resident_bytes, whole);
            }
            (SpanLocation::Returned, _) => heap.add_returned(bytes, resident_bytes),
            (SpanLocation::InUse, Some(0)) => {
                heap.add_large(bytes, resident_bytes);
                blocks.lone(memory, range.start, bytes, bytes);
            }
            (SpanLocation::InUse, Some(size)) if span.out <= bytes / size => {
                heap.add_small(*size, span.out, bytes, resident_bytes);
                if blocks.is_on() {
                    collect(memory, &mut words, span, *size, blocks);
                    blocks.room(RoomKind::GperftoolsSpan, range);
                }
            }
            (SpanLocation::InUse, _) => {
                heap.add_torn(bytes, resident_bytes);
                blocks.unknown(range);
            }
        }
    }
    let cached = caches::CachedBlocks::read(memory, layout);
    heap.add_cached(&cached, &layout.sizes);
    if blocks.is_on() {
        cached.each_block(&mut words, |at| blocks.is_free(at));
    }
    // The allocator's own structures: the page map, and the records of spans.
    let page = memory.page_bytes();
    let mut own: Vec<Range<u64>> =
        leaves.iter().map(|(_, leaf)| leaf - leaf % page..leaf + LEAF_BYTES).collect();
    let records = spans.iter().map(|span| span.record..span.record + RECORD);
    let pages_of =
        |record: Range<u64>| record.start - record.start % page..record.end.next_multiple_of(page);
    let records = records.chain(cached.records).map(pages_of);
    own.extend(records.filter(|pages| map.is_anonymous(pages.clone())));
    own.sort_unstable_by_key(|range| range.start);
    let mut areas: Vec<Range<u64>> = spans.iter().map(page_map::Span::range).collect();
    heap.structures = crate::ranges::gaps(joined(own).into_iter(), &areas);
    heap.metadata_bytes = residency.bytes_in(&heap.structures);
    areas.extend_from_slice(&heap.structures);
    heap.areas = union(areas);
    heap
}

/// Returns the whole pages of the kernel in a range.
fn whole_pages(range: &Range<u64>, page: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(page).min(range.end);
    start..(range.end - range.end % page).max(start)
}

/// Collects the blocks of a span that are not in its own list of free blocks, including cached
/// ones.
fn collect<M: Memory>(
    memory: &M,
    words: &mut Scattered<'_, M>,
    span: &Span,
    size: u64,
    blocks: &mut BlockCollector<'_>,
) {
    let range = span.range();
    let count = (range.end - range.start) / size;
    let free = (0..=REREADS).find_map(|_| {
        // It may have changed since it was read.
        words.forget_page(span.record);
        let out = words.word(span.record + RECORD - 8)? & 0xffff;
        let first = words.word(span.record + OBJECTS_AT)?;
        let free_count = count.checked_sub(out)?;
        let (mut free, mut next) = (Vec::new(), first);
        while next != 0 {
            let place = next.checked_sub(range.start)?;
            if place % size != 0 || place / size >= count || free.len() as u64 >= free_count {
                return None;
            }
            free.push(next);
            next = words.word(next)?;
        }
        free.sort_unstable();
        (free.len() as u64 == free_count).then_some(free)
    });
    match free {
        Some(free) => blocks.row(memory, range.start, size, count, |index| {
            free.binary_search(&(range.start + index * size)).is_err()
        }),
        None => blocks.unknown(range),
    }
}

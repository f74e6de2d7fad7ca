//! The free memory of version 2. Each segment belongs to one thread, and only that thread changes
//! the spans of the segment and the lists `free` and `local_free` of its pages (`segment.c`,
//! `page.c`). So code that runs in this thread, while it is outside of mimalloc, can drop
//!
//! - free spans: they have the block size 0;
//! - the whole pages of a listed free block after its first word, which points to the next block;
//! - the blocks at the end of a page that were never handed out (`capacity` to `reserved`).
//!
//! A block that another thread has freed is in another list (`xthread_free`), and is skipped.
//! Dropped memory reads as zeros, which is also correct for memory that mimalloc assumes to be zero
//! (`free_is_zero`, `is_zero_init`).
//!
//! The record of a slice inside an allocated span is overwritten when the span is allocated
//! (`mi_segment_span_allocate`), and the last slice of each span has the distance to its first. So
//! a record that is marked as free is that of free memory.

use std::ops::Range;

use super::Walker;
use super::find::{SEGMENT, SLICE, SLICES, Segment};
use super::page::{self, Fields, Page};
use super::segment::LONG_STRIDE;
use crate::droppable::{Check, Droppable, Guard, List, Sums};
use crate::memory::Memory;

/// Minimum size of a block whose pages are dropped, in bytes: it has a whole page after its first
/// word.
const MIN_BLOCK_BYTES: u64 = 8 << 10;
/// `slice_offset` in the first word of a record; `slice_count` is below.
const OFFSET: u64 = 0xffff_ffff << 32;

/// Passes the resident free memory of a segment to `visit`.
pub(super) fn each_of_segment<M: Memory>(
    walker: &mut Walker<'_, '_, M>,
    segment: &Segment,
    sums: &mut Sums,
    visit: &mut dyn FnMut(Droppable),
) {
    // A longer segment contains a single block, which any thread may free.
    if segment.bytes != SEGMENT {
        return;
    }
    let fields = if segment.stride == LONG_STRIDE { page::V2 } else { page::V2_SHORT };
    let thread_at = segment.at + segment.slices_at - 8;
    let thread = walker.words.word(thread_at).unwrap_or(0);
    let record = |slice: u64| segment.at + segment.slices_at + segment.stride * slice;
    let mut slice = 0;
    while slice < SLICES {
        let first = walker.words.word(record(slice)).unwrap_or(0);
        let count = first & !OFFSET;
        if first & OFFSET != 0 || !(1..=SLICES - slice).contains(&count) {
            // The chain of spans is broken: it has changed, or was not read completely.
            return;
        }
        let start = segment.at + slice * SLICE;
        let span = SliceSpan {
            record: record(slice),
            range: start..start + count * SLICE,
            checks: vec![
                Check::word(thread_at, thread),
                Check::word(record(slice), first),
                Check::bits(
                    record(slice + count - 1),
                    OFFSET,
                    (segment.stride * (count - 1)) << 32,
                ),
            ],
            thread,
        };
        match fields.block_bytes(&mut walker.words, span.record) {
            // The first span describes the segment.
            _ if slice == 0 => {}
            Some(0) if fields.has_no_blocks(&mut walker.words, span.record) => {
                let checks = [
                    fields.check_of_block_bytes(span.record, 0),
                    fields.check_of_no_blocks(span.record),
                ];
                span.add(walker, span.range.clone(), None, &checks, sums, visit);
            }
            Some(MIN_BLOCK_BYTES..) => span.add_page(walker, fields, sums, visit),
            _ => {}
        }
        slice += count;
    }
}

/// A span of slices that is one page, or free.
struct SliceSpan {
    record: u64,
    range: Range<u64>,
    /// The conditions that hold while the segment has the same owner, and the span the same slices.
    checks: Vec<Check>,
    /// The owner; 0 if the thread has ended.
    thread: u64,
}

impl SliceSpan {
    /// Adds the free blocks of a page, and those that were never handed out.
    fn add_page<M: Memory>(
        &self,
        walker: &mut Walker<'_, '_, M>,
        fields: Fields,
        sums: &mut Sums,
        visit: &mut dyn FnMut(Droppable),
    ) {
        let page = Page::read(&mut walker.words, fields, self.record, &self.range, None);
        let Some(page) = page else { return };
        let Some(start) = fields.first_block(&mut walker.words, self.record, &page, &self.range)
        else {
            return;
        };
        let size = page.block_bytes;
        let end = |blocks: u64| start.saturating_add(size.saturating_mul(blocks));
        if start < self.range.start || end(page.reserved) > self.range.end {
            return;
        }
        let checks = [
            fields.check_of_block_bytes(self.record, size),
            fields.check_of_blocks(self.record, &page),
        ];
        for head in fields.own_lists(self.record) {
            for block in self.listed(walker, head, start..end(page.capacity), size) {
                let list = List { head, start, end: end(page.capacity), block };
                self.add(walker, block + 8..block + size, Some(list), &checks, sums, visit);
            }
        }
        self.add(walker, end(page.capacity)..end(page.reserved), None, &checks, sums, visit);
    }

    /// Returns the blocks of a list, or no blocks if it leads out of the page.
    fn listed<M: Memory>(
        &self,
        walker: &mut Walker<'_, '_, M>,
        head: u64,
        blocks: Range<u64>,
        size: u64,
    ) -> Vec<u64> {
        let most = (blocks.end - blocks.start) / size;
        let mut found = Vec::new();
        let mut at = walker.words.word(head).unwrap_or(0);
        while at != 0 {
            let is_block = blocks.contains(&at) && (at - blocks.start).is_multiple_of(size);
            if !is_block || found.len() as u64 >= most {
                return Vec::new();
            }
            found.push(at);
            let Some(next) = walker.words.word(at) else { return Vec::new() };
            at = next;
        }
        found
    }

    /// Adds the whole pages of a free range.
    fn add<M: Memory>(
        &self,
        walker: &mut Walker<'_, '_, M>,
        free: Range<u64>,
        list: Option<List>,
        checks: &[Check],
        sums: &mut Sums,
        visit: &mut dyn FnMut(Droppable),
    ) {
        let page = walker.memory.page_bytes();
        let pages = free.start.next_multiple_of(page)..free.end - free.end % page;
        if pages.start >= pages.end {
            return;
        }
        let resident_bytes = walker.residency.bytes(pages.clone());
        if resident_bytes == 0 {
            return;
        }
        if self.thread == 0 {
            sums.unguarded_bytes += resident_bytes;
            return;
        }
        sums.guarded_bytes += resident_bytes;
        let guard = Guard::Owner { thread: self.thread, list };
        let checks = self.checks.iter().chain(checks).copied().collect();
        visit(Droppable { pages, resident_bytes, guard, checks });
    }
}

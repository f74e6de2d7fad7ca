//! A segment of version 2: 512 slices, in spans that are pages or free. It belongs to one thread.

use super::find::{SLICE, SLICES, Segment};
use super::tally::Heap;
use super::{Walker, page};
use crate::memory::Memory;

/// Bytes of the longer description of a slice, which is the record of its page.
pub(super) const LONG_STRIDE: u64 = 96;

/// Adds the pages and free spans of a segment.
pub(super) fn walk<M: Memory>(walker: &mut Walker<'_, '_, M>, heap: &mut Heap, segment: &Segment) {
    let fields = if segment.stride == LONG_STRIDE { page::V2 } else { page::V2_SHORT };
    let slices = segment.bytes / SLICE;
    // The word before the slices.
    let thread = walker.words.word(segment.at + segment.slices_at - 8).unwrap_or(0);
    let mut slice = 0;
    while slice < slices {
        let record = segment.at + segment.slices_at + segment.stride * slice;
        let start = segment.at + slice * SLICE;
        let end = segment.at + segment.bytes;
        let count = if slice < SLICES {
            walker.words.word(record).map(|word| word & 0xffff_ffff)
        } else {
            None
        };
        let Some(count) = count.filter(|count| (1..=slices - slice).contains(count)) else {
            // The chain of spans is broken: it has changed, or was not read completely.
            let tally = heap.thread(thread);
            tally.torn_bytes += end - start;
            tally.resident.torn_bytes += walker.residency.bytes(start..end);
            walker.blocks.unknown(start..end);
            return;
        };
        let span = start..start + count * SLICE;
        let resident = walker.residency.free_bytes(span.clone());
        match fields.block_bytes(&mut walker.words, record) {
            // The first span describes the segment.
            _ if slice == 0 => {
                heap.metadata_bytes += resident.droppable + resident.locked;
                heap.structures.push(span);
            }
            Some(0) => {
                let tally = heap.thread(thread);
                tally.free_spans_bytes += span.end - span.start;
                tally.resident.free_spans_bytes += resident.droppable;
                tally.resident.locked_bytes += resident.locked;
            }
            // A freed segment belongs to no thread. It has one span that is not a page.
            Some(1) if thread == 0 && walker.has_no_blocks(record) => {
                heap.add_free_slices(resident, true);
            }
            _ => {
                let bytes = span.end - span.start;
                walker.add_page(heap.thread(thread), fields, record, span, |_| bytes);
            }
        }
        slice += count;
    }
}

//! An arena of version 3: slices with bitmaps. A page has one or more slices, and belongs to a
//! thread.

use std::ops::Range;

use super::find::{Arena, CHUNK, SLICE};
use super::tally::Heap;
use super::{Walker, page, slices};
use crate::memory::Memory;

/// Place of the chunks of a bitmap, after its head (`mi_bitmap_t`).
const CHUNKS_AT: u64 = 128;
/// Bytes of a chunk.
const CHUNK_BYTES: u64 = CHUNK / 8;
/// Possible sizes of the record of a page, if records are in a row, in bytes (`mi_page_t`).
const STRIDES: [u64; 8] = [88, 96, 104, 112, 120, 128, 136, 144];
/// Number of pages by which the size of a record is chosen.
const DECIDING: usize = 200;

/// A bitmap with a bit for each slice.
struct SliceBitmap(Vec<u64>);

impl SliceBitmap {
    fn read<M: Memory>(walker: &mut Walker<'_, '_, M>, at: u64, slices: u64) -> Self {
        let words = (0..slices / 64).map(|word| walker.words.word(at + 8 * word).unwrap_or(0));
        Self(words.collect())
    }

    fn has(&self, slice: u64) -> bool {
        self.0.get((slice / 64) as usize).is_some_and(|word| word >> (slice % 64) & 1 == 1)
    }
}

/// The places of the records of pages.
enum PageRecords {
    /// Each at the beginning of its page, up to 3.2.
    InPages,
    /// In a row, from 3.3 on.
    InARow { at: u64, stride: u64 },
}

impl PageRecords {
    /// Returns the address of the record of the page at an address.
    fn of(&self, arena: &Arena, page: u64) -> u64 {
        match self {
            Self::InPages => page,
            Self::InARow { at, stride } => at + stride * slices(&(arena.at..page)),
        }
    }
}

/// Adds the pages and free slices of an arena.
pub(super) fn walk<M: Memory>(walker: &mut Walker<'_, '_, M>, heap: &mut Heap, arena: &Arena) {
    let [committed, _, purge] = arena.bitmaps;
    let chunks_bytes = arena.slices / CHUNK * CHUNK_BYTES;
    let of_slice = |slice: u64| arena.at + slice * SLICE;
    let Some((pages, row)) = pages_bitmap(walker, arena) else {
        let tally = heap.thread(0);
        tally.torn_bytes += arena.slices * SLICE;
        tally.resident.torn_bytes += walker.residency.bytes(of_slice(0)..of_slice(arena.slices));
        walker.blocks.unknown(of_slice(0)..of_slice(arena.slices));
        return;
    };
    // The chunks of the first bitmap end where the second begins.
    let free = SliceBitmap::read(walker, committed.saturating_sub(chunks_bytes), arena.slices);
    let purge = SliceBitmap::read(walker, purge + CHUNKS_AT, arena.slices);
    let pages = SliceBitmap::read(walker, pages + CHUNKS_AT, arena.slices);
    let records = match row {
        Some(at) => PageRecords::InARow { at, stride: stride(walker, arena, at, &pages) },
        None => PageRecords::InPages,
    };
    heap.metadata_bytes += walker.residency.bytes(of_slice(0)..of_slice(arena.info));
    let mut slice = arena.info;
    while slice < arena.slices {
        let is_page = pages.has(slice);
        let mut next = slice + 1;
        if !is_page && free.has(slice) {
            let resident = walker.residency.free_bytes(of_slice(slice)..of_slice(next));
            heap.add_free_slices(resident, purge.has(slice));
        } else {
            while next < arena.slices && !pages.has(next) && !free.has(next) {
                next += 1;
            }
            let mut range = of_slice(slice)..of_slice(next);
            let mut is_page = is_page;
            while range.start < range.end {
                range.start += if is_page || is_of_another_heap(walker, &records, arena, &range) {
                    add_page(walker, heap, &records, arena, range.clone())
                } else {
                    // mimalloc's own (`arena-meta.c`).
                    let own = range.start..range.start + SLICE;
                    heap.metadata_bytes += walker.residency.bytes(own.clone());
                    heap.structures.push(own);
                    SLICE
                };
                is_page = false;
            }
        }
        slice = next;
    }
}

/// Returns whether slices that are not a page of the program's first heap are a page of another
/// heap (`mi_heap_new`), whose pages have a separate bitmap.
fn is_of_another_heap<M: Memory>(
    walker: &mut Walker<'_, '_, M>,
    records: &PageRecords,
    arena: &Arena,
    range: &Range<u64>,
) -> bool {
    let PageRecords::InARow { .. } = records else { return false };
    let record = records.of(arena, range.start);
    // The old record of a freed page has no blocks in use.
    let page = page::Page::read(&mut walker.words, page::V3, record, range, None);
    page.is_some_and(|page| page.live > 0)
}

fn add_page<M: Memory>(
    walker: &mut Walker<'_, '_, M>,
    heap: &mut Heap,
    records: &PageRecords,
    arena: &Arena,
    range: Range<u64>,
) -> u64 {
    let record = records.of(arena, range.start);
    if let PageRecords::InPages = records {
        heap.structures.push(record..record + page::RECORD_BYTES);
    }
    // Two bits of the thread's ID are flags; 0 and 4 mark an abandoned page.
    let thread = walker.words.word(record).unwrap_or(0) & !7;
    walker.add_page(heap.thread(thread), page::V3, record, range, bytes_of)
}

/// Returns the bytes of a page: 1, 8 or 64 slices, or as many as its only block needs
/// (`mi_arenas_page_alloc_fresh`).
fn bytes_of(page: &page::Page) -> u64 {
    let blocks_bytes = page.reserved * page.block_bytes;
    let sizes = [1, 8, 64].map(|slices| slices * SLICE);
    match sizes.into_iter().find(|bytes| *bytes >= blocks_bytes) {
        Some(bytes) if page.reserved > 1 => bytes,
        // A single block may begin after the record of its page.
        _ => {
            let record = if blocks_bytes.is_multiple_of(SLICE) { SLICE } else { 0 };
            blocks_bytes.next_multiple_of(SLICE) + record
        }
    }
}

/// Returns the bitmap of pages, and the row of their records if there is one.
fn pages_bitmap<M: Memory>(
    walker: &mut Walker<'_, '_, M>,
    arena: &Arena,
) -> Option<(u64, Option<u64>)> {
    let pointer = |walker: &mut Walker<'_, '_, M>, place: u64| {
        let within = arena.at..arena.at + arena.info * SLICE;
        walker
            .words
            .word(arena.at + 8 * (arena.bitmaps_at + place))
            .filter(|at| within.contains(at))
    };
    let (fifth, sixth) = (pointer(walker, 4), pointer(walker, 5));
    let mut is_bitmap = |at: u64| walker.words.word(at) == Some(arena.slices / CHUNK);
    if let Some(at) = fifth.filter(|at| is_bitmap(*at)) {
        return Some((at, None));
    }
    let at = sixth.filter(|at| is_bitmap(*at))?;
    Some((at, fifth))
}

/// Decides the size of records: most of them must be valid.
fn stride<M: Memory>(
    walker: &mut Walker<'_, '_, M>,
    arena: &Arena,
    at: u64,
    pages: &SliceBitmap,
) -> u64 {
    let some: Vec<u64> =
        (arena.info..arena.slices).filter(|slice| pages.has(*slice)).take(DECIDING).collect();
    let sound = |walker: &mut Walker<'_, '_, M>, stride: u64| {
        let is_sound = |slice: &&u64| {
            let blocks = arena.at + **slice * SLICE..arena.at + arena.slices * SLICE;
            page::Page::read(&mut walker.words, page::V3, at + stride * **slice, &blocks, None)
                .is_some()
        };
        some.iter().filter(is_sound).count()
    };
    STRIDES.into_iter().max_by_key(|stride| sound(walker, *stride)).unwrap_or(STRIDES[0])
}

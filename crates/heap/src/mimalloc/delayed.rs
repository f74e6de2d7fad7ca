//! The blocks that other threads have freed, and that wait in a list of the heap whose thread
//! allocated them (version 2, `thread_delayed_free`).
//!
//! The first block that another thread frees in a full page goes into that list, the following ones
//! into the list of the page (`mi_free_block_delayed_mt`). So a page with one block is only there.
//! Builds that encode the links of free blocks (`MI_ENCODE_FREELIST`) encode this list as well: its
//! links then lead out of the heap, and the list is left out.

use std::collections::BTreeMap;
use std::ops::Range;

use super::find::{Place, SLICES, Segment};
use super::page;
use super::segment::LONG_STRIDE;
use crate::memory::Memory;
use crate::scattered::Scattered;

/// Maximum number of heaps, and of blocks in their lists together: a damaged heap has any.
const MAX_HEAPS: usize = 4 << 10;
const MAX_BLOCKS: usize = 1 << 20;
/// Possible places of the head of the list in a heap (`mi_heap_t`), in bytes: from 2.1.4 on, and
/// before, after the table of pages. The ID of the thread follows.
const HEADS: [u64; 2] = [8, 2840];

/// Returns the blocks in the lists of all heaps, in order. `areas` are mimalloc's addresses, in
/// order and disjoint.
pub(super) fn blocks<M: Memory>(
    words: &mut Scattered<'_, M>,
    places: &[Place],
    areas: &[Range<u64>],
) -> Vec<u64> {
    let mut heaps = BTreeMap::new();
    for place in places {
        if let Place::Segment(segment) = place {
            add_heaps(words, segment, &mut heaps);
        }
    }
    let mut blocks = Vec::new();
    for (heap, thread) in heaps {
        let before = blocks.len();
        if list(words, heap, thread, areas, &mut blocks).is_none() {
            blocks.truncate(before);
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Adds the heaps of the pages of a segment, each with the ID of its thread.
fn add_heaps<M: Memory>(
    words: &mut Scattered<'_, M>,
    segment: &Segment,
    heaps: &mut BTreeMap<u64, u64>,
) {
    let fields = if segment.stride == LONG_STRIDE { page::V2 } else { page::V2_SHORT };
    let thread = words.word(segment.at + segment.slices_at - 8).unwrap_or(0);
    let mut slice = 0;
    while slice < SLICES {
        let record = segment.at + segment.slices_at + segment.stride * slice;
        let count = words.word(record).map(|word| word & 0xffff_ffff);
        let Some(count @ 1..=SLICES) = count else { return };
        // The first span describes the segment. A free span has no heap.
        let heap = if slice == 0 { None } else { fields.heap(words, record) };
        if let Some(heap) = heap.filter(|heap| *heap != 0 && heap.is_multiple_of(8))
            && heaps.len() < MAX_HEAPS
        {
            heaps.insert(heap, thread);
        }
        slice += count;
    }
}

/// Adds the blocks in the list of a heap. Returns `None` if an entry of the list cannot be a block.
fn list<M: Memory>(
    words: &mut Scattered<'_, M>,
    heap: u64,
    thread: u64,
    areas: &[Range<u64>],
    blocks: &mut Vec<u64>,
) -> Option<()> {
    let is_head = |place: &u64| {
        let id = heap.checked_add(place + 8).and_then(|at| words.word(at));
        thread != 0 && id == Some(thread)
    };
    let head = HEADS.into_iter().find(is_head)?;
    let mut block = words.word(heap + head)?;
    while block != 0 {
        let area = areas.get(areas.partition_point(|area| area.end <= block))?;
        if !area.contains(&block) || !block.is_multiple_of(8) || blocks.len() >= MAX_BLOCKS {
            return None;
        }
        blocks.push(block);
        block = words.word(block)?;
    }
    Some(())
}

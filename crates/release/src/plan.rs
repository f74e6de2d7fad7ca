//! Translates the free pages that a walk finds into operations of the code in the target.

use std::collections::HashSet;

use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{FreeKind, FreePages, Layout, WalkedArena};

use crate::stub::numbers::{OP_CHUNK, OP_CONSOLIDATE, OP_TOP};
use crate::stub::{MAX_OPS, Op, PAGES_PER_OP};

/// Size of a full batch, in bytes: small enough that most of its ranges are still free when it runs.
const BATCH_BYTES: u64 = 16 << 20;

/// Operations that are collected until they make a batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) ops: Vec<Op>,
    bytes: u64,
    /// Pages that are already in an operation of this pass: a walk may find them twice.
    seen: HashSet<u64>,
}

impl Batch {
    /// Adds the resident pages of a free range, in parts that one lock hold may drop.
    pub(crate) fn add(&mut self, found: &FreePages, memory: &impl Memory) {
        let page = memory.page_bytes();
        let max_bytes = PAGES_PER_OP * page;
        let is_all = found.resident_bytes == found.pages.end - found.pages.start;
        let runs =
            if is_all { vec![found.pages.clone()] } else { memory.resident(found.pages.clone()) };
        let kind = match found.kind {
            FreeKind::Chunk => OP_CHUNK,
            FreeKind::Top => OP_TOP,
        };
        let size = found.chunk.end - found.chunk.start;
        for run in runs {
            let mut from = run.start.max(found.pages.start);
            let end = run.end.min(found.pages.end);
            while from < end {
                let bytes = (end - from).min(max_bytes);
                if self.seen.insert(from) {
                    let (arena, chunk) = (found.arena, found.chunk.start);
                    self.ops.push(Op { arena, chunk, size, from, bytes, kind });
                    self.bytes += bytes;
                }
                from += bytes;
            }
        }
    }

    /// Returns whether it is time to run it.
    pub(crate) fn is_full(&self) -> bool {
        self.ops.len() >= MAX_OPS || self.bytes >= BATCH_BYTES
    }

    /// Takes the collected operations.
    pub(crate) fn take(&mut self) -> Vec<Op> {
        self.bytes = 0;
        std::mem::take(&mut self.ops)
    }

    /// Starts a new pass.
    pub(crate) fn start_pass(&mut self) {
        self.seen.clear();
        self.take();
    }
}

/// Returns the operations that consolidate the chunks in an arena's fast bins with their neighbours.
pub(crate) fn consolidations(arena: &WalkedArena, layout: &Layout) -> Vec<Op> {
    /// Size of the chunks in the first fast bin, in bytes.
    const MIN_CHUNK_BYTES: u64 = 32;
    let bins = layout.fast_bins(arena.address).into_iter().flat_map(|bins| bins.step_by(8));
    bins.enumerate()
        .map(|(class, bin)| Op {
            arena: arena.address,
            chunk: bin,
            size: MIN_CHUNK_BYTES + class as u64 * 16,
            from: 0,
            // More chunks may have been freed since, but not without limit.
            bytes: arena.tally.fast_count * 2 + 1000,
            kind: OP_CONSOLIDATE,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_heap::memory::Saved;

    fn found(pages: std::ops::Range<u64>, resident_bytes: u64) -> FreePages {
        let chunk = pages.start - 64..pages.end + 32;
        FreePages { arena: 0x10, kind: FreeKind::Chunk, chunk, pages, resident_bytes }
    }

    #[test]
    fn no_operation_drops_more_than_one_lock_hold_may() {
        let pages = 0x10_0000..0x10_0000 + 1000 * 4096;
        let mut batch = Batch::default();
        batch.add(&found(pages.clone(), 1000 * 4096), &Saved::default());
        let ops = batch.take();
        assert!(ops.iter().all(|op| op.bytes <= PAGES_PER_OP * 4096));
        assert_eq!(ops.iter().map(|op| op.bytes).sum::<u64>(), 1000 * 4096);
        assert!(ops.windows(2).all(|two| two[0].from + two[0].bytes == two[1].from));
        assert_eq!(ops.last().map(|op| op.from + op.bytes), Some(pages.end));
    }

    #[test]
    fn only_resident_pages_are_dropped_and_each_once_a_pass() {
        let memory = Saved { blocks: vec![(0x2000, vec![0; 0x1000]), (0x5000, vec![0; 0x2000])] };
        let mut batch = Batch::default();
        batch.add(&found(0x2000..0x6000, 0x2000), &memory);
        batch.add(&found(0x2000..0x6000, 0x2000), &memory);
        let dropped: Vec<_> = batch.take().iter().map(|op| (op.from, op.bytes)).collect();
        assert_eq!(dropped, [(0x2000, 0x1000), (0x5000, 0x1000)]);
        batch.start_pass();
        batch.add(&found(0x2000..0x6000, 0x2000), &memory);
        assert_eq!(batch.take().len(), 2);
    }
}

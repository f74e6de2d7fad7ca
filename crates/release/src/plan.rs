//! What is given back: ranges that a walk has come by, as acts of the code in the target.

use std::collections::HashSet;

use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{Arena, FreeKind, FreePages, Layout};

use crate::stub::numbers::{OP_CHUNK, OP_JOIN, OP_TOP};
use crate::stub::{MOST_OPS, Op, PAGES_PER_OP};

/// A batch is done when it holds so many bytes: what it names is then still as it was seen.
const BATCH_BYTES: u64 = 16 << 20;

/// Acts that are collected until they make a batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) ops: Vec<Op>,
    bytes: u64,
    /// Pages that were named in this pass: a walk may come by them twice.
    named: HashSet<u64>,
}

impl Batch {
    /// Adds what a walk has come by: its resident pages, in parts that one hold of the lock may drop.
    pub(crate) fn add(&mut self, found: &FreePages, memory: &impl Memory) {
        let page = memory.page_bytes();
        let most = PAGES_PER_OP * page;
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
                let bytes = (end - from).min(most);
                if self.named.insert(from) {
                    let (arena, chunk) = (found.arena, found.chunk.start);
                    self.ops.push(Op { arena, chunk, size, from, bytes, kind });
                    self.bytes += bytes;
                }
                from += bytes;
            }
        }
    }

    /// Whether it is time to have it done.
    pub(crate) fn is_full(&self) -> bool {
        self.ops.len() >= MOST_OPS || self.bytes >= BATCH_BYTES
    }

    /// Takes what has been collected.
    pub(crate) fn take(&mut self) -> Vec<Op> {
        self.bytes = 0;
        std::mem::take(&mut self.ops)
    }

    /// Begins a pass anew.
    pub(crate) fn begin_pass(&mut self) {
        self.named.clear();
        self.take();
    }
}

/// What joins the blocks in an arena's fast bins with their neighbours.
pub(crate) fn consolidations(arena: &Arena, layout: &Layout) -> Vec<Op> {
    /// A fast bin holds at most so large chunks, in bytes, whatever its settings (`MAX_FAST_SIZE`).
    const SMALLEST: u64 = 32;
    let bins = layout.fast_bins(arena.address).into_iter().flat_map(|bins| bins.step_by(8));
    bins.enumerate()
        .map(|(class, bin)| Op {
            arena: arena.address,
            chunk: bin,
            size: SMALLEST + class as u64 * 16,
            from: 0,
            // Others may have come since, but not without end.
            bytes: arena.tally.fast_count * 2 + 1000,
            kind: OP_JOIN,
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
    fn no_act_is_larger_than_what_one_hold_of_a_lock_may_drop() {
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
    fn only_resident_pages_are_named_and_each_once_a_pass() {
        let memory = Saved { blocks: vec![(0x2000, vec![0; 0x1000]), (0x5000, vec![0; 0x2000])] };
        let mut batch = Batch::default();
        batch.add(&found(0x2000..0x6000, 0x2000), &memory);
        batch.add(&found(0x2000..0x6000, 0x2000), &memory);
        let named: Vec<_> = batch.take().iter().map(|op| (op.from, op.bytes)).collect();
        assert_eq!(named, [(0x2000, 0x1000), (0x5000, 0x1000)]);
        batch.begin_pass();
        batch.add(&found(0x2000..0x6000, 0x2000), &memory);
        assert_eq!(batch.take().len(), 2);
    }
}

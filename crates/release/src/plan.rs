//! Translates the free pages that a walk finds into operations of the code in the target.

use std::collections::HashSet;
use std::ops::Range;

use lowtide_heap::droppable_heap::FreeRange;
use lowtide_heap::memory::Memory;

use crate::error::Abort;
use crate::huge::HUGE;
use crate::keep_huge::{HugePageKeeper, Part};
use crate::releasable;
use crate::stub::contract::MAX_CHECKS;
use crate::stub::{BYTES_PER_OP, MAX_SLOTS, Op};

/// Size of a full batch, in bytes: small enough that most of its ranges are still free when it
/// runs.
const BATCH_BYTES: u64 = 16 << 20;
/// Size of the part of a free range whose resident pages are read at once, in bytes.
const SLICE_BYTES: u64 = 16 << 20;

/// A function that runs the operations of a full batch.
pub(crate) type Submit<'s> = dyn FnMut(&[Op]) -> Result<(), Abort> + 's;

/// Operations that are collected until the batch is full. The size of a batch does not depend on
/// the size of the heap.
#[derive(Default)]
pub(crate) struct Batch<'m> {
    ops: Vec<Op>,
    /// Number of their slots in the table.
    slots: usize,
    bytes: u64,
    /// Start addresses of the operations of this batch.
    starts: HashSet<u64>,
    /// Start addresses of the operations of the previous batch, which may still be running. A walk
    /// may find pages a second time, and they are resident until their operation has run.
    last_starts: HashSet<u64>,
    /// Present if huge pages are left whole.
    keeper: Option<HugePageKeeper<'m>>,
    /// Free bytes that were left alone in this pass because they are parts of huge pages.
    kept_bytes: u64,
}

impl<'m> Batch<'m> {
    /// Returns a batch that drops parts of huge pages unless there is a keeper.
    pub(crate) fn new(keeper: Option<HugePageKeeper<'m>>) -> Self {
        Self { keeper, ..Self::default() }
    }

    /// Adds the resident pages of a free range, in parts that one lock hold can drop. Submits each
    /// full batch.
    pub(crate) fn add(
        &mut self,
        found: &FreeRange,
        memory: &impl Memory,
        submit: &mut Submit<'_>,
    ) -> Result<(), Abort> {
        let all = found.pages();
        let is_all = found.resident_bytes() == all.end - all.start;
        let (mut at, mut kept_bytes) = (all.start, 0);
        while at < all.end {
            let end = all.end.min((at / SLICE_BYTES + 1).saturating_mul(SLICE_BYTES));
            let parts = match &mut self.keeper {
                Some(keeper) => keeper.parts(&(at..end)),
                None => vec![Part { pages: at..end, is_huge: false }],
            };
            kept_bytes += end - at;
            for Part { pages, is_huge } in parts {
                kept_bytes -= pages.end - pages.start;
                let max_bytes = if is_huge { HUGE } else { BYTES_PER_OP };
                let runs =
                    if is_all { vec![pages.clone()] } else { memory.resident(pages.clone()) };
                for run in runs {
                    let run = run.start.max(pages.start)..run.end.min(pages.end);
                    self.add_run(found, run, max_bytes, submit)?;
                }
            }
            at = end;
        }
        self.kept_bytes += kept_bytes.min(found.resident_bytes());
        Ok(())
    }

    /// Adds resident pages of a free range.
    fn add_run(
        &mut self,
        found: &FreeRange,
        run: Range<u64>,
        max_bytes: u64,
        submit: &mut Submit<'_>,
    ) -> Result<(), Abort> {
        /// Slots of the largest operation.
        const MAX_OP_SLOTS: usize = 1 + (MAX_CHECKS as usize).div_ceil(2);
        let mut from = run.start;
        while from < run.end {
            let bytes = (run.end - from).min(max_bytes);
            if !self.last_starts.contains(&from) && self.starts.insert(from) {
                let op = releasable::op(found, from, bytes);
                self.slots += op.slot_count();
                self.ops.push(op);
                self.bytes += bytes;
            }
            if self.slots + MAX_OP_SLOTS > MAX_SLOTS || self.bytes >= BATCH_BYTES {
                self.flush(submit)?;
            }
            from += bytes;
        }
        Ok(())
    }

    /// Submits the operations that were collected so far.
    pub(crate) fn flush(&mut self, submit: &mut Submit<'_>) -> Result<(), Abort> {
        // Consecutive operations under the same lock share lock holds.
        self.ops.sort_by_key(Op::guard);
        let submitted = submit(&self.ops);
        self.ops.clear();
        (self.slots, self.bytes) = (0, 0);
        std::mem::swap(&mut self.starts, &mut self.last_starts);
        self.starts.clear();
        submitted
    }

    /// Returns how many free bytes were left alone in this pass because they are parts of huge
    /// pages.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Starts a new pass, when all operations have run.
    pub(crate) fn start_pass(&mut self) {
        let mut keeper = self.keeper.take();
        keeper.iter_mut().for_each(HugePageKeeper::forget);
        *self = Self::new(keeper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(op: &Op) -> u64 {
        op.pages().end - op.pages().start
    }
    use crate::stub::PAGES_PER_HOLD;
    use lowtide_heap::memory::Saved;
    use lowtide_heap::ptmalloc::{FreeKind, FreePages};

    fn found(pages: std::ops::Range<u64>, resident_bytes: u64) -> FreeRange {
        let chunk = pages.start - 64..pages.end + 32;
        FreeRange::Chunk(FreePages {
            arena: 0x10,
            kind: FreeKind::Chunk,
            chunk,
            pages,
            resident_bytes,
        })
    }

    /// Collects the operations of free ranges that are found one after the other.
    fn operations(batch: &mut Batch<'_>, found: &[FreeRange], memory: &Saved) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut submit = |part: &[Op]| {
            assert!(part.iter().map(Op::slot_count).sum::<usize>() <= MAX_SLOTS);
            ops.extend_from_slice(part);
            Ok(())
        };
        found.iter().for_each(|found| batch.add(found, memory, &mut submit).unwrap());
        batch.flush(&mut submit).unwrap();
        ops
    }

    #[test]
    fn operations_cover_a_range_without_exceeding_their_maximum_size() {
        for count in [1000, 100_000] {
            let pages = 0x10_0000..0x10_0000 + count * 4096;
            let found = found(pages.clone(), count * 4096);
            let ops = operations(&mut Batch::default(), &[found], &Saved::default());
            assert!(ops.iter().all(|op| size(op) <= BYTES_PER_OP));
            assert_eq!(ops.iter().map(size).sum::<u64>(), count * 4096);
            assert!(ops.windows(2).all(|two| two[0].pages().end == two[1].pages().start));
            assert_eq!(ops.last().map(|op| op.pages().end), Some(pages.end));
        }
    }

    #[test]
    fn only_resident_pages_are_dropped_and_none_twice_while_pending() {
        let memory = Saved::new(vec![(0x2000, vec![0; 0x1000]), (0x5000, vec![0; 0x2000])]);
        let mut batch = Batch::default();
        let free = || found(0x2000..0x6000, 0x2000);
        let ops = operations(&mut batch, &[free(), free()], &memory);
        let dropped: Vec<_> = ops.iter().map(|op| (op.pages().start, size(op))).collect();
        assert_eq!(dropped, [(0x2000, 0x1000), (0x5000, 0x1000)]);
        // They may still be running.
        assert_eq!(operations(&mut batch, &[free()], &memory), []);
        batch.start_pass();
        assert_eq!(operations(&mut batch, &[free()], &memory).len(), 2);
    }

    #[test]
    fn a_huge_page_is_dropped_by_one_operation_or_not_at_all() {
        let huge = HUGE..4 * HUGE;
        let keeper = HugePageKeeper::new(|_| Some(vec![huge.clone()]));
        let mut batch = Batch::new(Some(keeper));
        let free = found(HUGE - 4096..3 * HUGE + 8192, 2 * HUGE + 12288);
        let ops = operations(&mut batch, &[free], &Saved::default());
        let dropped: Vec<_> = ops.iter().map(|op| (op.pages().start, size(op))).collect();
        assert_eq!(dropped, [(HUGE - 4096, 4096), (HUGE, HUGE), (2 * HUGE, HUGE)]);
        assert!(dropped.iter().all(|(_, bytes)| *bytes <= PAGES_PER_HOLD * 4096));
        assert_eq!(batch.kept_bytes(), 8192);
        batch.start_pass();
        assert_eq!(batch.kept_bytes(), 0);
    }
}

//! The passes of a release over a heap. An [`Operator`] runs the operations.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_heap::droppable_heap::FreeRange;
use lowtide_heap::ptmalloc::{self, HeapMapping, Links};
use lowtide_probe::memory::ProcessMemory;

use crate::error::Abort;
use crate::keep_huge::HugePageKeeper;
use crate::plan::Batch;
use crate::priority::end_preference;
use crate::releasable::ReleasableHeap;
use crate::stub::{Op, StubCounts};

/// Minimum gain of a release or of a further pass, in bytes.
pub(crate) const MIN_GAIN_BYTES: u64 = 64 << 10;
/// Maximum time during which further passes start while the program keeps allocating and freeing.
const PASSES_TIMEOUT: Duration = Duration::from_secs(5);
/// Divisor of the total gain: a pass that gains less than this part is the last one.
const LAST_PASS_DIVISOR: u64 = 100;

/// Runs operations under the locks of the arenas.
pub(crate) trait Operator {
    /// Consolidates fast bins. `links` is the encoding of their lists.
    fn consolidate(&mut self, ops: &[Op], links: Links) -> Result<(), Abort>;

    /// Submits operations. Some of them may still be running when this returns, so that the walk
    /// continues meanwhile.
    fn submit(&mut self, ops: &[Op]) -> Result<(), Abort>;

    /// Waits until all operations are done.
    fn finish(&mut self) -> Result<(), Abort>;

    /// Returns the counts, which include all operations after [`Operator::finish`].
    fn counts(&self) -> &StubCounts;
}

/// The passes of one release.
pub(crate) struct Passes<'a> {
    /// The memory of the process.
    pub(crate) memory: &'a ProcessMemory,
    /// Its heap.
    pub(crate) heap: &'a ReleasableHeap,
    /// Reads the mappings that may contain a part of the heap.
    pub(crate) mappings: &'a dyn Fn() -> Result<Vec<HeapMapping>, Abort>,
    /// The free ranges of an earlier walk, which are dropped first, and how many bytes were free
    /// then.
    pub(crate) earlier: (&'a [FreeRange], u64),
    /// Present if huge pages are left whole.
    pub(crate) keeper: Option<HugePageKeeper<'a>>,
    /// Ends the release early when it is set.
    pub(crate) interrupt: &'a AtomicBool,
    /// Called with all pages that are about to be dropped.
    pub(crate) dropping: &'a mut dyn FnMut(&Range<u64>),
    /// Number of passes so far.
    pub(crate) count: &'a mut u64,
}

impl Passes<'_> {
    /// Makes passes until one gains little. The first pass starts with `consolidations`. If
    /// the ranges of an earlier walk return at least half of what was free then, there is no other
    /// pass.
    ///
    /// # Errors
    /// Fails if the operator fails, the mappings cannot be read, or on an interrupt.
    pub(crate) fn run(
        mut self,
        operator: &mut dyn Operator,
        mut consolidations: Vec<Op>,
    ) -> Result<(), Abort> {
        let begin = Instant::now();
        let mut batch = Batch::new(self.keeper.take());
        if self.drop_earlier(&mut batch, operator)? {
            return Ok(());
        }
        let memory = self.memory.until(self.interrupt);
        let mut seen_before = u64::MAX;
        loop {
            // If the lists do not show how their links are encoded, they are left as they are.
            if !consolidations.is_empty()
                && let Some(layout) = self.heap.ptmalloc()
                && let Some(links) = ptmalloc::fast_links(self.memory, layout)
            {
                operator.consolidate(&consolidations, links)?;
            }
            let before = operator.counts().clone();
            let mappings = (self.mappings)()?;
            let mut aborted = None;
            batch.start_pass();
            let mut submit = |ops: &[Op]| {
                ops.iter().for_each(|op| (self.dropping)(&op.pages()));
                operator.submit(ops)
            };
            let sums = self.heap.walk(&memory, &mappings, &mut |found| {
                if aborted.is_none() {
                    aborted = batch.add(found, self.memory, &mut submit).err();
                }
            })?;
            aborted.map_or(Ok(()), Err)?;
            batch.flush(&mut submit)?;
            operator.finish()?;
            *self.count += 1;
            let after = operator.counts();
            let returned = after.returned_bytes;
            let gained = returned - before.returned_bytes;
            let is_whole = after.skipped + after.busy == before.skipped + before.busy;
            // A pass sees memory that earlier passes have left, and memory that was freed since. If
            // their sum does not shrink, the program reuses returned memory, and further passes are
            // useless.
            let seen = sums.release_bytes.saturating_sub(batch.kept_bytes());
            let is_steady = seen > seen_before / 10 * 9;
            let is_little = gained < MIN_GAIN_BYTES.max(returned / LAST_PASS_DIVISOR);
            consolidations = sums.consolidations;
            // All memory that this pass saw is returned: another pass would only find memory that
            // was freed since.
            let is_all = is_whole && gained >= seen && consolidations.is_empty();
            if is_all || is_little || is_steady || begin.elapsed() > PASSES_TIMEOUT {
                return Ok(());
            }
            seen_before = seen;
        }
    }

    /// Drops the ranges of an earlier walk that are still free. Returns whether it returned at
    /// least half of what was free then.
    fn drop_earlier(
        &mut self,
        batch: &mut Batch<'_>,
        operator: &mut dyn Operator,
    ) -> Result<bool, Abort> {
        let (ranges, free_bytes) = self.earlier;
        if ranges.is_empty() {
            return Ok(false);
        }
        let mut submit = |ops: &[Op]| {
            ops.iter().for_each(|op| (self.dropping)(&op.pages()));
            operator.submit(ops)
        };
        for found in ranges {
            batch.add(found, self.memory, &mut submit)?;
        }
        batch.flush(&mut submit)?;
        operator.finish()?;
        *self.count += 1;
        // What follows is not as urgent.
        end_preference();
        Ok(operator.counts().returned_bytes >= free_bytes / 2)
    }
}

//! Accounts for chunks in order of address.
//!
//! The effect of a trim follows `mtrim` and `systrim` of `malloc/malloc.c`: it returns whole pages
//! inside of free chunks, except for the page with a chunk's own head, and the end of the main
//! heap. The pages inside of a chunk stay if they are locked: `madvise` fails. The end of the main
//! heap is unmapped, locked or not.

use std::ops::Range;

use super::chunk::{LIST_BYTES, SMALLEST};
use super::tally::{Class, Tally};
use crate::memory::Memory;
use crate::residency::Residency;

/// The treatment of an arena's top chunk by a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopRule {
    /// A trim moves the end of the main heap down, by a multiple of this number of bytes.
    Trimmed(u64),
    /// A trim does not shrink it: the top chunk of a thread heap, or of a main heap in several
    /// parts.
    Kept,
}

/// The sums over the part of a stretch that was walked so far.
#[derive(Debug, Clone)]
pub(super) struct StretchTally {
    pub(super) tally: Tally,
    /// Whether the last chunk is free and in a bin.
    pub(super) last_is_binned: bool,
    /// The run of free chunks that ends at the current position.
    free: Option<Range<u64>>,
    /// Whether the last of them is in a fast bin.
    last_is_fast: bool,
    page: u64,
}

impl StretchTally {
    pub(super) fn new(page: u64) -> Self {
        Self {
            tally: Tally::default(),
            last_is_binned: false,
            free: None,
            last_is_fast: false,
            page,
        }
    }

    /// Adds a free chunk that is in a bin.
    #[inline]
    pub(super) fn binned(&mut self, at: u64, size: u64) {
        self.tally.free_count += 1;
        self.tally.free_bytes += size;
        self.tally.free_classes[Class::index_of(size)].count(size);
        self.extend(at, size);
        self.last_is_fast = false;
        self.last_is_binned = true;
    }

    /// Adds a free chunk that is in a fast bin.
    #[inline]
    pub(super) fn fast(&mut self, at: u64, size: u64) {
        self.tally.fast_count += 1;
        self.tally.fast_bytes += size;
        self.extend(at, size);
        self.last_is_fast = true;
        self.last_is_binned = false;
    }

    /// Adds a chunk in use.
    #[inline]
    pub(super) fn used<M: Memory>(&mut self, at: u64, size: u64, residency: &mut Residency<'_, M>) {
        self.close(residency);
        self.tally.used_count += 1;
        self.tally.used_bytes += size;
        self.tally.used_classes[Class::index_of(size)].count(size);
        self.tally.resident.used_bytes += residency.bytes(at..at + size);
        self.last_is_binned = false;
    }

    #[inline]
    fn extend(&mut self, at: u64, size: u64) {
        match &mut self.free {
            Some(run) => run.end = at + size,
            None => self.free = Some(at..at + size),
        }
    }

    /// Adds the fenceposts at the end of a part.
    pub(super) fn fence<M: Memory>(&mut self, at: Range<u64>, residency: &mut Residency<'_, M>) {
        self.close(residency);
        self.tally.resident.metadata_bytes += residency.bytes(at);
        self.last_is_binned = false;
    }

    /// Adds memory in the middle of the heap that the program got from `brk` itself.
    pub(super) fn foreign<M: Memory>(&mut self, at: Range<u64>, residency: &mut Residency<'_, M>) {
        self.tally.used_bytes += at.end - at.start;
        self.tally.resident.used_bytes += residency.bytes(at);
    }

    /// Adds memory that cannot be walked.
    pub(super) fn unwalked<M: Memory>(&mut self, at: Range<u64>, residency: &mut Residency<'_, M>) {
        self.tally.unwalked_bytes += at.end - at.start;
        self.tally.resident.unwalked_bytes += residency.bytes(at);
    }

    /// Accounts for the free chunks that end at the current position. Chunks in fast bins are
    /// consolidated with their neighbours before a trim inspects them (`malloc_consolidate`), so
    /// they count as one.
    #[inline]
    pub(super) fn close<M: Memory>(&mut self, residency: &mut Residency<'_, M>) {
        if let Some(run) = self.free.take() {
            self.close_run(run, residency);
        }
    }

    fn close_run<M: Memory>(&mut self, run: Range<u64>, residency: &mut Residency<'_, M>) {
        let tally = &mut self.tally;
        tally.largest_free_bytes = tally.largest_free_bytes.max(run.end - run.start);
        // The page that only the head of this chunk retains, if there is one, and the pages after
        // it. That page is free, and no release returns it until the block before it is freed.
        let own = run.start.next_multiple_of(self.page);
        let last = run.end - run.end % self.page;
        if own >= last {
            tally.resident.fragmented_bytes += residency.bytes(run);
            return;
        }
        let inner = (run.start + LIST_BYTES).next_multiple_of(self.page).min(last);
        tally.resident.fragmented_bytes += residency.bytes(run.start..inner);
        let free = residency.free_bytes(inner..last);
        tally.resident.reclaimable_bytes += free.droppable;
        tally.resident.locked_bytes += free.locked;
        tally.trim_bytes += free.droppable;
        tally.resident.fragmented_bytes += residency.bytes(last..run.end);
    }

    /// Accounts for the top chunk, with the free chunks before it if they would be consolidated
    /// with it.
    pub(super) fn close_at_top<M: Memory>(
        &mut self,
        top: Range<u64>,
        rule: TopRule,
        residency: &mut Residency<'_, M>,
    ) {
        self.tally.top_bytes += top.end - top.start;
        let joined = self.free.take_if(|_| self.last_is_fast);
        self.close(residency);
        let all = joined.map_or(top.start, |run| run.start)..top.end;
        // `systrim` leaves the smallest chunk and one byte more.
        let size = all.end - all.start;
        let given = match rule {
            TopRule::Trimmed(unit) => {
                let most = size.saturating_sub(SMALLEST + 1);
                most - most % unit.max(self.page)
            }
            TopRule::Kept => 0,
        };
        let given_from = all.end - given;
        // A release by lowtide also returns all whole pages after the head of the top chunk.
        let inner = (all.start + LIST_BYTES).next_multiple_of(self.page).min(given_from);
        let last = (all.end - all.end % self.page).min(given_from).max(inner);
        let head = residency.bytes(all.start..inner);
        let more = residency.free_bytes(inner..last);
        let rest = residency.bytes(last..given_from);
        let trimmed = residency.free_bytes(given_from..all.end);
        let tally = &mut self.tally;
        tally.trim_bytes += trimmed.droppable + trimmed.locked;
        tally.resident.reclaimable_bytes += trimmed.droppable + more.droppable;
        tally.resident.locked_bytes += trimmed.locked + more.locked;
        tally.resident.fragmented_bytes += head + rest;
    }
}

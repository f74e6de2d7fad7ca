//! The heaps that a release can act on: the heap of glibc, chunk by chunk, and the heaps of other
//! allocators, where each free range has a guard.

use std::ops::Range;

use lowtide_heap::droppable::{self, Droppable, Droppers, Guard, Holds};
use lowtide_heap::guarded::GuardedHeap;
use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{self, FreeKind, FreePages, Heap, HeapMapping, Layout, WalkedArena};

use crate::error::Abort;
use crate::purge::Purge;
use crate::refusal::Refusal;
use crate::stub::Code;
use crate::stub::contract::{CheckWords, Op};

/// A heap whose free pages can be dropped.
#[derive(Debug)]
pub(crate) enum ReleasableHeap {
    /// The heap of glibc.
    Ptmalloc(Layout),
    /// The heap of another allocator.
    Guarded(GuardedHeap),
    /// The heap of another allocator, whose own function returns the memory.
    Purged(Purge),
}

/// A free range that a walk has found.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// A range of the heap of glibc.
    Chunk(FreePages),
    /// A range of the heap of another allocator.
    Guarded(Droppable),
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(crate) struct WalkSums {
    /// Memory that a release would return, in bytes.
    pub(crate) release_bytes: u64,
    /// Free memory that is locked, which a release leaves alone, in bytes.
    pub(crate) locked_bytes: u64,
    /// Operations that consolidate free memory, and so let the next pass return more.
    pub(crate) consolidations: Vec<Op>,
}

impl ReleasableHeap {
    /// Returns the code that runs the operations on the heap.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Ptmalloc(_) => Code::PTMALLOC,
            Self::Guarded(_) | Self::Purged(_) => Code::GUARDED,
        }
    }

    /// Returns which threads may drop its free pages.
    pub(crate) fn droppers(&self) -> Droppers {
        match self {
            Self::Guarded(heap) => heap.droppers(),
            Self::Ptmalloc(_) | Self::Purged(_) => Droppers::Any,
        }
    }

    /// Returns the locations of the arenas of glibc; `None` for another allocator.
    pub(crate) fn ptmalloc(&self) -> Option<&Layout> {
        match self {
            Self::Ptmalloc(layout) => Some(layout),
            Self::Guarded(_) | Self::Purged(_) => None,
        }
    }

    /// Walks the heap, and passes each free range to `visit`.
    ///
    /// # Errors
    /// Refuses if the free ranges are no longer guarded.
    pub(crate) fn walk(
        &self,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(&Found),
    ) -> Result<WalkSums, Abort> {
        match self {
            Self::Ptmalloc(layout) => {
                let heap = ptmalloc::walk_and_visit(memory, layout, mappings, &mut |found| {
                    visit(&Found::Chunk(found));
                });
                let consolidations = worthwhile_consolidations(&heap, layout);
                let locked_bytes = heap.owners().locked_bytes;
                Ok(WalkSums { release_bytes: heap.release_bytes(), locked_bytes, consolidations })
            }
            Self::Guarded(heap) => {
                let sums = heap.each_droppable(memory, mappings, &mut |found| {
                    visit(&Found::Guarded(found));
                });
                let sums =
                    sums.map_err(|why| Refusal::Unguarded { name: heap.kind().to_string(), why })?;
                let (release_bytes, locked_bytes) = (sums.guarded_bytes, sums.locked_bytes);
                Ok(WalkSums { release_bytes, locked_bytes, ..WalkSums::default() })
            }
            // The allocator decides which ranges it returns.
            Self::Purged(purge) => {
                let walked = purge.layout.walk(memory, mappings, None);
                let walked = walked.map_err(|_| Refusal::NoHeap)?;
                let release_bytes = walked.prediction.purge_bytes.unwrap_or(0);
                Ok(WalkSums { release_bytes, ..WalkSums::default() })
            }
        }
    }
}

impl Found {
    /// Returns the whole pages of the range.
    pub(crate) fn pages(&self) -> &Range<u64> {
        match self {
            Self::Chunk(found) => &found.pages,
            Self::Guarded(found) => &found.pages,
        }
    }

    /// Returns how many bytes of them are resident.
    pub(crate) fn resident_bytes(&self) -> u64 {
        match self {
            Self::Chunk(found) => found.resident_bytes,
            Self::Guarded(found) => found.resident_bytes,
        }
    }

    /// Returns the same range, whose resident pages are read again when it is used.
    pub(crate) fn with_unknown_residency(mut self) -> Self {
        match &mut self {
            Self::Chunk(found) => found.resident_bytes = 0,
            Self::Guarded(found) => found.resident_bytes = 0,
        }
        self
    }

    /// Returns the operation that drops a part of the range.
    pub(crate) fn op(&self, from: u64, bytes: u64) -> Op {
        match self {
            Self::Chunk(found) => match found.kind {
                FreeKind::Chunk => Op::Chunk {
                    arena: found.arena,
                    chunk: found.chunk.start,
                    chunk_bytes: found.chunk.end - found.chunk.start,
                    from,
                    bytes,
                },
                FreeKind::Top => Op::Top { arena: found.arena, from, bytes },
            },
            Self::Guarded(found) => guarded_op(found, from, bytes),
        }
    }
}

fn guarded_op(found: &Droppable, from: u64, bytes: u64) -> Op {
    let checks = found.checks.iter().map(encoded);
    match found.guard {
        Guard::Lock(lock) => Op::Locked { lock, checks: checks.collect(), from, bytes },
        Guard::MuslLock { lock, threads } => {
            Op::Musl { lock, threads, checks: checks.collect(), from, bytes }
        }
        Guard::OnlyThread => {
            Op::Musl { lock: 0, threads: 0, checks: checks.collect(), from, bytes }
        }
        Guard::Owner { thread, list } => {
            let blocks = list.map(|list| [list.head, list.start, list.end]);
            Op::Owned {
                thread,
                block: list.map_or(0, |list| list.block),
                checks: blocks.into_iter().chain(checks).collect(),
                from,
                bytes,
            }
        }
        Guard::Claim { word, base, slice_bytes, summary, summary_bits } => {
            let first = (from - base) / slice_bytes;
            let end = (from + bytes - base).div_ceil(slice_bytes);
            // At most 64 slices: all belong to one word.
            let bits = (u64::MAX >> (64 - (end - first).clamp(1, 64))) << (first % 64);
            let summary = [summary, summary_bits, 0];
            let checks = std::iter::once(summary).chain(checks).collect();
            Op::Claim { word, bits, checks, from, bytes }
        }
    }
}

/// Encodes a check.
fn encoded(check: &droppable::Check) -> CheckWords {
    let differs = u64::from(check.holds == Holds::Differs);
    [check.at | differs, check.mask, check.value]
}

/// Returns the operations that consolidate the chunks in an arena's fast bins with their
/// neighbours.
pub(crate) fn consolidations(arena: &WalkedArena, layout: &Layout) -> Vec<Op> {
    /// Size of the chunks in the first fast bin, in bytes.
    const MIN_CHUNK_BYTES: u64 = 32;
    let bins = layout.fast_bins(arena.address).into_iter().flat_map(|bins| bins.step_by(8));
    bins.enumerate()
        .map(|(class, bin)| Op::Consolidate {
            arena: arena.address,
            bin,
            chunk_bytes: MIN_CHUNK_BYTES + class as u64 * 16,
            // More chunks may have been freed since, but not without limit.
            max_chunks: arena.tally.fast_count * 2 + 1000,
        })
        .collect()
}

/// Returns the operations that consolidate the fast bins of every arena where this is worthwhile.
pub(crate) fn worthwhile_consolidations(heap: &Heap, layout: &Layout) -> Vec<Op> {
    let worth_it = heap.arenas.iter().filter(|arena| arena.is_worth_joining());
    worth_it.flat_map(|arena| consolidations(arena, layout)).collect()
}

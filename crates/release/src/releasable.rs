//! The heaps that a release can act on: the heap of glibc, chunk by chunk, and the heaps of other
//! allocators, where each free range has a guard.

use lowtide_heap::droppable::{self, Droppable, Droppers, Guard, Holds};
use lowtide_heap::droppable_heap::{DroppableHeap, FreeRange};
use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{FreeKind, Heap, HeapMapping, Layout, WalkedArena};

use crate::error::Abort;
use crate::purge::Purge;
use crate::refusal::Refusal;
use crate::stub::Code;
use crate::stub::contract::{CheckWords, Op};

/// A heap whose free memory can be returned.
#[derive(Debug)]
pub(crate) enum ReleasableHeap {
    /// Its free pages are dropped, range by range.
    Dropped(DroppableHeap),
    /// Its allocator's own function returns the memory.
    Purged(Purge),
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
        match self.ptmalloc() {
            Some(_) => Code::PTMALLOC,
            None => Code::GUARDED,
        }
    }

    /// Returns which threads may drop its free pages.
    pub(crate) fn droppers(&self) -> Droppers {
        match self {
            Self::Dropped(heap) => heap.droppers(),
            Self::Purged(_) => Droppers::Any,
        }
    }

    /// Returns the locations of the arenas of glibc; `None` for another allocator.
    pub(crate) fn ptmalloc(&self) -> Option<&Layout> {
        match self {
            Self::Dropped(DroppableHeap::Ptmalloc(layout)) => Some(layout),
            Self::Dropped(DroppableHeap::Guarded(_)) | Self::Purged(_) => None,
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
        visit: &mut dyn FnMut(&FreeRange),
    ) -> Result<WalkSums, Abort> {
        match self {
            Self::Dropped(heap) => {
                let sums = heap.walk(memory, mappings, visit);
                let sums =
                    sums.map_err(|why| Refusal::Unguarded { name: heap.kind().to_string(), why })?;
                let glibc = sums.ptmalloc.as_ref().zip(self.ptmalloc());
                Ok(WalkSums {
                    release_bytes: sums.release_bytes,
                    locked_bytes: sums.locked_bytes,
                    consolidations: glibc.map_or_else(Vec::new, |(heap, layout)| {
                        worthwhile_consolidations(heap, layout)
                    }),
                })
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

/// Returns the operation that drops a part of a free range.
pub(crate) fn op(found: &FreeRange, from: u64, bytes: u64) -> Op {
    match found {
        FreeRange::Chunk(found) => match found.kind {
            FreeKind::Chunk => Op::Chunk {
                arena: found.arena,
                chunk: found.chunk.start,
                chunk_bytes: found.chunk.end - found.chunk.start,
                from,
                bytes,
            },
            FreeKind::Top => Op::Top { arena: found.arena, from, bytes },
        },
        FreeRange::Guarded(found) => guarded_op(found, from, bytes),
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

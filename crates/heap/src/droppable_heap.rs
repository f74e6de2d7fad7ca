//! One interface to the free pages of all heaps that lowtide drops range by range.

use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;

use crate::droppable::{Droppable, Droppers, Unguarded};
use crate::guarded::GuardedHeap;
use crate::memory::Memory;
use crate::ptmalloc::{self, FreePages, Heap, HeapMapping, Layout};

/// A heap whose free pages can be dropped.
#[derive(Debug)]
pub enum DroppableHeap {
    /// The heap of glibc.
    Ptmalloc(Layout),
    /// The heap of another allocator.
    Guarded(GuardedHeap),
}

/// A free range that a walk has found.
#[derive(Debug, Clone)]
pub enum FreeRange {
    /// A range of the heap of glibc.
    Chunk(FreePages),
    /// A range of the heap of another allocator.
    Guarded(Droppable),
}

/// The sums of a walk.
#[derive(Debug)]
pub struct FreeSums {
    /// Memory that a release would return, in bytes.
    pub release_bytes: u64,
    /// Free memory that is locked, which a release leaves alone, in bytes.
    pub locked_bytes: u64,
    /// The walked heap, if it is glibc's.
    pub ptmalloc: Option<Heap>,
}

impl DroppableHeap {
    /// Returns the allocator.
    pub fn kind(&self) -> AllocatorKind {
        match self {
            Self::Ptmalloc(_) => AllocatorKind::Glibc,
            Self::Guarded(heap) => heap.kind(),
        }
    }

    /// Returns which threads may drop its free pages.
    pub fn droppers(&self) -> Droppers {
        match self {
            Self::Ptmalloc(_) => Droppers::Any,
            Self::Guarded(heap) => heap.droppers(),
        }
    }

    /// Walks the heap, and passes each free range to `visit`. `mappings` are those that may contain
    /// a part of the heap, in order of address.
    ///
    /// # Errors
    /// Fails with the reason if the ranges are no longer guarded. Those that were passed are free.
    pub fn walk(
        &self,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(&FreeRange),
    ) -> Result<FreeSums, Unguarded> {
        match self {
            Self::Ptmalloc(layout) => {
                let heap = ptmalloc::walk_and_visit(memory, layout, mappings, &mut |found| {
                    visit(&FreeRange::Chunk(found));
                });
                let locked_bytes = heap.owners().locked_bytes;
                let release_bytes = heap.release_bytes();
                Ok(FreeSums { release_bytes, locked_bytes, ptmalloc: Some(heap) })
            }
            Self::Guarded(heap) => {
                let sums = heap.each_droppable(memory, mappings, &mut |found| {
                    visit(&FreeRange::Guarded(found));
                })?;
                let (release_bytes, locked_bytes) = (sums.guarded_bytes, sums.locked_bytes);
                Ok(FreeSums { release_bytes, locked_bytes, ptmalloc: None })
            }
        }
    }
}

impl FreeRange {
    /// Returns the whole pages of the range.
    pub fn pages(&self) -> &Range<u64> {
        match self {
            Self::Chunk(found) => &found.pages,
            Self::Guarded(found) => &found.pages,
        }
    }

    /// Returns how many bytes of them are resident.
    pub fn resident_bytes(&self) -> u64 {
        match self {
            Self::Chunk(found) => found.resident_bytes,
            Self::Guarded(found) => found.resident_bytes,
        }
    }

    /// Returns the same range, whose resident pages are read again when it is used.
    #[must_use]
    pub fn with_unknown_residency(mut self) -> Self {
        match &mut self {
            Self::Chunk(found) => found.resident_bytes = 0,
            Self::Guarded(found) => found.resident_bytes = 0,
        }
        self
    }
}

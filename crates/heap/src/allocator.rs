//! What lowtide knows of an allocator whose heap it walks.
//!
//! To add one: a folder with a layout that implements [`Allocator`], and a variant of the two enums
//! that stand for any of them, `HeapLayout` and `Guards`. `ARCHITECTURE.md` has all steps.

use std::fmt::Debug;
use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Arena, Bin, HeapPrediction, Tunables};
use lowtide_model::ledger::Ledger;

use crate::blocks::Visitor;
use crate::droppable::{Droppable, Droppers, Sums, Unguarded};
use crate::memory::{ADDRESS_END, Memory};
use crate::ptmalloc::HeapMapping;
use crate::ranges::joined;

/// The addresses and the layout of the structures of an allocator's heap.
pub(crate) trait Allocator: Sized {
    /// The allocator.
    const KIND: AllocatorKind;

    /// What protects its free pages while they are dropped.
    type Guards: Debug;

    /// Finds the heap; `None` if there is none.
    fn find(memory: &impl Memory, places: &Places<'_>) -> Option<Self>;

    /// Returns the addresses of the allocator's own records, into which the program has no
    /// pointers; empty if they are not known before a walk.
    fn records(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Walks the heap, and passes its blocks in use on. `mappings` are those that may contain a
    /// part of it, in order of address.
    ///
    /// # Errors
    /// Fails with the reason if the heap turns out to have a part that lowtide cannot walk.
    fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        mappings: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str>;

    /// Finds the extent of the allocator's memory within `left`, without a walk; empty if it is not
    /// found this way.
    fn areas(_: &impl Memory, _data: &[Range<u64>], _left: &[Range<u64>]) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Finds the guards of the free pages. `mappings` are those that may contain a part of the
    /// heap, in order of address.
    ///
    /// # Errors
    /// Fails with the reason if the free pages cannot be dropped safely.
    fn guards(
        &self,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        module: &Module<'_>,
    ) -> Result<Self::Guards, Unguarded>;

    /// Returns which threads may drop the free pages.
    fn droppers(&self, _: &Self::Guards) -> Droppers {
        Droppers::Any
    }

    /// Passes the resident free ranges to `visit`, and returns their sums.
    fn each_droppable(
        &self,
        guards: &Self::Guards,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Sums;
}

/// The mapped file that contains an allocator, and its process.
pub struct Module<'m> {
    /// The addresses of the file.
    pub ranges: &'m [Range<u64>],
    /// The version of the allocator in it, if that is known.
    pub version: Option<&'m str>,
    /// Reads the code of the file: each part that could be read, with its address.
    pub code: &'m dyn Fn() -> Vec<(u64, Vec<u8>)>,
    /// Counts the threads of the process.
    pub threads: &'m dyn Fn() -> usize,
}

impl<'m> Module<'m> {
    /// Returns the module of a heap of which only the memory is known: it may be anywhere, and the
    /// process counts as one with one thread.
    pub fn unknown(version: Option<&'m str>) -> Self {
        const EVERYWHERE: Range<u64> = 0..ADDRESS_END;
        Self { ranges: &[EVERYWHERE], version, code: &Vec::new, threads: &|| 1 }
    }
}

/// The memory in which the structures of a heap may be.
#[derive(Debug, Clone, Copy)]
pub struct Places<'p> {
    /// The writable data of the file that contains the allocator, and the anonymous mappings that
    /// follow it.
    pub data: &'p [Range<u64>],
    /// The part of it that begins as zeros.
    pub zeroed_data: &'p [Range<u64>],
    /// The mappings that may contain a part of the heap, in order of address.
    pub mappings: &'p [HeapMapping],
}

/// A walked heap, in the terms that all allocators share.
#[derive(Debug, Clone, Default)]
pub struct Walked {
    /// Resident bytes by owner; only rows of a heap.
    pub ledger: Ledger,
    /// The addresses of the heap, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// Structures of the allocator, whose pointers are no pointers of the program: they lead to
    /// free memory, to other structures, and to blocks whether the program can reach them or not.
    /// Also memory with blocks that is not in `areas`. In order and disjoint.
    pub structures: Vec<Range<u64>>,
    /// The arenas; empty for an allocator that has none.
    pub arenas: Vec<Arena>,
    /// Chunks in use, including those that threads cache, by size.
    pub allocated_by_size: Vec<Bin>,
    /// Number of mmapped chunks.
    pub mmapped_count: u64,
    /// Bytes of mmapped chunks.
    pub mmapped_bytes: u64,
    /// The settings in force, if the allocator has settings that lowtide reads.
    pub tunables: Option<Tunables>,
    /// Bytes, resident or not, that could not be walked.
    pub unwalked_bytes: u64,
    /// The predicted effect of the remedies.
    pub prediction: HeapPrediction,
}

/// Returns the addresses of mappings.
pub(crate) fn ranges(mappings: &[HeapMapping]) -> Vec<Range<u64>> {
    mappings.iter().map(|mapping| mapping.range.clone()).collect()
}

/// Returns the addresses of mappings, adjacent ones as one range.
pub(crate) fn joined_ranges(mappings: &[HeapMapping]) -> Vec<Range<u64>> {
    joined(ranges(mappings))
}

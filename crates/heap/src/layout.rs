//! One interface to the heaps of all allocators.

use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;

pub use crate::allocator::{Places, Walked};

use crate::allocator::Allocator;
use crate::blocks::Visitor;
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;
use crate::{gperftools, jemalloc, mimalloc, musl, ptmalloc};

/// The addresses and the layout of the structures of a heap.
#[derive(Debug)]
pub enum HeapLayout {
    /// The heap of glibc.
    Ptmalloc(Box<ptmalloc::Layout>),
    /// The heap of jemalloc.
    Jemalloc(jemalloc::Layout),
    /// The heap of mimalloc.
    Mimalloc(mimalloc::Layout),
    /// The heap of gperftools' tcmalloc.
    Gperftools(gperftools::Layout),
    /// The heap of musl.
    Musl(musl::Layout),
}

/// Evaluates an expression for the layout of any allocator.
macro_rules! for_layout {
    ($heap:expr, $layout:ident => $value:expr) => {
        match $heap {
            HeapLayout::Ptmalloc($layout) => {
                let $layout = &**$layout;
                $value
            }
            HeapLayout::Jemalloc($layout) => $value,
            HeapLayout::Mimalloc($layout) => $value,
            HeapLayout::Gperftools($layout) => $value,
            HeapLayout::Musl($layout) => $value,
        }
    };
}

impl HeapLayout {
    /// Finds the heap of an allocator. Returns `None` if lowtide cannot walk this allocator's heap,
    /// or if there is none.
    pub fn find(
        allocator: &AllocatorKind,
        memory: &impl Memory,
        places: &Places<'_>,
    ) -> Option<Self> {
        fn found<A: Allocator>(memory: &impl Memory, places: &Places<'_>) -> Option<A> {
            A::find(memory, places)
        }
        match allocator {
            AllocatorKind::Glibc => found(memory, places).map(Box::new).map(Self::Ptmalloc),
            AllocatorKind::Jemalloc => found(memory, places).map(Self::Jemalloc),
            AllocatorKind::Mimalloc => found(memory, places).map(Self::Mimalloc),
            AllocatorKind::Gperftools => found(memory, places).map(Self::Gperftools),
            AllocatorKind::Musl => found(memory, places).map(Self::Musl),
            AllocatorKind::Tcmalloc
            | AllocatorKind::Snmalloc
            | AllocatorKind::Rpmalloc
            | AllocatorKind::Scudo
            | AllocatorKind::PartitionAlloc
            | AllocatorKind::Other(_)
            | AllocatorKind::Unknown => None,
        }
    }

    /// Returns the addresses of the allocator's own records, into which the program has no
    /// pointers; empty if they are not known before a walk.
    pub fn records(&self) -> Vec<Range<u64>> {
        for_layout!(self, layout => Allocator::records(layout))
    }

    /// Walks the heap, and passes its blocks in use on. `mappings` are those that may contain a
    /// part of it, in order of address.
    ///
    /// # Errors
    /// Fails with the reason if the heap turns out to have a part that lowtide cannot walk.
    pub fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        mappings: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str> {
        for_layout!(self, layout => layout.walk(memory, mappings, visitor))
    }
}

/// Finds the memory of an allocator by its structures, within `left`. It finds the extent of the
/// memory only, not the free part. The result is empty for an allocator whose memory is not found
/// this way: mimalloc is searched for in every process, and PartitionAlloc by its mappings, because
/// libraries contain them.
pub fn managed_areas(
    allocator: &AllocatorKind,
    memory: &impl Memory,
    data: &[Range<u64>],
    left: &[Range<u64>],
) -> Vec<Range<u64>> {
    macro_rules! areas {
        ($folder:ident) => {
            <$folder::Layout as Allocator>::areas(memory, data, left)
        };
    }
    match allocator {
        AllocatorKind::Glibc => areas!(ptmalloc),
        AllocatorKind::Jemalloc => areas!(jemalloc),
        AllocatorKind::Mimalloc => areas!(mimalloc),
        AllocatorKind::Gperftools => areas!(gperftools),
        AllocatorKind::Musl => areas!(musl),
        AllocatorKind::Tcmalloc
        | AllocatorKind::Snmalloc
        | AllocatorKind::Rpmalloc
        | AllocatorKind::Scudo
        | AllocatorKind::PartitionAlloc
        | AllocatorKind::Other(_)
        | AllocatorKind::Unknown => Vec::new(),
    }
}

//! One interface to the guarded free pages of allocators other than glibc's.
//!
//! To add an allocator: its `droppable`, a variant of `Guards`, and the arms of the matches in this file.

use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;

use crate::droppable::{Droppable, Sums, Unguarded};
use crate::layout::HeapLayout;
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;
use crate::ranges::joined;
use crate::{gperftools, jemalloc, mimalloc};

/// A heap whose free pages are guarded by locks, by bits that can be claimed, or by the threads
/// that own them.
#[derive(Debug)]
pub struct GuardedHeap(Guards);

#[derive(Debug)]
enum Guards {
    Jemalloc(jemalloc::Layout, jemalloc::Locks),
    Mimalloc(mimalloc::Layout),
    Gperftools(gperftools::Layout, gperftools::Lock),
}

impl GuardedHeap {
    /// Finds the guards of a heap. `mappings` are those that may contain a part of the heap, in
    /// order of address; `module` are the ranges of the mapped file that contains the allocator;
    /// `version` is the version of the allocator in that file.
    ///
    /// # Errors
    /// Fails with the reason if its free pages cannot be dropped safely.
    pub fn find(
        layout: HeapLayout,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        module: &[Range<u64>],
        version: Option<&str>,
    ) -> Result<Self, Unguarded> {
        let ranges = ranges(mappings);
        let guards = match layout {
            HeapLayout::Ptmalloc(_) => return Err("its free memory is released chunk by chunk"),
            HeapLayout::Jemalloc(layout) => {
                let locks = jemalloc::locks(memory, &layout, &ranges, module)?;
                Guards::Jemalloc(layout, locks)
            }
            HeapLayout::Mimalloc(layout) => {
                layout.check_version(version)?;
                Guards::Mimalloc(layout)
            }
            HeapLayout::Gperftools(layout) => {
                let lock = gperftools::lock(memory, &layout, version)?;
                Guards::Gperftools(layout, lock)
            }
        };
        Ok(Self(guards))
    }

    /// Returns the allocator.
    pub fn kind(&self) -> AllocatorKind {
        match self.0 {
            Guards::Jemalloc(..) => AllocatorKind::Jemalloc,
            Guards::Mimalloc(_) => AllocatorKind::Mimalloc,
            Guards::Gperftools(..) => AllocatorKind::Gperftools,
        }
    }

    /// Returns whether its free memory belongs to threads ([`Guard::Owner`](crate::droppable::Guard::Owner)).
    pub fn is_owned(&self) -> bool {
        matches!(&self.0, Guards::Mimalloc(layout) if layout.is_owned())
    }

    /// Passes the resident free ranges to `visit`, and returns their sums. `mappings` are those that
    /// may contain a part of the heap, in order of address.
    ///
    /// # Errors
    /// Fails with the reason if the ranges cannot be dropped safely.
    pub fn each_droppable(
        &self,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Result<Sums, Unguarded> {
        let ranges = ranges(mappings);
        match &self.0 {
            Guards::Jemalloc(layout, locks) => {
                Ok(jemalloc::each_droppable(memory, layout, locks, &ranges, visit))
            }
            Guards::Mimalloc(layout) => Ok(mimalloc::each_droppable(memory, layout, visit)),
            Guards::Gperftools(layout, lock) => {
                Ok(gperftools::each_droppable(memory, layout, *lock, &joined(ranges), visit))
            }
        }
    }
}

fn ranges(mappings: &[HeapMapping]) -> Vec<Range<u64>> {
    mappings.iter().map(|mapping| mapping.range.clone()).collect()
}

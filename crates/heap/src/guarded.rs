//! One interface to the guarded free pages of allocators other than glibc's.

use std::convert::Infallible;
use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;

pub use crate::allocator::Module;

use crate::allocator::Allocator;
use crate::droppable::{Droppable, Droppers, Sums, Unguarded};
use crate::layout::HeapLayout;
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;
use crate::ranges::without;
use crate::residency::Residency;
use crate::{gperftools, jemalloc, mimalloc, musl, ptmalloc};

/// A heap whose free pages are guarded by locks, by bits that can be claimed, or by the threads
/// that own them.
#[derive(Debug)]
pub struct GuardedHeap(Guards);

#[derive(Debug)]
enum Guards {
    Ptmalloc(Infallible, Box<ptmalloc::Layout>),
    Jemalloc(jemalloc::Locks, jemalloc::Layout),
    Mimalloc((), mimalloc::Layout),
    Gperftools(gperftools::PageHeapLock, gperftools::Layout),
    Musl(musl::Guards, musl::Layout),
}

/// Evaluates an expression for the guards and the layout of any allocator.
macro_rules! for_guards {
    ($heap:expr, $guards:ident, $layout:ident => $value:expr) => {
        match $heap {
            Guards::Ptmalloc($guards, $layout) => {
                let $layout = &**$layout;
                $value
            }
            Guards::Jemalloc($guards, $layout) => $value,
            Guards::Mimalloc($guards, $layout) => $value,
            Guards::Gperftools($guards, $layout) => $value,
            Guards::Musl($guards, $layout) => $value,
        }
    };
}

impl GuardedHeap {
    /// Finds the guards of a heap. `mappings` are those that may contain a part of the heap, in
    /// order of address.
    ///
    /// # Errors
    /// Fails with the reason if its free pages cannot be dropped safely.
    pub fn find(
        layout: HeapLayout,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        module: &Module<'_>,
    ) -> Result<Self, Unguarded> {
        macro_rules! guarded {
            ($guards:ident, $layout:ident) => {
                Guards::$guards($layout.guards(memory, mappings, module)?, $layout)
            };
        }
        let guards = match layout {
            HeapLayout::Ptmalloc(layout) => guarded!(Ptmalloc, layout),
            HeapLayout::Jemalloc(layout) => guarded!(Jemalloc, layout),
            HeapLayout::Mimalloc(layout) => guarded!(Mimalloc, layout),
            HeapLayout::Gperftools(layout) => guarded!(Gperftools, layout),
            HeapLayout::Musl(layout) => guarded!(Musl, layout),
        };
        Ok(Self(guards))
    }

    /// Returns the allocator.
    pub fn kind(&self) -> AllocatorKind {
        fn kind<A: Allocator>(_: &A) -> AllocatorKind {
            A::KIND
        }
        for_guards!(&self.0, _guards, layout => kind(layout))
    }

    /// Returns which threads may drop its free pages.
    pub fn droppers(&self) -> Droppers {
        for_guards!(&self.0, guards, layout => layout.droppers(guards))
    }

    /// Passes the resident free ranges to `visit`, without their locked parts, and returns their
    /// sums. `mappings` are those that may contain a part of the heap, in order of address.
    ///
    /// # Errors
    /// Fails with the reason if the ranges cannot be dropped safely.
    pub fn each_droppable(
        &self,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Result<Sums, Unguarded> {
        let (mut residency, mut locked_bytes) = (Residency::new(memory), 0);
        let visit = &mut |found: Droppable| {
            locked_bytes += residency.free_bytes(found.pages.clone()).locked;
            each_unlocked(&mut residency, memory.locked(), found, visit);
        };
        let sums = for_guards!(&self.0, guards, layout => {
            layout.each_droppable(guards, memory, mappings, visit)
        });
        let guarded_bytes = sums.guarded_bytes.saturating_sub(locked_bytes);
        Ok(Sums { guarded_bytes, locked_bytes, ..sums })
    }
}

/// Passes on the parts of a free range that are not locked.
fn each_unlocked<M: Memory>(
    residency: &mut Residency<'_, M>,
    locked: &[Range<u64>],
    found: Droppable,
    visit: &mut dyn FnMut(Droppable),
) {
    if locked.is_empty() {
        return visit(found);
    }
    for pages in without(found.pages.clone(), locked) {
        let resident_bytes = residency.bytes(pages.clone());
        if resident_bytes > 0 {
            visit(Droppable { pages, resident_bytes, checks: found.checks.clone(), ..found });
        }
    }
}

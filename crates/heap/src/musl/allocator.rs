//! The heap of musl's mallocng, in the terms that all allocators share.

use std::convert::Infallible;
use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Bin, HeapPrediction};
use lowtide_model::ledger::{Ledger, Owner};

use super::{Heap, Layout};
use crate::allocator::{Allocator, Places, Walked, joined_ranges};
use crate::blocks::Visitor;
use crate::droppable::{Droppable, Sums, Unguarded};
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;

impl Allocator for Layout {
    const KIND: AllocatorKind = AllocatorKind::Musl;

    /// Its free pages are not released.
    type Guards = Infallible;

    fn find(memory: &impl Memory, places: &Places<'_>) -> Option<Self> {
        Self::find(memory, places.zeroed_data).or_else(|| Self::find(memory, places.data))
    }

    fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        mappings: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str> {
        Ok(walked(super::walk(memory, self, &joined_ranges(mappings), visitor)))
    }

    fn guards(
        &self,
        _: &impl Memory,
        _: &[HeapMapping],
        _: &[Range<u64>],
        _: Option<&str>,
    ) -> Result<Infallible, Unguarded> {
        Err("lowtide does not release the memory of musl")
    }

    fn each_droppable(
        &self,
        guards: &Infallible,
        _: &impl Memory,
        _: &[HeapMapping],
        _: &mut dyn FnMut(Droppable),
    ) -> Sums {
        match *guards {}
    }
}

fn walked(heap: Heap) -> Walked {
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, heap.allocated_bytes);
    ledger.add(Owner::Reclaimable, heap.reclaimable_bytes);
    ledger.add(Owner::Locked, heap.locked_bytes);
    ledger.add(Owner::Fragmented, heap.fragmented_bytes);
    ledger.add(Owner::Metadata, heap.metadata_bytes);
    let bin = |(size, (used, _)): (&u64, &(u64, u64))| {
        let (from, to) = (*size, size.saturating_add(1));
        (*used > 0).then_some(Bin { from, to, count: *used, bytes: used * size })
    };
    Walked {
        ledger,
        allocated_by_size: heap.slots.iter().filter_map(bin).collect(),
        mmapped_count: heap.lone_count,
        mmapped_bytes: heap.lone_bytes,
        unwalked_bytes: heap.torn_bytes,
        prediction: HeapPrediction { trim_bytes: None, release_bytes: None, purge_bytes: None },
        areas: heap.areas,
        ..Walked::default()
    }
}

//! The heap of musl's mallocng, in the terms that all allocators share.

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Bin, HeapPrediction};
use lowtide_model::ledger::{Ledger, Owner};

use super::{Guards, Heap, Layout, droppable};
use crate::allocator::{Allocator, Module, Places, Walked, joined_ranges};
use crate::blocks::Visitor;
use crate::droppable::{Droppable, Droppers, Sums, Unguarded};
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;

impl Allocator for Layout {
    const KIND: AllocatorKind = AllocatorKind::Musl;

    type Guards = Guards;

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
        memory: &impl Memory,
        mappings: &[HeapMapping],
        module: &Module<'_>,
    ) -> Result<Guards, Unguarded> {
        Guards::find(memory, self, &joined_ranges(mappings), module)
    }

    fn droppers(&self, guards: &Guards) -> Droppers {
        guards.droppers()
    }

    fn each_droppable(
        &self,
        guards: &Guards,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Sums {
        droppable::each_droppable(memory, self, *guards, &joined_ranges(mappings), visit)
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
        structures: heap.structures,
        ..Walked::default()
    }
}

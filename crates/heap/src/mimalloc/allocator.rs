//! The heap of mimalloc, in the terms that all allocators share.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Arena, ArenaDetail, Bin, HeapPrediction, MimallocThread};
use lowtide_model::ledger::{Ledger, Owner};

use super::{Heap, Layout, Resident, Tally};
use crate::allocator::{Allocator, Module, Places, Walked, joined_ranges};
use crate::blocks::Visitor;
use crate::droppable::{Droppable, Droppers, Sums, Unguarded};
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;

impl Allocator for Layout {
    const KIND: AllocatorKind = AllocatorKind::Mimalloc;

    /// Its pages have owners, or bits that can be claimed, which the layout has.
    type Guards = ();

    fn find(memory: &impl Memory, places: &Places<'_>) -> Option<Self> {
        Self::find(memory, &joined_ranges(places.mappings))
    }

    fn records(&self) -> Vec<Range<u64>> {
        self.records()
    }

    fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        _: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str> {
        Ok(walked(super::walk(memory, self, visitor)))
    }

    fn guards(
        &self,
        _: &impl Memory,
        _: &[HeapMapping],
        module: &Module<'_>,
    ) -> Result<(), Unguarded> {
        self.check_version(module.version)
    }

    fn droppers(&self, (): &()) -> Droppers {
        if self.is_owned() { Droppers::Owners } else { Droppers::Any }
    }

    fn each_droppable(
        &self,
        (): &(),
        memory: &impl Memory,
        _: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Sums {
        super::each_droppable(memory, self, visit)
    }
}

fn walked(heap: Heap) -> Walked {
    let resident = |of: &dyn Fn(&Resident) -> u64| heap.sum(|thread| of(&thread.resident));
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, resident(&|r| r.allocated_bytes));
    ledger.add(Owner::Reclaimable, resident(&|r| r.free_bytes()) + heap.free_slices_bytes);
    ledger.add(Owner::Locked, heap.locked_bytes());
    ledger.add(Owner::Fragmented, resident(&|r| r.fragmented_bytes));
    ledger.add(Owner::Cached, resident(&|r| r.waiting_bytes));
    ledger.add(Owner::Metadata, heap.metadata_bytes);
    ledger.add(Owner::Unattributed, resident(&|r| r.torn_bytes) + heap.unknown_bytes);
    let mut bins: BTreeMap<u64, Bin> = BTreeMap::new();
    for (size, (count, bytes)) in heap.threads.values().flat_map(|thread| &thread.allocated_by_size)
    {
        let none = Bin { from: *size, to: size.saturating_add(1), count: 0, bytes: 0 };
        let bin = bins.entry(*size).or_insert(none);
        bin.count += count;
        bin.bytes += bytes;
    }
    Walked {
        ledger,
        allocated_by_size: bins.into_values().collect(),
        arenas: arenas(&heap),
        unwalked_bytes: heap.sum(|thread| thread.torn_bytes) + heap.unknown_bytes,
        prediction: HeapPrediction {
            trim_bytes: None,
            release_bytes: None,
            purge_bytes: Some(heap.purge_bytes),
        },
        areas: heap.areas,
        structures: heap.structures,
        ..Walked::default()
    }
}

fn arenas(heap: &Heap) -> Vec<Arena> {
    let arena = |(id, (thread, tally)): (usize, (&u64, &Tally))| {
        let free_bytes = tally.resident.free_bytes();
        Arena {
            id: id as u64,
            heaps: 1,
            system_bytes: tally.allocated_bytes + tally.free_bytes + tally.free_spans_bytes,
            allocated_bytes: tally.allocated_bytes,
            free_count: tally.free_count,
            free_bytes: tally.free_bytes + tally.free_spans_bytes,
            reclaimable_bytes: free_bytes,
            free_resident_bytes: free_bytes
                + tally.resident.waiting_bytes
                + tally.resident.locked_bytes
                + tally.resident.fragmented_bytes,
            largest_free_bytes: 0,
            whole: tally.torn_bytes == 0,
            bins: Vec::new(),
            detail: ArenaDetail::Mimalloc(MimallocThread {
                thread: *thread,
                pages: tally.pages,
                empty_pages: tally.empty_pages,
                free_spans_bytes: tally.free_spans_bytes,
                free_spans_resident_bytes: tally.resident.free_spans_bytes,
            }),
        }
    };
    heap.threads.iter().enumerate().map(arena).collect()
}

//! The heap of jemalloc, in the terms that all allocators share.

use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Arena, ArenaDetail, Bin, HeapPrediction, JemallocArena};
use lowtide_model::ledger::{Ledger, Owner};

use super::{ClassCount, Heap, Layout, Locks, Resident, Tally};
use crate::allocator::{Allocator, Module, Places, Walked, joined_ranges, ranges};
use crate::blocks::Visitor;
use crate::droppable::{Droppable, Sums, Unguarded};
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;

impl Allocator for Layout {
    const KIND: AllocatorKind = AllocatorKind::Jemalloc;

    type Guards = Locks;

    fn find(memory: &impl Memory, places: &Places<'_>) -> Option<Self> {
        Self::find(memory, places.zeroed_data, &joined_ranges(places.mappings))
    }

    fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        mappings: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str> {
        let heap = super::walk(memory, self, &ranges(mappings), visitor);
        match heap.has_huge_pages {
            false => Ok(walked(heap)),
            true => Err("jemalloc's allocator of huge pages (opt.hpa) is on"),
        }
    }

    fn areas(memory: &impl Memory, data: &[Range<u64>], left: &[Range<u64>]) -> Vec<Range<u64>> {
        super::areas(memory, data, left)
    }

    fn guards(
        &self,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        module: &Module<'_>,
    ) -> Result<Locks, Unguarded> {
        super::locks(memory, self, &ranges(mappings), module.ranges)
    }

    fn each_droppable(
        &self,
        locks: &Locks,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Sums {
        super::each_droppable(memory, self, locks, &ranges(mappings), visit)
    }
}

fn walked(heap: Heap) -> Walked {
    let resident = |of: &dyn Fn(&Resident) -> u64| heap.sum(|arena| of(&arena.resident));
    let allocated_bytes = resident(&|r| r.allocated_bytes);
    let cached_bytes = heap.resident_cached_bytes.min(allocated_bytes);
    let torn_bytes = resident(&|r| r.torn_bytes);
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, allocated_bytes - cached_bytes);
    ledger.add(Owner::Reclaimable, resident(&|r| r.reclaimable_bytes()));
    ledger.add(Owner::Locked, resident(&|r| r.locked_bytes));
    ledger.add(Owner::Fragmented, resident(&|r| r.fragmented_bytes));
    ledger.add(Owner::Cached, cached_bytes);
    ledger.add(Owner::Metadata, heap.metadata_bytes + resident(&|r| r.padding_bytes));
    ledger.add(Owner::Unattributed, torn_bytes);
    Walked {
        ledger,
        arenas: heap.arenas.iter().map(|(id, tally)| arena(*id, tally)).collect(),
        allocated_by_size: heap.allocated_by_size().map(bin).collect(),
        unwalked_bytes: heap.sum(|arena| arena.torn_bytes),
        prediction: HeapPrediction {
            trim_bytes: None,
            release_bytes: None,
            purge_bytes: Some(resident(&|r| r.purge_bytes())),
        },
        areas: heap.areas,
        structures: heap.structures,
        ..Walked::default()
    }
}

fn arena(id: u64, tally: &Tally) -> Arena {
    let free_extents_bytes = tally.dirty_bytes + tally.muzzy_bytes;
    let mapped_bytes = tally.active_bytes + free_extents_bytes + tally.retained_bytes;
    let resident = &tally.resident;
    Arena {
        id,
        heaps: 1,
        system_bytes: mapped_bytes + tally.torn_bytes,
        allocated_bytes: tally.allocated_bytes(),
        free_count: tally.free_count,
        free_bytes: tally.free_bytes + free_extents_bytes,
        reclaimable_bytes: resident.reclaimable_bytes(),
        free_resident_bytes: resident.reclaimable_bytes()
            + resident.locked_bytes
            + resident.fragmented_bytes,
        largest_free_bytes: tally.largest_free_bytes,
        whole: tally.torn_bytes == 0,
        bins: tally.free_by_size().map(bin).collect(),
        detail: ArenaDetail::Jemalloc(JemallocArena {
            active_bytes: tally.active_bytes,
            dirty_bytes: tally.dirty_bytes,
            muzzy_bytes: tally.muzzy_bytes,
            retained_bytes: tally.retained_bytes,
            slabs: tally.slabs,
            slab_free_bytes: tally.free_bytes,
            slab_free_pages_bytes: resident.slab_pages_bytes,
            large_count: tally.large_count,
            large_bytes: tally.large_bytes,
        }),
    }
}

fn bin(class: ClassCount) -> Bin {
    let ClassCount { from, to, count, bytes } = class;
    Bin { from, to, count, bytes }
}

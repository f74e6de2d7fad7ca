//! The heap of glibc, in the terms that all allocators share.

use std::convert::Infallible;
use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Arena, ArenaDetail, Bin, GlibcArena, HeapPrediction, Tunables};
use lowtide_model::ledger::{Ledger, Owner};

use super::{Caches, Class, Heap, HeapMapping, Layout, MallocParams, WalkedArena, walk_blocks};
use crate::allocator::{Allocator, Module, Places, Walked};
use crate::blocks::Visitor;
use crate::droppable::{Droppable, Sums, Unguarded};
use crate::memory::Memory;
use crate::ranges::union;

impl Allocator for Layout {
    const KIND: AllocatorKind = AllocatorKind::Glibc;

    type Guards = Infallible;

    fn find(memory: &impl Memory, places: &Places<'_>) -> Option<Self> {
        Self::find(memory, places.data)
    }

    fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        mappings: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str> {
        Ok(walked(walk_blocks(memory, self, mappings, visitor), self))
    }

    fn guards(
        &self,
        _: &impl Memory,
        _: &[HeapMapping],
        _: &Module<'_>,
    ) -> Result<Infallible, Unguarded> {
        Err("its free memory is released chunk by chunk")
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

fn walked(heap: Heap, layout: &Layout) -> Walked {
    let owners = heap.owners();
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, owners.allocated_bytes);
    ledger.add(Owner::Reclaimable, owners.reclaimable_bytes);
    ledger.add(Owner::Locked, owners.locked_bytes);
    ledger.add(Owner::Fragmented, owners.fragmented_bytes);
    ledger.add(Owner::Cached, owners.cached_bytes);
    ledger.add(Owner::Metadata, owners.metadata_bytes);
    ledger.add(Owner::Unattributed, owners.unwalked_bytes);
    let total = heap.total();
    Walked {
        ledger,
        arenas: heap.arenas.iter().enumerate().map(|(id, found)| arena(id as u64, found)).collect(),
        allocated_by_size: bins(&total.used_classes),
        mmapped_count: heap.mmapped.count,
        mmapped_bytes: heap.mmapped.bytes,
        tunables: layout.settings.as_ref().map(tunables),
        unwalked_bytes: total.unwalked_bytes,
        prediction: HeapPrediction {
            trim_bytes: Some(heap.trim_bytes()),
            release_bytes: Some(heap.release_bytes()),
            purge_bytes: None,
        },
        areas: heap.areas,
        structures: structures(layout, &heap.caches),
    }
}

/// Returns the addresses of structures whose pointers are to free memory.
fn structures(layout: &Layout, caches: &Caches) -> Vec<Range<u64>> {
    let mut all = layout.structures();
    all.extend(caches.structures());
    union(all)
}

fn arena(id: u64, found: &WalkedArena) -> Arena {
    let tally = &found.tally;
    Arena {
        id,
        heaps: found.heaps,
        system_bytes: found.system_bytes,
        allocated_bytes: tally.used_bytes,
        free_count: tally.free_count,
        free_bytes: tally.free_bytes,
        reclaimable_bytes: tally.resident.reclaimable_bytes,
        free_resident_bytes: tally.resident.reclaimable_bytes
            + tally.resident.locked_bytes
            + tally.resident.fragmented_bytes,
        largest_free_bytes: tally.largest_free_bytes,
        whole: found.is_whole(),
        bins: bins(&tally.free_classes),
        detail: ArenaDetail::Glibc(GlibcArena {
            fast_count: tally.fast_count,
            fast_bytes: tally.fast_bytes,
            top_bytes: tally.top_bytes,
        }),
    }
}

/// Returns the size classes that are not empty.
fn bins(classes: &[Class]) -> Vec<Bin> {
    let some = classes.iter().enumerate().filter(|(_, class)| class.count > 0);
    some.map(|(place, class)| {
        let (from, to) = Class::bounds(place);
        Bin { from, to: to.unwrap_or(u64::MAX), count: class.count, bytes: class.bytes }
    })
    .collect()
}

fn tunables(settings: &MallocParams) -> Tunables {
    Tunables {
        arena_max: settings.arena_max,
        trim_threshold_bytes: settings.trim_threshold_bytes,
        top_pad_bytes: settings.top_pad_bytes,
        mmap_threshold_bytes: settings.mmap_threshold_bytes,
        mmap_threshold_dynamic: settings.mmap_threshold_dynamic,
        tcache_count: settings.tcache_count,
        tcache_max_bytes: settings.tcache_max_bytes,
    }
}

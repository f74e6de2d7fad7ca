//! The heap of gperftools' tcmalloc, in the terms that all allocators share.

use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Arena, ArenaDetail, Bin, GperftoolsHeap, HeapPrediction};
use lowtide_model::ledger::{Ledger, Owner};

use super::{Heap, Layout, PageHeapLock};
use crate::allocator::{Allocator, Module, Places, Walked, joined_ranges};
use crate::blocks::Visitor;
use crate::droppable::{Droppable, Sums, Unguarded};
use crate::memory::Memory;
use crate::ptmalloc::HeapMapping;

impl Allocator for Layout {
    const KIND: AllocatorKind = AllocatorKind::Gperftools;

    type Guards = PageHeapLock;

    fn find(memory: &impl Memory, places: &Places<'_>) -> Option<Self> {
        Self::find(memory, places.zeroed_data, &joined_ranges(places.mappings))
    }

    fn walk<'m>(
        &'m self,
        memory: &'m impl Memory,
        mappings: &[HeapMapping],
        visitor: Visitor<'m>,
    ) -> Result<Walked, &'static str> {
        Ok(walked(super::walk(memory, self, &joined_ranges(mappings), visitor)))
    }

    fn areas(memory: &impl Memory, data: &[Range<u64>], left: &[Range<u64>]) -> Vec<Range<u64>> {
        super::spans(memory, data, left)
    }

    fn guards(
        &self,
        memory: &impl Memory,
        _: &[HeapMapping],
        module: &Module<'_>,
    ) -> Result<PageHeapLock, Unguarded> {
        super::lock(memory, self, module)
    }

    fn each_droppable(
        &self,
        lock: &PageHeapLock,
        memory: &impl Memory,
        mappings: &[HeapMapping],
        visit: &mut dyn FnMut(Droppable),
    ) -> Sums {
        super::each_droppable(memory, self, *lock, &joined_ranges(mappings), visit)
    }
}

fn walked(heap: Heap) -> Walked {
    Walked {
        ledger: ledger(&heap),
        arenas: vec![arena(&heap)],
        allocated_by_size: bins(&heap, |out, _| out),
        unwalked_bytes: heap.torn_bytes,
        prediction: HeapPrediction {
            trim_bytes: None,
            release_bytes: None,
            purge_bytes: (!heap.has_larger_pages).then_some(heap.resident.free_bytes),
        },
        areas: heap.areas,
        structures: heap.structures,
        ..Walked::default()
    }
}

/// Returns the resident memory by owner.
fn ledger(heap: &Heap) -> Ledger {
    let resident = heap.resident;
    let cached_bytes = heap.cached_bytes().min(resident.allocated_bytes);
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, resident.allocated_bytes - cached_bytes);
    ledger.add(Owner::Reclaimable, resident.free_bytes);
    ledger.add(Owner::Locked, resident.locked_bytes);
    ledger.add(Owner::Fragmented, resident.fragmented_bytes + resident.returned_bytes);
    ledger.add(Owner::Cached, cached_bytes);
    ledger.add(Owner::Metadata, heap.metadata_bytes);
    ledger.add(Owner::Unattributed, resident.torn_bytes);
    ledger
}

/// Returns the blocks of each size of which there are any. `count` chooses between those that are
/// out and those that are free.
fn bins(heap: &Heap, count: impl Fn(u64, u64) -> u64) -> Vec<Bin> {
    let bin = |(size, (out, free)): (&u64, &(u64, u64))| {
        let (from, to) = (*size, size.saturating_add(1));
        let count = count(*out, *free);
        (count > 0).then_some(Bin { from, to, count, bytes: count * size })
    };
    heap.blocks.iter().filter_map(bin).collect()
}

/// Returns the only arena.
fn arena(heap: &Heap) -> Arena {
    let resident = heap.resident;
    let bytes = heap.large_bytes
        + heap.out_bytes
        + heap.central_free_bytes
        + heap.page_heap_free_bytes
        + heap.returned_bytes
        + heap.torn_bytes;
    Arena {
        id: 0,
        heaps: 1,
        system_bytes: bytes,
        allocated_bytes: heap.large_bytes + heap.out_bytes,
        free_count: heap.central_free_count + heap.page_heap_free_count,
        free_bytes: heap.central_free_bytes + heap.page_heap_free_bytes,
        reclaimable_bytes: resident.free_bytes,
        free_resident_bytes: resident.free_bytes
            + resident.locked_bytes
            + resident.fragmented_bytes,
        largest_free_bytes: heap.largest_free_bytes,
        whole: heap.torn_bytes == 0,
        bins: bins(heap, |_, free| free),
        detail: ArenaDetail::Gperftools(GperftoolsHeap {
            large_count: heap.large_count,
            large_bytes: heap.large_bytes,
            small_spans: heap.small_spans,
            central_free_bytes: heap.central_free_bytes,
            transfer_cache_bytes: heap.transfer_bytes,
            thread_cache_bytes: heap.thread_cache_bytes,
            thread_caches: heap.thread_caches,
            page_heap_free_bytes: heap.page_heap_free_bytes,
            page_heap_returned_bytes: heap.returned_bytes,
        }),
    }
}

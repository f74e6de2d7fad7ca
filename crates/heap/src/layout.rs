//! One interface to the heaps of all allocators.
//!
//! To add an allocator's heap: a folder with its `find` and `walk`, a variant of [`HeapLayout`], and the arms
//! of the matches in this file.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{
    Arena, Bin, GperftoolsHeap, HeapPrediction, JemallocArena, MimallocThread, Tunables,
};
use lowtide_model::ledger::{Ledger, Owner};

use crate::blocks::Visitor;
use crate::memory::Memory;
use crate::ptmalloc::{self, Class, Heap, HeapMapping};
use crate::ranges::joined;
use crate::{gperftools, jemalloc, mimalloc};

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

impl HeapLayout {
    /// Finds the heap of an allocator. Returns `None` if lowtide cannot walk this allocator's heap,
    /// or if there is none.
    pub fn find(
        allocator: &AllocatorKind,
        memory: &impl Memory,
        places: &Places<'_>,
    ) -> Option<Self> {
        match allocator {
            AllocatorKind::Glibc => {
                let found = ptmalloc::Layout::find(memory, places.data)?;
                Some(Self::Ptmalloc(Box::new(found)))
            }
            AllocatorKind::Jemalloc => {
                let anonymous = joined(ranges(places.mappings));
                jemalloc::Layout::find(memory, places.zeroed_data, &anonymous).map(Self::Jemalloc)
            }
            AllocatorKind::Mimalloc => {
                let anonymous = joined(ranges(places.mappings));
                mimalloc::Layout::find(memory, &anonymous).map(Self::Mimalloc)
            }
            AllocatorKind::Gperftools => {
                let anonymous = joined(ranges(places.mappings));
                let found = gperftools::Layout::find(memory, places.zeroed_data, &anonymous)?;
                Some(Self::Gperftools(found))
            }
            AllocatorKind::Musl
            | AllocatorKind::Tcmalloc
            | AllocatorKind::Snmalloc
            | AllocatorKind::Rpmalloc
            | AllocatorKind::PartitionAlloc
            | AllocatorKind::Other(_)
            | AllocatorKind::Unknown => None,
        }
    }

    /// Returns the addresses of the allocator's own records, into which the program has no
    /// pointers; empty if they are not known before a walk.
    pub fn records(&self) -> Vec<Range<u64>> {
        match self {
            Self::Mimalloc(layout) => layout.records(),
            Self::Ptmalloc(_) | Self::Jemalloc(_) | Self::Gperftools(_) => Vec::new(),
        }
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
        match self {
            Self::Ptmalloc(layout) => {
                let heap = ptmalloc::walk_blocks(memory, layout, mappings, visitor);
                Ok(of_ptmalloc(heap, layout))
            }
            Self::Jemalloc(layout) => {
                let heap = jemalloc::walk(memory, layout, &ranges(mappings), visitor);
                match heap.has_huge_pages {
                    false => Ok(of_jemalloc(heap)),
                    true => Err("jemalloc's allocator of huge pages (opt.hpa) is on"),
                }
            }
            Self::Mimalloc(layout) => Ok(of_mimalloc(mimalloc::walk(memory, layout, visitor))),
            Self::Gperftools(layout) => {
                let anonymous = joined(ranges(mappings));
                Ok(of_gperftools(gperftools::walk(memory, layout, &anonymous, visitor)))
            }
        }
    }
}

fn ranges(mappings: &[HeapMapping]) -> Vec<Range<u64>> {
    mappings.iter().map(|mapping| mapping.range.clone()).collect()
}

/// Finds the memory of an allocator by its structures, within `left`. It finds the extent of the
/// memory only, not the free part. The result is empty for an allocator whose memory is not found
/// this way.
pub fn managed_areas(
    allocator: &AllocatorKind,
    memory: &impl Memory,
    data: &[Range<u64>],
    left: &[Range<u64>],
) -> Vec<Range<u64>> {
    match allocator {
        AllocatorKind::Jemalloc => jemalloc::areas(memory, data, left),
        AllocatorKind::Gperftools => gperftools::spans(memory, data, left),
        // mimalloc is searched for in every process, and PartitionAlloc by its mappings, because
        // libraries contain them.
        AllocatorKind::Mimalloc
        | AllocatorKind::PartitionAlloc
        | AllocatorKind::Glibc
        | AllocatorKind::Musl
        | AllocatorKind::Tcmalloc
        | AllocatorKind::Snmalloc
        | AllocatorKind::Rpmalloc
        | AllocatorKind::Other(_)
        | AllocatorKind::Unknown => Vec::new(),
    }
}

fn of_ptmalloc(heap: Heap, layout: &ptmalloc::Layout) -> Walked {
    let owners = heap.owners();
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, owners.allocated_bytes);
    ledger.add(Owner::Reclaimable, owners.reclaimable_bytes);
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
    }
}

fn of_jemalloc(heap: jemalloc::Heap) -> Walked {
    let resident = |of: &dyn Fn(&jemalloc::Resident) -> u64| heap.sum(|arena| of(&arena.resident));
    let allocated_bytes = resident(&|r| r.allocated_bytes);
    let cached_bytes = heap.cached_bytes.min(allocated_bytes);
    let torn_bytes = resident(&|r| r.torn_bytes);
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, allocated_bytes - cached_bytes);
    ledger.add(Owner::Reclaimable, resident(&|r| r.reclaimable_bytes()));
    ledger.add(Owner::Fragmented, resident(&|r| r.fragmented_bytes));
    ledger.add(Owner::Cached, cached_bytes);
    ledger.add(Owner::Metadata, heap.metadata_bytes + resident(&|r| r.padding_bytes));
    ledger.add(Owner::Unattributed, torn_bytes);
    Walked {
        ledger,
        arenas: heap.arenas.iter().map(|(id, tally)| arena_of_jemalloc(*id, tally)).collect(),
        allocated_by_size: heap.allocated_by_size().map(bin_of_jemalloc).collect(),
        unwalked_bytes: heap.sum(|arena| arena.torn_bytes),
        prediction: HeapPrediction {
            trim_bytes: None,
            release_bytes: None,
            purge_bytes: Some(resident(&|r| r.purge_bytes())),
        },
        areas: heap.areas,
        ..Walked::default()
    }
}

fn of_mimalloc(heap: mimalloc::Heap) -> Walked {
    let resident =
        |of: &dyn Fn(&mimalloc::Resident) -> u64| heap.sum(|thread| of(&thread.resident));
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, resident(&|r| r.allocated_bytes));
    ledger.add(Owner::Reclaimable, resident(&|r| r.free_bytes()) + heap.free_slices_bytes);
    ledger.add(Owner::Fragmented, resident(&|r| r.fragmented_bytes));
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
        arenas: arenas_of_mimalloc(&heap),
        unwalked_bytes: heap.sum(|thread| thread.torn_bytes) + heap.unknown_bytes,
        prediction: HeapPrediction {
            trim_bytes: None,
            release_bytes: None,
            purge_bytes: Some(heap.purge_bytes),
        },
        areas: heap.areas,
        ..Walked::default()
    }
}

fn of_gperftools(heap: gperftools::Heap) -> Walked {
    let resident = heap.resident;
    let cached_bytes = heap.cached_bytes().min(resident.allocated_bytes);
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, resident.allocated_bytes - cached_bytes);
    ledger.add(Owner::Reclaimable, resident.free_bytes);
    ledger.add(Owner::Fragmented, resident.fragmented_bytes + resident.returned_bytes);
    ledger.add(Owner::Cached, cached_bytes);
    ledger.add(Owner::Metadata, heap.metadata_bytes);
    ledger.add(Owner::Unattributed, resident.torn_bytes);
    let bin = |size: &u64, count: u64| {
        let (from, to) = (*size, size.saturating_add(1));
        (count > 0).then_some(Bin { from, to, count, bytes: count * size })
    };
    let bytes = heap.large_bytes
        + heap.out_bytes
        + heap.central_free_bytes
        + heap.page_heap_free_bytes
        + heap.returned_bytes
        + heap.torn_bytes;
    let arena = Arena {
        id: 0,
        heaps: 1,
        system_bytes: bytes,
        allocated_bytes: heap.large_bytes + heap.out_bytes,
        free_count: heap.central_free_count + heap.page_heap_free_count,
        free_bytes: heap.central_free_bytes + heap.page_heap_free_bytes,
        fast_count: 0,
        fast_bytes: 0,
        top_bytes: 0,
        reclaimable_bytes: resident.free_bytes,
        free_resident_bytes: resident.free_bytes + resident.fragmented_bytes,
        largest_free_bytes: heap.largest_free_bytes,
        whole: heap.torn_bytes == 0,
        bins: heap.blocks.iter().filter_map(|(size, (_, free))| bin(size, *free)).collect(),
        jemalloc: None,
        mimalloc: None,
        gperftools: Some(GperftoolsHeap {
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
    };
    Walked {
        ledger,
        arenas: vec![arena],
        allocated_by_size: heap
            .blocks
            .iter()
            .filter_map(|(size, (out, _))| bin(size, *out))
            .collect(),
        unwalked_bytes: heap.torn_bytes,
        prediction: HeapPrediction {
            trim_bytes: None,
            release_bytes: None,
            purge_bytes: Some(resident.free_bytes),
        },
        areas: heap.areas,
        ..Walked::default()
    }
}

fn arenas_of_mimalloc(heap: &mimalloc::Heap) -> Vec<Arena> {
    let arena = |(id, (thread, tally)): (usize, (&u64, &mimalloc::Tally))| {
        let free_bytes = tally.resident.free_bytes();
        Arena {
            id: id as u64,
            heaps: 1,
            system_bytes: tally.allocated_bytes + tally.free_bytes + tally.free_spans_bytes,
            allocated_bytes: tally.allocated_bytes,
            free_count: tally.free_count,
            free_bytes: tally.free_bytes + tally.free_spans_bytes,
            fast_count: 0,
            fast_bytes: 0,
            top_bytes: 0,
            reclaimable_bytes: free_bytes,
            free_resident_bytes: free_bytes + tally.resident.fragmented_bytes,
            largest_free_bytes: 0,
            whole: tally.torn_bytes == 0,
            bins: Vec::new(),
            jemalloc: None,
            gperftools: None,
            mimalloc: Some(MimallocThread {
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

fn arena_of_jemalloc(id: u64, tally: &jemalloc::Tally) -> Arena {
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
        fast_count: 0,
        fast_bytes: 0,
        top_bytes: 0,
        reclaimable_bytes: resident.reclaimable_bytes(),
        free_resident_bytes: resident.reclaimable_bytes() + resident.fragmented_bytes,
        largest_free_bytes: tally.largest_free_bytes,
        whole: tally.torn_bytes == 0,
        bins: tally.free_by_size().map(bin_of_jemalloc).collect(),
        jemalloc: Some(JemallocArena {
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
        mimalloc: None,
        gperftools: None,
    }
}

fn bin_of_jemalloc(class: jemalloc::ClassCount) -> Bin {
    let jemalloc::ClassCount { from, to, count, bytes } = class;
    Bin { from, to, count, bytes }
}

fn arena(id: u64, found: &ptmalloc::WalkedArena) -> Arena {
    let tally = &found.tally;
    Arena {
        id,
        heaps: found.heaps,
        system_bytes: found.system_bytes,
        allocated_bytes: tally.used_bytes,
        free_count: tally.free_count,
        free_bytes: tally.free_bytes,
        fast_count: tally.fast_count,
        fast_bytes: tally.fast_bytes,
        top_bytes: tally.top_bytes,
        reclaimable_bytes: tally.resident.reclaimable_bytes,
        free_resident_bytes: tally.resident.reclaimable_bytes + tally.resident.fragmented_bytes,
        largest_free_bytes: tally.largest_free_bytes,
        whole: found.is_whole(),
        bins: bins(&tally.free_classes),
        jemalloc: None,
        mimalloc: None,
        gperftools: None,
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

fn tunables(settings: &ptmalloc::MallocParams) -> Tunables {
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

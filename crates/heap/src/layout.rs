//! One interface to the heaps of all allocators.
//!
//! To add an allocator's heap: a folder with its `find` and `walk`, a variant of [`HeapLayout`], and the arms
//! of the matches in this file.

use std::ops::Range;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{Arena, Bin, HeapPrediction, Tunables};
use lowtide_model::ledger::{Ledger, Owner};

use crate::memory::Memory;
use crate::ptmalloc::{self, Class, Heap, HeapMapping};
use crate::{gperftools, jemalloc};

/// Where the structures of a heap are, and how they are laid out.
#[derive(Debug)]
pub enum HeapLayout {
    /// glibc's.
    Ptmalloc(Box<ptmalloc::Layout>),
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
    /// What the remedies would return.
    pub prediction: HeapPrediction,
}

impl HeapLayout {
    /// Finds the heap of an allocator in `data`, the writable data of the file that holds it. Returns `None`
    /// if lowtide cannot walk this allocator's heap, or if there is none in `data`.
    pub fn find(
        allocator: &AllocatorKind,
        memory: &impl Memory,
        data: &[Range<u64>],
    ) -> Option<Self> {
        match allocator {
            AllocatorKind::Glibc => {
                ptmalloc::Layout::find(memory, data).map(|found| Self::Ptmalloc(Box::new(found)))
            }
            AllocatorKind::Musl
            | AllocatorKind::Jemalloc
            | AllocatorKind::Mimalloc
            | AllocatorKind::Gperftools
            | AllocatorKind::Tcmalloc
            | AllocatorKind::Snmalloc
            | AllocatorKind::Rpmalloc
            | AllocatorKind::PartitionAlloc
            | AllocatorKind::Other(_)
            | AllocatorKind::Unknown => None,
        }
    }

    /// Walks the heap. `mappings` are those that may hold a part of it, in order of address.
    pub fn walk(&self, memory: &impl Memory, mappings: &[HeapMapping]) -> Walked {
        match self {
            Self::Ptmalloc(layout) => {
                let heap = ptmalloc::walk(memory, layout, mappings);
                of_ptmalloc(heap, layout)
            }
        }
    }
}

/// Finds the memory of an allocator by its structures, within `left`: only its extent is found, not how
/// much of it is free. Empty for an allocator whose memory is not found this way.
pub fn managed_areas(
    allocator: &AllocatorKind,
    memory: &impl Memory,
    data: &[Range<u64>],
    left: &[Range<u64>],
) -> Vec<Range<u64>> {
    match allocator {
        AllocatorKind::Jemalloc => jemalloc::extents(memory, data, left),
        AllocatorKind::Gperftools => gperftools::spans(memory, data, left),
        // mimalloc is looked for in every process, and PartitionAlloc by its mappings: libraries bring them.
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
        },
        areas: heap.areas,
    }
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

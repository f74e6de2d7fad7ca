//! The arenas of a heap, and what only one allocator has.

use serde::{Deserialize, Serialize};

/// One arena of a heap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arena {
    /// Its position in the ring; 0 is the main arena.
    pub id: u64,
    /// Number of heaps in it.
    pub heaps: u64,
    /// Memory that it obtained from the system, in bytes.
    pub system_bytes: u64,
    /// Blocks in use by the program, including those that threads cache, in bytes.
    pub allocated_bytes: u64,
    /// Free blocks, excluding those in fast bins and the top chunk.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Blocks in fast bins.
    pub fast_count: u64,
    /// Their bytes.
    pub fast_bytes: u64,
    /// Size of the top chunk, in bytes.
    pub top_bytes: u64,
    /// Free resident memory in whole pages, in bytes.
    pub reclaimable_bytes: u64,
    /// Free resident memory, in bytes. Most of the free blocks and the top chunk may be address
    /// space without pages.
    pub free_resident_bytes: u64,
    /// The largest free block, in bytes.
    pub largest_free_bytes: u64,
    /// Whether the walked bytes agree with the arena's own count of its memory.
    pub whole: bool,
    /// Its free blocks by size; empty classes are left out.
    pub bins: Vec<Bin>,
    /// Metrics that only this allocator has; `None` for glibc.
    #[serde(flatten)]
    pub detail: Option<ArenaDetail>,
}

/// What only one allocator has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaDetail {
    /// An arena of jemalloc.
    Jemalloc(JemallocArena),
    /// A thread's part of a heap of mimalloc.
    Mimalloc(MimallocThread),
    /// The heap of gperftools' tcmalloc, which has no arenas.
    Gperftools(GperftoolsHeap),
}

impl Arena {
    /// Returns whether it is an arena of glibc.
    pub fn is_of_glibc(&self) -> bool {
        self.detail.is_none()
    }

    /// Returns what only an arena of jemalloc has.
    pub fn jemalloc(&self) -> Option<&JemallocArena> {
        match &self.detail {
            Some(ArenaDetail::Jemalloc(detail)) => Some(detail),
            _ => None,
        }
    }

    /// Returns what only a thread's part of a heap of mimalloc has.
    pub fn mimalloc(&self) -> Option<&MimallocThread> {
        match &self.detail {
            Some(ArenaDetail::Mimalloc(detail)) => Some(detail),
            _ => None,
        }
    }

    /// Returns what only the heap of gperftools' tcmalloc has.
    pub fn gperftools(&self) -> Option<&GperftoolsHeap> {
        match &self.detail {
            Some(ArenaDetail::Gperftools(detail)) => Some(detail),
            _ => None,
        }
    }
}

/// The heap of gperftools' tcmalloc, in the terms of `MallocExtension::GetNumericProperty`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GperftoolsHeap {
    /// Number of large blocks. Each is one span.
    pub large_count: u64,
    /// Their bytes.
    pub large_bytes: u64,
    /// Spans that are cut into blocks of one size.
    pub small_spans: u64,
    /// Free blocks in the central free lists, and remainders of spans that are too small for a
    /// block, in bytes (`tcmalloc.central_cache_free_bytes`).
    pub central_free_bytes: u64,
    /// Free blocks in the transfer caches, in bytes (`tcmalloc.transfer_cache_free_bytes`).
    pub transfer_cache_bytes: u64,
    /// Free blocks in the caches of threads, in bytes (`tcmalloc.thread_cache_free_bytes`).
    pub thread_cache_bytes: u64,
    /// Number of caches of threads.
    pub thread_caches: u64,
    /// Free spans, in bytes (`tcmalloc.pageheap_free_bytes`).
    pub page_heap_free_bytes: u64,
    /// Free spans that were returned to the kernel, in bytes (`tcmalloc.pageheap_unmapped_bytes`).
    pub page_heap_returned_bytes: u64,
}

/// A thread's part of a heap of mimalloc.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MimallocThread {
    /// The address of the thread's storage, by which mimalloc identifies the thread; 0 if no thread
    /// owns these pages.
    pub thread: u64,
    /// Pages: rows of blocks of one size.
    pub pages: u64,
    /// Pages whose blocks are all free.
    pub empty_pages: u64,
    /// Free spans between the pages of a thread, in bytes (version 2). Only this thread can use or
    /// return them.
    pub free_spans_bytes: u64,
    /// The resident part of them, in bytes.
    pub free_spans_resident_bytes: u64,
}

/// An arena of jemalloc, in the terms of jemalloc's own statistics (`stats.arenas.<i>`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JemallocArena {
    /// Extents in use, in bytes (`pactive`, which counts pages).
    pub active_bytes: u64,
    /// Free extents whose pages are resident, in bytes (`pdirty`).
    pub dirty_bytes: u64,
    /// Free extents whose pages the kernel may reclaim, in bytes (`pmuzzy`).
    pub muzzy_bytes: u64,
    /// Free extents whose pages were returned, in bytes (`retained`).
    pub retained_bytes: u64,
    /// Slabs: extents of small regions of one size.
    pub slabs: u64,
    /// Free regions in slabs, in bytes.
    pub slab_free_bytes: u64,
    /// Resident pages of slabs whose regions are all free, in bytes. A purge does not return them.
    pub slab_free_pages_bytes: u64,
    /// Large allocations.
    pub large_count: u64,
    /// Their bytes (`large.allocated`).
    pub large_bytes: u64,
}

/// Blocks of similar size, in use or free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// The smallest size of the class, in bytes.
    pub from: u64,
    /// The first size above the class.
    pub to: u64,
    /// Number of blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Bin {
    /// Merges the bins of two heaps with the same size classes.
    pub fn join(mut these: Vec<Self>, others: &[Self]) -> Vec<Self> {
        for other in others {
            match these.iter_mut().find(|bin| bin.from == other.from) {
                Some(same) => {
                    same.count += other.count;
                    same.bytes += other.bytes;
                }
                None => these.push(*other),
            }
        }
        these.sort_by_key(|bin| bin.from);
        these
    }
}

//! Sums over the spans.

use std::collections::BTreeMap;
use std::ops::Range;

use super::caches::CachedBlocks;
use crate::residency::FreeBytes;

/// A walked heap, in bytes unless the name states otherwise.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    /// Large blocks: spans that the program has.
    pub large_bytes: u64,
    /// Number of large blocks.
    pub large_count: u64,
    /// Blocks in spans that are cut into blocks, without the free ones in the lists of the spans.
    pub out_bytes: u64,
    /// Free blocks in the lists of their spans, and room that is smaller than a block
    /// (`tcmalloc.central_cache_free_bytes`).
    pub central_free_bytes: u64,
    /// Number of the free blocks.
    pub central_free_count: u64,
    /// Free blocks that move between threads (`tcmalloc.transfer_cache_free_bytes`).
    pub transfer_bytes: u64,
    /// Free blocks in the caches of threads (`tcmalloc.thread_cache_free_bytes`).
    pub thread_cache_bytes: u64,
    /// Number of caches of threads.
    pub thread_caches: u64,
    /// Free spans (`tcmalloc.pageheap_free_bytes`).
    pub page_heap_free_bytes: u64,
    /// Number of free spans.
    pub page_heap_free_count: u64,
    /// The largest free span.
    pub largest_free_bytes: u64,
    /// Free spans that were returned to the kernel (`tcmalloc.pageheap_unmapped_bytes`).
    pub returned_bytes: u64,
    /// Inconsistent spans.
    pub torn_bytes: u64,
    /// Number of spans that are cut into blocks.
    pub small_spans: u64,
    /// The addresses of the allocator's own structures, in order and disjoint.
    pub structures: Vec<Range<u64>>,
    /// Resident bytes of the allocator's own structures.
    pub metadata_bytes: u64,
    /// Blocks outside of their spans' lists, those that are cached included, and free ones in the
    /// lists, by size.
    pub blocks: BTreeMap<u64, (u64, u64)>,
    /// The resident part of the heap.
    pub resident: Resident,
    /// The addresses of the heap, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// Whether the kernel's pages are larger than the allocator's. Its own release then ends at the
    /// first span without a whole page of the kernel (`PageHeap::ReleaseAtLeastNPages`).
    pub has_larger_pages: bool,
}

/// Resident bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Blocks that are in no list of their spans, those that are cached included.
    pub allocated_bytes: u64,
    /// The rest of spans that are cut into blocks, and of pages of the kernel that are larger than
    /// a free span.
    pub fragmented_bytes: u64,
    /// Whole pages of free spans, which `MallocExtension::ReleaseFreeMemory` returns.
    pub free_bytes: u64,
    /// Free spans that are locked, which it does not return.
    pub locked_bytes: u64,
    /// Free spans that were returned, and are resident again.
    pub returned_bytes: u64,
    /// Inconsistent spans.
    pub torn_bytes: u64,
}

impl Heap {
    /// Returns the size of the blocks that the program has, in bytes
    /// (`generic.current_allocated_bytes`).
    pub fn allocated_bytes(&self) -> u64 {
        (self.large_bytes + self.out_bytes).saturating_sub(self.cached_bytes())
    }

    /// Returns the size of the cached free blocks, in bytes.
    pub fn cached_bytes(&self) -> u64 {
        self.transfer_bytes + self.thread_cache_bytes
    }

    pub(super) fn torn_share(&self) -> f64 {
        let all = self.large_bytes + self.out_bytes + self.page_heap_free_bytes + self.torn_bytes;
        self.torn_bytes as f64 / all.max(1) as f64
    }

    pub(super) fn add_free(&mut self, bytes: u64, resident_bytes: u64, whole: FreeBytes) {
        self.page_heap_free_bytes += bytes;
        self.page_heap_free_count += 1;
        self.largest_free_bytes = self.largest_free_bytes.max(bytes);
        self.resident.free_bytes += whole.droppable;
        self.resident.locked_bytes += whole.locked;
        self.resident.fragmented_bytes += resident_bytes - whole.droppable - whole.locked;
    }

    pub(super) fn add_returned(&mut self, bytes: u64, resident_bytes: u64) {
        self.returned_bytes += bytes;
        // These pages are resident again because the kernel has formed huge pages. No release
        // returns them.
        self.resident.returned_bytes += resident_bytes;
    }

    pub(super) fn add_large(&mut self, bytes: u64, resident_bytes: u64) {
        self.large_bytes += bytes;
        self.large_count += 1;
        self.resident.allocated_bytes += resident_bytes;
    }

    pub(super) fn add_small(&mut self, size: u64, out: u64, bytes: u64, resident_bytes: u64) {
        let free = bytes / size - out;
        self.small_spans += 1;
        self.out_bytes += out * size;
        self.central_free_bytes += bytes - out * size;
        self.central_free_count += free;
        let blocks = self.blocks.entry(size).or_default();
        blocks.0 += out;
        blocks.1 += free;
        let allocated_bytes = resident_bytes.min(out * size);
        self.resident.allocated_bytes += allocated_bytes;
        self.resident.fragmented_bytes += resident_bytes - allocated_bytes;
    }

    pub(super) fn add_torn(&mut self, bytes: u64, resident_bytes: u64) {
        self.torn_bytes += bytes;
        self.resident.torn_bytes += resident_bytes;
    }

    pub(super) fn add_cached(&mut self, cached: &CachedBlocks, sizes: &[u64]) {
        let sum = |counts: &[u64]| counts.iter().zip(sizes).map(|(count, size)| count * size).sum();
        self.thread_caches = cached.threads;
        self.thread_cache_bytes = sum(&cached.of_threads);
        self.transfer_bytes = sum(&cached.moved);
    }
}

//! The sums over the pages of a heap.

use std::collections::BTreeMap;
use std::ops::Range;

use super::page::Page;
use crate::residency::FreeBytes;

/// Maximum number of threads that are counted separately.
const MAX_THREADS: usize = 64 << 10;

/// A walked heap.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    /// Pages and free spans of each thread, by the address of its storage; 0 stands for no thread.
    /// A thread that has exited may have left pages.
    pub threads: BTreeMap<u64, Tally>,
    /// The addresses of segments and arenas, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// The addresses of mimalloc's own structures, in order and disjoint once the heap is walked.
    pub structures: Vec<Range<u64>>,
    /// Resident bytes of mimalloc's own structures.
    pub metadata_bytes: u64,
    /// Resident bytes of slices that belong to no page and no thread (version 3).
    pub free_slices_bytes: u64,
    /// Resident bytes of such slices that are locked.
    pub locked_slices_bytes: u64,
    /// The part of [`Heap::free_slices_bytes`] that mimalloc has marked to be purged.
    pub purge_bytes: u64,
    /// Resident bytes between recognised segments.
    pub unknown_bytes: u64,
}

/// The sums of a thread, in bytes unless the name states otherwise.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Number of pages.
    pub pages: u64,
    /// Number of pages whose blocks are all free.
    pub empty_pages: u64,
    /// Blocks that the program has.
    pub allocated_count: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Free blocks in pages.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Free spans of slices (version 2).
    pub free_spans_bytes: u64,
    /// Pages that changed while they were read, or are laid out in another way.
    pub torn_bytes: u64,
    /// Blocks in use by size, with their bytes.
    pub allocated_by_size: BTreeMap<u64, (u64, u64)>,
    /// The resident part of it.
    pub resident: Resident,
}

/// The resident bytes of a thread. They are disjoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resident {
    /// Allocated.
    pub allocated_bytes: u64,
    /// Free bytes in pages that also contain live blocks.
    pub fragmented_bytes: u64,
    /// Pages whose blocks are all free, and in lists of their own thread.
    pub empty_pages_bytes: u64,
    /// Pages whose blocks are all free, some of them freed by another thread: they wait until their
    /// own thread allocates, collects or ends.
    pub waiting_bytes: u64,
    /// Free spans of slices (version 2).
    pub free_spans_bytes: u64,
    /// Such pages and spans that are locked.
    pub locked_bytes: u64,
    /// In pages that changed while they were read.
    pub torn_bytes: u64,
}

impl Resident {
    /// Returns the number of free bytes in whole pages of mimalloc.
    pub fn free_bytes(&self) -> u64 {
        self.empty_pages_bytes + self.free_spans_bytes
    }
}

impl Tally {
    /// Adds a page. `resident` are its resident bytes, as if the page were free.
    pub(super) fn add_page(&mut self, page: &Page, resident: FreeBytes) {
        let allocated_bytes = page.live * page.block_bytes;
        let free = page.capacity - page.live;
        self.pages += 1;
        self.allocated_count += page.live;
        self.allocated_bytes += allocated_bytes;
        self.free_count += free;
        self.free_bytes += free * page.block_bytes;
        if page.live == 0 {
            self.empty_pages += 1;
            match page.freed_elsewhere {
                0 => self.resident.empty_pages_bytes += resident.droppable,
                _ => self.resident.waiting_bytes += resident.droppable,
            }
            self.resident.locked_bytes += resident.locked;
            return;
        }
        let of_size = self.allocated_by_size.entry(page.block_bytes).or_default();
        of_size.0 += page.live;
        of_size.1 += allocated_bytes;
        let resident_bytes = resident.droppable + resident.locked;
        // A part of a large block may never have been touched.
        let live_bytes = allocated_bytes.min(resident_bytes);
        self.resident.allocated_bytes += live_bytes;
        self.resident.fragmented_bytes += resident_bytes - live_bytes;
    }
}

impl Heap {
    pub(super) fn thread(&mut self, thread: u64) -> &mut Tally {
        // A damaged heap may name a thread for each page.
        let is_known = self.threads.len() < MAX_THREADS || self.threads.contains_key(&thread);
        self.threads.entry(if is_known { thread } else { 0 }).or_default()
    }

    /// Adds free slices that belong to no thread. `is_purged`: mimalloc has marked them to be
    /// purged.
    pub(super) fn add_free_slices(&mut self, resident: FreeBytes, is_purged: bool) {
        self.free_slices_bytes += resident.droppable;
        self.locked_slices_bytes += resident.locked;
        self.purge_bytes += if is_purged { resident.droppable } else { 0 };
    }

    /// Returns the locked bytes of free memory.
    pub fn locked_bytes(&self) -> u64 {
        self.sum(|thread| thread.resident.locked_bytes) + self.locked_slices_bytes
    }

    /// Returns a sum over all threads.
    pub fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.threads.values().map(of).sum()
    }

    /// Returns the torn share of the heap.
    pub(super) fn torn_share(&self) -> f64 {
        let torn = self.sum(|thread| thread.resident.torn_bytes);
        let sound = self.sum(|thread| thread.resident.allocated_bytes);
        torn as f64 / (torn + sound).max(1) as f64
    }
}

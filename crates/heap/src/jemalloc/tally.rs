//! The sums over the extents of a heap.

use std::collections::BTreeMap;
use std::ops::Range;

use super::size_class;
use super::tcache::CachedRegions;

/// A walked heap.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    /// The arenas by their numbers. Those without extents are left out.
    pub arenas: BTreeMap<u64, Tally>,
    /// The addresses of extents and of jemalloc's own structures, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// The addresses of jemalloc's own structures, in order and disjoint.
    pub structures: Vec<Range<u64>>,
    /// Resident bytes of jemalloc's own structures.
    pub metadata_bytes: u64,
    /// Whether its allocator of huge pages is on (`opt.hpa`), whose free pages have no records.
    pub has_huge_pages: bool,
    /// Allocations, those that threads cache included, and their bytes, by the index of their size
    /// class.
    allocated: BTreeMap<usize, (u64, u64)>,
    /// Regions that threads cache.
    pub cached_count: u64,
    /// Their bytes, whether resident or not.
    pub cached_bytes: u64,
    /// Those of their bytes that are resident.
    pub resident_cached_bytes: u64,
}

/// The sums of an arena, in bytes unless the name states otherwise.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Extents that the program has, or parts of them (`stats.arenas.<i>.pactive`, in bytes).
    pub active_bytes: u64,
    /// Free extents whose pages are resident (`pdirty`).
    pub dirty_bytes: u64,
    /// Free extents whose pages the kernel may take (`pmuzzy`).
    pub muzzy_bytes: u64,
    /// Free extents whose pages were returned (`retained`).
    pub retained_bytes: u64,
    /// Number of slabs.
    pub slabs: u64,
    /// Regions of slabs that are allocated (`small.allocated`).
    pub small_bytes: u64,
    /// Number of large allocations.
    pub large_count: u64,
    /// Their bytes (`large.allocated`).
    pub large_bytes: u64,
    /// Number of free regions in slabs.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// The largest free extent.
    pub largest_free_bytes: u64,
    /// Extents that changed while they were read.
    pub torn_bytes: u64,
    /// Free regions and their bytes, by the index of their size class.
    free: BTreeMap<usize, (u64, u64)>,
    /// The resident part of it.
    pub resident: Resident,
}

/// The resident bytes of an arena. They are disjoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resident {
    /// Allocated.
    pub allocated_bytes: u64,
    /// Free regions on pages of slabs that also contain allocated ones.
    pub fragmented_bytes: u64,
    /// Pages of slabs whose regions are all free. No purge of jemalloc returns them.
    pub slab_pages_bytes: u64,
    /// Dirty.
    pub dirty_bytes: u64,
    /// Muzzy.
    pub muzzy_bytes: u64,
    /// Retained, but resident, because the kernel has provided a huge page.
    pub retained_bytes: u64,
    /// Free memory in whole pages that are locked, which no purge returns. The other rows of free
    /// pages do not contain it.
    pub locked_bytes: u64,
    /// Padding after large allocations, with which jemalloc varies their addresses.
    pub padding_bytes: u64,
    /// In extents that changed while they were read.
    pub torn_bytes: u64,
}

impl Resident {
    /// Returns the number of bytes that a purge of the arena returns: `arena.<i>.purge`.
    pub fn purge_bytes(&self) -> u64 {
        self.dirty_bytes + self.muzzy_bytes
    }

    /// Returns the number of free bytes in whole pages.
    pub fn reclaimable_bytes(&self) -> u64 {
        self.purge_bytes() + self.retained_bytes + self.slab_pages_bytes
    }
}

/// Allocations or free regions of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassCount {
    /// The smallest size that the class serves, in bytes.
    pub from: u64,
    /// The first size beyond it.
    pub to: u64,
    /// Number of them.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Returns the allocated bytes (`stats.allocated`), including regions that threads cache.
    pub fn allocated_bytes(&self) -> u64 {
        self.small_bytes + self.large_bytes
    }

    pub(super) fn add_free(&mut self, class: usize, count: u64, bytes: u64) {
        add(&mut self.free, class, count, bytes);
    }

    /// Returns the free regions by size class.
    pub(crate) fn free_by_size(&self) -> impl Iterator<Item = ClassCount> {
        self.free.iter().map(class_count)
    }
}

impl Heap {
    pub(super) fn arena(&mut self, number: u64) -> &mut Tally {
        self.arenas.entry(number).or_default()
    }

    pub(super) fn add_allocated(&mut self, class: usize, count: u64, bytes: u64) {
        add(&mut self.allocated, class, count, bytes);
    }

    /// Adds the regions that threads cache, at most the allocated ones of each class.
    pub(super) fn add_cached(&mut self, cached: &CachedRegions, not_resident_bytes: u64) {
        for (class, count) in cached.iter().enumerate() {
            let count =
                self.allocated.get(&class).map_or(0, |(allocated, _)| *count.min(allocated));
            self.cached_count += count;
            self.cached_bytes += count * size_class::size(class).unwrap_or(0);
        }
        self.resident_cached_bytes = self.cached_bytes.saturating_sub(not_resident_bytes);
    }

    /// Returns the allocations by size class, those that threads cache included.
    pub fn allocated_by_size(&self) -> impl Iterator<Item = ClassCount> {
        self.allocated.iter().map(class_count)
    }

    /// Returns a sum over all arenas.
    pub fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.arenas.values().map(of).sum()
    }

    /// Returns the torn share of the heap.
    pub(super) fn torn_share(&self) -> f64 {
        let torn = self.sum(|arena| arena.torn_bytes);
        let sound = self.sum(|arena| arena.active_bytes + arena.dirty_bytes + arena.muzzy_bytes);
        torn as f64 / (torn + sound).max(1) as f64
    }
}

fn add(classes: &mut BTreeMap<usize, (u64, u64)>, class: usize, count: u64, bytes: u64) {
    if count > 0 {
        let sums = classes.entry(class).or_default();
        sums.0 += count;
        sums.1 += bytes;
    }
}

fn class_count((class, (count, bytes)): (&usize, &(u64, u64))) -> ClassCount {
    let (from, to) = size_class::bounds(*class);
    ClassCount { from, to, count: *count, bytes: *bytes }
}

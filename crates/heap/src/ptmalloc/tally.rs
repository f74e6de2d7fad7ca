//! The sums over the chunks of a heap.

use serde::Serialize;

/// Number of size classes. Class `n` has sizes from 2ⁿ to 2ⁿ⁺¹ bytes, the last class all larger
/// sizes.
pub const CLASSES: usize = 32;

/// The sums over a stretch of a heap, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Blocks that the program has, and those in thread caches.
    pub used_count: u64,
    /// Their bytes.
    pub used_bytes: u64,
    /// Free blocks in the bins.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Free blocks in the fast bins.
    pub fast_count: u64,
    /// Their bytes.
    pub fast_bytes: u64,
    /// Bytes of the top chunk, after the last block.
    pub top_bytes: u64,
    /// The largest free block, with fast ones consolidated with their neighbours, and without the
    /// top chunk.
    pub largest_free_bytes: u64,
    /// Free blocks in the bins, by size.
    pub free_classes: [Class; CLASSES],
    /// Used blocks, by size.
    pub used_classes: [Class; CLASSES],
    /// The resident part of these bytes.
    pub resident: ResidentTally,
    /// Resident bytes that `malloc_trim(0)` would return: all reclaimable bytes, except for those
    /// in top chunks of thread heaps and the remainder from rounding; and the locked ones at the
    /// end of the main heap, which it unmaps.
    pub trim_bytes: u64,
    /// The part of the reclaimable bytes in single free blocks and in top chunks, which can be
    /// returned before fast ones are consolidated with their neighbours.
    pub single_bytes: u64,
    /// Bytes that could not be walked.
    pub unwalked_bytes: u64,
}

/// Blocks of about one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Class {
    /// Number of blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The resident bytes of a heap by kind. They are disjoint and complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ResidentTally {
    /// Blocks that the program has, and those in thread caches.
    pub used_bytes: u64,
    /// Whole free pages, which can be returned to the OS.
    pub reclaimable_bytes: u64,
    /// Whole free pages that are locked.
    pub locked_bytes: u64,
    /// Free bytes on pages that something else retains.
    pub fragmented_bytes: u64,
    /// Pages that only the head of a free block retains, and the allocator's own structures.
    pub metadata_bytes: u64,
    /// Bytes that could not be walked.
    pub unwalked_bytes: u64,
}

impl ResidentTally {
    /// Returns the sum of all rows.
    pub fn total(&self) -> u64 {
        self.used_bytes
            + self.reclaimable_bytes
            + self.locked_bytes
            + self.fragmented_bytes
            + self.metadata_bytes
            + self.unwalked_bytes
    }

    fn add(&mut self, other: &Self) {
        self.used_bytes += other.used_bytes;
        self.reclaimable_bytes += other.reclaimable_bytes;
        self.locked_bytes += other.locked_bytes;
        self.fragmented_bytes += other.fragmented_bytes;
        self.metadata_bytes += other.metadata_bytes;
        self.unwalked_bytes += other.unwalked_bytes;
    }
}

impl Class {
    /// Returns the smallest size of a class in bytes, and the first size beyond it, or `None` for
    /// the last class.
    pub fn bounds(class: usize) -> (u64, Option<u64>) {
        let power = class.min(CLASSES - 1);
        (1 << power, (power + 1 < CLASSES).then_some(2 << power))
    }

    /// Returns the class of a size.
    #[inline]
    pub(super) fn index_of(bytes: u64) -> usize {
        (bytes.max(1).ilog2() as usize).min(CLASSES - 1)
    }

    #[inline]
    pub(super) fn count(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

impl Tally {
    /// Adds the sums of another stretch.
    pub fn add(&mut self, other: &Self) {
        self.used_count += other.used_count;
        self.used_bytes += other.used_bytes;
        self.free_count += other.free_count;
        self.free_bytes += other.free_bytes;
        self.fast_count += other.fast_count;
        self.fast_bytes += other.fast_bytes;
        self.top_bytes += other.top_bytes;
        self.largest_free_bytes = self.largest_free_bytes.max(other.largest_free_bytes);
        let classes = self.free_classes.iter_mut().zip(&other.free_classes);
        let used = self.used_classes.iter_mut().zip(&other.used_classes);
        for (mine, theirs) in classes.chain(used) {
            mine.count += theirs.count;
            mine.bytes += theirs.bytes;
        }
        self.resident.add(&other.resident);
        self.trim_bytes += other.trim_bytes;
        self.single_bytes += other.single_bytes;
        self.unwalked_bytes += other.unwalked_bytes;
    }

    /// Returns the number of walked chunks, without the top chunks.
    pub fn chunks(&self) -> u64 {
        self.used_count + self.free_count + self.fast_count
    }
}

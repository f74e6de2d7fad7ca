//! What a heap holds, in numbers.

use serde::Serialize;

/// Classes of sizes: those of class `n` have from 2ⁿ to 2ⁿ⁺¹ bytes, those of the last any more.
pub const CLASSES: usize = 32;

/// What a stretch of a heap holds, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Blocks that the program has, and those that a thread's cache holds back.
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
    /// Bytes at the top, behind the last block.
    pub top_bytes: u64,
    /// The largest free block, fast ones joined with their neighbours and the top aside.
    pub largest_free_bytes: u64,
    /// Free blocks in the bins, by size.
    pub free_classes: [Class; CLASSES],
    /// Used blocks, by size.
    pub used_classes: [Class; CLASSES],
    /// What of these bytes is resident.
    pub resident: ResidentTally,
    /// Resident bytes that `malloc_trim(0)` would return.
    pub trim_bytes: u64,
    /// Resident bytes in whole free pages that it does not return: tops of thread heaps, and what it
    /// rounds off.
    pub more_bytes: u64,
    /// What of both lies in single free blocks and in tops: what can go back before fast ones are
    /// joined with their neighbours.
    pub single_bytes: u64,
    /// Bytes that could not be walked.
    pub unwalked_bytes: u64,
}

/// Blocks of about one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Class {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Resident bytes of a heap by what they are. They are apart from each other, and are all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ResidentTally {
    /// Blocks that the program has, and those that a thread's cache holds back.
    pub used_bytes: u64,
    /// Whole free pages, which can go back.
    pub reclaimable_bytes: u64,
    /// Free bytes on pages that something else keeps.
    pub fragmented_bytes: u64,
    /// Pages that only the head of a free block keeps, and the allocator's own structures.
    pub metadata_bytes: u64,
    /// Bytes that could not be walked.
    pub unwalked_bytes: u64,
}

impl ResidentTally {
    /// Returns all of them.
    pub fn total(&self) -> u64 {
        self.used_bytes
            + self.reclaimable_bytes
            + self.fragmented_bytes
            + self.metadata_bytes
            + self.unwalked_bytes
    }

    fn add(&mut self, other: &Self) {
        self.used_bytes += other.used_bytes;
        self.reclaimable_bytes += other.reclaimable_bytes;
        self.fragmented_bytes += other.fragmented_bytes;
        self.metadata_bytes += other.metadata_bytes;
        self.unwalked_bytes += other.unwalked_bytes;
    }
}

impl Class {
    /// Returns the least size of a class in bytes, and the first that is too large for it; the last
    /// class has none.
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
    /// Adds what another stretch holds.
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
        self.more_bytes += other.more_bytes;
        self.single_bytes += other.single_bytes;
        self.unwalked_bytes += other.unwalked_bytes;
    }

    /// Every chunk that was gone over, the tops aside.
    pub fn chunks(&self) -> u64 {
        self.used_count + self.free_count + self.fast_count
    }
}

//! Blocks in use by size and age, as snapshots of a heap count them.

/// Number of random parts into which the places of a heap are divided. The variance of their counts
/// shows the precision of an estimate from a sample of the places.
pub const PARTS: usize = 16;

/// Size from which on blocks are sampled separately, in bytes.
pub const LARGE_BYTES: u64 = 64 << 10;

/// Blocks of one size class that were first seen in the same snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CohortCount {
    /// The size class: see [`size_class`].
    pub class: u16,
    /// The snapshot in which they were first seen. Cohort 0 existed before.
    pub cohort: u8,
    /// Number of blocks that are left.
    pub count: u32,
}

/// The counts of one snapshot, in the sampled part of the heap.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Seconds since the first snapshot.
    pub t_s: f64,
    /// The part of the blocks of less than [`LARGE_BYTES`] that was sampled, from 0 to 1.
    pub sampled_share: f64,
    /// The part of the larger blocks that was sampled, from 0 to 1.
    pub large_sampled_share: f64,
    /// Blocks by class and cohort, in this order; no entry has the count 0.
    pub counts: Vec<CohortCount>,
}

impl Snapshot {
    /// Returns the part of the blocks of a size class that was sampled.
    pub fn share_of(&self, class: u16) -> f64 {
        if class < size_class(LARGE_BYTES) { self.sampled_share } else { self.large_sampled_share }
    }
}

/// A size class in the newest snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassSizes {
    /// The smallest block, in bytes.
    pub smallest_bytes: u64,
    /// The largest block, in bytes.
    pub largest_bytes: u64,
    /// Number of blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl ClassSizes {
    /// Returns the mean size of a block, in bytes; 0 if there are none.
    pub fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.count.max(1) as f64
    }
}

/// Size up to which each class spans 8 bytes, in bytes.
const EXACT_BYTES: u64 = 1024;
/// Number of classes between a power of two and the next, above that size.
const CLASSES_IN_DOUBLING: u64 = 8;

/// Returns the size class of a block: exact up to 1 KiB, and eight classes for each doubling above
/// that.
pub fn size_class(bytes: u64) -> u16 {
    if bytes <= EXACT_BYTES {
        return (bytes / 8) as u16;
    }
    let power = u64::from(bytes.ilog2());
    let step = (bytes >> (power - 3)) & (CLASSES_IN_DOUBLING - 1);
    (EXACT_BYTES / 8 + (power - 10) * CLASSES_IN_DOUBLING + step) as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_increase_with_the_block_size() {
        let mut last = 0;
        for bytes in (8..1 << 16).step_by(8).chain([1 << 20, 1 << 30, 1 << 47]) {
            let class = size_class(bytes);
            assert!(class >= last, "{bytes}");
            last = class;
        }
        assert_ne!(size_class(72), size_class(80));
        assert_eq!(size_class(2050), size_class(2100));
        assert_ne!(size_class(1024), size_class(1032));
        assert!(size_class(u64::MAX) < 1024);
    }
}

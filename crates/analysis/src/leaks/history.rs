//! What the snapshots of a process have counted.

use std::collections::BTreeMap;

use lowtide_model::survivors::{ClassSizes, PARTS, Snapshot};

/// The counts of all snapshots.
#[derive(Debug, Clone, Copy)]
pub struct History<'h> {
    /// The snapshots that were kept, in order, including the first and the newest.
    pub snapshots: &'h [Snapshot],
    /// The end of each cohort: its blocks are older than that. Those of cohort 0 existed before the
    /// first snapshot.
    pub cohorts: &'h [f64],
    /// The sizes of each class in the newest snapshot, in the sampled part of the heap.
    pub sizes: &'h BTreeMap<u16, ClassSizes>,
    /// The survivors by class, in each part of the sampled places.
    pub parts: &'h BTreeMap<u16, [u64; PARTS]>,
    /// The same of all blocks that were allocated since the first snapshot.
    pub parts_of_all: &'h BTreeMap<u16, [u64; PARTS]>,
    /// Minimum age of a survivor, in seconds.
    pub older_s: f64,
}

/// Counts of one class, by cohort.
pub(super) type CohortCounts = BTreeMap<u8, f64>;

impl History<'_> {
    pub(super) fn now(&self) -> Option<&Snapshot> {
        self.snapshots.last()
    }

    pub(super) fn now_s(&self) -> f64 {
        self.cohorts.last().copied().unwrap_or(0.0)
    }

    /// Returns the end of a cohort, in seconds since the first snapshot.
    pub(super) fn end_s(&self, cohort: u8) -> f64 {
        self.cohorts.get(usize::from(cohort)).copied().unwrap_or(0.0)
    }

    /// Returns the time over which the blocks of a cohort were allocated, in seconds.
    pub(super) fn duration_s(&self, cohort: u8) -> f64 {
        self.end_s(cohort) - self.end_s(cohort.saturating_sub(1))
    }

    /// Returns the age of the youngest block of a cohort, in seconds.
    pub(super) fn age_s(&self, cohort: u8) -> f64 {
        self.now_s() - self.end_s(cohort)
    }

    /// Returns the bytes of all blocks in use, as an estimate.
    pub(super) fn in_use_bytes(&self) -> f64 {
        let Some(now) = self.now() else { return 0.0 };
        self.sizes.iter().map(|(class, sizes)| sizes.bytes as f64 / now.share_of(*class)).sum()
    }

    /// Returns the sizes of a class; zeros if it has no blocks.
    pub(super) fn sizes_of(&self, class: u16) -> ClassSizes {
        self.sizes.get(&class).copied().unwrap_or_default()
    }

    /// Returns the snapshot that is nearest to a time, but not before `from_s`.
    pub(super) fn nearest(&self, t_s: f64, from_s: f64) -> Option<&Snapshot> {
        let distance = |snapshot: &&Snapshot| (snapshot.t_s - t_s).abs();
        let later = self.snapshots.iter().filter(|snapshot| snapshot.t_s >= from_s);
        later.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

/// Returns the estimated counts of some classes by cohort.
pub(super) fn counts_in(snapshot: &Snapshot, classes: &[u16]) -> CohortCounts {
    let mut counts = CohortCounts::new();
    for class in classes {
        let first = snapshot.counts.partition_point(|found| found.class < *class);
        let of_class = snapshot.counts[first..].iter().take_while(|found| found.class == *class);
        for found in of_class {
            *counts.entry(found.cohort).or_default() +=
                f64::from(found.count) / snapshot.share_of(*class);
        }
    }
    counts
}

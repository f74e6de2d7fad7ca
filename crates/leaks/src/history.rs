//! The stored snapshots, whose number is limited even in a long run.

use lowtide_model::survivors::{CohortCount, Snapshot};

use crate::book::{BookCounts, MAX_COHORTS};

/// Maximum number of stored snapshots.
const MAX_SNAPSHOTS: usize = 40;

/// Snapshots of a heap, and the times when their cohorts ended.
#[derive(Debug, Default)]
pub(crate) struct SnapshotHistory {
    snapshots: Vec<Snapshot>,
    cohorts: Vec<f64>,
}

impl SnapshotHistory {
    /// Returns the stored snapshots, in order; the first and the newest are among them.
    pub(crate) fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Returns when each cohort ended, in seconds since the first snapshot.
    pub(crate) fn cohorts(&self) -> &[f64] {
        &self.cohorts
    }

    /// Adds a snapshot that was complete, and that ended a cohort.
    pub(crate) fn add(&mut self, t_s: f64, counted: &BookCounts, shares: [f64; 2]) {
        self.cohorts.push(t_s);
        let [sampled_share, large_sampled_share] = shares;
        let counts = counted.counts.clone();
        self.snapshots.push(Snapshot { t_s, sampled_share, large_sampled_share, counts });
        while self.snapshots.len() > MAX_SNAPSHOTS {
            self.thin(t_s);
        }
    }

    /// Removes the snapshot whose neighbours are closest to each other, relative to its age.
    fn thin(&mut self, now_s: f64) {
        let gap = |place: usize| {
            let t = |place: usize| self.snapshots[place].t_s;
            (t(place + 1) - t(place - 1)) / (now_s - t(place) + 1.0)
        };
        let inner = 1..self.snapshots.len() - 1;
        if let Some(place) = inner.min_by(|a, b| gap(*a).total_cmp(&gap(*b))) {
            self.snapshots.remove(place);
        }
    }

    /// Merges the older half of the cohorts in pairs if there are too many. Returns the new number
    /// of each, or `None` if nothing changes.
    pub(crate) fn merge(&mut self) -> Option<Vec<u8>> {
        if self.cohorts.len() < usize::from(MAX_COHORTS) {
            return None;
        }
        let merged = self.cohorts.len() / 2;
        // Cohort 0 is never merged.
        let new = |cohort: usize| match cohort {
            0 => 0,
            cohort if cohort <= merged => cohort.div_ceil(2),
            cohort => cohort - merged + merged.div_ceil(2),
        };
        // The cohort of the next snapshot is renumbered as well.
        let renumbered: Vec<u8> =
            (0..=self.cohorts.len()).map(|cohort| new(cohort) as u8).collect();
        let mut ends = vec![0.0; new(self.cohorts.len() - 1) + 1];
        for (cohort, end) in self.cohorts.iter().enumerate() {
            ends[new(cohort)] = *end;
        }
        self.cohorts = ends;
        for snapshot in &mut self.snapshots {
            let mut counts: Vec<CohortCount> = Vec::with_capacity(snapshot.counts.len());
            for found in &snapshot.counts {
                let cohort = renumbered[usize::from(found.cohort)];
                match counts.last_mut() {
                    Some(last) if (last.class, last.cohort) == (found.class, cohort) => {
                        last.count += found.count;
                    }
                    _ => counts.push(CohortCount { cohort, ..*found }),
                }
            }
            snapshot.counts = counts;
        }
        Some(renumbered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(cohort: u8) -> BookCounts {
        let counts = (0..=cohort).map(|cohort| CohortCount { class: 4, cohort, count: 1 });
        BookCounts { counts: counts.collect(), ..BookCounts::default() }
    }

    #[test]
    fn the_first_and_newest_snapshots_are_kept_and_older_ones_are_thinned_out() {
        let mut history = SnapshotHistory::default();
        for look in 0..90 {
            history.add(f64::from(look) * 5.0, &counted(look), [1.0, 1.0]);
        }
        let times: Vec<f64> = history.snapshots().iter().map(|snapshot| snapshot.t_s).collect();
        assert_eq!(
            (times.len(), times[0], times[39], times[38]),
            (MAX_SNAPSHOTS, 0.0, 445.0, 440.0)
        );
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
        let half = |t: f64| times.iter().map(|time| (time - t).abs()).fold(f64::MAX, f64::min);
        assert!((0..445).all(|t| half(f64::from(t)) <= 25.0), "{times:?}");
    }

    #[test]
    fn merged_cohorts_add_their_counts_and_take_the_later_end() {
        let mut history = SnapshotHistory::default();
        for look in 0..MAX_COHORTS {
            assert_eq!(history.merge(), None);
            history.add(f64::from(look), &counted(look), [1.0, 1.0]);
        }
        let renumbered = history.merge().unwrap();
        assert_eq!(renumbered.len(), usize::from(MAX_COHORTS) + 1);
        assert_eq!(renumbered[..5], [0, 1, 1, 2, 2]);
        assert!(renumbered.windows(2).all(|pair| pair[1] - pair[0] <= 1), "{renumbered:?}");
        let cohorts = history.cohorts();
        assert_eq!(cohorts.len(), usize::from(*renumbered.last().unwrap()));
        assert_eq!(cohorts[..3], [0.0, 2.0, 4.0]);
        assert_eq!(cohorts.last(), Some(&f64::from(MAX_COHORTS - 1)));
        let newest = history.snapshots().last().unwrap();
        let count: u32 = newest.counts.iter().map(|found| found.count).sum();
        assert_eq!(count, u32::from(MAX_COHORTS));
        assert_eq!(newest.counts[1].count, 2);
    }
}

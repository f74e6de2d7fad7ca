//! The rate at which blocks were added at last.

use std::ops::Range;

use super::history::{CohortCounts, History};

/// Minimum later growth rate, as a part of the first rate: below it, a size is filling up.
pub(super) const MIN_LATER_RATE: f64 = 0.5;
/// Maximum later rate of lost blocks, as a part of the first rate, if the leak may have stopped,
/// and minimum number of blocks that the first rate would have added by then.
const MAX_STOPPED_RATE: f64 = 0.1;
const MIN_EXPECTED: f64 = 5.0;

/// The rates at which blocks were added at first and at last: those of the first third of the
/// cohorts, and of the last third without the newest. The last ones are not old enough, so the rate
/// is an overestimate rather than an underestimate.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaterRate {
    first_per_s: f64,
    /// Number of blocks of the last third, and its duration in seconds.
    last: (f64, f64),
}

impl LaterRate {
    pub(super) fn new(
        history: &History<'_>,
        old: &Range<u8>,
        counts: &CohortCounts,
    ) -> Option<Self> {
        let end = history.cohorts.len().saturating_sub(1) as u8;
        let third = (end.saturating_sub(old.start) / 3).min(old.len() as u8);
        let of = |cohorts: Range<u8>| {
            let count = counts.range(cohorts.clone()).fold(0.0, |sum, (_, count)| sum + count);
            (count, cohorts.map(|cohort| history.duration_s(cohort)).sum::<f64>())
        };
        let ((count, duration_s), last) = (of(old.start..old.start + third), of(end - third..end));
        let first_per_s = count / duration_s;
        (third > 0 && first_per_s.is_finite()).then_some(Self { first_per_s, last })
    }

    /// Returns the last rate, in blocks per second.
    pub(super) fn per_s(&self) -> f64 {
        let (count, duration_s) = self.last;
        count / duration_s
    }

    /// Returns whether the last rate is much lower than the first.
    pub(super) fn is_slower(&self) -> bool {
        self.share().is_some_and(|share| share < MIN_LATER_RATE)
    }

    /// Returns the last rate as a part of the first.
    pub(super) fn share(&self) -> Option<f64> {
        let per_s = self.per_s();
        (self.first_per_s > 0.0 && per_s.is_finite()).then_some(per_s / self.first_per_s)
    }

    /// Returns whether far fewer blocks were added at last than the first rate leads one to expect,
    /// where so few cannot be chance.
    pub(super) fn has_stopped(&self) -> bool {
        let (count, duration_s) = self.last;
        let expected = self.first_per_s * duration_s;
        expected >= MIN_EXPECTED && count < expected * MAX_STOPPED_RATE
    }
}

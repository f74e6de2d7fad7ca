//! The difference of one metric: its interval, the verdict, and the repeats that would decide it.

use lowtide_model::stats::{Estimate, median, order_statistic};
use serde::Serialize;

/// Probability that the interval misses the true difference, both sides together: 1 in 1,024 on
/// each.
pub const BOTH_TAILS: f64 = 2.0 / 1024.0;
/// Minimum number of repeats for a verdict: the range of fewer differences misses the true one too
/// often.
pub const FEWEST_PAIRS: u32 = 10;
/// Maximum number of repeats that are proposed: more would take too long.
const MAX_PAIRS: u32 = 200;

/// What the repeats show of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionVerdict {
    /// The newer version needs more: the whole interval exceeds the margin.
    Worse,
    /// It needs less: the whole interval is below the negative margin.
    Better,
    /// Any difference is within the margin: the whole interval is.
    Same,
    /// The interval crosses the margin, or there are too few repeats for one.
    NotResolved,
}

impl VersionVerdict {
    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worse => "worse",
            Self::Better => "better",
            Self::Same => "the same within the noise",
            Self::NotResolved => "not resolved",
        }
    }

    fn new(low: f64, high: f64, margin: f64) -> Self {
        match (low, high) {
            (low, _) if low > margin => Self::Worse,
            (_, high) if high < -margin => Self::Better,
            (low, high) if low >= -margin && high <= margin => Self::Same,
            _ => Self::NotResolved,
        }
    }
}

/// A difference in bytes, newer minus older version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Lower end of the interval; below [`FEWEST_PAIRS`] repeats, the least difference.
    pub low: i64,
    /// Median difference.
    pub median: i64,
    /// Upper end of the interval; below [`FEWEST_PAIRS`] repeats, the greatest difference.
    pub high: i64,
}

/// One metric of both versions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComparedMetric {
    /// What the repeats show.
    pub verdict: VersionVerdict,
    /// Median of the older version in bytes.
    pub base_bytes: Option<u64>,
    /// Median of the newer version in bytes.
    pub head_bytes: Option<u64>,
    /// The difference; `null` if no repeat has both.
    pub difference_bytes: Option<Interval>,
    /// Difference that does not matter, in bytes.
    pub margin_bytes: u64,
    /// Number of repeats that have it of both versions.
    pub repeats: u32,
    /// Number of further repeats that would probably decide it, if their noise is that of the
    /// repeats so far; `null` if it is decided, or if the difference is too close to the margin.
    pub repeats_needed: Option<u32>,
}

impl ComparedMetric {
    /// Compares the values of each repeat, the older version first. `margin` returns the difference
    /// that does not matter for a value of the older version.
    pub(super) fn new(values: &[[f64; 2]], margin: impl Fn(f64) -> f64) -> Self {
        let of = |place: usize| median(&values.iter().map(|v| v[place]).collect::<Vec<_>>());
        let (base, head) = (of(0), of(1));
        let margin = margin(base.unwrap_or(0.0));
        let mut differences: Vec<f64> = values.iter().map(|[base, head]| head - base).collect();
        differences.sort_by(f64::total_cmp);
        let estimate = Estimate::outside_at_most(&differences, BOTH_TAILS);
        let verdict = match estimate {
            Some(e) if e.n >= FEWEST_PAIRS as usize => VersionVerdict::new(e.low, e.high, margin),
            _ => VersionVerdict::NotResolved,
        };
        let repeats = differences.len() as u32;
        let needed = || fewest_resolving(&differences, margin)?.checked_sub(repeats);
        Self {
            verdict,
            base_bytes: base.map(|bytes| bytes as u64),
            head_bytes: head.map(|bytes| bytes as u64),
            difference_bytes: estimate.map(|e| Interval {
                low: e.low as i64,
                median: e.median as i64,
                high: e.high as i64,
            }),
            margin_bytes: margin as u64,
            repeats,
            repeats_needed: if verdict == VersionVerdict::NotResolved { needed() } else { None },
        }
    }

    /// Returns the interval; `None` if there are too few repeats for one.
    pub fn interval(&self) -> Option<Interval> {
        self.difference_bytes.filter(|_| self.repeats >= FEWEST_PAIRS)
    }

    /// Returns a difference as a part of the older version's memory.
    pub fn share(&self, difference: i64) -> Option<f64> {
        let base = self.base_bytes.filter(|bytes| *bytes > 0)?;
        Some(difference as f64 / base as f64)
    }
}

/// Returns the least number of repeats whose interval would not cross the margin, if further
/// differences are distributed as those so far; `sorted` are these.
fn fewest_resolving(sorted: &[f64], margin: f64) -> Option<u32> {
    let fewest = (sorted.len() as u32 + 1).max(FEWEST_PAIRS);
    (fewest..=MAX_PAIRS).find(|n| {
        let skipped = order_statistic(*n as usize, BOTH_TAILS) as f64 + 0.5;
        let at = |share: f64| quantile(sorted, share);
        let share = skipped / f64::from(*n);
        let ends = at(share).zip(at(1.0 - share));
        ends.is_some_and(|(low, high)| {
            VersionVerdict::new(low, high, margin) != VersionVerdict::NotResolved
        })
    })
}

/// Returns a quantile, interpolated between the values; the i-th of n values stands for the share
/// (i + ½) / n.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = (share * sorted.len() as f64 - 0.5).clamp(0.0, sorted.len().max(1) as f64 - 1.0);
    let (below, above) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1_048_576.0;

    fn compared(differences: &[f64]) -> ComparedMetric {
        let values: Vec<[f64; 2]> =
            differences.iter().map(|d| [100.0 * MIB, (100.0 + d) * MIB]).collect();
        ComparedMetric::new(&values, |base| (base * 0.01).max(MIB))
    }

    #[test]
    fn the_verdict_needs_the_whole_interval_on_one_side_of_the_margin() {
        use VersionVerdict::{Better, NotResolved, Same, Worse};
        for (differences, verdict) in [
            ([5.0; 10], Worse),
            ([-5.0; 10], Better),
            ([0.9; 10], Same),
            ([1.0; 10], Same),
            ([5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 0.5], NotResolved),
            ([0.0, 0.1, -0.2, 0.3, 0.0, 0.0, 0.0, 0.0, -3.0, 3.0], NotResolved),
        ] {
            assert_eq!(compared(&differences).verdict, verdict, "{differences:?}");
        }
    }

    #[test]
    fn fewer_than_ten_repeats_decide_nothing() {
        let few = compared(&[50.0; 9]);
        assert_eq!((few.verdict, few.repeats_needed), (VersionVerdict::NotResolved, Some(1)));
        assert_eq!(few.interval(), None);
        let none = compared(&[]);
        assert_eq!((none.verdict, none.repeats_needed), (VersionVerdict::NotResolved, None));
        assert_eq!(none.difference_bytes, None);
    }

    #[test]
    fn the_repeats_needed_follow_from_the_noise_so_far() {
        // One outlier of ten: 14 repeats may drop one value at each end.
        let mut differences = [5.0; 10];
        differences[9] = 0.0;
        let needed = compared(&differences).repeats_needed.unwrap();
        assert!((4..=30).contains(&needed), "{needed}");
        // Half of them are on each side of the margin: no number of repeats decides.
        let split = [0.0, 2.0, 0.0, 2.0, 0.0, 2.0, 0.0, 2.0, 0.0, 2.0];
        assert_eq!(compared(&split).repeats_needed, None);
        assert_eq!(compared(&[5.0; 10]).repeats_needed, None);
    }

    #[test]
    fn a_share_refers_to_the_older_version() {
        let metric = compared(&[5.0; 10]);
        let share = metric.share(metric.interval().unwrap().low).unwrap();
        assert!((share - 0.05).abs() < 1e-9, "{share}");
    }
}

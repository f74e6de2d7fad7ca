//! Statistics of a few repeated measurements.
//!
//! Below six repeats only the range is reported: no distribution-free interval for a median reaches
//! 95 % there. From six on, the interval is the one between two order statistics, whose coverage
//! follows from the binomial distribution alone (the inverted sign test; see for instance Conover,
//! *Practical Nonparametric Statistics*, section 3.2).

use serde::Serialize;

/// Minimum number of repeats for an interval instead of the range.
pub const ENOUGH_FOR_INTERVAL: usize = 6;

/// Minimum distance of a median from a value, as a multiple of the width of the range, for them to
/// be distinguished, by the number of measurements. For two and three, these are the 5 % points of
/// the median over the range of normal noise (E. Lord, *Biometrika* 34, 1947, has them for the
/// mean: 6.35 and 1.30); for four and five, where the points are below one, the whole range.
const RANGES: [f64; ENOUGH_FOR_INTERVAL] = [f64::INFINITY, f64::INFINITY, 6.4, 1.35, 1.0, 1.0];

/// A median with its range or interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Number of measurements.
    pub n: usize,
    /// Their median.
    pub median: f64,
    /// Lower end of the range (n < 6) or of the interval.
    pub low: f64,
    /// Upper end of the range (n < 6) or of the interval.
    pub high: f64,
}

impl Estimate {
    /// Summarises measurements; returns `None` if there are none, or one is not a number.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        Self::outside_at_most(values, BOTH_TAILS)
    }

    /// The same with another error of the interval: the true median is outside of it with a
    /// probability of at most `both_tails`, half of it on each side. `low` and `high` are the range
    /// if there are fewer measurements than [`fewest_for`].
    pub fn outside_at_most(values: &[f64], both_tails: f64) -> Option<Self> {
        let sorted = sorted(values)?;
        let n = sorted.len();
        let skip = order_statistic(n, both_tails);
        Some(Self {
            n,
            median: median_of_sorted(&sorted),
            low: sorted[skip],
            high: sorted[n - 1 - skip],
        })
    }

    /// Returns whether `low` and `high` are an interval; otherwise they are the range.
    pub(crate) fn is_interval(&self) -> bool {
        self.n >= ENOUGH_FOR_INTERVAL
    }

    /// Returns whether the measurements distinguish the true value from `value`: there is more than
    /// one, `value` is outside of the range or interval and, if it is a range, so far from the
    /// median that noise alone would produce such a distance in at most one of twenty cases.
    pub fn resolved_from(&self, value: f64) -> bool {
        if self.n < 2 || (self.low <= value && value <= self.high) {
            return false;
        }
        let ranges = RANGES.get(self.n).copied().unwrap_or(0.0);
        (self.median - value).abs() > ranges * (self.high - self.low)
    }

    /// Returns the name of the range or interval: `range, n = 3` or `95 % interval, n = 8`.
    pub fn kind(&self) -> String {
        match self.n {
            1 => "n = 1".to_owned(),
            n if self.is_interval() => format!("95 % interval, n = {n}"),
            n => format!("range, n = {n}"),
        }
    }
}

/// Drops every other sample. The first one stays.
pub fn thin<T>(samples: &mut Vec<T>) {
    let mut is_kept = false;
    samples.retain(|_| {
        is_kept = !is_kept;
        is_kept
    });
}

/// Returns the median; `None` without values. For an even number, it is the mean of the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).map(|v| median_of_sorted(&v))
}

fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

/// Returns the median of sorted values, of which there is at least one.
pub fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// Error of the interval of [`Estimate::from_values`].
const BOTH_TAILS: f64 = 0.05;

/// Returns the minimum number of measurements whose range misses the true median with a probability
/// of at most `both_tails`: the median of n values is outside of their range in 2 of 2ⁿ cases.
pub fn fewest_for(both_tails: f64) -> usize {
    (2.0 / both_tails).log2().ceil() as usize
}

/// Returns the number of values that may be dropped at each end so that the rest misses the true
/// median with a probability of at most `both_tails`. Zero below [`fewest_for`] values.
pub fn order_statistic(n: usize, both_tails: f64) -> usize {
    if n < fewest_for(both_tails) {
        return 0;
    }
    // Walks up the binomial distribution with p = 1/2 while both tails together stay within it.
    let mut probability = 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    if probability == 0.0 {
        // Above a thousand values, the normal approximation is exact enough.
        let half = n as f64 / 2.0;
        let reach = if both_tails < BOTH_TAILS { 1.65 } else { 0.98 };
        return (half - reach * (n as f64).sqrt()).max(0.0) as usize;
    }
    let mut tail = 0.0;
    let mut k = 0;
    loop {
        tail += probability;
        if 2.0 * tail > both_tails {
            return k.max(1) - 1;
        }
        k += 1;
        probability *= (n - k + 1) as f64 / k as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fewer_than_six_values_yield_a_range() {
        let e = Estimate::from_values(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((e.median, e.low, e.high, e.is_interval()), (2.0, 1.0, 3.0, false));
        assert_eq!(e.kind(), "range, n = 3");
    }

    #[test]
    fn six_values_are_the_minimum_for_an_interval() {
        let e = Estimate::from_values(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert_eq!((e.median, e.low, e.high), (3.5, 1.0, 6.0));
        assert!(e.is_interval());
    }

    #[test]
    fn the_interval_drops_as_many_values_as_the_sign_test_allows() {
        // From tables of the sign test at 5 %, two-sided: n = 8 and below lose none, 9 to 11 lose
        // one at each end, 12 to 14 two, 15 and 16 three, 20 five, 50 seventeen.
        for (n, dropped) in
            [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (14, 2), (15, 3), (16, 3), (20, 5), (50, 17)]
        {
            assert_eq!(order_statistic(n, BOTH_TAILS), dropped, "n = {n}");
        }
    }

    #[test]
    fn a_stricter_interval_needs_more_values() {
        assert_eq!((fewest_for(0.05), fewest_for(0.002)), (ENOUGH_FOR_INTERVAL, 10));
        let dropped = |n| order_statistic(n, 0.002);
        assert_eq!([9, 10, 13, 14, 20].map(dropped), [0, 0, 0, 1, 2]);
        let values: Vec<f64> = (0..14).map(f64::from).collect();
        let e = Estimate::outside_at_most(&values, 0.002).unwrap();
        assert_eq!((e.low, e.high), (1.0, 12.0));
    }

    #[test]
    fn a_large_sample_does_not_underflow() {
        let dropped = order_statistic(2000, BOTH_TAILS);
        assert!((950..=957).contains(&dropped), "{dropped}");
    }

    #[test]
    fn one_measurement_resolves_nothing() {
        assert!(!Estimate::from_values(&[5.0]).unwrap().resolved_from(0.0));
    }

    #[test]
    fn an_effect_smaller_than_the_range_is_not_resolved() {
        assert!(!Estimate::from_values(&[5.0, 6.0]).unwrap().resolved_from(0.0));
        assert!(Estimate::from_values(&[8.0, 9.0]).unwrap().resolved_from(0.0));
        assert!(!Estimate::from_values(&[-1.0, 9.0, 10.0]).unwrap().resolved_from(0.0));
        assert!(!Estimate::from_values(&[7.0, 7.0, 13.0]).unwrap().resolved_from(0.0));
        assert!(Estimate::from_values(&[8.0, 8.0, 13.0]).unwrap().resolved_from(0.0));
    }

    #[test]
    fn noise_alone_is_resolved_in_at_most_one_case_of_twenty() {
        // The sum of twelve uniform numbers is practically normal.
        let mut state = 1_u64;
        let mut even = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for n in 2..=9 {
            let mut resolved = 0;
            for _ in 0..20_000 {
                let noise: Vec<f64> =
                    (0..n).map(|_| (0..12).map(|_| even()).sum::<f64>() - 6.0).collect();
                resolved += i32::from(Estimate::from_values(&noise).unwrap().resolved_from(0.0));
            }
            assert!(resolved <= 1080, "n = {n}: {resolved} of 20,000");
        }
    }

    #[test]
    fn an_empty_sample_has_no_median() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN]), None);
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
    }

    proptest! {
        #[test]
        fn the_median_lies_within_its_bounds(
            values in proptest::collection::vec(-1e9_f64..1e9, 1..60)
        ) {
            let e = Estimate::from_values(&values).unwrap();
            prop_assert!(e.low <= e.median && e.median <= e.high);
        }
    }
}

//! Memory over time, and the values that are derived from it.

use lowtide_model::stats;

/// Bytes over seconds, sorted by time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series(Vec<(f64, f64)>);

impl Series {
    /// Returns a series of points (seconds, bytes), sorted by time. Drops points that step back in
    /// time.
    pub fn new(points: impl IntoIterator<Item = (f64, u64)>) -> Self {
        let mut last = f64::NEG_INFINITY;
        let mut kept = Vec::new();
        for (t, bytes) in points {
            if t >= last {
                last = t;
                kept.push((t, bytes as f64));
            }
        }
        Self(kept)
    }

    /// Returns the readings from `from` to `to`, both included.
    pub(super) fn between(&self, from: f64, to: f64) -> &[(f64, f64)] {
        let begin = self.0.partition_point(|p| p.0 < from);
        let end = self.0.partition_point(|p| p.0 <= to);
        self.0.get(begin..end).unwrap_or(&[])
    }

    /// Returns the median of the readings from `from` to `to`, both included; without any, the last
    /// reading before `to`.
    pub(crate) fn median_between(&self, from: f64, to: f64) -> Option<u64> {
        self.median_within(from, to).or_else(|| self.at(to))
    }

    /// Returns the median of the readings from `from` to `to`, both included.
    pub(crate) fn median_within(&self, from: f64, to: f64) -> Option<u64> {
        let values: Vec<f64> = self.between(from, to).iter().map(|p| p.1).collect();
        stats::median(&values).map(|m| m.round() as u64)
    }

    /// Returns the last reading at or before `t`.
    pub fn at(&self, t: f64) -> Option<u64> {
        let end = self.0.partition_point(|p| p.0 <= t);
        self.0.get(end.checked_sub(1)?).map(|p| p.1 as u64)
    }

    /// Returns the reading at exactly this time, if there is one.
    pub fn reading_at(&self, t: f64) -> Option<u64> {
        self.0.get(self.0.partition_point(|p| p.0 < t)).filter(|p| p.0 <= t).map(|p| p.1 as u64)
    }

    /// Returns the first reading from `t` on, if it is at most `within` seconds later; otherwise
    /// the last one before.
    pub(crate) fn just_after(&self, t: f64, within: f64) -> Option<u64> {
        let next = self.0.get(self.0.partition_point(|p| p.0 < t));
        next.filter(|p| p.0 <= t + within).map(|p| p.1 as u64).or_else(|| self.at(t))
    }

    /// Returns the highest reading from `from` to `to`.
    pub(crate) fn max_between(&self, from: f64, to: f64) -> Option<u64> {
        self.between(from, to).iter().map(|p| p.1 as u64).max()
    }

    /// Returns the lowest reading from `from` to `to`.
    pub(crate) fn min_between(&self, from: f64, to: f64) -> Option<u64> {
        self.between(from, to).iter().map(|p| p.1 as u64).min()
    }

    /// Returns the first time at which `level` is reached.
    pub(crate) fn first_at_least(&self, level: f64) -> Option<f64> {
        self.0.iter().find(|p| p.1 >= level).map(|p| p.0)
    }

    /// Returns the last time up to `to` with a reading above `level`.
    pub(crate) fn last_above(&self, level: f64, to: f64) -> Option<f64> {
        let end = self.0.partition_point(|p| p.0 <= to);
        self.0.get(..end)?.iter().rev().find(|p| p.1 > level).map(|p| p.0)
    }

    /// Returns the times of the first and the last reading.
    pub fn span(&self) -> Option<(f64, f64)> {
        Some((self.0.first()?.0, self.0.last()?.0))
    }

    /// Returns the integral over time of the memory above `floor`, from `from` to `to`, in
    /// byte-seconds. The course between two readings is taken as linear and cut off at both ends.
    /// Times without readings count as zero.
    pub(crate) fn area_above(&self, floor: f64, from: f64, to: f64) -> f64 {
        self.0
            .windows(2)
            .map(|pair| {
                let (t0, y0) = pair[0];
                let (t1, y1) = pair[1];
                let (a, b) = (t0.max(from), t1.min(to));
                if b <= a || t1 <= t0 {
                    return 0.0;
                }
                let y_at = |t: f64| y0 + (y1 - y0) * (t - t0) / (t1 - t0);
                area_of_segment(y_at(a) - floor, y_at(b) - floor, b - a)
            })
            .sum()
    }
}

/// Returns the area between a line segment and zero, where the segment is above zero.
fn area_of_segment(begin: f64, end: f64, width: f64) -> f64 {
    match (begin > 0.0, end > 0.0) {
        (true, true) => width * f64::midpoint(begin, end),
        (false, false) => 0.0,
        (true, false) => width * begin / (begin - end) * begin / 2.0,
        (false, true) => width * end / (end - begin) * end / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn triangle() -> Series {
        Series::new([(0.0, 0), (1.0, 100), (2.0, 0)])
    }

    #[test]
    fn the_area_is_clipped_to_the_interval_at_both_ends() {
        assert_eq!(triangle().area_above(0.0, 0.0, 2.0), 100.0);
        assert_eq!(triangle().area_above(0.0, 0.5, 1.5), 75.0);
        assert_eq!(triangle().area_above(0.0, 5.0, 9.0), 0.0);
    }

    #[test]
    fn only_the_area_above_the_floor_counts() {
        assert_eq!(triangle().area_above(50.0, 0.0, 2.0), 25.0);
        assert_eq!(triangle().area_above(100.0, 0.0, 2.0), 0.0);
    }

    #[test]
    fn a_window_without_readings_uses_the_last_reading_before_it() {
        let series = Series::new([(0.0, 5), (1.0, 7)]);
        assert_eq!(series.median_between(3.0, 4.0), Some(7));
        assert_eq!(series.median_between(-3.0, -2.0), None);
    }

    #[test]
    fn a_reading_just_after_is_preferred_to_an_earlier_one() {
        assert_eq!(triangle().just_after(0.9, 0.2), Some(100));
        assert_eq!(triangle().just_after(0.5, 0.2), Some(0));
        assert_eq!(triangle().just_after(1.0, 0.2), Some(100));
        assert_eq!(triangle().just_after(9.0, 0.2), Some(0));
        assert_eq!(Series::default().just_after(1.0, 0.2), None);
    }

    #[test]
    fn readings_that_step_back_in_time_are_dropped() {
        let series = Series::new([(0.0, 1), (5.0, 2), (3.0, 9), (6.0, 3)]);
        assert_eq!(series.max_between(0.0, 10.0), Some(3));
    }
}

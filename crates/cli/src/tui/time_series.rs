//! Metrics over an unlimited time: when there are too many points, neighbours are merged.

/// Maximum number of points: more than a terminal has columns.
const MAX_POINTS: usize = 800;

/// `N` metrics over time. Merging points keeps the maximum of each metric.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimeSeries<const N: usize> {
    points: Vec<(f64, [u64; N])>,
}

impl<const N: usize> TimeSeries<N> {
    /// Adds a point.
    pub(crate) fn add(&mut self, t_s: f64, values: [u64; N]) {
        if self.points.len() >= MAX_POINTS {
            self.points = self.points.chunks(2).map(merged).collect();
        }
        self.points.push((t_s, values));
    }

    /// Returns one of the metrics, as the points of a line.
    pub(crate) fn line(&self, which: usize) -> Vec<(f64, f64)> {
        self.points.iter().filter_map(|(t, f)| Some((*t, *f.get(which)? as f64))).collect()
    }

    /// Returns the maximum of one of the metrics.
    pub(crate) fn highest(&self, which: usize) -> u64 {
        self.points.iter().filter_map(|(_, f)| f.get(which).copied()).max().unwrap_or(0)
    }
}

fn merged<const N: usize>(pair: &[(f64, [u64; N])]) -> (f64, [u64; N]) {
    let (t_s, mut maxima) = pair.first().copied().unwrap_or((0.0, [0; N]));
    for (_, others) in pair {
        for (maximum, other) in maxima.iter_mut().zip(others) {
            *maximum = (*maximum).max(*other);
        }
    }
    (t_s, maxima)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_its_start_its_end_and_its_maximum() {
        let mut series = TimeSeries::<2>::default();
        for i in 0..100_000_u64 {
            series.add(i as f64, [if i == 4567 { 9 } else { 1 }, i]);
        }
        let line = series.line(1);
        assert!(line.len() <= MAX_POINTS, "{}", line.len());
        assert_eq!((line[0].0, line[line.len() - 1]), (0.0, (99_999.0, 99_999.0)));
        assert!(line.windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!((series.highest(0), series.highest(1)), (9, 99_999));
        assert!(series.line(7).is_empty());
    }
}

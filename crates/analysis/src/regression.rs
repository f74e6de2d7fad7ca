//! A slope with its interval: the number of bytes per additional connection.
//!
//! The slope is the median of the slopes of all pairs of points (Theil 1950, Sen 1968), which is
//! robust against a garbage collection in the middle, or a first step that includes code. Its
//! interval is that of Sen, from the variance of Kendall's score. Memory at one moment depends on
//! the previous moment, so neighbouring points carry less information than independent ones: the
//! variance is increased according to the autocorrelation of the residuals (Yue and Wang, *Water
//! Resources Management* 18, 2004, for a first-order process).

use serde::Serialize;

use lowtide_model::stats::median_of_sorted;

/// Minimum number of points for a slope.
pub const FEWEST_POINTS: usize = 6;
/// Maximum number of points: more are thinned out evenly, since the number of pairs grows with the
/// square.
const MOST_POINTS: usize = 400;
/// The normal quantile of a two-sided 95 % interval.
const QUANTILE: f64 = 1.96;

/// The slope of a line, with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slope {
    /// Number of points.
    pub n: usize,
    /// Increase for each additional one.
    pub each: f64,
    /// Lower end of the 95 % interval; `None` if there are too few points for one.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval; `None` if there are too few points for one.
    pub high: Option<f64>,
}

impl Slope {
    /// Returns the common slope of several lines, each of points (x, y) in order of time, whose
    /// levels may differ. Returns `None` for fewer than [`FEWEST_POINTS`] points, or if all x are
    /// equal.
    pub fn fit<L: AsRef<[(f64, f64)]>>(lines: impl IntoIterator<Item = L>) -> Option<Self> {
        let lines: Vec<_> = lines.into_iter().map(|line| thinned(line.as_ref())).collect();
        let n = lines.iter().map(Vec::len).sum();
        let mut slopes: Vec<f64> = lines.iter().flat_map(|line| slopes(line)).collect();
        if n < FEWEST_POINTS || slopes.is_empty() {
            return None;
        }
        slopes.sort_by(f64::total_cmp);
        let each = median_of_sorted(&slopes);
        let variance: f64 =
            lines.iter().map(|line| variance_of_score(line) * widening(line, each)).sum();
        let reach = QUANTILE * variance.sqrt();
        let all = slopes.len() as f64;
        let (low, high) = ((all - reach) / 2.0, f64::midpoint(all, reach));
        let is_within = low >= 1.0 && high < all;
        let at = |place: f64| slopes.get(place as usize).copied().filter(|_| is_within);
        Some(Self { n, each, low: at(low.floor() - 1.0), high: at(high.ceil()) })
    }
}

fn thinned(line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    line.iter().copied().step_by(line.len().div_ceil(MOST_POINTS).max(1)).collect()
}

/// Returns the slope of each pair with different x.
fn slopes(line: &[(f64, f64)]) -> impl Iterator<Item = f64> {
    line.iter().enumerate().flat_map(move |(place, (x0, y0))| {
        let others = line[place + 1..].iter().filter(move |(x1, _)| x1 != x0);
        others.map(move |(x1, y1)| (y1 - y0) / (x1 - x0))
    })
}

/// Returns the variance of Kendall's score, corrected for equal x.
fn variance_of_score(line: &[(f64, f64)]) -> f64 {
    let term = |n: usize| {
        let n = n as f64;
        n * (n - 1.0) * (2.0 * n + 5.0)
    };
    let mut x: Vec<f64> = line.iter().map(|point| point.0).collect();
    x.sort_by(f64::total_cmp);
    let ties: f64 = x.chunk_by(|a, b| a == b).map(|equal| term(equal.len())).sum();
    (term(line.len()) - ties) / 18.0
}

/// Returns the factor by which the variance exceeds that of independent points.
fn widening(line: &[(f64, f64)], each: f64) -> f64 {
    let mut rest: Vec<f64> = line.iter().map(|(x, y)| y - each * x).collect();
    let mean = rest.iter().sum::<f64>() / rest.len().max(1) as f64;
    rest.iter_mut().for_each(|value| *value -= mean);
    let spread: f64 = rest.iter().map(|value| value * value).sum();
    let together: f64 = rest.windows(2).map(|pair| pair[0] * pair[1]).sum();
    if spread <= 0.0 || together <= 0.0 {
        return 1.0;
    }
    let (correlation, n) = (together / spread, rest.len());
    let mut power = 1.0;
    let sum: f64 = (1..n)
        .map(|lag| {
            power *= correlation;
            (1.0 - lag as f64 / n as f64) * power
        })
        .sum();
    1.0 + 2.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns uniform numbers from -0.5 to 0.5, the same each time.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        }
    }

    fn line(n: usize, mut y: impl FnMut(f64) -> f64) -> Vec<(f64, f64)> {
        (0..n).map(|i| i as f64 * 100.0).map(|x| (x, y(x))).collect()
    }

    #[test]
    fn a_straight_line_has_an_exact_slope_and_a_zero_width_interval() {
        let slope = Slope::fit([line(11, |x| 5e6 + 8192.0 * x)]).unwrap();
        assert_eq!((slope.n, slope.each), (11, 8192.0));
        assert_eq!((slope.low, slope.high), (Some(8192.0), Some(8192.0)));
    }

    #[test]
    fn an_initial_step_and_a_single_collection_do_not_change_the_slope() {
        let steep = |x: f64| if x == 0.0 { 0.0 } else { 9e6 };
        let collected = |x: f64| if x == 700.0 { 4e6 } else { 0.0 };
        let slope = Slope::fit([line(30, |x| 8192.0 * x + steep(x) - collected(x))]).unwrap();
        assert!((slope.each - 8192.0).abs() < 200.0, "{slope:?}");
        assert!(slope.low.unwrap() <= 8192.0 && slope.high.unwrap() >= 8192.0, "{slope:?}");
    }

    #[test]
    fn rounds_share_the_slope_and_have_their_own_levels() {
        let rounds = [line(6, |x| 3.0 * x), line(6, |x| 1e6 + 3.0 * x), line(6, |x| 2e6 + 3.0 * x)];
        let slope = Slope::fit(&rounds).unwrap();
        assert_eq!((slope.n, slope.each), (18, 3.0));
    }

    #[test]
    fn too_few_points_yield_no_slope_and_two_clusters_yield_no_interval() {
        assert_eq!(Slope::fit([line(5, |x| x)]), None);
        assert_eq!(Slope::fit([vec![(100.0, 1.0); 9]]), None);
        assert_eq!(Slope::fit([[]; 0]), None);
        let two = [(0.0, 1.0), (0.0, 2.0), (0.0, 1.0), (9.0, 5.0), (9.0, 6.0), (9.0, 5.0)];
        let slope = Slope::fit([two.to_vec()]).unwrap();
        assert_eq!((slope.low, slope.high), (None, None), "{slope:?}");
    }

    #[test]
    fn the_interval_covers_the_slope_in_most_cases_even_with_autocorrelation() {
        for (memory, least) in [(0.0, 0.93), (0.7, 0.85)] {
            let mut next = noise(7);
            let (mut held, mut found) = (0, 0);
            for _ in 0..1000 {
                let mut last = 0.0;
                let wandering = line(40, |x| {
                    last = memory * last + next();
                    2.0 * x + 400.0 * last
                });
                let slope = Slope::fit([wandering]).unwrap();
                if let Some((low, high)) = slope.low.zip(slope.high) {
                    found += 1;
                    held += i32::from(low <= 2.0 && 2.0 <= high);
                }
            }
            assert!(found > 900, "{found}");
            assert!(f64::from(held) >= least * f64::from(found), "{memory}: {held} of {found}");
        }
    }

    #[test]
    fn a_long_line_is_thinned() {
        let slope = Slope::fit([line(100_000, |x| 2.0 * x)]).unwrap();
        assert!(slope.n <= MOST_POINTS && slope.each == 2.0, "{slope:?}");
    }
}

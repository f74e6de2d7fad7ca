//! Detects whether a series rises.
//!
//! A trend is detected by the test of Mann and Kendall (Mann 1945, Kendall 1975), which counts the
//! pairs of samples that rise and those that fall. Its rate is the estimate of Theil and Sen: the
//! median of the slopes of all pairs. Both are robust against a single burst.

use lowtide_model::stats;

/// Minimum number of samples that can show a trend.
pub const MIN_SAMPLES: usize = 5;
/// Normal quantile of the 1 % level: chance alone produces such a trend in 1 of 100 cases.
const SIGNIFICANT: f64 = 2.326;

/// Minimum distance of a spike from both neighbours, in multiples of the median step.
const SPIKE: f64 = 3.0;

/// Returns the rate at which a series rises, in its unit per second, if the trend is significant.
pub(crate) fn rising(series: &[(f64, f64)]) -> Option<f64> {
    let n = series.len();
    if n < MIN_SAMPLES {
        return None;
    }
    let score: f64 = pairs(series).map(|((_, y0), (_, y1))| sign(y1 - y0)).sum();
    let n = n as f64;
    let variance = n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    // With few samples, not even a rise at every step would be significant.
    let is_trend = (score - 1.0) / variance.sqrt() >= SIGNIFICANT.min(largest_score(n, variance));
    slope(series).filter(|rate| is_trend && *rate > 0.0)
}

/// Returns the median slope of all pairs of a series, in its unit per second; `None` without two
/// samples of different times.
pub(crate) fn slope(series: &[(f64, f64)]) -> Option<f64> {
    let slopes = pairs(series).filter(|((t0, _), (t1, _))| t1 > t0);
    let slopes: Vec<f64> = slopes.map(|((t0, y0), (t1, y1))| (y1 - y0) / (t1 - t0)).collect();
    stats::median(&slopes)
}

/// Returns the slope of the line of least squares through a series, in its unit per second; 0
/// without two different times. The slopes of parts add up to that of their sum.
pub(super) fn line_slope(series: &[(f64, f64)]) -> f64 {
    let count = series.len() as f64;
    let mean_s = series.iter().map(|(t_s, _)| t_s).sum::<f64>() / count;
    let mean = series.iter().map(|(_, y)| y).sum::<f64>() / count;
    let spread: f64 = series.iter().map(|(t_s, _)| (t_s - mean_s).powi(2)).sum();
    let along: f64 = series.iter().map(|(t_s, y)| (t_s - mean_s) * (y - mean)).sum();
    if spread > 0.0 { along / spread } else { 0.0 }
}

/// Returns the samples without isolated spikes: those that lie far above or below both neighbours,
/// such as RSS while a large block is copied to another place. The first and the last sample stay.
pub(super) fn without_spikes<T>(samples: &[T], value: impl Fn(&T) -> f64) -> Vec<&T> {
    let values: Vec<f64> = samples.iter().map(value).collect();
    let steps: Vec<f64> = values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    let far = SPIKE * stats::median(&steps).unwrap_or(0.0);
    let is_spike = |place: usize| {
        let neighbours = place.checked_sub(1).and_then(|before| values.get(before));
        let Some((before, after)) = neighbours.zip(values.get(place + 1)) else { return false };
        let [up, down] = [values[place] - before, values[place] - after];
        up.abs() > far && down.abs() > far && up.signum() == down.signum()
    };
    let places = (0..samples.len()).filter(|place| !is_spike(*place));
    places.map(|place| &samples[place]).collect()
}

/// Returns each sample with each later one.
fn pairs(series: &[(f64, f64)]) -> impl Iterator<Item = ((f64, f64), (f64, f64))> {
    let later = |place: usize| series[place + 1..].iter();
    series.iter().enumerate().flat_map(move |(place, one)| later(place).map(|two| (*one, *two)))
}

fn sign(difference: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { difference.signum() }
}

/// Returns the largest possible score.
fn largest_score(n: f64, variance: f64) -> f64 {
    (n * (n - 1.0) / 2.0 - 1.0) / variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(series: &[f64]) -> Vec<f64> {
        without_spikes(series, |value| *value).into_iter().copied().collect()
    }

    #[test]
    fn isolated_spikes_are_left_out_and_steps_saws_and_ends_are_not() {
        let spikes = [0.0, 1.0, 2.0, 90.0, 4.0, 5.0, 6.0, 7.0, 8.0, -70.0, 10.0, 11.0, 80.0];
        let others = [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 11.0, 80.0];
        assert_eq!(values(&spikes), others);
        let saw = [0.0, 9.0, 0.0, 9.0, 0.0, 9.0];
        let steps = [0.0, 0.0, 5.0, 5.0, 5.0, 10.0, 10.0];
        let drops = [0.0, 3.0, 6.0, 9.0, 0.0, 3.0, 6.0, 9.0, 0.0];
        for series in [&saw[..], &steps, &drops, &[1.0], &[]] {
            assert_eq!(values(series), series);
        }
    }
}

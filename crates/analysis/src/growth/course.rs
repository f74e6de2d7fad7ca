//! The course of RSS.

use lowtide_model::growth::GrowthCourse;
use lowtide_model::stats::median;

use super::trend::{rising, slope};

/// Minimum growth that is noticed: as a share of RSS, and in bytes.
const MIN_SHARE: f64 = 0.02;
const MIN_BYTES: f64 = (1 << 20) as f64;
/// The same if there are too few samples to know how much RSS fluctuates.
const MIN_SHARE_UNSURE: f64 = 0.1;
/// Minimum growth that is not called level, in bytes: of a process of any size, and of a small one,
/// as a part of its RSS and in bytes.
const MIN_LITTLE: f64 = (256 << 10) as f64;
const MIN_LITTLE_SHARE: f64 = 0.1;
const MIN_LITTLE_OF_SMALL: f64 = (64 << 10) as f64;
/// Minimum growth as a multiple of the spread of the samples around their line.
const SPREADS: f64 = 3.0;
/// Minimum number of samples for a spread.
const MIN_SAMPLES: usize = 4;
/// Minimum part of the growth that the line through the samples must explain.
const EXPLAINED: f64 = 0.5;
/// Minimum part of the growth that lies in each half of the run, if it is steady.
const MIN_HALF: f64 = 0.2;

/// Returns the course of RSS over readings of it: times in seconds, and bytes.
pub(super) fn course(readings: &[(f64, u64)]) -> GrowthCourse {
    let Some((first, last)) = readings.first().zip(readings.last()) else {
        return GrowthCourse::Unknown;
    };
    let (before, rise) = (first.1 as f64, last.1 as f64 - first.1 as f64);
    if readings.len() < MIN_SAMPLES {
        let is_large = rise >= (before * MIN_SHARE_UNSURE).max(4.0 * MIN_BYTES);
        return if is_large { GrowthCourse::Steady } else { GrowthCourse::Unknown };
    }
    let middle_s = f64::midpoint(first.0, last.0);
    let middle = readings[readings.partition_point(|(t_s, _)| *t_s < middle_s)].1 as f64;
    let halves = [middle - before, last.1 as f64 - middle];
    let series: Vec<(f64, f64)> = readings.iter().map(|(t_s, rss)| (*t_s, *rss as f64)).collect();
    let slope = slope(&series).unwrap_or(0.0);
    let is_steady = slope * (last.0 - first.0) >= rise * EXPLAINED
        && rise >= SPREADS * spread(&series, slope)
        && halves.iter().all(|half| *half >= MIN_HALF * rise);
    let is_large = is_noticeable(first.1, rise);
    let steps: Vec<f64> = series.windows(2).map(|pair| (pair[1].1 - pair[0].1).abs()).collect();
    let little = (before * MIN_LITTLE_SHARE).clamp(MIN_LITTLE_OF_SMALL, MIN_LITTLE);
    match () {
        () if is_large && is_steady => GrowthCourse::Steady,
        () if is_large && rise >= SPREADS * median(&steps).unwrap_or(0.0) => GrowthCourse::Once,
        () if is_steady && rise >= little && rising(&series).is_some() => GrowthCourse::Little,
        () => GrowthCourse::Level,
    }
}

/// Returns whether growth from this RSS is noticed at all, both in bytes.
pub(super) fn is_noticeable(rss_bytes: u64, rise: f64) -> bool {
    rise >= (rss_bytes as f64 * MIN_SHARE).max(MIN_BYTES)
}

/// Returns whether RSS, in bytes, rose noticeably from the first reading to the last.
pub(crate) fn has_risen([before, after]: [u64; 2]) -> bool {
    is_noticeable(before, after.saturating_sub(before) as f64)
}

/// Returns the spread of a series around a line: the median absolute deviation, scaled to a
/// standard deviation.
fn spread(series: &[(f64, f64)], slope: f64) -> f64 {
    let heights: Vec<f64> = series.iter().map(|(t_s, y)| y - slope * t_s).collect();
    let level = median(&heights).unwrap_or(0.0);
    let distances: Vec<f64> = heights.iter().map(|height| (height - level).abs()).collect();
    median(&distances).unwrap_or(0.0) * 1.4826
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the course of these readings, in MiB, each 10 s.
    fn course_of(mib: &[u64]) -> GrowthCourse {
        let at = |(place, mib): (usize, &u64)| (place as f64 * 10.0, mib << 20);
        course(&mib.iter().enumerate().map(at).collect::<Vec<_>>())
    }

    #[test]
    fn a_steady_rise_is_steady_with_noise_with_few_readings_and_in_few_large_steps() {
        for rss in [
            &[44, 120, 210, 290, 380, 460, 543][..],
            &[100, 112, 108, 121, 119, 131, 128],
            &[100, 100, 130, 130, 130, 170, 170, 170, 210],
            &[44, 120],
        ] {
            assert_eq!(course_of(rss), GrowthCourse::Steady, "{rss:?}");
        }
    }

    #[test]
    fn fluctuation_is_level() {
        for rss in [
            &[400, 480, 390, 470, 410, 480, 460][..],
            &[400, 401, 399, 400, 401, 400, 402],
            &[400, 300, 200, 100],
        ] {
            assert_eq!(course_of(rss), GrowthCourse::Level, "{rss:?}");
        }
        for rss in [&[400, 402][..], &[]] {
            assert_eq!(course_of(rss), GrowthCourse::Unknown, "{rss:?}");
        }
    }

    #[test]
    fn steady_growth_below_the_minimum_is_little_and_not_level() {
        assert_eq!(course_of(&[400, 401, 402, 403, 404, 405, 406]), GrowthCourse::Little);
    }

    #[test]
    fn a_single_step_is_growth_that_happened_once() {
        for rss in [
            &[100, 200, 200, 200, 200, 200, 200][..],
            &[100, 100, 100, 200, 200, 200, 200],
            &[100, 100, 100, 100, 100, 100, 200],
        ] {
            assert_eq!(course_of(rss), GrowthCourse::Once, "{rss:?}");
        }
    }

    #[test]
    fn the_halves_of_a_run_are_halves_of_its_time() {
        // It grew only in the first minute of ten, in which most readings were taken.
        let first = (0..12_u64).map(|step| (step as f64 * 5.0, (100 + step * 10) << 20));
        let later = (1..10).map(|minute| (f64::from(minute) * 60.0, 220 << 20));
        assert_eq!(course(&first.chain(later).collect::<Vec<_>>()), GrowthCourse::Once);
    }
}

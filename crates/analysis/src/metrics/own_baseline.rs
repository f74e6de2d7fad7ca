//! The baseline of a command that loads itself, from its own trace.
//!
//! The trace is split into stretches in which memory rises by at most a fiftieth of the whole rise.
//! A ramp crosses each stretch in the same fraction of its duration, whether the ramp is short or
//! long. While memory does not rise, a stretch lasts longer. So the rule compares stretches with
//! the ramp that follows, and needs no absolute time to decide what is flat.

use super::Series;

/// Maximum change of memory within a stretch, as a part of the rise.
const SPREAD: f64 = 0.02;
/// Part of the rise below which a stretch must lie completely to be before the load.
const LOW: f64 = 0.3;
/// Minimum duration of a stretch, in seconds: a start-up passes through shorter ones.
const SHORTEST_S: f64 = 0.3;
/// Time in which the kernel and the loader start a program, in seconds, and memory below which it
/// is then not yet the program's, in bytes.
const START_S: f64 = 0.1;
const STARTING: f64 = 1024.0 * 1024.0;
/// Minimum duration of a level stretch before the load, as a multiple of the time in which the
/// following ramp rises by [`SPREAD`].
const STILL: f64 = 2.0;
/// Maximum slope after the start-up, as a multiple of the slope of the whole ramp.
const STEEP: f64 = 2.0;
/// Minimum slope of the start-up on average, as a multiple of that of the ramp, for which its end
/// is the baseline.
const STEEP_START: f64 = 4.0;
/// Minimum duration of the baseline, as a part of the longest level stretch. The first stretch of
/// this duration is the baseline.
const LONG: f64 = 0.5;

/// Part of a trace in which memory changes little.
#[derive(Debug, Clone, Copy)]
struct FlatStretch {
    begin: f64,
    end: f64,
    /// Lower quartile of its readings: near its bottom on a ramp, and on its level elsewhere.
    bytes: u64,
}

impl FlatStretch {
    fn lasts(&self) -> f64 {
        self.end - self.begin
    }
}

/// The memory from which the load of a command raised its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnBaseline {
    /// Bytes.
    pub(super) bytes: u64,
    /// Whether it is the level of a stretch before the load. Otherwise, memory rose from the start
    /// on, and another run of the same command would have another figure.
    pub(super) is_stable: bool,
}

/// Returns the memory that a command had before its own load, from a trace that starts at `from`
/// and has its peak at `top`, both in seconds. It is the level of a low and long standstill, or the
/// memory at which a steep start-up became the ramp. Without either, it is not stable: the memory
/// at which memory began to rise as it did later, or the lowest reading before the peak. The first
/// readings, of a process that the kernel is still starting, do not count.
pub(super) fn own_baseline(series: &Series, from: f64, top: f64) -> Option<OwnBaseline> {
    let lowest = series.min_between(from, top)?;
    let rise = series.max_between(from, top)?.saturating_sub(lowest) as f64;
    let stretches: Vec<FlatStretch> = stretches(series, from, top, SPREAD * rise)
        .filter(|stretch| stretch.lasts() >= SHORTEST_S)
        .take_while(|stretch| (stretch.bytes as f64) < lowest as f64 + LOW * rise)
        .collect();
    // Slope of the rise after a point, in bytes per second.
    let steepness =
        |t: f64, bytes: f64| (lowest as f64 + rise - bytes) / (top - t).max(f64::EPSILON);
    let still = || {
        stretches.iter().filter(|stretch| {
            let ramp_s = SPREAD * rise / steepness(stretch.end, stretch.bytes as f64);
            stretch.lasts() >= STILL * ramp_s
        })
    };
    let longest = still().map(FlatStretch::lasts).fold(0.0, f64::max);
    if let Some(first) = still().find(|stretch| stretch.lasts() >= LONG * longest) {
        return Some(OwnBaseline { bytes: first.bytes, is_stable: true });
    }
    let is_starting = |(t, bytes): &&(f64, f64)| *t < from + START_S && *bytes < STARTING;
    let started = series.between(from, top).iter().find(|reading| !is_starting(reading));
    let started = started.map_or(from, |(t, _)| *t);
    let readings = series.between(started, top).iter();
    let mut low = readings.take_while(|(_, bytes)| *bytes < lowest as f64 + LOW * rise);
    let begun = low.find(|(t, bytes)| {
        let next = series.max_between(*t, t + SHORTEST_S).unwrap_or(0) as f64;
        t + SHORTEST_S <= top && next - bytes <= STEEP * SHORTEST_S * steepness(*t, *bytes)
    });
    let is_steep = |t: f64, bytes: f64| {
        let start_up = bytes / (t - from).max(f64::EPSILON);
        t > from && start_up >= STEEP_START * steepness(t, bytes)
    };
    match begun {
        Some((t, bytes)) => {
            let is_stable = rise <= 0.0 || is_steep(*t, *bytes);
            Some(OwnBaseline { bytes: *bytes as u64, is_stable })
        }
        None => {
            let bytes = series.min_between(started, top)?;
            Some(OwnBaseline { bytes, is_stable: rise <= 0.0 })
        }
    }
}

/// Splits a trace into stretches, each as long as possible while its readings differ by at most
/// `spread` bytes.
fn stretches(
    series: &Series,
    from: f64,
    to: f64,
    spread: f64,
) -> impl Iterator<Item = FlatStretch> + '_ {
    let mut left = series.between(from, to);
    std::iter::from_fn(move || {
        let (begin, first) = *left.first()?;
        let (mut low, mut high) = (first, first);
        let count = left
            .iter()
            .take_while(|(_, bytes)| {
                (low, high) = (low.min(*bytes), high.max(*bytes));
                high - low <= spread
            })
            .count();
        let (stretch, rest) = left.split_at(count.max(1));
        left = rest;
        // It lasts until the next one starts: readings may be rare.
        let end = rest.first().or(stretch.last()).map_or(begin, |point| point.0);
        let mut bytes: Vec<f64> = stretch.iter().map(|point| point.1).collect();
        bytes.sort_by(f64::total_cmp);
        Some(FlatStretch { begin, end, bytes: bytes[bytes.len() / 4].round() as u64 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_record::fixtures::MIB;

    /// Returns readings ten times a second, in MiB.
    fn trace(seconds: f64, of: impl Fn(f64) -> f64) -> Series {
        let ticks = (seconds * 10.0).round() as u32;
        Series::new((0..=ticks).map(|tick| {
            let t = f64::from(tick) / 10.0;
            (t, (of(t) * MIB as f64) as u64)
        }))
    }

    /// Returns the baseline of half a second of start-up to 40 MiB, some time there, and then a
    /// ramp to 1,000 MiB by a course from 0 to 1; and whether it is stable.
    fn baseline(still: f64, ramp: f64, course: impl Fn(f64) -> f64) -> (f64, bool) {
        let begin = 0.5 + still;
        let series = trace(begin + ramp, |t| match t {
            t if t < 0.5 => 80.0 * t,
            t if t < begin => 40.0,
            t => 40.0 + 960.0 * course(((t - begin) / ramp).min(1.0)),
        });
        let found = own_baseline(&series, 0.0, begin + ramp).unwrap();
        (found.bytes as f64 / MIB as f64, found.is_stable)
    }

    fn stable(bytes: u64) -> Option<OwnBaseline> {
        Some(OwnBaseline { bytes, is_stable: true })
    }

    const RAMPS: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 200.0, 600.0];

    #[test]
    fn the_baseline_is_found_before_a_ramp_of_any_length() {
        for ramp in RAMPS {
            for still in [1.0, 3.0, 0.3 * ramp, 10.0] {
                let (found, is_stable) = baseline(still, ramp, |x| x);
                assert!((found - 40.0).abs() < 12.0, "{ramp} s after {still} s: {found} MiB");
                assert!(is_stable, "{ramp} s after {still} s");
            }
        }
    }

    #[test]
    fn the_baseline_is_found_for_a_ramp_that_starts_immediately() {
        for ramp in RAMPS {
            let (found, is_stable) = baseline(0.0, ramp, |x| x);
            // A ramp of a few seconds is as steep as the preceding start-up.
            assert!((0.0..60.0).contains(&found), "{ramp} s: {found} MiB");
            // No moment is between two rises that are about equally steep.
            let steeper = 80.0 / (960.0 / ramp);
            assert!(is_stable || steeper < STEEP_START, "{ramp} s");
            assert!(!is_stable || !(0.7..3.0).contains(&steeper), "{ramp} s");
        }
    }

    #[test]
    fn the_baseline_does_not_depend_on_the_shape_of_the_ramp() {
        for ramp in RAMPS {
            for (name, most, course) in [
                ("faster and faster", 30.0, (|x| x * x) as fn(f64) -> f64),
                ("slower and slower", 30.0, |x| x.powf(0.7)),
                // If its first step is longer than the time before it, its load may have started
                // there.
                ("in ten steps", 97.0, |x| (x * 10.0).ceil() / 10.0),
                ("in a hundred steps", 30.0, |x| (x * 100.0).floor() / 100.0),
                ("with waves", 30.0, |x| (x + 0.015 * (x * 200.0).sin()).max(0.0)),
            ] {
                let (found, is_stable) = baseline(2.0, ramp, course);
                assert!((found - 40.0).abs() < most, "{name}, {ramp} s: {found} MiB");
                assert!(is_stable, "{name}, {ramp} s");
            }
        }
    }

    #[test]
    fn of_several_plateaus_the_longest_is_the_baseline() {
        // The interpreter, its libraries, its data; then the load.
        let series = trace(20.0, |t| match t {
            t if t < 0.5 => 10.0,
            t if t < 1.5 => 40.0,
            t if t < 6.0 => 150.0,
            t => 150.0 + (t - 6.0) * 60.0,
        });
        assert_eq!(own_baseline(&series, 0.0, 20.0), stable(150 * MIB));
    }

    #[test]
    fn one_reading_per_second_is_enough() {
        let series =
            Series::new((0..60).map(|t: u64| (t as f64, (180 + 77 * t.saturating_sub(4)) * MIB)));
        assert_eq!(own_baseline(&series, 0.0, 59.0), stable(180 * MIB));
    }

    #[test]
    fn the_baseline_of_a_trace_without_a_ramp_is_its_minimum() {
        assert_eq!(own_baseline(&Series::default(), 0.0, 1.0), None);
        assert_eq!(own_baseline(&trace(5.0, |_| 7.0), 0.0, 5.0), stable(7 * MIB));
        let short = own_baseline(&trace(0.2, |t| t * 100.0), 0.0, 0.2).unwrap();
        assert_eq!(short, OwnBaseline { bytes: 10 * MIB, is_stable: false });
    }

    #[test]
    fn a_reading_of_a_process_that_is_still_starting_is_no_baseline() {
        // The second page of the stack at 4 ms, and a ramp that starts with the program.
        let readings = [(0.004, 20_480), (0.15, 15 * MIB), (0.3, 18 * MIB)].into_iter();
        let ramp = (4..=20_u32).map(|tick| (f64::from(tick) / 10.0, u64::from(tick) * 7 * MIB));
        let found = own_baseline(&Series::new(readings.chain(ramp)), 0.0, 2.0).unwrap();
        assert!((15 * MIB..=28 * MIB).contains(&found.bytes), "{found:?}");
    }
}

//! Axes with round numbers at equal distances.

use lowtide_model::bytes::three_digits;

/// Maps values to positions along an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    /// The value at the start of the axis.
    pub(crate) low: f64,
    /// The value at its end.
    pub(crate) high: f64,
    /// The start of the axis, in pixels.
    pub(crate) from: f64,
    /// The end of the axis, in pixels; above `from` or below.
    pub(crate) to: f64,
}

impl Scale {
    /// Returns the position of a value.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let span = self.high - self.low;
        let part = if span > 0.0 { (value - self.low) / span } else { 0.0 };
        self.from + part * (self.to - self.from)
    }
}

/// Returns round values from `low` to `high`: at most `most`, at the first of `steps` that yields
/// no more.
fn ticks(low: f64, high: f64, most: usize, steps: impl Iterator<Item = f64>) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![low];
    }
    for step in steps {
        if span / step <= most as f64 {
            let first = (low / step).ceil() as i64;
            let last = (high / step + 1e-9).floor() as i64;
            return (first..=last).map(|n| n as f64 * step).collect();
        }
    }
    vec![low]
}

/// Returns the unit for the labels of an axis up to `high`.
fn byte_unit(high: f64) -> (&'static str, f64) {
    const UNITS: [(&str, f64); 5] = [
        ("TiB", 1_099_511_627_776.0),
        ("GiB", 1_073_741_824.0),
        ("MiB", 1_048_576.0),
        ("KiB", 1024.0),
        ("B", 1.0),
    ];
    UNITS.into_iter().find(|(_, unit)| high >= *unit).unwrap_or(("B", 1.0))
}

/// Returns round amounts of memory, in the unit of the largest.
pub(crate) fn byte_ticks(high: f64, most: usize) -> Vec<f64> {
    let (_, unit) = byte_unit(high);
    let steps = [0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
    ticks(0.0, high, most, steps.into_iter().map(|s| s * unit))
}

/// Returns the end of a memory axis from 0 on, at or above `high`, and its labels at equal
/// distances.
pub fn byte_axis(high: f64, most: usize) -> (f64, Vec<String>) {
    // A single tick shows no scale, so one more than `most` is accepted.
    let ticks = (most..most + 4).map(|most| byte_ticks(high, most)).find(|t| t.len() > 1);
    let step = ticks.and_then(|t| Some(t.get(1)? - t.first()?)).unwrap_or(high.max(1.0));
    let count = (high / step).ceil().max(1.0);
    let ceiling = count * step;
    let labels = (0..=count as usize).map(|i| byte_label(i as f64 * step, ceiling)).collect();
    (ceiling, labels)
}

/// Returns round times, in seconds: tenths, seconds, minutes, hours.
pub(crate) fn time_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let steps = [
        0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0,
        3600.0, 7200.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0,
    ];
    ticks(low, high, most, steps.into_iter())
}

/// Returns round counts, of connections or requests.
pub(crate) fn count_ticks(high: f64, most: usize) -> Vec<f64> {
    let powers = (0..18).map(|n| 10_f64.powi(n));
    ticks(0.0, high, most, powers.flat_map(|p| [1.0, 2.0, 5.0].into_iter().map(move |w| w * p)))
}

/// Formats an amount of memory for an axis whose largest tick is `largest`.
pub(crate) fn byte_label(value: f64, largest: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let (name, unit) = byte_unit(largest);
    let number = value / unit;
    let text = if number.fract().abs() < 1e-9 {
        format!("{number:.0}")
    } else {
        three_digits(number).trim_end_matches('0').to_owned()
    };
    format!("{text} {name}")
}

/// Formats a time for an axis whose largest tick is `largest`.
pub fn time_label(seconds: f64, largest: f64) -> String {
    let sign = if seconds < 0.0 { "−" } else { "" };
    let s = seconds.abs();
    if largest < 60.0 && (s * 10.0).round() % 10.0 != 0.0 {
        return format!("{sign}{s:.1} s");
    }
    if largest <= 180.0 {
        return format!("{sign}{s:.0} s");
    }
    let whole = s.round() as u64;
    if largest < 7200.0 {
        return format!("{sign}{}:{:02}", whole / 60, whole % 60);
    }
    format!("{sign}{}:{:02} h", whole / 3600, whole / 60 % 60)
}

/// Formats a count for an axis: `50k`, `1M`.
pub(crate) fn count_label(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e4 => format!("{}k", v / 1e3),
        v => format!("{v}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_axis_ticks_are_round_numbers_in_one_unit() {
        let high = 1.34 * 1_073_741_824.0;
        let labels: Vec<String> =
            byte_ticks(high, 6).iter().map(|t| byte_label(*t, high)).collect();
        assert_eq!(labels, ["0", "0.25 GiB", "0.5 GiB", "0.75 GiB", "1 GiB", "1.25 GiB"]);
    }

    #[test]
    fn a_memory_axis_ends_at_a_round_number_at_or_above_the_maximum() {
        const MIB: f64 = 1_048_576.0;
        let axis = |mib: f64, most| byte_axis(mib * MIB, most);
        assert_eq!(axis(84.0, 4).1, ["0", "50 MiB", "100 MiB"]);
        assert_eq!(axis(457.0, 2).1, ["0", "200 MiB", "400 MiB", "600 MiB"]);
        assert_eq!(axis(457.0, 2).0, 600.0 * MIB);
        assert_eq!(byte_axis(0.0, 4).0, 1.0);
    }

    #[test]
    fn a_flat_axis_has_one_tick() {
        assert_eq!(byte_ticks(0.0, 6), [0.0]);
        assert_eq!(time_ticks(3.0, 3.0, 6), [3.0]);
        assert_eq!(count_ticks(f64::NAN, 6), [0.0]);
    }

    #[test]
    fn time_labels_use_a_format_that_suits_the_axis_length() {
        assert_eq!(time_label(0.5, 2.0), "0.5 s");
        assert_eq!(time_label(1.5, 5.5), "1.5 s");
        assert_eq!(time_label(-10.0, 60.0), "−10 s");
        assert_eq!(time_label(90.0, 600.0), "1:30");
        assert_eq!(time_label(5400.0, 86_400.0), "1:30 h");
    }
}

//! Rates, as in `100/s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How often requests or connections start, per second: from one a day to ten million a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate(f64);

/// A text that is not a valid rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid rate: write 100/s, 0.5/s or 30/m")]
pub struct RateError(String);

/// Lowest rate, in starts per second: one a day.
const MIN_PER_SECOND: f64 = 1.0 / 86_400.0;
/// Highest rate, in starts per second.
const MAX_PER_SECOND: f64 = 1e7;

impl Rate {
    /// Returns the rate, or `None` if it is less than one a day or more than ten million a second.
    pub(crate) fn new(per_second: f64) -> Option<Self> {
        (MIN_PER_SECOND..=MAX_PER_SECOND).contains(&per_second).then_some(Self(per_second))
    }

    /// Returns how many are due within a time. The first is due at its start.
    pub(crate) fn due_by(self, time: Duration) -> u64 {
        // One that is due at this very moment counts, even if its time was rounded to nanoseconds.
        ((time.as_secs_f64() + 1.5e-9) * self.0) as u64 + 1
    }

    /// Returns when the one with this number, counted from 0, is due.
    pub(crate) fn at(self, number: u64) -> Duration {
        Duration::try_from_secs_f64(number as f64 / self.0).unwrap_or(Duration::MAX)
    }

    /// Returns how many start within a time: at least one.
    pub fn count_in(self, time: Duration) -> u64 {
        ((time.as_secs_f64() * self.0 + 1e-6) as u64).max(1)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError(text.to_owned());
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit.trim() {
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        Self::new(number / seconds).ok_or_else(wrong)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", (self.0 * 1000.0).round() / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_and_invalid_ones_are_errors() {
        for (text, rate) in
            [("100/s", 100.0), ("100", 100.0), ("30/m", 0.5), ("0.5 / s", 0.5), ("3600/h", 1.0)]
        {
            assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
        }
        for text in ["", "fast", "0/s", "-1/s", "1/day", "nan", "inf/s", "1e9/s", "/s"] {
            let said = text.parse::<Rate>().unwrap_err().to_string();
            assert!(said.ends_with("is not a valid rate: write 100/s, 0.5/s or 30/m"), "{said}");
        }
    }

    #[test]
    fn a_request_is_due_at_its_scheduled_time() {
        for per_second in [0.1, 1.0, 3.0, 7.0, 100.0, 99_999.0] {
            let rate = Rate(per_second);
            for number in [0, 1, 2, 3, 10, 999, 123_456] {
                assert_eq!(rate.due_by(rate.at(number)), number + 1, "{rate} {number}");
            }
        }
        assert_eq!(Rate(100.0).count_in(Duration::from_secs(3)), 300);
        assert_eq!(Rate(0.1).count_in(Duration::from_secs(3)), 1);
    }
}

//! Time spans in human notation: `200ms`, `30s`, `5m`.

use std::fmt;
use std::time::Duration;

use crate::bytes::three_digits;
use crate::number::{self, NumberError};

const KNOWN: &str = "ms, s, m, h";

/// Parses a time span: `200ms`, `30s`, `1.5m`, `2h`. Rejects a bare number other than 0, because
/// tools disagree on its unit.
///
/// # Errors
/// Fails if the text is not a time span; the error names the part that was not understood.
pub fn parse_duration(text: &str) -> Result<Duration, NumberError> {
    let (value, unit) = number::split(text)?;
    let seconds = match unit {
        "us" | "µs" => value / 1e6,
        "ms" => value / 1e3,
        "s" | "sec" => value,
        "m" | "min" => value * 60.0,
        "h" => value * 3600.0,
        "" if value == 0.0 => 0.0,
        "" => {
            return Err(NumberError::NoUnit { text: text.trim().to_owned(), known: KNOWN });
        }
        _ => {
            return Err(NumberError::UnknownUnit { unit: unit.to_owned(), known: KNOWN });
        }
    };
    // Ten years: far longer than any study, and far below the overflow of arithmetic on instants.
    if seconds > 3.2e8 {
        return Err(NumberError::OutOfRange(text.trim().to_owned()));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Formats seconds for people: `41 ms`, `2.50 s`, `3 min 20 s`, `1 h 05 min`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HumanSeconds(pub f64);

impl fmt::Display for HumanSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0;
        let size = s.abs();
        let text = if size == 0.0 {
            "0 s".to_owned()
        } else if size < 0.000_999_5 {
            format!("{} µs", three_digits(s * 1e6))
        } else if size < 0.999_5 {
            format!("{} ms", three_digits(s * 1e3))
        } else if size < 59.95 {
            format!("{} s", three_digits(s))
        } else if size < 3599.5 {
            let whole = s.round() as i64;
            format!("{} min {} s", whole / 60, whole % 60)
        } else {
            let minutes = (s / 60.0).round() as i64;
            format!("{} h {:02} min", minutes / 60, minutes % 60)
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_parsed_with_common_units() {
        for (text, seconds) in
            [("200ms", 0.2), ("30s", 30.0), ("5m", 300.0), ("0", 0.0), ("1.5 h", 5400.0)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn a_duration_without_a_unit_is_an_error() {
        assert_eq!(
            parse_duration("30").unwrap_err().to_string(),
            "`30` has no unit: use one of ms, s, m, h"
        );
        assert!(parse_duration("-3s").is_err());
        assert!(parse_duration("99999999999h").is_err());
    }

    #[test]
    fn durations_are_displayed_in_a_suitable_unit() {
        let shown: Vec<String> = [0.0, 0.000_05, 0.041, 0.9996, 2.5, 59.99, 200.0, 3900.0]
            .iter()
            .map(|&s| HumanSeconds(s).to_string())
            .collect();
        assert_eq!(
            shown,
            [
                "0 s",
                "50.0 µs",
                "41.0 ms",
                "1.00 s",
                "2.50 s",
                "1 min 0 s",
                "3 min 20 s",
                "1 h 05 min"
            ]
        );
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(text in "\\PC*") {
            let _ = parse_duration(&text);
        }
    }
}

//! Amounts of memory: one type for each kind of count, and the notation in which people write and
//! read them.

use std::fmt;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

use crate::number::{self, NumberError};

/// Declares a count of bytes that cannot be confused with another kind of count.
macro_rules! bytes_of {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Human(self.0).fmt(f)
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
    };
}

bytes_of! {
    /// Bytes in pages that are present in memory, as RSS counts them.
    Resident
}
bytes_of! {
    /// Resident bytes with each shared page divided among the processes that map it, as PSS counts
    /// them.
    Proportional
}
bytes_of! {
    /// Bytes of address space, resident or not, as VSZ counts them.
    Mapped
}
bytes_of! {
    /// Bytes that were moved out to swap.
    Swapped
}

/// Formats a count of bytes for people: `1.83 GiB`, `512 KiB`, `17 B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Human(pub u64);

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 1023.995 would be printed as 1024.00, so the next unit starts a little earlier.
        while value >= 1023.995 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 {
            format!("{} B", self.0)
        } else {
            format!("{} {}", three_digits(value), UNITS[unit])
        };
        f.pad(&text)
    }
}

/// Formats a number with three significant digits, but never fewer than its whole part has: `1.83`,
/// `18.3`, `183`.
pub fn three_digits(value: f64) -> String {
    let size = value.abs();
    if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Parses a size in human notation: `64MiB`, `1GiB`, `1000000`, `1.5 GB`.
///
/// `KiB`, `MiB`, … are powers of 1024, `kB`, `MB`, … powers of 1000; a bare `K`, `M` or `G` is a
/// power of 1024, as in `ps`, `top` and `ulimit`.
///
/// # Errors
/// Fails if the text is not a size; the error names the part that was not understood.
pub fn parse_size(text: &str) -> Result<u64, NumberError> {
    let (value, unit) = number::split(text)?;
    let factor: u64 = match unit {
        "" | "B" | "b" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1000_u64.pow(2),
        "GB" => 1000_u64.pow(3),
        "TB" => 1000_u64.pow(4),
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" | "m" => 1 << 20,
        "GiB" | "G" | "g" => 1 << 30,
        "TiB" | "T" | "t" => 1 << 40,
        _ => {
            return Err(NumberError::UnknownUnit {
                unit: unit.to_owned(),
                known: "B, kB, MB, GB, KiB, MiB, GiB",
            });
        }
    };
    let bytes = value * factor as f64;
    if bytes < 0.0 || bytes >= u64::MAX as f64 {
        return Err(NumberError::OutOfRange(text.to_owned()));
    }
    Ok(bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn byte_counts_are_displayed_with_three_digits_and_a_unit() {
        let shown: Vec<String> = [0, 17, 1023, 1024, 524_288, 1_964_947_536, u64::MAX]
            .iter()
            .map(|&n| Human(n).to_string())
            .collect();
        assert_eq!(
            shown,
            ["0 B", "17 B", "1023 B", "1.00 KiB", "512 KiB", "1.83 GiB", "16777216 TiB"]
        );
    }

    #[test]
    fn a_value_just_below_a_unit_is_never_shown_as_1024() {
        assert_eq!(Human((1 << 20) - 1).to_string(), "1.00 MiB");
    }

    #[test]
    fn sizes_are_parsed_with_common_units() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("1000000", 1_000_000),
            ("1.5 kB", 1500),
            ("2G", 2 << 30),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn an_invalid_size_is_an_error_with_the_reason() {
        assert_eq!(
            parse_size("12 parsecs").unwrap_err().to_string(),
            "unknown unit `parsecs`: use one of B, kB, MB, GB, KiB, MiB, GiB"
        );
        assert!(parse_size("").is_err());
        assert!(parse_size("-1").is_err());
        assert!(parse_size("1e40GiB").is_err());
        assert!(parse_size("nan").is_err());
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(text in "\\PC*") {
            let _ = parse_size(&text);
        }

        #[test]
        fn plain_numbers_are_parsed_exactly(bytes in 0_u64..(1 << 53)) {
            prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
        }
    }
}

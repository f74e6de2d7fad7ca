//! Counts as people read them, and numbers followed by a unit, as people write them on a command
//! line.

use std::fmt;

use thiserror::Error;

/// A count as people read it: `1,204`. PIDs, ports, versions and years are names and no counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HumanCount(pub u64);

impl fmt::Display for HumanCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// Formats a count with its noun: `1 thread`, `1,204 threads`.
pub fn counted(count: u64, what: &str) -> String {
    let end = match (count, what.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {what}{end}", HumanCount(count))
}

/// The reason why a number with a unit is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NumberError {
    /// The text does not start with a number.
    #[error("`{0}` does not begin with a number")]
    NoNumber(String),
    /// The unit is unknown.
    #[error("unknown unit `{unit}`: use one of {known}")]
    UnknownUnit {
        /// The text after the number.
        unit: String,
        /// The known units.
        known: &'static str,
    },
    /// The unit is missing.
    #[error("`{text}` has no unit: use one of {known}")]
    NoUnit {
        /// The whole text.
        text: String,
        /// The known units.
        known: &'static str,
    },
    /// The value is negative or implausibly large.
    #[error("`{0}` is out of range")]
    OutOfRange(String),
}

/// Splits `1.5 GiB` into 1.5 and `GiB`, and trims white space around both.
pub(crate) fn split(text: &str) -> Result<(f64, &str), NumberError> {
    let text = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut end = text.find(|c| !is_number(c)).unwrap_or(text.len());
    // An exponent belongs to the number only if digits follow it: `1e9`, but not `1ebibyte`.
    let rest = &text[end..];
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let count = digits.bytes().take_while(u8::is_ascii_digit).count();
        if count > 0 {
            end = text.len() - digits.len() + count;
        }
    }
    let (number, unit) = text.split_at(end);
    let value = number.parse::<f64>().map_err(|_| NumberError::NoNumber(text.to_owned()))?;
    if !value.is_finite() {
        return Err(NumberError::OutOfRange(text.to_owned()));
    }
    Ok((value, unit.trim()))
}

//! Numbers with a unit behind them, as people write them on a command line.

use thiserror::Error;

/// Why a number with a unit was not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NumberError {
    /// There is no number at the beginning.
    #[error("`{0}` does not begin with a number")]
    NoNumber(String),
    /// The unit is not one that is known.
    #[error("unknown unit `{unit}`: use one of {known}")]
    UnknownUnit {
        /// What stood behind the number.
        unit: String,
        /// The units that are understood.
        known: &'static str,
    },
    /// A unit is required and there is none.
    #[error("`{text}` has no unit: use one of {known}")]
    NoUnit {
        /// The whole text.
        text: String,
        /// The units that are understood.
        known: &'static str,
    },
    /// The value is negative, or too large to be meant.
    #[error("`{0}` is out of range")]
    OutOfRange(String),
}

/// Splits `1.5 GiB` into 1.5 and `GiB`; white space around both is dropped.
pub(crate) fn split(text: &str) -> Result<(f64, &str), NumberError> {
    let text = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut end = text.find(|c| !is_number(c)).unwrap_or(text.len());
    // An exponent belongs to the number only where digits follow it: `1e9`, but not `1ebibyte`.
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

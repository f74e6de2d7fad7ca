//! The limits of JSON that can come from anyone: of a heap file, or of a black box. With them, no
//! sum of its values overflows.

use serde_json::Value;

/// A value that lowtide would not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfBounds;

/// Maximum sum of all integers. The addresses of a process end at 2^57 bytes, and its values in
/// bytes are far below.
const MAX_SUM: u64 = 1 << 60;
/// Maximum length of a text, in bytes. A command line can have 2 MiB.
const MAX_TEXT: usize = 4 << 20;

/// Checks a value with all that it contains.
///
/// # Errors
/// Fails if a text is longer, or the sum of all integers larger, than in any file of lowtide.
pub fn check(value: &Value) -> Result<(), OutOfBounds> {
    sum(value).map(drop)
}

/// Returns the sum of all integers.
fn sum(value: &Value) -> Result<u64, OutOfBounds> {
    match value {
        Value::Null | Value::Bool(_) => Ok(0),
        Value::Number(number) => match (magnitude(number), number.as_f64()) {
            (Some(integer), _) if integer <= MAX_SUM => Ok(integer),
            (None, Some(float)) if (0.0..1e15).contains(&float) => Ok(0),
            _ => Err(OutOfBounds),
        },
        Value::String(text) if text.len() <= MAX_TEXT => Ok(0),
        Value::String(_) => Err(OutOfBounds),
        Value::Array(values) => sum_of(values.iter()),
        Value::Object(values) => sum_of(values.values()),
    }
}

/// Returns an integer without its sign.
fn magnitude(number: &serde_json::Number) -> Option<u64> {
    number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs))
}

fn sum_of<'v>(mut values: impl Iterator<Item = &'v Value>) -> Result<u64, OutOfBounds> {
    values.try_fold(0_u64, |total, value| {
        let total = total.saturating_add(sum(value)?);
        if total > MAX_SUM { Err(OutOfBounds) } else { Ok(total) }
    })
}

//! Bounds of times that the user sets.

use std::time::Duration;

/// Returns the time, or a year if it is longer: adding it to the current time must not overflow.
pub(crate) fn clamp(time: Duration) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    time.min(YEAR)
}

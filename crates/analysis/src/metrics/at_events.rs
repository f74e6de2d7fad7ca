//! Values at the moments by which a trial is judged.

use serde::Serialize;

/// A value at each event of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AtEvents<T> {
    /// Before the load.
    pub baseline: Option<T>,
    /// At the peak.
    pub peak: Option<T>,
    /// After the last request of the last round, while its connections are still open; absent if
    /// the load does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained: Option<T>,
    /// After the load is gone.
    pub settled: Option<T>,
}

impl<T> Default for AtEvents<T> {
    fn default() -> Self {
        Self { baseline: None, peak: None, drained: None, settled: None }
    }
}

impl<T> AtEvents<T> {
    /// Maps each value.
    pub fn and_then<U>(self, of: impl Fn(T) -> Option<U>) -> AtEvents<U> {
        AtEvents {
            baseline: self.baseline.and_then(&of),
            peak: self.peak.and_then(&of),
            drained: self.drained.and_then(&of),
            settled: self.settled.and_then(&of),
        }
    }
}

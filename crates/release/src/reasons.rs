//! Reasons why threads cannot be used, and how often each was seen.

use std::collections::BTreeMap;

/// Reasons, as ends of sentences, and how often each was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reasons(BTreeMap<String, usize>);

impl Reasons {
    /// Adds a reason that was seen once more.
    pub(crate) fn add(&mut self, why: impl Into<String>) {
        *self.0.entry(why.into()).or_default() += 1;
    }

    /// Returns the most frequent reason; `None` if there is none.
    pub(crate) fn most_frequent(&self) -> Option<&str> {
        self.0.iter().max_by_key(|(_, count)| **count).map(|(why, _)| why.as_str())
    }
}

//! Detects the growing blocks of a heap, and whether they are lost.
//!
//! - `trend`: the trend of each size, from the counts of several snapshots.
//! - `verdict`: the verdict on a trend, given the pointers to its blocks.
//!
//! A block that reaches a given age is a *survivor*. A size *grows* if survivors of this size appear at a
//! steady rate, are not freed later, and increase the number of blocks of at least that age. The number of
//! all blocks would not show this, because most of them are young.

mod trend;
mod verdict;

pub use trend::{History, LostCounts, Trend, TrendKind, lost_trends, survivors, trends};
pub use verdict::{LostBefore, Reachability, Surroundings, group, lost_before, overall};

#[cfg(test)]
mod tests;

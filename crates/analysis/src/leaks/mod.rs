//! Detects the growing blocks of a heap, and whether they are lost.
//!
//! - `trend`: the trend of each size, from the counts of several snapshots.
//! - `verdict`: the verdict on a trend, given the pointers to its blocks.
//!
//! A block is a *survivor* from a given age on. Its size *grows* if survivors of that size appear at a
//! steady rate, are not freed later, and increase the number of blocks of that age. The count of all blocks
//! would not show that, because most of them are young.

mod trend;
mod verdict;

pub use trend::{History, LostCounts, Trend, TrendKind, lost_trends, survivors, trends};
pub use verdict::{LostBefore, Reachability, Surroundings, group, lost_before, overall};

#[cfg(test)]
mod tests;

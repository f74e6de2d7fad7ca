//! Detects the growing blocks of a heap, and whether they are lost.
//!
//! - `history`: what the snapshots have counted.
//! - `trend`, `later_rate`: the trend of each size, from the counts of several snapshots.
//! - `verdict`: the verdict on a trend, given the pointers to its blocks.
//! - `whole`: the verdict on the process, given the growth of all of RSS.
//!
//! A block that reaches a given age is a *survivor*. A size *grows* if survivors of this size
//! appear at a steady rate, are not freed later, and increase the number of blocks of at least that
//! age. The number of all blocks would not show this, because most of them are young.

mod history;
mod later_rate;
mod trend;
mod verdict;
mod whole;

pub use history::History;
pub use trend::{LostCounts, Trend, TrendKind, lost_trends, survivors, trends};
pub use verdict::{
    GrownBlock, LostBefore, MIN_UNSURE, Reachability, Surroundings, below_all, group,
    growing_blocks, lost_before, overall,
};
pub use whole::{doubt, large_blocks, reconcile, without_blocks};

#[cfg(test)]
mod tests;

//! Which blocks of a heap become more, and whether they are lost.
//!
//! - `trend`: what each size does, from the counts of several snapshots.
//! - `verdict`: what it is called, given what is known of the pointers to its blocks.
//!
//! A block is a *survivor* from a given age on. Its size *grows* if survivors of that size come at a steady rate, are not freed
//! later, and make the blocks of that age more. Counting all blocks would not show that: most of them are young.

mod trend;
mod verdict;

pub use trend::{History, LostCounts, Trend, TrendKind, lost_trends, survivors, trends};
pub use verdict::{LostBefore, Reachability, Surroundings, group, lost_before, overall};

#[cfg(test)]
mod tests;

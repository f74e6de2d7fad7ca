//! The growth of a process over several inspections: of all its resident memory, divided by owner,
//! and of its memory in use.
//!
//! - `trend`: whether a series rises, and how fast.
//! - `owners`: the growth of each owner; the parts add up to the growth of RSS.
//! - `bounds`: how much further an owner can grow.
//! - `course`: whether RSS grew steadily, once, or not at all.
//! - `words`: the sentences about them.
//! - `follower`: follows one process, and gives each inspection its verdict.
//! - `charge`: follows what a cgroup is charged for.
//!
//! No verdict says that nothing grows while RSS does.

mod bounds;
mod charge;
mod course;
mod follower;
mod owners;
mod trend;
mod words;

pub use charge::ChargeFollower;
pub(crate) use course::has_risen;
pub use follower::{Follower, is_taken_back};
pub use trend::MIN_SAMPLES;
pub(crate) use trend::rising;
pub(crate) use words::{beside_and_descendants, count_limits, fate, rose_once_beside};
pub use words::{bound, sentence, until_limit};

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::owners::tests::{growth_between, observed};
}

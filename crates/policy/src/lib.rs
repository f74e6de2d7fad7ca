//! Decides when the free memory of a process is released.
//!
//! A policy decides from a series of states. It has no clock and does no I/O. Its driver observes
//! the process, carries out the decisions, and reports their outcomes in the next states. A new
//! policy is a file with an implementation of [`Policy`], and a variant of [`PolicyKind`].

mod adaptive;
mod brake;
mod budget;
mod freed;
mod kind;
mod none;
mod periodic;
mod pressure;
mod refaults;
#[cfg(test)]
mod simulation;
mod state;

use std::fmt;

pub use brake::{Brake, LEFT_ALONE_S, MAX_DELAY_S};
pub use budget::Budget;
pub use kind::{PolicyError, PolicyKind};
pub use refaults::{Refaults, SampleReason};
pub use state::{Headroom, LastRelease, ProcessState, Returned, Shortage, Usage};

/// Decides when the free memory of a process is released.
pub trait Policy: fmt::Debug + Send {
    /// Decides what to do now. It is called repeatedly, with states in the order of their times.
    fn decide(&mut self, state: &ProcessState) -> Action;
}

/// An action on a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// Leave it alone.
    None,
    /// Release its free memory.
    Release(ReleaseRequest),
}

/// The request for a release.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReleaseRequest {
    /// The reason for the release.
    pub reason: Reason,
    /// Minimum gain, in bytes: if the walk over the heap predicts less, no thread is stopped.
    pub min_bytes: u64,
    /// Whether huge pages that are partly in use stay whole.
    pub keep_huge_pages: bool,
}

/// The reason for which a policy releases memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// The period is over.
    Period,
    /// The process has freed this many bytes since the last release.
    Freed(u64),
    /// The process has become quiet after a load.
    LoadFell,
    /// The process works steadily, and its memory does not grow.
    Steady,
    /// Memory is short.
    Short(Shortage),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use lowtide_model::bytes::Human;
        match self {
            Self::Period => f.write_str("the period is over"),
            Self::Freed(bytes) => write!(f, "the process has freed {}", Human(*bytes)),
            Self::LoadFell => f.write_str("the load has fallen"),
            Self::Steady => f.write_str("the load is steady and the memory does not grow"),
            Self::Short(shortage) => write!(f, "{shortage}"),
        }
    }
}

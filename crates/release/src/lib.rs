//! Gives a live process's free memory back to the kernel.
//!
//! What goes back is named from outside, by a walk over the heap; a page of code in the target takes the
//! allocator's lock, verifies each range, drops its pages and lets go. This is the only part of lowtide
//! that stops threads or writes to a process, and every such act is in [`remote`].

pub mod checks;
mod huge;
mod periodic;
mod plan;
pub mod refusal;
pub mod release;
pub mod remote;
pub(crate) mod stub;
mod survey;
mod worker;

pub use periodic::PeriodicThread;
pub use refusal::Refusal;
pub use release::{Options, Progress, ReleaseError, release, release_observed};
pub use remote::Step;

//! Returns a live process's free memory to the OS.
//!
//! A walk over the heap finds the free ranges from outside. A page of code in the target then takes the allocator's
//! lock, verifies each range, drops its pages, and unlocks. This is the only part of lowtide that stops threads or
//! writes to a process, and all of that is in the module `remote`.

mod checks;
mod dropped;
mod error;
mod huge;
mod keep_huge;
mod options;
mod periodic;
mod plan;
mod refusal;
mod release;
mod remote;
mod stub;
mod survey;
mod worker;

pub use checks::{check_permission, predict_refusal};
pub use dropped::{CameBack, DroppedRanges};
pub use error::ReleaseError;
pub use options::{Options, ReleaseProgress};
pub use periodic::PeriodicThread;
pub use refusal::Refusal;
pub use release::{release, release_and_sample_dropped};

/// Parts that tests observe or call directly. They are not part of the interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::checks::{TargetFacts, check, check_permission};
    pub use crate::error::Abort;
    pub use crate::release::release_observed;
    pub use crate::remote::TargetStep;
    pub use crate::remote::seccomp::{Call, FilterAction, decide, filters_of, permits};
}

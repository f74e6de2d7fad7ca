//! Returns a live process's free memory to the OS.
//!
//! A walk over the heap finds the free ranges from outside. A page of code in the target then takes the allocator's
//! lock, verifies each range, drops its pages, and unlocks. This is the only part of lowtide that stops threads or
//! writes to another process, and all of that is in the module `remote`.
//!
//! A program can also release its own memory ([`release_own`]). Then the same code runs in the thread that asks for it.
//!
//! That code is for x86-64. On another processor the same functions exist, and refuse every process.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "the examination has parts that only a release uses")
)]

mod checks;
mod dropped;
mod error;
mod examination;
mod filters;
mod huge;
mod keep_huge;
mod options;
mod own;
mod passes;
mod periodic;
mod plan;
mod priority;
mod purge;
mod refusal;
mod releasable;
#[cfg(target_arch = "x86_64")]
mod release;
#[cfg(not(target_arch = "x86_64"))]
#[path = "release_unsupported.rs"]
mod release;
#[cfg(target_arch = "x86_64")]
mod remote;
mod stub;
mod symbol;
#[cfg(target_arch = "x86_64")]
mod worker;

pub use checks::{RELEASABLE, check_permission, predict_refusal};
pub use dropped::{CameBack, DroppedRanges};
pub use error::ReleaseError;
pub use options::{Options, ReleaseProgress};
pub use own::{OwnOptions, OwnRefusal, OwnRelease, release_own};
pub use periodic::PeriodicThread;
pub use refusal::Refusal;
pub use release::{release, release_and_sample_dropped};

/// Parts that tests observe or call directly. They are not part of the interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::checks::{TargetFacts, check, check_permission};
    pub use crate::error::Abort;
    pub use crate::release::{TargetStep, release_observed};
    #[cfg(target_arch = "x86_64")]
    pub use crate::remote::seccomp::{Call, FilterAction, decide, filters_of, permits};
}

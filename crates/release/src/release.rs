//! One release, from the checks to the last pass.

use std::time::Duration;

use lowtide_model::release::Release;
use lowtide_probe::inspect::{Target, TargetError};
use thiserror::Error;

/// What is wanted of a release.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest that a thread of the target may be held up, where that can be sliced.
    pub max_pause: Duration,
    /// How.
    pub way: Way,
    /// Permits an allocator's own purge, whose pause cannot be bounded.
    pub unbounded: bool,
    /// Permits versions of glibc that releases were never tortured on.
    pub untested: bool,
    /// Only says what would be done.
    pub dry_run: bool,
}

/// How memory is to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Way {
    /// As suits the allocator.
    #[default]
    Auto,
    /// Range by range.
    Chunks,
    /// By `malloc_trim`.
    Trim,
    /// By an allocator's own purge.
    Purge,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_pause: Duration::from_millis(1),
            way: Way::Auto,
            unbounded: false,
            untested: false,
            dry_run: false,
        }
    }
}

/// Why a release could not be tried, or did not come to its end.
#[derive(Debug, Error)]
pub enum ReleaseError {
    /// It cannot be looked at, or has ended.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// That is not permitted.
    #[error("process {pid} may not be traced: that takes {needs}")]
    NotPermitted {
        /// Which process.
        pid: u32,
        /// The capability or the setting.
        needs: String,
    },
    /// Something else went wrong; the target runs as before.
    #[error("{0}")]
    Failed(String),
}

/// Has a process give its free memory back. What was refused is told by the [`Release`] itself.
///
/// # Errors
/// When the process cannot be looked at or may not be traced, or ends meanwhile.
pub fn release(_target: &Target, _options: &Options) -> Result<Release, ReleaseError> {
    Err(ReleaseError::Failed("not there yet".to_owned()))
}

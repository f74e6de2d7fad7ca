//! Errors of a release that fails or ends early.

use lowtide_probe::target::TargetError;
use thiserror::Error;

use crate::end::EndDuringRelease;
use crate::refusal::Refusal;

/// Errors of a release that could not be attempted, or did not complete.
#[derive(Debug, Error)]
pub enum ReleaseError {
    /// The process cannot be inspected, or has ended.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The process ended during the release.
    #[error("{0}")]
    Ended(EndDuringRelease),
    /// The process executed another program during the release. That program is left alone.
    #[error("process {0} executed another program during the release: try again")]
    Replaced(u32),
    /// The process may not be traced.
    #[error("lowtide is not permitted to trace process {pid}: tracing requires {needs}")]
    NotPermitted {
        /// The process.
        pid: u32,
        /// The required capability or setting.
        needs: String,
    },
    /// The release was interrupted.
    #[error("the release was interrupted")]
    Interrupted,
    /// Another operation failed; the target runs as before.
    #[error("{0}")]
    Failed(String),
}

/// The reason why a release ends before it is complete.
#[derive(Debug, Error)]
pub enum Abort {
    /// The process is left alone.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An operation failed.
    #[error(transparent)]
    Failed(#[from] ReleaseError),
}

impl From<TargetError> for Abort {
    fn from(error: TargetError) -> Self {
        Self::Failed(error.into())
    }
}

/// Returns a failure with this message.
pub(crate) fn failed(what: &str) -> Abort {
    Abort::Failed(ReleaseError::Failed(what.to_owned()))
}

//! The ledger of a selected cgroup.

use lowtide_model::cgroup::CgroupLedger;
use lowtide_probe::cgroup::{self, CgroupDirectory, CgroupError};

use super::selector::Selector;
use crate::failure::exit::{Exit, Failure};
use crate::shell::quoted;

/// The ledger of the cgroup that a selector names, as far as it names nothing else.
#[derive(Debug, Default)]
pub(crate) enum Container {
    /// It does not name a cgroup.
    #[default]
    None,
    /// The cgroup.
    Found(CgroupDirectory),
    /// A cgroup without an account, and the reason.
    WithoutAccount(CgroupError),
}

impl Container {
    pub(crate) fn find(selector: &Selector) -> Self {
        match selector.only_cgroup().map(CgroupDirectory::find) {
            None => Self::None,
            Some(Ok(group)) => Self::Found(group),
            Some(Err(error)) => Self::WithoutAccount(error),
        }
    }

    /// Returns whether there is a ledger to read.
    pub(crate) fn is_found(&self) -> bool {
        matches!(self, Self::Found(_))
    }

    /// Reads the ledger; `None` if there is none to read.
    ///
    /// # Errors
    /// Fails if it cannot be read any more.
    pub(crate) fn read(&self) -> Result<Option<CgroupLedger>, Failure> {
        match self {
            Self::Found(group) => cgroup::read(group).map(Some).map_err(|e| failure(&e)),
            Self::None | Self::WithoutAccount(_) => Ok(None),
        }
    }

    /// Returns the reason why there is no ledger.
    pub(crate) fn reason(&self) -> Option<&CgroupError> {
        match self {
            Self::WithoutAccount(error) => Some(error),
            Self::None | Self::Found(_) => None,
        }
    }
}

/// Returns the failure for a cgroup without a ledger.
pub(crate) fn failure(error: &CgroupError) -> Failure {
    let exit = match error {
        CgroupError::Missing(_) => Exit::Gone,
        CgroupError::Root => Exit::Usage,
        _ => Exit::Failed,
    };
    let next = match error {
        CgroupError::NotEnabled(_, above) if above != "/" => {
            format!("lowtide inspect --cgroup {}", quoted(above))
        }
        CgroupError::Outside(_) => "cat /proc/self/cgroup".to_owned(),
        error if error.is_of_machine() => "cat /proc/self/cgroup".to_owned(),
        _ => "lowtide top --by cgroup".to_owned(),
    };
    Failure::new(exit, error.to_string()).next(next)
}

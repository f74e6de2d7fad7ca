//! The command that starts a keeper: lowtide itself, with a hidden verb.

use lowtide_study::KeeperCommand;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::exit::Failure;

/// Returns the command of the keeper, and raises the limit of open files for a large process tree.
/// The subject gets the original limit.
pub(crate) fn program() -> Result<KeeperCommand, Failure> {
    let path = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("lowtide cannot find its own program to start it again: {error}"))
    })?;
    Ok(KeeperCommand { path, arguments: vec!["keep".to_owned()], open_files_limit: raise_limit() })
}

/// Raises the soft limit of open files to the hard limit. Returns the original soft limit.
fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).ok()?;
    limit.current
}

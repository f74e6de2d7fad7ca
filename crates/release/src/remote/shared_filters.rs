//! Seccomp filters that lowtide and a target have inherited from the same process.
//!
//! The kernel shows no filters to a caller that is under filters itself. But filters are inherited,
//! and only ever added. So if two threads inherited theirs from the same process and have the same
//! number of them, they have the same ones, and their effect can be tested in a child of lowtide.

use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task::Thread;

use super::seccomp::Call;
use super::{calls, scratch};
use crate::filters::are_shared;
use crate::refusal::Refusal;

/// The filters of the calling thread, and the calls that they are known to allow.
pub(super) struct SharedFilters {
    own: Status,
    allowed: Vec<Call>,
    /// Whether they permit `restart_syscall`; `None` before that was tried.
    permit_restart: Option<bool>,
}

impl SharedFilters {
    /// Returns the filters of the calling thread; `None` if it has none.
    pub(super) fn own() -> Option<Self> {
        let own = Status::own().ok().filter(|own| own.seccomp == libc::SECCOMP_MODE_FILTER)?;
        Some(Self { own, allowed: Vec::new(), permit_restart: None })
    }

    /// Checks whether they allow calls. Tries calls that were not checked before, which takes some
    /// milliseconds. Must not be called while a thread of the target is stopped.
    ///
    /// # Errors
    /// Returns the first call that they do not allow. Fails if the calls cannot be tried.
    pub(super) fn check(&mut self, calls: &[(&'static str, Call)]) -> Result<(), Refusal> {
        let mut new: Vec<(&'static str, Call)> = Vec::new();
        for named in calls {
            if !self.allowed.contains(&named.1) && !new.contains(named) {
                new.push(*named);
            }
        }
        if !new.is_empty() {
            scratch::check(&new)?;
            self.allowed.extend(new.iter().map(|(_, call)| *call));
        }
        Ok(())
    }

    /// Tries whether they permit `restart_syscall`, once. `end` is the end of its instruction. Must
    /// not be called while a thread of the target is stopped.
    pub(super) fn try_restart(&mut self, end: u64) {
        if self.permit_restart.is_none() {
            self.permit_restart = Some(self.check(&[calls::restart_call(end)]).is_ok());
        }
    }

    /// Returns whether they certainly permit `restart_syscall`.
    pub(super) fn permit_restart(&self) -> bool {
        self.permit_restart.unwrap_or(false)
    }

    /// Checks that a thread has the same filters.
    ///
    /// # Errors
    /// Fails if it has others, or has ended.
    pub(super) fn check_thread(&self, thread: Thread) -> Result<(), Refusal> {
        let status = thread.status().map_err(|error| error.to_string());
        let are_shared = status.and_then(|status| Ok(are_shared(&self.own, &status)?));
        are_shared.map_err(|why| Refusal::SeccompUnread { why })
    }
}

//! The end of a process, and ending in the same way.

use rustix::process::{DumpableBehavior, WaitStatus, getpid, set_dumpable_behavior};

use super::{OWN_FAILURE, child, signals};

/// The way in which a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd {
    /// It exited with this code.
    Exited(u8),
    /// It was ended by this signal.
    Signalled(i32),
}

impl ChildEnd {
    /// Converts the status of a child that was reaped.
    pub(super) fn new(status: WaitStatus) -> Self {
        match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => Self::Signalled(signal),
            (None, code) => {
                Self::Exited(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_FAILURE))
            }
        }
    }

    /// Ends the calling process in the same way: with the same exit code, or by the same signal and
    /// without a core dump. PID 1 cannot end itself by a signal: it exits with 128 + the signal, as
    /// shells report it.
    pub fn pass_on(self) -> ! {
        match self {
            Self::Exited(code) => std::process::exit(code.into()),
            Self::Signalled(signal) => {
                // If there is a core dump, it is the one of the service.
                if !getpid().is_init()
                    && set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok()
                {
                    signals::end_by(signal);
                }
                child::exit_now(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
            }
        }
    }
}

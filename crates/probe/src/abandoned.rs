//! Threads that were abandoned because the kernel does not answer them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of abandoned threads with which files of processes are still read.
const MAX_WITH_FILES: usize = 64;
/// Maximum number of abandoned threads.
pub(crate) const MAX_ABANDONED: usize = 2 * MAX_WITH_FILES;

/// The processes of the abandoned threads that have not ended, each by its PID and start time.
static ABANDONED: Mutex<Vec<(u32, u64)>> = Mutex::new(Vec::new());

pub(crate) fn abandoned() -> MutexGuard<'static, Vec<(u32, u64)>> {
    ABANDONED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether so much work is abandoned that no file of a process should be read.
pub(crate) fn is_short_of_threads() -> bool {
    abandoned().len() >= MAX_WITH_FILES
}

//! The sign of life of a release, in the block of its code.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::block::SharedBlock;
use super::target_io::TargetIo;
use crate::error::{Abort, failed};
use crate::periodic::PeriodicThread;
use crate::privileges::PrivilegeWatch;
use crate::stub::contract::{BATCH_LEAVE, field};

/// Interval of the heartbeat, and of the comparison of privileges: the maximum time, apart from the
/// operation in progress, for which the worker thread keeps privileges that the process has
/// dropped.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(5);

/// A thread of lowtide that periodically changes a word of the block. The worker thread ends
/// without it, and a release from another PID namespace sees by it that the code is in use. It ends
/// the worker thread if the process changes its privileges.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// The threads whose privileges are compared, once the worker thread is known.
    watch: Arc<OnceLock<PrivilegeWatch>>,
    has_seen_change: Arc<AtomicBool>,
    /// Whether nothing is written for now; held during a write.
    is_paused: Arc<Mutex<bool>>,
    _thread: PeriodicThread,
}

impl Heartbeat {
    /// Starts the heartbeat. It must be paused before the block is unmapped.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(super) fn start(io: &TargetIo<'_>, block: SharedBlock) -> Result<Self, Abort> {
        let failed = |error: io::Error| failed(&error.to_string());
        let memory = io.memory().map_err(failed)?;
        let [beat_at, batch_at] = [field::HEARTBEAT, field::BATCH].map(|word| block.address(word));
        let has_seen_change = Arc::new(AtomicBool::new(false));
        let has_changed = Arc::clone(&has_seen_change);
        let watch = Arc::<OnceLock<PrivilegeWatch>>::default();
        let watched = Arc::clone(&watch);
        let is_paused = Arc::<Mutex<bool>>::default();
        let pauses = Arc::clone(&is_paused);
        let mut count = 0_u32;
        let beat = move || {
            if watched.get().is_some_and(PrivilegeWatch::has_changed) {
                has_changed.store(true, Ordering::Relaxed);
            }
            // Repeatedly: a batch that is submitted at the same time must not replace it.
            let (at, word) = if has_changed.load(Ordering::Relaxed) {
                (batch_at, BATCH_LEAVE)
            } else {
                count = count.wrapping_add(1);
                (beat_at, count)
            };
            let is_paused = pauses.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_paused {
                // It may fail once, for want of memory, and succeed the next time.
                let _ = memory.write_at(&word.to_le_bytes(), at);
            }
            true
        };
        let thread = PeriodicThread::start(HEARTBEAT_INTERVAL, beat).map_err(failed)?;
        Ok(Self { watch, has_seen_change, is_paused, _thread: thread })
    }

    /// Pauses or resumes it. While it is paused, the block may be unmapped.
    pub(super) fn pause(&self, is_paused: bool) {
        *self.is_paused.lock().unwrap_or_else(PoisonError::into_inner) = is_paused;
    }

    /// Compares these privileges from now on.
    pub(super) fn watch(&self, threads: PrivilegeWatch) {
        let _ = self.watch.set(threads);
    }

    /// Returns whether the process has changed its privileges.
    pub(super) fn has_seen_change(&self) -> bool {
        self.has_seen_change.load(Ordering::Relaxed)
    }
}

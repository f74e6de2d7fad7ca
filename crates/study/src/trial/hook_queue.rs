//! The moments of a trial whose hooks are pending: queued by the thread that notices them, and run
//! by the thread that conducts the trial.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// A moment with pending hooks, and its round.
pub(super) type PendingHook = (String, Option<u32>);

/// The pending moments, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct HookQueue(Arc<Mutex<VecDeque<PendingHook>>>);

impl HookQueue {
    /// Adds a moment.
    pub(super) fn push(&self, name: &str, round: Option<u32>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((name.to_owned(), round));
    }

    /// Removes the next one.
    pub(super) fn pop(&self) -> Option<PendingHook> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

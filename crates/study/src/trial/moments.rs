//! The moments of a trial at which something may have to be done: noted by whoever sees them come, and
//! acted upon by the thread that conducts the trial.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lowtide_record::v1::Event;

/// A moment that has come, and in which round.
pub(super) type Came = (String, Option<u32>);

/// Those that have come and were not acted upon yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Moments(Arc<Mutex<VecDeque<Came>>>);

impl Moments {
    /// One has come.
    pub(super) fn note(&self, name: &str, round: Option<u32>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((name.to_owned(), round));
    }

    /// The next.
    pub(super) fn next(&self) -> Option<Came> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What a study file calls a moment; `None` where nothing can be done at it.
pub(super) fn name_of(moment: Event) -> Option<&'static str> {
    match moment {
        Event::Ready => Some("ready"),
        Event::Drained => Some("drained"),
        Event::Closed => Some("closed"),
        Event::LoadEnd => Some("load_end"),
        _ => None,
    }
}

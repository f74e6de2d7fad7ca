//! The runtime that serves connections, which can be exchanged for a new one, as the document does.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime};

/// A runtime that can be exchanged while others hold it.
#[derive(Clone)]
pub(crate) struct Rolling(Arc<RwLock<Runtime>>);

impl Rolling {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(RwLock::new(Runtime::new()?))))
    }

    /// The one that is in use.
    pub(crate) fn handle(&self) -> Handle {
        self.0.read().unwrap_or_else(PoisonError::into_inner).handle().clone()
    }

    /// Tasks that have begun and not ended.
    pub(crate) fn alive_tasks(&self) -> usize {
        self.handle().metrics().num_alive_tasks()
    }

    /// Puts a new one in its place, and has the old one end in the background. Gives the time that it
    /// took.
    pub(crate) fn refresh(&self) -> io::Result<Duration> {
        let begin = Instant::now();
        let new = Runtime::new()?;
        let old =
            std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), new);
        old.shutdown_background();
        Ok(begin.elapsed())
    }
}

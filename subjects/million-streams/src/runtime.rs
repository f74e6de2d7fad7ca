//! The runtime that serves connections. It can be replaced by a new one, as in the post.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime};

/// A runtime that can be replaced while others hold it.
#[derive(Clone)]
pub(crate) struct Rolling(Arc<RwLock<Runtime>>);

impl Rolling {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(RwLock::new(Runtime::new()?))))
    }

    /// Returns a handle of the current runtime.
    pub(crate) fn handle(&self) -> Handle {
        self.0.read().unwrap_or_else(PoisonError::into_inner).handle().clone()
    }

    /// Returns the number of tasks that have started and not ended.
    pub(crate) fn alive_tasks(&self) -> usize {
        self.handle().metrics().num_alive_tasks()
    }

    /// Replaces the runtime by a new one, and shuts the old one down in the background. Returns the
    /// duration.
    pub(crate) fn refresh(&self) -> io::Result<Duration> {
        let begin = Instant::now();
        let new = Runtime::new()?;
        let old =
            std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), new);
        old.shutdown_background();
        Ok(begin.elapsed())
    }
}

//! One runtime for all rounds, or one for each, and the gate that holds its tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

/// Maximum sleep time of a task, unless the gate is opened: longer than any round.
const SLEEP: Duration = Duration::from_secs(86_400);

/// The runtime that is kept, if any.
pub(crate) struct Runtimes(Option<Runtime>);

impl Runtimes {
    pub(crate) fn new(each: bool) -> Result<Self, String> {
        Ok(Self(if each { None } else { Some(begin()?) }))
    }

    /// Returns the runtime of a round, and the value to drop after the round.
    pub(crate) fn of_round(&self) -> Result<(Handle, Option<Runtime>), String> {
        match &self.0 {
            Some(kept) => Ok((kept.handle().clone(), None)),
            None => begin().map(|own| (own.handle().clone(), Some(own))),
        }
    }
}

fn begin() -> Result<Runtime, String> {
    Runtime::new().map_err(|error| format!("no runtime: {error}"))
}

/// A gate at which tasks sleep until it is opened. Each task has a timer of its own, as in the
/// post, so that it costs as much as there. The gate only ends the sleep, so that no phase
/// depends on the clock.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Inner>);

struct Inner {
    closed: Semaphore,
    alive: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { closed: Semaphore::new(0), alive: AtomicUsize::new(0) }))
    }

    /// Sleeps until the gate is opened.
    pub(crate) async fn sleep(&self) {
        self.0.alive.fetch_add(1, Ordering::Relaxed);
        // It never grants a permit. Whether the timeout or the gate ends the wait makes no
        // difference.
        let _ = tokio::time::timeout(SLEEP, self.0.closed.acquire()).await;
        self.0.alive.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the sleep of all tasks.
    pub(crate) fn open(&self) {
        self.0.closed.close();
    }

    /// Returns the number of sleeping tasks.
    pub(crate) fn asleep(&self) -> usize {
        self.0.alive.load(Ordering::Relaxed)
    }
}

/// Checks a condition repeatedly until it is true.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

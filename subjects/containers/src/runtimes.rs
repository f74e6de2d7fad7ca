//! One runtime for all rounds, or one for each; and what holds its tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

/// Longer than any round: a task sleeps for so long unless it is let go.
const SLEEP: Duration = Duration::from_secs(86_400);

/// The runtime that is kept, if any.
pub(crate) struct Runtimes(Option<Runtime>);

impl Runtimes {
    pub(crate) fn new(each: bool) -> Result<Self, String> {
        Ok(Self(if each { None } else { Some(begin()?) }))
    }

    /// That of a round, with what is to be dropped behind it.
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

/// Tasks sleep at it until it is opened. Each has a timer of its own, as in the document, so that it costs
/// what it costs there; the gate only makes an end of the sleep, so that no phase depends on the clock.
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
        // It never gives a permit: whether the time or the gate has ended it is the same.
        let _ = tokio::time::timeout(SLEEP, self.0.closed.acquire()).await;
        self.0.alive.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets all go that sleep.
    pub(crate) fn open(&self) {
        self.0.closed.close();
    }

    /// How many sleep.
    pub(crate) fn asleep(&self) -> usize {
        self.0.alive.load(Ordering::Relaxed)
    }
}

/// Looks again and again until something is so.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

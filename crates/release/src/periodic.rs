//! A thread that calls a function periodically until it is dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that calls a function periodically. Dropping it waits for the last call to return.
#[derive(Debug)]
pub struct PeriodicThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicThread {
    /// Starts a thread that calls `act` immediately and then once per `interval`, until `act` returns false.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(
        interval: Duration,
        mut act: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let run = move || {
            while !is_stopped.load(Ordering::Relaxed) && act() {
                thread::park_timeout(interval);
            }
        };
        let thread = thread::Builder::new().spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

//! A thread that does one thing again and again, until nobody needs it any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// While it lives, something is done again and again. When it is dropped, that has been done for the last time.
#[derive(Debug)]
pub struct Repeating {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeating {
    /// Does it at once and then so often, as long as it says that it is to go on.
    ///
    /// # Errors
    /// When there can be no other thread.
    pub fn begin(
        every: Duration,
        mut once: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) && once() {
                thread::park_timeout(every);
            }
        };
        let thread = thread::Builder::new().spawn(work)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Repeating {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

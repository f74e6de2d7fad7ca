//! Searches during a watch for what pins the fragmented memory, on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use lowtide_leaks::pins;
use lowtide_model::pins::Pins;
use lowtide_probe::target::{Target, TargetError};

/// Number of groups of blocks.
const TOP: usize = 20;

/// One search for what pins memory. Dropping it ends the search.
pub(crate) struct PinSearch {
    result: Receiver<Result<Pins, TargetError>>,
    is_over: Arc<AtomicBool>,
}

impl PinSearch {
    /// Starts to read the blocks of a process.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start(target: Target) -> io::Result<Self> {
        let (sender, result) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&is_over);
        thread::Builder::new().spawn(move || {
            // The receiver may be gone, and no longer needs the result.
            let _ = sender.send(pins::pins(&target, TOP, &of_thread));
        })?;
        Ok(Self { result, is_over })
    }

    /// Returns the result, once.
    pub(crate) fn result(&self) -> Option<Result<Pins, TargetError>> {
        self.result.try_recv().ok()
    }
}

impl Drop for PinSearch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

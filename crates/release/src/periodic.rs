//! A thread that calls a function periodically until it is dropped.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowtide_probe::machine::thread_cpu_s;

thread_local! {
    /// CPU time of the periodic threads that this thread has stopped, in seconds.
    static STOPPED_CPU_S: Cell<f64> = const { Cell::new(0.0) };
}

/// Returns the CPU time of the calling thread and of the periodic threads that it has stopped, in
/// seconds.
pub(crate) fn cpu_s() -> f64 {
    thread_cpu_s() + STOPPED_CPU_S.get()
}

/// A thread that calls a function periodically. Dropping it waits for the last call to return.
#[derive(Debug)]
pub struct PeriodicThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<f64>>,
}

impl PeriodicThread {
    /// Starts a thread that calls `act` immediately and then once per `interval`, until `act`
    /// returns false.
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
            thread_cpu_s()
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
            STOPPED_CPU_S.set(STOPPED_CPU_S.get() + thread.join().unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_periodic_thread_is_added_to_the_thread_that_stops_it() {
        const WORK_S: f64 = 0.02;
        let (sender, receiver) = std::sync::mpsc::channel();
        let work = move || {
            while thread_cpu_s() < WORK_S {}
            let _ = sender.send(());
            false
        };
        let before = cpu_s();
        let thread = PeriodicThread::start(Duration::from_secs(3600), work).unwrap();
        receiver.recv().unwrap();
        drop(thread);
        assert!(cpu_s() - before >= WORK_S);
    }
}

//! Reads that another process can block forever.
//!
//! A read of a process's memory, arguments or files can wait for a file system that does not answer, or for a
//! program that serves pages itself (FUSE, userfaultfd): the process decides whether such a read ends. Such
//! work runs in a thread of its own, which is abandoned if it makes no progress. The total duration of the
//! work does not matter, nor does the load of the machine.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::proc::task::Thread;

/// Time that interrupted work has to end by itself.
const GRACE: Duration = Duration::from_millis(300);
/// Interval between two checks of the work's progress,
const STEP: Duration = Duration::from_millis(100);
/// and number of consecutive checks without progress after which it is abandoned: 5 s in total.
const STEPS: u32 = 50;

/// The reason why work was abandoned. Its thread ends when the operation that it waits for ends. Until then,
/// this process cannot end if the kernel does not let the thread be killed: for example, in a request that a
/// FUSE server has accepted and does not answer (`request_wait_answer` in fs/fuse/dev.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GivenUp {
    /// It made no progress.
    #[error("it made no progress for 5 s")]
    Blocked,
    /// The caller interrupted it.
    #[error("it was interrupted")]
    Interrupted,
}

/// Runs work in a thread of its own, until it makes no progress or `interrupt` is set. Panics if the work
/// panics.
///
/// # Errors
/// Fails if the work was abandoned.
pub fn patiently<T: Send + 'static>(
    interrupt: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GivenUp> {
    let (sender, receiver) = channel();
    let (thread_sender, thread_receiver) = channel();
    let worker = thread::spawn(move || {
        // If the work was abandoned, the receiver is gone.
        let _ = thread_sender.send(Thread::current());
        let _ = sender.send(work());
    });
    let own = std::process::id();
    let thread = thread_receiver.recv().unwrap_or(Thread { pid: own, tid: 0 });
    let (mut before, mut without_progress) = (None, 0);
    loop {
        match receiver.recv_timeout(STEP) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => return Err(GivenUp::Blocked),
            },
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupt.load(Ordering::Relaxed) {
            // Work that checks the interrupt itself ends at once.
            return receiver.recv_timeout(GRACE).map_err(|_| GivenUp::Interrupted);
        }
        let status = thread.status().unwrap_or_default();
        let now = Some(status.voluntary_switches);
        let has_moved = status.state == 'R' || now != before;
        without_progress = if has_moved { 0 } else { without_progress + 1 };
        before = now;
        if without_progress >= STEPS {
            return Err(GivenUp::Blocked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn completed_work_returns_its_result() {
        assert_eq!(patiently(&never(), || 7), Ok(7));
    }

    #[test]
    fn blocked_work_is_abandoned() {
        // The other end stays open, and nothing is written to it.
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let found = patiently(&never(), move || waited_for.read(&mut [0]).is_ok());
        assert_eq!(found, Err(GivenUp::Blocked));
        drop(other_end);
    }

    #[test]
    fn slow_work_that_makes_progress_is_not_abandoned() {
        // Longer than the limit for work without progress.
        let slow = || (0..2 * STEPS).for_each(|_| thread::sleep(STEP));
        assert_eq!(patiently(&never(), slow), Ok(()));
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_the_work() {
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let interrupt = AtomicBool::new(true);
        let found = patiently(&interrupt, move || waited_for.read(&mut [0]).is_ok());
        assert_eq!(found, Err(GivenUp::Interrupted));
        drop(other_end);
    }
}

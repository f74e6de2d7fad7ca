//! Reading what somebody else can hold up for ever.
//!
//! A read of a process's memory, arguments or files can wait for a file system that does not answer, or for
//! a program that serves pages by itself (FUSE, userfaultfd): the process decides whether such a read ends.
//! Such work is done by a thread of its own, which is given up when it makes no progress. How long the
//! work takes makes no difference, nor how busy the machine is.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::proc::task::Thread;

/// So long work that was interrupted is given to end by itself.
const GRACE: Duration = Duration::from_millis(300);
/// How often it is asked whether the work makes progress,
const STEP: Duration = Duration::from_millis(100);
/// and how often in a row it made none when it is given up: 5 s in all.
const STEPS: u32 = 50;

/// Why work was given up. Its thread ends when what it waits for does, and only then can this process end
/// where the kernel does not let the thread be killed: a request that a FUSE server has taken and does not
/// answer (`request_wait_answer` in fs/fuse/dev.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GivenUp {
    /// It made no progress.
    #[error("it made no progress for 5 s")]
    Blocked,
    /// Somebody asked for it.
    #[error("it was interrupted")]
    Interrupted,
}

/// Does some work in a thread of its own, until that makes no progress or `interrupt` is set. When the
/// work panics, so does this.
///
/// # Errors
/// When the work was given up.
pub fn patiently<T: Send + 'static>(
    interrupt: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GivenUp> {
    let (sender, receiver) = channel();
    let (thread_sender, thread_receiver) = channel();
    let worker = thread::spawn(move || {
        // Nobody listens any more where the work was given up.
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
            // Work that heeds the interrupt itself ends at once.
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
    fn work_that_ends_gives_what_it_found() {
        assert_eq!(patiently(&never(), || 7), Ok(7));
    }

    #[test]
    fn work_that_waits_for_what_never_comes_is_given_up() {
        // The other end stays open, and nothing is written there.
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let found = patiently(&never(), move || waited_for.read(&mut [0]).is_ok());
        assert_eq!(found, Err(GivenUp::Blocked));
        drop(other_end);
    }

    #[test]
    fn work_that_goes_on_slowly_is_waited_for() {
        // Longer than work that stands still would be.
        let slow = || (0..2 * STEPS).for_each(|_| thread::sleep(STEP));
        assert_eq!(patiently(&never(), slow), Ok(()));
    }

    #[test]
    fn whoever_interrupts_does_not_wait_for_the_work() {
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let interrupt = AtomicBool::new(true);
        let found = patiently(&interrupt, move || waited_for.read(&mut [0]).is_ok());
        assert_eq!(found, Err(GivenUp::Interrupted));
        drop(other_end);
    }
}

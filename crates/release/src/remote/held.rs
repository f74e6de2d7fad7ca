//! A thread that stands still, and how it goes on.

use std::io;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::Thread;

use super::tracee::{Registers, Stop, Tracee};
use super::wait::{Resume, Timeout};
use super::{STOP_LIMIT, Step};
use crate::stub::SYSCALL_BYTES;

/// A thread that stands still.
pub(super) struct Held {
    pub(super) tracee: Tracee,
    pub(super) registers: Registers,
    pub(super) resume: Resume,
    /// How it goes on.
    pub(super) back: Registers,
    pub(super) broken_off: Registers,
    /// What is left of its time-out, where that is told anew: in which argument, and since when so much.
    pub(super) left: Option<(Timeout, Duration, Instant)>,
    pub(super) mask: u64,
    /// The signals that its call blocks while it waits, where those are others than the thread's.
    pub(super) waits_with: Option<u64>,
    pub(super) thread: Thread,
    pub(super) since: Instant,
}

impl Held {
    /// Whether a signal that comes now would end the wait. One that waits with signals of its own is not ended
    /// by those that it blocks, though the thread itself does not.
    fn may_end(&self) -> bool {
        let Some(waits_with) = self.waits_with else { return true };
        self.thread.status().is_ok_and(|status| {
            let signals = status.signals;
            let pending = (signals.pending | signals.pending_shared) & signals.caught;
            pending & !self.mask & !waits_with != 0
        })
    }

    /// Stays with a thread while it makes calls. At their end it stands as it stood before them, its wait just
    /// broken off, and the kernel goes on from there: it begins the wait again, or, if a signal has come
    /// meanwhile, runs its handler and breaks the wait off, as it would have. Without us, the thread begins
    /// its wait again in any case, and a handler that runs before that would not have ended it.
    pub(super) fn see_through(
        mut self,
        calls: usize,
        tell: &mut dyn FnMut(Step),
    ) -> io::Result<()> {
        // Each call and each way back begins and ends, with one way back before all of them.
        let stops = 2 * (2 * calls + 1);
        for _ in 0..stops {
            self.tracee.next_call()?;
            match self.tracee.wait(STOP_LIMIT)? {
                Stop::Call => {}
                // A handler comes before the first call: then there will be none.
                Stop::Signal(signal) => return self.tracee.let_go(signal),
                Stop::Asked | Stop::Group => return self.tracee.let_go(0),
                Stop::Ended => return Ok(()),
                Stop::Never => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        tell(Step::Set);
        let mut registers = self.tracee.registers()?;
        let is_there = registers.rip == self.back.rip && registers.rsp == self.back.rsp;
        if self.resume.again && is_there && self.may_end() {
            registers.rip += SYSCALL_BYTES;
            registers.orig_rax = self.back.rax;
            registers.rax = self.resume.code as u64;
            self.tracee.set_registers(&registers)?;
        }
        self.tracee.let_go(0)
    }

    /// What is left of its time-out by now.
    pub(super) fn left(&self) -> Option<(Timeout, Duration)> {
        let (timeout, left, since) = self.left?;
        Some((timeout, left.saturating_sub(since.elapsed())))
    }
}

//! Making threads of the target run our code.

use std::time::{Duration, Instant};

use lowtide_probe::proc::task::{self, Thread};

use super::block::SharedBlock;
use super::borrow::{ThreadBorrower, waits};
use super::calls::{CLONE_FLAGS, CLONE_SETTLS, code_calls};
use super::frame::{self, chain, set_argument};
use super::mapping::Injected;
use super::stopped_thread::StoppedThread;
use super::tracee::Registers;
use super::wait::Timeout;
use super::{ACTION_TIMEOUT, SEARCH_TIMEOUT, TRIM_TIMEOUT, nanoseconds};
use crate::error::{Abort, failed};
use crate::priority;
use crate::stub::numbers::*;
use crate::stub::{NAME, SYSCALL_BYTES};

/// Maximum time to wait until a thread that has run our code is seen outside of it.
const RETURN_TIMEOUT: Duration = Duration::from_millis(100);

/// The task of a borrowed thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Start a thread of our own.
    Clone {
        /// Whether that thread calls `malloc_trim`; otherwise it is a worker thread.
        trims: bool,
    },
    /// Run operations for this time.
    Slice(Duration),
    /// Call a function of the target with a number.
    Call(u64),
}

impl Injected<'_, '_> {
    /// Makes a thread run our code, and waits until it has returned to its own. Returns the time that our code ran.
    pub(crate) fn enter(&mut self, task: Task) -> Result<Duration, Abort> {
        let block = self.block;
        let timeout = if matches!(task, Task::Call(_)) { TRIM_TIMEOUT } else { ACTION_TIMEOUT };
        let begin = Instant::now();
        loop {
            let entered = Instant::now();
            let planned = code_calls(block.code().start);
            let redirected = self.borrower.redirect(&planned, None, |borrower, stopped| {
                if !borrower.is_wanted(stopped) {
                    return Ok(None);
                }
                prepare(borrower, block, stopped, task)
            })?;
            let thread = redirected.candidate.thread;
            self.inside.retain(|(other, _)| *other != thread);
            let entry = (thread, thread.ran());
            self.inside.push(entry);
            self.borrower.confirm(redirected)?;
            let waited = waits(&[thread]);
            let is_back = || self.half(OFF_BORROWED) == Some(STATE_BACK);
            if !self.io().until(timeout, is_back) {
                self.is_busy = true;
                return Err(self.io().because(
                    "a borrowed thread did not return in time: it will return by itself",
                ));
            }
            // The code reports this two instructions early.
            if self.io().until(RETURN_TIMEOUT, || self.is_outside(&entry)) {
                // It only returns if it is borrowed again.
                self.inside.retain(|(other, _)| *other != thread);
            }
            let worked = self.get(OFF_WORKED_NS).unwrap_or(0);
            if worked > 0 {
                let worked = Duration::from_nanos(worked).min(entered.elapsed());
                let waited = waits(&[thread]).saturating_sub(waited);
                self.borrower.extend_pause(worked, waited.min(worked));
                return Ok(worked);
            }
            // A signal handler ran before our code, and has interrupted its call.
            if begin.elapsed() > SEARCH_TIMEOUT {
                return Err(failed("signals kept arriving before the code of lowtide could run"));
            }
        }
    }

    /// Borrows only the thread that owns memory from now on, by the address of its own data; `None`: any
    /// thread.
    pub(crate) fn borrow_only(&mut self, owner: Option<u64>) {
        self.borrower.owner = owner;
    }

    /// Starts a thread of our own in the target. Until [`Injected::wait_for_exit`] or [`Injected::no_thread`], the code
    /// must stay mapped.
    pub(crate) fn start_thread(&mut self, trims: bool) -> Result<(), Abort> {
        self.enter(Task::Clone { trims })?;
        self.is_busy = true;
        Ok(())
    }

    /// Returns whether a thread may run our code.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Notes that no thread could be started.
    pub(crate) fn no_thread(&mut self) {
        self.is_busy = false;
    }

    /// Waits until the kernel has reported the end of our thread.
    pub(crate) fn wait_for_exit(&mut self, timeout: Duration) -> Result<(), Abort> {
        if !self.io().until(timeout, || self.half(OFF_TID) == Some(0)) {
            return Err(self.io().because(
                "the thread of lowtide in it has not ended yet: a later release cleans up",
            ));
        }
        self.is_busy = false;
        Ok(())
    }

    /// Returns the threads of the target, as far as they are visible.
    pub(crate) fn threads(&self) -> Vec<Thread> {
        task::threads(self.io().target.pid).unwrap_or_default()
    }

    /// Boosts the worker thread in the target: while it holds a lock, it holds up other threads. The thread is
    /// identified by three facts: it was not there `before`; it has our name, which a thread of the target may have
    /// as well; and it has the TID that `clone` returned in the target's own namespace.
    pub(crate) fn boost_worker(&mut self, before: &[Thread], cloned: u32) {
        let is_ours = |thread: &Thread| {
            !before.contains(thread)
                && thread.stat().is_ok_and(|stat| stat.name == NAME)
                && thread.status().is_ok_and(|status| status.own_pid == cloned)
        };
        self.boosted = self.threads().into_iter().filter(is_ours).collect();
        for thread in &self.boosted {
            priority::boost(thread.tid);
        }
    }

    /// Reverts the boost of a thread that has not ended: it must not keep that priority, least of all if it has become
    /// the target's own.
    pub(crate) fn unboost_worker(&mut self) {
        let still_there = self.threads();
        for thread in self.boosted.drain(..).filter(|thread| still_there.contains(thread)) {
            priority::unboost(thread.tid);
        }
    }
}

/// Writes what a stopped thread needs to run our code and to return. Returns the registers with which it enters the
/// code; `None` if its state cannot be put into a frame.
fn prepare(
    borrower: &mut ThreadBorrower<'_>,
    block: SharedBlock,
    stopped: &StoppedThread,
    task: Task,
) -> Result<Option<Registers>, Abort> {
    let state = stopped.resume_state().map_err(|error| borrower.io.failed(error))?;
    let Some(mut state) = state else { return Ok(None) };
    if let Some(Timeout::Timespec(argument, _)) = stopped.timeout() {
        set_argument(&mut state.registers, argument, block.address(OFF_TIMESPEC));
    }
    // The two ways back, without any calls before them.
    let code = stopped.resume.code;
    let ways = chain(&stopped.registers, code, &borrower.gadgets, &state, &[], |_| Vec::new());
    let io = &mut borrower.io;
    io.write(ways.at, &ways.bytes)?;
    let (timeout_form, timeout_at) = match stopped.timeout() {
        Some(Timeout::Milliseconds(argument, _)) => {
            (TIMEOUT_MS, frame::argument_at(ways.back_at, argument))
        }
        Some(Timeout::Timespec(..)) => (TIMEOUT_TIMESPEC, block.address(OFF_TIMESPEC)),
        Some(Timeout::Updated(_, at)) => (TIMEOUT_TIMESPEC, at),
        _ => (TIMEOUT_KEPT, 0),
    };
    let (number, slice, trims) = match task {
        Task::Clone { trims } => (TASK_CLONE, Duration::ZERO, trims),
        Task::Slice(slice) => (TASK_SLICE, slice, false),
        Task::Call(_) => (TASK_CALL, Duration::ZERO, false),
    };
    let words = [ways.back_at, ways.interrupted_at, stopped.mask, u64::MAX];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    block.write(io, OFF_BACK_AT, &bytes)?;
    // The state (not back yet) and the task.
    block.put(io, OFF_BORROWED, number << 32)?;
    if matches!(task, Task::Clone { .. }) {
        let tls = if trims { CLONE_SETTLS } else { 0 };
        block.put(io, OFF_CLONE_FLAGS, CLONE_FLAGS | tls)?;
        block.put(io, OFF_CLONED, 0)?;
        block.write(io, OFF_TID, &[1, 0, 0, 0, u8::from(trims), 0, 0, 0])?;
        if trims {
            copy_storage(borrower, block, stopped.registers.fs_base)?;
        }
    }
    let io = &mut borrower.io;
    if let Task::Call(argument) = task {
        block.put(io, OFF_ARGUMENT, argument)?;
    }
    block.put(io, OFF_RESTARTS, stopped.resume.restarts)?;
    block.put(io, OFF_SLICE_NS, nanoseconds(slice))?;
    block.put(io, OFF_WORKED_NS, 0)?;
    let left = stopped.left().map_or(0, |(_, left)| nanoseconds(left));
    let timeout: Vec<u8> = [stopped.wait_mask.unwrap_or(0), timeout_form, timeout_at, left]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    block.write(io, OFF_WAIT_MASK, &timeout)?;
    let mut registers = stopped.registers;
    registers.rip = block.code().start + SYSCALL_BYTES;
    registers.orig_rax = NR_RT_SIGPROCMASK;
    registers.rax = stopped.resume.code as u64;
    registers.rdi = 2; // SIG_SETMASK
    registers.rsi = block.address(OFF_ALL_SIGNALS);
    registers.rdx = 0;
    registers.r10 = 8;
    registers.rsp = ways.at;
    Ok(Some(registers))
}

/// Copies a thread's thread-local storage for a thread of our own, with the start of glibc's data of a thread:
/// `malloc_trim` reads there whether it must take locks, and sets errno.
fn copy_storage(
    borrower: &mut ThreadBorrower<'_>,
    block: SharedBlock,
    fs_base: u64,
) -> Result<(), Abort> {
    const ALIGNMENT: u64 = 64;
    const ABOVE: u64 = STORAGE_BYTES - ALIGNMENT * 2;
    let mapping = borrower.maps.iter().find(|m| m.contains(fs_base));
    let below = mapping.map_or(0, |m| fs_base - m.start);
    let below = below.min(STORAGE_AT - OFF_OPS - 4096);
    let io = &mut borrower.io;
    let mut bytes = vec![0; (below + ABOVE) as usize];
    io.read(fs_base - below, &mut bytes).map_err(|error| io.target.failed(error))?;
    let own = block.address(STORAGE_AT + fs_base % ALIGNMENT);
    // The data starts with pointers to itself (`tcb` and `self`).
    for at in [0, 16] {
        let at = (below + at) as usize;
        bytes[at..at + 8].copy_from_slice(&own.to_le_bytes());
    }
    io.write(own - below, &bytes)?;
    block.put(io, OFF_TLS, own)
}

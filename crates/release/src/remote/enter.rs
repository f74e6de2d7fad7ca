//! Making threads of the target run our code.

use std::time::{Duration, Instant};

use lowtide_probe::proc::is_gone;
use lowtide_probe::proc::task::{self, Thread};

use super::block::SharedBlock;
use super::borrow::{ThreadBorrower, waits};
use super::calls::{CLONE_FLAGS, code_calls};
use super::counted::ThreadStanding;
use super::frame::{FrameChain, chain};
use super::heartbeat::Heartbeat;
use super::mapping::Injected;
use super::stopped_thread::StoppedThread;
use super::wait::Timeout;
use super::{ACTION_TIMEOUT, CALL_TIMEOUT, SEARCH_TIMEOUT, nanoseconds};
use crate::arch::{self, FrameCall, Registers};
use crate::error::{Abort, failed};
use crate::priority;
use crate::privileges::PrivilegeWatch;
use crate::stub::contract::*;

/// Maximum time to wait until a thread that has run our code is seen outside of it.
const RETURN_TIMEOUT: Duration = Duration::from_millis(100);

/// Message for a block that is mapped and cannot be read.
pub(crate) const UNREADABLE: &str = "its memory can no longer be read";

/// The TID of the worker thread before it is started. The kernel sets it to the TID, and to 0 when
/// the thread ends.
const NO_TID: u32 = u32::MAX;

/// Number of listings of threads in which a thread that runs is looked for.
const LISTINGS: u32 = 16;

/// The task of a borrowed thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Start the worker thread.
    Clone,
    /// Run operations for this time.
    Slice(Duration),
    /// Call a function of the target with a number.
    Call(u64),
}

impl Injected<'_, '_> {
    /// Makes a thread run our code, and waits until it has returned to its own. Returns the time
    /// that our code ran.
    pub(crate) fn enter(&mut self, task: Task) -> Result<Duration, Abort> {
        let block = self.block;
        let timeout = if matches!(task, Task::Call(_)) { CALL_TIMEOUT } else { ACTION_TIMEOUT };
        let begin = Instant::now();
        loop {
            let entered = Instant::now();
            let planned = code_calls(block.code().start, self.borrower.code.gadgets.syscall_ret);
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
            // From here on, the worker thread may exist, whatever fails.
            self.is_busy = task == Task::Clone;
            self.borrower.confirm(redirected)?;
            let waited = waits(&[thread]);
            let is_back = || self.get(field::BORROWED).map(u64::from) == Some(STATE_BACK);
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
            // What cannot be read is not 0: our code would run twice, and start two threads.
            let worked = self.get(field::WORKED_NS).ok_or_else(|| self.io().because(UNREADABLE))?;
            if worked > 0 {
                let worked = Duration::from_nanos(worked).min(entered.elapsed());
                let waited = waits(&[thread]).saturating_sub(waited);
                self.borrower.extend_pause(worked, waited.min(worked));
                return Ok(worked);
            }
            // A signal handler ran before our code, and has interrupted its call.
            self.is_busy = false;
            if begin.elapsed() > SEARCH_TIMEOUT {
                return Err(failed("signals kept arriving before the code of lowtide could run"));
            }
        }
    }

    /// Borrows only the thread that owns memory from now on, by the address of its own data;
    /// `None`: any thread.
    pub(crate) fn borrow_only(&mut self, owner: Option<u64>) {
        self.borrower.owner = owner;
    }

    /// Makes a borrowed thread call a function of the target with a number. Returns the time that
    /// it took.
    pub(crate) fn call(&mut self, function: u64, argument: u64) -> Result<Duration, Abort> {
        self.put(field::FUNCTION, function)?;
        self.enter(Task::Call(argument))
    }

    /// Starts a worker thread in the target. Until [`Injected::wait_for_exit`] or
    /// [`Injected::no_thread`], the code must stay mapped.
    pub(crate) fn start_thread(&mut self) -> Result<(), Abort> {
        self.enter(Task::Clone).map(drop)
    }

    /// Returns whether a thread may run our code.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Notes that no thread was started. The block must say so: what cannot be read says nothing.
    pub(crate) fn no_thread(&mut self) {
        self.is_busy = false;
    }

    /// Waits until the kernel has reported the end of our thread.
    pub(crate) fn wait_for_exit(&mut self, timeout: Duration) -> Result<(), Abort> {
        if !self.io().until(timeout, || self.get(field::TID) == Some(0)) {
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

    /// Finds the worker thread. It is identified by two facts: it was not there `before`, and it
    /// has the TID that `clone` returned in the target's own namespace.
    pub(crate) fn find_worker(&mut self, before: &[Thread], cloned: u32) -> Option<Thread> {
        let is_ours = |thread: &Thread| {
            !before.contains(thread) && thread.status().is_ok_and(|status| status.own_pid == cloned)
        };
        // A listing of threads lacks some if others end during it (`next_tid` in fs/proc/base.c).
        self.worker =
            (0..LISTINGS).find_map(|_| self.threads().into_iter().find(|thread| is_ours(thread)));
        self.worker
    }

    /// Ends the worker thread once these privileges change.
    pub(crate) fn watch_privileges(&self, threads: PrivilegeWatch) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.watch(threads);
        }
    }

    /// Returns whether the process has changed its privileges since they are watched.
    pub(crate) fn has_seen_change(&self) -> bool {
        self.heartbeat.as_ref().is_some_and(Heartbeat::has_seen_change)
    }

    /// Boosts the worker thread: while it holds a lock, it holds up other threads.
    pub(crate) fn boost_worker(&self) {
        if let Some(worker) = self.worker {
            priority::boost(worker.tid);
        }
    }

    /// Reverts the boost of a thread that has not ended: it must not keep that priority, least of
    /// all if it has become the target's own.
    pub(crate) fn unboost_worker(&mut self) {
        let has_ended = |worker: &Thread| worker.stat().is_err_and(|error| is_gone(&error));
        if let Some(worker) = self.worker.take().filter(|worker| !has_ended(worker)) {
            priority::unboost(worker.tid);
        }
    }
}

/// Writes what a stopped thread needs to run our code and to return. Returns the registers with
/// which it enters the code; `None` if its state cannot be put into a frame.
fn prepare(
    borrower: &mut ThreadBorrower<'_>,
    block: SharedBlock,
    stopped: &StoppedThread,
    task: Task,
) -> Result<Option<Registers>, Abort> {
    block.check_owner(&borrower.io)?;
    let state = stopped.resume_state().map_err(|error| borrower.io.failed(error))?;
    let Some(mut state) = state else { return Ok(None) };
    if let Some(Timeout::Timespec(argument, _)) = stopped.timeout() {
        state.registers.set_argument(argument, block.address(field::TIMESPEC));
    }
    // The two ways back, without any calls before them.
    let code = stopped.resume.code;
    let ways = chain(&stopped.registers, code, &borrower.code.gadgets, &state, &[], |_| Vec::new());
    let block_signals = FrameCall {
        number: NR_RT_SIGPROCMASK,
        args: [SIGPROCMASK_SETMASK, block.address(field::ALL_SIGNALS), 0, 8, 0, 0],
    };
    let (registers, below) = stopped.registers.entering_code(
        &borrower.code.gadgets,
        code,
        ways.at,
        &block_signals,
        block.code().start,
    );
    let standing = borrower.standing;
    let io = &mut borrower.io;
    io.write(ways.at - below.len() as u64, &[&below[..], &ways.bytes].concat())?;
    block.set(io, &fields(block, stopped, &ways, task, standing))?;
    Ok(Some(registers))
}

/// Returns the fields of the block for a task of a thread that returns by these ways.
fn fields(
    block: SharedBlock,
    stopped: &StoppedThread,
    ways: &FrameChain,
    task: Task,
    standing: ThreadStanding,
) -> FieldValues {
    let (timeout_form, timeout_at) = match stopped.timeout() {
        Some(Timeout::Milliseconds(argument, _)) => {
            (TIMEOUT_MS, arch::argument_at(ways.back_at, argument))
        }
        Some(Timeout::Timespec(..)) => (TIMEOUT_TIMESPEC, block.address(field::TIMESPEC)),
        Some(Timeout::Updated(_, at)) => (TIMEOUT_TIMESPEC, at),
        _ => (TIMEOUT_KEPT, 0),
    };
    let (number, slice) = match task {
        Task::Clone => (TASK_CLONE, Duration::ZERO),
        Task::Slice(slice) => (TASK_SLICE, slice),
        Task::Call(_) => (TASK_CALL, Duration::ZERO),
    };
    let left = stopped.left().map_or(0, |(_, left)| nanoseconds(left));
    let mut values = FieldValues::default()
        .with(field::BACK_AT, ways.back_at)
        .with(field::BROKEN_AT, ways.interrupted_at)
        .with(field::MASK, stopped.mask)
        .with(field::ALL_SIGNALS, u64::MAX)
        .with(field::BORROWED, 0)
        .with(field::TASK, number)
        .with(field::RESTARTS, stopped.resume.restarts)
        .with(field::SLICE_NS, nanoseconds(slice))
        .with(field::WORKED_NS, 0)
        .with(field::WAIT_MASK, stopped.wait_mask.unwrap_or(0))
        .with(field::TIMEOUT_FORM, timeout_form)
        .with(field::TIMEOUT_AT, timeout_at)
        .with(field::TIMEOUT_NS, left)
        .with(field::ALONE, u64::from(standing == ThreadStanding::Alone));
    if task == Task::Clone {
        values = values
            .with(field::CLONE_FLAGS, CLONE_FLAGS)
            .with(field::CLONED, 0)
            .with(field::TID, NO_TID);
    }
    if let Task::Call(argument) = task {
        values = values.with(field::ARGUMENT, argument);
    }
    values
}

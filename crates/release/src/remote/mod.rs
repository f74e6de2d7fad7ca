//! Operations on another process. Nothing else uses ptrace.
//!
//! A thread of the target that waits in a system call is stopped for a moment, given other
//! registers, and detached. The calls that it then makes end by themselves. The thread resumes with
//! its own registers and its own signal mask, and its call is restarted, whether lowtide still runs
//! or not.
//!
//! There are three layers, each of which owns or borrows the one before:
//!
//! - `TargetIo` reads and writes the target's memory, and waits for changes.
//! - `ThreadBorrower` borrows threads, and makes them perform system calls without any code of
//!   ours.
//! - `Injected` exists while our code is mapped. It makes threads run that code, and accesses its
//!   block.
//!
//! The modules:
//!
//! - `borrow`, `stopping`, `stopped_thread` and `tracee`: borrowing a thread, stopping it at a safe
//!   point, and ptrace itself.
//! - `candidates`: the threads that can be borrowed, determined from outside.
//! - `wait` and `time_asleep`: the calls that threads wait in, and their remaining timeouts.
//! - `frame_calls`, `frame`: calls that a thread makes without any code of ours.
//! - `code_writer`: writing our code to its page.
//! - `mapping` and `leftovers`: mapping and unmapping our code, and finding what earlier releases
//!   have left.
//! - `enter`, `block`, `mapped_block` and `heartbeat`: making a thread run our code, the interface
//!   of that code, and the sign of life of a release.
//! - `calls`: the system calls that are made in the target.
//! - `seccomp`: whether a thread may make those calls, if its filters can be read.
//! - `shared_filters` and `scratch`: the same, if it has the filters of lowtide itself.

mod block;
mod borrow;
mod calls;
mod candidates;
mod code_writer;
mod counted;
mod enter;
mod files;
mod frame;
mod frame_calls;
mod heartbeat;
mod leftovers;
mod mapped_block;
mod mapping;
mod scratch;
pub(crate) mod seccomp;
mod shared_filters;
mod stopped_thread;
mod stopping;
mod target_io;
mod time_asleep;
mod tracee;
mod wait;

use std::time::Duration;

pub(crate) use borrow::{Pause, ThreadBorrower};
pub(crate) use candidates::check_borrowable;
pub(crate) use enter::{Task, UNREADABLE};
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use frame::{FrameChain, MAX_CHAIN_BYTES, ResumeState, chain};
pub(crate) use mapping::Injected;
pub(crate) use tracee::checked;
#[cfg(any(test, not(target_arch = "x86_64")))]
pub(crate) use wait::EINTR;
#[cfg(test)]
pub(crate) use wait::Timeout;
pub(crate) use wait::Wait;
#[cfg(target_arch = "x86_64")]
pub(crate) use wait::result_if_untouched;

/// Maximum time to wait for a thread to stop. It runs meanwhile, and may have to wait for a
/// processor.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to wait for an operation in the target.
pub(crate) const ACTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a function of the allocator.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time to search for a thread that can be borrowed.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time of the search if the release is only predicted: a thread that runs all the time
/// counts as one that cannot be borrowed.
const PREDICTION_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum time to wait for a process that was stopped by job control.
const JOB_STOP_TIMEOUT: Duration = Duration::from_millis(300);

/// An operation on the target, reported before it is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetStep {
    /// Starts to trace a thread.
    Seize,
    /// Requests it to stop.
    Interrupt,
    /// Waits for the stop.
    Wait,
    /// Reads its registers.
    Read,
    /// Writes to the target's memory.
    Write,
    /// Sets its registers.
    Set,
    /// Detaches it.
    Detach,
    /// Waits for the effect.
    Await,
}

/// Converts a time to nanoseconds, saturating.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

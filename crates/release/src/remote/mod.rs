//! Acting in another process: the only ptrace.
//!
//! A thread that waits in a system call is stopped for a moment, given other registers, and let go; what it
//! then does ends by itself with its own registers, its own signal mask and its call begun again, whether
//! we are still there or not.
//!
//! - `mapping` and `leftovers`: our code, how it comes into a process and leaves it, and what an earlier
//!   release has left.
//! - `enter` and `block`: having a thread run it, and what it is told.
//! - `candidates`: which thread can be borrowed, told from outside.
//! - `borrow`, `tracee` and `stopped_thread`: one thread that is stopped, and how it goes on.
//! - `wait` and `time_asleep`: the calls that threads wait in, and what is left of their time-outs.
//! - `calls`: the calls that are made in the target.
//! - `frame`, `gadgets`, `vectors`: calls that a thread makes without any code of ours.
//! - `priority`: not being interrupted while a thread stands still.
//! - [`seccomp`]: whether a thread may make those calls.
//! - `symbol`: where names of the C library are.

mod block;
mod borrow;
mod calls;
pub(crate) mod candidates;
mod enter;
mod files;
pub(crate) mod frame;
pub(crate) mod gadgets;
pub(crate) mod leftovers;
mod mapping;
mod priority;
pub mod seccomp;
mod stopped_thread;
pub(crate) mod symbol;
pub(crate) mod time_asleep;
pub(crate) mod tracee;
pub(crate) mod vectors;
pub(crate) mod wait;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_probe::inspect::{Target, TargetError};
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task::Thread;

use crate::checks::Abort;
use crate::refusal::Refusal;
use crate::release::ReleaseError;

use candidates::{Candidates, ThreadInspector};
use gadgets::Gadgets;
pub(crate) use priority::{IdleGuard, JobControlBlocked, boost_idle_threads};
use time_asleep::LastTimeout;

/// Maximum time to wait for a thread to stop. It runs meanwhile, and may have to wait for a processor.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to wait for an operation in the target.
pub(crate) const ACTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for `malloc_trim`.
pub(crate) const TRIM_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time to search for a thread that can be borrowed.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to wait for a process that was stopped by job control.
const JOB_STOP_TIMEOUT: Duration = Duration::from_millis(300);

/// One act on the target, told before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A thread is about to be traced.
    Seize,
    /// It is asked to stop.
    Interrupt,
    /// It is waited for.
    Wait,
    /// Its registers are read.
    Read,
    /// Something is written to memory of the target.
    Write,
    /// Its registers are set.
    Set,
    /// It is let go.
    Detach,
    /// What it was sent to do is waited for.
    Await,
}

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
    /// Call `malloc_trim`.
    Trim,
}

/// A thread of the target was stopped_thread up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    /// For so long.
    pub length: Duration,
    /// So much of it that thread, or ours, waited for a processor.
    pub waited: Duration,
}

/// A process in which something is done.
pub(crate) struct Remote<'a> {
    target: &'a Target,
    live: &'a LiveMemory,
    memory: File,
    maps: Vec<Mapping>,
    heap: Vec<Range<u64>>,
    code: Vec<Range<u64>>,
    gadgets: Gadgets,
    restorers: Vec<u64>,
    /// Where our code is.
    place: Option<u64>,
    /// What earlier releases have left, and must stay.
    left: Vec<Range<u64>>,
    /// Whether our code may still be at work: then it must stay.
    pub(crate) is_busy: bool,
    /// Threads in the target that were boosted: the worker thread.
    boosted: Vec<Thread>,
    /// How long threads of the target were stopped_thread up.
    pub(crate) pauses: Vec<Pause>,
    /// Threads that were sent into our code, and how long each had had a processor by then.
    inside: Vec<(Thread, Option<Duration>)>,
    /// The thread that was borrowed first, and the call that it waited in.
    pub(crate) borrowed: Option<(u32, &'static str)>,
    /// Where the thread that was borrowed last has its thread-local storage.
    fs_base: u64,
    /// The timeout that was last rewritten in whole milliseconds.
    last_timeout: LastTimeout,
    /// Set by somebody else, it ends the search for a thread; nothing where our code has to leave.
    interrupt: Option<&'a AtomicBool>,
    observe: &'a mut dyn FnMut(Step),
}

impl<'a> Remote<'a> {
    /// Takes hold of a process; nothing is done to it yet. `malloc` is the file that its `malloc` is in.
    pub(crate) fn open(
        target: &'a Target,
        live: &'a LiveMemory,
        maps: Vec<Mapping>,
        malloc: &str,
        interrupt: &'a AtomicBool,
        observe: &'a mut dyn FnMut(Step),
    ) -> Result<Self, Abort> {
        priority::reduce_timer_slack();
        priority::lower();
        let code: Vec<&Mapping> = maps
            .iter()
            .filter(|m| m.has_file() && m.name == malloc && m.permissions.contains('x'))
            .collect();
        let gadgets = Gadgets::find(target.pid, &code)?;
        let code = code.iter().map(|m| m.start..m.end).collect();
        let restorers = gadgets::restorers(target.pid, &maps);
        let memory = OpenOptions::new().read(true).write(true).open(target.path("mem"));
        let memory = memory.map_err(|error| target.failed(error))?;
        let (heap, pauses) = (Vec::new(), Vec::new());
        Ok(Self {
            target,
            live,
            memory,
            maps,
            heap,
            code,
            gadgets,
            restorers,
            place: None,
            left: Vec::new(),
            is_busy: false,
            boosted: Vec::new(),
            pauses,
            inside: Vec::new(),
            borrowed: None,
            fs_base: 0,
            last_timeout: LastTimeout::default(),
            interrupt: Some(interrupt),
            observe,
        })
    }

    /// Keeps other releases away from the process. The kernel lets go of this when lowtide ends, however that
    /// happens; releases that see the process through another `/proc` are told apart by what they leave
    /// in it.
    ///
    /// # Errors
    /// When another release is at work there.
    pub(crate) fn lock(&self) -> Result<(), Abort> {
        use rustix::fs::{FlockOperation, flock};
        match flock(&self.memory, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Refusal::AnotherRelease.into()),
            // Where files of /proc have no locks, it goes without.
            _ => Ok(()),
        }
    }

    /// Tells where the heap is, so that no stack is mistaken that lies there.
    pub(crate) fn set_heap(&mut self, heap: Vec<Range<u64>>) {
        self.heap = heap;
    }

    /// The threads that can be borrowed.
    pub(crate) fn candidates(&self) -> Candidates {
        self.inspector().candidates()
    }

    fn inspector(&self) -> ThreadInspector<'_> {
        ThreadInspector {
            target: self.target,
            memory: self.live,
            maps: &self.maps,
            heap: &self.heap,
            code: &self.code,
            restorers: &self.restorers,
        }
    }

    /// Waits until something holds, for so long at most; less long in a process that is stopped.
    pub(crate) fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        const POLL_INTERVAL: Duration = Duration::from_micros(20);
        const SLOW_POLL_INTERVAL: Duration = Duration::from_micros(200);
        /// Interval of the checks whether the process is stopped.
        const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let (mut checked, mut stopped) = (Duration::ZERO, None);
        loop {
            if holds(self) {
                return true;
            }
            let waited = begin.elapsed();
            if waited >= limit || !self.live.is_in_use() {
                return false;
            }
            if waited >= checked + STOP_CHECK_INTERVAL {
                checked = waited;
                stopped = if self.is_stopped() { stopped.or(Some(waited)) } else { None };
                if stopped.is_some_and(|since| waited - since > JOB_STOP_TIMEOUT) {
                    return false;
                }
            }
            std::thread::sleep(if waited < SLOW_POLL_INTERVAL * 10 {
                POLL_INTERVAL
            } else {
                SLOW_POLL_INTERVAL
            });
        }
    }

    fn is_stopped(&self) -> bool {
        self.target.stat().is_ok_and(|stat| stat.state == 'T')
    }

    /// Why something did not come to pass: because the target is no more, or stopped; else as it is said.
    pub(crate) fn because(&self, else_why: &str) -> Abort {
        match self.lost() {
            Some(error) => error.into(),
            None if self.is_stopped() => {
                failed("it was stopped meanwhile: what is left in it a later release removes")
            }
            None => failed(else_why),
        }
    }

    /// What has become of a target whose memory is nobody's any more.
    fn lost(&self) -> Option<TargetError> {
        if self.live.is_in_use() {
            return None;
        }
        // A process gives its memory away a little before it has ended; one that has started another
        // program has other memory.
        let begin = Instant::now();
        // (Its end is not told as long as one of its threads is stopped_thread here.)
        while self.target.stat().is_ok() && begin.elapsed() < ACTION_TIMEOUT {
            if self.target.maps().is_ok_and(|maps| !maps.is_empty()) {
                return Some(TargetError::Replaced(self.target.pid));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Some(TargetError::Gone(self.target.pid))
    }

    /// What an error in acting on it means.
    fn failed(&self, error: io::Error) -> Abort {
        self.lost().unwrap_or_else(|| self.target.failed(error)).into()
    }
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        use rustix::fs::{FlockOperation, flock};
        // Not only by closing the file: a child that is just being started may have it too.
        let _ = flock(&self.memory, FlockOperation::Unlock);
    }
}

/// Saturating: hundreds of years are as good as more.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn failed(what: &str) -> Abort {
    Abort::Failed(ReleaseError::Failed(what.to_owned()))
}

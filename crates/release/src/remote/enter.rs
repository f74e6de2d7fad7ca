//! Having a thread run our code.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::{self, Thread};

use super::borrow::waits;
use super::calls::{CLONE_FLAGS, CLONE_SETTLS, code_calls};
use super::frame::{self, chain, set_argument};
use super::stopped_thread::StoppedThread;
use super::tracee::Registers;
use super::wait::Timeout;
use super::{
    ACTION_TIMEOUT, Remote, SEARCH_TIMEOUT, TRIM_TIMEOUT, Task, failed, nanoseconds, priority,
};
use crate::checks::Abort;
use crate::stub::numbers::*;
use crate::stub::{NAME, SYSCALL_BYTES};

/// Maximum time to wait until a thread that has run our code is seen outside of it.
const RETURN_TIMEOUT: Duration = Duration::from_millis(100);

impl Remote<'_> {
    /// Has a thread run our code. Comes back when the thread is itself again; says how long our code ran.
    pub(crate) fn enter(&mut self, task: Task) -> Result<Duration, Abort> {
        let place = self.place.ok_or_else(|| failed("nothing was mapped yet"))?;
        let limit = if task == Task::Trim { TRIM_TIMEOUT } else { ACTION_TIMEOUT };
        let begin = Instant::now();
        loop {
            let entered = Instant::now();
            let planned = code_calls(place);
            let borrowed = self
                .borrow(&planned, None, |remote, stopped| remote.prepare(place, stopped, task))?;
            let waited = waits(&[borrowed.thread]);
            if !self.until(limit, |remote| remote.half(OFF_BORROWED) == Some(STATE_BACK)) {
                self.is_busy = true;
                return Err(self.because(
                    "a thread that was borrowed did not come back in time: it will by itself",
                ));
            }
            // It says so two instructions early.
            self.until(RETURN_TIMEOUT, Self::are_all_outside);
            let worked = self.get(OFF_WORKED_NS).unwrap_or(0);
            if worked > 0 {
                let worked = Duration::from_nanos(worked).min(entered.elapsed());
                let waited = waits(&[borrowed.thread]).saturating_sub(waited);
                if let Some(pause) = self.pauses.last_mut() {
                    pause.length += worked;
                    pause.waited += waited.min(worked);
                }
                return Ok(worked);
            }
            // A signal's handler came before us, and its call was broken off.
            if begin.elapsed() > SEARCH_TIMEOUT {
                return Err(failed("signals came again and again before anything could be done"));
            }
        }
    }

    /// Writes what a thread needs to run our code and to be itself again.
    fn prepare(
        &mut self,
        place: u64,
        stopped: &StoppedThread,
        task: Task,
    ) -> Result<Option<Registers>, Abort> {
        let Some(mut back) = self.back(stopped)? else { return Ok(None) };
        let block = place + CODE_BYTES;
        if let Some((Timeout::Timespec(argument, _), ..)) = stopped.left {
            set_argument(&mut back.registers, argument, block + OFF_TIMESPEC);
        }
        // The two ways back, without any calls before them.
        let code = stopped.resume.code;
        let ways = chain(&stopped.registers, code, &self.gadgets, &back, &[], |_| Vec::new());
        self.write(ways.at, &ways.bytes)?;
        let (left_how, left_at) = match stopped.left {
            Some((Timeout::Milliseconds(argument, _), ..)) => {
                (TIMEOUT_MS, frame::argument_at(ways.back_at, argument))
            }
            Some((Timeout::Timespec(..), ..)) => (TIMEOUT_TIMESPEC, block + OFF_TIMESPEC),
            Some((Timeout::Updated(_, at), ..)) => (TIMEOUT_TIMESPEC, at),
            _ => (TIMEOUT_KEPT, 0),
        };
        let (number, slice, trims) = match task {
            Task::Clone { trims } => (TASK_CLONE, Duration::ZERO, trims),
            Task::Slice(slice) => (TASK_SLICE, slice, false),
            Task::Trim => (TASK_TRIM, Duration::ZERO, false),
        };
        let words = [ways.back_at, ways.interrupted_at, stopped.mask, u64::MAX];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write_block(OFF_BACK_AT, &bytes)?;
        // Not back yet, and what is task.
        self.put(OFF_BORROWED, number << 32)?;
        if matches!(task, Task::Clone { .. }) {
            let tls = if trims { CLONE_SETTLS } else { 0 };
            self.put(OFF_CLONE_FLAGS, CLONE_FLAGS | tls)?;
            self.put(OFF_CLONED, 0)?;
            self.write_block(OFF_TID, &[1, 0, 0, 0, u8::from(trims), 0, 0, 0])?;
            if trims {
                self.copy_storage(place, stopped.registers.fs_base)?;
            }
        }
        self.put(OFF_RESTARTS, stopped.resume.restarts)?;
        self.put(OFF_SLICE_NS, nanoseconds(slice))?;
        self.put(OFF_WORKED_NS, 0)?;
        let left = stopped.left().map_or(0, |(_, left)| nanoseconds(left));
        let told: Vec<u8> = [stopped.wait_mask.unwrap_or(0), left_how, left_at, left]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        self.write_block(OFF_WAIT_MASK, &told)?;
        let mut registers = stopped.registers;
        registers.rip = place + SYSCALL_BYTES;
        registers.orig_rax = NR_RT_SIGPROCMASK;
        registers.rax = stopped.resume.code as u64;
        registers.rdi = 2; // SIG_SETMASK
        registers.rsi = block + OFF_ALL_SIGNALS;
        registers.rdx = 0;
        registers.r10 = 8;
        registers.rsp = ways.at;
        Ok(Some(registers))
    }

    /// Gives the thread of our own a copy of a thread's thread-local storage, with the beginning of what
    /// glibc keeps of a thread: `malloc_trim` looks there whether it must take locks, and sets errno.
    fn copy_storage(&mut self, place: u64, fs_base: u64) -> Result<(), Abort> {
        const ALIGNMENT: u64 = 64;
        const ABOVE: u64 = STORAGE_BYTES - ALIGNMENT * 2;
        let below = self.maps.iter().find(|m| m.contains(fs_base)).map_or(0, |m| fs_base - m.start);
        let below = below.min(STORAGE_AT - OFF_OPS - 4096);
        let mut bytes = vec![0; (below + ABOVE) as usize];
        self.memory
            .read_exact_at(&mut bytes, fs_base - below)
            .map_err(|error| self.target.failed(error))?;
        let own = place + CODE_BYTES + STORAGE_AT + fs_base % ALIGNMENT;
        // Where it begins, it points to itself (`tcb` and `self`).
        for at in [0, 16] {
            let at = (below + at) as usize;
            bytes[at..at + 8].copy_from_slice(&own.to_le_bytes());
        }
        self.write(own - below, &bytes)?;
        self.put(OFF_TLS, own)
    }

    /// Whether glibc up to 2.31 takes locks, by what it keeps of a thread (`header.multiple_threads`);
    /// `None` before a thread was borrowed.
    pub(crate) fn has_multiple_threads(&self) -> Option<bool> {
        const MULTIPLE_THREADS: u64 = 0x18;
        if self.fs_base == 0 {
            return None;
        }
        Some(self.word(self.fs_base + MULTIPLE_THREADS)? as u32 != 0)
    }

    /// The threads of the target, as far as they are seen.
    pub(crate) fn threads(&self) -> Vec<Thread> {
        task::threads(self.target.pid).unwrap_or_default()
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

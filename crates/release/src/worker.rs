//! Hands operations to the code in the target, and waits until they are done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_heap::ptmalloc::{Layout, Links};
use lowtide_model::release::RunsIn;
use lowtide_probe::proc::task::Thread;

use crate::clock::WorkerClock;
use crate::error::{Abort, ReleaseError, failed};
use crate::hold::Hold;
use crate::options::{Options, ReleaseProgress};
use crate::passes::Operator;
use crate::privileges::{PrivilegeReader, PrivilegeWatch};
use crate::purge::{Purge, PurgeArgument};
use crate::reasons::Reasons;
use crate::refusal::Refusal;
use crate::remote::{ACTION_TIMEOUT, Injected, Task, UNREADABLE, nanoseconds};
use crate::stub::contract::*;
use crate::stub::{MAX_HOLD, PAGES_PER_HOLD, StubCounts, Submitted, parts};

/// Time that the worker thread sleeps between two lock holds, even if no thread wants the lock. The
/// worker thread has a higher priority than all others on its processor: with shorter gaps, a
/// request on that processor got a fifth of it (bench/release-gap). Longer holds and gaps (250 µs,
/// 1 ms) doubled the time of a release, and single requests waited up to 145 ms more often
/// (bench/release-gap).
pub(crate) const GAP: Duration = Duration::from_micros(60);
/// Maximum time to wait for a lock; then its operation is skipped.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// Time without a heartbeat after which the worker thread ends.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum overhead of a slice, apart from the work itself.
const SLICE_OVERHEAD: Duration = Duration::from_micros(300);
/// Minimum time of a slice.
const MIN_SLICE: Duration = Duration::from_micros(50);
/// Maximum number of successive slices without progress: other threads hold the lock.
const MAX_IDLE_SLICES: u32 = 1000;
/// Maximum time of one table of operations. The target can change the counts that show progress.
const MAX_BATCH: Duration = Duration::from_secs(60);
/// Maximum number of failed waits for owners. Owners that do not exist cost a target nothing.
const MAX_BUSY_OWNERS: usize = 200;
/// Time between two slices, in multiples of the last one; before a limit is reached, the process
/// must not allocate more in it than the slice returns.
const SLICE_GAP_FACTOR: u32 = 4;
const URGENT_GAP_FACTOR: u32 = 1;
/// Maximum time between two calls of an allocator's own function.
const MAX_GAP_OF_CALLS: Duration = Duration::from_millis(20);

/// Settings of the injected code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerOptions<'i> {
    /// The thread in which the code runs.
    pub(crate) runs_in: RunsIn,
    /// Address of the flag by which glibc decides whether to take locks, if glibc has one.
    pub(crate) single_threaded_at: Option<u64>,
    /// Maximum pause of a thread of the target.
    pub(crate) max_pause: Duration,
    /// Whether the process may soon reach a memory limit.
    pub(crate) is_urgent: bool,
    /// The clock of a worker thread.
    pub(crate) clock: WorkerClock,
    /// Ends the work early when it is set.
    pub(crate) interrupt: &'i AtomicBool,
    /// Ends the work early when its file exists.
    pub(crate) hold: &'i Hold,
    /// Receives the progress.
    pub(crate) progress: &'i ReleaseProgress,
}

/// The code in the target, ready to run operations.
pub(crate) struct Worker<'w, 'b, 't> {
    injected: &'w mut Injected<'b, 't>,
    runs_in: RunsIn,
    max_pause: Duration,
    /// The length of a slice, and its minimum so far.
    slice: Duration,
    shortest_slice: Duration,
    gap_factor: u32,
    batch: u32,
    clock: WorkerClock,
    /// The operations that were submitted so far.
    submitted: Submitted,
    begin: Instant,
    /// Whether the worker thread has a batch whose end was not waited for yet.
    is_pending: bool,
    counts: StubCounts,
    /// Owners of memory (threads) that could not run operations, and why each could not.
    busy_owners: HashMap<u64, String>,
    interrupt: &'w AtomicBool,
    hold: &'w Hold,
    progress: &'w ReleaseProgress,
}

impl<'w, 'b, 't> Worker<'w, 'b, 't> {
    /// Starts the worker thread, or runs a first, empty slice. `layout` is that of the heap of
    /// glibc, if its memory is released.
    pub(crate) fn start(
        injected: &'w mut Injected<'b, 't>,
        layout: Option<&Layout>,
        options: &WorkerOptions<'w>,
    ) -> Result<Self, Abort> {
        let main = layout.and_then(|layout| layout.arenas.first().copied()).unwrap_or(0);
        injected.set(
            &FieldValues::default()
                .with(field::MAIN_ARENA, main)
                .with(field::BINS_AT, layout.map_or(0, |layout| layout.head_bytes))
                .with(field::SINGLE_THREADED, options.single_threaded_at.unwrap_or(0))
                .with(field::PAGES_PER_HOLD, PAGES_PER_HOLD)
                .with(field::GAP_NS, nanoseconds(GAP))
                .with(field::COUNT, 0)
                .with(field::NEXT, 0),
        )?;
        let (runs_in, interrupt, hold) = (options.runs_in, options.interrupt, options.hold);
        let slice = longest_slice(options.max_pause);
        let mut worker = Self {
            injected,
            runs_in,
            max_pause: options.max_pause,
            slice,
            shortest_slice: slice,
            gap_factor: if options.is_urgent { URGENT_GAP_FACTOR } else { SLICE_GAP_FACTOR },
            batch: 0,
            clock: WorkerClock::KERNEL,
            submitted: Submitted::default(),
            begin: Instant::now(),
            is_pending: false,
            counts: StubCounts::default(),
            busy_owners: HashMap::new(),
            interrupt,
            hold,
            progress: options.progress,
        };
        let started = match runs_in {
            RunsIn::OwnThread => worker.start_thread(options.clock),
            RunsIn::Slices => worker.set_clock(WorkerClock::KERNEL).and_then(|()| {
                worker.injected.enter(Task::Slice(Duration::ZERO))?;
                worker.check_write_execute()
            }),
        };
        match started {
            Ok(()) => Ok(worker),
            Err(abort) => {
                let (_, ended) = worker.stop();
                Err(ended.err().unwrap_or(abort))
            }
        }
    }

    /// Sets the clock by which the code measures lock holds.
    fn set_clock(&mut self, clock: WorkerClock) -> Result<(), Abort> {
        self.clock = clock;
        let values = FieldValues::default()
            .with(field::CLOCK, clock.number())
            .with(field::HOLD_TICKS, clock.ticks(MAX_HOLD))
            .with(field::LOCK_TIMEOUT_TICKS, clock.ticks(LOCK_TIMEOUT))
            .with(field::HEARTBEAT_TIMEOUT_TICKS, clock.ticks(HEARTBEAT_TIMEOUT));
        self.injected.set(&values)
    }

    /// Starts the worker thread, and checks that it may continue.
    fn start_thread(&mut self, clock: WorkerClock) -> Result<(), Abort> {
        let pid = self.injected.io().target_pid();
        let lost = |_| self.injected.io().because("its first thread has ended");
        let first = PrivilegeReader::open(Thread { pid, tid: pid }).map_err(lost)?;
        let expected = first.read().map_err(lost)?;
        let before = self.injected.threads();
        self.set_clock(clock)?;
        self.injected.start_thread()?;
        self.check_write_execute()?;
        if self.injected.get(field::ERROR) == Some(ERROR_TSC) {
            // Its threads must not read the time stamp counter.
            self.injected.no_thread();
            self.injected.put(field::ERROR, 0)?;
            self.set_clock(WorkerClock::KERNEL)?;
            self.injected.start_thread()?;
        }
        let cloned = check_cloned(self.injected)?;
        let has_run =
            || matches!(self.injected.get(field::STATE), Some(STATE_RUNNING | STATE_ENDED));
        if !self.injected.io().until(ACTION_TIMEOUT, has_run) {
            let why = "the thread that lowtide started in it does not run";
            return Err(self.injected.io().because(why));
        }
        let worker = self.injected.find_worker(&before, cloned);
        let worker = worker.and_then(|thread| PrivilegeReader::open(thread).ok());
        let unseen = || match self.injected.get(field::STATE) == Some(STATE_ENDED) {
            // This process did not run for a while.
            true => self.injected.io().because(ENDED),
            false => {
                self.injected.io().because("the thread that lowtide started in it is not visible")
            }
        };
        let both = PrivilegeWatch::new(first, worker.ok_or_else(unseen)?, expected);
        if both.has_changed() {
            return Err(Refusal::PrivilegesChanged.into());
        }
        self.injected.watch_privileges(both);
        self.injected.boost_worker();
        Ok(())
    }

    /// Checks that the process may have memory that was written and is executed.
    fn check_write_execute(&mut self) -> Result<(), Abort> {
        // Kernels without PR_GET_MDWE answer with an error, which is negative.
        match self.injected.get(field::MDWE).map(|answer| answer as i64) {
            Some(1..) => {
                self.injected.no_thread();
                Err(Refusal::WriteExecuteDenied.into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the reason why the worker thread has ended early.
    fn ended(&self) -> Abort {
        if self.injected.has_seen_change() {
            return Refusal::PrivilegesChanged.into();
        }
        self.injected.io().because(ENDED)
    }

    /// Checks that the release may continue.
    fn check_end(&self) -> Result<(), Abort> {
        check_end(self.interrupt, self.hold)
    }

    /// Waits until the worker thread has finished the batch.
    fn wait_for_thread(&mut self) -> Result<(), Abort> {
        let (batch, interrupt) = (self.batch, self.interrupt);
        let (mut before, begin) = (None, Instant::now());
        loop {
            let is_done = || {
                self.injected.get(field::DONE) == Some(batch)
                    || self.injected.get(field::STATE) == Some(STATE_ENDED)
                    || interrupt.load(Ordering::Relaxed)
            };
            let done = self.injected.io().until(ACTION_TIMEOUT, is_done);
            self.check_end()?;
            if self.injected.get(field::ERROR) == Some(ERROR_SINGLE) {
                return Err(failed(
                    "the process became single-threaded during the release: try again",
                ));
            }
            if done {
                return match self.injected.get(field::STATE) {
                    Some(STATE_ENDED) => Err(self.ended()),
                    _ => Ok(()),
                };
            }
            // It may be slow, but must make progress.
            let progress = (self.injected.get(field::NEXT), self.injected.get(field::LOCK_HOLDS));
            let is_stuck = before.is_some_and(|before| progress <= before);
            if progress.0.is_none() || is_stuck || begin.elapsed() > MAX_BATCH {
                return Err(self
                    .injected
                    .io()
                    .because("the thread of lowtide in it makes no progress"));
            }
            before = Some(progress);
        }
    }

    /// Runs slices in the thread that owns the memory, or in any thread. If the owner does not wait
    /// or has ended, its memory is left alone.
    fn run_slices_of(&mut self, owner: Option<u64>, count: u64) -> Result<(), Abort> {
        let is_left_out = |owner| {
            self.busy_owners.contains_key(&owner) || self.busy_owners.len() >= MAX_BUSY_OWNERS
        };
        if owner.is_some_and(is_left_out) {
            return Ok(());
        }
        self.injected.borrow_only(owner);
        let done = self.run_slices(count);
        self.injected.borrow_only(None);
        match (done, owner) {
            (Err(Abort::Refused(Refusal::NoThread { why, .. })), Some(owner)) => {
                self.busy_owners.insert(owner, why);
                Ok(())
            }
            (done, _) => done,
        }
    }

    /// Runs slices in borrowed threads until the operations in `count` slots are done.
    fn run_slices(&mut self, count: u64) -> Result<(), Abort> {
        let (mut before, mut idle_slices) = ((0, 0), 0);
        let started = Instant::now();
        loop {
            let begin = Instant::now();
            let pause = self.injected.enter(Task::Slice(self.slice))?;
            self.slice = next_slice(self.slice, pause, self.max_pause);
            self.shortest_slice = self.shortest_slice.min(self.slice);
            let now = self.injected.get(field::NEXT).zip(self.injected.get(field::LOCK_HOLDS));
            let now = now.ok_or_else(|| self.injected.io().because(UNREADABLE))?;
            if now.0 >= count {
                return Ok(());
            }
            self.check_end()?;
            idle_slices = if now > before { 0 } else { idle_slices + 1 };
            before = now;
            if idle_slices > MAX_IDLE_SLICES || started.elapsed() > MAX_BATCH {
                return Err(self
                    .injected
                    .io()
                    .because("the code of lowtide in it makes no progress"));
            }
            std::thread::sleep(begin.elapsed().min(self.slice * 2) * self.gap_factor);
        }
    }

    /// Reads the counts of the code.
    fn count(&mut self) {
        if let Some(bytes) = self.injected.read_counts() {
            let counts = StubCounts::parse(&bytes, self.clock);
            self.counts = counts.within(&self.counts, &self.submitted, self.begin.elapsed());
            self.progress.set(self.counts.returned_bytes);
        }
    }

    /// Returns the number of threads that could not be borrowed, so that their memory was left
    /// alone, and the most frequent reason; `None` if there are none.
    pub(crate) fn unreached_owners(&self) -> Option<(usize, String)> {
        let mut reasons = Reasons::default();
        self.busy_owners.values().for_each(|why| reasons.add(why));
        Some((self.busy_owners.len(), reasons.most_frequent()?.to_owned()))
    }

    /// Returns the length of the shortest slice, if slices were shortened because pauses exceeded
    /// the bound.
    pub(crate) fn shortened_slice(&self) -> Option<Duration> {
        (self.shortest_slice < longest_slice(self.max_pause)).then_some(self.shortest_slice)
    }

    /// Ends the worker thread, if there is one, and returns the counts.
    pub(crate) fn stop(mut self) -> (StubCounts, Result<(), Abort>) {
        self.count();
        let ended = if self.runs_in == RunsIn::OwnThread && self.injected.is_busy() {
            let requested = self.injected.put(field::BATCH, BATCH_LEAVE);
            let ended = requested.and_then(|()| self.injected.wait_for_exit(ACTION_TIMEOUT));
            self.injected.unboost_worker();
            // The counts then include its last operations.
            self.count();
            ended
        } else {
            Ok(())
        };
        (std::mem::take(&mut self.counts), ended)
    }
}

impl Operator for Worker<'_, '_, '_> {
    fn consolidate(&mut self, ops: &[Op], links: Links) -> Result<(), Abort> {
        self.finish()?;
        self.injected.put(field::MIXED_LINKS, u64::from(links == Links::Mixed))?;
        self.submit(ops)?;
        self.finish()
    }

    fn submit(&mut self, ops: &[Op]) -> Result<(), Abort> {
        // Operations of one owner run in that thread.
        let by_owner = |one: &Op, other: &Op| {
            one.owner().is_none() && other.owner().is_none() || one.guard() == other.guard()
        };
        for part in ops.chunk_by(by_owner).flat_map(parts) {
            self.finish()?;
            if self.injected.get(field::STATE) == Some(STATE_ENDED) {
                return Err(self.ended());
            }
            self.submitted.add(part);
            let bytes: Vec<u8> = part.iter().flat_map(Op::bytes).collect();
            let slots = bytes.len() as u64 / OP_BYTES;
            self.injected.write_ops(&bytes)?;
            self.injected.put(field::NEXT, 0)?;
            self.injected.put(field::COUNT, slots)?;
            match self.runs_in {
                RunsIn::OwnThread => {
                    self.batch += 1;
                    self.injected.put(field::BATCH, self.batch)?;
                    self.is_pending = true;
                }
                RunsIn::Slices => {
                    let owner = part.first().and_then(Op::owner);
                    self.run_slices_of(owner, slots)?;
                    self.count();
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Abort> {
        if std::mem::take(&mut self.is_pending) {
            self.wait_for_thread()?;
            self.count();
        }
        self.check_end()
    }

    fn counts(&self) -> &StubCounts {
        &self.counts
    }
}

/// Checks that a release was neither interrupted nor held since it started.
fn check_end(interrupt: &AtomicBool, hold: &Hold) -> Result<(), Abort> {
    if interrupt.load(Ordering::Relaxed) {
        return Err(ReleaseError::Interrupted.into());
    }
    Ok(hold.check()?)
}

impl Purge {
    /// Makes borrowed threads of the target call the function. `bytes` is the size of the memory
    /// that it can return.
    ///
    /// # Errors
    /// Fails if the release was interrupted or held, or if a call failed.
    pub(crate) fn run(
        &self,
        injected: &mut Injected<'_, '_>,
        bytes: u64,
        options: &Options,
    ) -> Result<(), Abort> {
        for argument in self.arguments(bytes) {
            check_end(&options.interrupt, &options.hold)?;
            let argument = match argument {
                PurgeArgument::Number(number) => number,
                // The table of operations is unused.
                PurgeArgument::Text(text) => {
                    injected.write_ops(&text)?;
                    injected.ops_at()
                }
            };
            let worked = injected.call(self.function, argument)?;
            std::thread::sleep((worked * SLICE_GAP_FACTOR).min(MAX_GAP_OF_CALLS));
        }
        Ok(())
    }
}

/// Returns the TID of our thread in the target, in the PID namespace of the target.
///
/// # Errors
/// Fails if the kernel did not start the thread, or if that cannot be read: then the code stays.
fn check_cloned(injected: &mut Injected<'_, '_>) -> Result<u32, Abort> {
    let result = injected.get(field::CLONED).ok_or_else(|| injected.io().because(UNREADABLE))?;
    if result as i64 > 0 {
        return Ok(u32::try_from(result).unwrap_or(0));
    }
    injected.no_thread();
    Err(failed("no thread could be started in it: its limits do not permit another thread"))
}

/// Message for a worker thread that has ended by itself.
const ENDED: &str =
    "the thread of lowtide in it has ended, because it received no heartbeat in time";

/// Returns the length of a slice whose pause stays within the bound while nothing disturbs it.
fn longest_slice(max_pause: Duration) -> Duration {
    max_pause.saturating_sub(SLICE_OVERHEAD).max(MIN_SLICE)
}

/// Returns the length of the next slice: half of the last one if its pause exceeded the bound,
/// otherwise an eighth more. A thread that works for a shorter time is interrupted less often.
fn next_slice(slice: Duration, pause: Duration, max_pause: Duration) -> Duration {
    match pause > max_pause {
        true => (slice / 2).max(MIN_SLICE),
        false => (slice + slice / 8).min(longest_slice(max_pause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_become_shorter_while_pauses_exceed_the_bound_and_recover() {
        let bound = Duration::from_millis(1);
        let mut slice = longest_slice(bound);
        for _ in 0..10 {
            slice = next_slice(slice, bound * 3, bound);
        }
        assert_eq!(slice, MIN_SLICE);
        for _ in 0..100 {
            slice = next_slice(slice, bound, bound);
        }
        assert_eq!(slice, longest_slice(bound));
    }
}

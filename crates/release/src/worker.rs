//! Hands acts to the code in the target, and waits until they are done.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_heap::ptmalloc::{Layout, Links};
use lowtide_model::release::RunsIn;
use lowtide_probe::proc::task::Thread;

use crate::checks::Abort;
use crate::periodic::PeriodicThread;
use crate::refusal::Refusal;
use crate::release::{Progress, ReleaseError};
use crate::remote::{ACT_LIMIT, Remote, TRIM_LIMIT, Wanted, failed, nanoseconds};
use crate::stub::numbers::*;
use crate::stub::{Counts, MOST_OPS, Op, PAGES_PER_HOLD};

/// A lock is held for so long, but for the act that is under way.
const HOLD: Duration = Duration::from_micros(60);
/// So long our thread rests between two holds, whoever wants the lock: it goes before all others on its processor,
/// and with shorter rests a request that happened to be there got a fifth of it (bench/2026-11-22-release-arenas).
/// Longer holds and rests (250 µs, 1 ms) made a release twice as long, and single requests wait up to
/// 145 ms more often (bench/2026-11-22-release-gap).
const REST: Duration = Duration::from_micros(60);
/// So long a lock is waited for until its turn is passed over.
const PATIENCE: Duration = Duration::from_millis(100);
/// Our thread ends when it has heard nothing for so long.
const ABANDON: Duration = Duration::from_secs(1);
/// Interval of the heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);
/// What a slice takes besides the work itself, at most.
const OVERHEAD: Duration = Duration::from_micros(300);
/// The shortest slice.
const SHORTEST: Duration = Duration::from_micros(50);
/// So many slices in a row may pass in which nothing is done: others hold the lock.
const SLICES_WITHOUT_PROGRESS: u32 = 1000;
/// After a slice its thread is left alone for so many times as long.
const REST_AFTER_SLICE: u32 = 4;

/// How the injected code works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerOptions<'i> {
    /// Where the code runs.
    pub(crate) runs_in: RunsIn,
    /// Address of the flag by which glibc decides whether to take locks, if there is one.
    pub(crate) single_threaded_at: Option<u64>,
    /// Maximum pause of a thread of the target.
    pub(crate) max_pause: Duration,
    /// Ends the work early when it is set.
    pub(crate) interrupt: &'i AtomicBool,
    /// Receives the progress.
    pub(crate) progress: &'i Progress,
}

/// The code in the target, at work.
pub(crate) struct Worker<'r, 'a> {
    remote: &'r mut Remote<'a>,
    runs_in: RunsIn,
    slice: Duration,
    batch: u64,
    /// Bytes of the pages that were to be dropped so far.
    asked_bytes: u64,
    /// Whether our thread has acts that nobody has waited for yet.
    is_under_way: bool,
    counts: Counts,
    /// Keeps our thread alive, if there is one.
    heartbeat: Option<Heartbeat>,
    interrupt: &'r AtomicBool,
    progress: &'r Progress,
}

impl<'r, 'a> Worker<'r, 'a> {
    /// Begins: with a thread of our own, or with a first slice in which nothing is done yet.
    pub(crate) fn begin(
        remote: &'r mut Remote<'a>,
        layout: &Layout,
        options: &WorkerOptions<'r>,
    ) -> Result<Self, Abort> {
        let main = layout.arenas.first().copied().unwrap_or(0);
        for (offset, word) in [
            (OFF_MAIN_ARENA, main),
            (OFF_BINS_AT, layout.head_bytes),
            (OFF_SINGLE_THREADED, options.single_threaded_at.unwrap_or(0)),
            (OFF_PAGES_PER_HOLD, PAGES_PER_HOLD),
            (OFF_HOLD_NS, nanoseconds(HOLD)),
            (OFF_REST_NS, nanoseconds(REST)),
            (OFF_PATIENCE_NS, nanoseconds(PATIENCE)),
            (OFF_ABANDON_NS, nanoseconds(ABANDON)),
            (OFF_COUNT, 0),
            (OFF_NEXT, 0),
        ] {
            remote.put(offset, word)?;
        }
        let slice = options.max_pause.saturating_sub(OVERHEAD).max(SHORTEST);
        let before = remote.threads();
        let heartbeat = match options.runs_in {
            RunsIn::OwnThread => {
                let heartbeat = Heartbeat::start(remote)?;
                remote.enter(Wanted::Clone { trims: false })?;
                remote.is_busy = true;
                Some(heartbeat)
            }
            RunsIn::Slices => {
                remote.enter(Wanted::Slice(Duration::ZERO))?;
                None
            }
        };
        let (runs_in, interrupt) = (options.runs_in, options.interrupt);
        let mut worker = Self {
            remote,
            runs_in,
            slice,
            batch: 0,
            asked_bytes: 0,
            is_under_way: false,
            counts: Counts::default(),
            heartbeat,
            interrupt,
            progress: options.progress,
        };
        match worker.check(&before) {
            Ok(()) => Ok(worker),
            Err(abort) => {
                let (_, ended) = worker.end();
                Err(ended.err().unwrap_or(abort))
            }
        }
    }

    /// Whether what was begun may go on. `before` are the threads that the target had before.
    fn check(&mut self, before: &[Thread]) -> Result<(), Abort> {
        if self.runs_in == RunsIn::OwnThread {
            let cloned = self.remote.get(OFF_CLONED).map_or(0, |tid| tid as i64);
            if cloned <= 0 {
                self.remote.is_busy = false;
                self.heartbeat = None;
                return Err(failed(
                    "no thread could be started in it (its limits do not allow another)",
                ));
            }
            let is_there = |remote: &Remote<'_>| remote.half(OFF_STATE) == Some(STATE_THERE);
            if !self.remote.until(ACT_LIMIT, is_there) {
                return Err(self.remote.because("a thread that was started in it does not run"));
            }
            self.remote.boost_worker(before, u32::try_from(cloned).unwrap_or(0));
        }
        // Of kernels that do not know the question, the answer is an error, and negative.
        match self.remote.get(OFF_MDWE).map(|answer| answer as i64) {
            Some(1..) => Err(Refusal::WriteExecuteDenied.into()),
            _ => Ok(()),
        }
    }

    /// Has the blocks in fast bins joined, whose lists are written like this.
    pub(crate) fn consolidate(&mut self, ops: &[Op], links: Links) -> Result<(), Abort> {
        self.finish()?;
        self.remote.put(OFF_MIXED_LINKS, u64::from(links == Links::Mixed))?;
        self.work(ops)?;
        self.finish()
    }

    /// Has acts done. Our thread may still be at the last of them when this comes back: the walk goes on meanwhile.
    pub(crate) fn work(&mut self, ops: &[Op]) -> Result<(), Abort> {
        for part in ops.chunks(MOST_OPS) {
            self.finish()?;
            self.go_on()?;
            if self.remote.half(OFF_STATE) == Some(STATE_LEFT) {
                return Err(self.remote.because(ENDED));
            }
            let dropped = part.iter().filter(|op| op.kind != OP_JOIN).map(|op| op.bytes);
            self.asked_bytes += dropped.sum::<u64>();
            let bytes: Vec<u8> = part.iter().flat_map(Op::bytes).collect();
            self.remote.write_block(OFF_OPS, &bytes)?;
            self.remote.put(OFF_NEXT, 0)?;
            self.remote.put(OFF_COUNT, part.len() as u64)?;
            match self.runs_in {
                RunsIn::OwnThread => {
                    self.batch += 1;
                    self.remote.put_half(OFF_BATCH, self.batch)?;
                    self.is_under_way = true;
                }
                RunsIn::Slices => {
                    self.in_slices(part.len() as u64)?;
                    self.count();
                }
            }
        }
        Ok(())
    }

    /// Waits until all acts are done.
    pub(crate) fn finish(&mut self) -> Result<(), Abort> {
        if std::mem::take(&mut self.is_under_way) {
            self.in_thread()?;
            self.count();
        }
        Ok(())
    }

    /// Whether nobody has asked for an end.
    pub(crate) fn go_on(&self) -> Result<(), Abort> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(ReleaseError::Interrupted.into());
        }
        Ok(())
    }

    fn in_thread(&mut self) -> Result<(), Abort> {
        let (batch, interrupt) = (self.batch, self.interrupt);
        let mut before = None;
        loop {
            let is_done = |remote: &Remote<'_>| {
                remote.half(OFF_DONE) == Some(batch)
                    || remote.half(OFF_STATE) == Some(STATE_LEFT)
                    || interrupt.load(Ordering::Relaxed)
            };
            let done = self.remote.until(ACT_LIMIT, is_done);
            self.go_on()?;
            if self.remote.half(OFF_ERROR) == Some(ERROR_SINGLE) {
                return Err(failed("the process has become single-threaded meanwhile: try again"));
            }
            if done {
                return match self.remote.half(OFF_STATE) {
                    Some(STATE_LEFT) => Err(failed(ENDED)),
                    _ => Ok(()),
                };
            }
            // It may be slow, but not without end.
            let progress = (self.remote.get(OFF_NEXT), self.remote.get(OFF_HOLDS));
            if progress.0.is_none() || before.is_some_and(|before| progress <= before) {
                return Err(self.remote.because("our thread in it does not get on"));
            }
            before = Some(progress);
        }
    }

    fn in_slices(&mut self, count: u64) -> Result<(), Abort> {
        let (mut before, mut without_progress) = ((0, 0), 0);
        loop {
            let begin = Instant::now();
            self.remote.enter(Wanted::Slice(self.slice))?;
            let now = self.remote.get(OFF_NEXT).zip(self.remote.get(OFF_HOLDS));
            let now = now.ok_or_else(|| self.remote.because("its memory can no longer be read"))?;
            if now.0 >= count {
                return Ok(());
            }
            self.go_on()?;
            without_progress = if now > before { 0 } else { without_progress + 1 };
            before = now;
            if without_progress > SLICES_WITHOUT_PROGRESS {
                return Err(self.remote.because("our code in it does not get on"));
            }
            std::thread::sleep(begin.elapsed().min(self.slice * 2) * REST_AFTER_SLICE);
        }
    }

    fn count(&mut self) {
        let mut bytes = [0; Counts::BYTES];
        if self.remote.read_block(OFF_HOLDS, &mut bytes).is_some() {
            self.counts = Counts::of(&bytes).within(&self.counts, self.asked_bytes);
            self.progress.set(self.counts.returned_bytes);
        }
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Ends our thread, if there is one.
    pub(crate) fn end(mut self) -> (Counts, Result<(), Abort>) {
        self.count();
        let ended = if self.runs_in == RunsIn::OwnThread && self.remote.is_busy {
            let told = self.remote.put_half(OFF_BATCH, BATCH_LEAVE);
            let ended = told.and_then(|()| gone(self.remote, ACT_LIMIT));
            self.remote.unboost_worker();
            // What it did until then.
            self.count();
            ended
        } else {
            Ok(())
        };
        (std::mem::take(&mut self.counts), ended)
    }
}

/// Waits until the kernel has said that our thread is gone.
fn gone(remote: &mut Remote<'_>, limit: Duration) -> Result<(), Abort> {
    if !remote.until(limit, |remote| remote.half(OFF_TID) == Some(0)) {
        return Err(remote.because(
            "our thread in it has not ended yet: it will, and a later release cleans up",
        ));
    }
    remote.is_busy = false;
    Ok(())
}

/// Has `malloc_trim` called: by a thread of our own where that is possible.
pub(crate) fn trim(remote: &mut Remote<'_>, function: u64, runs_in: RunsIn) -> Result<(), Abort> {
    remote.put(OFF_FUNCTION, function)?;
    match runs_in {
        RunsIn::OwnThread => {
            remote.enter(Wanted::Clone { trims: true })?;
            remote.is_busy = true;
            gone(remote, TRIM_LIMIT)
        }
        RunsIn::Slices => remote.enter(Wanted::Trim).map(drop),
    }
}

/// Why our thread is no longer there.
const ENDED: &str = "our thread in it ended: it heard nothing for too long";

/// A thread of lowtide that tells the worker thread periodically that lowtide is still there.
struct Heartbeat {
    _thread: PeriodicThread,
}

impl Heartbeat {
    /// Starts it, before the worker thread starts.
    fn start(remote: &Remote<'_>) -> Result<Self, Abort> {
        let failed = |error: io::Error| failed(&error.to_string());
        let (memory, at) = remote.heartbeat().map_err(failed)?;
        let mut count = 0_u32;
        let beat = move || {
            count = count.wrapping_add(1);
            memory.write_at(&count.to_le_bytes(), at).is_ok()
        };
        let thread = PeriodicThread::start(HEARTBEAT_INTERVAL, beat).map_err(failed)?;
        Ok(Self { _thread: thread })
    }
}

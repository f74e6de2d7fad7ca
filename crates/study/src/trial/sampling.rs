//! The thread that samples a subject while the trial goes on, and looks at each of its processes
//! once to see whether the treatment is in force.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lowtide_probe::allocator::{ExamineError, Examiner};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::sampler::{Attention, Sampler};
use lowtide_record::Recorder;
use lowtide_record::v1::{Line, Process};

use crate::treatment::ResolvedTreatment;

/// How long a process may be loading before nothing is expected of it any more.
const LOADING: Duration = Duration::from_secs(10);
/// In the first moments the allocator is looked for more often than at every tick, so that a program
/// that lives for a tenth of a second is still seen.
const EAGER: Duration = Duration::from_millis(400);
const EAGER_STEP: Duration = Duration::from_millis(4);

/// A running sampler.
#[derive(Debug)]
pub(super) struct Sampling {
    requests: Requests,
    thread: Option<JoinHandle<Account>>,
}

/// What the sampler says of itself when it is done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    /// CPU time that it took, in seconds.
    pub(super) cpu_s: f64,
    /// Ticks that came too late to be taken.
    pub(super) missed_ticks: u64,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    close: AtomicBool,
    /// Whether there was ever a process to read.
    saw: AtomicBool,
    /// How many moments were announced.
    moments: AtomicU64,
    /// The last reading, for whoever shows progress.
    rss_bytes: AtomicU64,
    connections: AtomicU64,
    /// Why a process could not be read, once that has happened: the sums would be wrong.
    failure: OnceLock<String>,
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

/// Readings that are asked for out of turn.
#[derive(Debug, Default)]
struct Wanted {
    /// How many were asked for, and how many of them were taken.
    asked: u64,
    taken: u64,
    /// Whether one of those that are still to be taken wants the slow figures.
    slow: bool,
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks a sampler for readings out of turn, also before it has begun.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests(Arc<Shared>);

impl Requests {
    /// What was resident at the last reading, in bytes.
    pub(super) fn rss_bytes(&self) -> u64 {
        self.0.rss_bytes.load(Ordering::Relaxed)
    }

    /// Has a reading taken as soon as can be.
    pub(super) fn read_soon(&self) {
        self.0.moments.fetch_add(1, Ordering::Relaxed);
        drop(self.ask(false));
    }

    /// How many moments were announced at which a reading was to be taken.
    pub(super) fn moments(&self) -> u64 {
        self.0.moments.load(Ordering::Relaxed)
    }

    fn ask(&self, slow: bool) -> (u64, MutexGuard<'_, Wanted>) {
        let mut wanted = self.0.wanted();
        wanted.asked += 1;
        wanted.slow |= slow;
        self.0.changed.notify_all();
        (wanted.asked, wanted)
    }
}

impl Sampling {
    /// Begins to sample everything below `root`.
    pub(super) fn start(
        root: u32,
        treatment: ResolvedTreatment,
        recorder: Recorder,
        interval: Duration,
        requests: &Requests,
    ) -> Self {
        let requests = requests.clone();
        let shared = Arc::clone(&requests.0);
        let thread = thread::spawn(move || {
            let mut work = Work {
                sampler: Sampler::below(root),
                examiner: Examiner::default(),
                pending: Vec::new(),
                treatment,
                recorder,
                shared,
                interval,
            };
            work.run()
        });
        Self { requests, thread: Some(thread) }
    }

    /// Asks for slow figures more often, or no longer.
    pub(super) fn pay_attention(&self, close: bool) {
        self.requests.0.close.store(close, Ordering::Relaxed);
    }

    /// Has one reading with slow figures taken now, and waits for it.
    pub(super) fn read_now(&self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let (mine, wanted) = self.requests.ask(true);
        let waits = |w: &mut Wanted| w.taken < mine;
        drop(self.requests.0.changed.wait_timeout_while(wanted, PATIENCE, waits));
    }

    /// Why the processes could not be read, if so.
    pub(super) fn failure(&self) -> Option<String> {
        self.requests.0.failure.get().cloned()
    }

    /// Whether there was ever a process to read.
    pub(super) fn has_seen_it(&self) -> bool {
        self.requests.0.saw.load(Ordering::Relaxed)
    }

    /// The last reading: resident bytes and connections.
    pub(super) fn latest(&self) -> (u64, u64) {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        (load(&self.requests.0.rss_bytes), load(&self.requests.0.connections))
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Account {
        self.requests.0.stop.store(true, Ordering::Relaxed);
        drop(self.requests.ask(false));
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

struct Work {
    sampler: Sampler,
    examiner: Examiner,
    pending: Vec<(Process, Instant)>,
    treatment: ResolvedTreatment,
    recorder: Recorder,
    shared: Arc<Shared>,
    interval: Duration,
}

impl Work {
    fn run(&mut self) -> Account {
        let begin = Instant::now();
        let mut next = begin;
        let mut missed_ticks = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let (asked, slow) = {
                let mut wanted = self.shared.wanted();
                let open = wanted.asked > wanted.taken;
                (wanted.asked, std::mem::take(&mut wanted.slow) && open)
            };
            let attention = match (slow, self.shared.close.load(Ordering::Relaxed)) {
                (true, _) => Attention::Now,
                (false, false) => Attention::Normal,
                (false, true) => Attention::Close,
            };
            self.tick(attention);
            self.shared.wanted().taken = asked;
            self.shared.changed.notify_all();
            let now = Instant::now();
            while next <= now {
                next += self.interval;
                if next <= now {
                    missed_ticks += 1;
                }
            }
            self.wait_until(next, begin);
        }
        for watched in self.sampler.watched(self.recorder.now()) {
            self.recorder.write(&Line::ProcessEnd(watched));
        }
        Account { cpu_s: thread_cpu_s(), missed_ticks }
    }

    /// Sleeps until the next tick, or until a reading is asked for. Meanwhile, in the beginning,
    /// looks after processes whose allocator is not known yet.
    fn wait_until(&mut self, next: Instant, begin: Instant) {
        loop {
            let now = Instant::now();
            let eager = !self.pending.is_empty() && now.duration_since(begin) < EAGER;
            let until = if eager { next.min(now + EAGER_STEP) } else { next };
            let rest = until.saturating_duration_since(now);
            let idle = |w: &mut Wanted| w.asked <= w.taken;
            let waited = self.shared.changed.wait_timeout_while(self.shared.wanted(), rest, idle);
            let asked = waited.is_ok_and(|(w, _)| w.asked > w.taken);
            if eager {
                self.examine_pending();
            }
            if asked || Instant::now() >= next {
                return;
            }
        }
    }

    fn tick(&mut self, attention: Attention) {
        let t_s = self.recorder.now();
        let tick = match self.sampler.tick(t_s, attention) {
            Ok(tick) => tick,
            Err(error) => {
                let sentence = format!(
                    "the processes of the command could not be read ({error}): run lowtide as root, or \
                     with CAP_SYS_PTRACE, and with enough open files (ulimit -n)"
                );
                let _ = self.shared.failure.set(sentence);
                return;
            }
        };
        let store = |to: &AtomicU64, value| to.store(value, Ordering::Relaxed);
        self.shared.saw.fetch_or(tick.sample.total.rss_bytes.0 > 0, Ordering::Relaxed);
        store(&self.shared.rss_bytes, tick.sample.total.rss_bytes.0);
        store(&self.shared.connections, tick.sample.sockets_established.unwrap_or(0));
        for process in tick.changed {
            self.pending.retain(|(p, _)| p.pid != process.pid);
            self.recorder.write(&Line::Process(process.clone()));
            self.pending.push((process, Instant::now()));
        }
        self.examine_pending();
        for ended in tick.ended {
            self.recorder.write(&Line::ProcessEnd(ended));
        }
        for process in tick.processes {
            self.recorder.write(&Line::ProcessSample(process));
        }
        self.recorder.write(&Line::Sample(tick.sample));
    }

    fn examine_pending(&mut self) {
        for (process, since) in std::mem::take(&mut self.pending) {
            let found = self.examiner.examine(process.pid);
            match &found {
                Err(ExamineError::NotYet) if since.elapsed() < LOADING => {
                    self.pending.push((process, since));
                }
                Err(ExamineError::Gone) => {}
                _ => {
                    let allocator = Some(self.treatment.check(&process.command, &found));
                    let t_s = self.recorder.now();
                    self.recorder.write(&Line::Process(Process { t_s, allocator, ..process }));
                }
            }
        }
    }
}

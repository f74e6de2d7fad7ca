//! The thread that samples a subject while the trial goes on, and looks at each of its processes
//! once to see whether the treatment is in force.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lowtide_model::record::v1::{Line, Process};
use lowtide_probe::allocator::{ExamineError, Examiner};
use lowtide_probe::sampler::{Attention, Described, Sampler};

use crate::recorder::Recorder;
use crate::treatment::Applied;

/// How long a process may be loading before nothing is expected of it any more.
const LOADING: Duration = Duration::from_secs(10);
/// In the first moments the allocator is looked for more often than at every tick, so that a program
/// that lives for a tenth of a second is still seen.
const EAGER: Duration = Duration::from_millis(400);
const EAGER_STEP: Duration = Duration::from_millis(4);

/// A running sampler.
#[derive(Debug)]
pub(super) struct Sampling {
    shared: Arc<Shared>,
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
    close: AtomicU8,
    /// The last reading, for whoever shows progress.
    rss_bytes: AtomicU64,
    connections: AtomicU64,
    /// How many readings with slow figures were asked for, and how many were taken.
    wanted: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Sampling {
    /// Begins to sample everything below `root`.
    pub(super) fn start(
        root: u32,
        treatment: Applied,
        recorder: Recorder,
        interval: Duration,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut work = Work {
                sampler: Sampler::below(root),
                examiner: Examiner::default(),
                pending: Vec::new(),
                treatment,
                recorder,
                shared: for_thread,
                interval,
            };
            work.run()
        });
        Self { shared, thread: Some(thread) }
    }

    /// Asks for slow figures more often, or no longer.
    pub(super) fn pay_attention(&self, close: bool) {
        self.shared.close.store(u8::from(close), Ordering::Relaxed);
    }

    /// Has one reading with slow figures taken now, and waits for it.
    pub(super) fn read_now(&self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        let mut wanted = self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.0 += 1;
        let mine = wanted.0;
        self.shared.changed.notify_all();
        let waits = |w: &mut (u64, u64)| w.1 < mine;
        drop(self.shared.changed.wait_timeout_while(wanted, PATIENCE, waits));
    }

    /// The last reading: resident bytes and connections.
    pub(super) fn latest(&self) -> (u64, u64) {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        (load(&self.shared.rss_bytes), load(&self.shared.connections))
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Account {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

struct Work {
    sampler: Sampler,
    examiner: Examiner,
    pending: Vec<(Described, Instant)>,
    treatment: Applied,
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
            let now_wanted = self.take_wish();
            let attention = match (now_wanted.is_some(), self.shared.close.load(Ordering::Relaxed))
            {
                (true, _) => Attention::Now,
                (false, 0) => Attention::Normal,
                _ => Attention::Close,
            };
            self.tick(attention);
            if let Some(wish) = now_wanted {
                self.lock_wanted().1 = wish;
                self.shared.changed.notify_all();
            }
            let now = Instant::now();
            while next <= now {
                next += self.interval;
                if next <= now {
                    missed_ticks += 1;
                }
            }
            self.wait_until(next, begin);
        }
        Account { cpu_s: thread_cpu_s(), missed_ticks }
    }

    fn lock_wanted(&self) -> std::sync::MutexGuard<'_, (u64, u64)> {
        self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_wish(&self) -> Option<u64> {
        let (asked, done) = *self.lock_wanted();
        (asked > done).then_some(asked)
    }

    /// Sleeps until the next tick, or until a reading is asked for. Meanwhile, in the beginning,
    /// looks after processes whose allocator is not known yet.
    fn wait_until(&mut self, next: Instant, begin: Instant) {
        loop {
            let now = Instant::now();
            let eager = !self.pending.is_empty() && now.duration_since(begin) < EAGER;
            let until = if eager { next.min(now + EAGER_STEP) } else { next };
            let wanted = self.lock_wanted();
            let idle = |w: &mut (u64, u64)| w.0 <= w.1 && !self.shared.stop.load(Ordering::Relaxed);
            let rest = until.saturating_duration_since(now);
            let Ok((wanted, _)) = self.shared.changed.wait_timeout_while(wanted, rest, idle) else {
                return;
            };
            let asked = wanted.0 > wanted.1;
            drop(wanted);
            if eager {
                self.examine_pending();
            }
            if asked || self.shared.stop.load(Ordering::Relaxed) || Instant::now() >= next {
                return;
            }
        }
    }

    fn tick(&mut self, attention: Attention) {
        let t_s = self.recorder.now();
        let tick = match self.sampler.tick(t_s, attention) {
            Ok(tick) => tick,
            Err(error) => {
                self.recorder.fail(format!("/proc cannot be read: {error}"));
                return;
            }
        };
        let store = |to: &AtomicU64, value| to.store(value, Ordering::Relaxed);
        store(&self.shared.rss_bytes, tick.sample.total.rss_bytes.0);
        store(&self.shared.connections, tick.sample.sockets_established.unwrap_or(0));
        for described in tick.changed {
            self.pending.retain(|(p, _)| p.pid != described.pid);
            self.record_process(&described, None);
            self.pending.push((described, Instant::now()));
        }
        self.examine_pending();
        for process in tick.processes {
            self.recorder.write(&Line::ProcessSample(process));
        }
        self.recorder.write(&Line::Sample(tick.sample));
    }

    fn examine_pending(&mut self) {
        for (described, since) in std::mem::take(&mut self.pending) {
            let found = self.examiner.examine(described.pid);
            match &found {
                Err(ExamineError::NotYet) if since.elapsed() < LOADING => {
                    self.pending.push((described, since));
                }
                Err(ExamineError::Gone) => {}
                _ => {
                    let check = self.treatment.check(&described.command, &found);
                    self.record_process(&described, Some(check));
                }
            }
        }
    }

    fn record_process(
        &self,
        described: &Described,
        allocator: Option<lowtide_model::record::v1::AllocatorCheck>,
    ) {
        self.recorder.write(&Line::Process(Process {
            t_s: self.recorder.now(),
            pid: described.pid,
            start_ticks: described.start_ticks,
            parent: described.parent,
            uid: described.uid,
            name: described.name.clone(),
            command: described.command.clone(),
            allocator,
        }));
    }
}

/// CPU time of the calling thread, in seconds.
fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

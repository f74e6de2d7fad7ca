//! The thread that samples a subject during a trial, and examines each of its processes once to
//! check whether the treatment is in force.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::program::{ProgramError, ProgramReader};
use lowtide_probe::sampler::{Attention, Sampler};
use lowtide_record::Recorder;
use lowtide_record::v1::{Line, Process};

use crate::on_demand::{OnDemand, Requests};
use crate::treatment::ResolvedTreatment;

/// Maximum time for a process to load: after it, its allocator is no longer expected.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Initial time during which allocators are examined more often than at every tick, and the
/// interval, so that a program that lives for a tenth of a second is still examined.
const EAGER: Duration = Duration::from_millis(400);
const EAGER_INTERVAL: Duration = Duration::from_millis(4);
/// Maximum time to wait for a requested sample.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A running sampler.
#[derive(Debug)]
pub(super) struct RunningSampler {
    handle: SamplerHandle,
    thread: OnDemand<Attention, SamplerCosts>,
}

/// Statistics of the sampler itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SamplerCosts {
    /// CPU time that it used, in seconds.
    pub(super) cpu_s: f64,
    /// Ticks that were missed because they came too late.
    pub(super) missed_ticks: u64,
}

/// A sampler's last sample, and the requests for more. It exists before the sampler starts.
#[derive(Debug, Clone, Default)]
pub(super) struct SamplerHandle {
    shared: Arc<SamplingState>,
    requests: Requests<Attention>,
}

#[derive(Debug, Default)]
struct SamplingState {
    close: AtomicBool,
    /// Whether any process was ever read.
    saw: AtomicBool,
    /// Number of moments that were announced.
    moments: AtomicU64,
    /// The last sample, to show progress.
    rss_bytes: AtomicU64,
    connections: AtomicU64,
    /// The reason why a process could not be read, if that has happened: the sums would be wrong.
    failure: OnceLock<String>,
}

impl SamplerHandle {
    /// Returns the resident bytes of the last sample.
    pub(super) fn rss_bytes(&self) -> u64 {
        self.shared.rss_bytes.load(Ordering::Relaxed)
    }

    /// Announces a moment, and requests a sample of it.
    pub(super) fn sample_moment(&self) {
        self.shared.moments.fetch_add(1, Ordering::Relaxed);
        self.requests.ask(Attention::Normal);
    }

    /// Returns the number of moments that were announced.
    pub(super) fn moments(&self) -> u64 {
        self.shared.moments.load(Ordering::Relaxed)
    }
}

impl RunningSampler {
    /// Starts to sample everything below `root`.
    pub(super) fn start(
        root: u32,
        treatment: ResolvedTreatment,
        recorder: Recorder,
        interval: Duration,
        handle: &SamplerHandle,
    ) -> Self {
        let shared = Arc::clone(&handle.shared);
        let thread = OnDemand::start(handle.requests.clone(), move |requests| {
            let mut work = SamplerThread {
                sampler: Sampler::for_descendants_of(root),
                examiner: ProgramReader::default(),
                pending: Vec::new(),
                treatment,
                recorder,
                shared,
                interval,
            };
            work.run(requests)
        });
        Self { handle: handle.clone(), thread }
    }

    /// Sets whether slow metrics are taken more often.
    pub(super) fn pay_attention(&self, close: bool) {
        self.handle.shared.close.store(close, Ordering::Relaxed);
    }

    /// Requests a sample with slow metrics, and waits for it.
    pub(super) fn sample_now(&self) {
        self.thread.ask_and_wait(Attention::Now, REQUEST_TIMEOUT);
    }

    /// Returns the reason why the processes could not be read, if they could not.
    pub(super) fn failure(&self) -> Option<String> {
        self.handle.shared.failure.get().cloned()
    }

    /// Returns whether any process was ever read.
    pub(super) fn has_seen_it(&self) -> bool {
        self.handle.shared.saw.load(Ordering::Relaxed)
    }

    /// Returns the resident bytes and the connections of the last sample.
    pub(super) fn latest(&self) -> (u64, u64) {
        (self.handle.rss_bytes(), self.handle.shared.connections.load(Ordering::Relaxed))
    }

    /// Ends it.
    pub(super) fn stop(self) -> SamplerCosts {
        self.thread.finish().unwrap_or_default()
    }
}

struct SamplerThread {
    sampler: Sampler,
    examiner: ProgramReader,
    pending: Vec<(Process, Instant)>,
    treatment: ResolvedTreatment,
    recorder: Recorder,
    shared: Arc<SamplingState>,
    interval: Duration,
}

impl SamplerThread {
    fn run(&mut self, requests: &Requests<Attention>) -> SamplerCosts {
        let begin = Instant::now();
        let mut next = begin;
        let mut missed_ticks = 0;
        while !requests.is_stopped() {
            let batch = requests.take();
            let wants_slow = batch.requests.iter().any(|wanted| matches!(wanted, Attention::Now));
            self.tick(match (wants_slow, self.shared.close.load(Ordering::Relaxed)) {
                (true, _) => Attention::Now,
                (false, false) => Attention::Normal,
                (false, true) => Attention::Close,
            });
            drop(batch);
            let now = Instant::now();
            while next <= now {
                next += self.interval;
                if next <= now {
                    missed_ticks += 1;
                }
            }
            self.wait_until(next, begin, requests);
        }
        for watched in self.sampler.watched(self.recorder.now()) {
            self.recorder.write(&Line::ProcessEnd(watched));
        }
        SamplerCosts { cpu_s: thread_cpu_s(), missed_ticks }
    }

    /// Waits until the next tick, or a request. At first, it also examines the processes whose
    /// allocator is not known yet.
    fn wait_until(&mut self, next: Instant, begin: Instant, requests: &Requests<Attention>) {
        loop {
            let now = Instant::now();
            let eager = !self.pending.is_empty() && now.duration_since(begin) < EAGER;
            let until = if eager { next.min(now + EAGER_INTERVAL) } else { next };
            let is_wanted = requests.wait(until.saturating_duration_since(now));
            if eager {
                self.examine_pending();
            }
            if is_wanted || Instant::now() >= next {
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
            let found = self.examiner.read(process.pid);
            match &found {
                Err(ProgramError::NotYet) if since.elapsed() < LOAD_TIMEOUT => {
                    self.pending.push((process, since));
                }
                Err(ProgramError::Gone) => {}
                _ => {
                    let allocator = Some(self.treatment.check(&process.command, &found));
                    let t_s = self.recorder.now();
                    self.recorder.write(&Line::Process(Process { t_s, allocator, ..process }));
                }
            }
        }
    }
}

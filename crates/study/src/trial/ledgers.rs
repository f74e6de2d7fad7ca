//! The thread that takes ledgers of a subject: on request, when its memory has changed, and
//! periodically, because owners change without RSS. It is separate from the sampler, which must not
//! wait for it.

use std::time::{Duration, Instant};

use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::target::Target;
use lowtide_probe::tree;
use lowtide_record::Recorder;
use lowtide_record::v1::{LedgerReading, Line};

use super::sampling::SamplerHandle;
use crate::on_demand::{OnDemand, Requests};

/// Time between two checks whether the memory has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Inverse of the share of the time that ledgers without a request may take: when RSS has changed,
const SHARE_CHANGED: u32 = 25;
/// and when it has not.
const SHARE: u32 = 50;
/// Minimum difference of RSS that counts as a change: as a part of it, and in bytes.
const CHANGED: f64 = 0.1;
const CHANGED_BYTES: u64 = 1 << 20;
/// Minimum time between two ledgers when RSS has not changed. A command that ends by itself
/// announces nothing: its last ledger must be recent.
const UNCHANGED_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time for a ledger: a tree that takes longer has changed meanwhile.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a requested ledger.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The running thread. Its result is the CPU time that it used, in seconds.
#[derive(Debug)]
pub(super) struct Ledgers(OnDemand<(), f64>);

impl Ledgers {
    /// Starts to take ledgers of everything below `root`. The sampler provides its resident bytes.
    pub(super) fn start(root: u32, recorder: Recorder, sampler: SamplerHandle) -> Self {
        let work = LedgerThread {
            root,
            recorder,
            sampler,
            inspector: Inspector::default().without_predictions(),
            last: None,
            cpu_s: 0.0,
        };
        Self(OnDemand::start(Requests::default(), move |requests| work.run(requests)))
    }

    /// Requests a ledger.
    pub(super) fn take_soon(&self) {
        self.0.ask(());
    }

    /// Requests a ledger, and waits for it.
    pub(super) fn take_now(&self) {
        self.0.ask_and_wait((), REQUEST_TIMEOUT);
    }

    /// Tells the thread to stop, without waiting: it may be inspecting a large heap whose process
    /// ends meanwhile.
    pub(super) fn stop(&self) {
        self.0.stop();
    }

    /// Waits until the thread has ended, and returns the CPU time that it used, in seconds.
    pub(super) fn finish(self) -> f64 {
        self.0.finish().unwrap_or_default()
    }
}

struct LedgerThread {
    root: u32,
    recorder: Recorder,
    sampler: SamplerHandle,
    inspector: Inspector,
    last: Option<LastLedger>,
    /// CPU time of all inspections, in seconds.
    cpu_s: f64,
}

/// The last ledger.
struct LastLedger {
    end: Instant,
    /// CPU time that it used.
    cost: Duration,
    rss_bytes: u64,
    /// Number of moments that had been announced.
    moments: u64,
}

impl LedgerThread {
    fn run(mut self, requests: &Requests<()>) -> f64 {
        loop {
            requests.wait(POLL_INTERVAL);
            if requests.is_stopped() {
                return self.cpu_s + thread_cpu_s();
            }
            let batch = requests.take();
            if !batch.requests.is_empty() || self.is_due() {
                self.take(requests);
            }
        }
    }

    fn is_due(&self) -> bool {
        let rss = self.sampler.rss_bytes();
        let Some(last) = &self.last else { return rss > 0 };
        let difference = rss.abs_diff(last.rss_bytes);
        let has_changed =
            difference > CHANGED_BYTES && difference as f64 > last.rss_bytes as f64 * CHANGED;
        if self.sampler.moments() > last.moments {
            return true;
        }
        let since = last.end.elapsed();
        if has_changed {
            since >= last.cost * SHARE_CHANGED
        } else {
            since >= UNCHANGED_INTERVAL && since >= last.cost * SHARE
        }
    }

    fn take(&mut self, requests: &Requests<()>) {
        let begin = Instant::now();
        // Each inspection runs in its own thread.
        let mut cpu_s = 0.0;
        let (t_s, moments) = (self.recorder.now(), self.sampler.moments());
        let mut ledger = Ledger::default();
        let mut heap: Option<HeapSummary> = None;
        let mut managers = Vec::new();
        let mut processes = 0;
        for pid in tree::descendants_of(self.root) {
            // A process that has just ended no longer has memory.
            let inspected = Target::open(pid).and_then(|target| self.inspector.inspect(&target));
            if let Ok(observed) = inspected {
                ledger.join(&observed.ledger);
                managers = Manager::join(managers, &observed.managers);
                let of_process = HeapSummary::from_arenas(&observed.arenas);
                heap = heap.into_iter().chain(of_process).reduce(HeapSummary::join);
                processes += 1;
                cpu_s += observed.cpu_s;
            }
            if requests.is_stopped() || begin.elapsed() > LEDGER_TIMEOUT {
                processes = 0;
                break;
            }
        }
        let rss_bytes = ledger.total();
        self.cpu_s += cpu_s;
        let cost = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        self.last = Some(LastLedger { end: Instant::now(), cost, rss_bytes, moments });
        if processes > 0 {
            let reading = LedgerReading { t_s, processes, rss_bytes, ledger, managers, heap };
            self.recorder.write(&Line::Ledger(reading));
        }
    }
}

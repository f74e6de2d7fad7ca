//! The thread that looks at whose a subject's bytes are: when it is asked to, when the memory has
//! changed since, and now and then, because owners change without RSS. It is apart from the sampler,
//! which must not wait for it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
use lowtide_probe::inspect::{Inspector, Target};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::tree;
use lowtide_record::Recorder;
use lowtide_record::v1::{LedgerReading, Line};

use super::sampling::Requests;

/// How often it is asked whether the memory has changed.
const STEP: Duration = Duration::from_millis(100);
/// Without being asked, 1 part in so many of the time may go into looking, when RSS has changed,
const SHARE_CHANGED: u32 = 25;
/// and when it has not.
const SHARE: u32 = 100;
/// By how much RSS must differ from what it was, to have changed: as a part of it, and in bytes.
const CHANGED: f64 = 0.1;
const CHANGED_BYTES: u64 = 1 << 20;
/// How often it is looked at when RSS has not changed.
const NOW_AND_THEN: Duration = Duration::from_secs(1);
/// A tree that takes longer has changed meanwhile: it is left alone.
const LONGEST: Duration = Duration::from_secs(5);
/// How long a ledger that was asked for is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running thread.
#[derive(Debug)]
pub(super) struct Ledgers {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<f64>>,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    /// How many were asked for, and how many of them were taken.
    asked: u64,
    taken: u64,
    stop: bool,
}

impl Ledgers {
    /// Begins to look at everything below `root`. `readings` tells how much it has resident.
    pub(super) fn start(root: u32, recorder: Recorder, readings: Requests) -> Self {
        let shared = Arc::<Shared>::default();
        let work = Work {
            root,
            recorder,
            readings,
            inspector: Inspector::default(),
            last: None,
            cpu_s: 0.0,
        };
        let of_thread = Arc::clone(&shared);
        Self { shared, thread: Some(thread::spawn(move || work.run(&of_thread))) }
    }

    /// Has one taken as soon as can be.
    pub(super) fn take_soon(&self) {
        self.ask(|_| {});
    }

    /// Has one taken now, and waits for it.
    pub(super) fn take_now(&self) {
        let mut mine = 0;
        self.ask(|wanted| mine = wanted.asked);
        let wanted = self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |w: &mut Wanted| w.taken < mine;
        drop(self.shared.changed.wait_timeout_while(wanted, PATIENCE, waits));
    }

    fn ask(&self, then: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.shared.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.asked += 1;
        then(&mut wanted);
        self.shared.changed.notify_all();
    }

    /// Has it end. It is not waited for: it may be looking at a large heap, and what it looks at is
    /// ended meanwhile.
    pub(super) fn stop(&self) {
        self.ask(|wanted| wanted.stop = true);
    }

    /// Waits until it has ended, and gives the CPU time that it took, in seconds.
    pub(super) fn finish(mut self) -> f64 {
        self.stop();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

struct Work {
    root: u32,
    recorder: Recorder,
    readings: Requests,
    inspector: Inspector,
    last: Option<Last>,
    /// CPU time of all looks, in seconds.
    cpu_s: f64,
}

/// The last look.
struct Last {
    end: Instant,
    /// CPU time that it took.
    cost: Duration,
    rss_bytes: u64,
    /// How many moments had been announced.
    moments: u64,
}

impl Work {
    fn run(mut self, shared: &Shared) -> f64 {
        loop {
            let wanted = shared.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = |w: &mut Wanted| !w.stop && w.asked <= w.taken;
            let waited = shared.changed.wait_timeout_while(wanted, STEP, idle);
            let (asked, is_asked) = match waited {
                Ok((wanted, _)) if wanted.stop => return self.cpu_s + thread_cpu_s(),
                Ok((wanted, _)) => (wanted.asked, wanted.asked > wanted.taken),
                Err(_) => return self.cpu_s + thread_cpu_s(),
            };
            if is_asked || self.is_due() {
                self.take(shared);
            }
            shared.wanted.lock().unwrap_or_else(PoisonError::into_inner).taken = asked;
            shared.changed.notify_all();
        }
    }

    fn is_due(&self) -> bool {
        let rss = self.readings.rss_bytes();
        let Some(last) = &self.last else { return rss > 0 };
        let difference = rss.abs_diff(last.rss_bytes);
        let has_changed =
            difference > CHANGED_BYTES && difference as f64 > last.rss_bytes as f64 * CHANGED;
        if self.readings.moments() > last.moments {
            return true;
        }
        let since = last.end.elapsed();
        if has_changed {
            since >= last.cost * SHARE_CHANGED
        } else {
            since >= NOW_AND_THEN && since >= last.cost * SHARE
        }
    }

    fn take(&mut self, shared: &Shared) {
        let begin = Instant::now();
        // Each look is made by a thread of its own.
        let mut cpu_s = 0.0;
        let (t_s, moments) = (self.recorder.now(), self.readings.moments());
        let mut ledger = Ledger::default();
        let mut heap: Option<HeapSummary> = None;
        let mut managers = Vec::new();
        let mut processes = 0;
        for pid in tree::descendants_of(self.root) {
            // One that has just ended has no memory any more.
            let looked = Target::open(pid).and_then(|target| self.inspector.inspect(&target));
            if let Ok(observed) = looked {
                ledger.join(&observed.ledger);
                managers = Manager::join(managers, &observed.managers);
                let of_process = HeapSummary::from_arenas(&observed.arenas);
                heap = heap.into_iter().chain(of_process).reduce(HeapSummary::join);
                processes += 1;
                cpu_s += observed.cpu_s;
            }
            let is_stopped = shared.wanted.lock().unwrap_or_else(PoisonError::into_inner).stop;
            if is_stopped || begin.elapsed() > LONGEST {
                processes = 0;
                break;
            }
        }
        let rss_bytes = ledger.total();
        self.cpu_s += cpu_s;
        let cost = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        self.last = Some(Last { end: Instant::now(), cost, rss_bytes, moments });
        if processes > 0 {
            let reading = LedgerReading { t_s, processes, rss_bytes, ledger, managers, heap };
            self.recorder.write(&Line::Ledger(reading));
        }
    }
}

//! The thread that inspects the recorded processes, one at a time: a walk takes as long as the heap
//! is large, and readings go on meanwhile.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use lowtide_model::inspection::Observation;
use lowtide_model::ledger::Owner;
use lowtide_probe::detect::Detector;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::target::{Target, TargetError};
use lowtide_release::{KeptWalk, Options};

/// What is to be done with a process.
#[derive(Debug)]
pub(super) struct InspectionRequest {
    pub(super) target: Target,
    /// The current time, in seconds.
    pub(super) t_s: f64,
    /// RSS, in bytes.
    pub(super) rss_bytes: u64,
    /// If free memory of at least this size is found, in bytes, it is kept for a release.
    pub(super) min_walk_bytes: Option<u64>,
    /// Recognises its allocator.
    pub(super) detector: Arc<Mutex<Detector>>,
}

/// A finished inspection.
#[derive(Debug)]
pub(super) struct FinishedInspection {
    pub(super) process: (u32, u64),
    /// When it began, in seconds.
    pub(super) t_s: f64,
    /// RSS when it was requested, in bytes.
    pub(super) rss_bytes: u64,
    pub(super) cpu_s: f64,
    pub(super) observed: Result<Observation, TargetError>,
}

/// A result of the thread.
#[derive(Debug)]
pub(super) enum Finished {
    /// An inspection.
    Inspected(Box<FinishedInspection>),
    /// The free memory of a process, with the CPU time of its walk in seconds.
    Walked { process: (u32, u64), walk: Option<Arc<KeptWalk>>, cpu_s: f64 },
}

impl Finished {
    /// Returns PID and start time of the process.
    pub(super) fn process(&self) -> (u32, u64) {
        match self {
            Self::Inspected(inspected) => inspected.process,
            Self::Walked { process, .. } => *process,
        }
    }
}

/// The thread that inspects.
#[derive(Debug)]
pub(super) struct LedgerThread {
    requests: Sender<InspectionRequest>,
    /// A result, or `None` after the last one of a request.
    results: Receiver<Option<Finished>>,
    is_busy: bool,
    _thread: JoinHandle<()>,
}

impl LedgerThread {
    pub(super) fn start() -> io::Result<Self> {
        let (requests, inbox) = channel::<InspectionRequest>();
        let (outbox, results) = channel();
        let thread = thread::Builder::new().name("ledgers".to_owned()).spawn(move || {
            let mut inspector = Inspector::default().without_connections().without_open_memory();
            while let Ok(request) = inbox.recv() {
                let inspected = inspect(&mut inspector, &request);
                let reclaimable = inspected.observed.as_ref().map_or(0, reclaimable_bytes);
                let inspected = Finished::Inspected(Box::new(inspected));
                let is_sent = outbox.send(Some(inspected)).is_ok();
                let is_worth_it = request.min_walk_bytes.is_some_and(|least| reclaimable >= least);
                if !is_sent
                    || is_worth_it && outbox.send(Some(walk(&request))).is_err()
                    || outbox.send(None).is_err()
                {
                    break;
                }
            }
        })?;
        Ok(Self { requests, results, is_busy: false, _thread: thread })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts an inspection. Must not be called while the thread is busy.
    pub(super) fn request(&mut self, request: InspectionRequest) {
        self.is_busy = self.requests.send(request).is_ok();
    }

    /// Returns a result, if there is one.
    pub(super) fn finished(&mut self) -> Option<Finished> {
        match self.results.try_recv() {
            Ok(None) => {
                self.is_busy = false;
                None
            }
            Ok(finished) => finished,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }
}

/// Returns the memory that a release could return, in bytes.
pub(super) fn reclaimable_bytes(observation: &Observation) -> u64 {
    observation.ledger.bytes(Owner::Reclaimable)
}

fn inspect(inspector: &mut Inspector, request: &InspectionRequest) -> FinishedInspection {
    let begin_s = thread_cpu_s();
    let observed = inspector.inspect(&request.target);
    // The inspection runs in a thread of its own, whose CPU time it reports.
    let own_s = thread_cpu_s() - begin_s;
    let cpu_s = own_s + observed.as_ref().map_or(0.0, |observed| observed.cpu_s);
    let process = (request.target.pid, request.target.start_ticks);
    FinishedInspection { process, t_s: request.t_s, rss_bytes: request.rss_bytes, cpu_s, observed }
}

/// Walks the heaps again, for the ranges that an inspection does not keep.
fn walk(request: &InspectionRequest) -> Finished {
    let detector = Arc::clone(&request.detector);
    // It must not take longer than the inspection before it.
    let options = Options { is_urgent: true, detector, ..Options::default() };
    // A process that cannot be walked is not released from an earlier walk.
    let walk = KeptWalk::make(&request.target, &options).ok().flatten();
    let cpu_s = walk.as_ref().map_or(0.0, KeptWalk::cpu_s);
    let walk = walk.map(Arc::new);
    Finished::Walked { process: (request.target.pid, request.target.start_ticks), walk, cpu_s }
}

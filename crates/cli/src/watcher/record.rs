//! The record of a watch. It has the format of a single trial, so that `lowtide report` draws it
//! like any other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Observation;
use lowtide_model::treatment::Treatment;
use lowtide_probe::machine;
use lowtide_record::SingleTrial;
use lowtide_record::v1::{AllocatorCheck, Event, LedgerReading, Line, Process, ProcessEnd};
use lowtide_supervise::recorded;

use super::{WatchCost, WatchEvent};
use crate::failure::exit::Failure;

/// The record of a watch that is running.
#[derive(Debug)]
pub(crate) struct WatchRecord {
    path: PathBuf,
    /// Its treatment is known from the first inspection on.
    trial: SingleTrial,
    /// The process, until its allocator is known.
    process: Option<Process>,
    /// The process's PID and start time.
    identity: Option<(u32, u64)>,
    /// The policy, if an act of it was logged before the head was written.
    policy: Option<String>,
    peak_rss_bytes: u64,
    exit_s: Option<f64>,
}

impl WatchRecord {
    /// Creates the record in a new file.
    pub(crate) fn create(path: &Path, interval: Duration) -> Result<Self, Failure> {
        let created = SingleTrial::create(path, &machine::detect(), interval);
        let trial = created.map_err(|error| Failure::record_not_created(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            trial,
            process: None,
            identity: None,
            policy: None,
            peak_rss_bytes: 0,
            exit_s: None,
        })
    }

    /// Returns when the record started, from which its times count.
    pub(crate) fn begun(&self) -> Instant {
        self.trial.recorder().begun()
    }

    /// Returns the error after which the record cannot be written any more, if any.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let failure = self.trial.recorder().failure()?;
        Some(Failure::failed(format!(
            "the record could not be continued: {failure}; free some disk space"
        )))
    }

    /// Writes an event.
    pub(crate) fn write(&mut self, event: &WatchEvent) {
        match event {
            WatchEvent::Sample(tick) => {
                self.peak_rss_bytes = self.peak_rss_bytes.max(tick.sample.total.rss_bytes.0);
                for process in &tick.changed {
                    self.process = Some(process.clone());
                    self.identity = Some((process.pid, process.start_ticks));
                    self.trial.line(Line::Process(process.clone()));
                }
                self.trial.line(Line::Sample(tick.sample));
            }
            WatchEvent::Observed(t_s, found) => {
                self.begin(found);
                self.allocator(*t_s, found);
                self.trial.line(Line::Ledger(LedgerReading {
                    t_s: *t_s,
                    processes: 1,
                    rss_bytes: found.rss_bytes,
                    ledger: found.ledger.clone(),
                    managers: found.managers.clone(),
                    heap: HeapSummary::from_arenas(&found.arenas),
                    pins: None,
                    blocks: None,
                }));
            }
            WatchEvent::Acted(t_s, act) => {
                self.policy = Some(act.policy.clone());
                // The record has no time before its start.
                if *t_s >= 0.0 {
                    self.trial.line(recorded(act, *t_s));
                }
            }
            WatchEvent::Failed(_) => {}
            WatchEvent::Ended(t_s) => self.exit_s = Some(*t_s),
        }
    }

    /// Writes the head of the trial, once.
    fn begin(&mut self, found: &Observation) {
        let mut treatment = match &found.allocator {
            Some(known) => Treatment::plain(known.kind.name(), known.version.as_deref()),
            None => Treatment::plain("unknown", None),
        };
        if let Some(policy) = self.policy.take() {
            treatment.policy = policy;
        }
        self.trial.begin(treatment, found.command.clone());
    }

    /// Writes the allocator once it is known, and again after another program was executed.
    fn allocator(&mut self, t_s: f64, found: &Observation) {
        let Some(process) = self.process.take() else { return };
        let known = found.allocator.is_some();
        let check = AllocatorCheck {
            active: known.then_some(true),
            provider: None,
            because: (!known).then(|| "its allocator could not be determined".to_owned()),
        };
        self.trial.line(Line::Process(Process { t_s, allocator: Some(check), ..process }));
    }

    /// Completes the record, at the end of the process or of the watch.
    pub(crate) fn finish(mut self, cost: WatchCost) -> Result<PathBuf, Failure> {
        let t_s = self.exit_s.unwrap_or_else(|| self.trial.recorder().now());
        self.begin(&Observation::default());
        if let Some((pid, start_ticks)) = self.identity {
            let peak_rss_bytes = self.peak_rss_bytes;
            self.trial.line(Line::ProcessEnd(ProcessEnd { t_s, pid, start_ticks, peak_rss_bytes }));
        }
        let mark = if self.exit_s.is_some() { Event::Exit } else { Event::Stop };
        self.trial.end(t_s, mark, cost.cpu_s, cost.missed_ticks);
        self.failure().map_or(Ok(self.path), Err)
    }
}

//! The record of a watch. It has the format of a single trial, so that `lowtide report` draws it
//! like any other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Observation;
use lowtide_model::treatment::Treatment;
use lowtide_probe::machine;
use lowtide_record::Recorder;
use lowtide_record::v1::{
    AllocatorCheck, End, Event, FileKind, LedgerReading, Line, Mark, Outcome, Process, ProcessEnd,
    Trial,
};
use lowtide_supervise::recorded;

use super::{WatchCost, WatchEvent};
use crate::failure::exit::Failure;

/// The record of a watch that is running.
#[derive(Debug)]
pub(crate) struct WatchRecord {
    path: PathBuf,
    recorder: Recorder,
    interval: Duration,
    /// Whether the head of the trial was written; it is known from the first inspection on.
    has_head: bool,
    /// Lines that wait until the head is written.
    waiting: Vec<Line>,
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
        let created = Recorder::create(path, FileKind::Trial, &machine::detect());
        let recorder = created.map_err(|error| Failure::record_not_created(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            recorder,
            interval,
            has_head: false,
            waiting: Vec::new(),
            process: None,
            identity: None,
            policy: None,
            peak_rss_bytes: 0,
            exit_s: None,
        })
    }

    /// Returns when the record started, from which its times count.
    pub(crate) fn begun(&self) -> Instant {
        self.recorder.begun()
    }

    /// Returns the error after which the record cannot be written any more, if any.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let failure = self.recorder.failure()?;
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
                    self.line(Line::Process(process.clone()));
                }
                self.line(Line::Sample(tick.sample));
            }
            WatchEvent::Observed(t_s, found) => {
                self.write_head(found);
                self.allocator(*t_s, found);
                self.line(Line::Ledger(LedgerReading {
                    t_s: *t_s,
                    processes: 1,
                    rss_bytes: found.rss_bytes,
                    ledger: found.ledger.clone(),
                    managers: found.managers.clone(),
                    heap: HeapSummary::from_arenas(&found.arenas),
                }));
            }
            WatchEvent::Acted(t_s, act) => {
                self.policy = Some(act.policy.clone());
                // The record has no time before its start.
                if *t_s >= 0.0 {
                    self.line(recorded(act, *t_s));
                }
            }
            WatchEvent::Failed(_) => {}
            WatchEvent::Ended(t_s) => self.exit_s = Some(*t_s),
        }
    }

    fn line(&mut self, line: Line) {
        if self.has_head {
            self.recorder.write(&line);
        } else {
            self.waiting.push(line);
        }
    }

    /// Writes the head of the trial, once.
    fn write_head(&mut self, found: &Observation) {
        let allocator = found.allocator.as_ref();
        let treatment = match allocator {
            Some(known) => Treatment::plain(known.kind.name(), known.version.as_deref()),
            None => Treatment::plain("unknown", None),
        };
        self.write_head_of(treatment, found.command.clone());
    }

    fn write_head_of(&mut self, mut treatment: Treatment, command: Vec<String>) {
        if std::mem::replace(&mut self.has_head, true) {
            return;
        }
        if let Some(policy) = self.policy.take() {
            treatment.policy = policy;
        }
        self.recorder.write(&Line::Trial(Box::new(Trial {
            number: 1,
            treatment,
            repeat: 1,
            command,
            directory: None,
            program: None,
            environment: BTreeMap::new(),
            loaded: false,
            interval_s: self.interval.as_secs_f64(),
        })));
        self.mark(0.0, Event::Start);
        for line in std::mem::take(&mut self.waiting) {
            self.recorder.write(&line);
        }
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
        self.recorder.write(&Line::Process(Process { t_s, allocator: Some(check), ..process }));
    }

    fn mark(&self, t_s: f64, mark: Event) {
        self.recorder.write(&Line::Mark(Mark { t_s, mark, round: None, name: None }));
    }

    /// Completes the record, at the end of the process or of the watch.
    pub(crate) fn finish(mut self, cost: WatchCost) -> Result<PathBuf, Failure> {
        let t_s = self.exit_s.unwrap_or_else(|| self.recorder.now());
        self.write_head_of(Treatment::plain("unknown", None), Vec::new());
        self.mark(t_s, if self.exit_s.is_some() { Event::Exit } else { Event::Stop });
        if let Some((pid, start_ticks)) = self.identity {
            let peak_rss_bytes = self.peak_rss_bytes;
            self.recorder.write(&Line::ProcessEnd(ProcessEnd {
                t_s,
                pid,
                start_ticks,
                peak_rss_bytes,
            }));
        }
        self.recorder.write(&Line::End(End {
            t_s,
            outcome: Outcome::Done,
            exit_code: None,
            signal: None,
            usage: None,
            sampler_cpu_s: cost.cpu_s,
            missed_ticks: cost.missed_ticks,
            ledgers_cpu_s: None,
            policy_cpu_s: None,
        }));
        self.failure().map_or(Ok(self.path), Err)
    }
}

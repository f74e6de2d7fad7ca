//! What was seen, as the record of a single trial: `lowtide report` draws it like any other.

use std::collections::BTreeMap;
use std::io::ErrorKind;
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

use super::{Account, WatchEvent};
use crate::exit::Failure;

/// Writes a record while it happens.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    recorder: Recorder,
    interval: Duration,
    /// Whether what the trial runs was written: that is known from the first look on.
    is_begun: bool,
    /// What was seen before.
    waiting: Vec<Line>,
    /// The process, until it is known who serves its `malloc`.
    process: Option<Process>,
    /// Its number and when it began.
    identity: Option<(u32, u64)>,
    peak_rss_bytes: u64,
    exit_s: Option<f64>,
}

impl Record {
    /// Begins a record, in a file of its own.
    pub(crate) fn create(path: &Path, interval: Duration) -> Result<Self, Failure> {
        let created = Recorder::create(path, FileKind::Trial, &machine::detect());
        let recorder = created.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Failure::usage(format!(
                "{} is there already, and may be a record: name another file",
                path.display()
            )),
            _ => Failure::io(path, &error),
        })?;
        Ok(Self {
            path: path.to_owned(),
            recorder,
            interval,
            is_begun: false,
            waiting: Vec::new(),
            process: None,
            identity: None,
            peak_rss_bytes: 0,
            exit_s: None,
        })
    }

    /// The moment from which its times count.
    pub(crate) fn begun(&self) -> Instant {
        self.recorder.begun()
    }

    /// Why it cannot be written any further, if so.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let failure = self.recorder.failure()?;
        Some(Failure::failed(format!(
            "the record could not be written on: {failure}; make room for it"
        )))
    }

    /// Writes what was seen.
    pub(crate) fn write(&mut self, seen: &WatchEvent) {
        match seen {
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
                self.begin(found);
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
            WatchEvent::Failed(_) => {}
            WatchEvent::Ended(t_s) => self.exit_s = Some(*t_s),
        }
    }

    fn line(&mut self, line: Line) {
        if self.is_begun {
            self.recorder.write(&line);
        } else {
            self.waiting.push(line);
        }
    }

    /// Writes what the trial runs, once.
    fn begin(&mut self, found: &Observation) {
        let allocator = found.allocator.as_ref();
        let treatment = match allocator {
            Some(known) => Treatment::plain(known.kind.name(), known.version.as_deref()),
            None => Treatment::plain("unknown", None),
        };
        self.begin_with(treatment, found.command.clone());
    }

    fn begin_with(&mut self, treatment: Treatment, command: Vec<String>) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
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

    /// Who serves `malloc`, once that is known; and again of another program.
    fn allocator(&mut self, t_s: f64, found: &Observation) {
        let Some(process) = self.process.take() else { return };
        let known = found.allocator.is_some();
        let check = AllocatorCheck {
            active: known.then_some(true),
            provider: None,
            because: (!known).then(|| "its allocator could not be told".to_owned()),
        };
        self.recorder.write(&Line::Process(Process { t_s, allocator: Some(check), ..process }));
    }

    fn mark(&self, t_s: f64, mark: Event) {
        self.recorder.write(&Line::Mark(Mark { t_s, mark, round: None, name: None }));
    }

    /// Ends it: the process has, or nobody watches any more.
    pub(crate) fn finish(mut self, account: Account) -> Result<PathBuf, Failure> {
        let t_s = self.exit_s.unwrap_or_else(|| self.recorder.now());
        self.begin_with(Treatment::plain("unknown", None), Vec::new());
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
            sampler_cpu_s: account.cpu_s,
            missed_ticks: account.missed_ticks,
            ledgers_cpu_s: None,
        }));
        self.failure().map_or(Ok(self.path), Err)
    }
}

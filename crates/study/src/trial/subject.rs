//! The subject of a trial: its processes, its sampler, the end of its output.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use lowtide_probe::tree;
use lowtide_record::Recorder;

use super::TrialStop;
use super::ledgers::Ledgers;
use super::sampling::{RunningSampler, SamplerCosts, SamplerHandle};
use crate::capture::{self, Capture, LineListener, OutputTail};
use crate::keeper::{Ended, ExitReport, KeeperCommand, KeeperMessage, KeptProgram, Launch};
use crate::treatment::ResolvedTreatment;

/// Maximum time to wait for its last output, after it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A subject that was started.
#[derive(Debug)]
pub(super) struct StartedSubject {
    kept: KeptProgram,
    pub(super) pid: Option<u32>,
    sampling: Option<RunningSampler>,
    ledgers: Option<Ledgers>,
    tail: OutputTail,
    capture: Capture,
    exit: Option<(ExitReport, Instant)>,
}

/// The results of a subject that has ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Remains {
    pub(super) exit: Option<ExitReport>,
    pub(super) ended: Ended,
    pub(super) account: SamplerCosts,
    /// CPU time of its ledgers, in seconds.
    pub(super) ledgers_cpu_s: f64,
}

impl StartedSubject {
    /// Makes the keeper start it.
    pub(super) fn launch(
        keeper: &KeeperCommand,
        launch: Launch,
        log: &Path,
        recorder: &Recorder,
        listener: Option<LineListener>,
    ) -> Result<Self, TrialStop> {
        let failed = |error: io::Error| could_not_be_started(&error.to_string());
        let (reader, writer) = io::pipe().map_err(failed)?;
        let (tail, capture) = capture::capture(reader, log, recorder, listener).map_err(failed)?;
        let kept = KeptProgram::start(keeper, launch, writer).map_err(failed)?;
        Ok(Self { kept, pid: None, sampling: None, ledgers: None, tail, capture, exit: None })
    }

    /// Handles the next report of its keeper. Returns the time of the start, once.
    pub(super) fn await_start(&mut self, patience: Duration) -> Result<Option<Instant>, TrialStop> {
        let Some(event) = self.kept.next_event(patience) else {
            if self.kept.is_gone() {
                return Err(could_not_be_started(&format!(
                    "the reason is unknown{}",
                    self.last_words()
                )));
            }
            return Ok(None);
        };
        match event.report {
            KeeperMessage::Started { pid } => {
                self.pid = Some(pid);
                Ok(Some(event.at))
            }
            KeeperMessage::CannotStart { because } => Err(could_not_be_started(&because)),
            KeeperMessage::Exited(_) | KeeperMessage::Gone { .. } => Ok(None),
        }
    }

    /// Starts to sample it.
    pub(super) fn sample(
        &mut self,
        treatment: &ResolvedTreatment,
        recorder: &Recorder,
        interval: Duration,
        handle: &SamplerHandle,
    ) {
        let (root, treatment) = (self.kept.root(), treatment.clone());
        let sampling = RunningSampler::start(root, treatment, recorder.clone(), interval, handle);
        self.sampling = Some(sampling);
        self.ledgers = Some(Ledgers::start(root, recorder.clone(), handle.clone()));
    }

    /// Returns the PID of its keeper process: all its processes are descendants of that.
    pub(super) fn root(&self) -> u32 {
        self.kept.root()
    }

    /// Returns its sampler.
    pub(super) fn sampling(&self) -> Option<&RunningSampler> {
        self.sampling.as_ref()
    }

    /// Returns the thread that takes its ledgers.
    pub(super) fn ledgers(&self) -> Option<&Ledgers> {
        self.ledgers.as_ref()
    }

    /// Waits up to `patience` for the end of its first process. Returns its state, and the time of
    /// the end when that is first known.
    pub(super) fn hear(&mut self, patience: Duration) -> Heard {
        if self.exit.is_some() {
            return Heard::Ended;
        }
        while let Some(event) = self.kept.next_event(patience) {
            match event.report {
                KeeperMessage::Exited(exit) => {
                    self.exit = Some((exit, event.at));
                    return Heard::EndsNow(event.at);
                }
                KeeperMessage::Gone { .. } => return Heard::Ended,
                KeeperMessage::Started { .. } | KeeperMessage::CannotStart { .. } => {}
            }
        }
        if self.kept.is_gone() { Heard::Ended } else { Heard::Alive }
    }

    /// Returns the exit of its first process.
    pub(super) fn exit(&self) -> Option<ExitReport> {
        self.exit.map(|(exit, _)| exit)
    }

    /// Returns whether its first process succeeded and left others running: a server that became a
    /// daemon.
    pub(super) fn is_in_background(&self) -> bool {
        self.exit().is_some_and(ExitReport::is_success)
            && !self.kept.is_gone()
            && !tree::descendants_of(self.kept.root()).is_empty()
    }

    /// Returns the sentence for a subject that ended too early.
    pub(super) fn ended_early(&self, during: &str) -> String {
        let how = self.exit().map_or("an unknown status".to_owned(), |exit| exit.to_string());
        format!("the command ended {during} with {how}{}", self.last_words())
    }

    /// Reads the rest of its output, after it has ended.
    pub(super) fn hear_out(&self) {
        if self.exit.is_some() {
            self.capture.finish(LAST_WORDS);
        }
    }

    /// Returns the last lines of its output, as the end of a sentence.
    pub(super) fn last_words(&self) -> String {
        self.hear_out();
        self.tail.quoted()
    }

    /// Ends it and all processes that it started.
    pub(super) fn end(mut self) -> Remains {
        let ledgers = self.ledgers.take().inspect(Ledgers::stop);
        let account = self.sampling.take().map(RunningSampler::stop).unwrap_or_default();
        let ended = self.kept.end();
        drop(self.kept);
        self.capture.finish(LAST_WORDS);
        let ledgers_cpu_s = ledgers.map(Ledgers::finish).unwrap_or_default();
        Remains { exit: self.exit.map(|(exit, _)| exit), ended, account, ledgers_cpu_s }
    }
}

/// The state of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It runs.
    Alive,
    /// Its end was just reported, with the time.
    EndsNow(Instant),
    /// It ended earlier.
    Ended,
}

fn could_not_be_started(because: &str) -> TrialStop {
    TrialStop::Failed(format!("the command could not be started: {because}"))
}

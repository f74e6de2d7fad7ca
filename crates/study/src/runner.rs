//! Runs a plan trial by trial, each with its own file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lowtide_record::Recorder;
use lowtide_record::plan::TrialSlot;
use lowtide_record::v1::{FileKind, Line, Machine, Outcome, TrialBegin, TrialEnd};

use crate::error::{Obstacle, StudyError};
use crate::eta::Eta;
use crate::keeper::KeeperCommand;
use crate::plan::Plan;
use crate::preflight;
use crate::progress::{StudyEvent, StudyObserver};
use crate::record_dir::{RecordDir, directory_of};
use crate::trial::process_stage::{ProcessStage, TrialContext};
use crate::trial::shell::Shell;
use crate::trial::{TrialStop, perform};

/// The outcome of a study. The record has the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StudyRun {
    /// The directory of the record.
    pub record: PathBuf,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// The message of the first trial that failed, with its label.
    pub failure: Option<String>,
}

/// Runs a plan from beginning to end, or resumes it: trials that are done are not run again.
///
/// # Errors
/// Fails if the record cannot be written, or the set-up fails. A trial that fails is not an error
/// here: its outcome is in the record.
pub fn run(
    plan: &Plan,
    keeper: &KeeperCommand,
    machine: &Machine,
    observer: &mut dyn StudyObserver,
    interrupt: &AtomicBool,
) -> Result<StudyRun, StudyError> {
    let directory = directory_of(plan)?;
    // An existing record is locked first: another process that uses it would also disturb the
    // trials.
    let known = RecordDir::find(plan, &directory, machine)?;
    if known.as_ref().is_none_or(|record_dir| !record_dir.open_slots().is_empty()) {
        preflight::before_set_up(plan, interrupt).map_err(|obstacle| match obstacle {
            Obstacle::PortInUse(_) if interrupt.load(Ordering::Relaxed) => StudyError::Interrupted,
            _ => obstacle.into(),
        })?;
    }
    let record_dir = known.map_or_else(|| RecordDir::make(plan, directory, machine), Ok)?;
    let slots = record_dir.open_slots();
    observer.see(StudyEvent::Begin {
        record: record_dir.directory.clone(),
        trials: record_dir.plan.slots().len() as u32,
        done: record_dir.done.len() as u32,
    });
    let keeper = KeeperCommand {
        open_files_limit: keeper.open_files_limit.max(plan.open_files),
        ..keeper.clone()
    };
    if let Some(line) = plan.settings.setup.as_ref().filter(|_| !slots.is_empty()) {
        observer.see(StudyEvent::Step("set-up".to_owned()));
        match set_up(plan, line, &keeper, &record_dir, interrupt) {
            // A set-up that cannot be repeated need not be, if its results exist.
            Err(StudyError::Setup(why))
                if !record_dir.done.is_empty() && preflight::after_set_up(plan).is_ok() =>
            {
                observer.see(StudyEvent::Step(format!("the set-up is skipped ({why})")));
            }
            done => done?,
        }
        preflight::after_set_up(plan)?;
    }
    Runner { plan, keeper: &keeper, machine, observer, interrupt, record_dir }.all(&slots)
}

/// A study in progress.
struct Runner<'a> {
    plan: &'a Plan,
    keeper: &'a KeeperCommand,
    machine: &'a Machine,
    observer: &'a mut dyn StudyObserver,
    interrupt: &'a AtomicBool,
    record_dir: RecordDir,
}

impl Runner<'_> {
    fn all(&mut self, slots: &[TrialSlot]) -> Result<StudyRun, StudyError> {
        let mut eta = self.eta();
        let record = self.record_dir.directory.clone();
        let mut study_run = StudyRun { record, interrupted: false, failure: None };
        let mut succeeded = !self.record_dir.done.is_empty();
        let mut failed_in_a_row = 0;
        for (place, slot) in slots.iter().enumerate() {
            let label = self.plan.treatments[slot.treatment].treatment.label();
            let following = slots[place + 1..].iter().map(|slot| slot.treatment);
            self.observer.see(StudyEvent::TrialBegin {
                label: label.clone(),
                repeat: slot.repeat,
                left: eta.left(slot.treatment, following),
            });
            let begin = Instant::now();
            let outcome = self.one(slot, &label)?;
            // This includes an interrupt during the cleanup of a completed trial.
            if outcome == Outcome::Interrupted || self.interrupt.load(Ordering::Relaxed) {
                study_run.interrupted = true;
                break;
            }
            match outcome {
                Outcome::Done | Outcome::Interrupted => {
                    eta.note(slot.treatment, begin.elapsed());
                    succeeded = true;
                    failed_in_a_row = 0;
                }
                Outcome::Failed { because } => {
                    failed_in_a_row += 1;
                    study_run
                        .failure
                        .get_or_insert(format!("{label}, repeat {}: {because}", slot.repeat));
                    // If no trial has succeeded yet, the cause is not the treatment, and the rest
                    // would only waste time.
                    if !succeeded && (failed_in_a_row >= 2 || slot.treatment == 0) {
                        break;
                    }
                }
            }
        }
        Ok(study_run)
    }

    /// Returns the estimate of the remaining time, from the trials that are done.
    fn eta(&self) -> Eta {
        let mut eta = Eta::new(self.plan.shortest_trial());
        for slot in self.record_dir.plan.slots() {
            if let Some(took) = self.record_dir.done.get(&slot.number) {
                eta.note(slot.treatment, *took);
            }
        }
        eta
    }

    fn one(&mut self, slot: &TrialSlot, label: &str) -> Result<Outcome, StudyError> {
        let RecordDir { directory, study, .. } = &self.record_dir;
        let stem = self.record_dir.stem(slot, label);
        let number = slot.number;
        let samples = format!("{stem}.jsonl");
        let path = directory.join(&samples);
        let (treatment, repeat) = (slot.treatment, slot.repeat);
        study.write(&Line::TrialBegin(TrialBegin { number, treatment, repeat, samples }));
        let recorder = Recorder::create(&path, FileKind::Trial, self.machine)
            .map_err(|error| StudyError::Record { path, error })?;
        let context = TrialContext {
            plan: self.plan,
            treatment: &self.plan.treatments[treatment],
            keeper: self.keeper,
            recorder: recorder.clone(),
            interrupt: self.interrupt,
            files: directory.join(&stem),
            number,
            repeat,
        };
        let mut stage = ProcessStage::new(context, &mut *self.observer);
        let outcome = match perform(&mut stage, &self.plan.timeline) {
            // The signal that interrupted lowtide may also have ended the subject, whose end was
            // noticed first.
            Outcome::Failed { .. } if self.interrupt.load(Ordering::Relaxed) => {
                Outcome::Interrupted
            }
            outcome => outcome,
        };
        stage.finish(&outcome);
        study.write(&Line::TrialEnd(TrialEnd { number, outcome: outcome.clone() }));
        self.observer.see(StudyEvent::TrialEnd { outcome: outcome.clone() });
        match recorder.failure().or_else(|| study.failure()) {
            Some(failure) => Err(StudyError::Recording(failure)),
            None => Ok(outcome),
        }
    }
}

/// The file with the output of the set-up.
const SETUP_LOG: &str = "setup.log";

fn set_up(
    plan: &Plan,
    line: &str,
    keeper: &KeeperCommand,
    record_dir: &RecordDir,
    interrupt: &AtomicBool,
) -> Result<(), StudyError> {
    let shell = Shell {
        what: "the set-up of the study",
        line,
        directory: plan.settings.directory.clone(),
        variables: Vec::new(),
        log: &record_dir.directory.join(SETUP_LOG),
        stdout: None,
    };
    let watch = || match interrupt.load(Ordering::Relaxed) {
        true => Err(TrialStop::Interrupted),
        false => Ok(()),
    };
    shell.run(keeper, &record_dir.study, watch).map_err(|stop| match stop {
        TrialStop::Failed(because) => StudyError::Setup(format!(
            "{because}\nIts output is in {}; no trial was started",
            record_dir.directory.join(SETUP_LOG).display()
        )),
        TrialStop::Interrupted => StudyError::Interrupted,
    })
}

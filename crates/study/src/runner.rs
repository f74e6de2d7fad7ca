//! Runs a plan: trial after trial, each in a file of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lowtide_record::Recorder;
use lowtide_record::plan::TrialSlot;
use lowtide_record::v1::{FileKind, Line, Machine, Outcome, TrialBegin, TrialEnd};

use crate::begun::{Begun, directory_of};
use crate::error::{Obstacle, RunError};
use crate::keeper::KeeperProgram;
use crate::plan::Plan;
use crate::preflight;
use crate::progress::{Observer, Progress};
use crate::remaining::Pace;
use crate::trial::bench::{Bench, Setting};
use crate::trial::shell::Shell;
use crate::trial::{Stop, perform};

/// What came of a study. The record holds the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The directory of the record.
    pub record: PathBuf,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// The sentence of the first trial that failed, with its label.
    pub failure: Option<String>,
}

/// Runs a plan from beginning to end, or goes on with it: trials that are done are not run again.
///
/// # Errors
/// When the record cannot be written, or the study cannot be set up. A trial that fails is no error
/// here: it stands in the record.
pub fn run(
    plan: &Plan,
    keeper: &KeeperProgram,
    machine: &Machine,
    observer: &mut dyn Observer,
    interrupt: &AtomicBool,
) -> Result<Ran, RunError> {
    let directory = directory_of(plan)?;
    // What is there is held first: who else is at it would also be in the way of the trials.
    let known = Begun::find(plan, &directory, machine)?;
    if known.as_ref().is_none_or(|begun| !begun.open_slots().is_empty()) {
        preflight::before_set_up(plan, interrupt).map_err(|obstacle| match obstacle {
            Obstacle::PortInUse(_) if interrupt.load(Ordering::Relaxed) => RunError::Interrupted,
            _ => obstacle.into(),
        })?;
    }
    let begun = known.map_or_else(|| Begun::make(plan, directory, machine), Ok)?;
    let slots = begun.open_slots();
    observer.see(Progress::Begin {
        record: begun.directory.clone(),
        trials: begun.plan.slots().len() as u32,
        done: begun.done.len() as u32,
    });
    let keeper = KeeperProgram {
        open_files_limit: keeper.open_files_limit.max(plan.open_files),
        ..keeper.clone()
    };
    if let Some(line) = plan.settings.setup.as_ref().filter(|_| !slots.is_empty()) {
        observer.see(Progress::Step("set-up".to_owned()));
        match set_up(plan, line, &keeper, &begun, interrupt) {
            // What cannot be done a second time need not be: what it made is there.
            Err(RunError::Setup(why))
                if !begun.done.is_empty() && preflight::after_set_up(plan).is_ok() =>
            {
                observer.see(Progress::Step(format!("the set-up is passed over ({why})")));
            }
            done => done?,
        }
        preflight::after_set_up(plan)?;
    }
    Running { plan, keeper: &keeper, machine, observer, interrupt, begun }.all(&slots)
}

/// A study whose trials are being run.
struct Running<'a> {
    plan: &'a Plan,
    keeper: &'a KeeperProgram,
    machine: &'a Machine,
    observer: &'a mut dyn Observer,
    interrupt: &'a AtomicBool,
    begun: Begun,
}

impl Running<'_> {
    fn all(&mut self, slots: &[TrialSlot]) -> Result<Ran, RunError> {
        let mut pace = self.pace();
        let record = self.begun.directory.clone();
        let mut ran = Ran { record, interrupted: false, failure: None };
        let mut succeeded = !self.begun.done.is_empty();
        let mut failed_in_a_row = 0;
        for (place, slot) in slots.iter().enumerate() {
            let label = self.plan.treatments[slot.treatment].treatment.label();
            let behind = slots[place + 1..].iter().map(|slot| slot.treatment);
            self.observer.see(Progress::TrialBegin {
                label: label.clone(),
                repeat: slot.repeat,
                left: pace.left(slot.treatment, behind),
            });
            let begin = Instant::now();
            let outcome = self.one(slot, &label)?;
            // Also when that came while a trial that was done was being cleaned up.
            if outcome == Outcome::Interrupted || self.interrupt.load(Ordering::Relaxed) {
                ran.interrupted = true;
                break;
            }
            match outcome {
                Outcome::Done | Outcome::Interrupted => {
                    pace.note(slot.treatment, begin.elapsed());
                    succeeded = true;
                    failed_in_a_row = 0;
                }
                Outcome::Failed { because } => {
                    failed_in_a_row += 1;
                    ran.failure
                        .get_or_insert(format!("{label}, repeat {}: {because}", slot.repeat));
                    // When nothing has worked yet, it is not the treatment's fault, and the rest would
                    // only waste time.
                    if !succeeded && (failed_in_a_row >= 2 || slot.treatment == 0) {
                        break;
                    }
                }
            }
        }
        Ok(ran)
    }

    /// What is known of how long trials take.
    fn pace(&self) -> Pace {
        let mut pace = Pace::new(self.plan.shortest_trial());
        for slot in self.begun.plan.slots() {
            if let Some(took) = self.begun.done.get(&slot.number) {
                pace.note(slot.treatment, *took);
            }
        }
        pace
    }

    fn one(&mut self, slot: &TrialSlot, label: &str) -> Result<Outcome, RunError> {
        let Begun { directory, course, .. } = &self.begun;
        let stem = self.begun.stem(slot, label);
        let number = slot.number;
        let samples = format!("{stem}.jsonl");
        let path = directory.join(&samples);
        let (treatment, repeat) = (slot.treatment, slot.repeat);
        course.write(&Line::TrialBegin(TrialBegin { number, treatment, repeat, samples }));
        let recorder = Recorder::create(&path, FileKind::Trial, self.machine)
            .map_err(|error| RunError::Record { path, error })?;
        let setting = Setting {
            plan: self.plan,
            applied: &self.plan.treatments[treatment],
            keeper: self.keeper,
            recorder: recorder.clone(),
            interrupt: self.interrupt,
            files: directory.join(&stem),
            number,
            repeat,
        };
        let mut bench = Bench::new(setting, &mut *self.observer);
        let outcome = match perform(&mut bench, &self.plan.course) {
            // Who told us to end may have told the subject too, and that was seen first.
            Outcome::Failed { .. } if self.interrupt.load(Ordering::Relaxed) => {
                Outcome::Interrupted
            }
            outcome => outcome,
        };
        bench.finish(&outcome);
        course.write(&Line::TrialEnd(TrialEnd { number, outcome: outcome.clone() }));
        self.observer.see(Progress::TrialEnd { outcome: outcome.clone() });
        match recorder.failure().or_else(|| course.failure()) {
            Some(failure) => Err(RunError::Recording(failure)),
            None => Ok(outcome),
        }
    }
}

/// What the set-up prints.
const SETUP_LOG: &str = "setup.log";

fn set_up(
    plan: &Plan,
    line: &str,
    keeper: &KeeperProgram,
    begun: &Begun,
    interrupt: &AtomicBool,
) -> Result<(), RunError> {
    let shell = Shell {
        what: "the set-up of the study",
        line,
        directory: plan.settings.directory.clone(),
        variables: Vec::new(),
        log: &begun.directory.join(SETUP_LOG),
        stdout: None,
    };
    let watch = || match interrupt.load(Ordering::Relaxed) {
        true => Err(Stop::Interrupted),
        false => Ok(()),
    };
    shell.run(keeper, &begun.course, watch).map_err(|stop| match stop {
        Stop::Failed(because) => RunError::Setup(format!(
            "{because}\nAll that it printed is in {}; no trial was begun",
            begun.directory.join(SETUP_LOG).display()
        )),
        Stop::Interrupted => RunError::Interrupted,
    })
}

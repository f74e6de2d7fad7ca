//! Runs a plan: trial after trial, each in a file of its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use lowtide_model::record::v1::{Holds, Line, Machine, Outcome, TrialBegin, TrialEnd};
use lowtide_record::Recorder;

use crate::keeper::KeeperProgram;
use crate::plan::Plan;
use crate::progress::{Observer, Progress};
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

/// Why a study could not be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The directory for the record holds something else.
    #[error("{} is not an empty directory: name another directory with --output, or remove it", .0.display())]
    OutputNotEmpty(PathBuf),
    /// The record could not be made.
    #[error("the record could not be written: {}: {error}", path.display())]
    Record {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The record could not be written any more.
    #[error("the record could not be written: {0}; what was recorded before is kept")]
    Recording(String),
    /// The command that sets the study up failed.
    #[error("{0}")]
    Setup(String),
    /// Ctrl-C, before the first trial.
    #[error("interrupted before the first trial")]
    Interrupted,
}

/// Runs a plan from beginning to end.
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
    let record = make_record(plan)?;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| RunError::Record { path, error }
    };
    let path = record.join("study.jsonl");
    let course = Recorder::create(&path, Holds::Study, machine).map_err(at(&path))?;
    let of_record = plan.for_record();
    course.write(&Line::Plan(Box::new(of_record.clone())));
    observer.see(Progress::Begin {
        record: record.clone(),
        trials: of_record.order.len() as u32,
        shortest_trial: plan.shortest_trial(),
    });
    if let Some(line) = &plan.setup {
        observer.see(Progress::Step("set-up".to_owned()));
        set_up(plan, line, keeper, &record, &course, interrupt)?;
    }
    let mut ran = Ran { record: record.clone(), interrupted: false, failure: None };
    let mut succeeded = false;
    let mut failed_in_a_row = 0;
    for (place, treatment) in of_record.order.iter().enumerate() {
        let number = place as u32 + 1;
        let applied = &plan.treatments[*treatment];
        let repeat = (place / plan.treatments.len()) as u32 + 1;
        let label = applied.treatment.label();
        observer.see(Progress::TrialBegin { number, label: label.clone(), repeat });
        let stem = format!("{number:03}-{}", file_name(&label));
        let samples = format!("trials/{stem}.jsonl");
        course.write(&Line::TrialBegin(TrialBegin {
            number,
            treatment: *treatment,
            repeat,
            samples: samples.clone(),
        }));
        let path = record.join(&samples);
        let recorder = Recorder::create(&path, Holds::Trial, machine).map_err(at(&path))?;
        let setting = Setting {
            plan,
            applied,
            keeper,
            recorder: recorder.clone(),
            interrupt,
            files: record.join("trials").join(&stem),
            number,
            repeat,
        };
        let mut bench = Bench::new(setting, observer);
        let outcome = perform(&mut bench, &plan.course);
        bench.finish(&outcome);
        course.write(&Line::TrialEnd(TrialEnd { number, outcome: outcome.clone() }));
        observer.see(Progress::TrialEnd { number, outcome: outcome.clone() });
        if let Some(failure) = recorder.failure().or_else(|| course.failure()) {
            return Err(RunError::Recording(failure));
        }
        // Also when that came while a trial that was done was being cleaned up.
        if outcome == Outcome::Interrupted || interrupt.load(Ordering::Relaxed) {
            ran.interrupted = true;
            break;
        }
        match outcome {
            Outcome::Done | Outcome::Interrupted => {
                succeeded = true;
                failed_in_a_row = 0;
            }
            Outcome::Failed { because } => {
                failed_in_a_row += 1;
                ran.failure.get_or_insert(format!("{label}, repeat {repeat}: {because}"));
                // When nothing has worked yet, it is not the treatment's fault, and the rest would
                // only waste time.
                if !succeeded && (failed_in_a_row >= 2 || *treatment == 0) {
                    break;
                }
            }
        }
    }
    Ok(ran)
}

/// Makes the directory of the record. One that exists must be empty.
fn make_record(plan: &Plan) -> Result<PathBuf, RunError> {
    let record = plan.output.clone().unwrap_or_else(|| default_output(&plan.name));
    let at = |error| RunError::Record { path: record.clone(), error };
    match fs::read_dir(&record).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return Err(RunError::OutputNotEmpty(record)),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(RunError::OutputNotEmpty(record));
        }
        Err(error) => return Err(at(error)),
    }
    fs::create_dir_all(record.join("trials")).map_err(at)?;
    // The commands that a study starts may run in another directory.
    std::path::absolute(&record).map_err(at)
}

/// `lowtide-NAME-20260131-123456`, in UTC.
fn default_output(name: &str) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(now / 86_400);
    let (h, m, s) = (now / 3600 % 24, now / 60 % 60, now % 60);
    let name = file_name(name);
    format!("lowtide-{name}-{year}{month:02}{day:02}-{h:02}{m:02}{s:02}").into()
}

/// The date of a day counted from 1970-01-01, by Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, day)
}

/// A label as part of a file's name.
fn file_name(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = label.chars().map(plain).take(60).collect();
    name.trim_start_matches('.').to_owned()
}

fn set_up(
    plan: &Plan,
    line: &str,
    keeper: &KeeperProgram,
    record: &Path,
    recorder: &Recorder,
    interrupt: &AtomicBool,
) -> Result<(), RunError> {
    let shell = Shell {
        what: "the set-up of the study",
        line,
        directory: plan.directory.clone(),
        variables: Vec::new(),
        log: &record.join("setup.log"),
        stdout: None,
    };
    let watch = || match interrupt.load(Ordering::Relaxed) {
        true => Err(Stop::Interrupted),
        false => Ok(()),
    };
    shell.run(keeper, recorder, watch).map_err(|stop| match stop {
        Stop::Failed(because) => RunError::Setup(because),
        Stop::Interrupted => RunError::Interrupted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
    }

    #[test]
    fn labels_become_names_of_files() {
        assert_eq!(file_name("glibc/arena_max=2"), "glibc-arena_max-2");
        assert_eq!(file_name("../x y"), "-x-y");
    }
}

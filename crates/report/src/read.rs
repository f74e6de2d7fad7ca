//! Opens records.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use thiserror::Error;

use lowtide_analysis::analyze::analyze;
use lowtide_analysis::study_report::StudyReport;
use lowtide_record::plan::StudyPlan;
use lowtide_record::v1::{FileKind, Header};
use lowtide_record::{
    self, LoadRecord, ReadError, Records, StudyRecord, TrialRecord, read_lines, read_load,
    read_study, read_trial,
};

/// A record that was read: the results, and the samples that they are computed from.
#[derive(Debug, Clone)]
pub struct LoadedRecord {
    /// The results.
    pub study: StudyReport,
    /// The time of its start, and the machine.
    pub header: Header,
    /// The file of each trial, relative to the record, and its content.
    pub trials: Vec<(String, TrialRecord)>,
    /// The origin of the numbers, if lowtide did not measure them itself.
    pub source: Option<String>,
    /// The parts that could not be read.
    pub notes: Vec<String>,
    /// The records that are drawn beside it: its own copies, or the originals if it has none.
    pub beside: Vec<PathBuf>,
}

/// Why a record could not be read.
#[derive(Debug, Error)]
#[error("{} {error}", path.display())]
pub struct LoadError {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub error: ReadError,
}

/// The content of a path.
#[derive(Debug, Clone)]
pub enum ReportInput {
    /// A study, or a single trial of one.
    Study(Box<LoadedRecord>),
    /// The record of a load.
    Load(Box<LoadRecord>),
}

/// Reads a record of either kind.
///
/// # Errors
/// Fails if it is not a record, or is damaged.
pub fn open(path: &Path) -> Result<ReportInput, LoadError> {
    match load(path) {
        Err(LoadError { error: ReadError::OnlyALoad, .. }) => {
            Ok(ReportInput::Load(Box::new(read_load(lines(path)?))))
        }
        loaded => Ok(ReportInput::Study(Box::new(loaded?))),
    }
}

/// Reads a record of memory: its directory, its `study.jsonl`, or the file of a single trial.
///
/// # Errors
/// Fails if it is not a record, or is damaged.
pub fn load(path: &Path) -> Result<LoadedRecord, LoadError> {
    let course = if path.is_dir() { path.join("study.jsonl") } else { path.to_owned() };
    let at = |error| LoadError { path: course.clone(), error };
    if path.is_dir() && !course.exists() {
        return Err(LoadError { path: path.to_owned(), error: ReadError::NoStudy });
    }
    let records = lines(&course)?;
    let torn = records.torn;
    let loaded = match records.header.holds {
        FileKind::Study => {
            let directory = course.parent().unwrap_or(Path::new("."));
            load_study(path, directory, read_study(records).map_err(at)?)
        }
        FileKind::Trial => Ok(load_trial(path, read_trial(records).map_err(at)?)),
        FileKind::Load => Err(at(ReadError::OnlyALoad)),
        FileKind::Unknown => Err(at(ReadError::UnknownContent)),
    };
    loaded.map(|mut loaded| {
        if torn {
            loaded
                .notes
                .insert(0, torn_note(&course.file_name().unwrap_or_default().to_string_lossy()));
        }
        loaded
    })
}

fn torn_note(file: &str) -> String {
    format!(
        "{file}: its last line is incomplete, and left out: it was still being written, or was cut off"
    )
}

fn lines(path: &Path) -> Result<Records, LoadError> {
    let at = |error| LoadError { path: path.to_owned(), error };
    let file = File::open(path).map_err(|e| at(e.into()))?;
    read_lines(BufReader::new(file)).map_err(at)
}

fn load_study(
    path: &Path,
    directory: &Path,
    course: StudyRecord,
) -> Result<LoadedRecord, LoadError> {
    let mut trials = Vec::new();
    let mut notes = Vec::new();
    for begun in &course.begun {
        // A record may come from an untrusted source: its paths must not leave its own directory.
        let inside = Path::new(&begun.samples)
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        if !inside {
            notes.push(format!(
                "{}: left out, because it is not a path inside the record",
                begun.samples
            ));
            continue;
        }
        let file = directory.join(&begun.samples);
        let read = lines(&file).and_then(|records| {
            if records.torn {
                notes.push(torn_note(&begun.samples));
            }
            read_trial(records).map_err(|error| LoadError { path: file.clone(), error })
        });
        match read {
            Ok(trial) => trials.push((begun.samples.clone(), trial)),
            // The trial had only just started when the study was killed.
            Err(LoadError { error: ReadError::Empty | ReadError::Missing(_), .. }) => {
                notes.push(format!("{}: nothing was recorded", begun.samples));
            }
            // The other trials remain readable.
            Err(LoadError { error, .. }) => {
                notes.push(format!("{}: {error}; this trial is left out", begun.samples));
            }
        }
    }
    let source = course.header.source.clone();
    let header = course.header.clone();
    let copies = course.plan.copies_beside(directory).into_iter();
    let beside = copies
        .zip(&course.plan.beside)
        .map(|(copy, original)| if copy.is_dir() { copy } else { original.into() })
        .collect();
    let study = analyze(&path.display().to_string(), course, &trials);
    Ok(LoadedRecord { study, header, trials, source, notes, beside })
}

/// Returns the file of a single trial as a study with one trial.
fn load_trial(path: &Path, trial: TrialRecord) -> LoadedRecord {
    let plan = StudyPlan {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        command: trial.trial.command.clone(),
        treatments: vec![trial.trial.treatment.clone()],
        repeats: 1,
        order: vec![0],
        rounds: 1,
        interval_s: trial.trial.interval_s,
        ..StudyPlan::default()
    };
    let course =
        StudyRecord { header: trial.header.clone(), plan, begun: Vec::new(), ended: Vec::new() };
    let source = trial.header.source.clone();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let trials = vec![(name, trial)];
    let header = course.header.clone();
    let study = analyze(&path.display().to_string(), course, &trials);
    LoadedRecord { study, header, trials, source, notes: Vec::new(), beside: Vec::new() }
}

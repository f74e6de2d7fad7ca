//! The directory of a study's record: created, or resumed after an interrupted run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lowtide_record::plan::{self, TrialSlot};
use lowtide_record::shard::Shard;
use lowtide_record::v1::{FileKind, Line, Machine, Outcome};
use lowtide_record::{ReadError, Recorder, StudyRecord, files, read_lines, read_study, read_trial};

use crate::error::StudyError;
use crate::plan::Plan;

/// The directory of a record to which trials can be added.
pub(crate) struct RecordDir {
    /// Its directory, absolute.
    pub(crate) directory: PathBuf,
    /// Its `study.jsonl`.
    pub(crate) study: Recorder,
    /// The durations of the trials that are done, by their numbers.
    pub(crate) done: BTreeMap<u32, Duration>,
    /// The plan, as it is recorded.
    pub(crate) plan: plan::StudyPlan,
}

const STUDY_FILE: &str = "study.jsonl";

impl RecordDir {
    /// Resumes the record in a directory; returns `None` if there is none yet.
    pub(crate) fn find(
        plan: &Plan,
        directory: &Path,
        machine: &Machine,
    ) -> Result<Option<Self>, StudyError> {
        let directory = directory.to_owned();
        match read(&directory)? {
            Found::Nothing => Ok(None),
            Found::NoPlan(_) if !plan.settings.resume => Err(already_there(plan, directory, None)),
            Found::Study(record) if !plan.settings.resume => {
                Err(already_there(plan, directory, Some(&record)))
            }
            Found::NoPlan(path) => {
                // The writer was interrupted before its first line was complete: it contains
                // nothing.
                fs::remove_file(&path).map_err(at(&path))?;
                Self::make(plan, directory, machine).map(Some)
            }
            Found::Study(record) => Self::resume(plan, directory, &record).map(Some),
        }
    }

    /// Creates the record of a plan.
    pub(crate) fn make(
        plan: &Plan,
        directory: PathBuf,
        machine: &Machine,
    ) -> Result<Self, StudyError> {
        files::create_directories(&directory, 0o777).map_err(at(&directory))?;
        // This comes first, because lowtide recognises its directory by this file.
        let path = directory.join(STUDY_FILE);
        let study = Recorder::create(&path, FileKind::Study, machine).map_err(at(&path))?;
        make_trials(&directory)?;
        let plan = plan.for_record();
        copy_beside(&plan, &directory)?;
        study.write(&Line::Plan(Box::new(plan.clone())));
        Ok(Self { directory, study, done: BTreeMap::new(), plan })
    }

    fn resume(plan: &Plan, directory: PathBuf, record: &StudyRecord) -> Result<Self, StudyError> {
        let plan = plan.for_record();
        check_same(&plan, record, &directory)?;
        let path = directory.join(STUDY_FILE);
        let study = Recorder::resume(&path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => StudyError::InUse(directory.clone()),
            _ => at(&path)(error),
        })?;
        // A trial may have started or ended since the record was read without a lock.
        let record = match read(&directory)? {
            Found::Study(record) => record,
            Found::Nothing | Found::NoPlan(_) => {
                return Err(StudyError::OutputNotEmpty(directory));
            }
        };
        check_same(&plan, &record, &directory)?;
        make_trials(&directory)?;
        copy_beside(&plan, &directory)?;
        if plan != record.plan {
            study.write(&Line::Plan(Box::new(plan.clone())));
        }
        let done = done(&directory, &record);
        Ok(Self { directory, study, done, plan })
    }

    /// Returns the trials that are still to be run, in order.
    pub(crate) fn open_slots(&self) -> Vec<TrialSlot> {
        let mut slots = self.plan.slots();
        slots.retain(|slot| !self.done.contains_key(&slot.number));
        slots
    }

    /// Returns the path of a trial's files without an extension, relative to the record. Files of
    /// an earlier attempt stay unchanged.
    pub(crate) fn stem(&self, slot: &TrialSlot, label: &str) -> String {
        let stem = format!("trials/{:03}-{}", slot.number, file_name(label));
        let is_taken = |stem: &String| self.directory.join(format!("{stem}.jsonl")).exists();
        let again = (2..).map(|attempt: u32| format!("{stem}-attempt-{attempt}"));
        let mut stems = std::iter::once(stem.clone()).chain(again);
        stems.find(|stem| !is_taken(stem)).unwrap_or(stem)
    }
}

fn make_trials(directory: &Path) -> Result<(), StudyError> {
    let trials = directory.join("trials");
    files::create_directories(&trials, 0o777).map_err(at(&trials))
}

/// Maximum size of a record that is copied, in bytes.
const MAX_COPIED: u64 = 256 << 20;

/// Copies the records that are drawn beside a study into its own record, so that a report of it can
/// be made on another machine. A copy that is already there is kept. A record that is too large or
/// cannot be read is not copied: a report then reads the original.
fn copy_beside(plan: &plan::StudyPlan, directory: &Path) -> Result<(), StudyError> {
    for (original, copy) in plan.beside.iter().zip(plan.copies_beside(directory)) {
        if copy.exists() {
            continue;
        }
        let files = files_of_record(Path::new(original));
        let size: u64 = files.iter().map(|(_, size)| size).sum();
        if files.is_empty() || size > MAX_COPIED {
            continue;
        }
        // The copy gets its name when it is complete.
        let unfinished = copy.with_extension("unfinished");
        make_trials(&unfinished)?;
        for (file, _) in files {
            let to = unfinished.join(&file);
            copy_file(&Path::new(original).join(&file), &to).map_err(at(&to))?;
        }
        fs::rename(&unfinished, &copy).map_err(at(&copy))?;
    }
    Ok(())
}

fn copy_file(original: &Path, copy: &Path) -> io::Result<()> {
    io::copy(&mut File::open(original)?, &mut files::create(copy)?).map(drop)
}

/// Returns the readable files of a record, relative to its directory, with their sizes. The result
/// is empty if the directory contains no readable record.
fn files_of_record(directory: &Path) -> Vec<(PathBuf, u64)> {
    let trials = fs::read_dir(directory.join("trials")).into_iter().flatten().flatten();
    let names = trials
        .map(|entry| PathBuf::from("trials").join(entry.file_name()))
        .filter(|name| name.extension().is_some_and(|extension| extension == "jsonl"));
    let sized = |name: PathBuf| {
        let path = directory.join(&name);
        let file = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        File::open(path).ok()?;
        Some((name, file.len()))
    };
    match sized(STUDY_FILE.into()) {
        Some(study) => std::iter::once(study).chain(names.filter_map(sized)).collect(),
        None => Vec::new(),
    }
}

/// The state of a record's directory.
enum Found {
    /// No directory, or an empty one.
    Nothing,
    /// A record without a plan; the path of its file.
    NoPlan(PathBuf),
    /// A record.
    Study(Box<StudyRecord>),
}

fn read(directory: &Path) -> Result<Found, StudyError> {
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(StudyError::OutputNotEmpty(directory.to_owned()));
        }
        Err(error) => return Err(at(directory)(error)),
    };
    if entries.next().is_none() {
        return Ok(Found::Nothing);
    }
    let path = directory.join(STUDY_FILE);
    let unreadable = |error| StudyError::Unreadable { path: path.clone(), error };
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(StudyError::OutputNotEmpty(directory.to_owned()));
        }
        opened => opened.map_err(|error| unreadable(error.into()))?,
    };
    match read_lines(BufReader::new(file)).and_then(read_study) {
        Ok(record) => Ok(Found::Study(Box::new(record))),
        Err(ReadError::Empty | ReadError::Missing(_)) => Ok(Found::NoPlan(path)),
        Err(error) => Err(unreadable(error)),
    }
}

/// Returns the error for a record that exists already, if the user did not ask to resume it.
fn already_there(plan: &Plan, directory: PathBuf, record: Option<&StudyRecord>) -> StudyError {
    let ours = plan.for_record();
    if let Some(Err(error)) = record.map(|record| check_same(&ours, record, &directory)) {
        return error;
    }
    let done = record.map_or(0, |record| done(&directory, record).len());
    StudyError::OutputHoldsIt { directory, done, of: ours.slots().len() }
}

/// Refuses to resume a different study. A study with more repeats is the same study: the order of
/// its first ones does not depend on their number. Until a trial has started (the set-up may have
/// failed, and been repaired), the record contains nothing that conflicts with another plan.
fn check_same(
    ours: &plan::StudyPlan,
    record: &StudyRecord,
    directory: &Path,
) -> Result<(), StudyError> {
    if record.begun.is_empty() {
        return Ok(());
    }
    let theirs = &record.plan;
    let other = |what: &str, there: String, here: String| StudyError::OtherPlan {
        directory: directory.to_owned(),
        what: what.to_owned(),
        there,
        here,
    };
    if let Some(it) = ours.difference(theirs) {
        return Err(other(&it.what, it.there, it.here));
    }
    let part = |shard: Option<Shard>| shard.map_or("all of them".to_owned(), |s| s.to_string());
    if ours.shard != theirs.shard {
        return Err(other("shard", part(theirs.shard), part(ours.shard)));
    }
    // With a different number of repeats, a part would have different ones.
    let fits = ours.repeats >= theirs.repeats && ours.order.starts_with(&theirs.order);
    if !fits || (ours.shard.is_some() && ours.repeats != theirs.repeats) {
        return Err(other("repeat", theirs.repeats.to_string(), ours.repeats.to_string()));
    }
    Ok(())
}

/// Returns the durations of the trials that ended as planned, according to their own files.
fn done(directory: &Path, record: &StudyRecord) -> BTreeMap<u32, Duration> {
    let end_of = |samples: &str| {
        let file = File::open(directory.join(samples)).ok()?;
        let trial = read_trial(read_lines(BufReader::new(file)).ok()?).ok()?;
        let end = trial.end.filter(|end| end.outcome == Outcome::Done)?;
        Some(Duration::try_from_secs_f64(end.t_s).unwrap_or_default())
    };
    let ended = record.begun.iter().map(|begun| (begun.number, end_of(&begun.samples)));
    ended.filter_map(|(number, end)| Some((number, end?))).collect()
}

/// Returns the directory of a plan's record. The commands that a study starts may run in another
/// one.
pub(crate) fn directory_of(plan: &Plan) -> Result<PathBuf, StudyError> {
    let directory = plan.settings.output.clone().unwrap_or_else(|| default_output(plan));
    std::path::absolute(&directory).map_err(at(&directory))
}

fn at(path: &Path) -> impl Fn(io::Error) -> StudyError + use<> {
    let path = path.to_owned();
    move |error| StudyError::Record { path: path.clone(), error }
}

/// Returns `lowtide-NAME-20260131-123456`, in UTC; for a part,
/// `lowtide-NAME-20260131-123456-part-1-of-4`.
fn default_output(plan: &Plan) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(now / 86_400);
    let (h, m, s) = (now / 3600 % 24, now / 60 % 60, now % 60);
    let name = file_name(&plan.name);
    // Parts may start in the same second.
    let part = |shard: Shard| format!("-part-{}-of-{}", shard.part, shard.of);
    let part = plan.shard.map(part).unwrap_or_default();
    format!("lowtide-{name}-{year}{month:02}{day:02}-{h:02}{m:02}{s:02}{part}").into()
}

/// Converts days since 1970-01-01 to a date, by Hinnant's `civil_from_days`
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

/// Converts a label to a part of a file name.
fn file_name(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = label.chars().map(plain).take(60).collect();
    name.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_since_the_epoch_are_converted_to_calendar_dates() {
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
    fn labels_are_converted_to_safe_file_names() {
        assert_eq!(file_name("glibc/arena_max=2"), "glibc-arena_max-2");
        assert_eq!(file_name("../x y"), "-x-y");
    }
}

//! `lowtide study`.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use lowtide_allocators::cache_directory;
use lowtide_analysis::compare;
use lowtide_analysis::study_report::StudyReport;
use lowtide_analysis::trial_result::TrialOutcome;
use lowtide_analysis::versions::FEWEST_PAIRS;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::number::counted;
use lowtide_model::stats::ENOUGH_FOR_INTERVAL;
use lowtide_record::files;
use lowtide_report::merge_shards;
use lowtide_report::read::LoadedRecord;
use lowtide_report::terminal::Details;
use lowtide_study::{
    AllocatorError, BorrowError, Obstacle, Plan, PlanError, Settings, StudyError, StudyRun,
};
use rustix::process::{Resource, getrlimit};

use super::load;
use crate::args::StudyArgs;
use crate::console::output::{MODE_REMARK, Output, annotate, is_on_github, note};
use crate::console::progress::StudyProgress;
use crate::console::{interrupt, question};
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;
use crate::failure::target_error;
use crate::keeper;
use crate::present::{self, Report};

pub(crate) fn run(args: StudyArgs, output: &Output) -> Result<Exit, Failure> {
    let mut plan = Plan::new(settings(args)?).map_err(refused)?;
    check_load(&plan)?;
    // An unreadable baseline is reported now, not after hours of trials.
    let earlier = match &plan.baseline {
        Some((path, _)) => Some(present::load(path)?),
        None => None,
    };
    loop {
        let ran = conduct(&plan)?;
        let record = present::load(&ran.record)?;
        let study = record.study.clone();
        let exit = analyze(&plan, &ran, record, earlier.as_ref(), output)?;
        let Some(more) = MoreRepeats::of(&study) else {
            print_how_to_continue(&study, &ran.record);
            return Ok(exit);
        };
        if !more.are_wanted(&ran.record, exit, output) {
            return Ok(exit);
        }
        let output = Some(ran.record);
        let repeat = Some(more.repeats);
        // The trials of the record are kept.
        let settings = Settings { output, repeat, resume: true, ..plan.settings };
        plan = Plan::new(settings).map_err(refused)?;
    }
}

/// Maximum time to wait for an answer: a terminal can be one that no person looks at.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Repeats that may decide a study which is complete and undecided.
struct MoreRepeats {
    /// The number of repeats, with those that are done.
    repeats: u32,
    /// What is to be run, and how long that takes, as the beginning of a sentence.
    cost: String,
    /// What comes of it.
    effect: &'static str,
}

impl MoreRepeats {
    fn of(study: &StudyReport) -> Option<Self> {
        if !study.complete {
            return None;
        }
        let cost = |what: String, time| format!("{what}, which take about {}", HumanSeconds(time));
        if let Some((repeats, time)) = study.undecided_versions() {
            return Some(Self {
                repeats: study.plan.repeats + repeats,
                cost: cost(counted(u64::from(repeats), "more repeat"), time),
                effect: "would probably decide it",
            });
        }
        let (trials, time) = study.undecided()?;
        Some(Self {
            repeats: u32::try_from(ENOUGH_FOR_INTERVAL).unwrap_or(u32::MAX),
            cost: cost(counted(trials, "more trial"), time),
            effect: "may decide it",
        })
    }

    /// Returns whether the person at the terminal wants to run them, which is asked only if the
    /// study ended well. If not, or without a terminal, prints the command that runs them.
    fn are_wanted(&self, record: &Path, exit: Exit, output: &Output) -> bool {
        let Self { repeats, cost, effect } = self;
        let sentence = format!("{cost}, {effect}");
        let is_asked = exit == Exit::Done && !output.json && question::can_ask();
        if is_asked
            && question::ask(&format!("{sentence}. Run them now? The others are kept."), MAX_WAIT)
        {
            return true;
        }
        let again = Rerun::typed().with_value("output", &record.display().to_string());
        let again = again.with("resume").with_value("repeat", &repeats.to_string());
        if !is_asked {
            note!("{sentence}; the next command runs them");
        }
        note!("next: {again}");
        false
    }
}

/// Runs a plan, and shows its progress.
pub(crate) fn conduct(plan: &Plan) -> Result<StudyRun, Failure> {
    for note in &plan.notes {
        note!("note: {note}");
    }
    let interrupt = interrupt::flag();
    let machine = lowtide_probe::machine::detect();
    let mut show = StudyProgress::new();
    let ran = lowtide_study::run(plan, &keeper::program()?, &machine, &mut show, &interrupt);
    let record = show.record();
    drop(show);
    ran.map_err(|error| failure_of(&error, record.as_deref()))
}

/// Converts the error of a study. `record` is the directory of its record.
fn failure_of(error: &StudyError, record: Option<&Path>) -> Failure {
    match (error, record) {
        (
            StudyError::OutputNotEmpty(_)
            | StudyError::OutputHoldsIt { .. }
            | StudyError::OtherPlan { .. },
            _,
        ) => Failure::usage(error),
        (StudyError::Obstacle(Obstacle::OpenFiles { .. }), _) => {
            Failure::new(Exit::NotPermitted, error)
        }
        (StudyError::Interrupted, _) => Failure::new(Exit::Interrupted, error),
        (StudyError::Recording(_), Some(record)) => {
            Failure::failed(error).next(format!("lowtide report {}", record.display()))
        }
        (StudyError::Record { error: reason, .. }, _)
            if reason.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::new(Exit::NotPermitted, error)
        }
        _ => Failure::failed(error),
    }
}

/// Prints the result of a study, and returns the exit code.
pub(crate) fn analyze(
    plan: &Plan,
    ran: &StudyRun,
    record: LoadedRecord,
    earlier: Option<&LoadedRecord>,
    output: &Output,
) -> Result<Exit, Failure> {
    let study = record.study.clone();
    let report = Report::new(merge_shards(vec![record]));
    let page = ran.record.join("report.html");
    let drawn = report.page().and_then(|html| {
        files::write_whole(&page, html.as_bytes(), true).map_err(|error| Failure::io(&page, &error))
    });
    let crossed = crossings(plan, &study, earlier);
    summarise_for_ci(&report, &crossed);
    if output.json {
        output.object(&study)?;
    } else {
        output.text(&report.for_terminal(Details::Hidden, output))?;
        if drawn.is_ok() {
            let shown = page.canonicalize().unwrap_or(page);
            output.text(&format!(
                "\nreport: {} ({MODE_REMARK})\n  (or: lowtide report {})\n",
                shown.display(),
                ran.record.display()
            ))?;
        }
    }
    for line in &crossed {
        note!("crossed: {line}");
    }
    if let Some(failure) = &ran.failure {
        // The object that was already printed contains the failure, too.
        note!("lowtide: {failure}");
        return Ok(Exit::Failed);
    }
    if let Err(failure) = drawn {
        // The metrics have been printed; the page can be created later.
        note!("lowtide: {}", failure.next(format!("lowtide report {}", ran.record.display())));
        return Ok(Exit::Failed);
    }
    Ok(match (ran.interrupted, crossed.is_empty()) {
        (true, _) => Exit::Interrupted,
        (false, false) => Exit::Crossed,
        (false, true) => Exit::Done,
    })
}

/// Rejects a `lowtide load` that exceeds the limits of this machine, and warns if the subject may
/// not be able to handle it.
fn check_load(plan: &Plan) -> Result<(), Failure> {
    let Some(line) = &plan.timeline.load else { return Ok(()) };
    let Some(connections) = load::check(line)? else { return Ok(()) };
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = soft.max(plan.open_files.unwrap_or(0));
    if connections >= files {
        note!(
            "note: the load opens {connections} connections, but the command may have only {files} files open \
             unless it raises that limit itself: use --open-files {}",
            connections + 100
        );
    }
    Ok(())
}

/// Prints how to continue a study that was interrupted, or in which trials failed.
fn print_how_to_continue(study: &StudyReport, record: &Path) {
    let again = Rerun::typed().with_value("output", &record.display().to_string()).with("resume");
    if !study.complete {
        let done = study.trials.iter().filter(|trial| trial.outcome == TrialOutcome::Done).count();
        let of = study.plan.slots().len();
        note!("{done} of {of} trials are done; the next command runs the others\n  next: {again}");
    }
}

/// Returns the crossed thresholds of `--fail-on` and the regressions from `--baseline`.
fn crossings(plan: &Plan, study: &StudyReport, earlier: Option<&LoadedRecord>) -> Vec<String> {
    let of_thresholds = plan.fail_on.iter().flat_map(|threshold| threshold.crossings(study));
    let mut lines: Vec<String> = of_thresholds.map(|crossing| crossing.to_string()).collect();
    if let (Some(earlier), Some((_, tolerance))) = (earlier, &plan.baseline) {
        let comparison = compare::compare(&earlier.study, study, *tolerance);
        lines.extend(comparison.regressions.iter().map(ToString::to_string));
        for label in comparison.not_compared {
            let why = if earlier.study.metric == study.metric {
                "one of the two studies has no metrics of it"
            } else {
                "one of the two studies uses RSS, the other PSS"
            };
            note!("note: {label} cannot be compared with the baseline: {why}");
        }
    }
    for threshold in plan.fail_on.iter().filter(|threshold| threshold.is_void(study)) {
        let reason = match threshold.compares_versions() {
            true => format!("it needs {FEWEST_PAIRS} repeats of both versions"),
            false => "no trial has that metric".to_owned(),
        };
        note!("note: --fail-on {threshold} was not checked: {reason}");
    }
    lines
}

/// Annotates the crossings on GitHub, and adds the tables to the page of the job.
fn summarise_for_ci(report: &Report, crossed: &[String]) {
    crossed.iter().for_each(|line| annotate(line));
    if !is_on_github() {
        return;
    }
    // The file belongs to the runner, which may be another user than that of a container: lowtide
    // only appends to it.
    if let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY") {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(report.markdown().as_bytes()));
    }
}

/// Returns the settings of the file, overridden by those of the command line.
fn settings(args: StudyArgs) -> Result<Settings, Failure> {
    let file = match &args.file {
        None => Settings::default(),
        Some(path) => read_file(path, &args.set)?,
    };
    let command = args.command.into_iter().map(|word| {
        word.into_string().map_err(|word| {
            Failure::usage(format!(
                "{} is not valid UTF-8, which a record requires",
                word.display()
            ))
        })
    });
    let command = command.collect::<Result<Vec<String>, Failure>>()?;
    if let Some(path) = &args.file {
        let flags = args.flags.over(Settings::default()).map_err(Failure::usage)?;
        file.admit(path, &flags).map_err(Failure::usage)?;
    }
    // The path of an earlier record is relative to the working directory, not to that of the study
    // file.
    let mut settings = args.flags.over(file).map_err(Failure::usage)?;
    if !command.is_empty() {
        settings.command = Some(command);
    }
    if let Some(pid) = args.env_from {
        let (variables, left_out) =
            lowtide_study::variables_of(pid, &args.env).map_err(borrowed)?;
        for note in left_out {
            note!("note: {note}");
        }
        settings.environment.extend(variables);
    }
    Ok(settings)
}

fn read_file(path: &Path, set: &[String]) -> Result<Settings, Failure> {
    let cache = cache_directory().map_err(Failure::failed)?;
    Settings::read(path, &parameters(set)?, &cache).map_err(|error| {
        let looks_like_a_command = path.extension().is_none_or(|e| e != "toml");
        let failure = Failure::usage(&error);
        if looks_like_a_command {
            failure.next(format!("lowtide study -- {}", path.display()))
        } else {
            failure
        }
    })
}

fn parameters(set: &[String]) -> Result<Vec<(String, String)>, Failure> {
    set.iter()
        .map(|text| {
            let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
            pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
                .ok_or_else(|| Failure::usage(format!("--set: `{text}` is not NAME=VALUE")))
        })
        .collect()
}

fn borrowed(error: BorrowError) -> Failure {
    match &error {
        BorrowError::Target(target) => target_error::failure(target, &Rerun::typed()),
        BorrowError::Missing { pid, .. } => {
            let shows = format!("tr '\\0' '\\n' < /proc/{pid}/environ | cut -d= -f1");
            Failure::usage(&error).next(shows)
        }
    }
}

fn refused(error: PlanError) -> Failure {
    match &error {
        PlanError::Allocator(AllocatorError::Unpack(_)) => Failure::failed(&error),
        PlanError::NoCommand => Failure::usage(&error).next("lowtide study --help"),
        _ => Failure::usage(&error),
    }
}

/// Runs a study with the settings of the demo, which has no flags for them.
pub(crate) fn run_settings(
    settings: Settings,
    begins: &str,
    output: &Output,
) -> Result<Exit, Failure> {
    let plan = Plan::new(settings).map_err(refused)?;
    note!("{begins}");
    let ran = conduct(&plan)?;
    let record = present::load(Path::new(&ran.record))?;
    analyze(&plan, &ran, record, None, output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_record_without_write_permission_exits_as_not_permitted() {
        let exit = |kind: ErrorKind| {
            let error = StudyError::Record { path: "/root/x".into(), error: io::Error::from(kind) };
            failure_of(&error, None).exit()
        };
        assert_eq!(exit(ErrorKind::PermissionDenied), Exit::NotPermitted);
        assert_eq!(exit(ErrorKind::StorageFull), Exit::Failed);
    }
}

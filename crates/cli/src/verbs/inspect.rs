//! `lowtide inspect PID…`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_analysis::diagnose::diagnose;
use lowtide_analysis::growth::{GrowthSample, GrowthTracker, MIN_SAMPLES};
use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::LeakFinder;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::{Inspection, Observation};
use lowtide_model::leaks::LeakKind;
use lowtide_model::remedy::RemedyKind;
use lowtide_model::verdict::{Verdict, VerdictKind};
use lowtide_probe::inspect::{Inspector, malloc_info};
use lowtide_probe::target::{Target, TargetError};
use lowtide_release::predict_refusal;
use lowtide_report::inspection;

use super::next_step::{Service, next, to_paste};
use crate::args::InspectArgs;
use crate::exit::{Exit, Failure};
use crate::group::Group;
use crate::output::{Output, note};
use crate::patient_finder::PatientFinder;
use crate::target_error::{failure, not_permitted};
use crate::values::MIN_INSPECTION_INTERVAL;
use crate::wait::{in_time, wait_until};
use crate::watcher::between_inspections;
use crate::{interrupt, rerun, target_error};

/// Maximum number of groups of blocks that are checked for leaks.
const MAX_GROUPS: usize = 20;
/// Number of inspections over the time of `--watch`, if it is long enough for them.
const INSPECTIONS: u32 = 20;

pub(crate) fn run(args: &InspectArgs, output: &Output) -> Result<Exit, Failure> {
    let watch = args.watch.as_ref().map(|watch| watch.value);
    let order = args.selector.select()?;
    if args.malloc_info {
        let [selected] = order.as_slice() else {
            return Err(Failure::usage(format!(
                "--malloc-info prints one document, but {} processes are selected: name one PID",
                order.len()
            )));
        };
        return print_malloc_info(args, selected.pid, output);
    }
    let mut group = Group::default();
    let mut inspector = Inspector::default();
    // A single inspection ends soon.
    let interrupt = match watch {
        Some(_) => interrupt::flag(),
        None => Arc::default(),
    };
    let is_stream = order.len() > 1;
    let mut exit = Exit::Done;
    let mut is_first = true;
    for pid in order.iter().map(|selected| selected.pid) {
        if interrupt.load(Ordering::Relaxed) {
            return Ok(Exit::Interrupted);
        }
        let is_named = args.selector.pids.contains(&pid);
        let mut service = Service::default();
        let looked = Target::open(pid).and_then(|target| {
            let mut inspected = match watch {
                Some(time) => over_time(&mut inspector, &target, time, &interrupt),
                None => inspector.inspect(&target).map(|observation| Inspected {
                    inspection: diagnose(observation),
                    ended: None,
                }),
            }?;
            withdraw_refused_release(&mut inspected.inspection, &target);
            if !output.json {
                service = in_time(&target, |target| Service::read(&target)).unwrap_or_default();
            }
            if args.selector.is_group() {
                group.add_inspection(&target, &inspected.inspection);
            }
            Ok(inspected)
        });
        match looked {
            Ok(Inspected { inspection, ended }) => {
                if !std::mem::take(&mut is_first) && !output.json {
                    output.text("\n")?;
                }
                show(&inspection, &service, args.arenas, output)?;
                let unreadable = inspection.observation.unreadable;
                let limited =
                    unreadable.map(|what| not_permitted(what, pid, &rerun::inspect(args)));
                let ended = ended.map(|error| failure(&error, &rerun::inspect(args)));
                for failure in limited.into_iter().chain(ended) {
                    // For a single process, only one object is printed: the inspection.
                    if is_stream {
                        output.fail(&failure);
                    } else {
                        note!("lowtide: {failure}");
                    }
                    exit = failure.exit();
                }
            }
            // A descendant may have ended since it was listed. This is an error only for a process
            // that was given by PID.
            Err(error) if !is_named && target_error::exit(&error) == Exit::Gone => {}
            Err(error) if args.selector.pids.len() == 1 => {
                return Err(failure(&error, &rerun::inspect(args)));
            }
            Err(error) => {
                group.add_unreadable();
                let failure = failure(&error, &rerun::inspect(args));
                output.fail(&failure);
                exit = failure.exit();
            }
        }
    }
    if args.selector.is_group() {
        group.print(output)?;
    }
    Ok(exit)
}

/// Prints the XML of `malloc_info(3)`.
fn print_malloc_info(args: &InspectArgs, pid: u32, output: &Output) -> Result<Exit, Failure> {
    if output.json {
        return Err(Failure::usage("--malloc-info prints XML: leave out --json, or use --arenas"));
    }
    let again = rerun::inspect(args);
    let target = Target::open(pid).map_err(|error| failure(&error, &again))?;
    let read = in_time(&target, |target| malloc_info(&target));
    let read = read.unwrap_or(Err(TargetError::Blocked(pid)));
    let info = read.map_err(|error| failure(&error, &again))?.ok_or_else(|| {
        let sentence = format!("process {pid} has no readable glibc heap");
        Failure::failed(sentence).next(format!("lowtide inspect {pid}"))
    })?;
    output.text(&info.text)?;
    if info.torn_arenas > 0 {
        note!(
            "lowtide: {} of its arenas changed while they were read, or could not be read completely: their \
             values are inconsistent, or too small",
            info.torn_arenas
        );
    }
    Ok(Exit::Done)
}

/// Removes the remedy of a release if a release would be refused, and adds a note with the reason.
fn withdraw_refused_release(found: &mut Inspection, target: &Target) {
    if !found.remedies.iter().any(|remedy| remedy.kind == RemedyKind::Release) {
        return;
    }
    if let Some(refusal) = in_time(target, |target| predict_refusal(&target)).flatten() {
        found.remedies.retain(|remedy| remedy.kind != RemedyKind::Release);
        found.observation.notes.push(format!("lowtide release would refuse it: {refusal}"));
    }
}

/// The last inspection, with a verdict from the whole watch, and the error that ended the watch.
struct Inspected {
    inspection: Inspection,
    ended: Option<TargetError>,
}

/// Inspects a process repeatedly, and detects whether memory in use grows.
fn over_time(
    inspector: &mut Inspector,
    target: &Target,
    time: Duration,
    interrupt: &AtomicBool,
) -> Result<Inspected, TargetError> {
    let step = (time / INSPECTIONS).max(MIN_INSPECTION_INTERVAL);
    let begin = Instant::now();
    let mut tracker = GrowthTracker::default();
    let mut last: Option<Observation> = None;
    let mut cpu_s = 0.0;
    let mut leaks = Leaks::new(target);
    let ended = loop {
        let at = Instant::now();
        match (inspector.inspect(target), &last) {
            (Ok(observation), _) => {
                let is_readable = observation.unreadable.is_none();
                if is_readable {
                    tracker.add(GrowthSample::new((at - begin).as_secs_f64(), &observation));
                }
                cpu_s = observation.cpu_s;
                if is_readable {
                    cpu_s += leaks.look((at - begin).as_secs_f64());
                }
                last = Some(observation);
                if !is_readable || begin.elapsed() >= time {
                    break None;
                }
            }
            // The process executes one program after another; a later one may run for long enough.
            (Err(TargetError::Replaced(_)), Some(_)) if begin.elapsed() < time => {}
            (Err(error), _) => break Some(error),
        }
        if interrupt.load(Ordering::Relaxed) {
            break None;
        }
        let cost = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        wait_until(at + between_inspections(step, cost), target, interrupt);
    };
    match (last, ended) {
        (Some(observation), ended) => {
            let mut inspection = diagnose(observation);
            add_growth(&mut inspection, &tracker);
            if ended.is_none() && !interrupt.load(Ordering::Relaxed) {
                leaks.judge(&mut inspection);
            }
            Ok(Inspected { inspection, ended })
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(TargetError::Gone(target.pid)),
    }
}

/// The search for lost blocks during the inspections of a watch.
struct Leaks {
    /// Absent if the process cannot be read, or reading it has failed.
    finder: Option<PatientFinder>,
}

impl Leaks {
    fn new(target: &Target) -> Self {
        Self { finder: PatientFinder::open(target).ok() }
    }

    /// Takes a snapshot. Returns its CPU time in seconds.
    fn look(&mut self, t_s: f64) -> f64 {
        let look = self.patiently(move |finder| finder.look(t_s));
        look.map_or(0.0, |look| look.cpu_s)
    }

    /// Replaces the verdict by `leak` if no pointer leads to the growing blocks.
    fn judge(&mut self, inspection: &mut Inspection) {
        let may_leak = |kind| matches!(kind, LeakKind::Growing | LeakKind::Filling);
        let grows = |finder: &LeakFinder| {
            let groups = finder.report(None, MAX_GROUPS).groups;
            groups.iter().any(|group| may_leak(group.verdict))
        };
        if !self.finder.as_ref().and_then(PatientFinder::get).is_some_and(grows) {
            return;
        }
        let report = self.patiently(|finder| {
            finder.seek(None, &Search::new(&AtomicBool::new(false)))?;
            Ok(finder.report(None, MAX_GROUPS))
        });
        if let Some(report) = report.filter(|report| report.verdict.kind == LeakKind::Lost) {
            let types = report.groups.first().and_then(|group| group.block_type.clone());
            let because = types.map(|name| format!("most of them are {name}"));
            let growth = std::mem::take(&mut inspection.verdict.because);
            let because = report.verdict.because.into_iter().chain(because).chain(growth);
            inspection.verdict = Verdict { kind: VerdictKind::Leak, because: because.collect() };
        }
    }

    /// Calls a function with the finder. A finder that fails is dropped.
    fn patiently<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut LeakFinder) -> Result<T, TargetError> + Send + 'static,
    ) -> Option<T> {
        let mut finder = self.finder.take()?;
        let done = finder.patiently(work).ok()?;
        self.finder = Some(finder);
        Some(done)
    }
}

/// Replaces the verdict by `growing` if memory in use grew over the watch, and otherwise adds that
/// it did not.
fn add_growth(inspection: &mut Inspection, tracker: &GrowthTracker) {
    if inspection.observation.unreadable.is_some() {
        return;
    }
    let verdict = &mut inspection.verdict;
    if let Some(growing) = tracker.detect() {
        *verdict = growing;
        return;
    }
    let (count, seconds) = tracker.span();
    let time = HumanSeconds(seconds);
    verdict.because.push(if count < MIN_SAMPLES {
        format!("too few samples to decide whether it grows ({count} in {time})")
    } else {
        format!("memory in use did not grow in {time} ({count} inspections)")
    });
}

fn show(
    found: &Inspection,
    service: &Service,
    arenas: bool,
    output: &Output,
) -> Result<(), Failure> {
    if output.json {
        return output.object(found);
    }
    output.text(&inspection::render(found, arenas, output.screen()))?;
    // If a permission is missing, the error that follows names the next step.
    if found.observation.unreadable.is_some() {
        return Ok(());
    }
    output.text(&format!("next: {}\n", next(found, service)))?;
    output.text(&to_paste(found, service))
}

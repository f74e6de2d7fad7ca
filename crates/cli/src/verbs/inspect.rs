//! `lowtide inspect PID…`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_analysis::diagnose::diagnose;
use lowtide_analysis::growth::{GrowthSample, GrowthTracker, MIN_SAMPLES};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::{Inspection, Observation, Unreadable};
use lowtide_model::remedy::RemedyKind;
use lowtide_probe::inspect::{Inspector, Target, TargetError};
use lowtide_probe::patience::patiently;
use lowtide_probe::proc::status::Status;
use lowtide_release::predict_refusal;
use lowtide_report::inspection;

use super::next_step::{Service, next, to_paste};
use super::together::Together;
use crate::args::{InspectArgs, duration};
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::output::{Output, note};
use crate::watcher::between_looks;

/// So many looks are taken over the time of `--watch`, where it is long enough for them,
const LOOKS: u32 = 20;
/// and so much time lies between two of them at least.
const SHORTEST_STEP: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &InspectArgs, output: &Output) -> Result<Exit, Failure> {
    let watch = args.watch.as_deref().map(time_to_watch).transpose()?;
    let order = args.selector.select()?;
    let mut whole = Together::default();
    let mut inspector = Inspector::default();
    // Only a watch is worth being asked to end: one look is over before.
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
                service = in_time(&target, |target| Service::of(&target)).unwrap_or_default();
            }
            if args.selector.is_group() {
                whole.look(&target, &inspected.inspection);
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
                let limited = unreadable.map(|what| not_permitted(what, pid, &again(args)));
                let ended = ended.map(|error| failure(&error, &again(args)));
                for failure in limited.into_iter().chain(ended) {
                    // Of one process one object is printed, and that is what was seen of it.
                    if is_stream {
                        failure.tell(output);
                    } else {
                        note!("lowtide: {failure}");
                    }
                    exit = failure.exit();
                }
            }
            // A child may have ended since it was listed. Only a process that was named is an error.
            Err(error) if !is_named && error_exit(&error) == Exit::Gone => {}
            Err(error) if args.selector.pids.len() == 1 => {
                return Err(failure(&error, &again(args)));
            }
            Err(error) => {
                whole.add_unreadable();
                let failure = failure(&error, &again(args));
                failure.tell(output);
                exit = failure.exit();
            }
        }
    }
    if args.selector.is_group() {
        whole.show(output)?;
    }
    Ok(exit)
}

/// Removes the remedy of a release if the process would be refused, and adds a note that says why.
fn withdraw_refused_release(found: &mut Inspection, target: &Target) {
    if !found.remedies.iter().any(|remedy| remedy.kind == RemedyKind::Release) {
        return;
    }
    if let Some(refusal) = in_time(target, |target| predict_refusal(&target)).flatten() {
        found.remedies.retain(|remedy| remedy.kind != RemedyKind::Release);
        found.observation.notes.push(format!("lowtide release would refuse it: {refusal}"));
    }
}

/// What is found out of a process; `None` where that does not come to an end.
pub(super) fn in_time<T: Send + 'static>(
    target: &Target,
    work: impl FnOnce(Target) -> T + Send + 'static,
) -> Option<T> {
    let of_thread = target.try_clone().ok()?;
    patiently(&AtomicBool::new(false), move || work(of_thread)).ok()
}

fn time_to_watch(text: &str) -> Result<Duration, Failure> {
    let time = duration("--watch", text)?;
    let shortest = SHORTEST_STEP * (MIN_SAMPLES as u32);
    if time < shortest {
        return Err(Failure::usage(format!(
            "--watch: a trend takes {MIN_SAMPLES} looks: give it at least {}",
            HumanSeconds(shortest.as_secs_f64())
        )));
    }
    Ok(time)
}

/// The last inspection, with a verdict from all of a watch, and the error that ended the watch.
struct Inspected {
    inspection: Inspection,
    ended: Option<TargetError>,
}

/// Looks again and again, and judges whether what is in use grows.
fn over_time(
    inspector: &mut Inspector,
    target: &Target,
    time: Duration,
    interrupt: &AtomicBool,
) -> Result<Inspected, TargetError> {
    let step = (time / LOOKS).max(SHORTEST_STEP);
    let begin = Instant::now();
    let mut tracker = GrowthTracker::default();
    let mut last: Option<Observation> = None;
    let mut cpu_s = 0.0;
    let ended = loop {
        let at = Instant::now();
        match (inspector.inspect(target), &last) {
            (Ok(observation), _) => {
                let is_readable = observation.unreadable.is_none();
                if is_readable {
                    tracker.add(GrowthSample::new((at - begin).as_secs_f64(), &observation));
                }
                cpu_s = observation.cpu_s;
                last = Some(observation);
                if !is_readable || begin.elapsed() >= time {
                    break None;
                }
            }
            // It starts one program after the other: one of them will stay for long enough.
            (Err(TargetError::Replaced(_)), Some(_)) if begin.elapsed() < time => {}
            (Err(error), _) => break Some(error),
        }
        if interrupt.load(Ordering::Relaxed) {
            break None;
        }
        let cost = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        wait_until(at + between_looks(step, cost), target, interrupt);
    };
    match (last, ended) {
        (Some(observation), ended) => {
            let mut inspection = diagnose(observation);
            add_growth(&mut inspection, &tracker);
            Ok(Inspected { inspection, ended })
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(TargetError::Gone(target.pid)),
    }
}

/// Replaces the verdict by `growing` if memory in use grew over the watch, and otherwise says that it did not.
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
        format!("too few looks to tell whether it grows ({count} in {time})")
    } else {
        format!("what is in use did not grow in {time} ({count} looks)")
    });
}

/// Waits until a moment, until the target ends, or until a signal.
pub(super) fn wait_until(next: Instant, target: &Target, interrupt: &AtomicBool) {
    const STEP: Duration = Duration::from_millis(50);
    while !interrupt.load(Ordering::Relaxed) {
        let rest = next.saturating_duration_since(Instant::now());
        if rest.is_zero() || target.ends_within(rest.min(STEP)) {
            return;
        }
    }
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
    // Where a permission is missing, the error after this names the next step.
    if found.observation.unreadable.is_some() {
        return Ok(());
    }
    output.text(&format!("next: {}\n", next(found, service)))?;
    output.text(&to_paste(found, service))
}

/// What is missing, and the command that was given with what it takes.
pub(super) fn not_permitted(what: Unreadable, pid: u32, again: &str) -> Failure {
    let what = match what {
        Unreadable::Maps => "whose the bytes are",
        Unreadable::Memory => "what the heap holds",
    };
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let uid = Status::parse(&String::from_utf8_lossy(&status)).map(|status| status.uid);
    let needed = if uid.is_ok_and(|uid| uid == rustix::process::geteuid().as_raw()) {
        // Yama aside, this is what `PR_SET_DUMPABLE` does, and a setuid program.
        "CAP_SYS_PTRACE: it lets not even its own user look"
    } else {
        "CAP_SYS_PTRACE, or to be its user"
    };
    let scope = match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(text) if text.trim() != "0" => {
            format!("; kernel.yama.ptrace_scope is {}, which asks for the capability", text.trim())
        }
        _ => String::new(),
    };
    let sentence = format!("{what} of process {pid} may not be seen: that takes {needed}{scope}");
    Failure::new(Exit::NotPermitted, sentence).next(format!("sudo {again}"))
}

/// The command that was given.
fn again(args: &InspectArgs) -> String {
    let mut words = vec!["lowtide inspect".to_owned()];
    if args.arenas {
        words.push("--arenas".to_owned());
    }
    words.extend(args.watch.iter().map(|time| format!("--watch {time}")));
    words.extend(args.selector.words());
    words.join(" ")
}

/// How lowtide ends where a process cannot be looked at.
fn error_exit(error: &TargetError) -> Exit {
    match error {
        TargetError::NoSuchProcess(_) | TargetError::Zombie(_) | TargetError::Gone(_) => Exit::Gone,
        TargetError::KernelThread(_) => Exit::Usage,
        TargetError::Other(_, error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Exit::NotPermitted
        }
        TargetError::Replaced(_)
        | TargetError::FirstThreadEnded(_)
        | TargetError::Blocked(_)
        | TargetError::Other(..) => Exit::Failed,
    }
}

/// A process that cannot be looked at.
pub(super) fn failure(error: &TargetError, again: &str) -> Failure {
    let failure = Failure::new(error_exit(error), error);
    match failure.exit() {
        Exit::NotPermitted => failure.next(format!("sudo {again}")),
        _ => failure,
    }
}

//! `lowtide release PID…`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::ForkedMemory;
use lowtide_model::release::{Collected, Hazard, Method, Regained, Release, ReleaseOutcome};
use lowtide_probe::inspect::{Footprint, Inspector, Proportion, shared_after_fork};
use lowtide_probe::permission::Access;
use lowtide_probe::proc::status::Status;
use lowtide_probe::process::ProcReader;
use lowtide_probe::target::Target;
use lowtide_release::{
    Hold, Options, PeriodicThread, ReleaseError, ReleaseProgress, collect, release,
};
use lowtide_report::group::processes;
use lowtide_report::release as picture;
use lowtide_report::text::{printable, shortened};

use crate::args::{MethodChoice, ReleaseArgs};
use crate::console::bar::on_stderr;
use crate::console::output::{Output, note};
use crate::console::{interrupt, question};
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;
use crate::failure::target_error::{self, as_root, failure};
use crate::select::each_process::{Outcome, each_process};
use crate::select::group::{self, Group};
use crate::select::selector::Selected;
use crate::select::wait::wait_until;
use crate::shell::quoted;

/// Time between two attempts with `--wait`.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Time after which a release shows its progress.
const SILENCE: Duration = Duration::from_secs(1);
/// Time between two updates of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ReleaseArgs, output: &Output) -> Result<Exit, Failure> {
    let mut options = options(args)?;
    if args.method == MethodChoice::Trim && !args.dry_run {
        note!(
            "lowtide: malloc_trim holds each arena's lock without a bound (hundreds of ms for 3 GB), and \
             threads that need the arena wait for it: use it for comparison only; --method chunks \
             holds each lock for a bounded time"
        );
    }
    let pids = args.selector.select()?;
    if args.selector.is_group() && !args.dry_run && !args.yes && !is_wanted(&pids)? {
        return Ok(Exit::Done);
    }
    // From here on, the first Ctrl-C stops a running release once it has left nothing in the
    // process.
    let interrupt = interrupt::flag();
    options.interrupt = Arc::clone(&interrupt);
    let again = Rerun::typed();
    let has_totals = args.selector.has_totals(pids.len(), output);
    // Each release also changes the PSS of the others.
    let proportion = |selected: &Selected| {
        let target = Target::open(selected.pid).ok()?;
        Some((selected.pid, group::proportion(&target)?))
    };
    let pss_before = pids.iter().filter(|_| has_totals).filter_map(proportion).collect();
    let releaser = ReleaseRunner {
        args,
        again,
        options,
        has_totals,
        pss_before,
        interrupt: &interrupt,
        output,
    };
    let mut group = Group::default();
    let exit =
        each_process(&args.selector, &pids, &mut group, &interrupt, output, |pid, group| {
            releaser.on(pid, group)
        })?;
    if has_totals {
        group.print(output)?;
    }
    Ok(exit)
}

/// Maximum length of a command in the list before a question, in characters.
const MAX_COMMAND: usize = 68;
/// Divisor of RSS for the least release after which a policy is worth starting.
const WORTH: u64 = 100;

/// Lists the selected processes, and asks whether to release their memory.
fn is_wanted(pids: &[Selected]) -> Result<bool, Failure> {
    let processes = processes(pids.len() as u64);
    if !question::can_ask() {
        let message = format!(
            "the release from {processes} needs a confirmation, and there is no terminal for it: add --yes to \
             release without one"
        );
        return Err(Failure::usage(message).next(Rerun::typed().without("watch").with("dry-run")));
    }
    for Selected { pid, .. } in pids {
        let command = ProcReader::open(*pid).ok().flatten().map(|(process, _)| process.command());
        let command = printable(&command.unwrap_or_default().join(" "));
        note!("{pid:>8}  {}", shortened(&command, MAX_COMMAND));
    }
    Ok(question::ask(&format!("Release free memory of {processes}?"), Duration::MAX))
}

fn options(args: &ReleaseArgs) -> Result<Options, Failure> {
    if args.method == MethodChoice::Purge && !args.unbounded {
        return Err(Failure::usage(
            "--method purge: the purge function of an allocator can pause threads without a bound: --unbounded \
             permits that",
        ));
    }
    Ok(Options {
        max_pause: args.max_pause,
        method: match args.method {
            MethodChoice::Auto => None,
            MethodChoice::Chunks => Some(Method::Chunks),
            MethodChoice::Trim => Some(Method::Trim),
            MethodChoice::Purge => Some(Method::Purge),
        },
        untested: args.untested,
        dry_run: args.dry_run,
        patience: args.deadline.patience(),
        ..Options::default()
    })
}

/// The release from each selected process.
struct ReleaseRunner<'a> {
    args: &'a ReleaseArgs,
    again: Rerun,
    options: Options,
    has_totals: bool,
    /// The PSS of each process before the first release, for the totals.
    pss_before: BTreeMap<u32, Proportion>,
    interrupt: &'a AtomicBool,
    output: &'a Output,
}

impl ReleaseRunner<'_> {
    /// Releases the memory of one process. The outer error means that stdout cannot be written: the
    /// caller must then stop.
    fn on(&self, pid: u32, group: &mut Group) -> Result<Outcome, Failure> {
        let again = self.again.only(pid);
        let target = match Target::open(pid) {
            Ok(target) => target,
            Err(error) => return Ok(Err(failure(&error, &again))),
        };
        let line = ProgressLine::start(&self.options.progress);
        let shared_before = shared_after_fork(&target);
        let family = shared_before.as_ref().and_then(|forked| forked.parent).unwrap_or(pid);
        let done = self.release(&target);
        drop(line);
        let mut done = match done {
            Ok(done) => done,
            Err(error) => return Ok(Err(not_done(error, pid, &again))),
        };
        if matches!(done.outcome, ReleaseOutcome::Released | ReleaseOutcome::Partial) {
            add_shared(&mut done, shared_before, &target);
        }
        if self.has_totals {
            group.add_release(&target, &done, self.pss_before.get(&pid).copied());
        }
        if self.output.json {
            self.watch(&target, &mut done);
            self.output.object(&done)?;
        } else {
            self.show(&target, &mut done, family)?;
        }
        let failure = match done.outcome {
            ReleaseOutcome::Released | ReleaseOutcome::NothingToRelease => {
                return Ok(Ok(Exit::Done));
            }
            ReleaseOutcome::Refused => refused(&done, &again, &self.options.hold),
            ReleaseOutcome::Partial => {
                let sentence = format!("process {pid}: {}", picture::sentence(&done));
                let exit = match self.interrupt.load(Ordering::Relaxed) {
                    true => Exit::Interrupted,
                    false => Exit::Failed,
                };
                Failure::new(exit, sentence).next(again)
            }
        };
        // The printed object is the result; this line repeats it for people.
        note!("lowtide: {failure}");
        Ok(Ok(failure.exit()))
    }

    /// Lets the runtime collect if that was asked for, and releases. Retries after a refusal that
    /// may pass.
    fn release(&self, target: &Target) -> Result<Release, ReleaseError> {
        let begin = Instant::now();
        let mut collected = None;
        loop {
            let mut refused = None;
            if self.args.collect && collected.is_none() {
                match self.collect(target)? {
                    Ok(done) => collected = Some(done),
                    Err(release) => refused = Some(*release),
                }
            }
            let mut done = match refused {
                Some(refused) => refused,
                None => release(target, &self.options)?,
            };
            done.collected.clone_from(&collected);
            let may_pass = done.may_pass == Some(true);
            let rest = self.args.wait.unwrap_or_default().saturating_sub(begin.elapsed());
            if !may_pass || rest.is_zero() || self.interrupt.load(Ordering::Relaxed) {
                return Ok(done);
            }
            wait_until(Instant::now() + RETRY_INTERVAL.min(rest), target, self.interrupt);
        }
    }

    fn collect(&self, target: &Target) -> Result<Result<Collected, Box<Release>>, ReleaseError> {
        collect(target, &self.options, &mut |before| {
            if !self.args.dry_run {
                note!("lowtide: process {}: {}", target.pid, picture::collects(before));
            }
        })
    }

    /// Prints the release as text, then measures how much memory comes back. `family` is the
    /// process from which it was forked, or itself.
    fn show(&self, target: &Target, done: &mut Release, family: u32) -> Result<(), Failure> {
        if done.outcome == ReleaseOutcome::Refused && done.collected.is_none() {
            return Ok(());
        }
        let screen = self.output.screen();
        self.output.text(&picture::render(done, screen))?;
        let printed = done.notes.len();
        self.watch(target, done);
        if let Some(regained) = &done.regained {
            self.output.text(&picture::regained(regained, screen))?;
        }
        for note in &done.notes[printed..] {
            self.output.text(&format!("note: {note}\n"))?;
        }
        match next(done, &self.again, family) {
            Some(next) => self.output.text(&format!("next: {next}\n")),
            None => Ok(()),
        }
    }

    /// Waits, and measures how much memory has come back.
    fn watch(&self, target: &Target, done: &mut Release) {
        let is_done = matches!(done.outcome, ReleaseOutcome::Released | ReleaseOutcome::Partial);
        let Some(time) = self.args.watch.filter(|_| is_done && !done.dry_run) else { return };
        match self.regained(target, time) {
            Ok(regained) => done.regained = Some(regained),
            Err(why) => {
                done.notes.push(format!("cannot determine how much memory has come back: {why}"))
            }
        }
    }

    fn regained(&self, target: &Target, time: Duration) -> Result<Regained, String> {
        let text = |error: lowtide_probe::target::TargetError| error.to_string();
        let begin = Instant::now();
        let before = Footprint::read(target).map_err(text)?;
        wait_until(begin + time, target, self.interrupt);
        let after = Footprint::read(target).map_err(text)?;
        if after.image != before.image {
            return Err(format!("process {} executed another program", target.pid));
        }
        let huge = after.huge_bytes.zip(before.huge_bytes);
        Ok(Regained {
            after_s: begin.elapsed().as_secs_f64(),
            rss_bytes: after.rss_bytes.saturating_sub(before.rss_bytes),
            huge_bytes: huge.map(|(after, before)| after.saturating_sub(before)),
        })
    }
}

/// A progress line on the terminal, for a release that takes longer than [`SILENCE`].
struct ProgressLine {
    _line: Option<PeriodicThread>,
}

impl ProgressLine {
    fn start(progress: &Arc<ReleaseProgress>) -> Self {
        let (begin, progress) = (Instant::now(), Arc::clone(progress));
        let mut bar = None;
        let draw = move || {
            if begin.elapsed() >= SILENCE {
                let bar: &mut Option<ProgressBar> = bar.get_or_insert_with(|| {
                    let bar = on_stderr(None, "{msg}");
                    bar.map(|bar| bar.with_finish(ProgressFinish::AndClear))
                });
                if let Some(bar) = bar {
                    let seconds = HumanSeconds(begin.elapsed().as_secs_f64());
                    bar.set_message(format!("{} ({seconds})", progress.text()));
                    bar.tick();
                }
            }
            true
        };
        Self { _line: PeriodicThread::start(PROGRESS_INTERVAL, draw).ok() }
    }
}

/// Returns the command to run next after a release that was not refused and did not fail. `family`
/// is the process from which this one was forked, or this one.
pub(super) fn next(done: &Release, again: &Rerun, family: u32) -> Option<String> {
    let pid = done.pid;
    match done.outcome {
        // The failure that follows has the next step, and nothing to release ends the path.
        ReleaseOutcome::Refused | ReleaseOutcome::Partial | ReleaseOutcome::NothingToRelease => {
            None
        }
        ReleaseOutcome::Released if done.dry_run => {
            Some(again.only(pid).without("dry-run").to_string())
        }
        // With all of them selected, the others follow.
        ReleaseOutcome::Released if is_mostly_shared(done) => {
            let remark = "all processes that share these pages";
            let next = format!("lowtide release --subprocesses {family}     ({remark})");
            (!again.has("subprocesses")).then_some(next)
        }
        ReleaseOutcome::Released if done.returned_bytes == 0 => None,
        // Most of it is held for another reason.
        ReleaseOutcome::Released if done.returned_bytes < done.rss_before_bytes / WORTH => {
            Some(format!("lowtide inspect {}     (what holds the rest)", done.pid))
        }
        ReleaseOutcome::Released => Some(attach(done)),
    }
}

/// Returns whether the machine has gained less than half of what was returned.
fn is_mostly_shared(done: &Release) -> bool {
    done.shared_bytes.is_some_and(|shared| shared > done.returned_bytes / 2)
}

/// Adds the part of a release that other processes still map after a fork. `before` is what it
/// shared before.
fn add_shared(done: &mut Release, before: Option<ForkedMemory>, target: &Target) {
    let Some(before) = before else { return };
    let shared = match done.dry_run {
        true => {
            let mut inspector = Inspector::default().with_details().without_predictions();
            let found = inspector.inspect(target).ok();
            let shared = found.and_then(|found| found.forked?.free_shared_bytes);
            shared.map(|shared| shared.min(done.predicted_bytes))
        }
        false => shared_after_fork(target).map(|now| {
            let returned = before.shared_bytes.saturating_sub(now.shared_bytes);
            returned.min(done.returned_bytes)
        }),
    };
    done.shared_bytes = shared;
    done.shared_with = shared.map(|_| before.processes);
}

/// Returns the command that returns free memory whenever it comes back, for the allocators whose
/// memory was released.
fn attach(done: &Release) -> String {
    let mut names: Vec<&str> = done.heaps.iter().map(|heap| heap.allocator.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let allocators = match names[..] {
        [] | ["glibc"] => String::new(),
        _ => format!("--allocators {} ", names.join(",")),
    };
    format!("lowtide attach {allocators}{}     (returns it again when it comes back)", done.pid)
}

/// Returns the failure for a refused release, with a command that helps.
pub(super) fn refused(done: &Release, again: &Rerun, hold: &Hold) -> Failure {
    let pid = done.pid;
    let sentence = format!("process {pid}: {}", picture::sentence(done));
    let next = match done.hazard {
        Some(Hazard::Held) => format!("ls -l {}", quoted(&hold.path().to_string_lossy())),
        Some(Hazard::Traced) => format!("grep TracerPid /proc/{pid}/status"),
        Some(Hazard::Stopped) => format!("kill -CONT {pid} && {again}"),
        Some(Hazard::Frozen) => format!("cat /proc/{pid}/cgroup"),
        Some(
            Hazard::AnotherRelease
            | Hazard::HeapNotWhole
            | Hazard::LockTaken
            | Hazard::NoCollection
            | Hazard::NoThread
            | Hazard::SharedMemory,
        ) if done.may_pass == Some(true) && !again.has("wait") => {
            again.with_value("wait", "30s").to_string()
        }
        Some(Hazard::Untested) => again.with("untested").to_string(),
        Some(Hazard::NoTrim) => again.with_value("method", "chunks").to_string(),
        Some(Hazard::NoCollection) => again.without("collect").to_string(),
        Some(Hazard::NoPurge) => again.with_value("method", "chunks").to_string(),
        // No capability permits a filtered process, as in a container, to read the filters of
        // others.
        Some(Hazard::SeccompUnread) if Status::own().is_ok_and(|own| own.seccomp != 0) => {
            "lowtide run -- COMMAND     (starts the service with the same filters as lowtide)"
                .to_owned()
        }
        Some(Hazard::SeccompUnread) => format!("sudo {again}"),
        // No other allocator can take the place of theirs; the inspection has what helps.
        Some(Hazard::Allocator | Hazard::Sanitizer) => format!("lowtide inspect {pid} --why"),
        // An inspection would lead back to this release.
        _ => "lowtide study -- CMD     (settings and allocators that keep less; CMD: the command that starts it)"
            .to_owned(),
    };
    Failure::new(Exit::Refused, sentence).next(next)
}

/// Returns the failure for a release that could not be attempted, or was aborted.
fn not_done(error: ReleaseError, pid: u32, again: &Rerun) -> Failure {
    match error {
        ReleaseError::Target(error) => target_error::refused(&error, Access::Trace, again),
        ReleaseError::Ended(_) => Failure::new(Exit::Gone, error),
        ReleaseError::Replaced(_) => Failure::failed(error),
        ReleaseError::NotPermitted { .. } => {
            as_root(Failure::new(Exit::NotPermitted, error), again)
        }
        ReleaseError::Interrupted => {
            Failure::new(Exit::Interrupted, format!("process {pid}: {error}"))
        }
        ReleaseError::Failed(what) => Failure::failed(format!("process {pid}: {what}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn args(words: &str) -> ReleaseArgs {
        match Cli::parse_from(format!("lowtide release {words}").split(' ')).verb {
            Verb::Release(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn regained_memory_is_measured_until_an_interrupt_or_the_end_of_the_process() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        // Before it sleeps, it may still be starting its program.
        while target.stat().unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let (args, interrupt) = (args("7"), AtomicBool::new(true));
        let output = Output::new(true, clap::ColorChoice::Never);
        let options = Options::default();
        let releaser = ReleaseRunner {
            args: &args,
            again: Rerun::typed(),
            options,
            has_totals: false,
            pss_before: BTreeMap::new(),
            interrupt: &interrupt,
            output: &output,
        };
        let hour = Duration::from_secs(3600);
        // It was interrupted, and reports the growth so far.
        assert!(releaser.regained(&target, hour).unwrap().after_s < 3600.0);
        child.kill().unwrap();
        child.wait().unwrap();
        let why = releaser.regained(&target, hour).unwrap_err();
        assert!(why.contains("ended"), "{why}");
    }
}

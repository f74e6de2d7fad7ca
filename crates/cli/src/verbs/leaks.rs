//! `lowtide leaks PID`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::Look;
use lowtide_leaks::schedule::interval;
use lowtide_leaks::stacks::refusal::NoStacks;
use lowtide_leaks::stacks::sampler::{Attachment, StackSampler};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{LeakKind, LeakReport};
use lowtide_probe::permission;
use lowtide_probe::target::{Target, TargetError};
use lowtide_report::leaks::{folded, pprof, render};

use crate::args::LeaksArgs;
use crate::exit::{Exit, Failure};
use crate::output::{Output, note};
use crate::patient_finder::PatientFinder;
use crate::target_error::failure;
use crate::verbs::leaks_record::LeaksRecord;
use crate::wait::wait_until;
use crate::{interrupt, rerun};

/// Time after which provisional verdicts are printed.
const PROVISIONAL: Duration = Duration::from_secs(30);
/// Maximum time of the search for pointers at the end.
const MAX_SEARCH: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &LeaksArgs, output: &Output) -> Result<Exit, Failure> {
    check(args)?;
    let again = rerun::leaks(args);
    let fails = |error: &TargetError| match failure(error, &again) {
        failure if failure.exit() == Exit::NotPermitted => not_permitted(args.pid, &again),
        failure => failure,
    };
    let target = Target::open(args.pid).map_err(|error| fails(&error))?;
    let mut record = args.output.as_deref().map(LeaksRecord::create).transpose()?;
    let mut profile = args.pprof.as_deref().map(LeaksRecord::create).transpose()?;
    let interrupt = interrupt::flag();
    let mut watch = Watch::open(args, &target).map_err(|error| fails(&error))?;
    if let Some(reason) = watch.no_stacks.as_ref().filter(|_| args.stacks) {
        return Err(without_stacks(args.pid, reason, &again));
    }
    let ended = watch.run(&target, &interrupt, record.as_mut())?;
    if ended.is_none() {
        watch.seek(!interrupt.load(Ordering::Relaxed));
    }
    let Some(report) = watch.report() else {
        return Err(fails(&ended.unwrap_or(TargetError::Blocked(args.pid))));
    };
    if let Some(record) = &mut record {
        record.write(&report)?;
    }
    if let Some(profile) = &mut profile {
        profile.write_bytes(&pprof(&report))?;
    }
    if output.json {
        output.object(&report)?;
    } else if args.folded {
        output.text(&folded(&report))?;
        if report.groups.iter().all(|group| group.stacks.is_empty()) {
            let note = report.notes.iter().find(|note| note.starts_with(NO_STACKS));
            note!("lowtide: {}", note.map_or("no stacks of surviving blocks", |note| note));
        }
    } else {
        output.text(&render(&report, output.screen()))?;
    }
    if let Some(record) = record {
        let path = record.finish()?;
        note!("wrote {0}\n  next: lowtide report {0}", path.display());
    }
    if let Some(profile) = profile {
        let path = profile.finish()?;
        note!("wrote {0}\n  next: go tool pprof -top {0}", path.display());
    }
    match ended {
        Some(error) => {
            let failure = fails(&error);
            note!("lowtide: {failure}");
            Ok(failure.exit())
        }
        None => Ok(Exit::Done),
    }
}

/// Prefix of the note that explains why there are no stacks.
const NO_STACKS: &str = "no stacks: ";
/// Time for which calls to the allocation site of a leak are counted.
const COUNT_CALLS: Duration = Duration::from_secs(5);

fn without_stacks(pid: u32, reason: &NoStacks, again: &str) -> Failure {
    let sentence = format!("cannot take the stacks of allocations of process {pid}: {reason}");
    let without = again.replace(" --stacks", " --no-stacks");
    match reason {
        NoStacks::NotPermitted => {
            Failure::new(Exit::NotPermitted, sentence).next(format!("sudo {again}"))
        }
        NoStacks::Go | NoStacks::ShadowStack | NoStacks::Filters => {
            Failure::new(Exit::Refused, sentence).next(without)
        }
        _ => Failure::failed(sentence).next(without),
    }
}

/// Checks the flags that depend on each other.
fn check(args: &LeaksArgs) -> Result<(), Failure> {
    let (Some(older), Some(duration)) = (&args.older, &args.duration) else { return Ok(()) };
    if older.value >= duration.value {
        return Err(Failure::usage(format!(
            "--older {older} is not shorter than --duration {duration}: no block would be old enough"
        ))
        .next(format!("lowtide leaks --older {older} {}", args.pid)));
    }
    Ok(())
}

fn unreadable(pid: u32, allocator: &str) -> Failure {
    Failure::failed(format!(
        "cannot read the heap of process {pid} block by block: it is managed by {allocator}, or there is none"
    ))
    .next(format!("lowtide inspect --watch 1m {pid}"))
}

fn not_permitted(pid: u32, again: &str) -> Failure {
    let needed = if permission::is_own(pid) {
        "CAP_SYS_PTRACE, because the process is not dumpable or kernel.yama.ptrace_scope forbids it"
    } else {
        "CAP_SYS_PTRACE, or running lowtide as the user of the process"
    };
    let sentence = format!("cannot read the memory of process {pid}: this requires {needed}");
    Failure::new(Exit::NotPermitted, sentence).next(format!("sudo {again}"))
}

/// The watch of one process.
struct Watch<'a> {
    args: &'a LeaksArgs,
    finder: PatientFinder,
    /// Absent if no stacks are taken.
    stacks: Option<StackSampler>,
    /// The reason why no stacks are taken, if stacks were not disabled.
    no_stacks: Option<NoStacks>,
    begin: Instant,
    /// The verdict that was printed last.
    printed: Option<LeakKind>,
}

impl<'a> Watch<'a> {
    fn open(args: &'a LeaksArgs, target: &Target) -> Result<Self, TargetError> {
        let finder = PatientFinder::open(target)?;
        let begin = Instant::now();
        let mut watch = Self { args, finder, stacks: None, no_stacks: None, begin, printed: None };
        watch.sample(target);
        watch.begin = Instant::now();
        Ok(watch)
    }

    /// Starts to take stacks, unless they are disabled or unavailable.
    fn sample(&mut self, target: &Target) {
        if self.args.no_stacks {
            return;
        }
        match StackSampler::start(target, self.args.overhead, &Attachment::ALL) {
            Ok(sampler) => self.stacks = Some(sampler),
            Err(reason) => self.no_stacks = Some(reason),
        }
    }

    /// Takes snapshots until the time is over, a signal arrives, or the process ends. Returns the error if
    /// the process has ended.
    fn run(
        &mut self,
        target: &Target,
        interrupt: &AtomicBool,
        mut record: Option<&mut LeaksRecord>,
    ) -> Result<Option<TargetError>, Failure> {
        let duration = self.args.duration.as_ref().map(|duration| duration.value);
        loop {
            let at = Instant::now();
            let elapsed = at - self.begin;
            let t_s = elapsed.as_secs_f64();
            let look = match self.finder.patiently(move |finder| finder.look(t_s)) {
                Ok(look) => look,
                Err(TargetError::Replaced(_)) if target.is_alive() => {
                    note!(
                        "lowtide: process {} executed another program; starting over",
                        target.pid
                    );
                    match PatientFinder::open(target) {
                        Ok(finder) => self.finder = finder,
                        Err(error) => return Ok(Some(error)),
                    }
                    (self.stacks, self.no_stacks) = (None, None);
                    self.sample(target);
                    self.begin = Instant::now();
                    Look { cpu_s: 0.0, is_whole: false, unreadable: None }
                }
                Err(error) => return Ok(Some(error)),
            };
            if let Some(allocator) = look.unreadable {
                return Err(unreadable(target.pid, &allocator));
            }
            self.show_progress(&mut record)?;
            if interrupt.load(Ordering::Relaxed) || duration.is_some_and(|most| elapsed >= most) {
                return Ok(None);
            }
            let every = self.args.every.as_ref().map(|every| every.value);
            let cost = Duration::try_from_secs_f64(look.cpu_s).unwrap_or_default();
            let end = duration.map(|most| self.begin + most);
            let next = at + interval(every, elapsed, cost);
            wait_until(end.map_or(next, |end| next.min(end)), target, interrupt);
            if interrupt.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
    }

    /// Determines which blocks grow, whether they are reachable, and where they are allocated.
    fn seek(&mut self, counts_calls: bool) {
        let older_s = self.older_s();
        let with_text = self.args.content;
        let samples = self.stacks.take().and_then(|sampler| match sampler.finish() {
            Ok(samples) => Some(samples),
            Err(reason) => {
                self.no_stacks = Some(reason);
                None
            }
        });
        let count_calls = counts_calls.then_some(COUNT_CALLS);
        let sought = self.finder.patiently(move |finder| {
            let over = Arc::new(AtomicBool::new(false));
            let (done, is_done) = channel::<()>();
            let flag = Arc::clone(&over);
            let timer = thread::spawn(move || {
                if is_done.recv_timeout(MAX_SEARCH) == Err(RecvTimeoutError::Timeout) {
                    flag.store(true, Ordering::Relaxed);
                }
            });
            let samples = samples.as_ref();
            let search = Search { with_text, interrupt: &over, samples, count_calls };
            let sought = finder.seek(older_s, &search);
            drop(done);
            let _ = timer.join();
            sought
        });
        // The report then covers the snapshots only.
        if let Err(error) = sought {
            note!("lowtide: the search for pointers failed: {error}");
        }
    }

    fn older_s(&self) -> Option<f64> {
        self.args.older.as_ref().map(|older| older.value.as_secs_f64())
    }

    fn report(&self) -> Option<LeakReport> {
        let mut report = self.finder.get()?.report(self.older_s(), self.args.top);
        report.notes.extend(self.no_stacks.as_ref().map(|reason| format!("{NO_STACKS}{reason}")));
        Some(report)
    }

    /// Prints the verdict so far if it has changed, and adds it to the record.
    fn show_progress(&mut self, record: &mut Option<&mut LeaksRecord>) -> Result<(), Failure> {
        if self.begin.elapsed() < PROVISIONAL && record.is_none() {
            return Ok(());
        }
        let Some(report) = self.report() else { return Ok(()) };
        if let Some(record) = record {
            record.write(&report)?;
        }
        let kind = report.verdict.kind;
        if self.begin.elapsed() >= PROVISIONAL && self.printed.replace(kind) != Some(kind) {
            let rate = match report.bytes_per_hour {
                0 => String::new(),
                bytes => format!(", {} an hour", Human(bytes)),
            };
            let time = HumanSeconds(report.elapsed_s);
            note!("after {time}, {} snapshots: {}{rate}", report.looks, kind.name());
        }
        Ok(())
    }
}

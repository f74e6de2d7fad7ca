//! `lowtide leaks PID`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_analysis::leaks::{doubt, large_blocks, reconcile, without_blocks};
use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::Look;
use lowtide_leaks::schedule::Schedule;
use lowtide_leaks::stacks::mappings::MappingSampler;
use lowtide_leaks::stacks::refusal::NoStacks;
use lowtide_leaks::stacks::sampler::{Attachment, StackSampler};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::Growth;
use lowtide_model::leaks::{LeakKind, LeakReport, LeakStack, LeakVerdict};
use lowtide_model::ledger::Owner;
use lowtide_model::number::counted;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::process_cpu_s;
use lowtide_probe::patience::{OwnTime, Patience};
use lowtide_probe::permission::{Access, required};
use lowtide_probe::proc::task::Thread;
use lowtide_probe::standstill::Standstill;
use lowtide_probe::target::{Target, TargetError};
use lowtide_report::divide::divide_growth;
use lowtide_report::leaks::{folded, pprof, render};

use crate::args::LeaksArgs;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;
use crate::failure::target_error::{as_root, failure, note_thread};
use crate::select::patient_finder::PatientFinder;
use crate::verbs::leaks_record::LeaksRecord;
use crate::watcher::whole::WholeProcess;

/// Time after which provisional verdicts are printed.
const PROVISIONAL: Duration = Duration::from_secs(30);
/// Maximum length of a run in which the process executes program after program, in multiples of
/// --duration.
const EXTENDED: u32 = 2;
/// Minimum part of the growth that the program mapped itself, for the code that did it to be named.
const MIN_MAPPED: f64 = 0.1;
/// Maximum time of the search for pointers at the end, in seconds,
const MAX_SEARCH_S: f64 = 30.0;
/// and what is added to it for each GiB of the process.
const MAX_SEARCH_OF_GIB_S: f64 = 10.0;

pub(crate) fn run(args: &LeaksArgs, output: &Output) -> Result<Exit, Failure> {
    let again = Rerun::typed();
    check(args, &again)?;
    let fails = |error: &TargetError| match failure(error, &again) {
        failure if matches!(error, TargetError::Hidden(_)) => failure,
        failure if failure.exit() == Exit::NotPermitted => not_permitted(args.pid, &again),
        failure => failure,
    };
    let target = Target::open_to_read(args.pid).map_err(|error| fails(&error))?;
    note_thread(&target);
    let interrupt = interrupt::flag();
    let mut watch = Watch::open(args, &target).map_err(|error| fails(&error))?;
    if let Some(reason) = watch.no_stacks.as_ref().filter(|_| args.stacks) {
        return Err(without_stacks(args.pid, reason, &again, Some("no-stacks")));
    }
    // Files must not exist, so none is left behind by a run that could not begin.
    let mut record = args.output.as_deref().map(LeaksRecord::create).transpose()?;
    let mut profile = args.pprof.as_deref().map(LeaksRecord::create).transpose()?;
    let ended = watch.run(&target, &interrupt, record.as_mut())?;
    if ended.is_none() {
        watch.seek(&target, !interrupt.load(Ordering::Relaxed));
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
            let why = watch.why_no_stacks();
            note!("lowtide: {}", why.as_deref().unwrap_or("no stacks of surviving blocks"));
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

/// Time for which calls to the allocation site of a leak are counted.
const COUNT_CALLS: Duration = Duration::from_secs(5);

/// Returns the failure of a command whose stacks cannot be taken. `instead` is the flag of the
/// command without them.
pub(super) fn without_stacks(
    pid: u32,
    reason: &NoStacks,
    again: &Rerun,
    instead: Option<&str>,
) -> Failure {
    let sentence = format!("cannot take the stacks of allocations of process {pid}: {reason}");
    let without =
        ["stacks", "folded", "pprof"].iter().fold(again.clone(), |again, flag| again.without(flag));
    let without = match instead {
        Some(flag) => without.with(flag),
        None => without,
    };
    match reason {
        NoStacks::NotPermitted | NoStacks::Administrator => {
            as_root(Failure::new(Exit::NotPermitted, sentence), again)
        }
        NoStacks::Forbidden => Failure::new(Exit::NotPermitted, sentence).next(without),
        NoStacks::LockedMemory => Failure::new(Exit::NotPermitted, sentence)
            .next(format!("ulimit -l unlimited && {again}")),
        NoStacks::Go | NoStacks::ShadowStack | NoStacks::Filters => {
            Failure::new(Exit::Refused, sentence).next(without)
        }
        _ => Failure::failed(sentence).next(without),
    }
}

/// Checks the flags that depend on each other.
fn check(args: &LeaksArgs, again: &Rerun) -> Result<(), Failure> {
    let (Some(older), Some(duration)) = (&args.older, &args.duration) else { return Ok(()) };
    if older >= duration {
        return Err(Failure::usage(format!(
            "{} is not shorter than {}: no block would be old enough",
            again.flag("older"),
            again.flag("duration")
        ))
        .next(again.without("duration")));
    }
    Ok(())
}

/// Returns whether memory that the program mapped itself is a noticeable part of the growth.
fn has_grown_mappings(growth: &Growth) -> bool {
    let mapped = growth.by.iter().filter(|part| part.owner == Owner::AnonymousOther.key());
    let bytes: i64 = mapped.map(|part| part.bytes).sum();
    bytes > 0 && bytes as f64 >= MIN_MAPPED * growth.kept_bytes() as f64
}

/// Returns a line on the verdict so far.
fn progress(report: &LeakReport) -> String {
    let rate = match report.bytes_per_hour {
        0 => String::new(),
        bytes => format!(", {} an hour", Human(bytes)),
    };
    let time = HumanSeconds(report.elapsed_s);
    let snapshots = match report.looks {
        0 => String::new(),
        looks => format!(", {}", counted(looks, "snapshot")),
    };
    format!("after {time}{snapshots}: {}{rate}", report.verdict.kind.name())
}

fn not_permitted(pid: u32, again: &Rerun) -> Failure {
    let required = required(pid, Access::Read);
    let sentence = format!("cannot read the memory of process {pid}: this requires {required}");
    as_root(Failure::new(Exit::NotPermitted, sentence), again)
}

/// Returns the maximum time of a search in a process.
fn max_search(target: &Target) -> Duration {
    let rss_bytes = target.status().map_or(0, |status| status.rss_bytes());
    let gib = rss_bytes as f64 / f64::from(1 << 30);
    Duration::from_secs_f64(MAX_SEARCH_S + gib * MAX_SEARCH_OF_GIB_S)
}

/// The watch of one process.
struct Watch<'a> {
    args: &'a LeaksArgs,
    finder: PatientFinder,
    inspector: Inspector,
    whole: WholeProcess,
    next_observation: Instant,
    /// Absent if no stacks are taken.
    stacks: Option<StackSampler>,
    /// The reason why no stacks are taken, if stacks were not disabled.
    no_stacks: Option<NoStacks>,
    /// Samples the code that maps memory; absent if no stacks are taken, or it is not permitted.
    mappings: Option<MappingSampler>,
    mapped_by: Vec<LeakStack>,
    begin: Instant,
    /// Whether a snapshot has seen the whole heap.
    has_walked: bool,
    /// The allocator, if its heap cannot be read block by block.
    undivided: Option<String>,
    /// The verdict that was printed last.
    printed: Option<LeakKind>,
}

impl<'a> Watch<'a> {
    fn open(args: &'a LeaksArgs, target: &Target) -> Result<Self, TargetError> {
        let finder = PatientFinder::open(target)?;
        let begin = Instant::now();
        let inspector = Inspector::default().without_connections().without_predictions();
        let inspector = inspector.with_lazily_freed();
        let mut watch = Self {
            args,
            finder,
            inspector: inspector.with_patience(args.deadline.patience()),
            whole: WholeProcess::begin(target),
            next_observation: begin,
            stacks: None,
            no_stacks: None,
            mappings: None,
            mapped_by: Vec::new(),
            begin,
            has_walked: false,
            undivided: None,
            printed: None,
        };
        watch.observe(target);
        watch.sample(target);
        watch.begin = Instant::now();
        Ok(watch)
    }

    /// Inspects the process, which costs about as much as a snapshot.
    fn observe(&mut self, target: &Target) {
        let at = Instant::now();
        let cost = self.whole.observe(&mut self.inspector, target).unwrap_or_default();
        let elapsed = Duration::try_from_secs_f64(self.whole.elapsed_s()).unwrap_or_default();
        self.next_observation = at + Schedule::default().interval(elapsed, cost);
        self.read(target);
    }

    /// Takes the samples of RSS and of the code that maps memory.
    fn read(&mut self, target: &Target) {
        self.whole.read(target);
        if let Some(mappings) = &mut self.mappings {
            mappings.poll(target);
        }
    }

    /// Follows the whole process until a point in time, until it ends, or until a signal.
    fn follow_until(&mut self, end: Instant, target: &Target, interrupt: &AtomicBool) {
        loop {
            let next = self.next_observation.min(end);
            self.whole.read_until(next, target, interrupt);
            if next == end || interrupt.load(Ordering::Relaxed) || !target.is_alive() {
                return;
            }
            self.observe(target);
        }
    }

    /// Adds the growth of the process to a report, or marks it as uncertain if it is not known.
    fn complete(&self, report: &mut LeakReport, target: &Target) {
        // Beside the snapshots, also the search for pointers, the samples of stacks and of RSS.
        report.cpu_s = process_cpu_s();
        let ends = self.whole.ends();
        report.coverage = ends.map(|(_, last)| last.ledger.coverage());
        let Some(growth) = self.whole.growth(target) else {
            if let Some(kept_bytes) = self.whole.follower().kept_bytes() {
                doubt(report, kept_bytes);
            }
            return;
        };
        if has_grown_mappings(&growth) {
            report.mapped_by.clone_from(&self.mapped_by);
        }
        reconcile(report, growth, ends.and_then(|(first, last)| large_blocks(first, last)));
        if let Some(because) = self.whole.follower().growing()
            && report.verdict.kind == LeakKind::Level
        {
            report.verdict = LeakVerdict { kind: LeakKind::TooEarly, because };
        }
        self.consider_standstill(report, target);
        if report.verdict.kind == LeakKind::Elsewhere {
            let runtimes = ends.map_or(&[][..], |(_, last)| &last.runtimes);
            let growth = report.growth.as_ref();
            report.next = growth.and_then(|growth| divide_growth(growth, runtimes, report.pid));
        }
    }

    /// A process that did not run shows nothing: that is said, and the verdict `level` withdrawn if
    /// something kept it from running.
    fn consider_standstill(&self, report: &mut LeakReport, target: &Target) {
        let Some(standstill) = self.whole.standstill(target) else { return };
        if standstill.is_forced()
            && matches!(report.verdict.kind, LeakKind::Level | LeakKind::TooEarly)
        {
            report.verdict = LeakVerdict { kind: LeakKind::TooEarly, because: Vec::new() };
            if standstill == Standstill::Stopped {
                report.next = Some(format!("kill -CONT {0} && lowtide leaks {0}", target.pid));
            }
        }
        report.verdict.because.push(standstill.sentence(target.pid));
    }

    fn schedule(&self) -> Schedule {
        Schedule { every: self.args.every, duration: self.args.duration }
    }

    /// Prints how long the run takes, and how long a verdict needs.
    fn announce(&self, target: &Target) {
        let schedule = self.schedule();
        let needs = HumanSeconds(schedule.time_to_verdict().as_secs_f64());
        let pid = target.pid;
        match schedule.duration {
            Some(time) => {
                let is_short = time < schedule.time_to_verdict();
                let short =
                    format!("; a verdict on growth needs about {needs}, so it may be extended");
                let end = if is_short { short.as_str() } else { "" };
                let time = HumanSeconds(time.as_secs_f64());
                note!("lowtide: process {pid} is watched for {time}; Ctrl-C ends it earlier{end}");
            }
            None => note!(
                "lowtide: process {pid} is watched until Ctrl-C; a verdict on growth needs about {needs}"
            ),
        }
    }

    /// Starts to take stacks, unless they are disabled or unavailable.
    fn sample(&mut self, target: &Target) {
        if self.args.no_stacks {
            return;
        }
        self.mappings = MappingSampler::start(target);
        match StackSampler::start(target, self.args.overhead, &Attachment::ALL) {
            Ok(sampler) => self.stacks = Some(sampler),
            Err(reason) => self.no_stacks = Some(reason),
        }
    }

    /// Takes snapshots until the time is over, a signal arrives, or the process ends. Returns the
    /// error if the process has ended.
    fn run(
        &mut self,
        target: &Target,
        interrupt: &AtomicBool,
        mut record: Option<&mut LeaksRecord>,
    ) -> Result<Option<TargetError>, Failure> {
        let Schedule { mut duration, .. } = self.schedule();
        let (beginning, mut replaced) = (Instant::now(), false);
        self.announce(target);
        let patience = self.args.deadline.patience();
        loop {
            let at = Instant::now();
            let elapsed = at - self.begin;
            let t_s = elapsed.as_secs_f64();
            let look = match self.finder.patiently(patience, move |finder| finder.look(t_s)) {
                Ok(look) => look,
                Err(TargetError::Replaced(_)) if target.is_alive() => {
                    replaced = true;
                    if let Err(error) = self.start_over(target) {
                        return Ok(Some(error));
                    }
                    Look { cpu_s: 0.0, is_whole: false, unreadable: None }
                }
                Err(error) => return Ok(Some(error)),
            };
            self.has_walked |= look.is_whole;
            self.undivided = look.unreadable.filter(|_| !self.has_walked);
            if self.undivided.is_some() {
                self.stacks = None;
            }
            self.read(target);
            // It may end at any time.
            if Instant::now() >= self.next_observation {
                self.observe(target);
            }
            self.show_progress(&mut record)?;
            let cost = Duration::try_from_secs_f64(look.cpu_s).unwrap_or_default();
            let is_extended = duration != self.args.duration;
            // A process that executes program after program is watched for a bounded time, too.
            let most = self.args.duration.map(|most| most * EXTENDED);
            if replaced && most.is_some_and(|most| beginning.elapsed() >= most) {
                return Ok(None);
            }
            let is_over = duration.is_some_and(|most| elapsed >= most);
            if is_over && !is_extended && self.is_too_early() {
                let most = self.schedule().extended(elapsed, cost);
                duration = Some(most);
                let most = HumanSeconds(most.as_secs_f64());
                note!(
                    "lowtide: too few snapshots for a verdict: the run is extended, to {most} at most"
                );
            } else if is_over || (is_extended && !self.is_too_early()) {
                // It lasts no longer than necessary.
                return Ok(None);
            }
            if interrupt.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let end = duration.map(|most| self.begin + most);
            let next = at + self.schedule().interval(elapsed, cost);
            let next = end.map_or(next, |end| next.min(end));
            self.follow_until(next, target, interrupt);
            if interrupt.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
    }

    /// Watches the program that a process has executed in place of the one before.
    fn start_over(&mut self, target: &Target) -> Result<(), TargetError> {
        let report = self.report();
        let until = report.map_or_else(String::new, |report| format!("; {}", progress(&report)));
        note!("lowtide: process {} executed another program{until}; starting over", target.pid);
        self.finder = PatientFinder::open(target)?;
        self.whole = WholeProcess::begin(target);
        self.observe(target);
        (self.stacks, self.no_stacks, self.mappings) = (None, None, None);
        (self.has_walked, self.undivided, self.printed) = (false, None, None);
        self.sample(target);
        self.begin = Instant::now();
        Ok(())
    }

    /// Returns whether there are too few snapshots for a verdict.
    fn is_too_early(&self) -> bool {
        let too_early = |report: LeakReport| report.verdict.kind == LeakKind::TooEarly;
        let blocks = self.finder.get().map(|finder| finder.report(self.older_s(), 0));
        blocks.is_some_and(too_early) && self.report().is_some_and(too_early)
    }

    /// Determines which blocks grow, whether they are reachable, and where they are allocated.
    fn seek(&mut self, target: &Target, counts_calls: bool) {
        self.observe(target);
        self.whole.end_descendants(target);
        let callers = self.mappings.take().and_then(|mappings| mappings.callers(target).ok());
        self.mapped_by = callers.unwrap_or_default();
        if self.undivided.is_some() {
            return;
        }
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
        let (pid, notes_registers) = (self.args.pid, !self.args.no_stacks);
        let patience = Patience { ends_itself: true, ..Patience::default() };
        let time = self.args.deadline.patience().deadline.unwrap_or_else(|| max_search(target));
        let sought = self.finder.patiently(patience, move |finder| {
            let over = Arc::new(AtomicBool::new(false));
            let (done, is_done) = channel::<()>();
            let flag = Arc::clone(&over);
            let searching = Thread::current();
            let timer = thread::Builder::new().spawn(move || {
                // Time in which the search waits for a processor does not count.
                OwnTime::new(searching).receive(&is_done, time);
                flag.store(true, Ordering::Relaxed);
            });
            let timer = timer.map_err(|error| TargetError::Other(pid, error))?;
            let samples = samples.as_ref();
            let search = Search {
                with_text,
                interrupt: &over,
                samples,
                count_calls,
                notes_registers,
                // The rest is for what is found.
                time: time * 2 / 3,
            };
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
        self.args.older.map(|older| older.as_secs_f64())
    }

    fn why_no_stacks(&self) -> Option<String> {
        self.no_stacks.as_ref().map(|reason| format!("no stacks: {reason}"))
    }

    fn report(&self) -> Option<LeakReport> {
        let finder = self.finder.get()?;
        let mut report = finder.report(self.older_s(), self.args.top);
        match &self.undivided {
            Some(allocator) => {
                without_blocks(&mut report, allocator, self.whole.follower().readings());
            }
            None => report.notes.extend(self.why_no_stacks()),
        }
        report.pid = self.args.pid;
        self.complete(&mut report, finder.target());
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
            note!("{}", progress(&report));
        }
        Ok(())
    }
}

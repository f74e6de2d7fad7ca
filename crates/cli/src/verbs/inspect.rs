//! `lowtide inspect PID…`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_analysis::diagnose::diagnose;
use lowtide_analysis::growth::{bound, until_limit};
use lowtide_analysis::remedies::promises_release;
use lowtide_leaks::evidence::Search;
use lowtide_leaks::finder::LeakFinder;
use lowtide_leaks::heap_file::HeapFile;
use lowtide_leaks::pins::HeldMemory;
use lowtide_model::growth::GrowthCourse;
use lowtide_model::inspection::{Inspection, Observation, Unreadable, WalkedHeap};
use lowtide_model::leaks::LeakKind;
use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::release::Hazard;
use lowtide_model::remedy::{Remedy, RemedyKind};
use lowtide_model::verdict::{Verdict, VerdictKind};
use lowtide_probe::cgroup::container_of;
use lowtide_probe::inspect::{Inspector, malloc_info};
use lowtide_probe::patience::Patience;
use lowtide_probe::standstill::Standstill;
use lowtide_probe::target::{Target, TargetError};
use lowtide_release::predict_refusal;
use lowtide_report::inspection::{Details, SummaryRow};
use lowtide_report::text::printable;
use lowtide_report::{cgroup, inspection};

use super::heap_files::{self, save};
use super::inspect_blocks::{self, BlockWatch, add_blocks, patiently, print_folded};
use super::next_step::{next, to_paste};
use super::service::Service;
use crate::args::InspectArgs;
use crate::args::values::MIN_INSPECTION_INTERVAL;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;
use crate::failure::target_error::{failure, note_thread, several_not_permitted, unread};
use crate::select::container::{self, Container};
use crate::select::each_process::{Outcome, each_process};
use crate::select::group::{Group, has_processes, in_lines};
use crate::select::patient_finder::PatientFinder;
use crate::select::selector::{Selected, Selector};
use crate::select::wait::in_time;
use crate::watcher::between_inspections;
use crate::watcher::whole::WholeProcess;

/// Maximum number of groups of blocks that are checked for leaks.
const MAX_GROUPS: usize = 20;
/// Maximum number of processes that have a line of their own below the ledger of a cgroup.
const MAX_OF_CGROUP: usize = 3;
/// Number of lines of the usual page of a cgroup, which fits into a terminal of 80 × 24 with the
/// command and the next prompt.
const MAX_LINES: usize = 22;
/// Number of inspections over the time of `--watch`, if it is long enough for them.
const INSPECTIONS: u32 = 20;

pub(crate) fn run(args: &InspectArgs, output: &Output) -> Result<Exit, Failure> {
    let files = args.targets.files();
    let selector = args.targets.selector();
    if !files.is_empty() {
        return heap_files::run(args, &files, selector.is_by_number(), output);
    }
    let container = Container::find(&selector);
    let order = selected(&selector, &container)?;
    if args.save.is_some() && order.len() != 1 {
        return Err(Failure::usage(format!(
            "--save writes the file of one process, but {} processes are selected: name one PID",
            order.len()
        )));
    }
    inspect_blocks::check(args, order.len())?;
    if args.malloc_info {
        let [selected] = order.as_slice() else {
            return Err(Failure::usage(format!(
                "--malloc-info prints one document, but {} processes are selected: name one PID",
                order.len()
            )));
        };
        return print_malloc_info(selected.pid, args.patience(), output);
    }
    // A single inspection ends soon.
    let interrupt = match args.watch {
        Some(_) => interrupt::flag(),
        None => Arc::default(),
    };
    let mut pages = Pages {
        args,
        inspector: Inspector::default().with_details().with_patience(args.patience()),
        again: Rerun::typed(),
        has_totals: selector.has_totals(order.len(), output),
        is_one: order.len() == 1 && !container.is_found(),
        held: String::new(),
        rows: Vec::new(),
        fork: None,
        unreadable: Vec::new(),
        printed: 0,
        interrupt: &interrupt,
        output,
    };
    let mut group = Group::default();
    let exit = each_process(&selector, &order, &mut group, &interrupt, output, |pid, group| {
        pages.add(pid, group)
    })?;
    let ledger = container.read();
    if let Ok(Some(ledger)) = &ledger {
        group.set_cgroup(ledger.clone());
    }
    pages.end(group)?;
    ledger.map(|_| exit)
}

/// Returns the selected processes. A cgroup with a ledger need not have any; of one without, the
/// reason is printed.
fn selected(selector: &Selector, container: &Container) -> Result<Vec<Selected>, Failure> {
    match (selector.select(), container.reason()) {
        (Err(failure), None) if container.is_found() && failure.exit() == Exit::Gone => {
            Ok(Vec::new())
        }
        (Err(failure), Some(reason)) if failure.exit() == Exit::Gone && !reason.is_of_machine() => {
            Err(container::failure(reason))
        }
        (selected, reason) => {
            if let Some(reason) = reason {
                note!("lowtide: no ledger of the cgroup: {}", printable(&reason.to_string()));
            }
            selected
        }
    }
}

/// The printed inspections: a page for a single process or with `--each`, a line for each of
/// several.
struct Pages<'a> {
    args: &'a InspectArgs,
    inspector: Inspector,
    again: Rerun,
    has_totals: bool,
    /// Whether a single process is selected.
    is_one: bool,
    /// The pages of several processes, which come after their totals.
    held: String,
    /// The lines of several processes.
    rows: Vec<SummaryRow>,
    /// What keeps memory shared after a fork, from the process that copied most, with its bytes.
    fork: Option<(u64, Remedy)>,
    /// Those of several processes that may not be read.
    unreadable: Vec<u32>,
    printed: usize,
    interrupt: &'a AtomicBool,
    output: &'a Output,
}

impl Pages<'_> {
    /// Inspects a process, prints the result, and adds it to the totals. The outer error means that
    /// stdout cannot be written.
    fn add(&mut self, pid: u32, group: &mut Group) -> Result<Outcome, Failure> {
        let again = self.again.only(pid);
        let Inspected { inspection, service, ended, file, .. } =
            match self.inspect(pid, group, &again) {
                Ok(inspected) => inspected,
                Err(failure) => return Ok(Err(failure)),
            };
        if !print_folded(&inspection, self.args, self.output)? {
            self.show(&inspection, &service)?;
        }
        inspect_blocks::write_profile(&inspection, self.args)?;
        if let (Some(path), Some(file)) = (&self.args.save, file) {
            save(path, &file)?;
        }
        let unreadable = inspection.observation.unreadable;
        if unreadable.is_some() && !self.is_one && !self.output.json {
            self.unreadable.push(pid);
        }
        let limited = unreadable.filter(|_| self.is_one || self.output.json);
        let limited = limited.map(|why| unread(why, pid, &again));
        let ended = ended.map(|error| failure(&error, &again));
        let mut exit = unreadable.map_or(Exit::Done, |why| unread(why, pid, &again).exit());
        for failure in limited.into_iter().chain(ended) {
            // For a single process, only one object is printed: the inspection.
            match self.is_one {
                true => note!("lowtide: {failure}"),
                false => drop(self.output.fail(&failure)),
            }
            exit = exit.or(failure.exit());
        }
        Ok(Ok(exit))
    }

    fn inspect(
        &mut self,
        pid: u32,
        group: &mut Group,
        again: &Rerun,
    ) -> Result<Inspected, Failure> {
        let fails = |error: TargetError, group: &mut Group| {
            group.add_unread(pid, &error);
            failure(&error, again)
        };
        let target = Target::open_to_read(pid).map_err(|error| fails(error, group))?;
        note_thread(&target);
        let watch = BlockWatch::begin(self.args, &target, again)?;
        let inspected = self.inspect_target(&target, group, watch);
        let inspected = inspected.or_else(|error| self.outline(&target, error));
        let mut inspected = inspected.map_err(|error| fails(error, group))?;
        inspected.inspection.observation.pid = pid;
        Ok(inspected)
    }

    /// Returns what is known of a single process after an inspection that was given up.
    fn outline(&self, target: &Target, error: TargetError) -> Result<Inspected, TargetError> {
        let why = match error {
            TargetError::Slow(_) if self.is_one => Unreadable::Slow,
            TargetError::Blocked(_) if self.is_one => Unreadable::Blocked,
            _ => return Err(error),
        };
        Ok(Inspected::now(diagnose(Inspector::outline(target, why)?)))
    }

    fn inspect_target(
        &mut self,
        target: &Target,
        group: &mut Group,
        watch: Option<BlockWatch>,
    ) -> Result<Inspected, TargetError> {
        let mut inspected = match self.args.watch {
            Some(time) => {
                over_time(&mut self.inspector, target, time, self.args.patience(), self.interrupt)
            }
            None => inspect_blocks::inspect(&mut self.inspector, target, self.args).map(
                |(mut found, held)| {
                    let is_refused =
                        withdraw_refused_release(&mut found, target, self.args.patience());
                    Inspected { held, is_refused, ..Inspected::now(diagnose(found)) }
                },
            ),
        }?;
        let is_readable = inspected.inspection.observation.unreadable.is_none();
        if self.args.save.is_some() && is_readable {
            let (observation, never) =
                (inspected.inspection.observation.clone(), AtomicBool::new(false));
            let is_refused = inspected.is_refused;
            let read =
                move |target: &Target| HeapFile::read(target, observation, is_refused, &never);
            inspected.file = inspected.complete(patiently(target, self.args, read))?;
        }
        let is_full = self.has_pages() || self.output.json;
        if is_full && inspected.inspection.observation.unreadable.is_none() {
            let held = inspected.held.take();
            let added = add_blocks(&mut inspected.inspection, target, self.args, held, watch);
            inspected.complete(added)?;
            let own_bytes = anonymous_bytes(&inspected.inspection.observation.ledger);
            inspected.inspection.container = container_of(target.pid, own_bytes);
        }
        if self.has_pages() && !self.output.json {
            let service = in_time(self.args.patience(), target, |target| Service::read(&target));
            inspected.service = service.unwrap_or_default();
        }
        if self.has_totals {
            group.add_inspection(target, &inspected.inspection);
        }
        Ok(inspected)
    }

    fn has_pages(&self) -> bool {
        let InspectArgs { each, arenas, pins, blocks, .. } = self.args;
        self.is_one || *each || *arenas || *pins || *blocks
    }

    fn show(&mut self, found: &Inspection, service: &Service) -> Result<(), Failure> {
        let output = self.output;
        if output.json {
            return output.object(found);
        }
        if !self.has_pages() {
            self.rows.push(SummaryRow::new(found));
            self.add_fork(found);
            return Ok(());
        }
        let between = if self.printed == 0 { "" } else { "\n" };
        self.printed += 1;
        let text = between.to_owned() + &page(found, service, self.args.details(), output);
        if self.has_totals {
            self.held.push_str(&text);
            return Ok(());
        }
        output.text(&text)
    }

    fn add_fork(&mut self, found: &Inspection) {
        let copied = found.observation.forked.as_ref().and_then(|forked| forked.copied_bytes);
        let remedy = found.remedies.iter().find(|remedy| remedy.kind == RemedyKind::Fork);
        if let (Some(bytes), Some(remedy)) = (copied, remedy)
            && self.fork.as_ref().is_none_or(|(most, _)| bytes > *most)
        {
            self.fork = Some((bytes, remedy.clone()));
        }
    }

    /// Prints the ledger of a cgroup, the totals, the processes, and the next step.
    fn end(&self, group: Group) -> Result<(), Failure> {
        let (output, screen) = (self.output, self.output.screen());
        if output.json {
            return if self.has_totals { group.print(output) } else { Ok(()) };
        }
        if let Some(failure) = several_not_permitted(&self.unreadable, &self.again) {
            output.fail(&failure);
        }
        // The totals of a single process are those of its page, and a cgroup has its own.
        let is_whole = group.cgroup().is_none() || self.args.why || self.args.each;
        let has_totals = self.has_totals && !self.is_one && is_whole;
        let most = if is_whole { usize::MAX } else { MAX_OF_CGROUP };
        let list = inspection::list(&self.rows, most, screen);
        // A blank line and the next step.
        let room = (!self.args.why).then(|| MAX_LINES.saturating_sub(list.lines().count() + 2));
        let cgroup = group.cgroup().map(|ledger| cgroup::render(ledger, room, screen));
        let totals = Some(group.totals()).filter(|_| has_totals).filter(has_processes);
        let totals = totals.map(|totals| format!("{}\n", in_lines(&totals, output)));
        let processes = self.held.clone() + &list;
        let parts = cgroup.into_iter().chain(totals).chain(Some(processes));
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        output.text(&parts.join("\n"))?;
        let fork: Vec<&Remedy> = self.fork.iter().map(|(_, remedy)| remedy).collect();
        output.text(&inspection::list_remedies(&fork, self.args.why, screen))?;
        let largest = self.rows.iter().max_by_key(|row| (row.rss_bytes, row.pid));
        match largest {
            Some(row) => {
                let next = match is_whole {
                    true => "(its memory by owner; this page: --each)",
                    false => "(this page: --each or --why for the rest)",
                };
                output.text(&format!("next: lowtide inspect {}     {next}\n", row.pid))
            }
            None => Ok(()),
        }
    }
}

/// Prints the XML of `malloc_info(3)`.
fn print_malloc_info(pid: u32, patience: Patience, output: &Output) -> Result<Exit, Failure> {
    if output.json {
        return Err(Failure::usage("--malloc-info prints XML: leave out --json, or use --arenas"));
    }
    let again = Rerun::typed();
    let target = Target::open(pid).map_err(|error| failure(&error, &again))?;
    let read = in_time(patience, &target, |target| malloc_info(&target));
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

/// Returns the resident anonymous memory in a ledger: all but pages of files, shared memory, and
/// memory of devices.
fn anonymous_bytes(ledger: &Ledger) -> u64 {
    let others = [Owner::File, Owner::Shared, Owner::Device];
    others.iter().fold(ledger.total(), |rest, owner| rest.saturating_sub(ledger.bytes(*owner)))
}

/// Withdraws the prediction of a release that would be refused. Returns whether it was.
fn withdraw_refused_release(found: &mut Observation, target: &Target, patience: Patience) -> bool {
    if !promises_release(found) {
        return false;
    }
    if target.is_by_thread() {
        found.withdraw_release("its first thread has ended", false);
        return true;
    }
    let refusal = in_time(patience, target, |target| predict_refusal(&target)).flatten();
    if let Some(refusal) = &refusal {
        // A filter that does not permit what a release calls may not permit madvise or brk either.
        let is_filtered = refusal.hazard() == Hazard::Seccomp;
        found.withdraw_release(&refusal.to_string(), is_filtered);
    }
    refusal.is_some()
}

/// The last inspection, with a verdict from the whole watch, and the error that ended the watch.
struct Inspected {
    inspection: Inspection,
    service: Service,
    ended: Option<TargetError>,
    /// Whether a release was predicted, and would be refused.
    is_refused: bool,
    /// What is to be saved.
    file: Option<HeapFile>,
    /// The blocks, if they were read in the same walk.
    held: Option<HeldMemory>,
}

impl Inspected {
    fn now(inspection: Inspection) -> Self {
        let (service, is_refused) = (Service::default(), false);
        Self { inspection, service, ended: None, is_refused, file: None, held: None }
    }

    /// Takes the result of a further part; `None` if reading it was given up. What is known already
    /// is then printed, and the error after it.
    fn complete<T>(&mut self, part: Result<T, TargetError>) -> Result<Option<T>, TargetError> {
        match part {
            Err(error @ (TargetError::Slow(_) | TargetError::Blocked(_))) => {
                self.ended = Some(error);
                Ok(None)
            }
            part => part.map(Some),
        }
    }
}

/// Returns whether a heap has free memory of which it is not known what a release returns.
fn has_unpredicted(found: &Observation) -> bool {
    let is_unknown = |heap: &WalkedHeap| heap.prediction.release_bytes.is_none();
    found.heaps.iter().any(|heap| is_unknown(heap) && heap.reclaimable_bytes > 0)
}

/// Inspects a process repeatedly, and detects whether it grows. Only the last inspection predicts
/// what a release returns, because only that is shown.
fn over_time(
    inspector: &mut Inspector,
    target: &Target,
    time: Duration,
    patience: Patience,
    interrupt: &AtomicBool,
) -> Result<Inspected, TargetError> {
    let step = (time / INSPECTIONS).max(MIN_INSPECTION_INTERVAL);
    let begin = Instant::now();
    let mut whole = WholeProcess::begin(target);
    let mut leaks = Leaks::new(target, patience);
    let mut duration = Duration::ZERO;
    let mut predicts;
    let ended = loop {
        let at = Instant::now();
        let mut cost = Duration::ZERO;
        // The inspection that is expected to end after the time is the last one.
        predicts = begin.elapsed() + 2 * duration >= time;
        inspector.predict(predicts);
        match whole.observe(inspector, target) {
            Ok(of_inspection) => {
                duration = at.elapsed();
                let is_readable = whole.ends().is_some_and(|(_, last)| last.unreadable.is_none());
                if !is_readable || begin.elapsed() >= time {
                    break None;
                }
                cost = of_inspection + leaks.look((at - begin).as_secs_f64());
            }
            // The process executes one program after another; a later one may run for long enough.
            Err(TargetError::Replaced(_)) if whole.ends().is_some() && begin.elapsed() < time => {}
            Err(error) => break Some(error),
        }
        if interrupt.load(Ordering::Relaxed) {
            break None;
        }
        whole.read_until(at + between_inspections(step, cost), target, interrupt);
    };
    // A longer inspection than expected can make another one the last.
    inspector.predict(true);
    let lacks_prediction = !predicts && whole.ends().is_some_and(|(_, last)| has_unpredicted(last));
    if ended.is_none() && lacks_prediction && !interrupt.load(Ordering::Relaxed) {
        // Without it, the watch is complete all the same.
        let _ = whole.observe(inspector, target);
    }
    let Some(mut last) = whole.ends().map(|(_, last)| last.clone()) else {
        return Err(ended.unwrap_or(TargetError::Gone(target.pid)));
    };
    let is_refused = withdraw_refused_release(&mut last, target, patience);
    let mut inspection = whole.follower().diagnose(last);
    add_growth(&mut inspection, &mut whole, target);
    if ended.is_none() && !interrupt.load(Ordering::Relaxed) {
        leaks.judge(&mut inspection);
    }
    Ok(Inspected { ended, is_refused, ..Inspected::now(inspection) })
}

/// The search for lost blocks during the inspections of a watch.
struct Leaks {
    /// Absent if the process cannot be read, or reading it has failed.
    finder: Option<PatientFinder>,
    patience: Patience,
}

impl Leaks {
    fn new(target: &Target, patience: Patience) -> Self {
        Self { finder: PatientFinder::open(target).ok(), patience }
    }

    /// Takes a snapshot. Returns its CPU time.
    fn look(&mut self, t_s: f64) -> Duration {
        let look = self.patiently(self.patience, move |finder| finder.look(t_s));
        let cpu_s = look.map_or(0.0, |look| look.cpu_s);
        Duration::try_from_secs_f64(cpu_s).unwrap_or_default()
    }

    /// Replaces the verdict by `leak` if no pointer leads to the growing blocks.
    fn judge(&mut self, inspection: &mut Inspection) {
        let may_leak = |kind: LeakKind| kind.is_growth() || kind == LeakKind::Filling;
        let grows = |finder: &LeakFinder| {
            let groups = finder.report(None, MAX_GROUPS).groups;
            groups.iter().any(|group| may_leak(group.verdict))
        };
        if !self.finder.as_ref().and_then(PatientFinder::get).is_some_and(grows) {
            return;
        }
        let patience = Patience { ends_itself: true, ..self.patience };
        let report = self.patiently(patience, |finder| {
            finder.seek(None, &Search::new(&AtomicBool::new(false)))?;
            Ok(finder.report(None, MAX_GROUPS))
        });
        if let Some(report) = report.filter(|report| report.verdict.kind == LeakKind::Lost) {
            let types = report.groups.first().and_then(|group| group.block_type.clone());
            let because = types.map(|name| format!("most of them are {name}"));
            let growth = std::mem::take(&mut inspection.verdict.because);
            let mut because: Vec<String> =
                report.verdict.because.into_iter().chain(because).collect();
            // The rate of lost blocks is that of earlier if growth has stopped.
            let course = inspection.growth.as_ref().map(|growth| growth.course);
            let at = if course == Some(GrowthCourse::Once) { 0 } else { because.len() };
            because.splice(at..at, growth);
            inspection.verdict = Verdict { kind: VerdictKind::Leak, because };
        }
    }

    /// Calls a function with the finder. A finder that fails is dropped.
    fn patiently<T: Send + 'static>(
        &mut self,
        patience: Patience,
        work: impl FnOnce(&mut LeakFinder) -> Result<T, TargetError> + Send + 'static,
    ) -> Option<T> {
        let mut finder = self.finder.take()?;
        let done = finder.patiently(patience, work).ok()?;
        self.finder = Some(finder);
        Some(done)
    }
}

/// Adds the growth over the watch, and the time until a limit is reached.
fn add_growth(inspection: &mut Inspection, whole: &mut WholeProcess, target: &Target) {
    if inspection.observation.unreadable.is_some() {
        return;
    }
    whole.end_descendants(target);
    inspection.growth = whole.growth(target);
    let standstill = whole.standstill(target);
    let is_blind =
        standstill.is_some_and(Standstill::is_forced) || !whole.follower().has_enough_samples();
    if let Some(growth) = &mut inspection.growth
        && growth.course == GrowthCourse::Level
        && is_blind
    {
        growth.course = GrowthCourse::Unknown;
    }
    whole.follower().conclude(&mut inspection.verdict, inspection.growth.as_ref());
    let because = &mut inspection.verdict.because;
    because.extend(standstill.map(|standstill| standstill.sentence(target.pid)));
    if inspection.verdict.kind == VerdictKind::Growing {
        let growth = inspection.growth.as_ref();
        let outlook = [growth.and_then(bound), growth.and_then(until_limit)];
        inspection.verdict.because.extend(outlook.into_iter().flatten());
    }
}

/// Adds to the next steps how to see what a page leaves out: to the first line if it has room, or
/// as a line of its own.
fn with_why(next: &str, output: &Output) -> String {
    const REMARK: &str = "     (--why: all reasons and remedies)";
    let (first, rest) = next.split_once('\n').map_or((next, None), |(a, b)| (a, Some(b)));
    let width = "next: ".len() + first.chars().count() + REMARK.len();
    let has_room = width <= usize::from(output.screen().width) && !first.ends_with(')');
    match (has_room, rest) {
        (true, None) => format!("{first}{REMARK}"),
        (true, Some(rest)) => format!("{first}{REMARK}\n{rest}"),
        (false, _) => format!("{next}\n {REMARK}"),
    }
}

fn page(found: &Inspection, service: &Service, details: Details, output: &Output) -> String {
    let page = inspection::render(found, details, output.screen());
    // If a permission is missing, the error that follows names the next step.
    if found.observation.unreadable.is_some() {
        return page;
    }
    let next = next(found, service);
    let permanent = to_paste(found, service);
    if details.why {
        return format!("{page}next: {next}\n{permanent}");
    }
    let is_abridged = inspection::is_abridged(found, output.screen()) || !permanent.is_empty();
    format!("{page}next: {}\n", if is_abridged { with_why(&next, output) } else { next })
}

//! The common part of `run` and `attach`: the reports of acts, and the options of the supervision.

mod black_box;
mod metrics;
mod own;
mod record;
mod totals;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{Hazard, ReleaseOutcome};
use lowtide_report::text::{printable, without_directory};
use lowtide_supervise::black_box::{BlackBoxHandle, BoxSize};
use lowtide_supervise::{ActLog, LogError, Observer, SupervisorOptions, Textfile};

use crate::args::PolicyArgs;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::Failure;

pub(crate) use black_box::Recording;
use metrics::MetricsFile;
pub(crate) use own::{is_lowtide, prepare};
pub(crate) use record::SupervisionRecord;
use totals::Totals;

/// Maximum number of remembered pairs of program and reason, which are not printed again.
const MAX_WARNED: usize = 200;

/// Minimum time of a supervision that reports that nothing was released.
const MIN_TIME_OF_TOTALS: Duration = Duration::from_secs(1);

/// The acts that are printed on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Printed {
    /// All of them.
    All,
    /// Warnings only: stderr belongs to the command.
    Warnings,
}

/// Reports acts: to the log, to the metrics, and to the user.
#[derive(Debug)]
pub(crate) struct ActReporter {
    log: Option<ActLog>,
    metrics: Option<MetricsFile>,
    /// The output for JSON lines, if they are printed on stdout.
    json: Option<Output>,
    record: Option<SupervisionRecord>,
    black_box: Option<BlackBoxHandle>,
    printed: Printed,
    /// Programs, and the reasons why they are left alone, that were printed. A command may start
    /// many processes of the same program.
    warned: BTreeSet<(String, String)>,
    totals: Totals,
    max_pause: Duration,
    begin: Instant,
}

impl ActReporter {
    /// Opens the files.
    pub(crate) fn open(
        args: &PolicyArgs,
        printed: Printed,
        json: Option<Output>,
    ) -> Result<Self, Failure> {
        let log = args.log.as_deref().map(ActLog::open).transpose();
        let textfile = args.textfile.as_deref().map(Textfile::create).transpose();
        let failure = |error: LogError| match error {
            LogError::Unsafe { .. } => Failure::usage(error),
            LogError::Io { .. } => Failure::failed(error),
        };
        Ok(Self {
            log: log.map_err(failure)?,
            metrics: textfile.map_err(failure)?.map(MetricsFile::new),
            json,
            record: None,
            black_box: None,
            printed,
            warned: BTreeSet::new(),
            totals: Totals::default(),
            max_pause: args.max_pause,
            begin: Instant::now(),
        })
    }

    /// Prints the totals of all acts. A command that ended at once has none.
    pub(crate) fn end(&self) {
        if self.totals.is_empty() && self.begin.elapsed() < MIN_TIME_OF_TOTALS {
            return;
        }
        note!("lowtide: {}", printable(&self.totals.sentence(self.max_pause)));
    }

    /// Writes acts to a record too.
    pub(crate) fn record(&mut self, record: SupervisionRecord) {
        self.record = Some(record);
    }

    /// Starts the black box that the user has asked for. It receives the acts too.
    ///
    /// # Errors
    /// Fails if its directory cannot be written to.
    pub(crate) fn start_black_box(
        &mut self,
        args: &PolicyArgs,
        size: BoxSize,
    ) -> Result<Option<Recording>, Failure> {
        let recording = black_box::start(args, size, self.metrics.clone())?;
        self.black_box = recording.as_ref().and_then(Recording::handle);
        Ok(recording)
    }

    fn print(&mut self, program: &str, act: &Act) {
        if self.json.is_some() {
            return;
        }
        if self.printed == Printed::All {
            note!("{}", printable(&sentence(act)));
        } else if self.is_new_warning(program, act) {
            note!("lowtide: {}", printable(&sentence(act)));
        }
    }

    /// Returns whether an act is a warning that was not printed yet: for another process of the
    /// same program, or, if all releases are held, for another process.
    fn is_new_warning(&mut self, program: &str, act: &Act) -> bool {
        // The supervisor reports each hold once.
        if act.event == ActEvent::HeldBack && act.hazard == Some(Hazard::Held) {
            return true;
        }
        act.event == ActEvent::LeftAlone
            && self.warned.len() < MAX_WARNED
            && self.warned.insert((program.to_owned(), act.reason.clone()))
    }
}

impl Observer for ActReporter {
    fn act(&mut self, program: &str, act: &Act) {
        self.totals.add(act);
        if let Some(problem) = self.log.as_mut().and_then(|log| log.write(act)) {
            note!("lowtide: {problem}");
        }
        if let Some(metrics) = &self.metrics {
            metrics.change(|textfile| textfile.count(program, act));
        }
        if let Some(record) = &self.record {
            record.act(act);
        }
        if let Some(black_box) = &self.black_box {
            black_box.act(act);
        }
        if let Some(output) = &self.json
            && !output.line_of(act).unwrap_or(false)
        {
            // The reader of stdout has closed its end (`lowtide attach --json … | head`).
            interrupt::set();
        }
        self.print(program, act);
    }
}

/// Returns an act as a line for people.
fn sentence(act: &Act) -> String {
    let time = act.time.get(11..19).unwrap_or(&act.time);
    format!("{time}Z {} {}: {}", act.pid, without_directory(&act.command), outcome(act))
}

/// Returns whether an act released memory, or a part of it.
pub(crate) fn is_release(act: &Act) -> bool {
    let has_released =
        matches!(act.outcome, Some(ReleaseOutcome::Released | ReleaseOutcome::Partial));
    act.event == ActEvent::Act && has_released && !act.dry_run
}

/// Returns the outcome of an act, and its cause.
pub(crate) fn outcome(act: &Act) -> String {
    match act.event {
        ActEvent::Act if is_release(act) => format!(
            "{} returned, RSS {} to {}{}, longest pause {} ({})",
            Human(act.returned_bytes),
            Human(act.rss_before),
            Human(act.rss_after),
            taken_meanwhile(act),
            HumanSeconds(act.longest_pause_s),
            act.reason
        ),
        ActEvent::Act | ActEvent::HeldBack => format!("{} ({})", act.message, act.reason),
        ActEvent::LeftAlone => format!("{}: {}", act.message, act.reason),
        ActEvent::Returned => act.message.clone(),
    }
}

/// Returns why RSS fell by less than what was returned, if a noticeable part of it is missing.
fn taken_meanwhile(act: &Act) -> String {
    let fell = act.rss_before.saturating_sub(act.rss_after);
    let grew = act.rss_after.saturating_sub(act.rss_before);
    let taken = (act.returned_bytes + grew).saturating_sub(fell);
    match taken > act.returned_bytes / 10 {
        true => format!(" (the program took {} meanwhile)", Human(taken)),
        false => String::new(),
    }
}

/// Returns the options of a supervision.
pub(crate) fn options(
    args: &PolicyArgs,
    allocators: Option<Vec<AllocatorKind>>,
    dry_run: bool,
    filter_family: Option<u32>,
    interrupt: Arc<AtomicBool>,
    black_box: Option<&Recording>,
) -> SupervisorOptions {
    SupervisorOptions {
        black_box: black_box.and_then(Recording::handle),
        policy: args.policy,
        max_pause: args.max_pause,
        budget: args.budget,
        allocators,
        dry_run,
        filter_family,
        interrupt,
    }
}

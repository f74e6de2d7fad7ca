//! `lowtide watch PID`.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Owner;
use lowtide_probe::target::{Target, TargetError};
use lowtide_report::text::printable;

use super::watch_cgroup;
use crate::args::WatchArgs;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;
use crate::failure::target_error::{failure, unread};
use crate::supervision::{is_release, outcome};
use crate::tui::state::State;
use crate::tui::{self, ViewOptions};
use crate::watcher::acts::ActFollower;
use crate::watcher::record::WatchRecord;
use crate::watcher::{self, WatchEvent, Watcher};

/// Time between two checks for a request to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &WatchArgs, output: &Output) -> Result<Exit, Failure> {
    match (args.pid, &args.cgroup) {
        (Some(pid), _) => watch(pid, args, output),
        (None, Some(path)) => watch_cgroup::run(path, args, output),
        (None, None) => Err(Failure::usage("name a process, or a control group with --cgroup")),
    }
}

fn watch(pid: u32, args: &WatchArgs, output: &Output) -> Result<Exit, Failure> {
    let interval = args.interval;
    let again = Rerun::typed();
    let target = Target::open(pid).map_err(|error| failure(&error, &again))?;
    let of_view = target.try_clone().map_err(|error| failure(&target.failed(error), &again))?;
    let log = args.log.as_deref().map(|path| follow(path, &target)).transpose()?;
    let mut record =
        args.output.as_deref().map(|path| WatchRecord::create(path, interval)).transpose()?;
    let begun = record.as_ref().map_or_else(Instant::now, WatchRecord::begun);
    let watcher = Watcher::start(target, begun, interval, log).map_err(|error| {
        Failure::failed(format!("cannot start a thread to watch process {pid}: {error}"))
    })?;
    let state = State::new(pid, interval);
    let state = match &args.log {
        Some(path) => state.with_log(path),
        None => state,
    };
    let mut watch = Watch { watcher, state, again };
    let watched = if is_for_people(output) {
        // The second Ctrl-C must not end lowtide at once: the terminal has to be restored first.
        let interrupt = interrupt::patient_flag();
        let options = ViewOptions {
            colour: output.screen().colour,
            max_inspections: args.looks,
            interrupt: &interrupt,
            target: &of_view,
        };
        tui::run(&options, &watch.watcher, &mut watch.state, record.as_mut())
            .and_then(|()| watch.summary(output))
    } else {
        watch.print(args.looks, record.as_mut(), output)
    };
    // The record is kept, even after an error.
    let kept = record.map(|record| record.finish(watch.watcher.cost())).transpose();
    watched?;
    if let Some(path) = kept? {
        note!("wrote {0}\n  next: lowtide report {0}", path.display());
    }
    watch.end()
}

/// Opens the log of acts on a process.
fn follow(path: &Path, target: &Target) -> Result<ActFollower, Failure> {
    ActFollower::open(path, target).map_err(|error| Failure::log_not_read(path, &error))
}

/// Returns whether stdout is a terminal that can show the live view.
fn is_for_people(output: &Output) -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !output.json && !is_dumb && io::stdout().is_terminal()
}

/// The watch of one process.
struct Watch {
    watcher: Watcher,
    state: State,
    /// The command line that repeats the watch.
    again: Rerun,
}

impl Watch {
    /// Prints a line or an object for each inspection.
    fn print(
        &mut self,
        max_inspections: Option<u64>,
        mut record: Option<&mut WatchRecord>,
        output: &Output,
    ) -> Result<(), Failure> {
        let interrupt = interrupt::flag();
        let is_over = |interrupt: &AtomicBool| interrupt.load(Ordering::Relaxed);
        while !is_over(&interrupt)
            && max_inspections.is_none_or(|most| self.state.inspections() < most)
        {
            let event = match self.watcher.events().recv_timeout(POLL_INTERVAL) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) if self.state.ended_s.is_some() => break,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(watcher::broke_off());
                }
            };
            if let Some(record) = &mut record {
                record.write(&event);
                record.failure().map_or(Ok(()), Err)?;
            }
            if !self.print_event(event, output)? {
                break;
            }
        }
        Ok(())
    }

    /// Processes an event, and prints an inspection or an act. Returns whether stdout is still
    /// read.
    fn print_event(&mut self, event: WatchEvent, output: &Output) -> Result<bool, Failure> {
        // Acts from before the watch are only part of the totals.
        if let WatchEvent::Acted(t_s, act) = &event
            && *t_s >= 0.0
            && !print_act(*t_s, act, output)?
        {
            return Ok(false);
        }
        let inspected_s = match &event {
            WatchEvent::Observed(t_s, _) => Some(*t_s),
            WatchEvent::Failed(error @ TargetError::Replaced(_)) => {
                note!("lowtide: {error}");
                None
            }
            WatchEvent::Failed(error) => return Err(failure(error, &self.again)),
            _ => None,
        };
        self.state.see(event);
        let (Some(t_s), Some(found)) = (inspected_s, self.state.latest()) else {
            return Ok(true);
        };
        if output.json {
            output.line_of(found)
        } else {
            output.line(&plain(t_s, found, self.state.unreadable.is_none()))
        }
    }

    /// Prints the last inspection of a process that has ended during the live view.
    fn summary(&self, output: &Output) -> Result<(), Failure> {
        let (Some(t_s), Some(found)) = (self.state.ended_s, self.state.latest()) else {
            return Ok(());
        };
        let peak = Human(self.state.history().peak_rss_bytes);
        let text = format!("process {} ended; peak RSS {peak}", self.state.pid);
        output.line(&plain(t_s, found, self.state.unreadable.is_none()))?;
        output.line(&text)?;
        match self.state.policy() {
            Some(policy) => output.line(&printable(&policy.summary())).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the exit code.
    fn end(&self) -> Result<Exit, Failure> {
        match (self.state.unreadable, self.state.ended_s) {
            (Some(why), _) => Err(unread(why, self.state.pid, &self.again)),
            (None, Some(_)) if self.state.inspections() == 0 => {
                Err(Failure::new(Exit::Gone, TargetError::Gone(self.state.pid)))
            }
            _ => Ok(Exit::Done),
        }
    }
}

/// Prints an act as a line or an object. Returns whether stdout is still read.
fn print_act(t_s: f64, act: &Act, output: &Output) -> Result<bool, Failure> {
    if output.json { output.line_of(act) } else { output.line(&plain_act(t_s, act)) }
}

/// Formats an act as a line for people and for `awk`, in the columns of an inspection.
fn plain_act(t_s: f64, act: &Act) -> String {
    let rss = if act.rss_after > 0 { Human(act.rss_after).to_string() } else { "-".to_owned() };
    let head = format!("{t_s:>7.1} s  RSS {rss:>9}");
    let text = match act.event {
        _ if is_release(act) => format!(
            "returned  {:>9}  pause       {:>9}  {}",
            Human(act.returned_bytes).to_string(),
            HumanSeconds(act.longest_pause_s).to_string(),
            act.reason
        ),
        ActEvent::Returned => format!(
            "came back {:>9}  of          {:>9}  after {}",
            Human(act.refaulted_bytes.unwrap_or(0)).to_string(),
            Human(act.returned_bytes).to_string(),
            HumanSeconds(act.refaulted_after_s.unwrap_or(0.0))
        ),
        ActEvent::HeldBack => format!("held back  {}", act.reason),
        ActEvent::LeftAlone => format!("left alone  {}", act.reason),
        ActEvent::Act => outcome(act),
    };
    printable(&format!("{head}  {text}"))
}

/// Formats an inspection as a line for people and for `awk`; without heap metrics if memory may not
/// be read.
fn plain(t_s: f64, found: &Inspection, is_readable: bool) -> String {
    let human = |bytes: u64| Human(bytes).to_string();
    let of = |owner| {
        if is_readable { human(found.observation.ledger.bytes(owner)) } else { "-".to_owned() }
    };
    format!(
        "{t_s:>7.1} s  RSS {:>9}  allocated {:>9}  reclaimable {:>9}  {}",
        human(found.observation.rss_bytes),
        of(Owner::Allocated),
        of(Owner::Reclaimable),
        found.verdict.kind.name()
    )
}

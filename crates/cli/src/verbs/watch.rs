//! `lowtide watch PID`.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Owner;
use lowtide_probe::inspect::{Target, TargetError};

use super::inspect::{failure, not_permitted};
use crate::args::{WatchArgs, duration};
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::output::{Output, note};
use crate::tui::state::State;
use crate::tui::{self, Show};
use crate::watcher::record::Record;
use crate::watcher::{WatchEvent, Watcher};

/// The default of `--interval`.
pub(crate) const DEFAULT_INTERVAL: &str = "1s";
/// The least that it may be.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &WatchArgs, output: &Output) -> Result<Exit, Failure> {
    let interval = interval(&args.interval)?;
    let again = again(args);
    let target = Target::open(args.pid).map_err(|error| failure(&error, &again))?;
    let mut record =
        args.output.as_deref().map(|path| Record::create(path, interval)).transpose()?;
    let begun = record.as_ref().map_or_else(Instant::now, Record::begun);
    let watcher = Watcher::start(target, begun, interval).map_err(|error| {
        Failure::failed(format!("no thread could be started to watch it: {error}"))
    })?;
    let mut watch = Watch { watcher, state: State::new(args.pid, interval), again };
    let watched = if is_for_people(output) {
        // The second Ctrl-C must not end it at once: the terminal has to be restored first.
        let interrupt = interrupt::patient_flag();
        let show =
            Show { colour: output.screen().colour, looks: args.looks, interrupt: &interrupt };
        tui::run(&show, &watch.watcher, &mut watch.state, record.as_mut())
            .and_then(|()| watch.summary(output))
    } else {
        watch.print(args.looks, record.as_mut(), output)
    };
    // What was seen is kept, also when something went wrong later.
    let kept = record.map(|record| record.finish(watch.watcher.account())).transpose();
    watched?;
    if let Some(path) = kept? {
        note!("wrote {0}\n  next: lowtide report {0}", path.display());
    }
    watch.end()
}

fn interval(text: &str) -> Result<Duration, Failure> {
    let interval = duration("--interval", text)?;
    if interval < SHORTEST_INTERVAL {
        return Err(Failure::usage(format!(
            "--interval: {text} is too short: give it at least {} ms",
            SHORTEST_INTERVAL.as_millis()
        )));
    }
    Ok(interval)
}

/// Whether somebody looks on, at a terminal that can show it.
fn is_for_people(output: &Output) -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !output.json && !is_dumb && io::stdout().is_terminal()
}

/// One process that is watched.
struct Watch {
    watcher: Watcher,
    state: State,
    /// The command that was given.
    again: String,
}

impl Watch {
    /// Prints a line or an object for each look.
    fn print(
        &mut self,
        looks: Option<u64>,
        mut record: Option<&mut Record>,
        output: &Output,
    ) -> Result<(), Failure> {
        const STEP: Duration = Duration::from_millis(50);
        let interrupt = interrupt::flag();
        let is_over = |interrupt: &AtomicBool| interrupt.load(Ordering::Relaxed);
        while !is_over(&interrupt) && looks.is_none_or(|most| self.state.looks() < most) {
            let seen = match self.watcher.seen().recv_timeout(STEP) {
                Ok(seen) => seen,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) if self.state.ended_s.is_some() => break,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("watching broke off: start it again"));
                }
            };
            if let Some(record) = &mut record {
                record.write(&seen);
                record.failure().map_or(Ok(()), Err)?;
            }
            if !self.take_in(seen, output)? {
                break;
            }
        }
        Ok(())
    }

    /// Prints what is to be printed of it. Says whether anybody reads.
    fn take_in(&mut self, seen: WatchEvent, output: &Output) -> Result<bool, Failure> {
        let look = match &seen {
            WatchEvent::Observed(t_s, _) => Some(*t_s),
            WatchEvent::Failed(error @ TargetError::Replaced(_)) => {
                note!("lowtide: {error}");
                None
            }
            WatchEvent::Failed(error) => return Err(failure(error, &self.again)),
            _ => None,
        };
        self.state.see(seen);
        let (Some(t_s), Some(found)) = (look, self.state.latest()) else {
            return Ok(true);
        };
        if output.json {
            output.line_of(found)
        } else {
            output.line(&plain(t_s, found, self.state.unreadable.is_none()))
        }
    }

    /// Prints what the screen showed last of a process that has ended.
    fn summary(&self, output: &Output) -> Result<(), Failure> {
        let (Some(t_s), Some(found)) = (self.state.ended_s, self.state.latest()) else {
            return Ok(());
        };
        let peak = Human(self.state.course().peak_rss_bytes);
        let text = format!("process {} ended; RSS was at most {peak}", self.state.pid);
        output.line(&plain(t_s, found, self.state.unreadable.is_none()))?;
        output.line(&text).map(drop)
    }

    /// How it ends.
    fn end(&self) -> Result<Exit, Failure> {
        match (self.state.unreadable, self.state.ended_s) {
            (Some(limit), _) => Err(not_permitted(limit, self.state.pid, &self.again)),
            (None, Some(_)) if self.state.looks() == 0 => {
                Err(Failure::new(Exit::Gone, TargetError::Gone(self.state.pid)))
            }
            _ => Ok(Exit::Done),
        }
    }
}

/// One look as a line for people and for `awk`; a heap that may not be seen has no figures.
fn plain(t_s: f64, found: &Inspection, is_seen: bool) -> String {
    let human = |bytes: u64| Human(bytes).to_string();
    let of =
        |owner| if is_seen { human(found.observation.ledger.bytes(owner)) } else { "-".to_owned() };
    format!(
        "{t_s:>7.1} s  RSS {:>9}  allocated {:>9}  reclaimable {:>9}  {}",
        human(found.observation.rss_bytes),
        of(Owner::Allocated),
        of(Owner::Reclaimable),
        found.verdict.kind.name()
    )
}

/// The command that was given.
fn again(args: &WatchArgs) -> String {
    let mut words = vec!["lowtide watch".to_owned()];
    if args.interval != DEFAULT_INTERVAL {
        words.push(format!("--interval {}", args.interval));
    }
    words.extend(args.looks.iter().map(|looks| format!("--looks {looks}")));
    words.extend(args.output.iter().map(|path| format!("--output {}", path.display())));
    words.push(args.pid.to_string());
    words.join(" ")
}

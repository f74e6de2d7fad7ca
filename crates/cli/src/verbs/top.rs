//! `lowtide top`.

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_survey::budget::UncountedCpu;
use lowtide_survey::survey::CgroupOf;
use lowtide_survey::{Survey, SurveyOptions};

use crate::args::values::{DEFAULT_INTERVAL, watch_interval};
use crate::args::{TopArgs, WatchArgs};
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};
use crate::top::live::{self, End};
use crate::top::rows::{self, GroupKey, SortKey};
use crate::top::state::State;
use crate::top::table;
use crate::{console::interrupt, verbs};

/// Maximum time that `--once` waits for inspections, without `--deadline`.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Time after which the growth of RSS is known, in seconds: ten seconds, and one scan.
const GROWTH_TIME_S: f64 = 13.0;
/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Share of a core for everything after the first inspection of each process.
const BUDGET: f64 = 0.05;
/// Maximum number of inspections at once.
const MAX_WORKERS: usize = 4;

pub(crate) fn run(args: &TopArgs, output: &Output) -> Result<Exit, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let is_terminal = io::stdout().is_terminal() && !is_dumb();
    let is_live = is_terminal && !args.once && !output.json;
    let cgroup_of: CgroupOf = |process| Some(process.cgroup().to_owned());
    let options = SurveyOptions {
        filter: args.filter.survey_filter(),
        between_scans: args.interval,
        workers: cores.clamp(2, MAX_WORKERS),
        budget: BUDGET,
        hurries: true,
        patience: args.deadline.patience(),
        // In the live view, a key changes what the lines stand for.
        cgroup_of: (args.by == GroupKey::Cgroup || is_live).then_some(cgroup_of),
        uncounted_cpu: UncountedCpu::default(),
    };
    let survey = Survey::start(options)
        .map_err(|error| Failure::failed(format!("no thread could be started: {error}")))?;
    if args.once || (!output.json && !is_terminal) {
        return once(args, &survey, output);
    }
    if output.json {
        return stream(args, &survey, output);
    }
    let interrupt = interrupt::patient_flag();
    let mut state = State::new(args.sort, args.by);
    loop {
        match live::run(&survey, &mut state, output.screen().colour, &interrupt)? {
            End::Quit => return Ok(Exit::Done),
            End::Watch(pid) => {
                if let Err(failure) = verbs::watch::run(&watch(pid)?, output) {
                    state.message =
                        Some(failure.to_string().lines().next().unwrap_or_default().to_owned());
                }
                if interrupt.load(Ordering::Relaxed) {
                    return Ok(Exit::Done);
                }
            }
        }
    }
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn watch(pid: u32) -> Result<WatchArgs, Failure> {
    let interval = watch_interval(DEFAULT_INTERVAL).map_err(Failure::failed)?;
    let pid = Some(pid);
    Ok(WatchArgs { pid, cgroup: None, interval, looks: None, output: None, log: None })
}

/// Prints the table once all processes have been inspected, or after the deadline.
fn once(args: &TopArgs, survey: &Survey, output: &Output) -> Result<Exit, Failure> {
    let interrupt = interrupt::flag();
    let begin = Instant::now();
    // Growth is known once RSS has been read for some time.
    let needs_growth = args.sort == SortKey::Growth;
    let is_complete = || {
        survey
            .read(|host| host.is_complete() && (!needs_growth || host.elapsed_s() > GROWTH_TIME_S))
    };
    let most = args.deadline.time().unwrap_or(MAX_WAIT);
    while !is_complete() && begin.elapsed() < most && !interrupt.load(Ordering::Relaxed) {
        survey.wait(POLL_INTERVAL);
        check(survey)?;
    }
    let top = survey.read(|host| rows::top(host, args.sort, args.by));
    if top.processes.is_empty() {
        return Err(nothing(args));
    }
    if output.json {
        output.object(&top)?;
    } else {
        output.text(&table::render(&top, args.by, args.sort, output.screen().width))?;
    }
    if interrupt.load(Ordering::Relaxed) { Ok(Exit::Interrupted) } else { Ok(Exit::Done) }
}

/// Prints an object after each interval, until a signal arrives or stdout is closed.
fn stream(args: &TopArgs, survey: &Survey, output: &Output) -> Result<Exit, Failure> {
    let interrupt = interrupt::flag();
    let mut next = Instant::now() + args.interval;
    while !interrupt.load(Ordering::Relaxed) {
        survey.wait(POLL_INTERVAL);
        check(survey)?;
        if Instant::now() >= next {
            next += args.interval;
            let top = survey.read(|host| rows::top(host, args.sort, args.by));
            if !output.line_of(&top)? {
                break;
            }
        }
    }
    Ok(Exit::Done)
}

fn check(survey: &Survey) -> Result<(), Failure> {
    match survey.error() {
        Some(kind) => Err(Failure::failed(format!("/proc cannot be read: {kind}"))),
        None => Ok(()),
    }
}

fn nothing(args: &TopArgs) -> Failure {
    let words = args.filter.words().join(" ");
    let words = if words.is_empty() { "--all".to_owned() } else { words };
    let message = format!("no process matches {words}: it may have ended");
    Failure::new(Exit::Gone, message).next("ps -eo pid,comm,args")
}

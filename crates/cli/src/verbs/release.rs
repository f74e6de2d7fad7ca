//! `lowtide release PID…`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressFinish};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{Method as ReleaseMethod, Outcome, Regained, Release};
use lowtide_probe::inspect::{Footprint, Target};
use lowtide_probe::process::Process;
use lowtide_release::{Options, PeriodicThread, Progress, ReleaseError, release};
use lowtide_report::release as picture;
use lowtide_report::terminal::printable;

use super::inspect::{failure, wait_until};
use super::together::Together;
use crate::args::{Method, ReleaseArgs, duration};
use crate::bar::on_stderr;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::output::{Output, note};
use crate::selector::Selected;

/// The default of `--max-pause`,
pub(crate) const DEFAULT_MAX_PAUSE: &str = "1ms";
/// the least that it may be: entering a thread and leaving it again takes a part of this,
const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
/// and the most: beyond, nothing would be bounded that anybody notices.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The least that `--watch` may be.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ReleaseArgs, output: &Output) -> Result<Exit, Failure> {
    let mut options = options(args)?;
    let watch = args.watch.as_deref().map(time_to_watch).transpose()?;
    if args.method == Method::Trim && !args.dry_run {
        note!(
            "lowtide: malloc_trim holds each arena's lock for as long as it takes (hundreds of ms for \
             3 GB), and whoever allocates waits meanwhile: it is there for comparison, and --method \
             chunks does without"
        );
    }
    let wait = args.wait.as_deref().map(|text| duration("--wait", text)).transpose()?;
    let pids = args.selector.select()?;
    if args.selector.is_group() && !args.dry_run && !args.yes && !is_wanted(&pids, args)? {
        return Ok(Exit::Done);
    }
    // From here on the first Ctrl-C ends a release that is under way as soon as nothing of it is left.
    let interrupt = interrupt::flag();
    options.interrupt = Arc::clone(&interrupt);
    let act = Act { args, options, watch, wait, interrupt: &interrupt, output };
    let mut worst = Exit::Done;
    let mut whole = Together::default();
    for selected in &pids {
        let pid = selected.pid;
        if interrupt.load(Ordering::Relaxed) {
            worst = Exit::Interrupted;
            break;
        }
        if !args.selector.still_means(selected) {
            continue;
        }
        let exit = match act.on(pid, &mut whole)? {
            Ok(exit) => exit,
            Err(failure) if pids.len() == 1 => return Err(failure),
            // A process that a selector found may have ended since. Only one that was named by PID is an error.
            Err(failure) if failure.exit() == Exit::Gone && !args.selector.pids.contains(&pid) => {
                continue;
            }
            Err(failure) => {
                whole.add_unreadable();
                failure.tell(output);
                failure.exit()
            }
        };
        worst = worse(worst, exit);
    }
    if args.selector.is_group() {
        whole.show(output)?;
    }
    Ok(worst)
}

/// Lists what was selected, and asks whether to act on it.
fn is_wanted(pids: &[Selected], args: &ReleaseArgs) -> Result<bool, Failure> {
    let processes =
        format!("{} {}", pids.len(), if pids.len() == 1 { "process" } else { "processes" });
    let words = args.selector.words().join(" ");
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let message = format!(
            "{words} selects {processes}: add --yes to release without a terminal to confirm on"
        );
        return Err(Failure::usage(message).next(format!("lowtide release --dry-run {words}")));
    }
    for Selected { pid, .. } in pids {
        let command = Process::open(*pid).ok().flatten().map(|(process, _)| process.command());
        note!("{pid:>8}  {}", printable(&command.unwrap_or_default().join(" ")));
    }
    note!("Release free memory of {processes}? [y/N]");
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn options(args: &ReleaseArgs) -> Result<Options, Failure> {
    if args.method == Method::Purge && !args.unbounded {
        return Err(Failure::usage(
            "--method purge: an allocator's own purge takes as long as it takes: --unbounded permits \
             that",
        ));
    }
    Ok(Options {
        max_pause: max_pause(&args.max_pause)?,
        method: match args.method {
            Method::Auto => None,
            Method::Chunks => Some(ReleaseMethod::Chunks),
            Method::Trim => Some(ReleaseMethod::Trim),
            Method::Purge => Some(ReleaseMethod::Purge),
        },
        untested: args.untested,
        dry_run: args.dry_run,
        interrupt: Arc::default(),
        progress: Arc::default(),
    })
}

fn max_pause(text: &str) -> Result<Duration, Failure> {
    let pause = duration("--max-pause", text)?;
    let human = |time: Duration| HumanSeconds(time.as_secs_f64()).to_string();
    if (SHORTEST_PAUSE..=LONGEST_PAUSE).contains(&pause) {
        return Ok(pause);
    }
    Err(Failure::usage(format!(
        "--max-pause: {text} cannot be kept: give it from {} to {}",
        human(SHORTEST_PAUSE),
        human(LONGEST_PAUSE)
    )))
}

fn time_to_watch(text: &str) -> Result<Duration, Failure> {
    let time = duration("--watch", text)?;
    if time < SHORTEST_WATCH {
        return Err(Failure::usage(format!(
            "--watch: {text} is too short for anything to come back: give it at least {}",
            HumanSeconds(SHORTEST_WATCH.as_secs_f64())
        )));
    }
    Ok(time)
}

/// The worse of two ends: what went wrong, before what was not begun.
fn worse(one: Exit, other: Exit) -> Exit {
    const FROM_BAD_TO_WORSE: [Exit; 7] = [
        Exit::Done,
        Exit::Gone,
        Exit::Refused,
        Exit::NotPermitted,
        Exit::Usage,
        Exit::Failed,
        Exit::Interrupted,
    ];
    let place = |exit| FROM_BAD_TO_WORSE.iter().position(|e| *e == exit);
    if place(other) > place(one) { other } else { one }
}

/// What is done to each process.
struct Act<'a> {
    args: &'a ReleaseArgs,
    options: Options,
    watch: Option<Duration>,
    /// For how long a refusal that may pass is tried again.
    wait: Option<Duration>,
    interrupt: &'a AtomicBool,
    output: &'a Output,
}

impl Act<'_> {
    /// The outer error is that nothing can be printed any more: then nothing more is done either.
    fn on(&self, pid: u32, whole: &mut Together) -> Result<Result<Exit, Failure>, Failure> {
        let again = again(self.args, pid);
        let target = match Target::open(pid) {
            Ok(target) => target,
            Err(error) => return Ok(Err(failure(&error, &again))),
        };
        let is_group = self.args.selector.is_group();
        let pss_before = is_group.then(|| super::together::now(&target)).flatten();
        let shown = Shown::begin(&self.options.progress);
        let done = self.release(&target);
        drop(shown);
        let mut done = match done {
            Ok(done) => done,
            Err(error) => return Ok(Err(not_done(error, pid, &again))),
        };
        if is_group {
            whole.add(&target, &done, pss_before);
        }
        if self.output.json {
            self.watch(&target, &mut done);
            self.output.object(&done)?;
        } else {
            self.show(&target, &mut done)?;
        }
        let failure = match done.outcome {
            Outcome::Released | Outcome::NothingToRelease => return Ok(Ok(Exit::Done)),
            Outcome::Refused => refused(&done, &again),
            Outcome::Partial => {
                let sentence = format!("process {pid}: {}", picture::sentence(&done));
                let exit = match self.interrupt.load(Ordering::Relaxed) {
                    true => Exit::Interrupted,
                    false => Exit::Failed,
                };
                Failure::new(exit, sentence).next(again)
            }
        };
        // The object that was printed is the answer; this is the same for people.
        note!("lowtide: {failure}");
        Ok(Ok(failure.exit()))
    }

    /// Tries it, and where it is refused for a reason that may pass, again.
    fn release(&self, target: &Target) -> Result<Release, ReleaseError> {
        /// The time between two attempts.
        const STEP: Duration = Duration::from_millis(250);
        let begin = Instant::now();
        loop {
            let done = release(target, &self.options)?;
            let may_pass = done.may_pass == Some(true);
            let rest = self.wait.unwrap_or_default().saturating_sub(begin.elapsed());
            if !may_pass || rest.is_zero() || self.interrupt.load(Ordering::Relaxed) {
                return Ok(done);
            }
            wait_until(Instant::now() + STEP.min(rest), target, self.interrupt);
        }
    }

    /// For people, who see what was done before what comes back.
    fn show(&self, target: &Target, done: &mut Release) -> Result<(), Failure> {
        if done.outcome == Outcome::Refused {
            return Ok(());
        }
        let screen = self.output.screen();
        self.output.text(&picture::render(done, screen))?;
        let told = done.notes.len();
        self.watch(target, done);
        if let Some(regained) = &done.regained {
            self.output.text(&picture::regained(regained, screen))?;
        }
        for note in &done.notes[told..] {
            self.output.text(&format!("note: {note}\n"))?;
        }
        match next(done, self.args) {
            Some(next) => self.output.text(&format!("next: {next}\n")),
            None => Ok(()),
        }
    }

    /// Waits, and sees what has come back.
    fn watch(&self, target: &Target, done: &mut Release) {
        let is_done = matches!(done.outcome, Outcome::Released | Outcome::Partial);
        let Some(time) = self.watch.filter(|_| is_done && !done.dry_run) else { return };
        match self.regained(target, time) {
            Ok(regained) => done.regained = Some(regained),
            Err(why) => done.notes.push(format!("what has come back is not known: {why}")),
        }
    }

    fn regained(&self, target: &Target, time: Duration) -> Result<Regained, String> {
        let text = |error: lowtide_probe::inspect::TargetError| error.to_string();
        let begin = Instant::now();
        let before = Footprint::read(target).map_err(text)?;
        wait_until(begin + time, target, self.interrupt);
        let after = Footprint::read(target).map_err(text)?;
        if after.image != before.image {
            return Err(format!("process {} started another program", target.pid));
        }
        let huge = after.huge_bytes.zip(before.huge_bytes);
        Ok(Regained {
            after_s: begin.elapsed().as_secs_f64(),
            rss_bytes: after.rss_bytes.saturating_sub(before.rss_bytes),
            huge_bytes: huge.map(|(after, before)| after.saturating_sub(before)),
        })
    }
}

/// A line on the terminal while a release takes longer than people like to wait without a word.
struct Shown {
    _line: Option<PeriodicThread>,
}

impl Shown {
    fn begin(progress: &Arc<Progress>) -> Self {
        /// So long nothing is said.
        const SILENCE: Duration = Duration::from_secs(1);
        const STEP: Duration = Duration::from_millis(100);
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
        Self { _line: PeriodicThread::start(STEP, draw).ok() }
    }
}

/// What to type next, of one that was not refused and came to its end.
fn next(done: &Release, args: &ReleaseArgs) -> Option<String> {
    let pid = done.pid;
    match done.outcome {
        Outcome::Refused | Outcome::Partial => None,
        Outcome::NothingToRelease => {
            Some(format!("lowtide inspect {pid}     (whose are the bytes?)"))
        }
        Outcome::Released if done.dry_run => {
            let act = ReleaseArgs { dry_run: false, ..args.clone() };
            Some(again(&act, pid))
        }
        Outcome::Released => Some(format!("lowtide inspect {pid}     (what is left?)")),
    }
}

/// Why it was left alone, and what helps.
fn refused(done: &Release, again: &str) -> Failure {
    let pid = done.pid;
    let sentence = format!("process {pid}: {}", picture::sentence(done));
    let next = match done.hazard.as_deref().unwrap_or_default() {
        "traced" => format!("grep TracerPid /proc/{pid}/status"),
        "stopped" => format!("kill -CONT {pid} && {again}"),
        "frozen" => format!("cat /proc/{pid}/cgroup"),
        "another_release" | "heap_not_whole" | "no_thread" | "shared_memory"
            if done.may_pass == Some(true) && !again.contains("--wait") =>
        {
            again.replacen("lowtide release", "lowtide release --wait 30s", 1)
        }
        "untested" => again.replacen("lowtide release", "lowtide release --untested", 1),
        "no_trim" => again.replacen("--method trim", "--method chunks", 1),
        "seccomp_unread" => format!("sudo {again}"),
        _ => format!("lowtide inspect {pid}"),
    };
    Failure::new(Exit::Refused, sentence).next(next)
}

/// A release that could not be tried, or broke off.
fn not_done(error: ReleaseError, pid: u32, again: &str) -> Failure {
    match error {
        ReleaseError::Target(error) => failure(&error, again),
        ReleaseError::NotPermitted { .. } => {
            Failure::new(Exit::NotPermitted, error).next(format!("sudo {again}"))
        }
        ReleaseError::Interrupted => {
            Failure::new(Exit::Interrupted, format!("process {pid}: {error}"))
        }
        ReleaseError::Failed(what) => Failure::failed(format!("process {pid}: {what}")),
    }
}

/// The command that was given, for one process.
fn again(args: &ReleaseArgs, pid: u32) -> String {
    let mut words = vec!["lowtide release".to_owned()];
    let flags = [
        (args.dry_run, "--dry-run"),
        (args.unbounded, "--unbounded"),
        (args.untested, "--untested"),
    ];
    words.extend(flags.iter().filter(|flag| flag.0).map(|flag| flag.1.to_owned()));
    if args.max_pause != DEFAULT_MAX_PAUSE {
        words.push(format!("--max-pause {}", args.max_pause));
    }
    if args.method != Method::Auto {
        words.push(format!("--method {}", args.method.name()));
    }
    words.extend(args.wait.iter().map(|time| format!("--wait {time}")));
    words.extend(args.watch.iter().map(|time| format!("--watch {time}")));
    words.push(pid.to_string());
    words.join(" ")
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
    fn the_command_to_type_again_is_the_one_that_was_given() {
        for words in [
            "7",
            "--dry-run 7",
            "--unbounded --untested --max-pause 500us --method purge --wait 5s --watch 60s 7",
        ] {
            assert_eq!(again(&args(words), 7), format!("lowtide release {words}"));
        }
        assert_eq!(again(&args("7 8 9"), 8), "lowtide release 8");
    }

    #[test]
    fn a_pause_is_from_a_tenth_of_a_millisecond_to_a_second() {
        for (text, micros) in [("100us", 100), ("1ms", 1000), ("1s", 1_000_000)] {
            assert_eq!(max_pause(text).unwrap(), Duration::from_micros(micros));
        }
        for text in ["0", "99us", "1.1s", "-1ms", "5", "soon", ""] {
            let said = max_pause(text).unwrap_err().to_string();
            assert!(said.starts_with("--max-pause: "), "{said}");
        }
        let said = max_pause("2s").unwrap_err().to_string();
        assert_eq!(said, "--max-pause: 2s cannot be kept: give it from 100 µs to 1.00 s");
        assert_eq!(max_pause(DEFAULT_MAX_PAUSE).unwrap(), Options::default().max_pause);
    }

    #[test]
    fn of_several_ends_the_worst_is_what_went_wrong() {
        let all = [Exit::Done, Exit::Gone, Exit::Refused, Exit::NotPermitted, Exit::Failed];
        for (place, bad) in all.iter().enumerate() {
            for worse_one in &all[place..] {
                assert_eq!(worse(*bad, *worse_one), *worse_one);
                assert_eq!(worse(*worse_one, *bad), *worse_one);
            }
        }
    }

    #[test]
    fn what_has_come_back_is_seen_until_the_process_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        // Until then it may still be becoming another program.
        while target.stat().unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let (args, interrupt) = (args("7"), AtomicBool::new(true));
        let output = Output::new(true, clap::ColorChoice::Never);
        let options = Options::default();
        let act = Act {
            args: &args,
            options,
            watch: None,
            wait: None,
            interrupt: &interrupt,
            output: &output,
        };
        let hour = Duration::from_secs(3600);
        // It was interrupted, and tells what there is so far.
        assert!(act.regained(&target, hour).unwrap().after_s < 3600.0);
        child.kill().unwrap();
        child.wait().unwrap();
        let why = act.regained(&target, hour).unwrap_err();
        assert!(why.contains("ended"), "{why}");
    }
}

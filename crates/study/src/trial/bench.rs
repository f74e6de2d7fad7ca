//! The real stage: processes, a load, and the clock.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lowtide_model::duration::HumanSeconds;
use lowtide_model::record::v1::{End, Line, Load, Mark, Moment, Outcome, Trial, Usage};

use super::sampling::{Account, Sampling};
use super::{Stage, Stop};
use crate::keeper::{Event, Exit, KeeperProgram, Kept, Launch, Report};
use crate::output::{self, Tail};
use crate::plan::Plan;
use crate::ready::Ready;
use crate::recorder::Recorder;
use crate::runner::{Observer, Progress};
use crate::treatment::{Applied, find_program};

/// How long a condition of being ready is waited for, at most.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How often waiting looks up.
const STEP: Duration = Duration::from_millis(20);
/// How long the subject's last output is waited for, once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The real stage of one trial.
pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) applied: &'a Applied,
    pub(crate) keeper: &'a KeeperProgram,
    pub(crate) recorder: Recorder,
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) interrupt: &'a AtomicBool,
    /// The path of the trial's files, without an ending: `DIR/trials/001-glibc`.
    pub(crate) files: PathBuf,
    pub(crate) number: u32,
    pub(crate) repeat: u32,
    pub(crate) deadline: Instant,
    subject: Option<Subject>,
    exit: Option<Exit>,
    usage: Option<Usage>,
    account: Account,
    /// Set by the thread that reads what the subject prints.
    announced: Arc<Announced>,
}

#[derive(Debug, Default)]
struct Announced {
    ready: AtomicBool,
    load_end: AtomicBool,
}

struct Subject {
    kept: Kept,
    pid: Option<u32>,
    sampling: Option<Sampling>,
    tail: Tail,
    reader: JoinHandle<()>,
}

impl<'a> Bench<'a> {
    #[expect(clippy::too_many_arguments, reason = "the parts of a trial, each used once")]
    pub(crate) fn new(
        plan: &'a Plan,
        applied: &'a Applied,
        keeper: &'a KeeperProgram,
        recorder: Recorder,
        observer: &'a mut dyn Observer,
        interrupt: &'a AtomicBool,
        files: PathBuf,
        number: u32,
        repeat: u32,
    ) -> Self {
        Self {
            plan,
            applied,
            keeper,
            recorder,
            observer,
            interrupt,
            files,
            number,
            repeat,
            deadline: Instant::now() + plan.course.timeout,
            subject: None,
            exit: None,
            usage: None,
            account: Account::default(),
            announced: Arc::default(),
        }
    }

    /// Writes the last line of the trial's file.
    pub(crate) fn finish(self, outcome: &Outcome) {
        // A subject that we ended tells nothing by how it ended.
        let exit = self.exit;
        self.recorder.write(&Line::End(End {
            t_s: self.recorder.now(),
            outcome: outcome.clone(),
            exit_code: exit.and_then(|e| e.code),
            signal: exit.and_then(|e| e.signal),
            usage: self.usage,
            sampler_cpu_s: self.account.cpu_s,
            missed_ticks: self.account.missed_ticks,
        }));
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut name = self.files.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    fn mark_at(&self, at: Instant, mark: Moment, round: Option<u32>) {
        let t_s = self.recorder.time_of(at);
        self.recorder.write(&Line::Mark(Mark { t_s, mark, round, name: None }));
    }

    /// What must be looked after while anything is waited for.
    fn look_up(&mut self) -> Result<(), Stop> {
        if let Some(subject) = &self.subject
            && let Some(sampling) = &subject.sampling
        {
            let (rss_bytes, connections) = sampling.latest();
            self.observer.see(Progress::Reading { rss_bytes, connections });
        }
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted);
        }
        if let Some(failure) = self.recorder.failure() {
            return Err(Stop::Failed(format!("the record could not be written: {failure}")));
        }
        if Instant::now() > self.deadline {
            return Err(Stop::Failed(self.too_late()));
        }
        Ok(())
    }

    fn too_late(&self) -> String {
        let limit = HumanSeconds(self.plan.course.timeout.as_secs_f64());
        let hint = if self.plan.course.load.is_none() {
            "the command neither ended nor was it given a --load; "
        } else {
            ""
        };
        format!("the trial did not end within {limit}: {hint}allow more with --timeout")
    }

    /// Takes in what the keeper of the subject tells. `true` when the subject has ended.
    fn hear_subject(&mut self, patience: Duration) -> bool {
        let Some(subject) = &mut self.subject else { return true };
        while let Some(Event { at, report }) = subject.kept.next_event(patience) {
            match report {
                Report::Exited(exit) => {
                    self.exit = Some(exit);
                    let t_s = self.recorder.time_of(at);
                    let mark = Mark { t_s, mark: Moment::Exit, round: None, name: None };
                    self.recorder.write(&Line::Mark(mark));
                    return true;
                }
                Report::Started { pid } => subject.pid = Some(pid),
                Report::CannotStart { .. } | Report::Gone { .. } => return true,
            }
        }
        self.exit.is_some() || subject.kept.is_gone()
    }

    /// Fails when the subject has ended while it should be there. One whose first process ended well
    /// and left others behind has only gone into the background.
    fn must_be_alive(&mut self, during: &str) -> Result<(), Stop> {
        if !self.hear_subject(Duration::ZERO) {
            return Ok(());
        }
        let in_background = self.exit.is_some_and(Exit::is_success)
            && self.subject.as_ref().is_some_and(|s| {
                !s.kept.is_gone() && !lowtide_probe::tree::descendants_of(s.kept.root()).is_empty()
            });
        if in_background {
            return Ok(());
        }
        Err(Stop::Failed(self.ended_early(during)))
    }

    fn ended_early(&self, during: &str) -> String {
        let how = self.exit.map_or("no word of how".to_owned(), |exit| exit.to_string());
        format!("the command ended {during} with {how}{}", self.last_words())
    }

    fn last_words(&self) -> String {
        let Some(subject) = &self.subject else { return String::new() };
        let deadline = Instant::now() + LAST_WORDS;
        while !subject.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        subject.tail.quoted()
    }

    /// Runs a line for the shell to its end: prepare, cleanup, load.
    fn run_shell(
        &mut self,
        what: &str,
        line: &str,
        log: &Path,
        stdout: Option<PathBuf>,
    ) -> Result<Exit, Stop> {
        let failed =
            |error: io::Error| Stop::Failed(format!("{what} could not be started: {error}"));
        let (reader, writer) = io::pipe().map_err(failed)?;
        let mut launch = Launch::shell(line, self.plan.directory.clone(), self.variables());
        launch.stdout = stdout;
        let (tail, printing) =
            output::keep(reader, log, &self.recorder, |_, _| {}).map_err(failed)?;
        let mut kept = Kept::start(self.keeper, launch, writer).map_err(failed)?;
        let watch_subject = self.subject.is_some();
        let exit = loop {
            if let Some(event) = kept.next_event(STEP) {
                match event.report {
                    Report::Exited(exit) => break exit,
                    Report::CannotStart { because, .. } => {
                        return Err(Stop::Failed(format!(
                            "{what} could not be started: {because}"
                        )));
                    }
                    Report::Started { .. } | Report::Gone { .. } => {}
                }
            } else if kept.is_gone() {
                return Err(Stop::Failed(format!("{what} was ended by somebody else")));
            }
            self.look_up()?;
            if watch_subject {
                self.must_be_alive(&format!("during {what}"))?;
            }
        };
        kept.end();
        let _ = printing.join();
        if exit.is_success() {
            Ok(exit)
        } else {
            Err(Stop::Failed(format!("{what} failed with {exit}{}", tail.quoted())))
        }
    }

    /// What the commands around the subject are told.
    fn variables(&self) -> Vec<(String, String)> {
        let record = self.files.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let mut variables = vec![
            ("LOWTIDE_TRIAL".to_owned(), self.number.to_string()),
            ("LOWTIDE_TREATMENT".to_owned(), self.applied.treatment.label()),
            ("LOWTIDE_REPEAT".to_owned(), self.repeat.to_string()),
            ("LOWTIDE_RECORD".to_owned(), record.display().to_string()),
        ];
        if let Some(pid) = self.subject.as_ref().and_then(|s| s.pid) {
            variables.push(("LOWTIDE_SUBJECT_PID".to_owned(), pid.to_string()));
        }
        variables
    }

    fn record_trial(&self, launch: &Launch) {
        self.recorder.write(&Line::Trial(Box::new(Trial {
            number: self.number,
            treatment: self.applied.treatment.clone(),
            repeat: self.repeat,
            command: launch.command.clone(),
            directory: launch.directory.as_ref().map(|d| d.display().to_string()),
            program: find_program(&launch.command[0], launch.directory.as_deref())
                .map(|path| path.display().to_string()),
            environment: environment(launch),
            loaded: self.plan.course.load.is_some(),
            interval_s: self.plan.interval.as_secs_f64(),
        })));
    }
}

impl Stage for Bench<'_> {
    fn mark(&mut self, moment: Moment, round: Option<u32>) {
        // What is judged at this moment should be read at this moment, slow figures included.
        let judged = [Moment::Baseline, Moment::LoadEnd, Moment::Settled];
        if judged.contains(&moment)
            && let Some(sampling) = self.subject.as_ref().and_then(|s| s.sampling.as_ref())
        {
            sampling.read_now();
        }
        self.mark_at(Instant::now(), moment, round);
    }

    fn prepare(&mut self) -> Result<(), Stop> {
        let Some(line) = &self.plan.prepare else { return Ok(()) };
        self.observer.see(Progress::Step("prepare".to_owned()));
        self.run_shell("--prepare", line, &self.file(".prepare.log"), None).map(drop)
    }

    fn start(&mut self) -> Result<(), Stop> {
        if let Some(ready) = &self.plan.course.ready
            && matches!(ready, Ready::Tcp(_) | Ready::Http(_))
            && ready.attempt().is_ok()
        {
            return Err(Stop::Failed(format!(
                "something answers at {ready} before the command is started: end it, or use another port"
            )));
        }
        self.observer.see(Progress::Step("start".to_owned()));
        let own: Vec<(String, String)> = self.plan.environment.clone();
        let launch = self.applied.launch(&self.plan.command, self.plan.directory.clone(), &own);
        self.record_trial(&launch);
        let failed =
            |error: io::Error| Stop::Failed(format!("the command could not be started: {error}"));
        let (reader, writer) = io::pipe().map_err(failed)?;
        let announce = announcer(self.plan, &self.recorder, Arc::clone(&self.announced));
        let (tail, printing) =
            output::keep(reader, &self.file(".log"), &self.recorder, announce).map_err(failed)?;
        let kept = Kept::start(self.keeper, launch, writer).map_err(failed)?;
        let root = kept.root();
        self.subject = Some(Subject { kept, pid: None, sampling: None, tail, reader: printing });
        loop {
            self.look_up()?;
            let Some(subject) = &mut self.subject else { return Ok(()) };
            let Some(event) = subject.kept.next_event(STEP) else {
                if subject.kept.is_gone() {
                    let words = self.last_words();
                    return Err(Stop::Failed(format!("the command could not be started{words}")));
                }
                continue;
            };
            match event.report {
                Report::Started { pid } => {
                    subject.pid = Some(pid);
                    subject.sampling = Some(Sampling::start(
                        root,
                        self.applied.clone(),
                        self.recorder.clone(),
                        self.plan.interval,
                    ));
                    self.mark_at(event.at, Moment::Start, None);
                    return Ok(());
                }
                Report::CannotStart { because, .. } => {
                    return Err(Stop::Failed(format!(
                        "the command could not be started: {because}"
                    )));
                }
                Report::Exited(_) | Report::Gone { .. } => {}
            }
        }
    }

    fn await_ready(&mut self, ready: &Ready) -> Result<(), Stop> {
        self.observer.see(Progress::Step("wait until ready".to_owned()));
        let begin = Instant::now();
        let limit = match ready {
            Ready::After(time) => *time + READY_LIMIT,
            _ => READY_LIMIT,
        };
        loop {
            let tried = match ready {
                Ready::After(time) if begin.elapsed() >= *time => Ok(()),
                Ready::Log(_) if self.announced.ready.load(Ordering::Relaxed) => Ok(()),
                _ => ready.attempt(),
            };
            let Err(reason) = tried else { return Ok(()) };
            self.look_up()?;
            self.must_be_alive("before it was ready")?;
            if begin.elapsed() > limit {
                let limit = HumanSeconds(limit.as_secs_f64());
                let words = self.last_words();
                return Err(Stop::Failed(format!(
                    "the command was not ready within {limit} by {ready} ({reason}){words}"
                )));
            }
            std::thread::sleep(STEP);
        }
    }

    fn load(&mut self, round: u32) -> Result<(), Stop> {
        let Some(line) = self.plan.course.load.clone() else { return Ok(()) };
        let name = if round == 0 { "warm-up".to_owned() } else { format!("load {round}") };
        self.observer.see(Progress::Step(format!("{name} of {}", self.plan.course.rounds)));
        let output = self.file(&format!(".load-{round}.out"));
        let log = self.file(&format!(".load-{round}.log"));
        let begin = Instant::now();
        let ran = self.run_shell("the load", &line, &log, Some(output.clone()));
        let wall_s = begin.elapsed().as_secs_f64();
        let exit_code = match &ran {
            Ok(exit) => exit.code,
            Err(_) => None,
        };
        self.recorder.write(&Line::Load(Load {
            round,
            exit_code,
            wall_s,
            report: fs::read_to_string(&output).ok().and_then(|text| load_report(&text)),
        }));
        ran.map(drop)
    }

    fn pass(&mut self, time: Duration, close: bool) -> Result<(), Stop> {
        let step = if close { "look closely" } else { "let time pass" };
        self.observer.see(Progress::Step(step.to_owned()));
        if let Some(sampling) = self.subject.as_ref().and_then(|s| s.sampling.as_ref()) {
            sampling.pay_attention(close);
        }
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look_up()?;
            self.must_be_alive("while nothing loaded it")?;
            std::thread::sleep(STEP.min(end.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    fn await_end(&mut self, after_load: Option<Duration>) -> Result<(), Stop> {
        self.observer.see(Progress::Step("run to its end".to_owned()));
        let mut load_ended = None;
        while !self.hear_subject(STEP) {
            self.look_up()?;
            if self.announced.load_end.load(Ordering::Relaxed) {
                load_ended = load_ended.or(Some(Instant::now()));
            }
            if let (Some(time), Some(since)) = (after_load, load_ended)
                && since.elapsed() >= time
            {
                self.mark(Moment::Settled, None);
                return Ok(());
            }
        }
        match self.exit {
            Some(exit) if exit.is_success() => Ok(()),
            _ => Err(Stop::Failed(self.ended_early("by itself"))),
        }
    }

    fn end(&mut self) {
        self.observer.see(Progress::Step("end".to_owned()));
        let Some(mut subject) = self.subject.take() else { return };
        if self.exit.is_none() {
            self.mark_at(Instant::now(), Moment::Stop, None);
        }
        if let Some(sampling) = subject.sampling.take() {
            self.account = sampling.stop();
        }
        self.usage = subject.kept.end();
        drop(subject.kept);
        let _ = subject.reader.join();
    }

    fn cleanup(&mut self) -> Result<(), Stop> {
        let Some(line) = &self.plan.cleanup else { return Ok(()) };
        self.observer.see(Progress::Step("cleanup".to_owned()));
        // It runs also when the trial was interrupted or is too late.
        self.deadline = Instant::now() + self.plan.course.timeout;
        let interrupt = AtomicBool::new(false);
        let log = self.file(".cleanup.log");
        let mut again = Bench {
            plan: self.plan,
            applied: self.applied,
            keeper: self.keeper,
            recorder: self.recorder.clone(),
            observer: &mut *self.observer,
            interrupt: &interrupt,
            files: self.files.clone(),
            number: self.number,
            repeat: self.repeat,
            deadline: self.deadline,
            subject: None,
            exit: None,
            usage: None,
            account: Account::default(),
            announced: Arc::default(),
        };
        again.run_shell("--cleanup", line, &log, None).map(drop)
    }
}

/// What is done with each line that the subject prints.
fn announcer(
    plan: &Plan,
    recorder: &Recorder,
    announced: Arc<Announced>,
) -> impl FnMut(&str, Instant) + Send + 'static {
    let ready = match &plan.course.ready {
        Some(Ready::Log(regex)) => Some(regex.clone()),
        _ => None,
    };
    let phases = plan.phases.clone();
    let recorder = recorder.clone();
    move |line: &str, at: Instant| {
        if ready.as_ref().is_some_and(|regex| regex.is_match(line)) {
            announced.ready.store(true, Ordering::Relaxed);
        }
        for phase in phases.iter().filter(|phase| phase.line.is_match(line)) {
            recorder.write(&Line::Mark(Mark {
                t_s: recorder.time_of(at),
                mark: Moment::Phase,
                round: None,
                name: Some(phase.name.clone()),
            }));
            if phase.name == "load_end" {
                announced.load_end.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// The figures of a load that printed a `lowtide.load/1` object: those of its last round.
fn load_report(text: &str) -> Option<serde_json::Value> {
    let whole = std::iter::once(text.trim());
    let lines = text.lines().rev().map(str::trim).filter(|l| l.starts_with('{'));
    whole.chain(lines).find_map(|candidate| {
        let mut object: serde_json::Value = serde_json::from_str(candidate).ok()?;
        if object.get("schema")?.as_str()? != "lowtide.load/1" {
            return None;
        }
        object.get_mut("rounds")?.as_array_mut()?.pop()
    })
}

/// Inherited variables that bear on memory. Others are nobody's business: a value may be a password.
const SHOWN: [&str; 13] = [
    "LANG",
    "LC_ALL",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "GLIBC_TUNABLES",
    "PYTHONMALLOC",
    "PYTHONUNBUFFERED",
    "NODE_OPTIONS",
    "UV_THREADPOOL_SIZE",
    "GOGC",
    "GOMEMLIMIT",
    "OMP_NUM_THREADS",
    "JAVA_TOOL_OPTIONS",
];

/// What the record tells of the subject's environment: what was set for it, and what bears on memory.
fn environment(launch: &Launch) -> BTreeMap<String, String> {
    let inherited = SHOWN.iter().filter_map(|name| {
        let value = std::env::var_os(name)?.to_string_lossy().into_owned();
        Some(((*name).to_owned(), value))
    });
    let kept = inherited.filter(|(name, _)| !launch.remove.contains(name));
    kept.chain(launch.set.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_a_load_is_found_among_other_lines() {
        let text = "hello\n{\"schema\":\"lowtide.load/1\",\"rounds\":[{\"round\":1,\"failed\":0},{\"round\":2,\"failed\":3}]}\n";
        assert_eq!(load_report(text).unwrap()["failed"], 3);
        assert_eq!(load_report("{\"schema\":\"other\"}"), None);
        assert_eq!(load_report(""), None);
    }

    #[test]
    fn the_record_tells_of_the_environment_only_what_bears_on_memory() {
        let set = vec![("MINE".to_owned(), "1".to_owned())];
        let told = environment(&Launch { set, ..Launch::default() });
        assert_eq!(told.get("MINE").map(String::as_str), Some("1"));
        assert!(!told.contains_key("HOME") && !told.contains_key("CARGO_PKG_NAME"));
    }
}

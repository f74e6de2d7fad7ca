//! The real stage: processes, a load, and the clock.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_model::duration::HumanSeconds;
use lowtide_policy::PolicyKind;
use lowtide_probe::process::ProcReader;
use lowtide_record::LOAD_SAMPLES;
use lowtide_record::Recorder;
use lowtide_record::v1::{End, Event, Line, Load, Mark, Outcome, Trial};

use super::hook_queue::HookQueue;
use super::load_tail::LoadTail;
use super::log_events::LogEvents;
use super::metrics_poller::MetricsPoller;
use super::sampling::RunningSampler;
use super::shell::{Shell, Stdout, read_load_report};
use super::subject::{Heard, Remains, StartedSubject};
use super::supervision::Supervision;
use super::{Stage, TrialStop, environment};
use crate::error::Obstacle;
use crate::keeper::{ExitReport, KeeperCommand, Launch};
use crate::plan::Plan;
use crate::preflight;
use crate::programs::find_program;
use crate::progress::{StudyEvent, StudyObserver};
use crate::ready::Ready;
use crate::treatment::ResolvedTreatment;

/// Maximum time to wait for the ready condition.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time to wait for the report of its end, after the process is gone.
const WORD_OF_END: Duration = Duration::from_secs(1);
/// Time between two checks of the ready condition.
const TRY: Duration = Duration::from_millis(20);
/// Polling interval of waits. Events of the subject wake them immediately.
const STEP: Duration = Duration::from_millis(100);

/// The parts of a trial.
pub(crate) struct TrialContext<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) treatment: &'a ResolvedTreatment,
    pub(crate) keeper: &'a KeeperCommand,
    pub(crate) recorder: Recorder,
    pub(crate) interrupt: &'a AtomicBool,
    /// The path of the trial's files, without an extension: `DIR/trials/001-glibc`.
    pub(crate) files: PathBuf,
    pub(crate) number: u32,
    pub(crate) repeat: u32,
}

/// The real stage of one trial.
pub(crate) struct ProcessStage<'a> {
    pub(super) context: TrialContext<'a>,
    observer: &'a mut dyn StudyObserver,
    /// The running policy of the treatment, if it has one.
    supervision: Option<Supervision>,
    /// CPU time of the policy, in seconds, once the trial has ended.
    policy_cpu_s: Option<f64>,
    deadline: Instant,
    pub(super) subject: Option<StartedSubject>,
    remains: Remains,
    log_events: LogEvents,
    hook_queue: HookQueue,
    /// Resident bytes at the last check whether they have risen.
    rss_before: u64,
    /// The tail of the running load's record.
    load_tail: Option<LoadTail>,
    metrics_poller: Option<MetricsPoller>,
    /// The indices of the treatment's hooks that were run, one entry for each run.
    pub(super) hooks_run: Vec<usize>,
}

impl<'a> ProcessStage<'a> {
    pub(crate) fn new(context: TrialContext<'a>, observer: &'a mut dyn StudyObserver) -> Self {
        let deadline = Instant::now() + context.plan.timeline.timeout;
        let (remains, log_events) = (Remains::default(), LogEvents::default());
        let hook_queue = log_events.hook_queue.clone();
        Self {
            context,
            observer,
            supervision: None,
            policy_cpu_s: None,
            deadline,
            subject: None,
            remains,
            log_events,
            hook_queue,
            rss_before: 0,
            load_tail: None,
            metrics_poller: None,
            hooks_run: Vec::new(),
        }
    }

    /// Writes the last line of the trial's file.
    pub(crate) fn finish(self, outcome: &Outcome) {
        let Remains { exit, ended, account, ledgers_cpu_s } = &self.remains;
        self.record(&Line::End(End {
            t_s: self.context.recorder.now(),
            outcome: outcome.clone(),
            exit_code: exit.and_then(|e| e.code),
            signal: exit.and_then(|e| e.signal),
            usage: ended.usage,
            sampler_cpu_s: account.cpu_s,
            missed_ticks: account.missed_ticks,
            ledgers_cpu_s: Some(*ledgers_cpu_s),
            policy_cpu_s: self.policy_cpu_s,
        }));
    }

    pub(super) fn record(&self, line: &Line) {
        self.context.recorder.write(line);
    }

    pub(super) fn file(&self, ending: &str) -> PathBuf {
        let mut name = self.context.files.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    fn mark_at(&self, at: Instant, mark: Event, round: Option<u32>) {
        let t_s = self.context.recorder.time_of(at);
        self.record(&Line::Mark(Mark { t_s, mark, round, name: None }));
    }

    pub(super) fn step(&mut self, what: impl Into<String>) {
        self.observer.see(StudyEvent::Step(what.into()));
    }

    /// Performs the checks that are due during any wait, and runs the pending hooks.
    fn look_up(&mut self) -> Result<(), TrialStop> {
        self.watch()?;
        while let Some((moment, round)) = self.hook_queue.pop() {
            self.run_hooks(&moment, round)?;
        }
        Ok(())
    }

    /// Starts the policy of the treatment, if it has one.
    fn supervise(&mut self, subject: &StartedSubject) -> Result<(), TrialStop> {
        let policy = self.context.treatment.policy;
        if policy == PolicyKind::None {
            return Ok(());
        }
        let recorder = self.context.recorder.clone();
        let supervision =
            Supervision::start(policy, subject.root(), recorder).map_err(|error| {
                TrialStop::Failed(format!("no thread could be started for the policy: {error}"))
            })?;
        self.supervision = Some(supervision);
        Ok(())
    }

    /// Performs the checks that are due even while a hook runs.
    pub(super) fn watch(&mut self) -> Result<(), TrialStop> {
        self.copy_load_lines();
        if let Some(sampling) = self.subject.as_ref().and_then(StartedSubject::sampling) {
            let (rss_bytes, connections) = sampling.latest();
            self.observer.see(StudyEvent::Reading { rss_bytes, connections });
        }
        if self.context.interrupt.load(Ordering::Relaxed) {
            return Err(TrialStop::Interrupted);
        }
        if let Some(failure) = self.context.recorder.failure() {
            return Err(TrialStop::Failed(format!("the record could not be written: {failure}")));
        }
        let sampling = self.subject.as_ref().and_then(StartedSubject::sampling);
        if let Some(failure) = sampling.and_then(RunningSampler::failure) {
            return Err(TrialStop::Failed(failure));
        }
        self.look_at_clock()
    }

    /// Copies the new lines of the load's record.
    fn copy_load_lines(&mut self) {
        let Some(load_tail) = &mut self.load_tail else { return };
        for line in load_tail.read(self.context.recorder.header()) {
            self.context.recorder.write(&line);
            if let Line::Mark(mark) = &line {
                // The moment needs its own ledger.
                self.log_events.sampler.sample_moment();
                self.queue_hooks(mark.mark, mark.round);
            }
        }
    }

    /// Queues the hooks of a moment. The warm-up has none.
    fn queue_hooks(&self, moment: Event, round: Option<u32>) {
        if let Some(name) = moment.hook_name().filter(|_| round != Some(0)) {
            self.hook_queue.push(name, round);
        }
    }

    fn look_at_clock(&self) -> Result<(), TrialStop> {
        if Instant::now() > self.deadline {
            let timeline = &self.context.plan.timeline;
            let limit = HumanSeconds(timeline.timeout.as_secs_f64());
            let hint = if timeline.load.is_none() {
                "the command did not end by itself, and no other event ends the trial: add \
                 --load, or --phase load_end=log:REGEX with --settle, or "
            } else {
                ""
            };
            let sentence =
                format!("the trial did not end within {limit}: {hint}allow more with --timeout");
            return Err(TrialStop::Failed(sentence));
        }
        Ok(())
    }

    /// Updates the state of the subject. Returns `true` if its first process has ended.
    fn has_ended(&mut self, patience: Duration) -> bool {
        let Some(subject) = &mut self.subject else { return true };
        match subject.hear(patience) {
            Heard::Alive => false,
            Heard::Ended => true,
            Heard::EndsNow(at) => {
                self.mark_at(at, Event::Exit, None);
                true
            }
        }
    }

    /// Fails if the subject has ended too early.
    fn must_be_alive(&mut self, during: &str) -> Result<(), TrialStop> {
        // Its keeper reports the end with a short delay.
        let pid = self.subject.as_ref().and_then(|subject| subject.pid);
        let is_gone = pid.is_some_and(|pid| matches!(ProcReader::open(pid), Ok(None)));
        if !self.has_ended(if is_gone { WORD_OF_END } else { Duration::ZERO }) {
            return Ok(());
        }
        match &self.subject {
            Some(subject) if !subject.is_in_background() => {
                Err(TrialStop::Failed(subject.ended_early(during)))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn shell<'s>(&self, what: &'s str, line: &'s str, log: &'s Path) -> Shell<'s> {
        let directory = self.context.plan.settings.directory.clone();
        Shell { what, line, directory, variables: self.variables(), log, stdout: None }
    }

    fn launch(&self) -> Launch {
        let TrialContext { plan, treatment, .. } = &self.context;
        treatment.launch(&plan.command, plan.settings.directory.clone(), &plan.settings.environment)
    }

    fn record_trial(&self) {
        let TrialContext { plan, treatment, .. } = &self.context;
        let launch = self.launch();
        self.record(&Line::Trial(Box::new(Trial {
            number: self.context.number,
            treatment: treatment.treatment.clone(),
            repeat: self.context.repeat,
            command: launch.command.clone(),
            directory: launch.directory.as_ref().map(|d| d.display().to_string()),
            program: find_program(
                &launch.command[0],
                launch.directory.as_deref(),
                launch.variable("PATH").as_deref(),
            )
            .map(|path| path.display().to_string()),
            environment: environment::recorded(&launch),
            loaded: plan.timeline.load.is_some(),
            interval_s: plan.interval.as_secs_f64(),
        })));
    }

    /// Returns the environment variables for the commands around the subject.
    fn variables(&self) -> Vec<(String, String)> {
        let files = &self.context.files;
        let record = files.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let mut variables = vec![
            ("LOWTIDE_TRIAL".to_owned(), self.context.number.to_string()),
            ("LOWTIDE_TREATMENT".to_owned(), self.context.treatment.treatment.label()),
            ("LOWTIDE_REPEAT".to_owned(), self.context.repeat.to_string()),
            ("LOWTIDE_RECORD".to_owned(), record.display().to_string()),
            ("LOWTIDE".to_owned(), self.context.keeper.path.display().to_string()),
        ];
        if let Some(pid) = self.subject.as_ref().and_then(|s| s.pid) {
            variables.push(("LOWTIDE_SUBJECT_PID".to_owned(), pid.to_string()));
        }
        variables
    }
}

impl Stage for ProcessStage<'_> {
    fn mark(&mut self, moment: Event, round: Option<u32>) {
        // A judged moment is sampled immediately, including slow metrics.
        let judged = [Event::Baseline, Event::LoadEnd, Event::Settled];
        if judged.contains(&moment)
            && let Some(sampling) = self.subject.as_ref().and_then(StartedSubject::sampling)
        {
            sampling.sample_now();
        }
        let ledgers = self.subject.as_ref().and_then(StartedSubject::ledgers);
        match (moment, ledgers) {
            // The next step changes the current memory.
            (Event::Baseline, Some(ledgers)) => ledgers.take_now(),
            (Event::Settled, Some(ledgers)) => ledgers.take_with_pins(),
            (Event::LoadEnd, Some(ledgers)) => ledgers.take_soon(),
            _ => {}
        }
        self.mark_at(Instant::now(), moment, round);
        self.queue_hooks(moment, round);
    }

    fn prepare(&mut self) -> Result<(), TrialStop> {
        self.record_trial();
        let Some(line) = &self.context.plan.settings.prepare else { return Ok(()) };
        self.step("prepare");
        let log = self.file(".prepare.log");
        let shell = self.shell("--prepare", line, &log);
        let (keeper, recorder) = (self.context.keeper, self.context.recorder.clone());
        shell.run(keeper, &recorder, || self.look_up())
    }

    fn start(&mut self) -> Result<(), TrialStop> {
        let plan = self.context.plan;
        if let Some(ready) = plan.timeline.ready.as_ref().filter(|ready| preflight::answers(ready))
        {
            return Err(TrialStop::Failed(Obstacle::PortInUse(ready.to_string()).to_string()));
        }
        self.step("start");
        let treatment = self.context.treatment;
        let launch = self.launch();
        let recorder = self.context.recorder.clone();
        let listener = self.log_events.listener(plan, &recorder);
        let log = self.file(".log");
        let mut subject =
            StartedSubject::launch(self.context.keeper, launch, &log, &recorder, listener)?;
        let begun = loop {
            match subject.await_start(STEP) {
                Ok(Some(at)) => break at,
                Ok(None) => self.look_up()?,
                Err(stop) => {
                    subject.end();
                    return Err(stop);
                }
            }
        };
        subject.sample(treatment, &recorder, plan.interval, &self.log_events.sampler);
        self.supervise(&subject)?;
        self.metrics_poller = plan
            .figures
            .clone()
            .map(|source| MetricsPoller::start(source, recorder.clone(), plan.interval));
        self.subject = Some(subject);
        self.mark_at(begun, Event::Start, None);
        Ok(())
    }

    fn has_risen(&mut self) -> bool {
        /// Usual fluctuation: this number of bytes, or this part.
        const LEAST: u64 = 1 << 20;
        const PART: u64 = 100;
        let sampling = self.subject.as_ref().and_then(StartedSubject::sampling);
        let now = sampling.map_or(0, |sampling| sampling.latest().0);
        let before = std::mem::replace(&mut self.rss_before, now);
        // Before the first sample, the value is unknown.
        before > 0 && now > before + LEAST.max(before / PART)
    }

    fn await_ready(&mut self, ready: &Ready) -> Result<(), TrialStop> {
        self.step("wait until ready");
        let begin = Instant::now();
        let limit = match ready {
            Ready::After(time) => *time + READY_LIMIT,
            _ => READY_LIMIT,
        };
        let limit = limit.min(self.context.plan.timeline.timeout);
        loop {
            let tried = match ready {
                Ready::After(time) if begin.elapsed() >= *time => Ok(()),
                Ready::Log(_) if self.log_events.is_ready() => Ok(()),
                _ => ready.attempt(),
            };
            let Err(reason) = tried else { return Ok(()) };
            if begin.elapsed() >= limit || Instant::now() >= self.deadline {
                let limit = HumanSeconds(limit.as_secs_f64());
                let words = self.subject.as_ref().map_or(String::new(), StartedSubject::last_words);
                return Err(TrialStop::Failed(format!(
                    "the command was not ready within {limit} ({ready}: {reason}){words}"
                )));
            }
            self.look_up()?;
            self.must_be_alive("before it was ready")?;
            std::thread::sleep(TRY);
        }
    }

    fn load(&mut self, round: u32) -> Result<(), TrialStop> {
        let timeline = &self.context.plan.timeline;
        let Some(line) = &timeline.load else { return Ok(()) };
        self.step(match round {
            0 => "warm-up".to_owned(),
            round => format!("load {round} of {}", timeline.rounds),
        });
        let log = self.file(&format!(".load-{round}.log"));
        let output = self.file(&format!(".load-{round}.out"));
        let mut shell = self.shell("the load", line, &log);
        shell.stdout = Some(Stdout { path: output.clone(), reason: "message" });
        shell.variables.push(("LOWTIDE_ROUND".to_owned(), round.to_string()));
        let samples = self.file(&format!(".load-{round}.jsonl"));
        shell.variables.push((LOAD_SAMPLES.to_owned(), samples.display().to_string()));
        self.load_tail = Some(LoadTail::new(samples, round));
        let (keeper, recorder) = (self.context.keeper, self.context.recorder.clone());
        let begin = Instant::now();
        let ran = shell.run(keeper, &recorder, || {
            self.look_up()?;
            self.must_be_alive("during the load")
        });
        let wall_s = begin.elapsed().as_secs_f64();
        self.copy_load_lines();
        if let Some(load_tail) = self.load_tail.take() {
            load_tail.finish();
        }
        self.record(&Line::Load(Load {
            round,
            succeeded: ran.is_ok(),
            wall_s,
            report: read_load_report(&output),
        }));
        // The end of the subject is more informative than the failure of the load that followed.
        match ran {
            Err(TrialStop::Interrupted) => ran,
            _ => self.must_be_alive("during the load").and(ran),
        }
    }

    fn pass(&mut self, time: Duration, close: bool) -> Result<(), TrialStop> {
        self.step("wait");
        if let Some(sampling) = self.subject.as_ref().and_then(StartedSubject::sampling) {
            sampling.pay_attention(close);
        }
        let end = Instant::now() + time;
        // Hooks that are pending run even if no time is to pass.
        self.look_up()?;
        while Instant::now() < end {
            self.look_up()?;
            self.must_be_alive("while no load ran")?;
            std::thread::sleep(STEP.min(end.saturating_duration_since(Instant::now())));
        }
        self.must_be_alive("while no load ran")
    }

    fn await_end(&mut self, after_load: Option<Duration>) -> Result<(), TrialStop> {
        self.step("run to completion");
        let mut load_ended = None;
        while !self.has_ended(STEP) {
            self.look_up()?;
            if self.log_events.load_has_ended() {
                load_ended = load_ended.or(Some(Instant::now()));
            }
            if let (Some(time), Some(since)) = (after_load, load_ended)
                && since.elapsed() >= time
            {
                self.mark(Event::Settled, None);
                return Ok(());
            }
        }
        match &self.subject {
            Some(subject) if !subject.exit().is_some_and(ExitReport::is_success) => {
                Err(TrialStop::Failed(subject.ended_early("by itself")))
            }
            _ => Ok(()),
        }
    }

    fn check(&mut self) -> Result<(), TrialStop> {
        let Some(subject) = &self.subject else { return Ok(()) };
        subject.hear_out();
        if let Some(phase) = self.log_events.missing(self.context.plan) {
            return Err(TrialStop::Failed(format!(
                "the phase `{}` never came: no line that the command printed matches {}{}",
                phase.name,
                phase.line.as_str(),
                subject.last_words()
            )));
        }
        if let Some(sentence) = self.never_run() {
            return Err(TrialStop::Failed(sentence));
        }
        if !subject.sampling().is_some_and(RunningSampler::has_seen_it) {
            let reason = "the command ended before the first sample: give it more work";
            return Err(TrialStop::Failed(reason.to_owned()));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), TrialStop> {
        self.step("end");
        let Some(subject) = self.subject.take() else { return Ok(()) };
        if subject.exit().is_none() {
            self.mark_at(Instant::now(), Event::Stop, None);
        }
        let metrics_poller = self.metrics_poller.take();
        // A release must be completed before its target ends.
        self.policy_cpu_s = self.supervision.take().map(Supervision::stop);
        self.remains = subject.end();
        let silent = metrics_poller.and_then(MetricsPoller::stop);
        if let (Some(reason), Some(source)) = (silent, &self.context.plan.figures) {
            let note = format!("no metrics at {source}: {reason}");
            self.observer.see(StudyEvent::Note(note));
        }
        self.remains.ended.complaint().map_or(Ok(()), |complaint| Err(TrialStop::Failed(complaint)))
    }

    fn cleanup(&mut self) -> Result<(), TrialStop> {
        let Some(line) = &self.context.plan.settings.cleanup else { return Ok(()) };
        // A Ctrl-C at this point is noted, but a step that has started runs to completion.
        let was_interrupted = self.context.interrupt.load(Ordering::Relaxed);
        self.step("cleanup");
        // It runs even if the trial was interrupted or timed out, or the disk is full.
        self.deadline = Instant::now() + self.context.plan.timeline.timeout;
        let log = self.file(".cleanup.log");
        let shell = self.shell("--cleanup", line, &log);
        let (keeper, recorder) = (self.context.keeper, self.context.recorder.clone());
        let mut was_reported = was_interrupted;
        shell.run(keeper, &recorder, || {
            if self.context.interrupt.load(Ordering::Relaxed) && !was_reported {
                was_reported = true;
                self.observer.see(StudyEvent::CleaningUp);
            }
            self.look_at_clock()
        })
    }
}

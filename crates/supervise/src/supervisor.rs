//! The loop: observes each process, lets its policy decide, and releases its memory.

mod releases;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_model::act::Act;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_policy::{Action, Budget, MAX_DELAY_S, PolicyKind, ProcessState, SampleReason};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::patience::Patience;
use lowtide_probe::process::Units;
use lowtide_release::{Hold, Refusal};
use rustix::process::{Resource, getrlimit};
use rustix::thread::nanosleep;

use crate::acts::About;
use crate::black_box::BlackBoxHandle;
use crate::scope::Scope;
use crate::subject::Subject;
use crate::surroundings::SurroundingsReader;

/// Default of [`SupervisorOptions::budget`].
pub const DEFAULT_BUDGET: f64 = 0.005;

/// Options of the supervision.
#[derive(Debug, Clone)]
pub struct SupervisorOptions {
    /// The policy of each process.
    pub policy: PolicyKind,
    /// Maximum pause of a thread of a target, for work that can be sliced.
    pub max_pause: Duration,
    /// Maximum average share of a core that releases may use: 0.005 is half a percent. Policies
    /// that release at moments chosen by the user have no budget.
    pub budget: f64,
    /// The allocators that releases act on; `None` for all that lowtide can release.
    pub allocators: Option<Vec<AllocatorKind>>,
    /// Only reports what would be released.
    pub dry_run: bool,
    /// A process that has inherited its seccomp filters from the same process as lowtide. Its
    /// descendants have these filters too.
    pub filter_family: Option<u32>,
    /// The black box that records the processes.
    pub black_box: Option<BlackBoxHandle>,
    /// Ends the supervision when another thread or a signal handler sets it.
    pub interrupt: Arc<AtomicBool>,
}

/// Receives the acts of a supervision.
pub trait Observer {
    /// Receives an act on a process of this program (its short name).
    fn act(&mut self, program: &str, act: &Act);
}

/// Supervises processes.
pub struct Supervisor<'o> {
    options: SupervisorOptions,
    scope: Scope,
    observer: &'o mut dyn Observer,
    subjects: BTreeMap<u32, Subject>,
    /// Maximum number of processes, as permitted by the limit on open files.
    max_subjects: usize,
    /// Whether the log already reports that there are more.
    is_crowded: bool,
    surroundings: SurroundingsReader,
    budget: Budget,
    hold: Hold,
    /// The hold that is already in the log.
    reported_hold: Option<Refusal>,
    units: Units,
    buffer: Vec<u8>,
    begin: Instant,
    /// CPU time to read a process, in seconds: a moving average.
    read_cpu_s: f64,
    releases: u64,
    /// CPU time of all releases, in seconds.
    releases_cpu_s: f64,
    /// The processes that have inherited the filters of lowtide.
    family: BTreeSet<u32>,
}

impl std::fmt::Debug for Supervisor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("subjects", &self.subjects).finish_non_exhaustive()
    }
}

/// Pairs of a time without change, in seconds, and the interval at which an unchanged process is
/// read after that time.
const CALM: [(f64, f64); 2] = [(60.0, 2.0), (5.0, 1.0)];
/// Maximum time between two readings, in seconds.
const MAX_TICK_S: f64 = 2.0;
/// Open files per supervised process: its directory (twice), `stat`, the directory of its files,
/// its memory.
const FILES_PER_SUBJECT: usize = 5;
/// Open files that are reserved for releases, the log, and all other purposes of this process.
const RESERVED_FILES: usize = 96;
/// Open files of a black box: five for each of its 32 processes, and six for each of 80 cgroups.
const BLACK_BOX_FILES: usize = 640;
/// Time after which a program that does not count its freed bytes is reported, in seconds.
const UNCOUNTED_S: f64 = 10.0;
/// Time after which a process is read again that could not be read, in seconds.
const UNREADABLE_S: f64 = 10.0;
/// Maximum share of a core that readings may use: with very many processes, each is read less
/// often.
const READ_SHARE: f64 = 0.02;
/// Weight of the last reading in the moving average of the CPU time.
const READ_WEIGHT: f64 = 0.02;
/// Maximum time during which returning pages of a release are observed, in seconds.
const MAX_OBSERVED_S: f64 = 900.0;
/// Maximum time between two checks whether the supervision ends.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Minimum time to sleep, for timers that would otherwise be rounded to zero.
const MIN_SLEEP: Duration = Duration::from_millis(1);

impl<'o> Supervisor<'o> {
    /// Prepares a supervision.
    pub fn new(options: SupervisorOptions, scope: Scope, observer: &'o mut dyn Observer) -> Self {
        let budget = Budget::new(options.budget);
        let max_subjects = max_subjects(options.black_box.is_some());
        Self {
            options,
            scope,
            observer,
            subjects: BTreeMap::new(),
            max_subjects,
            is_crowded: false,
            surroundings: SurroundingsReader::default(),
            budget,
            hold: Hold::default(),
            reported_hold: None,
            units: Units::of_this_machine(),
            buffer: Vec::new(),
            begin: Instant::now(),
            read_cpu_s: 0.0,
            releases: 0,
            releases_cpu_s: 0.0,
            family: BTreeSet::new(),
        }
    }

    /// Supervises until the interrupt is set, or all processes of a scope that can end have ended.
    pub fn run(&mut self) {
        while !self.is_interrupted() {
            self.refresh();
            if self.scope.is_over(self.subjects.len()) {
                break;
            }
            self.raise_alarms();
            self.tick();
            lowtide_release::end_preference();
            self.sleep();
        }
        self.count_all_returned();
    }

    /// Returns the CPU time of all attempted releases, in seconds. They run in threads of their
    /// own.
    pub fn releases_cpu_s(&self) -> f64 {
        self.releases_cpu_s
    }

    fn is_interrupted(&self) -> bool {
        self.options.interrupt.load(Ordering::Relaxed)
    }

    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Sleeps until the next process is due. A signal ends the sleep.
    fn sleep(&self) {
        let due_s =
            self.subjects.values().map(|subject| subject.due_s).fold(f64::INFINITY, f64::min);
        let wait = (due_s - self.now_s()).clamp(MIN_SLEEP.as_secs_f64(), MAX_SLEEP.as_secs_f64());
        let wait = Duration::from_secs_f64(wait);
        match (&self.options.black_box, wait.try_into()) {
            (Some(black_box), _) => black_box.wait(wait),
            (None, Ok(wait)) => drop(nanosleep(&wait)),
            (None, Err(_)) => {}
        }
    }

    /// Makes the processes due that will soon reach a limit.
    fn raise_alarms(&mut self) {
        let Some(black_box) = &self.options.black_box else { return };
        let t_s = self.now_s();
        for (pid, alarm) in black_box.alarms() {
            if let Some(subject) = self.subjects.get_mut(&pid) {
                (subject.alarm, subject.due_s) = (Some(alarm), t_s);
            }
        }
    }

    /// Adds new processes, and drops those that have left.
    fn refresh(&mut self) {
        let Some(listed) = self.scope.refresh(Instant::now()) else { return };
        if let Some(black_box) = &self.options.black_box {
            black_box.set_processes(&listed);
        }
        let mut left = Vec::new();
        for (pid, subject) in &mut self.subjects {
            // A list may miss a process if its siblings end while the list is made (proc(5),
            // `children`).
            let was_missing = std::mem::replace(&mut subject.is_missing, !listed.contains(pid));
            if subject.is_missing && (was_missing || !subject.target.is_alive()) {
                left.push(*pid);
            }
        }
        for pid in left {
            self.leave(pid);
        }
        let t_s = self.now_s();
        for pid in listed {
            let known = self.subjects.get(&pid).is_some_and(|subject| subject.target.is_alive());
            if known {
                continue;
            }
            self.leave(pid);
            let opened = Subject::open(pid, self.options.policy, t_s);
            let Some(mut subject) = opened else { continue };
            let parent = self.subjects.get(&subject.parent);
            subject.program.is_fork = parent.is_some_and(|parent| parent.image == subject.image);
            if self.subjects.len() < self.max_subjects {
                self.subjects.insert(pid, subject);
            } else if !std::mem::replace(&mut self.is_crowded, true) {
                self.report_crowd(subject);
            }
        }
        self.find_family();
    }

    /// Logs, for the first process above the limit, that more processes are selected than can be
    /// supervised.
    fn report_crowd(&mut self, mut subject: Subject) {
        let reason = format!(
            "only {} processes at a time can be supervised with this limit on open files: raise it (ulimit -n)",
            self.max_subjects
        );
        self.leave_alone(&mut subject, 0, reason, MAX_DELAY_S);
    }

    /// Finds the processes that have inherited the filters of lowtide: those whose parent has them.
    /// The parent of an orphan is the reaper, whichever process started it. So an orphan only
    /// belongs to them if it was seen before.
    fn find_family(&mut self) {
        let Some(eldest) = self.options.filter_family else { return };
        loop {
            let is_child = |pid: &u32, subject: &Subject| {
                *pid == eldest || self.family.contains(&subject.parent)
            };
            let more: Vec<u32> = self
                .subjects
                .iter()
                .filter(|(pid, subject)| !self.family.contains(pid) && is_child(pid, subject))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                return;
            }
            self.family.extend(more);
        }
    }

    fn leave(&mut self, pid: u32) {
        self.family.remove(&pid);
        let Some(mut subject) = self.subjects.remove(&pid) else { return };
        self.count_returned(&mut subject);
    }

    /// Reads all processes that are due, and acts on them.
    fn tick(&mut self) {
        let t_s = self.now_s();
        let due: Vec<u32> = self
            .subjects
            .iter()
            .filter(|(_, subject)| subject.due_s <= t_s)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            if self.is_interrupted() {
                break;
            }
            let Some(mut subject) = self.subjects.remove(&pid) else { continue };
            if self.step(&mut subject) {
                self.subjects.insert(pid, subject);
            } else {
                self.family.remove(&pid);
            }
        }
    }

    /// Reads one process and acts on it. Returns whether it still runs.
    fn step(&mut self, subject: &mut Subject) -> bool {
        let kind = self.options.policy;
        let t_s = self.now_s();
        let begin_s = thread_cpu_s();
        let read = subject.read(kind, self.units, &mut self.buffer, t_s);
        self.read_cpu_s += READ_WEIGHT * (thread_cpu_s() - begin_s - self.read_cpu_s);
        let mut state = match read {
            Ok(Some(state)) => state,
            Ok(None) => return false,
            Err(error) => {
                subject.due_s = t_s + UNREADABLE_S;
                self.leave_alone(subject, 0, format!("it cannot be read ({error})"), UNREADABLE_S);
                return true;
            }
        };
        subject.due_s = t_s + self.tick_s(subject, t_s);
        if kind.has_budget() {
            self.surroundings.enter(&subject.pressure, Instant::now(), &mut state);
        }
        if let Some(alarm) = &subject.alarm {
            (state.headroom, state.is_near_limit) = (Some(alarm.headroom), true);
        }
        let is_uncounted = kind.needs_preload() && state.freed_bytes.is_none();
        if is_uncounted && t_s - subject.program.begin_s > UNCOUNTED_S {
            self.report_uncounted(subject);
        }
        self.sample_refaults(subject, &mut state);
        if let Action::Release(request) = subject.program.policy.decide(&state) {
            self.try_release(subject, &state, request);
        }
        subject.alarm = None;
        true
    }

    /// Returns the time until a process is read again, in seconds.
    fn tick_s(&self, subject: &Subject, t_s: f64) -> f64 {
        let tick_s = self.options.policy.tick().as_secs_f64();
        if !self.options.policy.has_budget() {
            return tick_s;
        }
        let unchanged_s = subject.unchanged_s(t_s);
        let calm = CALM.iter().find(|(after_s, _)| unchanged_s >= *after_s);
        let all_s = self.read_cpu_s * self.subjects.len() as f64;
        let affordable_s = (all_s / READ_SHARE).min(MAX_TICK_S);
        calm.map_or(tick_s, |(_, calm_s)| tick_s.max(*calm_s)).max(affordable_s)
    }

    /// Counts the pages of the last release that came back, if that is due.
    fn sample_refaults(&mut self, subject: &mut Subject, state: &mut ProcessState) {
        let reason =
            subject.program.dropped.as_mut().and_then(|dropped| dropped.refaults.due(state));
        let is_old = subject.program.last.is_some_and(|last| state.t_s - last.t_s > MAX_OBSERVED_S);
        if is_old
            && subject.program.dropped.as_ref().is_some_and(|dropped| dropped.refaults.is_known())
        {
            subject.program.dropped = None;
        }
        let Some(reason) = reason else { return };
        if reason == SampleReason::Faults
            && self.options.policy.has_budget()
            && !self.budget.has_spare(state.t_s)
        {
            return;
        }
        let was_known =
            subject.program.dropped.as_ref().is_some_and(|dropped| dropped.refaults.is_known());
        self.sample(subject, state, reason);
        let is_known =
            subject.program.dropped.as_ref().is_some_and(|dropped| dropped.refaults.is_known());
        if is_known && !was_known {
            self.log_returned(subject);
        }
    }

    /// Counts the pages of the last release that came back.
    fn sample(&mut self, subject: &mut Subject, state: &mut ProcessState, reason: SampleReason) {
        let (Some(mut dropped), Ok(target)) =
            (subject.program.dropped.take(), subject.target.try_clone())
        else {
            return;
        };
        // A process can block every reader of its page table.
        let ranges = dropped.ranges;
        let interrupt = &self.options.interrupt;
        let counted = Patience::default().work_on(&subject.target, interrupt, move || {
            let came_back = ranges.came_back(&target);
            (ranges, came_back, thread_cpu_s())
        });
        let Ok((ranges, came_back, cpu_s)) = counted else { return };
        self.budget.spend(cpu_s);
        let Ok(came_back) = came_back else { return };
        dropped.ranges = ranges;
        dropped.back = dropped.refaults.sample(state, came_back.bytes, reason);
        if let Some(last) = &mut subject.program.last {
            last.back = dropped.back;
        }
        subject.program.dropped = Some(dropped);
        state.last_release = subject.program.last;
    }

    fn log_returned(&mut self, subject: &Subject) {
        let (Some(dropped), Some(last)) = (&subject.program.dropped, &subject.program.last) else {
            return;
        };
        let line = self.about(subject).returned(last.id, dropped.released_bytes, &dropped.back);
        self.observer.act(&subject.name, &line);
    }

    /// Counts for the last time which pages came back, unless the log already has them.
    fn count_returned(&mut self, subject: &mut Subject) {
        let Some(dropped) = &subject.program.dropped else { return };
        let is_known = dropped.refaults.is_known();
        let t_s = self.now_s();
        let state = subject.read(self.options.policy, self.units, &mut self.buffer, t_s);
        if let Ok(Some(mut state)) = state {
            self.sample(subject, &mut state, SampleReason::Fixed);
            if !is_known {
                self.log_returned(subject);
            }
        }
        subject.program.dropped = None;
    }

    fn count_all_returned(&mut self) {
        for mut subject in std::mem::take(&mut self.subjects).into_values() {
            self.count_returned(&mut subject);
        }
    }

    fn about<'s>(&self, subject: &'s Subject) -> About<'s> {
        About {
            pid: subject.target.pid,
            command: &subject.command,
            policy: self.options.policy,
            rss_bytes: subject.rss_bytes,
        }
    }
}

/// Returns the number of processes that can be supervised at a time with the open files of this
/// process.
fn max_subjects(has_black_box: bool) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let of_black_box = if has_black_box { BLACK_BOX_FILES.min(limit / 2) } else { 0 };
    (limit.saturating_sub(RESERVED_FILES + of_black_box) / FILES_PER_SUBJECT).max(1)
}

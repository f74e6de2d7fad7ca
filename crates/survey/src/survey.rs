//! Scans and inspects on threads of its own, and holds the results.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_model::inspection::Observation;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::{process_cpu_s, thread_cpu_s};
use lowtide_probe::patience::Patience;
use lowtide_probe::target::{Target, TargetError};

use crate::budget::{CpuBudget, UncountedCpu};
use crate::cgroups::Charges;
use crate::process::{HostProcess, Unread};
use crate::scan::{Host, ScanFilter, scan};
use crate::schedule::urgency;

/// Maximum share of a core that scans may use.
const SCAN_SHARE: f64 = 0.002;
/// Maximum time between two scans that this share leads to.
const MAX_BETWEEN_SCANS: Duration = Duration::from_secs(60);
/// Minimum time for which a worker sleeps: looking for work also costs CPU time, which may use up
/// the whole budget.
const MIN_WAIT: Duration = Duration::from_millis(200);
/// Maximum time for which a worker sleeps before it looks for work.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Returns the path of the cgroup of a process whose charge is read, if it has one.
pub type CgroupOf = fn(&HostProcess) -> Option<String>;

/// Options of a survey.
#[derive(Debug, Clone)]
pub struct SurveyOptions {
    /// The selection of processes.
    pub filter: ScanFilter,
    /// Minimum time between two scans.
    pub between_scans: Duration,
    /// Number of concurrent inspections.
    pub workers: usize,
    /// Maximum CPU time of this process, as a share of a core.
    pub budget: f64,
    /// Whether the first inspection of each process ignores the budget, and the first reading of
    /// each charge.
    pub hurries: bool,
    /// How long an inspection may take.
    pub patience: Patience,
    /// Returns the path of the cgroup of a process whose charge is read; `None` if charges are not
    /// read.
    pub cgroup_of: Option<CgroupOf>,
    /// CPU time of other work in this process, which the budget does not include.
    pub uncounted_cpu: UncountedCpu,
}

impl SurveyOptions {
    /// Returns the CPU time that the budget includes, in seconds.
    fn cpu_s(&self) -> f64 {
        process_cpu_s() - self.uncounted_cpu.total_s()
    }
}

/// Counts of inspections by outcome.
#[derive(Debug, Clone, Default)]
pub struct InspectionCounts {
    /// Inspections that were completed.
    pub done: u64,
    /// Inspections that were not permitted to read all of the process.
    pub not_permitted: u64,
    /// Inspections that were given up because they made no progress.
    pub blocked: u64,
    /// Inspections that were given up because they took too long.
    pub slow: u64,
    /// Inspections that failed.
    pub failed: u64,
    /// Inspections whose process ended meanwhile.
    pub gone: u64,
    /// Durations of the completed inspections, in seconds, since the last call of
    /// [`Survey::take_durations`].
    durations_s: Vec<f64>,
}

#[derive(Debug)]
struct State {
    host: Host,
    outcomes: InspectionCounts,
    budget: CpuBudget,
    /// The time at which each worker last looked for a process.
    looked: Vec<Instant>,
    /// The time at which the last inspection ended.
    inspected: Option<Instant>,
    is_over: bool,
    /// The error of the last scan.
    error: Option<io::ErrorKind>,
}

#[derive(Debug)]
struct Shared {
    options: SurveyOptions,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A survey that runs until it is dropped. Dropping it does not wait for inspections.
#[derive(Debug)]
pub struct Survey {
    shared: Arc<Shared>,
}

impl Survey {
    /// Starts a survey.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(options: SurveyOptions) -> io::Result<Self> {
        let began = Instant::now();
        let workers = options.workers;
        let state = State {
            host: Host::new(began, options.cgroup_of.is_some()),
            outcomes: InspectionCounts::default(),
            budget: CpuBudget::new(options.budget, 0.0, options.cpu_s()),
            looked: vec![began; workers],
            inspected: None,
            is_over: false,
            error: None,
        };
        let shared =
            Arc::new(Shared { options, state: Mutex::new(state), changed: Condvar::new() });
        let survey = Self { shared };
        survey.spawn("scanner", scan_on)?;
        for worker in 0..workers {
            survey.spawn("inspector", move |shared| inspect_on(shared, worker))?;
        }
        Ok(survey)
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared)).map(drop)
    }

    /// Passes the host to a function. Scans and inspections only wait for it when they start and
    /// end.
    pub fn read<R>(&self, with: impl FnOnce(&Host) -> R) -> R {
        with(&self.shared.state().host)
    }

    /// Returns the outcomes of the inspections so far.
    pub fn outcomes(&self) -> InspectionCounts {
        let state = self.shared.state();
        InspectionCounts { durations_s: Vec::new(), ..state.outcomes }
    }

    /// Returns the durations of inspections that were completed since the last call, in seconds.
    pub fn take_durations(&self) -> Vec<f64> {
        std::mem::take(&mut self.shared.state().outcomes.durations_s)
    }

    /// Returns the time since the most silent worker last looked for a process, in seconds. A
    /// worker looks every second, except during an inspection; one that has ended looks no more.
    pub fn silence_s(&self) -> f64 {
        let first = self.shared.state().looked.iter().copied().min();
        first.map_or(0.0, |looked| looked.elapsed().as_secs_f64())
    }

    /// Returns the time since the last inspection ended, in seconds; `None` before the first.
    pub fn last_inspection_age_s(&self) -> Option<f64> {
        self.shared.state().inspected.map(|at| at.elapsed().as_secs_f64())
    }

    /// Returns the error of the last scan.
    pub fn error(&self) -> Option<io::ErrorKind> {
        self.shared.state().error
    }

    /// Waits until something changes, but at most for this time.
    pub fn wait(&self, time: Duration) {
        let state = self.shared.state();
        drop(self.shared.changed.wait_timeout(state, time));
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
    }
}

/// Scans repeatedly.
fn scan_on(shared: &Shared) {
    let page_bytes = rustix::param::page_size() as u64;
    let mut charges = Charges::default();
    loop {
        let (begin, cpu_s) = (Instant::now(), thread_cpu_s());
        let known = shared.state().host.known();
        let found = scan(&known, &shared.options.filter);
        {
            let mut state = shared.state();
            state.error = found.as_ref().err().map(io::Error::kind);
            if let Ok(found) = found {
                state.host.update(found, page_bytes, &shared.options.filter);
            }
        }
        if let Some(cgroup_of) = shared.options.cgroup_of {
            let wanted = shared.state().host.processes().filter_map(cgroup_of).collect();
            let read = charges.read(&wanted, shared.options.hurries);
            shared.state().host.set_charges(read);
        }
        shared.changed.notify_all();
        let cost = Duration::try_from_secs_f64((thread_cpu_s() - cpu_s) / SCAN_SHARE);
        let next = begin
            + shared.options.between_scans.max(cost.unwrap_or_default().min(MAX_BETWEEN_SCANS));
        let mut state = shared.state();
        while !state.is_over && Instant::now() < next {
            let rest = next.saturating_duration_since(Instant::now());
            let waited = shared.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_over {
            return;
        }
    }
}

/// Inspects one process after the other, the most urgent first.
fn inspect_on(shared: &Shared, worker: usize) {
    let patience = shared.options.patience;
    let mut inspector = Inspector::default()
        .without_connections()
        .without_open_memory()
        .without_predictions()
        .with_patience(patience);
    while let Some(pid) = next_process(shared, worker) {
        let begin = Instant::now();
        let found = Target::open_to_read(pid)
            .and_then(|target| Ok((target.start_ticks, inspector.inspect(&target)?)));
        // A panic costs one row, not all inspections.
        let added = catch_unwind(AssertUnwindSafe(|| add(shared, pid, begin, found)));
        if added.is_err()
            && let Some(process) = shared.state().host.process_mut(pid)
        {
            process.give_up(Instant::now());
        }
        shared.changed.notify_all();
    }
}

/// Waits until a process is due for an inspection, and returns its PID; `None` if the survey is
/// over.
fn next_process(shared: &Shared, worker: usize) -> Option<u32> {
    let mut state = shared.state();
    loop {
        if state.is_over {
            return None;
        }
        state.looked[worker] = Instant::now();
        let elapsed_s = state.host.elapsed_s();
        let wait_s = state.budget.wait_s(elapsed_s, shared.options.cpu_s());
        let is_in_budget = wait_s <= 0.0;
        let most = match is_in_budget || shared.options.hurries {
            true => most_urgent(&state.host),
            false => None,
        };
        if let Some((pid, is_first)) = most
            && (is_in_budget || is_first)
        {
            if let Some(process) = state.host.process_mut(pid) {
                process.is_in_work = true;
            }
            return Some(pid);
        }
        let wait = match is_in_budget {
            true => MAX_WAIT,
            false => Duration::try_from_secs_f64(wait_s).unwrap_or(MAX_WAIT),
        };
        let wait = wait.clamp(MIN_WAIT, MAX_WAIT);
        let waited = shared.changed.wait_timeout(state, wait);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Returns the most urgent process, and whether it was never inspected.
fn most_urgent(host: &Host) -> Option<(u32, bool)> {
    let now = Instant::now();
    let needs = host.processes().filter_map(|process| {
        let need = process.need(now)?;
        Some((process.pid, need.last.is_none(), urgency(need)?))
    });
    let most = needs.max_by(|one, other| one.2.total_cmp(&other.2));
    most.map(|(pid, is_first, _)| (pid, is_first))
}

/// Stores the result of an inspection.
fn add(shared: &Shared, pid: u32, begin: Instant, found: Result<(u64, Observation), TargetError>) {
    let mut state = shared.state();
    let t_s = state.host.elapsed_s();
    state.inspected = Some(Instant::now());
    let State { host, outcomes, .. } = &mut *state;
    host.inspections += 1;
    let result = match found {
        Ok((start_ticks, observation)) => {
            // The PID may belong to another process by now.
            let is_other = |process: &mut HostProcess| process.start_ticks != start_ticks;
            if host.process_mut(pid).is_none_or(is_other) {
                outcomes.gone += 1;
                return;
            }
            match observation.unreadable {
                Some(_) => outcomes.not_permitted += 1,
                None => {
                    outcomes.done += 1;
                    outcomes.durations_s.push(begin.elapsed().as_secs_f64());
                }
            }
            Ok(observation)
        }
        Err(TargetError::NoSuchProcess(_) | TargetError::Gone(_) | TargetError::Zombie(_)) => {
            outcomes.gone += 1;
            host.remove(pid);
            return;
        }
        Err(TargetError::Blocked(_)) => {
            outcomes.blocked += 1;
            Err(Unread::Blocked)
        }
        Err(TargetError::Slow(_)) => {
            outcomes.slow += 1;
            Err(Unread::Slow)
        }
        Err(_) => {
            outcomes.failed += 1;
            Err(Unread::Failed)
        }
    };
    if let Some(process) = host.process_mut(pid) {
        process.add(Instant::now(), t_s, result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(workers: usize) -> Survey {
        Survey::start(SurveyOptions {
            filter: ScanFilter::default(),
            between_scans: MAX_BETWEEN_SCANS,
            workers,
            budget: 0.01,
            hurries: false,
            patience: Patience::default(),
            cgroup_of: None,
            uncounted_cpu: UncountedCpu::default(),
        })
        .unwrap()
    }

    #[test]
    fn a_worker_that_has_ended_is_silent_and_one_that_looks_for_work_is_not() {
        let long = Duration::from_secs(3600);
        let survey = survey(1);
        let until = |is_silent: bool| {
            while (survey.silence_s() > 1800.0) != is_silent {
                thread::yield_now();
            }
        };
        survey.shared.state().looked[0] -= long;
        until(false);
        // As if its thread had panicked.
        survey.shared.state().is_over = true;
        survey.shared.changed.notify_all();
        while Arc::strong_count(&survey.shared) > 1 {
            thread::yield_now();
        }
        survey.shared.state().looked[0] -= long;
        until(true);
    }

    #[test]
    fn the_age_of_the_last_inspection_is_known_after_the_first() {
        let survey = survey(0);
        assert_eq!(survey.last_inspection_age_s(), None);
        add(&survey.shared, 0, Instant::now(), Err(TargetError::Slow(0)));
        assert!(survey.last_inspection_age_s().is_some());
    }
}

//! Follows all memory of one process for a bounded time: inspections, readings of RSS between them,
//! and the descendants at both ends. `inspect --watch` and `leaks` are such watches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_analysis::growth::Follower;
use lowtide_model::counts::CountGrowth;
use lowtide_model::growth::{DescendantGrowth, Growth};
use lowtide_model::inspection::Observation;
use lowtide_probe::counts::{count_limits, counts};
use lowtide_probe::descendants::{Descendants, descendants, growth_of_descendants};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::pressure::{ProcessLimits, complete_growth};
use lowtide_probe::proc::status::Status;
use lowtide_probe::standstill::{RunTimes, Standstill};
use lowtide_probe::target::{Target, TargetError};

use crate::select::wait::wait_until;

/// Time between two readings of RSS.
const BETWEEN_READINGS: Duration = Duration::from_secs(1);
/// Minimum time between two counts of files, mappings, threads and children, as a multiple of the
/// cost of one.
const COUNT_COSTS: u32 = 100;

/// All memory of a process since the beginning of a watch.
pub(crate) struct WholeProcess {
    begin: Instant,
    follower: Follower,
    first: Option<Observation>,
    last: Option<Observation>,
    /// The descendants of the process at the beginning, and their growth until the end.
    descendants: Option<Descendants>,
    grown_descendants: Option<DescendantGrowth>,
    /// The time when files, mappings, threads and children were counted last, and what that cost.
    counted: Instant,
    count_cost: Duration,
    /// The time that its threads had run at the beginning.
    ran: Option<RunTimes>,
}

impl WholeProcess {
    pub(crate) fn begin(target: &Target) -> Self {
        Self {
            begin: Instant::now(),
            follower: Follower::default(),
            first: None,
            last: None,
            descendants: descendants(target.pid, None),
            grown_descendants: None,
            counted: Instant::now(),
            count_cost: Duration::ZERO,
            ran: RunTimes::read(target.pid),
        }
    }

    pub(crate) fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Returns the first and the last observation.
    pub(crate) fn ends(&self) -> Option<(&Observation, &Observation)> {
        self.first.as_ref().zip(self.last.as_ref())
    }

    /// Returns why the process has not run since the beginning; `None` if it has.
    pub(crate) fn standstill(&self, target: &Target) -> Option<Standstill> {
        self.ran.as_ref()?.standstill(target)
    }

    /// Returns the time since the beginning, in seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Inspects the process. Returns the CPU time. What was known before stays known if this fails.
    pub(crate) fn observe(
        &mut self,
        inspector: &mut Inspector,
        target: &Target,
    ) -> Result<Duration, TargetError> {
        let t_s = self.elapsed_s();
        let observation = inspector.inspect(target)?;
        self.counted = Instant::now();
        let cost = Duration::try_from_secs_f64(observation.cpu_s).unwrap_or_default();
        self.follower.add(t_s, &observation);
        if let Ok(status) = target.status() {
            self.read_limited(t_s, &status);
        }
        self.first.get_or_insert_with(|| observation.clone());
        self.last = Some(observation);
        Ok(cost)
    }

    /// Reads RSS.
    pub(crate) fn read(&mut self, target: &Target) {
        if let Ok(status) = target.status() {
            let t_s = self.elapsed_s();
            self.follower.read(t_s, status.rss_bytes(), status.file_bytes);
            self.read_limited(t_s, &status);
        }
        if self.counted.elapsed() >= self.count_cost * COUNT_COSTS {
            let begin = Instant::now();
            self.follower.read_counts(self.elapsed_s(), counts(target));
            (self.counted, self.count_cost) = (Instant::now(), begin.elapsed());
        }
    }

    fn read_limited(&mut self, t_s: f64, status: &Status) {
        self.follower.read_limited(t_s, [status.address_space_bytes, status.data_bytes]);
    }

    /// Reads RSS until a point in time, until the process ends, or until a signal.
    pub(crate) fn read_until(&mut self, end: Instant, target: &Target, interrupt: &AtomicBool) {
        loop {
            let next = Instant::now() + BETWEEN_READINGS;
            wait_until(next.min(end), target, interrupt);
            if next >= end || interrupt.load(Ordering::Relaxed) || !target.is_alive() {
                return;
            }
            self.read(target);
        }
    }

    /// Reads the memory of the descendants again.
    pub(crate) fn end_descendants(&mut self, target: &Target) {
        let Some(before) = &self.descendants else { return };
        self.grown_descendants = descendants(target.pid, Some(before))
            .and_then(|after| growth_of_descendants(before, &after, self.elapsed_s()));
    }

    /// Returns the growth so far, with the limit that it leads to; `None` before the second
    /// observation.
    pub(crate) fn growth(&self, target: &Target) -> Option<Growth> {
        let mut growth = self.follower.growth()?;
        growth.descendants.clone_from(&self.grown_descendants);
        complete_growth(target, &mut growth);
        let limits = ProcessLimits::read(target);
        for limited in self.follower.limited() {
            if let Some(limit_bytes) = limits.of(limited.kind) {
                growth.set_process_limit(limit_bytes, limited);
            }
        }
        let of_runtimes = self.last.iter().flat_map(|last| &last.runtime_limits);
        of_runtimes.for_each(|limit| growth.set_runtime_limit(*limit));
        growth.counts = self.follower.counts();
        for count in &mut growth.counts {
            for limit in count_limits(target, count.kind, count.counts[1]) {
                count.set_limit(limit);
            }
        }
        growth.counts.retain(CountGrowth::is_noticeable);
        Some(growth)
    }
}

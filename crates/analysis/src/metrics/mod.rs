//! Computes the metrics of a trial from its record: baseline, peak, settled, excess.
//! [`DEFINITIONS`] has their definitions.
//!
//! Phases named `baseline`, `peak`, `load_end` and `settled` replace these moments.
//!
//! PSS is read less often than RSS, because it costs more. Between two readings, it is estimated as
//! a fraction of RSS: the fraction is interpolated between both readings or, if processes started
//! or ended between them, it is that of the reading with the same number of processes. After the
//! last reading, the fraction is kept while RSS does not change much either.

mod at_events;
mod definitions;
mod in_force;
mod ledgers;
mod own_baseline;
mod per_connection;
mod policy;
mod round_trend;
mod series;

pub use at_events::AtEvents;
pub use definitions::DEFINITIONS;
pub use in_force::in_force;
pub use ledgers::ledgers;
pub(crate) use ledgers::{settled_blocks, settled_pins};
pub use per_connection::{PerConnection, Ramp, ramps};
pub use policy::{PolicyMetrics, acts};
pub(crate) use round_trend::round_trend;
pub use round_trend::{RoundDirection, RoundTrend};
pub use series::Series;

use serde::{Deserialize, Serialize};

use lowtide_model::sample::Sample;
use lowtide_record::TrialRecord;
use lowtide_record::phase::MetricPhase;
use lowtide_record::v1::{Event, Mark};
use own_baseline::{OwnBaseline, own_baseline};
use per_connection::opens_connections;

/// Time before the load over which the baseline is read, in seconds.
pub(crate) const BASELINE_WINDOW_S: f64 = 1.0;
/// Time over which the settled value is read, in seconds.
pub const SETTLED_WINDOW_S: f64 = 5.0;
/// Time before its exit in which a command that loads itself is not judged, in seconds.
pub(crate) const EXIT_MARGIN_S: f64 = 0.5;
/// Distance from the peak that counts as reaching it, as a part of the rise.
const NEAR_PEAK: f64 = 0.02;
/// Maximum time from the announcement of a phase to its reading, in seconds.
const PHASE_WINDOW_S: f64 = 0.25;
/// Minimum rise, in bytes; less is noise.
const LEAST_RISE_BYTES: u64 = 1 << 20;
/// Minimum number of connections for a meaningful number of bytes per connection.
const LEAST_CONNECTIONS: u64 = 10;
/// Minimum part of the readings at half the peak or above that have more than one process, for a
/// trial to count as a tree.
const TREE_SHARE_HIGH: f64 = 0.05;
/// The same for all readings; either condition is enough.
const TREE_SHARE: f64 = 0.5;
/// Maximum relative difference of RSS that counts as unchanged.
const UNCHANGED: f64 = 0.05;
/// Maximum height above its final memory at which a command that loads itself counts as fallen, as
/// a part of the rise.
const FALLEN: f64 = 0.1;
/// Time before the end over which the final memory is read, in seconds: a shorter one may be its
/// teardown.
const FINAL_WINDOW_S: f64 = 1.0;

/// The metric by which memory is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Resident set size: for one process.
    Rss,
    /// Proportional set size: for a tree, in which RSS would count shared pages once for each
    /// process.
    Pss,
}

impl Metric {
    /// Returns the metric's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rss => "RSS",
            Self::Pss => "PSS",
        }
    }
}

/// The metrics of a trial. Unknown values are `None`, because the trial did not get that far.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialMetrics {
    /// The metric by which memory is judged.
    pub metric: Metric,
    /// Memory before the load, in bytes; `None` also if memory rose from the start of a command on.
    pub baseline: Option<u64>,
    /// The memory from which the rise counts, in bytes: the baseline, or if there is none, an
    /// estimate of the memory when the rise began.
    pub start: Option<u64>,
    /// Peak memory, in bytes.
    pub peak: Option<u64>,
    /// Memory after the load and the settle time, in bytes.
    pub settled: Option<u64>,
    /// (settled − start) / (peak − start); `None` also if nothing rose.
    pub settled_ratio: Option<f64>,
    /// Peak address space, in bytes.
    pub vsz_peak: Option<u64>,
    /// Memory above the start after the load, in byte-seconds.
    pub excess_byte_seconds: Option<f64>,
    /// The same divided by the time, in bytes.
    pub excess_mean: Option<u64>,
    /// Lazily freed pages when settled, in bytes: RSS still counts them, but the kernel may reclaim
    /// them.
    pub lazyfree: Option<u64>,
    /// Faults without I/O.
    pub minor_faults: Option<u64>,
    /// Faults with I/O.
    pub major_faults: Option<u64>,
    /// Duration from start to end, in seconds.
    pub wall_s: Option<f64>,
    /// CPU time of the whole tree, in seconds.
    pub cpu_s: Option<f64>,
    /// The rise from the baseline to the peak per opened connection, in bytes.
    pub bytes_per_connection: Option<u64>,
    /// Each round of the load.
    pub rounds: Vec<RoundMetrics>,
    /// The readings while each round opened its connections.
    pub ramps: Vec<Ramp>,
    /// Each phase that the subject announced.
    pub phases: Vec<PhaseMetrics>,
    /// Start and end of the time over which the excess was counted, in seconds since the start of
    /// the record.
    pub settle_span: Option<(f64, f64)>,
    /// Rise of memory in the last second before the load, in bytes; `None` for a command that loads
    /// itself.
    pub rise_before_load: Option<u64>,
    /// Start of the load, in seconds since the start of the record. For a command that loads itself
    /// without announcing it: the end of its load.
    pub load_begin: f64,
}

/// One round of the load.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundMetrics {
    /// Its number, from 1.
    pub round: u32,
    /// Its highest reading, in bytes.
    pub peak: Option<u64>,
    /// Memory at the end of the pause after it, in bytes.
    pub settled: Option<u64>,
}

/// One phase that the subject announced.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseMetrics {
    /// Its name.
    pub name: String,
    /// Time of the announcement, in seconds since the start of the record.
    pub t_s: f64,
    /// The reading at that moment.
    pub bytes: Option<u64>,
}

/// Returns the metric by which a trial should be judged: PSS if more than one process contributed
/// to the memory. A helper that runs before the program itself, or for a moment, does not make a
/// tree.
pub(crate) fn metric_of(trial: &TrialRecord) -> Metric {
    let rss = |s: &Sample| s.total.rss_bytes.0;
    let peak = trial.samples.iter().map(rss).max().unwrap_or(0);
    let share_of_several = |least: u64| {
        let counted = trial.samples.iter().filter(|s| rss(s) >= least);
        let (several, all) = counted.fold((0_u64, 0_u64), |(several, all), s| {
            (several + u64::from(s.processes > 1), all + 1)
        });
        several as f64 / all.max(1) as f64
    };
    let is_tree = share_of_several(peak / 2) > TREE_SHARE_HIGH || share_of_several(0) > TREE_SHARE;
    if is_tree { Metric::Pss } else { Metric::Rss }
}

/// Returns memory over time by one metric.
pub fn memory_over_time(trial: &TrialRecord, metric: Metric) -> Series {
    match metric {
        Metric::Rss => Series::new(trial.samples.iter().map(|s| (s.t_s, s.total.rss_bytes.0))),
        Metric::Pss => pss_over_time(&trial.samples),
    }
}

/// Returns PSS: as read where available, and estimated between these readings.
fn pss_over_time(samples: &[Sample]) -> Series {
    let read: Vec<usize> = (0..samples.len()).filter(|i| samples[*i].slow.is_some()).collect();
    let share = |s: &Sample| {
        let pss = s.slow.map_or(0, |slow| slow.pss_bytes.0) as f64;
        if s.total.rss_bytes.0 == 0 { 0.0 } else { pss / s.total.rss_bytes.0 as f64 }
    };
    let mut points = Vec::with_capacity(samples.len());
    for (place, sample) in samples.iter().enumerate() {
        if let Some(slow) = sample.slow {
            points.push((sample.t_s, slow.pss_bytes.0));
            continue;
        }
        let next = read.partition_point(|i| *i < place);
        let Some(before) = next.checked_sub(1).map(|i| &samples[read[i]]) else { continue };
        let changed = sample.total.rss_bytes.0.abs_diff(before.total.rss_bytes.0) as f64;
        let is_same = changed <= before.total.rss_bytes.0 as f64 * UNCHANGED;
        let after = read.get(next).map(|i| &samples[*i]);
        let Some(after) = after.or(Some(before).filter(|_| is_same)) else { continue };
        let part = (sample.t_s - before.t_s) / (after.t_s - before.t_s).max(f64::MIN_POSITIVE);
        let part = match [before, after].map(|read| read.processes == sample.processes) {
            [true, false] => 0.0,
            [false, true] => 1.0,
            _ => part.clamp(0.0, 1.0),
        };
        let share = share(before) + (share(after) - share(before)) * part;
        points.push((sample.t_s, (sample.total.rss_bytes.0 as f64 * share) as u64));
    }
    Series::new(points)
}

/// Computes the metrics of a trial from its record.
pub fn measure(trial: &TrialRecord, metric: Metric) -> TrialMetrics {
    let series = memory_over_time(trial, metric);
    let times = Times::new(trial, &series);
    let own = times.baseline(&series);
    let start = own.map(|own| own.bytes);
    let baseline = own.filter(|own| own.is_stable).map(|own| own.bytes);
    let peak = times.peak(&series);
    let settle_span = times.settle_span(&series, start, peak);
    let settled_window = times.settled_window(&series, start, peak, settle_span);
    let settled = settled_window.and_then(|(from, to)| {
        // A phase that ends immediately is read just after it.
        let behind = || series.median_within(to, to + PHASE_WINDOW_S);
        let phase = times.phase(MetricPhase::Settled);
        series.median_within(from, to).or_else(|| phase.and_then(|_| behind()))
    });
    let excess = settle_span
        .zip(start)
        .map(|((from, to), base)| (series.area_above(base as f64, from, to), to - from));
    let last = trial.samples.last();
    let usage = trial.end.as_ref().and_then(|end| end.usage);
    TrialMetrics {
        metric,
        baseline,
        start,
        peak,
        settled,
        settled_ratio: ratio(start, peak, settled),
        vsz_peak: trial.samples.iter().map(|s| s.total.vsz_bytes.0).max(),
        excess_byte_seconds: excess.map(|(area, _)| area),
        excess_mean: excess.filter(|e| e.1 > 0.0).map(|(area, time)| (area / time) as u64),
        lazyfree: settled_window.and_then(|(from, to)| lazyfree(trial, from, to)),
        minor_faults: usage.map(|u| u.minor_faults).or(last.map(|s| s.total.minor_faults)),
        major_faults: usage.map(|u| u.major_faults).or(last.map(|s| s.total.major_faults)),
        wall_s: times.span(trial).map(|(from, to)| to - from),
        // A process that has run has used CPU time; imported metrics may lack it.
        cpu_s: usage.map(|u| u.cpu_s).or(last.map(|s| s.total.cpu_s)).filter(|s| *s > 0.0),
        bytes_per_connection: bytes_per_connection(trial, start, peak, times.load_begin()),
        rounds: times.rounds(&series),
        ramps: ramps(trial, &series),
        phases: times.phases(&series),
        settle_span,
        rise_before_load: times.rise_before_load(&series),
        load_begin: match times.says_when_it_began() {
            true => times.load_begin(),
            false => settle_span.map_or(f64::INFINITY, |(from, _)| from),
        },
    }
}

/// Returns (settled − baseline) / (peak − baseline); `None` if nothing rose.
pub fn ratio(baseline: Option<u64>, peak: Option<u64>, settled: Option<u64>) -> Option<f64> {
    let rise = rise(baseline, peak)?;
    Some((settled? as f64 - baseline? as f64) / rise as f64)
}

/// Returns peak − baseline; `None` if it is only noise.
pub fn rise(baseline: Option<u64>, peak: Option<u64>) -> Option<u64> {
    let rise = peak?.checked_sub(baseline?)?;
    (rise >= LEAST_RISE_BYTES.max(baseline? / 100)).then_some(rise)
}

fn lazyfree(trial: &TrialRecord, from: f64, to: f64) -> Option<u64> {
    trial
        .samples
        .iter()
        .rev()
        .filter(|s| s.t_s >= from && s.t_s <= to)
        .find_map(|s| Some(s.slow?.lazyfree_bytes.0))
}

fn bytes_per_connection(
    trial: &TrialRecord,
    baseline: Option<u64>,
    peak: Option<u64>,
    load_begin: f64,
) -> Option<u64> {
    let connections = |from: f64, to: f64| {
        trial
            .samples
            .iter()
            .filter(|s| s.t_s >= from && s.t_s <= to)
            .filter_map(|s| s.sockets_established)
            .max()
    };
    let before = connections(load_begin - BASELINE_WINDOW_S, load_begin).unwrap_or(0);
    let opened = connections(load_begin, f64::INFINITY)?.checked_sub(before)?;
    let rise = peak?.checked_sub(baseline?)?;
    let is_enough = opened >= LEAST_CONNECTIONS
        && trial.loads.iter().all(|load| opens_connections(load, opened as f64));
    is_enough.then(|| rise / opened)
}

/// The moments of a trial, in seconds since the start of the record.
struct Times<'a> {
    marks: &'a [Mark],
    loaded: bool,
    /// The end of the judged time; absent if the trial did not get that far.
    end: Option<f64>,
    /// The span in which the peak is sought, in a trial that loads itself.
    own_trace: Option<(f64, f64)>,
}

impl<'a> Times<'a> {
    fn new(trial: &'a TrialRecord, series: &Series) -> Self {
        let marks = trial.marks.as_slice();
        let loaded = trial.trial.loaded;
        let first = |moment| marks.iter().find(|m| m.mark == moment).map(|m| m.t_s);
        let end = if loaded {
            marks
                .iter()
                .rev()
                .find(|m| m.mark == Event::Settled && m.round != Some(0))
                .map(|m| m.t_s)
        } else {
            first(Event::Exit).or(first(Event::Settled))
        };
        let own_trace = series.span().map(|(begin, last)| (begin, end.unwrap_or(last)));
        Self { marks, loaded, end, own_trace }
    }

    fn first(&self, moment: Event) -> Option<f64> {
        self.marks.iter().find(|m| m.mark == moment).map(|m| m.t_s)
    }

    fn round(&self, moment: Event, round: u32) -> Option<f64> {
        self.marks.iter().find(|m| m.mark == moment && m.round == Some(round)).map(|m| m.t_s)
    }

    fn phase(&self, phase: MetricPhase) -> Option<f64> {
        let named = |m: &&Mark| m.mark == Event::Phase && m.name.as_deref() == Some(phase.name());
        // A phase may occur once a round: the first one counts as the baseline, the last one for
        // the others.
        if phase == MetricPhase::Baseline {
            self.marks.iter().find(named).map(|m| m.t_s)
        } else {
            self.marks.iter().rev().find(named).map(|m| m.t_s)
        }
    }

    fn baseline(&self, series: &Series) -> Option<OwnBaseline> {
        let before = |t: f64| {
            let bytes = series.median_between(t - BASELINE_WINDOW_S, t)?;
            Some(OwnBaseline { bytes, is_stable: true })
        };
        if let Some(t) = self.phase(MetricPhase::Baseline) {
            return before(t);
        }
        if self.loaded {
            return before(self.first(Event::Baseline)?);
        }
        let (from, to) = self.own_trace?;
        let highest = series.max_between(from, to)?;
        let top = series.first_at_least(highest as f64).filter(|t| *t >= from).unwrap_or(to);
        own_baseline(series, from, top)
    }

    fn rise_before_load(&self, series: &Series) -> Option<u64> {
        let t = self
            .phase(MetricPhase::Baseline)
            .or(self.first(Event::Baseline).filter(|_| self.loaded))?;
        series.at(t)?.checked_sub(series.at(t - BASELINE_WINDOW_S)?)
    }

    fn says_when_it_began(&self) -> bool {
        self.loaded || self.phase(MetricPhase::Baseline).is_some()
    }

    fn load_begin(&self) -> f64 {
        self.phase(MetricPhase::Baseline)
            .or(self.first(Event::Baseline))
            .or(self.own_trace.map(|(from, _)| from))
            .unwrap_or(0.0)
    }

    fn peak(&self, series: &Series) -> Option<u64> {
        if let Some(t) = self.phase(MetricPhase::Peak) {
            return series.just_after(t, PHASE_WINDOW_S);
        }
        if self.loaded {
            // Without a load, the process only starts: it has no peak.
            let from = self.first(Event::Baseline)?;
            return series.max_between(from, self.end.unwrap_or(f64::INFINITY));
        }
        let (from, to) = self.own_trace?;
        series.max_between(self.phase(MetricPhase::Baseline).unwrap_or(from), to)
    }

    /// Returns the end of the load, if it is announced.
    fn load_end(&self) -> Option<f64> {
        self.phase(MetricPhase::LoadEnd).or_else(|| {
            let of_load = |m: &&Mark| m.mark == Event::LoadEnd && m.round != Some(0);
            self.marks.iter().rev().find(of_load).map(|m| m.t_s)
        })
    }

    fn settled_window(
        &self,
        series: &Series,
        baseline: Option<u64>,
        peak: Option<u64>,
        settle_span: Option<(f64, f64)>,
    ) -> Option<(f64, f64)> {
        let phase = self.phase(MetricPhase::Settled);
        let to = match phase {
            Some(t) => t,
            None if self.first(Event::Exit).is_some() && !self.loaded => self.end? - EXIT_MARGIN_S,
            None => self.end?,
        };
        let load_end = settle_span.map_or(f64::NEG_INFINITY, |(from, _)| from);
        if phase.is_none() && load_end > to {
            return None;
        }
        let from = to - SETTLED_WINDOW_S;
        let from = if load_end < to { from.max(load_end) } else { from };
        if self.load_end().is_some() || phase.is_some() {
            return Some((from, to));
        }
        // The end of its load is not announced: everything before its last fall still counts as the
        // load.
        let rise = rise(baseline, peak).unwrap_or(0) as f64;
        let last = series.median_within(to - FINAL_WINDOW_S, to);
        let fallen = last.and_then(|last| series.last_above(last as f64 + FALLEN * rise, to));
        match fallen.filter(|_| rise > 0.0) {
            None => Some((from, to)),
            Some(t) if t <= to - FINAL_WINDOW_S => Some((from.max(t.next_up()), to)),
            // Too late to know where it would have settled.
            Some(_) => None,
        }
    }

    fn settle_span(
        &self,
        series: &Series,
        baseline: Option<u64>,
        peak: Option<u64>,
    ) -> Option<(f64, f64)> {
        let to = self.phase(MetricPhase::Settled).or(self.end)?;
        let from = match self.load_end() {
            Some(t) => t,
            None if self.loaded => return None,
            None => {
                let (baseline, peak) = (baseline? as f64, peak? as f64);
                series.first_at_least(peak - NEAR_PEAK * (peak - baseline))?
            }
        };
        (from <= to).then_some((from, to))
    }

    fn span(&self, trial: &TrialRecord) -> Option<(f64, f64)> {
        let from = self.first(Event::Start)?;
        // The first process of a server that becomes a daemon ends immediately.
        let exit = self.first(Event::Exit).filter(|_| !self.loaded);
        let to = exit
            .or(self.first(Event::Stop))
            .or(trial.end.as_ref().map(|e| e.t_s))
            .or(trial.samples.last().map(|s| s.t_s))?;
        Some((from, to))
    }

    fn rounds(&self, series: &Series) -> Vec<RoundMetrics> {
        let begins = self.marks.iter().filter(|m| m.mark == Event::LoadBegin);
        begins
            .filter_map(|m| m.round.filter(|r| *r > 0).map(|round| (round, m.t_s)))
            .map(|(round, begin)| {
                let settled = self.round(Event::Settled, round);
                let from = self.round(Event::LoadEnd, round).unwrap_or(begin);
                RoundMetrics {
                    round,
                    peak: series.max_between(begin, settled.unwrap_or(f64::INFINITY)),
                    settled: settled
                        .and_then(|to| series.median_within(from.max(to - SETTLED_WINDOW_S), to)),
                }
            })
            .collect()
    }

    fn phases(&self, series: &Series) -> Vec<PhaseMetrics> {
        let phases = self.marks.iter().filter(|m| m.mark == Event::Phase);
        phases
            .filter_map(|m| {
                Some(PhaseMetrics {
                    name: m.name.clone()?,
                    t_s: m.t_s,
                    bytes: series.just_after(m.t_s, PHASE_WINDOW_S),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;

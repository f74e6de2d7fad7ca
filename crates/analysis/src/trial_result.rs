//! One trial: its outcome, its metrics and its rounds.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use lowtide_model::act;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
use lowtide_model::release;
use lowtide_model::treatment::Treatment;
use lowtide_record::TrialRecord;
use lowtide_record::v1::{Event, HookRun, INNER_MEMORY, LedgerReading, Outcome};

use crate::metrics::{
    self, Metric, PerConnection, PhaseMetrics, PolicyMetrics, Ramp, RoundMetrics, RoundTrend,
    TrialMetrics, round_trend,
};

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialOutcome {
    /// As planned.
    Done,
    /// With an error.
    Failed,
    /// By a signal to lowtide.
    Interrupted,
    /// Unknown: the record ends in the middle of the trial.
    Unfinished,
}

impl TrialOutcome {
    /// Returns the name for reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Unfinished => "unfinished",
        }
    }
}

/// One trial.
#[derive(Debug, Clone, Serialize)]
pub struct TrialResult {
    /// Its place in the order, from 1.
    pub number: u32,
    /// The treatment.
    pub treatment: Treatment,
    /// Which repeat of it, from 1.
    pub repeat: u32,
    /// How it ended.
    pub outcome: TrialOutcome,
    /// Why it failed.
    pub failed_because: Option<String>,
    /// The exit status of the subject; `null` if lowtide or a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, when lowtide did not send it.
    pub signal: Option<i32>,
    /// Whether the treatment was really in force, in every process that matters.
    pub allocator_active: Option<bool>,
    /// Why it was not, or why that is not known.
    pub allocator_inactive_because: Option<String>,
    /// By what memory is judged.
    pub metric: Metric,
    /// How often PSS was read; between two readings it is estimated from RSS. `null` where memory is judged by RSS.
    pub pss_readings: Option<u64>,
    /// By how much memory rose in the last second before the load, in bytes.
    #[serde(skip)]
    pub rise_before_load_bytes: Option<u64>,
    /// Memory before the load, in bytes.
    pub baseline_bytes: Option<u64>,
    /// Memory at its highest, in bytes.
    pub peak_bytes: Option<u64>,
    /// Memory after the load is gone, in bytes.
    pub settled_bytes: Option<u64>,
    /// (settled − baseline) / (peak − baseline); `null` when nothing rose.
    pub settled_ratio: Option<f64>,
    /// Address space at its highest, in bytes.
    pub vsz_peak_bytes: Option<u64>,
    /// What lay above the baseline after the load, in byte-seconds.
    pub excess_byte_seconds: Option<f64>,
    /// The same divided by the time, in bytes.
    pub excess_mean_bytes: Option<u64>,
    /// Lazily freed pages when settled, in bytes.
    pub lazyfree_bytes: Option<u64>,
    /// Page faults without I/O.
    pub minor_faults: Option<u64>,
    /// Page faults with I/O.
    pub major_faults: Option<u64>,
    /// From start to end, in seconds.
    pub wall_s: Option<f64>,
    /// CPU time of the whole tree, in seconds.
    pub cpu_s: Option<f64>,
    /// Number of runs of hooks and policies that reported a `lowtide.release/1` object with returned memory.
    pub releases: u64,
    /// What its policy has done; `null` without one.
    pub policy: Option<PolicyMetrics>,
    /// The rise for each connection, in bytes; `null` below ten connections.
    pub bytes_per_connection: Option<u64>,
    /// The rounds of the load.
    pub rounds: Vec<RoundResult>,
    /// Whether what stays after a round grows from round to round.
    pub over_rounds: Trends,
    /// The readings while each round opened its connections.
    #[serde(skip)]
    pub ramps: Vec<Ramp>,
    /// The phases that the subject announced.
    pub phases: Vec<PhaseMetrics>,
    /// Resident bytes by owner at these moments.
    pub ledgers: AtEvents<Ledger>,
    /// What each runtime and allocator managed at the same moments of the row `runtime`, the largest first.
    pub managers: AtEvents<Vec<Manager>>,
    /// How the heaps lay at the same moments: arenas and free blocks, of glibc alone.
    pub heaps: AtEvents<HeapSummary>,
    /// The file of its samples, relative to the record.
    pub samples: String,
}

/// How what stays goes on from round to round; `null` of a single round, and of rounds that are not alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Trends {
    /// Memory, by the metric of the study.
    pub memory: Option<RoundTrend>,
    /// What the program itself says it has allocated; `null` also where it says nothing.
    pub inner_memory: Option<RoundTrend>,
}

/// One round of the load.
#[derive(Debug, Clone, Serialize)]
pub struct RoundResult {
    /// Which, from 1.
    pub round: u32,
    /// Its highest reading, in bytes.
    pub peak_bytes: Option<u64>,
    /// Memory at the end of the pause after the round, in bytes.
    pub settled_bytes: Option<u64>,
    /// What the program itself says it has allocated, in bytes; `null` where it says nothing.
    pub allocated_bytes: Option<u64>,
    /// What a connection costs in it; `null` where no ramp of connections was seen.
    pub per_connection: Option<PerConnection>,
    /// What the load said of this round.
    pub load: Option<LoadResult>,
}

/// What the load said of a round.
#[derive(Debug, Clone, Serialize)]
pub struct LoadResult {
    /// Whether its command ended well.
    pub ended_well: bool,
    /// How long it ran, in seconds.
    pub wall_s: f64,
    /// Its own figures, as a round of `lowtide.load/1` has them.
    #[serde(flatten)]
    pub figures: BTreeMap<String, Value>,
}

impl LoadResult {
    /// One of its own figures.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name)?.as_f64()
    }

    /// The latency that a slowdown is judged by, in seconds: the mean, which a delay of any part
    /// of the requests moves.
    pub fn mean_latency_s(&self) -> Option<f64> {
        self.latency_s("mean")
    }

    /// A latency by its name, in seconds: `mean`, `p50`, `p90`, `p99`, `p999`, `max`.
    pub fn latency_s(&self, name: &str) -> Option<f64> {
        self.figures.get("latency_s")?.get(name)?.as_f64().filter(|s| *s > 0.0)
    }
}

/// A value at each event of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AtEvents<T> {
    /// Before the load.
    pub baseline: Option<T>,
    /// At its highest.
    pub peak: Option<T>,
    /// When the last request of the last round was over and its connections were still open; absent if the
    /// load does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained: Option<T>,
    /// After the load is gone.
    pub settled: Option<T>,
}

impl<T> Default for AtEvents<T> {
    fn default() -> Self {
        Self { baseline: None, peak: None, drained: None, settled: None }
    }
}

impl<T> AtEvents<T> {
    /// Maps each value.
    pub fn and_then<U>(self, of: impl Fn(T) -> Option<U>) -> AtEvents<U> {
        AtEvents {
            baseline: self.baseline.and_then(&of),
            peak: self.peak.and_then(&of),
            drained: self.drained.and_then(&of),
            settled: self.settled.and_then(&of),
        }
    }
}

impl TrialResult {
    pub(crate) fn new(samples: &str, trial: &TrialRecord, figures: TrialMetrics) -> Self {
        let (outcome, failed_because) = match trial.end.as_ref().map(|e| &e.outcome) {
            Some(Outcome::Done) => (TrialOutcome::Done, None),
            Some(Outcome::Failed { because }) => (TrialOutcome::Failed, Some(because.clone())),
            Some(Outcome::Interrupted) => (TrialOutcome::Interrupted, None),
            None => (TrialOutcome::Unfinished, None),
        };
        let ledgers: AtEvents<&LedgerReading> = match figures.metric {
            Metric::Rss => metrics::ledgers(trial, &figures),
            Metric::Pss => metrics::ledgers(trial, &metrics::measure(trial, Metric::Rss)),
        };
        let (allocator_active, allocator_inactive_because) = metrics::in_force(trial);
        let rounds: Vec<RoundResult> =
            figures.rounds.iter().map(|round| RoundResult::new(round, trial, &figures)).collect();
        Self {
            number: trial.trial.number,
            treatment: trial.trial.treatment.clone(),
            repeat: trial.trial.repeat,
            outcome,
            failed_because,
            exit_code: trial.end.as_ref().and_then(|e| e.exit_code),
            signal: trial.end.as_ref().and_then(|e| e.signal),
            allocator_active,
            allocator_inactive_because,
            metric: figures.metric,
            pss_readings: (figures.metric == Metric::Pss)
                .then(|| trial.samples.iter().filter(|s| s.slow.is_some()).count() as u64),
            rise_before_load_bytes: figures.rise_before_load,
            baseline_bytes: figures.baseline,
            peak_bytes: figures.peak,
            settled_bytes: figures.settled,
            settled_ratio: figures.settled_ratio,
            vsz_peak_bytes: figures.vsz_peak,
            excess_byte_seconds: figures.excess_byte_seconds,
            excess_mean_bytes: figures.excess_mean,
            lazyfree_bytes: figures.lazyfree,
            minor_faults: figures.minor_faults,
            major_faults: figures.major_faults,
            wall_s: figures.wall_s,
            cpu_s: figures.cpu_s,
            releases: trial.acts.iter().filter(|act| is_release(act)).count() as u64,
            policy: PolicyMetrics::new(trial),
            bytes_per_connection: figures.bytes_per_connection,
            over_rounds: trends(trial, &figures, &rounds),
            rounds,
            ramps: figures.ramps,
            phases: figures.phases,
            ledgers: ledgers.and_then(|l| Some(l.ledger.clone())),
            managers: ledgers.and_then(|l| Some(l.managers.clone())),
            heaps: ledgers.and_then(|l| l.heap),
            samples: samples.to_owned(),
        }
    }
}

/// Returns whether a hook or policy reported a release that returned memory.
fn is_release(act: &HookRun) -> bool {
    let field = |name: &str| act.report.as_ref().and_then(|report| report.get(name));
    let schema = field("schema").and_then(Value::as_str);
    let is_act = || field("event").and_then(Value::as_str) == Some("act");
    (schema == Some(release::SCHEMA) || (schema == Some(act::SCHEMA) && is_act()))
        && field("returned_bytes").and_then(Value::as_u64).is_some_and(|bytes| bytes > 0)
}

/// How what stayed of memory, and of what the program says it has allocated, went on from round to round.
fn trends(trial: &TrialRecord, figures: &TrialMetrics, rounds: &[RoundResult]) -> Trends {
    let stayed = |of: fn(&RoundResult) -> Option<u64>| -> Option<Vec<u64>> {
        rounds.iter().map(of).collect()
    };
    let raised =
        figures.peak.zip(figures.baseline).map_or(0, |(peak, base)| peak.saturating_sub(base));
    let reported =
        || trial.figures.iter().filter_map(|f| Some(*f.values.get(INNER_MEMORY)? as u64));
    let reported_rise =
        reported().max().zip(reported().min()).map_or(0, |(most, least)| most - least);
    Trends {
        memory: stayed(|r| r.settled_bytes).and_then(|all| round_trend(&all, raised)),
        inner_memory: stayed(|r| r.allocated_bytes)
            .and_then(|all| round_trend(&all, reported_rise)),
    }
}

/// What the program itself said at a moment that it had allocated, if it had said so just before.
fn allocated_at(trial: &TrialRecord, t_s: f64) -> Option<u64> {
    const JUST_BEFORE_S: f64 = 3.0;
    let reported = trial.figures.iter().rfind(|f| f.t_s <= t_s)?;
    let bytes =
        reported.values.get(INNER_MEMORY).filter(|_| t_s - reported.t_s <= JUST_BEFORE_S)?;
    Some(*bytes as u64)
}

impl RoundResult {
    fn new(round: &RoundMetrics, trial: &TrialRecord, figures: &TrialMetrics) -> Self {
        let load = trial.loads.iter().find(|l| l.round == round.round).map(|load| {
            let figures = match &load.report {
                Some(Value::Object(map)) => map
                    .iter()
                    .filter(|(k, _)| !["round", "ended_well", "wall_s"].contains(&k.as_str()))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
                _ => BTreeMap::new(),
            };
            LoadResult { ended_well: load.succeeded, wall_s: load.wall_s, figures }
        });
        let settled =
            trial.marks.iter().find(|m| m.mark == Event::Settled && m.round == Some(round.round));
        Self {
            round: round.round,
            peak_bytes: round.peak,
            settled_bytes: round.settled,
            allocated_bytes: settled.and_then(|mark| allocated_at(trial, mark.t_s)),
            per_connection: PerConnection::from_ramps(
                figures.ramps.iter().filter(|ramp| ramp.round == round.round),
            ),
            load,
        }
    }
}

impl TrialResult {
    /// Returns whether the trial may be compared with others: it ended as planned, and nothing says that
    /// its treatment was not in force.
    pub fn is_usable(&self) -> bool {
        self.outcome == TrialOutcome::Done && self.allocator_active != Some(false)
    }
}

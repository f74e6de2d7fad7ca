//! One trial: its outcome, its metrics and its rounds.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use lowtide_model::act;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
use lowtide_model::pins::{BlockSummary, PinSummary};
use lowtide_model::release;
use lowtide_model::treatment::Treatment;
use lowtide_record::TrialRecord;
use lowtide_record::v1::{Event, HookRun, INNER_MEMORY, LedgerReading, Outcome};

use crate::metrics::{
    self, AtEvents, Metric, PerConnection, PhaseMetrics, PolicyMetrics, Ramp, RoundMetrics,
    RoundTrend, TrialMetrics, round_trend,
};

/// The outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialOutcome {
    /// It ended as planned.
    Done,
    /// It ended with an error.
    Failed,
    /// A signal to lowtide interrupted it.
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
    /// Its position in the order, from 1.
    pub number: u32,
    /// The treatment.
    pub treatment: Treatment,
    /// Its repeat, from 1.
    pub repeat: u32,
    /// Its outcome.
    pub outcome: TrialOutcome,
    /// The reason of its failure.
    pub failed_because: Option<String>,
    /// The exit status of the subject; `null` if lowtide or a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if lowtide did not send it.
    pub signal: Option<i32>,
    /// Whether the treatment was really in force, in every process that matters.
    pub allocator_active: Option<bool>,
    /// The reason why it was not in force, or why that is not known.
    pub allocator_inactive_because: Option<String>,
    /// The metric by which memory is judged.
    pub metric: Metric,
    /// Number of readings of PSS, between which it is estimated from RSS. `null` if memory is
    /// judged by RSS.
    pub pss_readings: Option<u64>,
    /// Rise of memory in the last second before the load, in bytes.
    #[serde(skip)]
    pub rise_before_load_bytes: Option<u64>,
    /// The baseline, or if there is none, an estimate of the memory when the rise began, in bytes.
    #[serde(skip)]
    pub start_bytes: Option<u64>,
    /// Memory before the load, in bytes; `null` also if memory rose from the start of a command on.
    pub baseline_bytes: Option<u64>,
    /// Peak memory, in bytes.
    pub peak_bytes: Option<u64>,
    /// Memory after the load is gone, in bytes.
    pub settled_bytes: Option<u64>,
    /// (settled − baseline) / (peak − baseline); `null` if nothing rose.
    pub settled_ratio: Option<f64>,
    /// Peak address space, in bytes.
    pub vsz_peak_bytes: Option<u64>,
    /// Memory above the baseline after the load, in byte-seconds.
    pub excess_byte_seconds: Option<f64>,
    /// The same divided by the time, in bytes.
    pub excess_mean_bytes: Option<u64>,
    /// Lazily freed pages when settled, in bytes.
    pub lazyfree_bytes: Option<u64>,
    /// Page faults without I/O.
    pub minor_faults: Option<u64>,
    /// Page faults with I/O.
    pub major_faults: Option<u64>,
    /// Duration from start to end, in seconds.
    pub wall_s: Option<f64>,
    /// CPU time of the whole tree, in seconds.
    pub cpu_s: Option<f64>,
    /// Number of runs of hooks and policies that reported a `lowtide.release/1` object with
    /// returned memory.
    pub releases: u64,
    /// The effects and costs of its policy; `null` without one.
    pub policy: Option<PolicyMetrics>,
    /// The rise per connection, in bytes; `null` below ten connections.
    pub bytes_per_connection: Option<u64>,
    /// The rounds of the load.
    pub rounds: Vec<RoundResult>,
    /// The trends of settled memory from round to round.
    pub over_rounds: Trends,
    /// The readings while each round opened its connections.
    #[serde(skip)]
    pub ramps: Vec<Ramp>,
    /// The phases that the subject announced.
    pub phases: Vec<PhaseMetrics>,
    /// Maximum of each duration that the subject reported, in milliseconds: of its metrics whose
    /// name ends in `_ms`.
    pub reported_ms: BTreeMap<String, f64>,
    /// Resident bytes by owner at these moments.
    pub ledgers: AtEvents<Ledger>,
    /// Memory by runtime and allocator at the same moments, which is the row `runtime`, the largest
    /// first.
    pub managers: AtEvents<Vec<Manager>>,
    /// Summaries of the heaps at the same moments: arenas and free blocks, only for glibc.
    pub heaps: AtEvents<HeapSummary>,
    /// What pins fragmented memory when settled: of several processes, in the one with most of it;
    /// `null` if it is not known, or if there is little.
    pub pins: Option<PinSummary>,
    /// The blocks in use when settled: of several processes, in the one with most of them; `null`
    /// if they are not known, or if there are few.
    pub blocks: Option<BlockSummary>,
    /// The file of its samples, relative to the record.
    pub samples: String,
}

/// The trends of settled memory from round to round; `null` for a single round, and for rounds that
/// are not alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Trends {
    /// Memory, by the metric of the study.
    pub memory: Option<RoundTrend>,
    /// Memory that the program itself reports as allocated; `null` also if it reports none.
    pub inner_memory: Option<RoundTrend>,
}

/// One round of the load.
#[derive(Debug, Clone, Serialize)]
pub struct RoundResult {
    /// Its number, from 1.
    pub round: u32,
    /// Its highest reading, in bytes.
    pub peak_bytes: Option<u64>,
    /// Memory at the end of the pause after the round, in bytes.
    pub settled_bytes: Option<u64>,
    /// Memory that the program itself reports as allocated, in bytes; `null` if it reports none.
    pub allocated_bytes: Option<u64>,
    /// The memory cost of a connection in it; `null` without a ramp of connections.
    pub per_connection: Option<PerConnection>,
    /// The load's report on this round.
    pub load: Option<LoadResult>,
}

/// The load's report on a round.
#[derive(Debug, Clone, Serialize)]
pub struct LoadResult {
    /// Whether its command succeeded.
    pub ended_well: bool,
    /// Its duration, in seconds.
    pub wall_s: f64,
    /// Its own metrics, as in a round of `lowtide.load/1`.
    #[serde(flatten)]
    pub figures: BTreeMap<String, Value>,
}

impl LoadResult {
    /// Returns one of its own metrics.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name)?.as_f64()
    }

    /// Returns the latency by which a slowdown is judged, in seconds: the mean, which reacts to a
    /// delay of any part of the requests.
    pub fn mean_latency_s(&self) -> Option<f64> {
        self.latency_s("mean")
    }

    /// Returns a latency by its name, in seconds: `mean`, `p50`, `p90`, `p99`, `p999`, `max`.
    pub fn latency_s(&self, name: &str) -> Option<f64> {
        self.figures.get("latency_s")?.get(name)?.as_f64().filter(|s| *s > 0.0)
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
        let load_begin_s = figures.load_begin;
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
            start_bytes: figures.start,
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
            reported_ms: reported_ms(trial),
            ledgers: ledgers.and_then(|l| Some(l.ledger.clone())),
            managers: ledgers.and_then(|l| Some(l.managers.clone())),
            heaps: ledgers.and_then(|l| l.heap),
            pins: ledgers
                .settled
                .and_then(|settled| metrics::settled_pins(trial, settled, load_begin_s).cloned()),
            blocks: ledgers
                .settled
                .and_then(|settled| metrics::settled_blocks(trial, settled, load_begin_s).cloned()),
            samples: samples.to_owned(),
        }
    }
}

/// Returns the maximum of each duration that the subject reported.
fn reported_ms(trial: &TrialRecord) -> BTreeMap<String, f64> {
    let mut longest = BTreeMap::new();
    for (name, value) in trial.figures.iter().flat_map(|reading| &reading.values) {
        if name.ends_with("_ms") && *value > 0.0 {
            let so_far = longest.entry(name.clone()).or_insert(*value);
            *so_far = value.max(*so_far);
        }
    }
    longest
}

/// Returns whether a hook or policy reported a release that returned memory.
fn is_release(act: &HookRun) -> bool {
    let field = |name: &str| act.report.as_ref().and_then(|report| report.get(name));
    let schema = field("schema").and_then(Value::as_str);
    let is_act = || field("event").and_then(Value::as_str) == Some("act");
    (schema == Some(release::SCHEMA) || (schema == Some(act::SCHEMA) && is_act()))
        && field("returned_bytes").and_then(Value::as_u64).is_some_and(|bytes| bytes > 0)
}

/// Returns the trends of settled memory, and of the memory that the program reports as allocated,
/// from round to round.
fn trends(trial: &TrialRecord, figures: &TrialMetrics, rounds: &[RoundResult]) -> Trends {
    let stayed = |of: fn(&RoundResult) -> Option<u64>| -> Option<Vec<u64>> {
        rounds.iter().map(of).collect()
    };
    let raised =
        figures.peak.zip(figures.start).map_or(0, |(peak, base)| peak.saturating_sub(base));
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

/// Returns the memory that the program itself last reported as allocated before a moment, if that
/// was shortly before it.
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
    /// Returns whether the trial may be compared with others: it ended as planned, and its
    /// treatment is not known to have been inactive.
    pub fn is_usable(&self) -> bool {
        self.outcome == TrialOutcome::Done && self.allocator_active != Some(false)
    }
}

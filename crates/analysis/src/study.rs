//! A finished study as one object: what `--json` prints, `lowtide.study/1`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::metrics::{Metric, PerConnection, PhaseMetrics, Ramp, RoundTrend};
use crate::stats::Estimate;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
use lowtide_model::treatment::Treatment;
use lowtide_record::plan::Plan;
use lowtide_record::shard::Shard;
use lowtide_record::v1::Machine;

/// What the object's `schema` says.
pub const SCHEMA: &str = "lowtide.study/1";

/// A study: its trials, what they say of each treatment, and which to take.
#[derive(Debug, Clone, Serialize)]
pub struct StudyReport {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// The directory of the record.
    pub record: String,
    /// The study's name.
    pub name: String,
    /// The command under study.
    pub command: Vec<String>,
    /// When it began: seconds since 1970-01-01 UTC.
    pub started_unix_s: f64,
    /// The version of lowtide that recorded it.
    pub lowtide_version: String,
    /// Where it ran.
    pub machine: Machine,
    /// What the order of the trials was drawn from.
    pub seed: u64,
    /// Which part of the trials this is; `null` when it is all of them.
    pub shard: Option<Shard>,
    /// Whether every trial that was planned for it has ended as planned.
    pub complete: bool,
    /// By what memory is judged, in every trial of the study.
    pub metric: Metric,
    /// Which treatment to take; absent when there is nothing to choose from, or the study asks for none.
    pub recommendation: Option<Recommendation>,
    /// What a reader must know before comparing the figures.
    pub warnings: Vec<String>,
    /// What the repeats say of each treatment, in the order of the plan; the first is the reference.
    pub treatments: Vec<TreatmentSummary>,
    /// The trials, in the order in which they ran.
    pub trials: Vec<TrialResult>,
    /// What was planned.
    #[serde(skip)]
    pub plan: Plan,
}

/// What the repeats say of one treatment.
#[derive(Debug, Clone, Serialize)]
pub struct TreatmentSummary {
    /// The treatment.
    pub treatment: Treatment,
    /// Where it stands among the others.
    pub standing: Standing,
    /// Memory before the load, in bytes.
    pub baseline_bytes: Option<Estimate>,
    /// Memory at its highest, in bytes.
    pub peak_bytes: Option<Estimate>,
    /// Memory after the load is gone, in bytes.
    pub settled_bytes: Option<Estimate>,
    /// What stayed of the rise.
    pub settled_ratio: Option<Estimate>,
    /// What lay above the baseline after the load, in bytes.
    pub excess_mean_bytes: Option<Estimate>,
    /// The same over time, in byte-seconds.
    pub excess_byte_seconds: Option<Estimate>,
    /// CPU time for the same work, in seconds (for each request, where the load counts them).
    pub cpu_s: Option<Estimate>,
    /// CPU time as a ratio to the reference, pair by pair.
    pub cpu_ratio: Option<Estimate>,
    /// Latency of the load as a ratio to the reference, pair by pair; where the load does not tell
    /// it, the duration of the load.
    pub latency_ratio: Option<Estimate>,
    /// What a connection costs, read off the ramps of all its trials.
    pub per_connection: FirstAndLater<PerConnection>,
    /// Requests of its loads, in the trials that can be compared; of loads of bare connections, connections.
    /// `null` where no load tells.
    pub requests: Option<u64>,
    /// How many of them failed.
    pub failed_requests: Option<u64>,
}

/// Something of the first round, and of all later ones together: the first pays for what is made once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct FirstAndLater<T> {
    /// Of the first.
    pub first_round: Option<T>,
    /// Of the later ones.
    pub later_rounds: Option<T>,
}

/// A treatment, and why.
#[derive(Debug, Clone, Serialize)]
pub struct Recommendation {
    /// The treatment to take; absent when none can be named.
    pub treatment: Option<Treatment>,
    /// Why, in a sentence or two.
    pub because: String,
    /// Whether the repeats settle it.
    pub resolved: bool,
}

/// Where a treatment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The one that the others are compared with.
    Reference,
    /// It costs no more than was allowed.
    Within,
    /// It costs more than was allowed.
    Beyond,
    /// The repeats do not say whether it costs more than was allowed.
    Unresolved,
    /// It was not in force: its figures are another allocator's.
    NotInForce,
    /// No trial of it ended as planned.
    Failed,
    /// No trial of it has ended, and none failed: the study was broken off.
    NotFinished,
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
    /// `done`, `failed`, `interrupted`, or `unfinished` when the record ends in the middle of it.
    pub outcome: &'static str,
    /// Why it failed.
    pub failed_because: Option<String>,
    /// The exit status of the subject; `null` when lowtide ended it, or a signal.
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
    /// Releases by a policy: what was done at a moment of the trial and told a `lowtide.release/1` object
    /// of memory that was given back.
    pub releases: u64,
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
    /// At the end of the pause behind it, in bytes.
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
        self.figures.get("latency_s")?.get("mean")?.as_f64().filter(|m| *m > 0.0)
    }
}

/// What was at the moments of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AtEvents<T> {
    /// Before the load.
    pub baseline: Option<T>,
    /// At its highest.
    pub peak: Option<T>,
    /// When the last request of the last round was over and the connections still stood; absent where
    /// the load does not tell.
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
    /// Something of each.
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
    /// Whether the trial may be compared with others: it ended as planned, and nothing says that
    /// its treatment was not in force.
    pub fn is_usable(&self) -> bool {
        self.outcome == "done" && self.allocator_active != Some(false)
    }
}

//! A finished study as one object: what `--json` prints, `lowtide.study/1`.

use crate::metrics::{Metric, PerConnection};
use crate::stats::Estimate;
use crate::trial_result::TrialResult;
use lowtide_model::treatment::Treatment;
use lowtide_record::plan::StudyPlan;
use lowtide_record::shard::Shard;
use lowtide_record::v1::Machine;
use serde::Serialize;

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
    pub plan: StudyPlan,
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
    /// The part of the rise that remained.
    pub settled_ratio: Option<Estimate>,
    /// Mean excess: memory above the baseline after the load, in bytes.
    pub excess_mean_bytes: Option<Estimate>,
    /// The same over time, in byte-seconds.
    pub excess_byte_seconds: Option<Estimate>,
    /// CPU time for the same work, in seconds (for each request, where the load counts them).
    pub cpu_s: Option<Estimate>,
    /// CPU time as a ratio to the reference, pair by pair.
    pub cpu_ratio: Option<Estimate>,
    /// Latency of the load as a ratio to the reference, pair by pair; the duration of the load if it
    /// reports no latency.
    pub latency_ratio: Option<Estimate>,
    /// What a connection costs, read off the ramps of all its trials.
    pub per_connection: FirstAndLater<PerConnection>,
    /// Requests of its loads, in the trials that can be compared; of loads of bare connections, connections.
    /// `null` if no load reports them.
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

//! A completed study as one object: `lowtide.study/1`, which `--json` prints.

use crate::metrics::{Metric, PerConnection};
use crate::trial_result::TrialResult;
use crate::versions::VersionComparison;
use lowtide_model::stats::{ENOUGH_FOR_INTERVAL, Estimate};
use lowtide_model::treatment::Treatment;
use lowtide_record::plan::StudyPlan;
use lowtide_record::shard::Shard;
use lowtide_record::v1::Machine;
use serde::Serialize;

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.study/1";

/// A study: its trials, a summary of each treatment, and a recommendation.
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
    /// Its start time, in seconds since 1970-01-01 UTC.
    pub started_unix_s: f64,
    /// The version of lowtide that recorded it.
    pub lowtide_version: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The seed of the order of the trials.
    pub seed: u64,
    /// The part of the trials in this report; `null` if it has all of them.
    pub shard: Option<Shard>,
    /// Whether every planned trial has ended as planned.
    pub complete: bool,
    /// The metric by which memory is judged in every trial of the study.
    pub metric: Metric,
    /// The recommended treatment; absent if none can be chosen, or if the study asks for none.
    pub recommendation: Option<Recommendation>,
    /// The comparison of two versions of the command; `null` if the study compares treatments.
    pub comparison: Option<VersionComparison>,
    /// Warnings that a reader needs before comparing the metrics.
    pub warnings: Vec<String>,
    /// A summary of each treatment, in the order of the plan; the first is the reference.
    pub treatments: Vec<TreatmentSummary>,
    /// The trials, in the order in which they ran.
    pub trials: Vec<TrialResult>,
    /// The plan.
    #[serde(skip)]
    pub plan: StudyPlan,
}

impl StudyReport {
    /// Returns the number of further trials that make intervals of ranges, and may so decide what
    /// the repeats left open, and the time that they probably take, in seconds. `None` if the study
    /// is decided, is a part, or has enough repeats.
    pub fn undecided(&self) -> Option<(u64, f64)> {
        let recommendation = self.recommendation.as_ref()?;
        let missing = (ENOUGH_FOR_INTERVAL as u32).checked_sub(self.plan.repeats)?;
        let could_help = !recommendation.resolved
            && recommendation.treatment.is_some()
            && more_repeats_could_help(&self.treatments)
            && self.shard.is_none();
        (could_help && missing > 0).then(|| {
            let taken: f64 = self.trials.iter().filter_map(|trial| trial.wall_s).sum();
            let share = f64::from(missing) / f64::from(self.plan.repeats.max(1));
            (u64::from(missing) * self.treatments.len() as u64, taken * share)
        })
    }

    /// Returns the further repeats that would decide the comparison of two versions, and the time
    /// that they probably take, in seconds.
    pub fn undecided_versions(&self) -> Option<(u32, f64)> {
        let needed = self.comparison.as_ref()?.settled.repeats_needed?;
        let taken: f64 = self.trials.iter().filter_map(|trial| trial.wall_s).sum();
        let each = taken / f64::from(self.plan.repeats.max(1));
        self.shard.is_none().then_some((needed, each * f64::from(needed)))
    }
}

/// Returns whether more repeats can decide anything: more than one treatment was in force.
pub(crate) fn more_repeats_could_help(treatments: &[TreatmentSummary]) -> bool {
    treatments.iter().filter(|summary| summary.standing != Standing::NotInForce).count() > 1
}

/// The summary of one treatment over its repeats.
#[derive(Debug, Clone, Serialize)]
pub struct TreatmentSummary {
    /// The treatment.
    pub treatment: Treatment,
    /// Its standing among the others.
    pub standing: Standing,
    /// Memory before the load, in bytes.
    pub baseline_bytes: Option<Estimate>,
    /// Peak memory, in bytes.
    pub peak_bytes: Option<Estimate>,
    /// Memory after the load is gone, in bytes.
    pub settled_bytes: Option<Estimate>,
    /// The part of it that is free in whole pages, in bytes: a release returns it. `null` if the
    /// heap was not walked.
    pub returnable_bytes: Option<Estimate>,
    /// The part of the rise that remained.
    pub settled_ratio: Option<Estimate>,
    /// Mean excess: memory above the baseline after the load, in bytes.
    pub excess_mean_bytes: Option<Estimate>,
    /// The same over time, in byte-seconds.
    pub excess_byte_seconds: Option<Estimate>,
    /// CPU time for the same work, in seconds (per request, if the load counts them).
    pub cpu_s: Option<Estimate>,
    /// CPU time as a ratio to the reference, pair by pair.
    pub cpu_ratio: Option<Estimate>,
    /// Latency of the load as a ratio to the reference, pair by pair; the duration of the load if
    /// it reports no latency.
    pub latency_ratio: Option<Estimate>,
    /// The memory cost of a connection, from the ramps of all its trials.
    pub per_connection: FirstAndLater<PerConnection>,
    /// Requests of its loads, in the trials that can be compared; for loads of bare connections,
    /// the connections. `null` if no load reports them.
    pub requests: Option<u64>,
    /// Number of failed requests.
    pub failed_requests: Option<u64>,
}

/// Values of the first round, and of all later ones together: the first includes one-time
/// allocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct FirstAndLater<T> {
    /// The value of the first round.
    pub first_round: Option<T>,
    /// The value of the later rounds.
    pub later_rounds: Option<T>,
}

/// A recommended treatment, and the reason.
#[derive(Debug, Clone, Serialize)]
pub struct Recommendation {
    /// The recommended treatment; absent if there is none.
    pub treatment: Option<Treatment>,
    /// The reason, in a sentence or two.
    pub because: String,
    /// Whether the repeats settle it.
    pub resolved: bool,
}

/// The standing of a treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The treatment with which the others are compared.
    Reference,
    /// It costs no more than permitted.
    Within,
    /// It costs more than permitted.
    Beyond,
    /// The repeats do not show whether it costs more than permitted.
    Unresolved,
    /// It was not in force: its metrics are those of another allocator.
    NotInForce,
    /// No trial of it ended as planned.
    Failed,
    /// No trial of it has ended, and none failed: the study was interrupted.
    NotFinished,
}

//! The policies: the actions of each, and their cost.

use lowtide_analysis::metrics::PolicyMetrics;
use lowtide_analysis::study_report::{StudyReport, TreatmentSummary};
use lowtide_analysis::trial_result::TrialResult;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::stats::Estimate;

use super::cells::{Cell, Table, TableRow, bytes, heads, shown, values, without_range};
use crate::text::thousands;

/// Returns a row for each treatment, as the median of its trials; `None` if no treatment has a
/// policy.
pub(crate) fn policies(study: &StudyReport) -> Option<Table> {
    let has_policy = study.trials.iter().any(|trial| trial.policy.is_some());
    has_policy.then(|| Table {
        caption: "Releases by the policies and their cost, medians over the trials".to_owned(),
        heads: heads(&[
            "treatment",
            "releases",
            "returned",
            "came back",
            "longest pause",
            "CPU of lowtide",
            "CPU of the subject",
            "page faults",
            "longest latency",
        ]),
        rows: study.treatments.iter().map(|summary| row(study, summary)).collect(),
    })
}

fn row(study: &StudyReport, summary: &TreatmentSummary) -> TableRow {
    let trials = shown(study, summary);
    let of_policy = |of: fn(&PolicyMetrics) -> Option<f64>| {
        estimate(&trials, |trial| trial.policy.as_ref().and_then(of))
    };
    let size = |of| without_range(bytes(of_policy(of)));
    TableRow::plain(vec![
        Cell::from(summary.treatment.label()),
        count(estimate(&trials, |trial| trial.policy.as_ref().map(|_| trial.releases as f64))),
        size(|policy| Some(policy.returned_bytes as f64)),
        size(|policy| Some(policy.refaulted_bytes as f64)),
        seconds(of_policy(|policy| Some(policy.longest_pause_s))),
        seconds(of_policy(|policy| policy.lowtide_cpu_s)),
        seconds(estimate(&trials, |trial| trial.cpu_s)),
        count(estimate(&trials, |trial| trial.minor_faults.map(|faults| faults as f64))),
        seconds(estimate(&trials, longest_latency_s)),
    ])
}

fn estimate(trials: &[&TrialResult], of: impl Fn(&TrialResult) -> Option<f64>) -> Option<Estimate> {
    Estimate::from_values(&values(trials.iter().map(|trial| of(trial))))
}

/// Returns the longest latency of all rounds of a trial, in seconds, if its load reports it.
fn longest_latency_s(trial: &TrialResult) -> Option<f64> {
    let loads = trial.rounds.iter().filter_map(|round| round.load.as_ref());
    let longest = loads.filter_map(|load| load.figures.get("latency_s")?.get("max")?.as_f64());
    longest.reduce(f64::max)
}

fn count(estimate: Option<Estimate>) -> Cell {
    Cell::from(estimate.map_or("–".to_owned(), |e| thousands(e.median.round() as u64)))
}

fn seconds(estimate: Option<Estimate>) -> Cell {
    Cell::from(estimate.map_or("–".to_owned(), |e| HumanSeconds(e.median).to_string()))
}

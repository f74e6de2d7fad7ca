//! The tables of a study, as text in cells: every format shows the same.

mod cells;
mod connections;
mod heaps;
mod ledgers;
mod pins;
mod policies;
mod versions;

use std::collections::BTreeSet;

use lowtide_analysis::metrics::PerConnection;
use lowtide_analysis::requests::RequestCount;
use lowtide_analysis::study_report::{FirstAndLater, Standing, StudyReport, TreatmentSummary};
use lowtide_analysis::trial_result::{RoundResult, TrialOutcome, TrialResult};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::stats::{ENOUGH_FOR_INTERVAL, Estimate, median};
use lowtide_record::phase::MetricPhase;

use cells::{bytes, shown, values, without_range};

pub(crate) use cells::{Cell, MEAN_EXCESS, Table, TableRow, heads};
pub(crate) use connections::{per_connection, trends};
pub(crate) use heaps::heaps;
pub(crate) use ledgers::ledgers;
pub(crate) use pins::pins;
pub(crate) use policies::policies;
pub(crate) use versions::versions;

/// Summarizes a study: one row for each treatment.
pub(crate) fn summary(study: &StudyReport) -> Table {
    let with_latency = study.treatments.iter().any(|s| s.latency_ratio.is_some());
    let with_connections =
        study.treatments.iter().any(|s| needs_share(&shares(study, s), s.per_connection));
    let most = most_repeats(study);
    let mut columns = vec!["treatment", "baseline", "peak", "settled", "stays", MEAN_EXCESS, "CPU"];
    if with_latency {
        columns.push(latency_head(study));
    }
    if with_connections {
        columns.push("per connection");
    }
    let rows = study
        .treatments
        .iter()
        .map(|s| {
            let mut cells = vec![
                Cell::from(name(s, most)),
                without_range(bytes(s.baseline_bytes)),
                without_range(bytes(s.peak_bytes)),
                bytes(s.settled_bytes),
                Cell::from(share(s.settled_ratio)),
                bytes(s.excess_mean_bytes),
                cost(s, s.cpu_ratio),
            ];
            if with_latency {
                cells.push(cost(s, s.latency_ratio));
            }
            if with_connections {
                cells.push(bytes(Estimate::from_values(&shares(study, s))));
            }
            TableRow { cells, recommended: is_recommended(study, s), warning: warning(study, s) }
        })
        .collect();
    Table { caption: caption(study), heads: heads(&columns), rows }
}

/// Returns the rise of each trial of a treatment, divided by its connections.
fn shares(study: &StudyReport, summary: &TreatmentSummary) -> Vec<f64> {
    let trials = shown(study, summary).into_iter();
    values(trials.map(|t| t.bytes_per_connection.map(|b| b as f64)))
}

/// Returns whether these shares are the only estimate of memory per connection. A ramp yields a
/// better one, in a table of its own, which the share would contradict because it includes
/// everything that rose.
fn needs_share(shares: &[f64], costs: FirstAndLater<PerConnection>) -> bool {
    !shares.is_empty() && costs.first_round.is_none() && costs.later_rounds.is_none()
}

fn caption(study: &StudyReport) -> String {
    let counts = || study.treatments.iter().filter_map(|s| s.settled_bytes).map(|e| e.n);
    let has_ranges = counts().any(|n| n > 1 && n < ENOUGH_FOR_INTERVAL);
    let statistic = match most_repeats(study) {
        0 => "no trial reached a settled value".to_owned(),
        1 => "one repeat".to_owned(),
        n if n < ENOUGH_FOR_INTERVAL => format!("median of {n} repeats (range)"),
        n if has_ranges => {
            format!(
                "median of {n} repeats (95 % interval; below {ENOUGH_FOR_INTERVAL} repeats, range)"
            )
        }
        n => format!("median of {n} repeats (95 % interval)"),
    };
    let whose = match study.metric {
        lowtide_analysis::metrics::Metric::Rss => "RSS",
        lowtide_analysis::metrics::Metric::Pss => "PSS of the whole process tree",
    };
    let readings = || study.trials.iter().filter_map(|t| t.pss_readings);
    let readings = match readings().min().zip(readings().max()) {
        None => String::new(),
        Some((least, most)) if least == most => format!("; PSS was read {most} times"),
        Some((least, most)) => format!("; PSS was read {least} to {most} times a trial"),
    };
    let carried = if readings.is_empty() { "" } else { ", and estimated from RSS in between" };
    format!("{whose}, {statistic}{readings}{carried}")
}

/// Returns the maximum number of repeats of a settled value.
fn most_repeats(study: &StudyReport) -> usize {
    study.treatments.iter().filter_map(|s| s.settled_bytes).map(|e| e.n).max().unwrap_or(0)
}

/// Returns whether every load reports its latency; otherwise the duration of the load is shown
/// instead.
fn latency_is_reported(study: &StudyReport) -> bool {
    let rounds = study.trials.iter().flat_map(|t| &t.rounds);
    rounds.filter_map(|r| r.load.as_ref()).all(|l| l.mean_latency_s().is_some())
}

fn latency_head(study: &StudyReport) -> &'static str {
    if latency_is_reported(study) { "latency" } else { "load time" }
}

/// Returns the name of a treatment in tables, with its repeats if they are fewer than in the
/// caption.
fn name(summary: &TreatmentSummary, most: usize) -> String {
    let name = full_name(summary);
    match summary.settled_bytes {
        Some(e) if e.n < most => format!("{name} (n = {})", e.n),
        _ => name,
    }
}

fn full_name(summary: &TreatmentSummary) -> String {
    match &summary.treatment.allocator_version {
        // A treatment with another glibc has the version in its name.
        Some(version) if !summary.treatment.allocator.ends_with(version.as_str()) => {
            let label = summary.treatment.label();
            let rest = label.strip_prefix(&summary.treatment.allocator).unwrap_or_default();
            format!("{} {version}{rest}", summary.treatment.allocator)
        }
        _ => summary.treatment.label(),
    }
}

fn share(estimate: Option<Estimate>) -> String {
    // Adding zero turns a negative zero into a positive one.
    estimate.map_or("–".to_owned(), |e| format!("{:.0} %", (e.median * 100.0).round() + 0.0))
}

fn cost(summary: &TreatmentSummary, ratio: Option<Estimate>) -> Cell {
    let Some(e) = ratio else {
        let is_reference = summary.standing == Standing::Reference;
        return Cell::from(if is_reference { "reference" } else { "–" }.to_owned());
    };
    let short = format!("× {:.2}", e.median);
    if e.n < 2 {
        return Cell::from(short);
    }
    Cell { full: format!("{short} ({:.2}–{:.2})", e.low, e.high), short }
}

fn is_recommended(study: &StudyReport, summary: &TreatmentSummary) -> bool {
    let resolved = study.recommendation.as_ref().filter(|r| r.resolved);
    let recommended = resolved.and_then(|r| r.treatment.as_ref());
    recommended == Some(&summary.treatment)
}

fn warning(study: &StudyReport, summary: &TreatmentSummary) -> Option<String> {
    let trials = study.trials.iter().filter(|t| t.treatment == summary.treatment);
    let mut text = None;
    for trial in trials {
        let (what, reason) = match (trial.allocator_active, trial.outcome) {
            (Some(false), _) => ("not in force", &trial.allocator_inactive_because),
            (None, TrialOutcome::Done) => ("in force?", &trial.allocator_inactive_because),
            (_, TrialOutcome::Failed) => ("failed", &trial.failed_because),
            _ => continue,
        };
        let first_line = reason.as_ref().and_then(|r| r.lines().next()).unwrap_or_default();
        text.get_or_insert(format!("{what}: {first_line}"));
    }
    let failed =
        failed_requests(RequestCount::from_trials(shown(study, summary)), summary.standing);
    let all: Vec<String> = text.into_iter().chain(failed).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Returns a sentence on failed requests of a treatment, if any failed.
fn failed_requests(requests: RequestCount, standing: Standing) -> Option<String> {
    let of_reference = match standing {
        Standing::Reference => ": the cost ratios of the others mean little",
        _ => "",
    };
    (requests.failed > 0.0).then(|| format!("{requests}{of_reference}"))
}

/// Returns the tables below the summary that apply to a study.
pub(crate) fn more(study: &StudyReport) -> impl Iterator<Item = Table> + '_ {
    let tables: [fn(&StudyReport) -> Option<Table>; 11] = [
        versions,
        policies,
        rounds,
        latencies,
        per_connection,
        trends,
        phases,
        durations,
        ledgers,
        pins,
        heaps,
    ];
    tables.into_iter().filter_map(move |of| of(study))
}

/// Returns a sentence for a study that is not complete; `None` if it is.
pub(crate) fn incomplete(study: &StudyReport) -> Option<String> {
    let done = study.trials.iter().filter(|t| t.outcome == TrialOutcome::Done).count();
    let planned = study.plan.slots().len();
    (done < planned).then(|| {
        format!("{done} of {planned} trials ended as planned; the metrics cover only these.")
    })
}

/// Returns the recommendation, or the result of the comparison of two versions, in one line.
pub(crate) fn conclusion(study: &StudyReport) -> Option<String> {
    let Some(recommendation) = &study.recommendation else {
        return study.comparison.as_ref().map(versions::sentence);
    };
    Some(match &recommendation.treatment {
        Some(treatment) if recommendation.resolved => {
            let is_reference = study.treatments.first().is_some_and(|s| s.treatment == *treatment);
            let verb = if is_reference { "Keep" } else { "Use" };
            format!("{verb} {treatment}: {}.", recommendation.because)
        }
        Some(_) => format!("No recommendation yet: {}.", recommendation.because),
        None => format!("No recommendation: {}.", recommendation.because),
    })
}

/// Returns a row for each treatment and round: both names, and the cells for the results of the
/// round in each trial.
fn each_round(study: &StudyReport, cells: impl Fn(&[&RoundResult]) -> Vec<Cell>) -> Vec<TableRow> {
    let most = study.trials.iter().map(|t| t.rounds.len()).max().unwrap_or(0);
    let mut rows = Vec::new();
    for summary in &study.treatments {
        let trials = shown(study, summary);
        for place in 0..most {
            let rounds: Vec<&RoundResult> =
                trials.iter().filter_map(|t| t.rounds.get(place)).collect();
            let head = [Cell::from(summary.treatment.label()), Cell::from((place + 1).to_string())];
            rows.push(TableRow::plain(head.into_iter().chain(cells(&rounds)).collect()));
        }
    }
    rows
}

/// Formats the median of times in seconds.
fn seconds(times: &[f64]) -> Cell {
    Cell::from(median(times).map_or("–".to_owned(), |s| HumanSeconds(s).to_string()))
}

/// Returns the metrics of each round, if there are several: a row for each treatment and round.
pub(crate) fn rounds(study: &StudyReport) -> Option<Table> {
    if study.trials.iter().all(|t| t.rounds.len() < 2) {
        return None;
    }
    let mut all = study.trials.iter().flat_map(|t| &t.rounds);
    let with_allocated = all.any(|round| round.allocated_bytes.is_some());
    let rate = |round: &RoundResult| round.load.as_ref()?.figure("requests_per_s");
    let with_rate = study.trials.iter().flat_map(|t| &t.rounds).any(|r| rate(r).is_some());
    let rows = each_round(study, |rounds| {
        let memory = |of: &dyn Fn(&RoundResult) -> Option<u64>| {
            bytes(Estimate::from_values(&values(rounds.iter().map(|r| of(r).map(|b| b as f64)))))
        };
        let count = |name: &str| {
            let all = values(rounds.iter().map(|r| r.load.as_ref()?.figure(name)));
            if all.is_empty() { "–".to_owned() } else { format!("{}", all.iter().sum::<f64>()) }
        };
        let latency = values(rounds.iter().map(|r| {
            let load = r.load.as_ref()?;
            if latency_is_reported(study) { load.mean_latency_s() } else { Some(load.wall_s) }
        }));
        let mut cells = vec![memory(&|r| r.peak_bytes), memory(&|r| r.settled_bytes)];
        if with_allocated {
            cells.push(memory(&|r| r.allocated_bytes));
        }
        cells.extend([Cell::from(count("succeeded")), Cell::from(count("failed"))]);
        if with_rate {
            let rates = values(rounds.iter().map(|r| rate(r)));
            let rate = median(&rates).map_or("–".to_owned(), |r| format!("{r:.0}"));
            cells.push(Cell::from(rate));
        }
        cells.push(seconds(&latency));
        cells
    });
    let mut names = vec!["treatment", "round", "peak", "settled"];
    if with_allocated {
        names.push("allocated");
    }
    names.extend(["succeeded", "failed"]);
    if with_rate {
        names.push("requests/s");
    }
    names.push(latency_head(study));
    Some(Table {
        caption: "Each round of the load; requests are the sum over the repeats".to_owned(),
        heads: heads(&names),
        rows,
    })
}

/// Returns the latencies of each round, if the load reports percentiles: a row for each treatment
/// and round, with medians over the repeats.
pub(crate) fn latencies(study: &StudyReport) -> Option<Table> {
    const NAMES: [(&str, &str); 6] = [
        ("mean", "mean"),
        ("p50", "50 %"),
        ("p90", "90 %"),
        ("p99", "99 %"),
        ("p999", "99.9 %"),
        ("max", "longest"),
    ];
    let latency = |round: &RoundResult, name| round.load.as_ref()?.latency_s(name);
    let mut all = study.trials.iter().flat_map(|t| &t.rounds);
    if !all.any(|round| latency(round, "p99").is_some()) {
        return None;
    }
    let rows = each_round(study, |rounds| {
        let median = |name| seconds(&values(rounds.iter().map(|round| latency(round, name))));
        NAMES.iter().map(|(name, _)| median(name)).collect()
    });
    let names = ["treatment", "round"].into_iter().chain(NAMES.iter().map(|(_, name)| *name));
    Some(Table {
        caption: "Latency of the requests of each round: medians over the repeats".to_owned(),
        heads: heads(&names.collect::<Vec<_>>()),
        rows,
    })
}

/// Returns memory at the phases that the subjects announced, other than those in the summary, if
/// there are any: a row for each treatment, a column for each phase.
pub(crate) fn phases(study: &StudyReport) -> Option<Table> {
    let mut names: Vec<&str> = Vec::new();
    for phase in study.trials.iter().flat_map(|t| &t.phases) {
        if MetricPhase::parse(&phase.name).is_none() && !names.contains(&phase.name.as_str()) {
            names.push(&phase.name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let rows = study.treatments.iter().map(|summary| {
        let mut cells = vec![Cell::from(summary.treatment.label())];
        for name in &names {
            let trials = shown(study, summary);
            let all: Vec<Vec<f64>> = trials.iter().map(|trial| readings(trial, name)).collect();
            cells.push(bytes(over_rounds(&all)));
        }
        TableRow::plain(cells)
    });
    Some(Table {
        caption:
            "Memory when the subject announced a phase (if repeated: the median of each trial, and the \
             range over all)"
                .to_owned(),
        rows: rows.collect(),
        heads: ["treatment"].into_iter().chain(names.iter().copied()).map(str::to_owned).collect(),
    })
}

/// Maximum number of durations in a table: a server can report hundreds.
const MAX_DURATIONS: usize = 6;

/// Returns the durations that the subjects reported, if any: a row for each treatment, a column for
/// each duration.
pub(crate) fn durations(study: &StudyReport) -> Option<Table> {
    let names: BTreeSet<&str> =
        study.trials.iter().flat_map(|t| t.reported_ms.keys()).map(String::as_str).collect();
    if names.is_empty() {
        return None;
    }
    let left_out = match names.len().saturating_sub(MAX_DURATIONS) {
        0 => String::new(),
        more => format!("; {more} more are in the JSON"),
    };
    let names: Vec<&str> = names.into_iter().take(MAX_DURATIONS).collect();
    let rows = study.treatments.iter().map(|summary| {
        let trials = shown(study, summary);
        let longest = |name: &&str| {
            let all = values(trials.iter().map(|t| t.reported_ms.get(*name).map(|ms| ms / 1e3)));
            seconds(&all)
        };
        let head = Cell::from(summary.treatment.label());
        TableRow::plain(std::iter::once(head).chain(names.iter().map(longest)).collect())
    });
    let heads = names.iter().map(|name| name.trim_end_matches("_ms").replace('_', " "));
    Some(Table {
        caption: format!(
            "Longest durations that the subject reported: medians over the repeats{left_out}"
        ),
        rows: rows.collect(),
        heads: ["treatment".to_owned()].into_iter().chain(heads).collect(),
    })
}

/// Returns every reading of a phase in a trial, in bytes.
fn readings(trial: &TrialResult, phase: &str) -> Vec<f64> {
    let named = trial.phases.iter().filter(|p| p.name == phase);
    values(named.map(|p| p.bytes.map(|b| b as f64)))
}

/// Combines the readings of a phase. Those of one trial are not independent, so that each trial
/// counts once, by its median; if a phase was repeated, the range of all readings replaces the
/// interval.
fn over_rounds(trials: &[Vec<f64>]) -> Option<Estimate> {
    let medians = values(trials.iter().map(|readings| median(readings)));
    let estimate = Estimate::from_values(&medians)?;
    let all: Vec<f64> = trials.iter().flatten().copied().collect();
    if all.len() == medians.len() {
        return Some(estimate);
    }
    let (low, high) = (
        all.iter().copied().fold(f64::INFINITY, f64::min),
        all.iter().copied().fold(0.0, f64::max),
    );
    Some(Estimate { low, high, n: all.len(), ..estimate })
}

#[cfg(test)]
mod tests {
    use lowtide_analysis::regression::Slope;

    use super::*;

    #[test]
    fn bytes_per_connection_from_the_rise_are_omitted_if_a_ramp_measured_them() {
        let slope = Slope { n: 11, each: 45_158.4, low: None, high: None };
        let costs = PerConnection { memory_bytes: slope, inner_memory_bytes: None };
        let later = FirstAndLater { first_round: None, later_rounds: Some(costs) };
        let unknown = FirstAndLater { first_round: None, later_rounds: None };
        assert!(needs_share(&[50_000.0], unknown));
        assert!(!needs_share(&[50_000.0], later));
        assert!(!needs_share(&[], unknown));
    }

    #[test]
    fn failed_requests_are_reported_and_explained_for_the_reference() {
        let some = RequestCount { failed: 30.0, all: 1000.0, are_connections: false };
        let printed = |standing| failed_requests(some, standing).unwrap();
        assert_eq!(printed(Standing::Within), "30 of 1000 requests failed");
        let of_reference = "30 of 1000 requests failed: the cost ratios of the others mean little";
        assert_eq!(printed(Standing::Reference), of_reference);
        assert_eq!(failed_requests(RequestCount { failed: 0.0, ..some }, Standing::Within), None);
    }

    #[test]
    fn a_repeated_phase_weights_trials_equally_and_shows_the_full_range() {
        let again = over_rounds(&[vec![10.0, 30.0, 20.0], vec![40.0, 40.0, 70.0]]).unwrap();
        assert_eq!((again.median, again.low, again.high), (30.0, 10.0, 70.0));
        let once = over_rounds(&[vec![10.0], vec![20.0]]).unwrap();
        assert_eq!((once.median, once.low, once.high, once.n), (15.0, 10.0, 20.0, 2));
        assert_eq!(over_rounds(&[vec![]]), None);
    }
}

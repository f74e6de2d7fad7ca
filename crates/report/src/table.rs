//! The table of a study, as text in cells: every format shows the same.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::stats::{Estimate, median};
use lowtide_model::study::{RoundResult, Standing, Study, Summary, TrialResult};

/// A table: a line of heads, then a line for each treatment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What the figures are: metric, statistic, number of repeats.
    pub caption: String,
    /// The heads of the columns.
    pub heads: Vec<String>,
    /// The cells.
    pub rows: Vec<Row>,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// One for each head.
    pub cells: Vec<Cell>,
    /// Whether this is the treatment to take.
    pub recommended: bool,
    /// Why its figures are not to be compared, if so.
    pub warning: Option<String>,
}

/// A cell, in full and for where there is little room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// With what surrounds the median.
    pub full: String,
    /// Without it.
    pub short: String,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { short: text.clone(), full: text }
    }
}

impl Row {
    fn plain(cells: Vec<Cell>) -> Self {
        Self { cells, recommended: false, warning: None }
    }
}

pub(crate) fn heads(heads: &[&str]) -> Vec<String> {
    heads.iter().map(|h| (*h).to_owned()).collect()
}

/// Sums up a study, treatment by treatment.
pub fn summary(study: &Study) -> Table {
    let with_latency = study.treatments.iter().any(|s| s.latency_ratio.is_some());
    let with_connections = study.trials.iter().any(|t| t.bytes_per_connection.is_some());
    let mut columns =
        vec!["treatment", "baseline", "peak", "settled", "stays", "mean excess", "CPU"];
    if with_latency {
        columns.push("latency");
    }
    if with_connections {
        columns.push("per connection");
    }
    let rows = study
        .treatments
        .iter()
        .map(|s| {
            let mut cells = vec![
                Cell::from(name(s)),
                without_range(bytes(s.baseline_bytes)),
                without_range(bytes(s.peak_bytes)),
                bytes(s.settled_bytes),
                Cell::from(share(s.settled_ratio)),
                without_range(bytes(s.excess_mean_bytes)),
                cost(s, s.cpu_ratio),
            ];
            if with_latency {
                cells.push(cost(s, s.latency_ratio));
            }
            if with_connections {
                let each = study.trials.iter().filter(|t| t.treatment == s.treatment);
                let each = values(each.map(|t| t.bytes_per_connection.map(|b| b as f64)));
                cells.push(bytes(Estimate::of(&each)));
            }
            Row { cells, recommended: is_recommended(study, s), warning: warning(study, s) }
        })
        .collect();
    Table { caption: caption(study), heads: heads(&columns), rows }
}

fn caption(study: &Study) -> String {
    let n = study.treatments.iter().filter_map(|s| s.settled_bytes).map(|e| e.n).max().unwrap_or(0);
    let statistic = match n {
        0 => "no trial got as far as a settled value".to_owned(),
        1 => "one repeat".to_owned(),
        n if n < lowtide_model::stats::ENOUGH_FOR_INTERVAL => {
            format!("median of {n} repeats (range)")
        }
        n => format!("median of {n} repeats (95 % interval)"),
    };
    let whose = match study.metric {
        lowtide_model::judge::Metric::Rss => "RSS",
        lowtide_model::judge::Metric::Pss => "PSS of the whole process tree",
    };
    format!("{whose}, {statistic}")
}

fn name(summary: &Summary) -> String {
    match &summary.treatment.allocator_version {
        // Another glibc has its version in its name.
        Some(version) if !summary.treatment.allocator.ends_with(version.as_str()) => {
            let label = summary.treatment.label();
            let rest = label.strip_prefix(&summary.treatment.allocator).unwrap_or_default();
            format!("{} {version}{rest}", summary.treatment.allocator)
        }
        _ => summary.treatment.label(),
    }
}

fn bytes(estimate: Option<Estimate>) -> Cell {
    let Some(e) = estimate else { return Cell::from("–".to_owned()) };
    let short = Human(e.median as u64).to_string();
    let (low, high) = (Human(e.low as u64).to_string(), Human(e.high as u64).to_string());
    if e.n < 2 || low == high {
        return Cell::from(short);
    }
    // One unit for both ends, where it is the same: `1.31–1.38 GiB`.
    let full = match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, a)), Some((_, b))) if a == b => format!("{short} ({number}–{high})"),
        _ => format!("{short} ({low}–{high})"),
    };
    Cell { full, short }
}

fn without_range(cell: Cell) -> Cell {
    Cell::from(cell.short)
}

fn share(estimate: Option<Estimate>) -> String {
    // Adding zero turns a negative zero into a plain one.
    estimate.map_or("–".to_owned(), |e| format!("{:.0} %", (e.median * 100.0).round() + 0.0))
}

fn cost(summary: &Summary, ratio: Option<Estimate>) -> Cell {
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

fn is_recommended(study: &Study, summary: &Summary) -> bool {
    let recommended = study.recommendation.as_ref().and_then(|r| r.treatment.as_ref());
    recommended == Some(&summary.treatment)
}

fn warning(study: &Study, summary: &Summary) -> Option<String> {
    let trials = study.trials.iter().filter(|t| t.treatment == summary.treatment);
    let mut text = None;
    for trial in trials {
        let because = match (trial.allocator_active, trial.outcome) {
            (Some(false), _) => "not in force: ",
            (None, "done") => "in force? ",
            (_, "failed") => "failed: ",
            _ => continue,
        };
        let reason = trial
            .allocator_inactive_because
            .as_ref()
            .filter(|_| trial.allocator_active != Some(true))
            .or(trial.failed_because.as_ref());
        let first_line = reason.and_then(|r| r.lines().next()).unwrap_or_default();
        text.get_or_insert(format!("{because}{first_line}"));
    }
    text
}

/// The recommendation in one line.
pub fn recommendation(study: &Study) -> Option<String> {
    let recommendation = study.recommendation.as_ref()?;
    Some(match &recommendation.treatment {
        Some(treatment) if recommendation.resolved => {
            format!("Take {treatment}: {}.", recommendation.because)
        }
        Some(treatment) => format!("Least excess: {treatment}; {}.", recommendation.because),
        None => format!("No recommendation: {}.", recommendation.because),
    })
}

/// The figures of each round, where there are several: a line for each treatment and round.
pub fn rounds(study: &Study) -> Option<Table> {
    if study.trials.iter().all(|t| t.rounds.len() < 2) {
        return None;
    }
    let most = study.trials.iter().map(|t| t.rounds.len()).max().unwrap_or(0);
    let mut rows = Vec::new();
    for summary in &study.treatments {
        let trials: Vec<&TrialResult> =
            study.trials.iter().filter(|t| t.treatment == summary.treatment).collect();
        for place in 0..most {
            let rounds: Vec<&RoundResult> =
                trials.iter().filter_map(|t| t.rounds.get(place)).collect();
            let memory = |of: &dyn Fn(&RoundResult) -> Option<u64>| {
                bytes(Estimate::of(&values(rounds.iter().map(|r| of(r).map(|b| b as f64)))))
            };
            let count = |name: &str| {
                let all = values(rounds.iter().map(|r| r.load.as_ref()?.figure(name)));
                if all.is_empty() {
                    "–".to_owned()
                } else {
                    format!("{}", all.iter().sum::<f64>())
                }
            };
            let latency = values(rounds.iter().map(|r| Some(r.load.as_ref()?.latency_s())));
            rows.push(Row::plain(vec![
                Cell::from(summary.treatment.label()),
                Cell::from((place + 1).to_string()),
                memory(&|r| r.peak_bytes),
                memory(&|r| r.settled_bytes),
                Cell::from(count("succeeded")),
                Cell::from(count("failed")),
                Cell::from(
                    median(&latency).map_or("–".to_owned(), |s| HumanSeconds(s).to_string()),
                ),
            ]));
        }
    }
    Some(Table {
        caption: "Each round of the load; requests are the sum over the repeats".to_owned(),
        heads: heads(&["treatment", "round", "peak", "settled", "succeeded", "failed", "latency"]),
        rows,
    })
}

/// Memory at the phases that the subjects announced, where there are any beside those that stand in
/// the summary: a line for each treatment, a column for each phase.
pub fn phases(study: &Study) -> Option<Table> {
    let mut names: Vec<&str> = Vec::new();
    for phase in study.trials.iter().flat_map(|t| &t.phases) {
        if !RESERVED.contains(&phase.name.as_str()) && !names.contains(&phase.name.as_str()) {
            names.push(&phase.name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let rows = study.treatments.iter().map(|summary| {
        let mut cells = vec![Cell::from(summary.treatment.label())];
        for name in &names {
            let trials = study.trials.iter().filter(|t| t.treatment == summary.treatment);
            let of_phase = trials.flat_map(|t| &t.phases).filter(|p| p.name == *name);
            cells.push(bytes(Estimate::of(&values(of_phase.map(|p| p.bytes.map(|b| b as f64))))));
        }
        Row::plain(cells)
    });
    Some(Table {
        caption: "Memory when the subject announced a phase (over all repeats and occurrences)"
            .to_owned(),
        rows: rows.collect(),
        heads: ["treatment"].into_iter().chain(names.iter().copied()).map(str::to_owned).collect(),
    })
}

/// Phases that take the place of a moment which the summary tells of.
const RESERVED: [&str; 4] = ["baseline", "peak", "load_end", "settled"];

fn values(all: impl Iterator<Item = Option<f64>>) -> Vec<f64> {
    all.flatten().collect()
}

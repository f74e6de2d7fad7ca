//! The cells of a table, and the trials that they are made of.

use lowtide_analysis::study_report::{StudyReport, TreatmentSummary};
use lowtide_analysis::trial_result::{TrialOutcome, TrialResult};
use lowtide_model::bytes::Human;
use lowtide_model::stats::Estimate;

/// A table: a row of heads, then rows of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// Metric, statistic and number of repeats.
    pub(crate) caption: String,
    /// The heads of the columns.
    pub(crate) heads: Vec<String>,
    /// The cells.
    pub(crate) rows: Vec<TableRow>,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableRow {
    /// One for each head.
    pub(crate) cells: Vec<Cell>,
    /// Whether this is the recommended treatment.
    pub(crate) recommended: bool,
    /// Why its metrics must not be compared, if so.
    pub(crate) warning: Option<String>,
}

/// A cell, in full and in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The median with its range or interval.
    pub(crate) full: String,
    /// The median only.
    pub(crate) short: String,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { short: text.clone(), full: text }
    }
}

impl TableRow {
    pub(super) fn plain(cells: Vec<Cell>) -> Self {
        Self { cells, recommended: false, warning: None }
    }
}

/// Head of the column by which treatments are ranked.
pub(crate) const MEAN_EXCESS: &str = "mean excess";

pub(crate) fn heads(heads: &[&str]) -> Vec<String> {
    heads.iter().map(|h| (*h).to_owned()).collect()
}

/// Returns the trials of a treatment that a table shows: the comparable ones; if there are none,
/// those that ended as planned; if there are none, all.
pub(super) fn shown<'s>(
    study: &'s StudyReport,
    summary: &TreatmentSummary,
) -> Vec<&'s TrialResult> {
    let of = |keep: &dyn Fn(&TrialResult) -> bool| -> Vec<&'s TrialResult> {
        let all = study.trials.iter().filter(|t| t.treatment == summary.treatment);
        all.filter(|t| keep(t)).collect()
    };
    let choices =
        [of(&TrialResult::is_usable), of(&|t| t.outcome == TrialOutcome::Done), of(&|_| true)];
    choices.into_iter().find(|trials| !trials.is_empty()).unwrap_or_default()
}

pub(super) fn bytes(estimate: Option<Estimate>) -> Cell {
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

pub(super) fn without_range(cell: Cell) -> Cell {
    Cell::from(cell.short)
}

pub(super) fn values(all: impl Iterator<Item = Option<f64>>) -> Vec<f64> {
    all.flatten().collect()
}

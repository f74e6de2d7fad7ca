//! Memory by owner, for each treatment.

use lowtide_analysis::metrics::AtEvents;
use lowtide_analysis::owners::{BytesByOwner, NamedOwner};
use lowtide_analysis::study_report::StudyReport;
use lowtide_analysis::trial_result::TrialResult;
use lowtide_model::stats::Estimate;

use super::cells::{Cell, Table, TableRow, bytes, shown, without_range};

/// Minimum share of memory in any row for an owner to have a column.
const MIN_SHARE: f64 = 0.02;

const MOMENTS: [&str; 3] = ["peak", "drained", "settled"];

fn at<'t, T>(moments: &'t AtEvents<T>, moment: &str) -> Option<&'t T> {
    match moment {
        "peak" => moments.peak.as_ref(),
        "drained" => moments.drained.as_ref(),
        _ => moments.settled.as_ref(),
    }
}

fn reading(trial: &TrialResult, moment: &str) -> Option<BytesByOwner> {
    let managers = at(&trial.managers, moment).map(Vec::as_slice).unwrap_or_default();
    Some(BytesByOwner::new(at(&trial.ledgers, moment)?, managers))
}

/// Returns resident bytes by owner at the peak, after the last request, and when settled, as the
/// median of the trials; `None` if no ledger was taken.
pub(crate) fn ledgers(study: &StudyReport) -> Option<Table> {
    let all: Vec<BytesByOwner> = study
        .trials
        .iter()
        .flat_map(|trial| MOMENTS.iter().filter_map(|moment| reading(trial, moment)))
        .collect();
    let matters = |column: &&NamedOwner| {
        let share =
            |r: &BytesByOwner| r.of(column).0 as f64 >= r.total as f64 * MIN_SHARE && r.total > 0;
        all.iter().any(share)
    };
    let mut columns: Vec<&NamedOwner> =
        all.iter().flat_map(|reading| reading.owners.keys()).collect();
    columns.sort();
    columns.dedup();
    columns.retain(matters);
    let mut rows = Vec::new();
    for summary in &study.treatments {
        for moment in MOMENTS {
            let trials = shown(study, summary).into_iter();
            let found: Vec<BytesByOwner> =
                trials.filter_map(|trial| reading(trial, moment)).collect();
            if found.is_empty() {
                continue;
            }
            let median = |of: &dyn Fn(&BytesByOwner) -> u64| {
                let each: Vec<f64> = found.iter().map(|r| of(r) as f64).collect();
                without_range(bytes(Estimate::from_values(&each)))
            };
            let mut cells = vec![Cell::from(format!("{}, {moment}", summary.treatment.label()))];
            cells.extend(columns.iter().map(|column| {
                let cell = median(&|reading| reading.of(column).0);
                match found.iter().any(|reading| reading.of(column).1) {
                    true => Cell::from(format!("≈ {}", cell.short)),
                    false => cell,
                }
            }));
            let of_columns =
                |r: &BytesByOwner| columns.iter().map(|column| r.of(column).0).sum::<u64>();
            cells.push(median(&|reading| reading.total.saturating_sub(of_columns(reading))));
            rows.push(TableRow::plain(cells));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let heads = std::iter::once("treatment, moment").chain(columns.iter().map(|c| c.name()));
    Some(Table {
        caption:
            "Memory by owner, median (≈: attributed by properties of mappings; pages that several \
                  processes share count once for each process)"
                .to_owned(),
        heads: heads.chain(["rest"]).map(str::to_owned).collect(),
        rows,
    })
}

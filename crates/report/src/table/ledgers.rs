//! Memory by owner, for each treatment.

use std::collections::BTreeMap;

use lowtide_analysis::metrics::AtEvents;
use lowtide_analysis::study_report::StudyReport;
use lowtide_analysis::trial_result::TrialResult;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::{Ledger, Owner, State};
use lowtide_model::stats::Estimate;

use super::cells::{Cell, Table, TableRow, bytes, shown, without_range};

/// Minimum share of memory in any row for an owner to have a column.
const MIN_SHARE: f64 = 0.02;

/// The owner in a column: a row of the ledger, or one of the managers in its row `runtime`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum EventColumn {
    Owner(Owner),
    Manager(String),
}

impl EventColumn {
    fn name(&self) -> &str {
        match self {
            Self::Owner(owner) => owner.name(),
            Self::Manager(name) => name,
        }
    }
}

/// The resident bytes of a trial at one event, by column, and whether each is an estimate.
struct LedgerColumns {
    total: u64,
    columns: BTreeMap<EventColumn, (u64, bool)>,
}

impl LedgerColumns {
    fn new(ledger: &Ledger, managers: &[Manager]) -> Self {
        let mut columns: BTreeMap<EventColumn, (u64, bool)> = BTreeMap::new();
        let mut add = |column, bytes: u64, estimated| {
            let (sum, is_estimate) = columns.entry(column).or_default();
            *sum += bytes;
            *is_estimate |= estimated;
        };
        for row in ledger.rows() {
            let column = match (row.manager.map(|manager| manager.kind().name()), row.state) {
                (Some(name), Some(State::Free)) => EventColumn::Manager(format!("{name}, free")),
                (Some(name), _) => EventColumn::Manager(name.to_owned()),
                (None, _) => EventColumn::Owner(row.owner),
            };
            add(column, row.bytes, row.estimated);
        }
        let others = Manager::outside_of_walked(managers, ledger);
        let named: u64 = others.iter().map(|manager| manager.bytes).sum();
        for manager in others {
            add(EventColumn::Manager(manager.name), manager.bytes, manager.estimated);
        }
        if let Some((bytes, _)) = columns.get_mut(&EventColumn::Owner(Owner::Runtime)) {
            *bytes = bytes.saturating_sub(named);
        }
        Self { total: ledger.total(), columns }
    }

    fn of(&self, column: &EventColumn) -> (u64, bool) {
        self.columns.get(column).copied().unwrap_or_default()
    }
}

const MOMENTS: [&str; 3] = ["peak", "drained", "settled"];

fn at<'t, T>(moments: &'t AtEvents<T>, moment: &str) -> Option<&'t T> {
    match moment {
        "peak" => moments.peak.as_ref(),
        "drained" => moments.drained.as_ref(),
        _ => moments.settled.as_ref(),
    }
}

fn reading(trial: &TrialResult, moment: &str) -> Option<LedgerColumns> {
    let managers = at(&trial.managers, moment).map(Vec::as_slice).unwrap_or_default();
    Some(LedgerColumns::new(at(&trial.ledgers, moment)?, managers))
}

/// Returns resident bytes by owner at the peak, after the last request, and when settled, as the
/// median of the trials; `None` if no ledger was taken.
pub(crate) fn ledgers(study: &StudyReport) -> Option<Table> {
    let all: Vec<LedgerColumns> = study
        .trials
        .iter()
        .flat_map(|trial| MOMENTS.iter().filter_map(|moment| reading(trial, moment)))
        .collect();
    let matters = |column: &&EventColumn| {
        let share =
            |r: &LedgerColumns| r.of(column).0 as f64 >= r.total as f64 * MIN_SHARE && r.total > 0;
        all.iter().any(share)
    };
    let mut columns: Vec<&EventColumn> =
        all.iter().flat_map(|reading| reading.columns.keys()).collect();
    columns.sort();
    columns.dedup();
    columns.retain(matters);
    let mut rows = Vec::new();
    for summary in &study.treatments {
        for moment in MOMENTS {
            let trials = shown(study, summary).into_iter();
            let found: Vec<LedgerColumns> =
                trials.filter_map(|trial| reading(trial, moment)).collect();
            if found.is_empty() {
                continue;
            }
            let median = |of: &dyn Fn(&LedgerColumns) -> u64| {
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
                |r: &LedgerColumns| columns.iter().map(|column| r.of(column).0).sum::<u64>();
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

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::ledger::WalkedRuntime;

    #[test]
    fn a_walked_runtime_has_a_column_for_its_free_memory() {
        let mut ledger = Ledger::default();
        ledger.add_walked(WalkedRuntime::CPython, State::Allocated, 5);
        ledger.add_walked(WalkedRuntime::CPython, State::Free, 7);
        ledger.add(Owner::Runtime, 4);
        let manager =
            |name: &str, bytes| Manager { name: name.to_owned(), bytes, estimated: false };
        let found = LedgerColumns::new(&ledger, &[manager("CPython", 12), manager("InnoDB", 3)]);
        let of = |name: &str| found.of(&EventColumn::Manager(name.to_owned())).0;
        assert_eq!((of("CPython"), of("CPython, free"), of("InnoDB")), (5, 7, 3));
        assert_eq!(found.of(&EventColumn::Owner(Owner::Runtime)).0, 1);
    }
}

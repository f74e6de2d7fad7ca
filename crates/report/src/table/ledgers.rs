//! Whose the bytes were, treatment by treatment.

use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::stats::Estimate;
use lowtide_model::study::{Study, TrialResult};

use super::{Cell, Row, Table, bytes, shown, without_range};

/// An owner that has less than this part everywhere is not shown by itself.
const LEAST_SHARE: f64 = 0.02;

/// Whose the resident bytes were at the peak, when the last request was over, and when settled, as the
/// median of the trials; nothing where no ledger was taken.
pub fn ledgers(study: &Study) -> Option<Table> {
    type OfTrial = fn(&TrialResult) -> Option<&Ledger>;
    let moments: [(&str, OfTrial); 3] = [
        ("peak", |trial| trial.ledgers.peak.as_ref()),
        ("drained", |trial| trial.ledgers.drained.as_ref()),
        ("settled", |trial| trial.ledgers.settled.as_ref()),
    ];
    let all = || study.trials.iter().flat_map(|t| moments.iter().filter_map(move |m| m.1(t)));
    let matters = |owner: &Owner| {
        all().any(|l| l.bytes(*owner) as f64 >= l.total() as f64 * LEAST_SHARE && l.total() > 0)
    };
    let owners: Vec<Owner> = Owner::ALL.into_iter().filter(matters).collect();
    let mut rows = Vec::new();
    for summary in &study.treatments {
        for (name, of_trial) in moments {
            let found: Vec<&Ledger> =
                shown(study, summary).into_iter().filter_map(of_trial).collect();
            if found.is_empty() {
                continue;
            }
            let median = |of: &dyn Fn(&Ledger) -> u64| {
                let each: Vec<f64> = found.iter().map(|l| of(l) as f64).collect();
                without_range(bytes(Estimate::of(&each)))
            };
            let mut cells = vec![Cell::from(format!("{}, {name}", summary.treatment.label()))];
            cells.extend(owners.iter().map(|owner| {
                let cell = median(&|ledger| ledger.bytes(*owner));
                let is_estimate =
                    found.iter().flat_map(|l| l.rows()).any(|r| r.owner == *owner && r.estimated);
                if is_estimate { Cell::from(format!("≈ {}", cell.short)) } else { cell }
            }));
            let of_owners = |l: &Ledger| owners.iter().map(|o| l.bytes(*o)).sum::<u64>();
            cells.push(median(&|ledger| ledger.total().saturating_sub(of_owners(ledger))));
            rows.push(Row::plain(cells));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let heads = std::iter::once("whose").chain(owners.iter().map(|o| o.name()));
    Some(Table {
        caption:
            "Whose the resident bytes were, median (≈: by what the mappings look like; pages that \
                  several processes share count once for each)"
                .to_owned(),
        heads: heads.chain(["rest"]).map(str::to_owned).collect(),
        rows,
    })
}

//! What pins fragmented memory when it has settled, for each treatment.

use lowtide_analysis::study_report::{StudyReport, TreatmentSummary};
use lowtide_model::pins::{PinShare, PinSummary};
use lowtide_model::stats::Estimate;

use super::cells::{Cell, Table, TableRow, bytes, heads, shown, without_range};
use crate::pins::size;
use crate::text::{printable, thousands};

/// Maximum number of groups of a treatment.
const MAX_GROUPS: usize = 3;
/// Part of the pinned memory below which a group has no row.
const MIN_SHARE: f64 = 0.05;

/// Returns the groups of blocks that pin most memory, as the median of the trials; `None` if it is
/// not known of any.
pub(crate) fn pins(study: &StudyReport) -> Option<Table> {
    let rows: Vec<TableRow> =
        study.treatments.iter().flat_map(|summary| of_treatment(study, summary)).collect();
    (!rows.is_empty()).then(|| Table {
        caption: "What pins free memory when settled, medians (the free bytes of a page are divided among the \
                  blocks on it; of several processes, the one with most fragmented memory)"
            .to_owned(),
        heads: heads(&["treatment, blocks in use", "blocks", "bytes", "pins"]),
        rows,
    })
}

fn of_treatment(study: &StudyReport, summary: &TreatmentSummary) -> Vec<TableRow> {
    let trials = shown(study, summary);
    let found: Vec<&PinSummary> = trials.iter().filter_map(|trial| trial.pins.as_ref()).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let label = summary.treatment.label();
    let about = if found.iter().any(|pins| pins.estimated) { "≈ " } else { "" };
    let pinned = median(&found, |pins| pins.pinned_bytes);
    let row = |name: String, blocks: Option<Estimate>, own: Option<Estimate>, pins| {
        let blocks = blocks.map_or(String::new(), |e| thousands(e.median.round() as u64));
        let own = own.map_or(String::new(), |e| without_range(bytes(Some(e))).short);
        let pins = format!("{about}{}", without_range(bytes(pins)).short);
        TableRow::plain([name, blocks, own, pins].into_iter().map(Cell::from).collect())
    };
    let mut rows = vec![row(format!("{label}, all"), None, None, pinned)];
    let least = pinned.map_or(0.0, |estimate| estimate.median * MIN_SHARE);
    let mut groups: Vec<(&PinShare, Option<Estimate>)> = names(&found)
        .into_iter()
        .map(|share| (share, median(&found, |pins| of(pins, share).map_or(0, |s| s.pinned_bytes))))
        .collect();
    groups.retain(|(_, pins)| pins.is_some_and(|estimate| estimate.median >= least));
    groups.sort_by(|a, b| {
        let value = |pins: &Option<Estimate>| pins.map_or(0.0, |estimate| estimate.median);
        value(&b.1).total_cmp(&value(&a.1))
    });
    for (share, pins) in groups.into_iter().take(MAX_GROUPS) {
        let name = share.block_type.as_ref().map_or(String::new(), |name| format!(" {name}"));
        let name = printable(&format!("{label}, {}{name}", size(share.size_bytes)));
        let value =
            |value: fn(&PinShare) -> u64| median(&found, |pins| of(pins, share).map_or(0, value));
        rows.push(row(name, value(|s| s.blocks), value(|s| s.bytes), pins));
    }
    rows
}

fn median(found: &[&PinSummary], of: impl Fn(&PinSummary) -> u64) -> Option<Estimate> {
    let each: Vec<f64> = found.iter().map(|pins| of(pins) as f64).collect();
    Estimate::from_values(&each)
}

/// Returns one share of each group of blocks in any trial.
fn names<'p>(found: &[&'p PinSummary]) -> Vec<&'p PinShare> {
    let mut names: Vec<&PinShare> = Vec::new();
    for share in found.iter().flat_map(|pins| &pins.groups) {
        if !names.iter().any(|known| is_same(known, share)) {
            names.push(share);
        }
    }
    names
}

/// Returns the share of the same group in a trial.
fn of<'p>(pins: &'p PinSummary, share: &PinShare) -> Option<&'p PinShare> {
    pins.groups.iter().find(|other| is_same(other, share))
}

fn is_same(one: &PinShare, other: &PinShare) -> bool {
    one.size_bytes == other.size_bytes && one.block_type == other.block_type
}

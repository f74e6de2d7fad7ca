//! The heaps, for each treatment.

use lowtide_analysis::study_report::StudyReport;
use lowtide_analysis::trial_result::TrialResult;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::stats::Estimate;

use super::cells::{Cell, Table, TableRow, bytes, heads, shown, without_range};
use crate::text::thousands;

/// Returns arenas and free chunks at the peak and when settled, as the median of the trials; `None`
/// if no glibc heap was walked.
pub(crate) fn heaps(study: &StudyReport) -> Option<Table> {
    type OfTrial = fn(&TrialResult) -> Option<&HeapSummary>;
    let moments: [(&str, OfTrial); 2] = [
        ("peak", |trial| trial.heaps.peak.as_ref()),
        ("settled", |trial| trial.heaps.settled.as_ref()),
    ];
    let mut rows = Vec::new();
    for summary in &study.treatments {
        for (name, of_trial) in moments {
            let found: Vec<&HeapSummary> =
                shown(study, summary).into_iter().filter_map(of_trial).collect();
            if !found.is_empty() {
                rows.push(row(format!("{}, {name}", summary.treatment.label()), &found));
            }
        }
    }
    (!rows.is_empty()).then(|| Table {
        caption: "Heap of glibc, medians (free blocks by their size, resident or not, without \
                  the top chunks of arenas)"
            .to_owned(),
        heads: heads(&[
            "treatment, moment",
            "arenas",
            "free blocks",
            "free bytes",
            "largest free block",
            "in top chunks",
        ]),
        rows,
    })
}

fn row(name: String, found: &[&HeapSummary]) -> TableRow {
    let median = |of: fn(&HeapSummary) -> u64| {
        Estimate::from_values(&found.iter().map(|heap| of(heap) as f64).collect::<Vec<_>>())
    };
    let count = |of| {
        let text = median(of).map_or("–".to_owned(), |e| thousands(e.median.round() as u64));
        Cell::from(text)
    };
    let size = |of| without_range(bytes(median(of)));
    TableRow::plain(vec![
        Cell::from(name),
        count(|heap| heap.arenas),
        count(|heap| heap.free_count),
        size(|heap| heap.free_bytes),
        size(|heap| heap.largest_free_bytes),
        size(|heap| heap.top_bytes),
    ])
}

//! `--baseline DIR --tolerance 10%`: compares this study with an earlier one.

use std::fmt;

use crate::study_report::{Standing, StudyReport, TreatmentSummary};
use lowtide_model::bytes::Human;

/// Minimum growth that counts as a regression, in bytes, however small the earlier value.
const LEAST_BYTES: f64 = 1_048_576.0;

/// A metric of a treatment that grew by more than the tolerance.
#[derive(Debug, Clone, PartialEq)]
pub struct Regression {
    /// The treatment.
    pub treatment: String,
    /// The metric.
    pub figure: &'static str,
    /// Its median in the earlier study, in bytes.
    pub before: u64,
    /// Its median now, in bytes.
    pub now: u64,
}

impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grown = (self.now as f64 / self.before.max(1) as f64 - 1.0) * 100.0;
        write!(
            f,
            "{}: {} grew from {} to {} (+{grown:.0} %)",
            self.treatment,
            self.figure,
            Human(self.before),
            Human(self.now)
        )
    }
}

/// The outcome of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The metrics that grew by more than the tolerance.
    pub regressions: Vec<Regression>,
    /// Treatments that one of the two studies lacks, or has no metrics of, in the order of this
    /// study and then of the earlier one. All of them, if the studies judge by different metrics.
    pub not_compared: Vec<String>,
}

/// Compares the medians of the settled and the peak memory, treatment by treatment. `tolerance` is
/// a ratio: 0.1 tolerates 10 %.
pub fn compare(earlier: &StudyReport, now: &StudyReport, tolerance: f64) -> Comparison {
    let mut regressions = Vec::new();
    let mut not_compared = Vec::new();
    for summary in &now.treatments {
        let label = summary.treatment.label();
        let before = earlier.treatments.iter().find(|s| s.treatment.label() == label);
        let figures = before
            .filter(|_| earlier.metric == now.metric)
            .and_then(|before| figures(before, summary));
        let Some(pairs) = figures else {
            not_compared.push(label);
            continue;
        };
        for (figure, before, now) in pairs {
            if now > before * (1.0 + tolerance) && now - before >= LEAST_BYTES {
                let (before, now) = (before as u64, now as u64);
                regressions.push(Regression { treatment: label.clone(), figure, before, now });
            }
        }
    }
    for summary in &earlier.treatments {
        let label = summary.treatment.label();
        if !now.treatments.iter().any(|s| s.treatment.label() == label) {
            not_compared.push(label);
        }
    }
    Comparison { regressions, not_compared }
}

fn figures(
    before: &TreatmentSummary,
    now: &TreatmentSummary,
) -> Option<[(&'static str, f64, f64); 2]> {
    // A treatment that was not in force has metrics, but they are those of another allocator.
    if [before.standing, now.standing].contains(&Standing::NotInForce) {
        return None;
    }
    Some([
        ("settled memory", before.settled_bytes?.median, now.settled_bytes?.median),
        ("peak memory", before.peak_bytes?.median, now.peak_bytes?.median),
    ])
}

//! Memory that a treatment leaves free in whole pages. RSS at one moment does not distinguish it
//! from memory in use, but a release returns it, so a treatment that leaves more may be the better
//! one with a policy.

use super::material_bytes;
use crate::study_report::{Recommendation, Standing, TreatmentSummary};
use lowtide_model::bytes::Human;
use lowtide_model::treatment::{NO_POLICY, OWN};

/// Maximum number of treatments that are named.
const MAX_NAMED: usize = 2;

/// Adds the treatments to a recommendation that would leave materially less than the recommended
/// one if their free memory was returned, with what they left under a policy.
pub(super) fn add_returnable(recommendation: &mut Recommendation, summaries: &[TreatmentSummary]) {
    let of_recommended =
        |s: &&TreatmentSummary| Some(&s.treatment) == recommendation.treatment.as_ref();
    let Some(best) = summaries.iter().find(of_recommended) else { return };
    let Some(of_best) = best.settled_bytes.map(|settled| settled.median) else { return };
    let mut hidden: Vec<(f64, f64, &TreatmentSummary)> = summaries
        .iter()
        .filter_map(|summary| {
            let (rest, returnable) = parts(summary)?;
            let least = material_bytes(summary, best);
            (rest < of_best - least && returnable >= least).then_some((rest, returnable, summary))
        })
        .collect();
    hidden.sort_by(|a, b| a.0.total_cmp(&b.0));
    let sentences = hidden.iter().take(MAX_NAMED).map(|(_, returnable, summary)| {
        let settled = summary.settled_bytes.map_or(0.0, |settled| settled.median);
        format!(
            "of the {} that {} left, a release returns {} ({})",
            Human(settled as u64),
            summary.treatment,
            Human(*returnable as u64),
            with_policy(summary, summaries)
        )
    });
    let sentences: Vec<String> = sentences.collect();
    if !sentences.is_empty() {
        recommendation.because += &format!(". Besides: {}", sentences.join("; "));
    }
}

/// Returns the settled bytes of a treatment without a policy: those that a release does not return,
/// and those that it returns. `None` for an allocator of the program's own, of which it is not
/// known whether a release acts on it.
fn parts(summary: &TreatmentSummary) -> Option<(f64, f64)> {
    let is_compared = [Standing::Reference, Standing::Within, Standing::Unresolved];
    let treatment = &summary.treatment;
    let is_left_alone = treatment.policy == NO_POLICY && treatment.allocator != OWN;
    let settled = summary.settled_bytes?.median;
    let returnable = summary.returnable_bytes?.median.min(settled);
    (is_left_alone && is_compared.contains(&summary.standing))
        .then_some((settled - returnable, returnable))
}

/// Returns what the same allocator with the same settings left with a policy, or the flag to try
/// it.
fn with_policy(summary: &TreatmentSummary, summaries: &[TreatmentSummary]) -> String {
    let treatment = &summary.treatment;
    let is_same = |other: &&TreatmentSummary| {
        let other = &other.treatment;
        (&other.allocator, &other.tune) == (&treatment.allocator, &treatment.tune)
            && other.policy != NO_POLICY
    };
    let found = summaries
        .iter()
        .filter(is_same)
        .filter_map(|other| Some((other.settled_bytes?.median, other.treatment.policy.as_str())));
    match found.min_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((bytes, policy)) => format!("with {policy}, it left {}", Human(bytes as u64)),
        None => "try it with -p none,adaptive".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study_report::FirstAndLater;
    use lowtide_model::stats::Estimate;
    use lowtide_model::treatment::Treatment;

    const MIB: f64 = 1_048_576.0;

    fn summary(allocator: &str, policy: &str, settled: f64, returnable: f64) -> TreatmentSummary {
        let estimate = |mib: f64| Estimate::from_values(&[mib * MIB, mib * MIB]);
        TreatmentSummary {
            treatment: Treatment { policy: policy.to_owned(), ..Treatment::plain(allocator, None) },
            standing: Standing::Within,
            baseline_bytes: None,
            peak_bytes: estimate(215.0),
            settled_bytes: estimate(settled),
            returnable_bytes: estimate(returnable),
            settled_ratio: None,
            excess_mean_bytes: None,
            excess_byte_seconds: None,
            cpu_s: None,
            cpu_ratio: None,
            latency_ratio: None,
            per_connection: FirstAndLater { first_round: None, later_rounds: None },
            requests: None,
            failed_requests: None,
        }
    }

    fn said(best: &TreatmentSummary, summaries: &[TreatmentSummary]) -> String {
        let mut recommendation = Recommendation {
            treatment: Some(best.treatment.clone()),
            because: "it is so".to_owned(),
            resolved: true,
        };
        add_returnable(&mut recommendation, summaries);
        recommendation.because
    }

    #[test]
    fn a_treatment_whose_free_memory_a_release_returns_is_named_with_its_policy() {
        let glibc = summary("glibc", NO_POLICY, 202.0, 0.1);
        let jemalloc = summary("jemalloc", NO_POLICY, 207.0, 189.0);
        let alone = [glibc.clone(), jemalloc.clone()];
        assert_eq!(
            said(&glibc, &alone),
            "it is so. Besides: of the 207 MiB that jemalloc left, a release returns 189 MiB (try it with -p none,adaptive)"
        );
        let adaptive = summary("jemalloc", "adaptive", 15.0, 1.0);
        let all = [glibc.clone(), jemalloc, adaptive.clone()];
        assert!(said(&glibc, &all).ends_with(" (with adaptive, it left 15.0 MiB)"));
        // The recommended one leaves no more than it would.
        assert_eq!(said(&adaptive, &all), "it is so");
    }

    #[test]
    fn memory_that_no_release_is_known_to_return_is_not_named() {
        let glibc = summary("glibc", NO_POLICY, 202.0, 0.1);
        let own = summary(OWN, NO_POLICY, 207.0, 189.0);
        let failed = TreatmentSummary {
            standing: Standing::Failed,
            ..summary("mimalloc", NO_POLICY, 207.0, 189.0)
        };
        let unknown =
            TreatmentSummary { returnable_bytes: None, ..summary("jemalloc", NO_POLICY, 9.0, 0.0) };
        assert_eq!(said(&glibc, &[glibc.clone(), own, failed, unknown]), "it is so");
    }
}

//! Warnings that a reader of a study needs before comparing its metrics.

use crate::metrics::rise;
use crate::trial_result::TrialResult;

/// Distance below its baseline at which settled memory is worth a warning, as a part of the rise.
const BELOW_BASELINE: f64 = 0.05;

/// Minimum rise of memory in the last second before the load that counts as still rising: as a part
/// of the whole rise, and in bytes.
const RISING: f64 = 0.05;
const LEAST_RISING: f64 = (2 << 20) as f64;

/// Returns the warnings of a study, each as a sentence, the most important first.
pub(crate) fn warnings(trials: &[TrialResult]) -> Vec<String> {
    let all = [below_baseline(trials), still_rising(trials), without_baseline(trials)];
    all.into_iter().flatten().collect()
}

/// Warns if memory was still rising when the load started: a part of the start-up then counts as
/// the load's.
fn still_rising(trials: &[TrialResult]) -> Option<String> {
    let concerned = trials_where(trials, |t| {
        let rise = rise(t.start_bytes, t.peak_bytes)? as f64;
        let before = t.rise_before_load_bytes? as f64;
        Some(before >= LEAST_RISING && before > rise * RISING)
    })?;
    Some(format!(
        "memory was still rising when the load began {concerned}: part of the start-up memory counts as memory of \
         the load; to move the baseline, use --ready with a page of the service (http:), or --warmup 1"
    ))
}

/// Warns if memory rose from the start of the command on.
fn without_baseline(trials: &[TrialResult]) -> Option<String> {
    let concerned = trials_where(trials, |t| {
        rise(t.start_bytes, t.peak_bytes)?;
        Some(t.baseline_bytes.is_none())
    })?;
    Some(format!(
        "memory rose from the start {concerned}: there is no baseline, and the rise is counted from an estimate; \
         --phase baseline=log:REGEX marks where the load begins"
    ))
}

/// Warns if memory settled below its baseline: the baseline is then hardly the memory without load.
fn below_baseline(trials: &[TrialResult]) -> Option<String> {
    let concerned = trials_where(trials, |t| {
        let rise = rise(t.start_bytes, t.peak_bytes)? as f64;
        Some(t.settled_bytes? as f64 + BELOW_BASELINE * rise < t.baseline_bytes? as f64)
    })?;
    Some(format!(
        "memory settled below its baseline {concerned}: the baseline includes memory of the start-up or of \
         the load; --warmup 1 or --phase baseline=log:REGEX moves it"
    ))
}

/// Names the usable trials for which a condition holds; returns `None` if there are none.
fn trials_where(
    trials: &[TrialResult],
    holds: impl Fn(&TrialResult) -> Option<bool>,
) -> Option<String> {
    let usable: Vec<&TrialResult> = trials.iter().filter(|t| t.is_usable()).collect();
    let concerned: Vec<&&TrialResult> = usable.iter().filter(|t| holds(t) == Some(true)).collect();
    let mut labels: Vec<String> = concerned.iter().map(|t| t.treatment.label()).collect();
    labels.dedup();
    labels.sort();
    labels.dedup();
    match concerned.len() {
        0 => None,
        n if n == usable.len() => Some("in every trial".to_owned()),
        n => Some(format!("in {n} of {} trials ({})", usable.len(), labels.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metric, measure};
    use lowtide_record::fixtures;
    use lowtide_record::v1::{Event, Outcome};

    /// Returns a trial of 100 MiB, 300 under its load, and `settled_mib` after it has settled.
    fn trial(allocator: &str, settled_mib: f64) -> TrialResult {
        let record = fixtures::trial(allocator, 1, true)
            .with_samples(0.0, 30.0, |t| match t {
                t if t < 10.0 => 100.0,
                t if t < 20.0 => 300.0,
                _ => settled_mib,
            })
            .with_mark(0.0, Event::Start, None)
            .with_mark(9.9, Event::Baseline, None)
            .with_mark(10.0, Event::LoadBegin, Some(1))
            .with_mark(20.0, Event::LoadEnd, Some(1))
            .with_mark(30.0, Event::Settled, Some(1))
            .ended(30.0, Outcome::Done);
        TrialResult::new("t.jsonl", &record, measure(&record, Metric::Rss))
    }

    #[test]
    fn memory_that_still_rises_when_the_load_starts_causes_a_warning() {
        let rising = |mib: u64| TrialResult {
            rise_before_load_bytes: Some(mib << 20),
            ..trial("glibc", 120.0)
        };
        let warning = warnings(&[rising(40)]).pop().unwrap();
        assert!(warning.starts_with("memory was still rising when the load began in every trial"));
        assert!(warnings(&[rising(1), rising(8)]).is_empty());
    }

    #[test]
    fn memory_that_rises_from_the_start_on_causes_a_warning() {
        let none = TrialResult { baseline_bytes: None, ..trial("glibc", 120.0) };
        let warning = warnings(&[none.clone(), trial("jemalloc", 120.0)]).pop().unwrap();
        assert!(warning.starts_with(
            "memory rose from the start in 1 of 2 trials (glibc): there is no baseline"
        ));
        // Memory that did not rise needs none.
        let flat = TrialResult { peak_bytes: none.start_bytes, ..none };
        assert!(warnings(&[flat]).is_empty());
    }

    #[test]
    fn memory_that_settles_below_its_baseline_causes_a_warning() {
        let trials = [trial("glibc", 120.0), trial("jemalloc", 60.0), trial("jemalloc", 85.0)];
        let warning = warnings(&trials).pop().unwrap();
        assert!(
            warning.starts_with("memory settled below its baseline in 2 of 3 trials (jemalloc):")
        );
        let trials = [trial("glibc", 60.0)];
        assert!(warnings(&trials)[0].contains("in every trial"));
        // It is below the baseline by less than a twentieth of the rise.
        assert!(warnings(&[trial("glibc", 91.0)]).is_empty());
        let not_settled = TrialResult { settled_bytes: None, ..trial("glibc", 0.0) };
        assert!(warnings(&[not_settled]).is_empty());
    }
}

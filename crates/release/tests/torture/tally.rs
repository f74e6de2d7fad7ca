//! The results of the releases on one program.

use std::collections::BTreeMap;
use std::time::Instant;

use lowtide_model::release::{Hazard, Release, ReleaseOutcome};
use lowtide_model::stats;
use serde_json::{Value, json};

/// Refusals that may pass: another attempt may succeed.
const PASSING: [Hazard; 4] =
    [Hazard::NoThread, Hazard::LockTaken, Hazard::HeapNotWhole, Hazard::SharedMemory];
/// Refusals that may pass if two releases run at the same time: the effects of one on the other.
const PASSING_FOR_TWO: [Hazard; 3] = [Hazard::Traced, Hazard::AnotherRelease, Hazard::Stopped];

#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) releases: u64,
    /// Number of releases that returned something.
    pub(crate) returned: u64,
    pub(crate) nothing: u64,
    /// Number of times that two releases were started at once.
    pub(crate) doubled: u64,
    /// The time at which a release found that the program had ended; no more releases follow.
    pub(crate) gone: Option<Instant>,
    pub(crate) partial: BTreeMap<String, u64>,
    pub(crate) refused: BTreeMap<Hazard, u64>,
    pub(crate) bytes: u64,
    pub(crate) pauses: u64,
    /// The median pause of each release that had any.
    pub(crate) medians: Vec<f64>,
    /// The longest pause of each release that had any.
    pub(crate) longest: Vec<f64>,
    pub(crate) holds: u64,
    /// Ranges that were in use again when their lock was held, or whose lock was busy.
    pub(crate) skipped: u64,
    pub(crate) longest_lock: f64,
    pub(crate) in_slices: u64,
    pub(crate) failures: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, release: &Release, is_double: bool) {
        self.releases += 1;
        self.returned += u64::from(release.returned_bytes > 0);
        self.bytes += release.returned_bytes;
        self.pauses += release.pauses;
        self.holds += release.lock_holds;
        self.skipped += release.skipped_ranges;
        self.longest_lock = self.longest_lock.max(release.longest_lock_s);
        if release.pauses > 0 {
            self.medians.push(release.median_pause_s);
            self.longest.push(release.longest_pause_s);
        }
        if release.runs_in == Some(lowtide_model::release::RunsIn::Slices) {
            self.in_slices += 1;
        }
        if release.cleaned_bytes > 0 && !is_double {
            self.failures.push(format!("{} bytes had been left", release.cleaned_bytes));
        }
        let why = || release.reason.clone().unwrap_or_default();
        match release.outcome {
            ReleaseOutcome::Released => {}
            ReleaseOutcome::NothingToRelease => self.nothing += 1,
            ReleaseOutcome::Partial => *self.partial.entry(why()).or_default() += 1,
            ReleaseOutcome::Refused => {
                let passes = |hazard| {
                    PASSING.contains(&hazard) || is_double && PASSING_FOR_TWO.contains(&hazard)
                };
                if !release.hazard.is_some_and(passes) {
                    self.failures.push(format!("it was refused ({:?}): {}", release.hazard, why()));
                }
                if let Some(hazard) = release.hazard {
                    *self.refused.entry(hazard).or_default() += 1;
                }
            }
        }
    }

    /// Adds another tally.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.releases += other.releases;
        self.returned += other.returned;
        self.nothing += other.nothing;
        self.doubled += other.doubled;
        self.bytes += other.bytes;
        self.pauses += other.pauses;
        self.holds += other.holds;
        self.skipped += other.skipped;
        self.in_slices += other.in_slices;
        self.longest_lock = self.longest_lock.max(other.longest_lock);
        self.medians.extend(&other.medians);
        self.longest.extend(&other.longest);
        for (why, count) in &other.partial {
            *self.partial.entry(why.clone()).or_default() += count;
        }
        for (hazard, count) in &other.refused {
            *self.refused.entry(*hazard).or_default() += count;
        }
        self.failures.extend(other.failures.iter().cloned());
        self
    }

    /// Returns the median of the releases' median pauses.
    pub(crate) fn median_pause(&self) -> f64 {
        stats::median(&self.medians).unwrap_or(0.0)
    }

    /// Returns a quantile of the longest pauses of the releases.
    pub(crate) fn longest_pause(&self, share: f64) -> f64 {
        let mut sorted = self.longest.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (sorted.len() as f64 * share) as usize;
        sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "releases": self.releases,
            "returned": self.returned,
            "nothing_to_release": self.nothing,
            "doubled": self.doubled,
            "ended_meanwhile": self.gone.is_some(),
            "partial": self.partial,
            "refused": self.refused,
            "returned_bytes": self.bytes,
            "in_slices": self.in_slices,
            "pauses": {
                "count": self.pauses,
                "median_of_medians_s": self.median_pause(),
                "p99_of_longest_s": self.longest_pause(0.99),
                "max_s": self.longest_pause(1.0),
            },
            "lock_holds": self.holds,
            "skipped": self.skipped,
            "longest_lock_s": self.longest_lock,
            "failures": self.failures,
        })
    }
}

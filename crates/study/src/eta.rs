//! The remaining time of a study, estimated from the trials that are done.

use std::collections::BTreeMap;
use std::time::Duration;

/// An estimate of the duration of trials.
#[derive(Debug, Clone, Default)]
pub(crate) struct Eta {
    /// The minimum duration of a trial, according to the plan.
    least: Duration,
    /// For each treatment, the total duration and the number of its trials.
    taken: BTreeMap<usize, (Duration, u32)>,
}

/// The remaining time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeLeft {
    /// The duration of the trial that starts.
    pub this: Duration,
    /// The duration of the trials after it.
    pub others: Duration,
    /// Whether no trial is done yet, so that this is only the minimum.
    pub is_least: bool,
}

impl Eta {
    /// Returns an estimate that has only the minimum duration of a trial.
    pub(crate) fn new(least: Duration) -> Self {
        Self { least, taken: BTreeMap::new() }
    }

    /// Adds the duration of a trial.
    pub(crate) fn note(&mut self, treatment: usize, took: Duration) {
        let (sum, count) = self.taken.entry(treatment).or_default();
        *sum += took;
        *count += 1;
    }

    /// Returns the duration of a trial of a treatment: the mean of its trials or, without any, of
    /// the other treatments.
    fn of(&self, treatment: usize) -> Duration {
        let mean = |(sum, count): &(Duration, u32)| *sum / (*count).max(1);
        let others = self.taken.values().map(mean).sum::<Duration>();
        match (self.taken.get(&treatment), self.taken.len() as u32) {
            (Some(own), _) => mean(own),
            (None, 0) => self.least,
            (None, known) => others / known,
        }
    }

    /// Returns the remaining time when a trial of a treatment starts, and others follow.
    pub(crate) fn left(&self, this: usize, others: impl IntoIterator<Item = usize>) -> TimeLeft {
        TimeLeft {
            this: self.of(this),
            others: others.into_iter().map(|treatment| self.of(treatment)).sum(),
            is_least: self.taken.is_empty(),
        }
    }
}

impl TimeLeft {
    /// Returns the remaining time when the trial has run for `elapsed`.
    pub fn after(self, elapsed: Duration) -> Duration {
        self.this.saturating_sub(elapsed) + self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_eta_is_a_lower_bound_before_the_first_trial_ends() {
        let left = Eta::new(S(20)).left(0, [1, 0]);
        assert_eq!(left, TimeLeft { this: S(20), others: S(40), is_least: true });
        assert_eq!(Eta::default().left(0, [1]).after(S(1)), S(0));
    }

    #[test]
    fn the_eta_uses_mean_trial_times_and_falls_back_to_other_treatments() {
        let mut eta = Eta::new(S(1));
        eta.note(0, S(10));
        eta.note(0, S(20));
        eta.note(1, S(45));
        let left = eta.left(2, [0, 1]);
        assert_eq!(left, TimeLeft { this: S(30), others: S(15 + 45), is_least: false });
        assert_eq!(left.after(S(12)), S(18 + 60));
        assert_eq!(left.after(S(99)), S(60), "one that takes longer is not counted twice");
    }
}

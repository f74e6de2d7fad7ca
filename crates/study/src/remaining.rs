//! How much time a study still takes, judged by the trials that are done.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long trials take, as far as that is known.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// What the plan itself says that each takes at least.
    least: Duration,
    /// Of each treatment, how long its trials took together, and how many those were.
    taken: BTreeMap<usize, (Duration, u32)>,
}

/// How much time is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeLeft {
    /// What the trial that begins takes.
    pub this: Duration,
    /// What those behind it take.
    pub others: Duration,
    /// Whether no trial is done yet: it takes at least that long, and nobody knows how long.
    pub is_least: bool,
}

impl Pace {
    /// Nothing is known but what the plan says.
    pub fn new(least: Duration) -> Self {
        Self { least, taken: BTreeMap::new() }
    }

    /// A trial of a treatment is done, and took so long.
    pub fn note(&mut self, treatment: usize, took: Duration) {
        let (sum, count) = self.taken.entry(treatment).or_default();
        *sum += took;
        *count += 1;
    }

    /// What a trial of a treatment takes: as long as those of it did on average, and where there are none,
    /// as long as those of the others.
    fn of(&self, treatment: usize) -> Duration {
        let mean = |(sum, count): &(Duration, u32)| *sum / (*count).max(1);
        let others = self.taken.values().map(mean).sum::<Duration>();
        match (self.taken.get(&treatment), self.taken.len() as u32) {
            (Some(own), _) => mean(own),
            (None, 0) => self.least,
            (None, known) => others / known,
        }
    }

    /// What is left when a trial of a treatment begins, and those of others come behind it.
    pub fn left(&self, this: usize, others: impl IntoIterator<Item = usize>) -> TimeLeft {
        TimeLeft {
            this: self.of(this),
            others: others.into_iter().map(|treatment| self.of(treatment)).sum(),
            is_least: self.taken.is_empty(),
        }
    }
}

impl TimeLeft {
    /// What is left so long after the trial has begun.
    pub fn after(self, elapsed: Duration) -> Duration {
        self.this.saturating_sub(elapsed) + self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn before_anything_is_done_only_the_least_is_known() {
        let left = Pace::new(S(20)).left(0, [1, 0]);
        assert_eq!(left, TimeLeft { this: S(20), others: S(40), is_least: true });
        assert_eq!(Pace::default().left(0, [1]).after(S(1)), S(0));
    }

    #[test]
    fn each_treatment_takes_as_long_as_it_did_and_an_unknown_one_as_the_others() {
        let mut pace = Pace::new(S(1));
        pace.note(0, S(10));
        pace.note(0, S(20));
        pace.note(1, S(45));
        let left = pace.left(2, [0, 1]);
        assert_eq!(left, TimeLeft { this: S(30), others: S(15 + 45), is_least: false });
        assert_eq!(left.after(S(12)), S(18 + 60));
        assert_eq!(left.after(S(99)), S(60), "one that takes longer is not counted twice");
    }
}

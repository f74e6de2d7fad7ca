//! What the kernel counts of a process, and limits by number: at the limit, calls fail, however
//! much memory is left.

use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountKind {
    /// Open file descriptors.
    OpenFiles,
    /// Mappings.
    Mappings,
    /// Threads.
    Threads,
    /// Child processes that have ended, and for which the process has not waited (zombies).
    EndedChildren,
}

impl CountKind {
    /// All of them, in the order of [`Counts`].
    pub const ALL: [Self; 4] =
        [Self::OpenFiles, Self::Mappings, Self::Threads, Self::EndedChildren];

    /// Returns the name of several of them.
    pub fn what(self) -> &'static str {
        match self {
            Self::OpenFiles => "open files",
            Self::Mappings => "mappings",
            Self::Threads => "threads",
            Self::EndedChildren => {
                "child processes that have ended, and for which it has not waited (zombies),"
            }
        }
    }

    /// Returns what each of them costs, or what fails at the limit, as a clause.
    pub fn cost(self) -> &'static str {
        match self {
            Self::OpenFiles => {
                "each costs memory of the kernel, which RSS does not count, and a full pipe or socket costs most"
            }
            Self::Mappings => {
                "each costs memory of the kernel, and at the limit mmap fails, and malloc with it"
            }
            Self::Threads => "each has a stack, and costs memory of the kernel",
            Self::EndedChildren => "each keeps a PID and memory of the kernel",
        }
    }
}

/// The counts of one process at one time; `None` for what was not counted.
pub type Counts = [Option<u64>; CountKind::ALL.len()];

/// A limit on a count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountLimit {
    /// Its name: a resource limit, a setting of the kernel, or a file of a cgroup.
    pub name: String,
    /// The limit.
    pub limit: u64,
    /// What is used of it, by this process and by others to which it applies.
    pub used: u64,
}

/// A count that has risen noticeably.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CountGrowth {
    /// What is counted.
    pub kind: CountKind,
    /// The count at the beginning and at the end.
    pub counts: [u64; 2],
    /// Increase per second; `null` if it did not rise steadily.
    pub per_s: Option<f64>,
    /// The limit that is reached first at this rate; `null` if it is not known.
    pub limit: Option<CountLimit>,
    /// Time until then, in seconds; `null` without a limit or a rate.
    pub seconds_to_limit: Option<f64>,
}

impl CountGrowth {
    /// Returns a count that has risen, unless it has too little for any limit. `per_s` is the rate
    /// of a steady rise.
    pub fn new(kind: CountKind, counts: [u64; 2], per_s: Option<f64>) -> Option<Self> {
        /// Minimum steady rise.
        const LEAST_STEADY: u64 = 20;
        let [before, after] = counts;
        let per_s = per_s.filter(|_| after.saturating_sub(before) >= LEAST_STEADY);
        let found = Self { kind, counts, per_s, limit: None, seconds_to_limit: None };
        (per_s.is_some() || found.is_large()).then_some(found)
    }

    /// Returns whether the rise is noticeable: it is large, or its limit is near.
    pub fn is_noticeable(&self) -> bool {
        self.is_large() || self.is_near()
    }

    /// Returns whether it rose steadily by a tenth, or doubled at once.
    fn is_large(&self) -> bool {
        /// The inverse of the minimum steady rise, as a part of the first count.
        const PART: u64 = 10;
        /// Minimum rise at once, and of mappings: a heap that grows has some more.
        const LEAST: u64 = 100;
        let [before, after] = self.counts;
        let rise = after.saturating_sub(before);
        let is_heap = self.kind == CountKind::Mappings && rise < LEAST;
        self.per_s.is_some() && rise >= before / PART && !is_heap || rise >= before.max(LEAST)
    }

    /// Returns whether more than half of its limit is used, and the rest will be within a day.
    pub fn is_near(&self) -> bool {
        const MAX_S: f64 = 24.0 * 3600.0;
        let is_half = self.limit.as_ref().is_some_and(|limit| limit.used > limit.limit / 2);
        is_half && self.seconds_to_limit.is_some_and(|left_s| left_s <= MAX_S)
    }

    /// Takes a limit into account, if it is reached before the one that is known.
    pub fn set_limit(&mut self, limit: CountLimit) {
        let Some(per_s) = self.per_s.filter(|per_s| *per_s > 0.0) else { return };
        let left_s = limit.limit.saturating_sub(limit.used) as f64 / per_s;
        if self.seconds_to_limit.is_none_or(|known_s| left_s < known_s) {
            (self.limit, self.seconds_to_limit) = (Some(limit), Some(left_s));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_rises_if_it_rises_steadily_or_doubles() {
        let rises = |counts, per_s| {
            let found = CountGrowth::new(CountKind::Threads, counts, per_s);
            found.is_some_and(|found| found.is_noticeable())
        };
        assert!(rises([400, 440], Some(2.0)));
        let mappings = |counts| CountGrowth::new(CountKind::Mappings, counts, Some(2.0)).unwrap();
        assert!(!mappings([122, 164]).is_noticeable() && mappings([122, 222]).is_noticeable());
        assert!(!rises([400, 439], Some(2.0)));
        assert!(!rises([4, 20], Some(1.0)));
        assert!(rises([5, 105], None));
        assert!(!rises([400, 700], None));
        assert!(!rises([400, 3], Some(1.0)));
    }

    #[test]
    fn a_small_steady_rise_is_noticed_near_a_limit() {
        let rise = |counts, limit| {
            let mut rise = CountGrowth::new(CountKind::OpenFiles, counts, Some(1.0))?;
            let name = "RLIMIT_NOFILE".to_owned();
            rise.set_limit(CountLimit { name, limit, used: counts[1] });
            Some(rise.is_noticeable())
        };
        assert_eq!(rise([900, 930], 1024), Some(true));
        assert_eq!(rise([900, 930], 2048), Some(false), "less than half of it is used");
        assert_eq!(rise([900, 910], 1024), None, "too little for a trend");
        assert_eq!(rise([900_000, 900_030], 1_048_576), Some(false), "days away");
    }

    #[test]
    fn the_limit_that_is_reached_first_counts_with_what_others_use_of_it() {
        let limit = |name: &str, limit, used| CountLimit { name: name.to_owned(), limit, used };
        let mut rise = CountGrowth::new(CountKind::EndedChildren, [0, 400], Some(20.0)).unwrap();
        rise.set_limit(limit("kernel.pid_max", 32_768, 768));
        assert_eq!(rise.seconds_to_limit, Some(1600.0));
        rise.set_limit(limit("pids.max", 1000, 900));
        rise.set_limit(limit("kernel.threads-max", 60_000, 900));
        assert_eq!((rise.seconds_to_limit, rise.limit.unwrap().limit), (Some(5.0), 1000));
        // Without a rate, nothing is known about the time.
        let mut once = CountGrowth::new(CountKind::OpenFiles, [5, 900], None).unwrap();
        once.set_limit(limit("RLIMIT_NOFILE", 1024, 900));
        assert_eq!((once.limit, once.seconds_to_limit), (None, None));
    }
}

//! The times of snapshots.

use std::time::Duration;

/// Time between the first snapshots,
const SHORTEST: Duration = Duration::from_secs(5);
/// and if the whole run is short.
const SHORTEST_OF_SHORT_RUN: Duration = Duration::from_secs(1);
/// Maximum time between two snapshots.
const LONGEST: Duration = Duration::from_secs(120);
/// Divisor of the time since the first snapshot, which yields the time between two snapshots from
/// the first minute on.
const PARTS_OF_ELAPSED: u32 = 12;
/// Minimum time between two snapshots, as a multiple of the cost of one.
const COSTS: u32 = 100;

/// Number of intervals that a verdict on growth needs: as many old as young ones, and some to
/// spare.
const INTERVALS: u32 = 12;

/// Maximum length of a run that is extended, unless twice the requested time is longer.
const LONGEST_EXTENDED: Duration = Duration::from_secs(300);

/// The wishes of the user for the times of snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub struct Schedule {
    /// Time between two snapshots; by default, it grows with the run.
    pub every: Option<Duration>,
    /// Time from the first snapshot to the last; `None` if a signal ends the run.
    pub duration: Option<Duration>,
}

impl Schedule {
    /// Returns the time from the start of a snapshot to that of the next. `cost` is the CPU time of
    /// the last snapshot.
    pub fn interval(self, elapsed: Duration, cost: Duration) -> Duration {
        let wanted = self
            .every
            .unwrap_or_else(|| (elapsed / PARTS_OF_ELAPSED).clamp(self.shortest(), LONGEST));
        wanted.max(cost * COSTS)
    }

    /// Returns the time between the first snapshots: a short run has enough of them, too.
    fn shortest(self) -> Duration {
        let of_run = self.duration.map_or(SHORTEST, |duration| duration / INTERVALS);
        of_run.clamp(SHORTEST_OF_SHORT_RUN, SHORTEST)
    }

    /// Returns about how long a run takes to a verdict on growth, if snapshots are cheap.
    pub fn time_to_verdict(self) -> Duration {
        self.every.unwrap_or_else(|| self.shortest()) * INTERVALS
    }

    /// Returns the maximum length of a run that was too short for a verdict, from its start:
    /// `elapsed` is its length so far, and `cost` the CPU time of the last snapshot.
    pub fn extended(self, elapsed: Duration, cost: Duration) -> Duration {
        let needed = self.interval(elapsed, cost) * INTERVALS;
        needed.min(LONGEST_EXTENDED).max(elapsed * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_interval_grows_from_five_seconds_to_two_minutes() {
        let after = |seconds| {
            Schedule::default().interval(Duration::from_secs(seconds), Duration::ZERO).as_secs()
        };
        assert_eq!([0, 60, 600, 3600, 36000].map(after), [5, 5, 50, 120, 120]);
    }

    #[test]
    fn expensive_snapshots_are_taken_less_often_than_the_user_requests() {
        let cost = Duration::from_millis(800);
        let schedule = Schedule { every: Some(Duration::from_secs(1)), duration: None };
        assert_eq!(schedule.interval(Duration::ZERO, cost), Duration::from_secs(80));
        assert_eq!(schedule.interval(Duration::ZERO, cost / 100), Duration::from_secs(1));
    }

    #[test]
    fn a_short_run_has_enough_snapshots_for_a_verdict() {
        let of = |seconds| Schedule { every: None, duration: Some(Duration::from_secs(seconds)) };
        let first = |seconds| of(seconds).interval(Duration::ZERO, Duration::ZERO).as_secs_f64();
        assert_eq!([6, 24, 60, 3600].map(first), [1.0, 2.0, 5.0, 5.0]);
        assert_eq!(of(6).time_to_verdict(), Duration::from_secs(12));
        let extended = |seconds, cost_ms| {
            let elapsed = Duration::from_secs(seconds);
            of(seconds).extended(elapsed, Duration::from_millis(cost_ms)).as_secs()
        };
        assert_eq!((extended(2, 0), extended(30, 0)), (12, 60));
        assert_eq!((extended(30, 100), extended(30, 1000), extended(200, 1000)), (120, 300, 400));
        assert_eq!(Schedule::default().time_to_verdict(), Duration::from_secs(60));
    }
}

//! The times of snapshots.

use std::time::Duration;

/// Time between the first snapshots.
const SHORTEST: Duration = Duration::from_secs(5);
/// Maximum time between two snapshots.
const LONGEST: Duration = Duration::from_secs(120);
/// Divisor of the time since the first snapshot, which yields the time between two snapshots from
/// the first minute on.
const PARTS_OF_ELAPSED: u32 = 12;
/// Minimum time between two snapshots, as a multiple of the cost of one.
const COSTS: u32 = 100;

/// Returns the time from the start of a snapshot to that of the next. `every` is the interval that
/// the user requests, if any; `cost` is the CPU time of the last snapshot.
pub fn interval(every: Option<Duration>, elapsed: Duration, cost: Duration) -> Duration {
    let wanted = every.unwrap_or_else(|| (elapsed / PARTS_OF_ELAPSED).clamp(SHORTEST, LONGEST));
    wanted.max(cost * COSTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_interval_grows_from_five_seconds_to_two_minutes() {
        let after =
            |seconds| interval(None, Duration::from_secs(seconds), Duration::ZERO).as_secs();
        assert_eq!([0, 60, 600, 3600, 36000].map(after), [5, 5, 50, 120, 120]);
    }

    #[test]
    fn expensive_snapshots_are_taken_less_often_than_the_user_requests() {
        let cost = Duration::from_millis(800);
        let every = Some(Duration::from_secs(1));
        assert_eq!(interval(every, Duration::ZERO, cost), Duration::from_secs(80));
        assert_eq!(interval(every, Duration::ZERO, cost / 100), Duration::from_secs(1));
    }
}

//! The limit on the time in which a process is probed.

use std::time::Duration;

/// Maximum number of hits in a window: the upper limit of the hits that slow down one request.
pub(super) const MAX_HITS: u64 = 20_000;
/// Maximum time for which a window stays open.
pub(super) const MAX_WINDOW: Duration = Duration::from_millis(200);
/// Time from the request for probes until all are closed, for the longest window on a machine with
/// a free processor.
const USUAL_EXPOSURE: Duration = Duration::from_millis(400);
/// Minimum time between two windows.
const MIN_PAUSE: Duration = Duration::from_millis(200);

/// Keeps the exposure of a process, the share of the time in which it has probes, within a limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    share: f64,
    exposed: Duration,
    /// The longest exposure by one window.
    longest: Duration,
}

impl Budget {
    /// Creates a budget with a limit as a share of the time, from 0 to 1.
    pub(super) fn new(share: f64) -> Self {
        Self { share, exposed: Duration::ZERO, longest: Duration::ZERO }
    }

    /// Adds the time from the request for probes until all were closed.
    pub(super) fn spend(&mut self, time: Duration) {
        self.exposed += time;
        self.longest = self.longest.max(time);
    }

    /// Returns the time for which the process had probes so far.
    pub(super) fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Returns the time to wait after a window, so that the exposure is within the limit when the
    /// next window starts. `elapsed` is the time since the first window started. On a busy machine,
    /// where probes take long to open and to close, the limit also holds at the end of the next
    /// window, if that is as long as the longest one so far.
    pub(super) fn pause(&self, elapsed: Duration) -> Duration {
        let excess = self.longest.saturating_sub(USUAL_EXPOSURE);
        let due = (self.exposed + excess).as_secs_f64() / self.share;
        let left = due - elapsed.as_secs_f64();
        // A time that does not fit in a `Duration` means for ever.
        let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(Duration::MAX);
        left.max(MIN_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposure_stays_within_its_share_of_the_elapsed_time() {
        let mut budget = Budget::new(0.01);
        let mut elapsed = Duration::ZERO;
        for ms in [150, 90, 400, 10, 220] {
            let window = Duration::from_millis(ms);
            budget.spend(window);
            elapsed += window;
            elapsed += budget.pause(elapsed);
            let share = budget.exposed().as_secs_f64() / elapsed.as_secs_f64();
            assert!(share <= 0.01 + 1e-9, "{share}");
        }
    }

    #[test]
    fn windows_that_take_long_stay_within_the_limit_at_their_ends_too() {
        let mut budget = Budget::new(0.01);
        let window = Duration::from_secs(3);
        budget.spend(window);
        let mut elapsed = window;
        for _ in 0..5 {
            elapsed += budget.pause(elapsed) + window;
            budget.spend(window);
            let share = budget.exposed().as_secs_f64() / elapsed.as_secs_f64();
            assert!(share <= 0.0116, "{share}");
        }
    }

    #[test]
    fn a_tiny_budget_allows_no_second_window() {
        let mut budget = Budget::new(1e-30);
        budget.spend(Duration::from_millis(100));
        assert_eq!(budget.pause(Duration::from_secs(1)), Duration::MAX);
    }

    #[test]
    fn cheap_windows_are_separated_by_the_minimum_pause() {
        let mut budget = Budget::new(1.0);
        budget.spend(Duration::from_millis(1));
        assert_eq!(budget.pause(Duration::from_secs(1)), MIN_PAUSE);
    }
}

//! Leaves a process alone after failed releases.

/// Time for which a process is left alone, in seconds.
pub const LEFT_ALONE_S: f64 = 3600.0;
/// Number of releases that go wrong before a process is left alone.
const MAX_FAILURES: u32 = 2;
/// Minimum pause of a release that counts as gone wrong, as a multiple of the pause bound.
const MAX_PAUSE_FACTOR: f64 = 10.0;
/// Initial time until the retry of a release that failed for a transient reason, in seconds. It
/// doubles each time.
const FIRST_DELAY_S: f64 = 5.0;
/// Maximum time until the retry, in seconds.
pub const MAX_DELAY_S: f64 = 600.0;
/// Maximum number of times that this time doubles.
const MAX_DOUBLINGS: u32 = 7;

/// Leaves a process alone for an hour after two releases in succession went wrong, and for seconds
/// to minutes after one failed for a transient reason.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Brake {
    failures: u32,
    /// Number of delays in succession.
    delays: u32,
    released_at_s: Option<f64>,
    /// Whether the process is left alone by a delay, and not for an hour.
    is_delay: bool,
}

impl Brake {
    /// Returns whether the process may be released at a time, in seconds.
    pub fn is_open(&mut self, t_s: f64) -> bool {
        match self.released_at_s {
            Some(end) if t_s < end => false,
            Some(_) => {
                if !self.is_delay {
                    self.failures = 0;
                }
                self.released_at_s = None;
                true
            }
            None => true,
        }
    }

    /// Leaves the process alone from a time on, in seconds, because its releases would fail again.
    pub fn close(&mut self, t_s: f64) {
        (self.released_at_s, self.is_delay) = (Some(t_s + LEFT_ALONE_S), false);
    }

    /// Leaves the process alone for a time from `t_s` on, both in seconds, because the cause of the
    /// failure may pass. Returns the length of that time.
    pub fn delay(&mut self, t_s: f64) -> f64 {
        let doubled = f64::from(1 << self.delays.min(MAX_DOUBLINGS));
        let delay_s = (FIRST_DELAY_S * doubled).min(MAX_DELAY_S);
        self.delays = self.delays.saturating_add(1);
        (self.released_at_s, self.is_delay) = (Some(t_s + delay_s), true);
        delay_s
    }

    /// Counts a walk that was completed and found nothing to release. It gives no information about
    /// releases.
    pub fn count_walk(&mut self) {
        self.delays = 0;
    }

    /// Counts the outcome of an attempted release. `has_failed` is whether it was partial; the
    /// pauses are in seconds. Returns whether the process is left alone from now on.
    pub fn count(
        &mut self,
        t_s: f64,
        has_failed: bool,
        longest_pause_s: f64,
        bound_s: f64,
    ) -> bool {
        self.delays = 0;
        if !has_failed && longest_pause_s <= bound_s * MAX_PAUSE_FACTOR {
            self.failures = 0;
            return false;
        }
        self.failures += 1;
        if self.failures < MAX_FAILURES {
            return false;
        }
        self.close(t_s);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_consecutive_failures_stop_releases_for_an_hour() {
        let mut brake = Brake::default();
        assert!(!brake.count(1.0, true, 0.0, 0.001));
        assert!(!brake.count(2.0, false, 0.009, 0.001));
        assert!(!brake.count(3.0, false, 0.011, 0.001));
        assert!(brake.is_open(3.5));
        assert!(brake.count(4.0, true, 0.0, 0.001));
        assert!(!brake.is_open(4.0 + LEFT_ALONE_S - 1.0));
        assert!(brake.is_open(4.0 + LEFT_ALONE_S));
        assert!(!brake.count(4001.0, true, 0.0, 0.001));
    }

    #[test]
    fn a_delay_or_walk_between_two_failures_does_not_reset_their_count() {
        let mut brake = Brake::default();
        assert!(!brake.count(1.0, true, 0.0, 0.001));
        let delay_s = brake.delay(2.0);
        assert!(brake.is_open(2.0 + delay_s));
        brake.count_walk();
        assert!(brake.count(10.0, true, 0.0, 0.001));
    }

    #[test]
    fn repeated_transient_reasons_double_the_delay_up_to_a_maximum() {
        let mut brake = Brake::default();
        let mut t_s = 0.0;
        let mut delays = Vec::new();
        for _ in 0..9 {
            assert!(brake.is_open(t_s));
            delays.push(brake.delay(t_s));
            assert!(!brake.is_open(t_s + delays.last().unwrap() - 1.0));
            t_s += delays.last().unwrap();
        }
        assert_eq!(delays, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]);
        assert!(!brake.count(t_s, false, 0.0, 0.001));
        assert_eq!(brake.delay(t_s), 5.0);
    }
}

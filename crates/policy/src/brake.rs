//! Leaves a process alone after releases of it went wrong.

/// Time for which a process is left alone, in seconds.
pub const LEFT_ALONE_S: f64 = 3600.0;
/// Number of releases that go wrong until a process is left alone.
const MAX_FAILURES: u32 = 2;
/// Multiple of the pause bound from which on a release counts as gone wrong.
const MAX_PAUSE_FACTOR: f64 = 10.0;

/// Leaves a process alone for an hour after two releases in succession went wrong.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Brake {
    failures: u32,
    released_at_s: Option<f64>,
}

impl Brake {
    /// Returns whether the process may be released at a time, in seconds.
    pub fn is_open(&mut self, t_s: f64) -> bool {
        match self.released_at_s {
            Some(end) if t_s < end => false,
            Some(_) => {
                *self = Self::default();
                true
            }
            None => true,
        }
    }

    /// Leaves the process alone from a time on, in seconds: its releases would fail again.
    pub fn close(&mut self, t_s: f64) {
        self.released_at_s = Some(t_s + LEFT_ALONE_S);
    }

    /// Takes the outcome of a release. `has_failed` is whether it was refused or partial; the pauses are in seconds.
    /// Returns whether the process is left alone from now on.
    pub fn count(
        &mut self,
        t_s: f64,
        has_failed: bool,
        longest_pause_s: f64,
        bound_s: f64,
    ) -> bool {
        if !has_failed && longest_pause_s <= bound_s * MAX_PAUSE_FACTOR {
            self.failures = 0;
            return false;
        }
        self.failures += 1;
        if self.failures < MAX_FAILURES {
            return false;
        }
        self.released_at_s = Some(t_s + LEFT_ALONE_S);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_in_succession_leave_a_process_alone_for_an_hour() {
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
}

//! The policy that releases when memory is short.

use crate::{Action, Policy, ProcessState, Reason, ReleaseRequest};

/// Minimum gain, in bytes.
const MIN_BYTES: u64 = 1 << 20;
/// Minimum time between two releases of a process, in seconds.
const MIN_INTERVAL_S: f64 = 5.0;
/// Maximum time between two releases while memory stays short, in seconds.
const MAX_INTERVAL_S: f64 = 600.0;

/// Releases when memory is short. If a release returns nothing, or its memory comes back soon, the
/// policy waits twice as long before the next attempt.
#[derive(Debug)]
pub(crate) struct PressurePolicy {
    interval_s: f64,
    /// The last release with a known outcome, and the interval before it.
    seen: Option<(u64, f64)>,
    not_before_s: f64,
}

impl Default for PressurePolicy {
    fn default() -> Self {
        Self { interval_s: MIN_INTERVAL_S, seen: None, not_before_s: f64::NEG_INFINITY }
    }
}

impl PressurePolicy {
    fn learn(&mut self, state: &ProcessState) {
        let Some(last) = state.last_release else { return };
        let before_s = match self.seen {
            Some((id, before_s)) if id == last.id => before_s,
            _ => self.interval_s,
        };
        self.seen = Some((last.id, before_s));
        // Nothing was returned, or a quarter of it is back.
        let is_futile = last.back.bytes >= last.returned_bytes / 4;
        self.interval_s =
            if is_futile { (before_s * 2.0).min(MAX_INTERVAL_S) } else { MIN_INTERVAL_S };
        self.not_before_s = self.not_before_s.max(last.t_s + self.interval_s);
    }
}

impl Policy for PressurePolicy {
    fn decide(&mut self, state: &ProcessState) -> Action {
        self.learn(state);
        let Some(shortage) = state.shortage() else { return Action::None };
        if state.t_s < self.not_before_s {
            return Action::None;
        }
        self.not_before_s = state.t_s + MIN_INTERVAL_S;
        let reason = Reason::Short(shortage);
        Action::Release(ReleaseRequest { reason, min_bytes: MIN_BYTES, keep_huge_pages: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Headroom, LastRelease, Returned, Usage};

    fn state(t_s: f64, used_bytes: u64, last_release: Option<LastRelease>) -> ProcessState {
        let headroom = Some(Headroom { limit_bytes: 1000, used_bytes });
        ProcessState { t_s, headroom, last_release, ..ProcessState::default() }
    }

    fn release(id: u64, t_s: f64, returned_bytes: u64) -> Option<LastRelease> {
        let back = Returned::default();
        let usage = Usage::default();
        Some(LastRelease { id, t_s, is_refused: false, returned_bytes, cpu_s: 0.0, usage, back })
    }

    #[test]
    fn memory_is_released_only_while_it_is_short() {
        let mut policy = PressurePolicy::default();
        let mut acts = |t_s, used, last| policy.decide(&state(t_s, used, last)) != Action::None;
        assert!(!acts(0.0, 500, None));
        assert!(acts(1.0, 950, None));
        assert!(!acts(5.0, 950, release(1, 1.5, 10)));
        assert!(acts(6.5, 950, release(1, 1.5, 10)));
        assert!(!acts(20.0, 700, release(2, 7.0, 10)));
    }

    /// Returns the times of releases in seconds while memory is always short, if each release
    /// returns `returned` bytes, of which `back` come back.
    fn times(returned: u64, back: u64) -> Vec<i32> {
        let mut policy = PressurePolicy::default();
        let (mut last, mut times) = (None, Vec::new());
        for second in 0..200 {
            let t_s = f64::from(second);
            if policy.decide(&state(t_s, 990, last)) != Action::None {
                times.push(second);
                last = release(times.len() as u64, t_s, returned);
            } else if let Some(last) = &mut last {
                last.back.bytes = back;
            }
        }
        times
    }

    #[test]
    fn the_wait_doubles_if_nothing_is_released_or_the_pages_refault() {
        assert_eq!(times(0, 0), [0, 10, 30, 70, 150]);
        assert_eq!(times(1000, 900), [0, 10, 30, 70, 150]);
        assert_eq!(times(1000, 100).len(), 40);
    }
}

//! The policy that releases after the process has freed a number of bytes.

use crate::{Action, Policy, ProcessState, Reason, ReleaseRequest};

/// Releases whenever the process has freed a number of bytes since the last release.
#[derive(Debug)]
pub(crate) struct FreedPolicy {
    bytes: u64,
    /// The count at the last release; a program starts with zero.
    counted: u64,
    /// The time of the last decision, and the count before it.
    decided: Option<(f64, u64)>,
}

impl FreedPolicy {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, counted: 0, decided: None }
    }
}

impl Policy for FreedPolicy {
    fn decide(&mut self, state: &ProcessState) -> Action {
        let Some(now) = state.freed_bytes else { return Action::None };
        if let Some((t_s, before)) = self.decided
            && state.held_back_s.is_some_and(|held_back_s| held_back_s >= t_s)
        {
            (self.counted, self.decided) = (before, None);
        }
        // A process that executes another program starts with zero again.
        self.counted = self.counted.min(now);
        let freed = now - self.counted;
        if freed < self.bytes {
            return Action::None;
        }
        self.decided = Some((state.t_s, self.counted));
        self.counted = now;
        let reason = Reason::Freed(freed);
        Action::Release(ReleaseRequest { reason, min_bytes: 0, keep_huge_pages: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_was_held_back_is_requested_again() {
        let mut policy = FreedPolicy::new(100);
        let mut acts = |t_s, held_back_s| {
            let freed_bytes = Some(150);
            let state = ProcessState { t_s, freed_bytes, held_back_s, ..ProcessState::default() };
            policy.decide(&state) != Action::None
        };
        assert!(acts(1.0, None));
        assert!(!acts(2.0, None));
        assert!(acts(3.0, Some(1.5)));
        assert!(!acts(4.0, Some(1.5)));
    }

    #[test]
    fn memory_is_released_each_time_the_configured_bytes_have_been_freed() {
        let mut policy = FreedPolicy::new(100);
        let counts =
            [None, Some(99), Some(120), Some(219), Some(220), Some(330), Some(30), Some(130)];
        let released: Vec<_> = counts
            .into_iter()
            .filter(|freed_bytes| {
                let state = ProcessState { freed_bytes: *freed_bytes, ..ProcessState::default() };
                policy.decide(&state) != Action::None
            })
            .flatten()
            .collect();
        assert_eq!(released, [120, 220, 330, 130]);
    }
}

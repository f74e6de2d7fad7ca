//! The policy that releases at a fixed interval.

use std::time::Duration;

use crate::{Action, Policy, ProcessState, Reason, ReleaseRequest};

/// Releases when a period has passed since the last one was due.
#[derive(Debug)]
pub(crate) struct PeriodicPolicy {
    period_s: f64,
    /// The time of the next release; `None` before the first state.
    due_s: Option<f64>,
    /// The time of the last decision, and the time when it was due.
    decided: Option<(f64, f64)>,
}

impl PeriodicPolicy {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period_s: period.as_secs_f64(), due_s: None, decided: None }
    }
}

impl Policy for PeriodicPolicy {
    fn decide(&mut self, state: &ProcessState) -> Action {
        if let Some((t_s, due_s)) = self.decided
            && state.held_back_s.is_some_and(|held_back_s| held_back_s >= t_s)
        {
            (self.due_s, self.decided) = (Some(due_s), None);
        }
        let due_s = *self.due_s.get_or_insert(state.t_s + self.period_s);
        if state.t_s < due_s {
            return Action::None;
        }
        // Periods that passed unnoticed, as while the machine was suspended, are not made up for.
        let missed = ((state.t_s - due_s) / self.period_s).floor();
        self.decided = Some((state.t_s, due_s));
        let next_s = due_s + (missed + 1.0) * self.period_s;
        // After a release that was held back for most of the period, the next one would follow at
        // once.
        let is_soon = next_s - state.t_s < self.period_s / 2.0;
        self.due_s = Some(if is_soon { next_s + self.period_s } else { next_s });
        Action::Release(ReleaseRequest {
            reason: Reason::Period,
            min_bytes: 0,
            keep_huge_pages: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_was_held_back_is_retried_before_the_next_period() {
        let mut policy = PeriodicPolicy::new(Duration::from_secs(30));
        let mut acts = |t_s, held_back_s| {
            let state = ProcessState { t_s, held_back_s, ..ProcessState::default() };
            policy.decide(&state) != Action::None
        };
        assert!(!acts(0.0, None));
        assert!(acts(30.0, None));
        assert!(acts(31.0, Some(30.5)));
        assert!(!acts(36.0, Some(30.5)));
        assert!(acts(60.0, Some(30.5)));
    }

    #[test]
    fn memory_is_released_once_per_period_and_missed_periods_are_skipped() {
        let mut policy = PeriodicPolicy::new(Duration::from_secs(30));
        let times = [100.0, 129.9, 130.0, 130.1, 159.0, 161.0, 190.0, 1000.0, 1000.1, 1030.0];
        let released: Vec<f64> = times
            .into_iter()
            .filter(|t_s| {
                let state = ProcessState { t_s: *t_s, ..ProcessState::default() };
                policy.decide(&state) != Action::None
            })
            .collect();
        assert_eq!(released, [130.0, 161.0, 190.0, 1000.0, 1030.0]);
    }
}

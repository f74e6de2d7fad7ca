//! Drives the policy of a treatment during a trial: it observes the subject, and has its memory released when the
//! policy decides so.

use lowtide_policy::{Action, Policy, PolicyKind, ProcessState};
use serde_json::Value;

/// Releases the free memory of processes.
pub trait Releaser {
    /// Releases the free memory of a process. Returns the object that describes the release.
    ///
    /// # Errors
    /// The reason, if nothing could be released.
    fn release(&mut self, pid: u32) -> Result<Value, String>;
}

/// The policy of a treatment, for the subject of one trial.
#[derive(Debug)]
pub(super) struct PolicyDriver {
    policy: Box<dyn Policy>,
}

impl PolicyDriver {
    /// Starts with a new policy.
    pub(super) fn new(kind: PolicyKind) -> Self {
        Self { policy: kind.policy() }
    }

    /// Lets the policy decide, and does what it decides with the process. Returns the outcome of a release, if there
    /// was one.
    pub(super) fn step(
        &mut self,
        state: &ProcessState,
        pid: u32,
        releaser: &mut dyn Releaser,
    ) -> Option<Result<Value, String>> {
        match self.policy.decide(state) {
            Action::None => None,
            Action::Release => Some(releaser.release(pid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::bytes::Resident;

    /// Releases from a size on.
    #[derive(Debug)]
    struct Above(u64);

    impl Policy for Above {
        fn decide(&mut self, state: &ProcessState) -> Action {
            if state.rss.0 > self.0 { Action::Release } else { Action::None }
        }
    }

    impl Releaser for Vec<u32> {
        fn release(&mut self, pid: u32) -> Result<Value, String> {
            self.push(pid);
            Ok(Value::Null)
        }
    }

    #[test]
    fn memory_is_released_when_the_policy_decides_so() {
        let mut driver = PolicyDriver { policy: Box::new(Above(10)) };
        let mut released = Vec::new();
        for (rss, outcome) in [(5, None), (11, Some(Ok(Value::Null))), (10, None)] {
            let state = ProcessState { t_s: 0.0, rss: Resident(rss) };
            assert_eq!(driver.step(&state, 42, &mut released), outcome, "{rss}");
        }
        assert_eq!(released, [42]);
    }
}

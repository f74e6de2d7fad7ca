//! The policy of a process that is left alone.

use crate::{Action, Policy, ProcessState};

#[derive(Debug)]
pub(crate) struct NonePolicy;

impl Policy for NonePolicy {
    fn decide(&mut self, _: &ProcessState) -> Action {
        Action::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::bytes::Resident;

    #[test]
    fn a_process_of_any_size_is_left_alone() {
        for t_s in [0.0, 1.0, 1e6] {
            let state = ProcessState { t_s, rss: Resident(u64::MAX), ..ProcessState::default() };
            assert_eq!(NonePolicy.decide(&state), Action::None);
        }
    }
}

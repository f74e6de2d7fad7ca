//! The policy of a process that is left alone.

use crate::{Action, Policy, ProcessState};

#[derive(Debug)]
pub(crate) struct NonePolicy;

impl Policy for NonePolicy {
    fn decide(&mut self, _: &ProcessState) -> Action {
        Action::None
    }
}

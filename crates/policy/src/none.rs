//! The policy of a process that is left alone.

use crate::{Action, Observation, Policy};

#[derive(Debug)]
pub(crate) struct NonePolicy;

impl Policy for NonePolicy {
    fn decide(&mut self, _: &Observation) -> Action {
        Action::None
    }
}

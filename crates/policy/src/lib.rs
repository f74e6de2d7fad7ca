//! Decides when the free memory of a process is released.
//!
//! A policy decides from a series of states. It has no clock and does no I/O. Its driver observes the process and
//! carries out the decisions. A new policy is a file with an implementation of [`Policy`], and a variant of
//! [`PolicyKind`].

mod none;

use std::fmt;
use std::str::FromStr;

use lowtide_model::bytes::Resident;
use lowtide_model::treatment::NO_POLICY;

use none::NonePolicy;

/// Decides when the free memory of a process is released.
pub trait Policy: fmt::Debug {
    /// Decides what is done now. It is called again and again, with states in the order of their times.
    fn decide(&mut self, state: &ProcessState) -> Action;
}

/// The state of a process at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessState {
    /// Seconds since a fixed moment, the same for all states of one process.
    pub t_s: f64,
    /// The resident bytes.
    pub rss: Resident,
}

/// An action on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Leave it alone.
    None,
    /// Release its free memory.
    Release,
}

/// The policies, by their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Leaves the process alone.
    #[default]
    None,
}

impl PolicyKind {
    /// Returns the policy, for one process.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::None => Box::new(NonePolicy),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        match name {
            NO_POLICY => Ok(Self::None),
            _ => Err(UnknownPolicy),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => NO_POLICY,
        })
    }
}

/// There is no policy of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPolicy;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_found_by_its_name() {
        assert_eq!("none".parse(), Ok(PolicyKind::None));
        assert_eq!(PolicyKind::None.to_string().parse(), Ok(PolicyKind::default()));
        assert_eq!("sometimes".parse::<PolicyKind>(), Err(UnknownPolicy));
    }

    #[test]
    fn no_policy_leaves_a_process_alone_however_large_it_is() {
        let mut policy = PolicyKind::None.policy();
        for t_s in [0.0, 1.0, 1e6] {
            let state = ProcessState { t_s, rss: Resident(u64::MAX) };
            assert_eq!(policy.decide(&state), Action::None);
        }
    }
}

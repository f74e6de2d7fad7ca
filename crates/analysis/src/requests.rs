//! Failed requests of the loads of a treatment.

use std::fmt;

use crate::trial_result::{LoadResult, TrialResult};

/// The requests of loads, and the number of failed ones.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestCount {
    /// Failed requests.
    pub failed: f64,
    /// All requests of the loads.
    pub all: f64,
    /// Whether they were bare connections, which are only opened and held.
    pub are_connections: bool,
}

impl RequestCount {
    /// Adds up the requests of trials; the sum is zero if no load reports them.
    pub fn from_trials<'a>(trials: impl IntoIterator<Item = &'a TrialResult>) -> Self {
        let rounds = trials.into_iter().flat_map(|trial| &trial.rounds);
        rounds.filter_map(|round| round.load.as_ref()).fold(Self::default(), Self::and)
    }

    fn and(self, load: &LoadResult) -> Self {
        let count = |name: &str| load.figure(name).unwrap_or(0.0);
        let failed = count("failed");
        let all = load.figure("requests").unwrap_or(count("succeeded") + failed);
        Self {
            failed: self.failed + failed,
            all: self.all + all,
            are_connections: self.are_connections || load.figure("closed_while_held").is_some(),
        }
    }

    /// Returns the failed share, from 0 to 1.
    pub(crate) fn failed_share(self) -> f64 {
        if self.all > 0.0 { self.failed / self.all } else { 0.0 }
    }
}

impl fmt::Display for RequestCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.are_connections { "connections" } else { "requests" };
        write!(f, "{} of {} {what} failed", self.failed, self.all)
    }
}

//! The interface through which a caller follows a running load.

use std::time::Duration;

pub use lowtide_model::event::Event;
use lowtide_model::load::LoadRound;

/// Receives the progress of a load. The loop itself calls it, so it must return quickly.
pub trait LoadObserver {
    /// Handles one event.
    fn observe(&mut self, progress: LoadEvent<'_>);
}

/// An event in the course of a load.
#[derive(Debug, Clone, Copy)]
pub enum LoadEvent<'a> {
    /// A round starts.
    Round {
        /// The number of the round, from 1.
        round: u32,
        /// The target of the round.
        target: &'a str,
    },
    /// A sample of the state, once per [`crate::LoadSpec::sample_interval`].
    State(LoadState),
    /// A moment to record.
    Mark {
        /// The moment.
        moment: Event,
        /// The number of the round, from 1.
        round: u32,
    },
    /// A round ended.
    RoundEnd(&'a LoadRound),
}

/// The state of a load at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadState {
    /// The number of the round, from 1; in a pause, of the round before it.
    pub round: u32,
    /// Requests in flight, background requests included, or bare connections that are being made.
    pub in_flight: u64,
    /// Successes in the round.
    pub succeeded: u64,
    /// Failures in the round.
    pub failed: u64,
    /// Open connections.
    pub connections: u64,
    /// The time since the start of the round.
    pub since_round: Duration,
    /// The remaining time of the pause; `None` in a round.
    pub pause_left: Option<Duration>,
}

/// Ignores all events.
impl LoadObserver for () {
    fn observe(&mut self, _progress: LoadEvent<'_>) {}
}

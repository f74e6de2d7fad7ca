//! Who looks on while a load runs.

use std::time::Duration;

use lowtide_model::load::LoadRound;
pub use lowtide_model::record::v1::Moment;

/// Sees how far a load is. It is called from the loop itself, and must not take long.
pub trait Observer {
    /// Something happened.
    fn see(&mut self, progress: Progress<'_>);
}

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A round starts.
    Round {
        /// Which, from 1.
        round: u32,
        /// Where it goes.
        target: &'a str,
    },
    /// So far it is; every [`crate::plan::Plan::sample_interval`].
    State(State),
    /// A moment that belongs into a record.
    Mark {
        /// Which.
        moment: Moment,
        /// In which round, from 1.
        round: u32,
    },
    /// A round has ended.
    RoundEnd(&'a LoadRound),
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Which round, from 1; in a pause, the one before it.
    pub round: u32,
    /// Requests in flight, those of a trickle among them; bare connections that are being made.
    pub in_flight: u64,
    /// Of the round: what has succeeded.
    pub succeeded: u64,
    /// Of the round: what has failed.
    pub failed: u64,
    /// Connections that stand.
    pub connections: u64,
    /// Since the round started.
    pub since_round: Duration,
    /// What is left of a pause; nothing in a round.
    pub pause_left: Option<Duration>,
}

/// Looks away.
impl Observer for () {
    fn see(&mut self, _progress: Progress<'_>) {}
}

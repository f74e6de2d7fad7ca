//! The moments of a trial and of a load.

use serde::{Deserialize, Serialize};

/// The moments of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The subject was started.
    Start,
    /// It answers requests.
    Ready,
    /// The end of the window from which the baseline is read.
    Baseline,
    /// A round of the load begins.
    LoadBegin,
    /// A round of the load has ended.
    LoadEnd,
    /// The pause after a round, or the settle time, has passed.
    Settled,
    /// The subject has exited by itself.
    Exit,
    /// lowtide terminates the subject, or stops watching it.
    Stop,
    /// A line of the subject matched a phase.
    Phase,
    /// The last request of a round was answered or given up; the connections are still open.
    Drained,
    /// The load has closed its connections.
    Closed,
    /// An event that a later version records.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// The events at which a treatment can run hooks.
    pub const WITH_HOOKS: [Self; 4] = [Self::Ready, Self::Drained, Self::Closed, Self::LoadEnd];

    /// Returns the name in a study file of an event that can have hooks.
    pub fn hook_name(self) -> Option<&'static str> {
        match self {
            Self::Ready => Some("ready"),
            Self::Drained => Some("drained"),
            Self::Closed => Some("closed"),
            Self::LoadEnd => Some("load_end"),
            Self::Start
            | Self::Baseline
            | Self::LoadBegin
            | Self::Settled
            | Self::Exit
            | Self::Stop
            | Self::Phase
            | Self::Unknown => None,
        }
    }
}

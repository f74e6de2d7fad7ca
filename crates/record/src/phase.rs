//! The phases that a subject can name to override the one that its trace shows.

/// A phase with a meaning for the metrics. A subject names it in its output (`--phase
/// NAME=log:REGEX`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricPhase {
    /// The end of the baseline window.
    Baseline,
    /// The moment of the peak.
    Peak,
    /// The end of the load.
    LoadEnd,
    /// The moment at which memory has settled.
    Settled,
}

impl MetricPhase {
    /// All phases.
    pub const ALL: [Self; 4] = [Self::Baseline, Self::Peak, Self::LoadEnd, Self::Settled];

    /// Returns the name in settings and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Peak => "peak",
            Self::LoadEnd => "load_end",
            Self::Settled => "settled",
        }
    }

    /// Parses a name; `None` for a phase without a meaning for the metrics.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

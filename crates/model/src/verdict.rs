//! The verdict on a process's memory, and its reasons.

use serde::{Deserialize, Serialize};

/// The kind of most of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// In use by the program.
    Live,
    /// Outside of any heap: files, shared memory, the program's own mappings.
    OutsideHeap,
    /// Freed, and retained by the allocator.
    Hoard,
    /// Freed, but locked in memory (`mlock`).
    Locked,
    /// Freed, and kept by threads for themselves.
    Cached,
    /// Freed, and between blocks in use.
    Fragmentation,
    /// Managed by a runtime or another allocator.
    Runtime,
    /// In use, and growing.
    Growing,
    /// In use, growing, and unreachable: no pointer leads to it.
    Leak,
    /// Unknown.
    Inconclusive,
}

impl VerdictKind {
    /// All verdicts, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Live,
        Self::OutsideHeap,
        Self::Hoard,
        Self::Locked,
        Self::Cached,
        Self::Fragmentation,
        Self::Runtime,
        Self::Growing,
        Self::Leak,
        Self::Inconclusive,
    ];

    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::OutsideHeap => "outside_heap",
            Self::Hoard => "hoard",
            Self::Locked => "locked",
            Self::Cached => "cached",
            Self::Fragmentation => "fragmentation",
            Self::Runtime => "runtime",
            Self::Growing => "growing",
            Self::Leak => "leak",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A verdict and its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its kind.
    pub kind: VerdictKind,
    /// The reasons: sentences with metrics, the most important first.
    pub because: Vec<String>,
}

//! The verdict on a process's memory, and its reasons.

use serde::{Deserialize, Serialize};

/// What most of the memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// In use by the program.
    Live,
    /// Outside of any heap: files, shared memory, mappings of the program's own.
    OutsideHeap,
    /// Freed, and held by the allocator.
    Hoard,
    /// Freed, and between blocks in use.
    Fragmentation,
    /// Managed by a runtime or another allocator.
    Runtime,
    /// In use, and growing.
    Growing,
    /// In use, growing, and without a pointer that leads to it.
    Leak,
    /// Not known.
    Inconclusive,
}

impl VerdictKind {
    /// All verdicts, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Live,
        Self::OutsideHeap,
        Self::Hoard,
        Self::Fragmentation,
        Self::Runtime,
        Self::Growing,
        Self::Leak,
        Self::Inconclusive,
    ];

    /// What people read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::OutsideHeap => "outside_heap",
            Self::Hoard => "hoard",
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
    /// What it is.
    pub kind: VerdictKind,
    /// Why: sentences with figures, the weightiest first.
    pub because: Vec<String>,
}

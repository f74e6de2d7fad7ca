//! The interface of an engine, and the result of its walk.

use std::ops::Range;

use lowtide_model::engine::EngineHeap;
use lowtide_model::inspection::CPythonHeap;
use lowtide_model::ledger::Ledger;

use crate::blocks::Visitor;
use crate::memory::Memory;

/// The heap of an engine.
pub(crate) trait Engine {
    /// Finds and walks the heap, and passes its blocks in use on, if the engine has any that can be
    /// told apart. Returns `None` if no heap of a known version was found.
    fn walk(
        memory: &impl Memory,
        places: &EnginePlaces<'_>,
        visitor: Visitor<'_>,
    ) -> Option<WalkedEngine>;
}

/// The memory in which the heap of an engine may be. Each list is in order, and adjacent ranges are
/// merged.
#[derive(Debug, Clone, Copy)]
pub struct EnginePlaces<'p> {
    /// The writable data of the file that contains the engine.
    pub data: &'p [Range<u64>],
    /// All private writable anonymous mappings.
    pub heaps: &'p [Range<u64>],
    /// The part of them without another owner, outside of the heap of `brk`.
    pub mapped: &'p [Range<u64>],
    /// The private accessible anonymous mappings, whatever their protection, without the parts of
    /// other owners.
    pub private: &'p [Range<u64>],
    /// The same, with mappings that are not accessible: guard pages, and reserved addresses.
    pub reserved: &'p [Range<u64>],
}

/// The walked heap of an engine.
#[derive(Debug, Clone)]
pub struct WalkedEngine {
    /// Resident bytes: rows of the engine, and `metadata`.
    pub ledger: Ledger,
    /// Bytes, resident or not, that could not be walked.
    pub unwalked_bytes: u64,
    /// The addresses of the heap, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// The heap in the terms of the engine's own statistics.
    pub detail: EngineDetail,
}

/// A walked heap in the terms of its engine.
#[derive(Debug, Clone)]
pub enum EngineDetail {
    /// CPython's arenas, whose blocks a walk passes on.
    CPython(CPythonHeap),
    /// Spaces of objects, which are not passed on.
    Spaces(EngineHeap),
}

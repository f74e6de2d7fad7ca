//! What lowtide knows of an engine whose heap it walks: a runtime that manages memory of its own.
//!
//! To add one: a folder with a type that implements `Engine`, a variant of [`WalkedRuntime`] with
//! its arm in [`walk`], and the runtimes that contain it in [`walked_as`].

use std::ops::Range;

use lowtide_model::engine::EngineHeap;
use lowtide_model::inspection::CPythonHeap;
use lowtide_model::ledger::{Ledger, WalkedRuntime};
use lowtide_model::runtime_kind::RuntimeKind;

use crate::blocks::Visitor;
use crate::memory::Memory;
use crate::pymalloc::CPython;
use crate::v8::V8;

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

/// The note of a process that contains V8, and in which no heap of V8 was found.
pub const UNKNOWN_V8: &str = "the heap of V8 was not walked: lowtide knows the structures of V8 10.2 to 15.0 (Node.js \
                              18 to 26, Deno 2.9), in builds without its sandbox and after it has started";

/// Returns the engine whose heap a runtime has; `None` if it is not walked here.
pub fn walked_as(kind: RuntimeKind) -> Option<WalkedRuntime> {
    match kind {
        RuntimeKind::Python => Some(WalkedRuntime::CPython),
        _ if kind.has_v8() => Some(WalkedRuntime::V8),
        _ => None,
    }
}

/// Walks the heap of an engine. Returns `None` if no heap of a known version was found.
pub fn walk(
    engine: WalkedRuntime,
    memory: &impl Memory,
    places: &EnginePlaces<'_>,
    visitor: Visitor<'_>,
) -> Option<WalkedEngine> {
    match engine {
        WalkedRuntime::CPython => CPython::walk(memory, places, visitor),
        WalkedRuntime::V8 => V8::walk(memory, places, visitor),
        // Its parts in use come from its own statistics: see `hotspot`.
        WalkedRuntime::HotSpot => None,
    }
}

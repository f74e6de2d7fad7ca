//! What lowtide knows of an engine whose heap it walks: a runtime that manages memory of its own.
//!
//! To add one: a folder with a type that implements `Engine`, a variant of [`WalkedRuntime`] with
//! its arm in [`walk`], and the runtimes that contain it in [`walked_as`].

pub(crate) mod interface;

use lowtide_model::ledger::WalkedRuntime;
use lowtide_model::runtime_kind::RuntimeKind;

use crate::blocks::Visitor;
use crate::memory::Memory;
use crate::pymalloc::CPython;
use crate::v8::V8;
use interface::Engine;
pub use interface::{EngineDetail, EnginePlaces, WalkedEngine};

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

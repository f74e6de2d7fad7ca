//! The heaps of engines: runtimes that manage memory of their own, in the terms of their own
//! statistics.

use serde::{Deserialize, Serialize};

use crate::ledger::WalkedRuntime;

/// The name of the space that stands for parts which belong to no space: V8 keeps freed chunks in a
/// pool, which none of its own statistics has.
pub const POOL: &str = "pool";

/// The walked heap of an engine, by space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineHeap {
    /// The engine.
    pub engine: WalkedRuntime,
    /// The oldest version of the engine whose structures are those of this heap.
    pub version: String,
    /// Number of instances of the engine in the process (isolates of V8).
    pub instances: u64,
    /// The spaces of all instances.
    pub spaces: Vec<EngineSpace>,
}

/// A space of the heap of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSpace {
    /// The instance, from 0 on.
    pub instance: u64,
    /// Its name, as the engine's own statistics have it; [`POOL`] for parts of no space.
    pub name: String,
    /// Number of its parts (chunks of V8).
    pub parts: u64,
    /// Size of its parts in bytes, resident or not.
    pub committed_bytes: u64,
    /// Bytes in use, resident or not, as far as the parts could be read.
    pub used_bytes: u64,
    /// Resident bytes.
    pub resident_bytes: u64,
    /// Resident bytes in use.
    pub allocated_bytes: u64,
    /// Resident bytes that are free.
    pub free_bytes: u64,
    /// Resident bytes of parts that could not be read.
    pub unknown_bytes: u64,
}

impl EngineHeap {
    /// Returns a sum over the spaces with a name.
    pub fn sum_of(&self, name: &str, of: impl Fn(&EngineSpace) -> u64) -> u64 {
        self.spaces.iter().filter(|space| space.name == name).map(of).sum()
    }
}

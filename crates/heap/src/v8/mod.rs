//! The heap of V8: Node.js, Deno, and other programs that contain it.
//!
//! V8 maps chunks at multiples of 256 KiB, and describes each in its head or in a record outside.
//! A chunk names its space, and the space names the heap of its isolate, which the chunk names as
//! well. The space has its bytes, and a list of its chunks. A description that fits all of these
//! proves a chunk. No other memory was found that does.
//!
//! - `version`: the places of the fields in each version.
//! - `chunk`: chunks.
//! - `space`: spaces, and the areas from which threads allocate.
//! - `uses`: what each chunk holds.
//! - `tally`: the sums, in the terms of `v8.getHeapSpaceStatistics()`.
//!
//! | memory | in use | free |
//! |---|---|---|
//! | the half of the new space that is allocated from | up to the allocation area | the rest |
//! | its other half | nothing | all |
//! | chunks of large objects | the object | nothing |
//! | other chunks in the list of their space | V8's count, without the allocation area | the rest |
//! | chunks that no list has: the pool of freed chunks | nothing | all |
//!
//! A chunk is in the pool only if the list of its space was read completely: its bytes are those
//! that the space counts. Memory whose descriptions contradict each other counts as unknown. Builds
//! with V8's sandbox have no addresses in their chunks, and are not found.

mod chunk;
mod space;
mod tally;
mod uses;
mod version;

use crate::blocks::{BlockCollector, Visitor};
use crate::engine::interface::{Engine, EnginePlaces, WalkedEngine};
use crate::memory::{Memory, resident_places};
use crate::rewalk::least_torn;
use chunk::{ALIGNMENT, Chunk};
use space::Space;
use std::collections::{HashMap, HashSet};
use tally::Tally;
use version::{VERSIONS, Version};

/// Maximum number of chunks: 128 GiB.
const MAX_CHUNKS: usize = 1 << 19;
/// Maximum number of spaces: of about 1000 isolates.
const MAX_SPACES: usize = 1 << 14;
/// Maximum number of places that are tried to find the version.
const MAX_TRIED: usize = 1 << 14;

/// The engine V8.
pub(crate) enum V8 {}

impl Engine for V8 {
    fn walk(
        memory: &impl Memory,
        places: &EnginePlaces<'_>,
        visitor: Visitor<'_>,
    ) -> Option<WalkedEngine> {
        let version = version(memory, places)?;
        let walk = |_: BlockCollector<'_>| Tally::new(memory, Heap::read(memory, version, places));
        Some(least_torn(memory, visitor, walk, Tally::torn_share).into_walked())
    }
}

/// Returns the version of V8, by the first space that proves one.
fn version(memory: &impl Memory, places: &EnginePlaces<'_>) -> Option<&'static Version> {
    let ranges = places.private.iter();
    let all = ranges.flat_map(|range| resident_places(memory, range, ALIGNMENT));
    let mut tried = HashSet::new();
    all.take(MAX_TRIED).find_map(|at| {
        VERSIONS.iter().find(|version| {
            let chunk = Chunk::read(memory, version, at, places.reserved);
            let new = chunk.filter(|chunk| tried.insert((version.name, chunk.owner)));
            let space = new.and_then(|chunk| {
                let space = Space::read(memory, version, chunk.owner)?;
                (space.heap == chunk.heap).then_some(space)
            });
            space.is_some_and(|space| space.proves_version(memory, version))
        })
    })
}

/// The chunks and spaces of all isolates of a process.
struct Heap {
    version: &'static Version,
    /// In order of address, disjoint.
    chunks: Vec<Chunk>,
    /// By address.
    spaces: HashMap<u64, Space>,
}

impl Heap {
    fn read(memory: &impl Memory, version: &'static Version, places: &EnginePlaces<'_>) -> Self {
        let mut heap = Self { version, chunks: Vec::new(), spaces: HashMap::new() };
        let mut end = 0;
        'ranges: for range in places.private {
            for at in resident_places(memory, range, ALIGNMENT) {
                if heap.chunks.len() >= MAX_CHUNKS {
                    break 'ranges;
                }
                // A large object has no chunks in it.
                if at >= end
                    && let Some(chunk) = Chunk::read(memory, version, at, places.reserved)
                    && (chunk.is_read_only() || heap.has_space(memory, &chunk))
                {
                    end = chunk.range.end;
                    heap.chunks.push(chunk);
                }
            }
        }
        heap
    }

    /// Returns whether the space of a chunk is of the same isolate, and reads it if it is new.
    fn has_space(&mut self, memory: &impl Memory, chunk: &Chunk) -> bool {
        if !self.spaces.contains_key(&chunk.owner)
            && self.spaces.len() < MAX_SPACES
            && let Some(space) = Space::read(memory, self.version, chunk.owner)
            && space.heap == chunk.heap
        {
            self.spaces.insert(chunk.owner, space);
        }
        self.spaces.get(&chunk.owner).is_some_and(|space| space.heap == chunk.heap)
    }

    /// Returns the addresses of the heaps of all isolates, in order.
    fn isolates(&self) -> Vec<u64> {
        let mut heaps: Vec<u64> = self.spaces.values().map(|space| space.heap).collect();
        heaps.sort_unstable();
        heaps.dedup();
        heaps
    }
}

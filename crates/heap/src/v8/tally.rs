//! Sums over the chunks, in the terms of `v8.getHeapSpaceStatistics()`.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_model::engine::{EngineHeap, EngineSpace, POOL};
use lowtide_model::ledger::{Ledger, Owner, State, WalkedRuntime};

use super::Heap;
use super::chunk::Chunk;
use super::uses::{Use, uses};
use super::version::READ_ONLY;
use crate::engine::interface::{EngineDetail, WalkedEngine};
use crate::memory::Memory;
use crate::ranges::joined;
use crate::residency::Residency;

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Tally {
    version: &'static str,
    /// By isolate and name of the space.
    spaces: BTreeMap<(u64, &'static str), EngineSpace>,
    areas: Vec<Range<u64>>,
    /// Resident bytes of descriptions at the head of chunks, and of remainders of pages.
    metadata_bytes: u64,
}

impl Tally {
    pub(super) fn new(memory: &impl Memory, heap: Heap) -> Self {
        let uses = uses(memory, &heap);
        let mut tally = Self { version: heap.version.name, ..Self::default() };
        let mut residency = Residency::new(memory);
        let isolates = heap.isolates();
        for (chunk, used) in heap.chunks.iter().zip(uses) {
            let space = heap.spaces.get(&chunk.owner);
            let isolate = isolates.binary_search(&chunk.heap).unwrap_or(0) as u64;
            let name = space.map_or(READ_ONLY, |space| space.name);
            tally.add(&mut residency, chunk, &used, (isolate, name));
        }
        tally.areas = joined(heap.chunks.into_iter().map(|chunk| chunk.range).collect());
        tally
    }

    fn add<M: Memory>(
        &mut self,
        residency: &mut Residency<'_, M>,
        chunk: &Chunk,
        used: &Use,
        (isolate, name): (u64, &'static str),
    ) {
        let name = if matches!(used, Use::Pooled) { POOL } else { name };
        let space = self.spaces.entry((isolate, name)).or_default();
        let resident = residency.bytes(chunk.range.clone());
        let in_area = residency.bytes(chunk.area.clone()).min(resident);
        space.parts += 1;
        space.committed_bytes += chunk.bytes();
        space.resident_bytes += resident;
        let (used_bytes, allocated) = match used {
            Use::Bytes(bytes) => (*bytes, in_area.min(*bytes)),
            Use::UpTo(end) => {
                let objects = chunk.area.start..*end;
                (end - chunk.area.start, residency.bytes(objects).min(in_area))
            }
            Use::Pooled => {
                space.free_bytes += resident;
                return;
            }
            Use::Unknown => {
                space.unknown_bytes += resident;
                return;
            }
        };
        space.used_bytes += used_bytes;
        space.allocated_bytes += allocated;
        space.free_bytes += in_area - allocated;
        self.metadata_bytes += resident - in_area;
    }

    /// Returns the share of the memory whose use is unknown.
    pub(super) fn torn_share(&self) -> f64 {
        let sum = |of: fn(&EngineSpace) -> u64| self.spaces.values().map(of).sum::<u64>();
        let unknown = sum(|space| space.unknown_bytes);
        unknown as f64 / sum(|space| space.resident_bytes).max(1) as f64
    }

    pub(super) fn into_walked(self) -> WalkedEngine {
        let sum = |of: fn(&EngineSpace) -> u64| self.spaces.values().map(of).sum::<u64>();
        let mut ledger = Ledger::default();
        let unknown_bytes = sum(|space| space.unknown_bytes);
        let rows = [
            (State::Allocated, sum(|space| space.allocated_bytes)),
            (State::Free, sum(|space| space.free_bytes)),
            (State::Unknown, unknown_bytes),
        ];
        for (state, bytes) in rows {
            ledger.add_walked(WalkedRuntime::V8, state, bytes);
        }
        ledger.add(Owner::Metadata, self.metadata_bytes);
        let isolates = self.spaces.keys().map(|(isolate, _)| isolate + 1).max().unwrap_or(0);
        let named = |((instance, name), space): ((u64, &str), EngineSpace)| EngineSpace {
            instance,
            name: name.to_owned(),
            ..space
        };
        let detail = EngineDetail::Spaces(EngineHeap {
            engine: WalkedRuntime::V8,
            version: self.version.to_owned(),
            instances: isolates,
            spaces: self.spaces.into_iter().map(named).collect(),
        });
        WalkedEngine { ledger, unwalked_bytes: unknown_bytes, areas: self.areas, detail }
    }
}

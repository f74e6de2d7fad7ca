//! What each chunk holds, by the lists of the spaces and by the areas from which threads allocate.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

use super::Heap;
use super::chunk::{ALIGNMENT, Chunk};
use super::space::{AllocationAreas, Space};
use super::version::{OLD, READ_ONLY};
use crate::memory::Memory;

/// What a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Objects of this many bytes, anywhere in it.
    Bytes(u64),
    /// Objects up to this address.
    UpTo(u64),
    /// Nothing, and it belongs to no space: it is in the pool.
    Pooled,
    /// Its descriptions contradict each other.
    Unknown,
}

/// Returns what each chunk of a heap holds.
pub(super) fn uses(memory: &impl Memory, heap: &Heap) -> Vec<Use> {
    let mut uses: Vec<Use> =
        heap.chunks.iter().map(|chunk| of_chunk(chunk, heap.spaces.get(&chunk.owner))).collect();
    let lists = lists(heap);
    for (owner, space) in &heap.spaces {
        let Some(list) = lists.get(owner).filter(|_| space.name != READ_ONLY) else { continue };
        list.others.iter().for_each(|place| {
            uses[*place] = if list.is_complete { Use::Pooled } else { Use::Unknown };
        });
    }
    for isolate in heap.isolates() {
        of_isolate(memory, heap, isolate, &lists, &mut uses);
    }
    uses
}

/// Returns what a chunk holds by its own description.
fn of_chunk(chunk: &Chunk, space: Option<&Space>) -> Use {
    let area_bytes = chunk.area.end - chunk.area.start;
    let Some(space) = space.filter(|space| space.name != READ_ONLY) else {
        return Use::Bytes(chunk.allocated_bytes.min(area_bytes));
    };
    let is_young = chunk.is_evacuated() || chunk.is_allocated_from();
    let is_large = chunk.bytes() > ALIGNMENT;
    if is_young != space.name.starts_with("new_") || (is_large && !space.is_of_large_objects()) {
        Use::Unknown
    } else if space.is_of_large_objects() {
        Use::Bytes(area_bytes)
    } else if space.is_new() {
        // The half that was evacuated holds nothing.
        if chunk.is_evacuated() { Use::UpTo(chunk.area.start) } else { Use::Unknown }
    } else {
        Use::Bytes(chunk.allocated_bytes.min(area_bytes))
    }
}

/// The chunks of a space, by their places.
#[derive(Debug, Default)]
struct Chunks {
    /// Those in its list, in its order.
    listed: Vec<usize>,
    /// Those that name it as their space, and are not in its list.
    others: Vec<usize>,
    /// Whether its list has as many bytes as the space counts.
    is_complete: bool,
}

/// Returns the chunks of each space.
fn lists(heap: &Heap) -> HashMap<u64, Chunks> {
    let chunks = &heap.chunks;
    let places: HashMap<u64, usize> =
        chunks.iter().enumerate().map(|(place, chunk)| (chunk.described_at, place)).collect();
    let mut lists: HashMap<u64, Chunks> = HashMap::new();
    let mut is_listed = vec![false; chunks.len()];
    for (owner, space) in &heap.spaces {
        let list = lists.entry(*owner).or_default();
        let mut next = space.ends[0];
        while let Some(place) = places.get(&next).copied()
            && chunks[place].owner == *owner
            && !is_listed[place]
        {
            is_listed[place] = true;
            list.listed.push(place);
            next = chunks[place].next;
        }
        let bytes: u64 = list.listed.iter().map(|place| chunks[*place].bytes()).sum();
        list.is_complete = bytes == space.committed_bytes;
    }
    for (place, chunk) in chunks.iter().enumerate().filter(|(place, _)| !is_listed[*place]) {
        if let Some(list) = lists.get_mut(&chunk.owner) {
            list.others.push(place);
        }
    }
    lists
}

/// Adds what the areas of an isolate's thread say: how far its new space is filled, and which part
/// of its old space it has taken, but not filled.
fn of_isolate(
    memory: &impl Memory,
    heap: &Heap,
    isolate: u64,
    lists: &HashMap<u64, Chunks>,
    uses: &mut [Use],
) {
    let chunks = &heap.chunks;
    let of_isolate = || heap.spaces.iter().filter(|(_, space)| space.heap == isolate);
    // Of the two halves, the one that is allocated from.
    let young = of_isolate().filter(|(_, space)| space.is_new()).find_map(|(owner, space)| {
        let listed = &lists.get(owner)?.listed;
        let place = listed.iter().position(|place| {
            let chunk = &chunks[*place];
            chunk.described_at == space.current && chunk.is_allocated_from()
        })?;
        Some((space, listed, place))
    });
    let current = young.map(|(_, listed, place)| &chunks[listed[place]].area);
    let place_of = |address: u64| {
        let place = chunks.partition_point(|chunk| chunk.range.end <= address);
        let chunk = chunks.get(place).filter(|chunk| chunk.area.contains(&address))?;
        let space = heap.spaces.get(&chunk.owner)?;
        (space.name == OLD && space.heap == isolate).then_some(place)
    };
    let areas =
        AllocationAreas::find(memory, isolate, current, |address| place_of(address).is_some());
    if let Some((space, listed, place)) = young {
        let end = end_of_objects(&chunks[listed[place]].area, space, areas.young.as_ref());
        for (order, chunk) in listed.iter().enumerate() {
            let area = &chunks[*chunk].area;
            uses[*chunk] = match order.cmp(&place) {
                Ordering::Less => Use::UpTo(area.end),
                Ordering::Equal => end.map_or(Use::Unknown, Use::UpTo),
                Ordering::Greater => Use::UpTo(area.start),
            };
        }
    }
    if let Some(area) = areas.old
        && let Some(place) = place_of(area.start.min(area.end.saturating_sub(1)))
        && let Use::Bytes(bytes) = &mut uses[place]
    {
        *bytes = bytes.saturating_sub(area.end - area.start);
    }
}

/// Returns the end of the objects in the chunk of the new space that is allocated from.
fn end_of_objects(area: &Range<u64>, space: &Space, own: Option<&Range<u64>>) -> Option<u64> {
    let taken = space.allocation_top.filter(|top| area.start <= *top && *top <= area.end);
    own.map(|own| own.start).or(taken)
}

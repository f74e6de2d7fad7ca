//! The heap of CPython's own allocator (`Objects/obmalloc.c`), 3.8 and newer.
//!
//! It serves requests of at most 512 bytes, from arenas that it cuts into pools. A pool has blocks
//! of one size. An arena is returned to the kernel when all of its pools are free.
//!
//! - `pool`: the header of a pool, by which a pool is recognised.
//! - `arenas`: the array of arenas.
//! - `tally`: the sums, in the terms of `sys._debugmallocstats()`.
//!
//! The array of an interpreter with its own arenas (3.12 and newer,
//! `PyInterpreterConfig.use_main_obmalloc` 0) is not found. [`pools`] finds its pools.

mod arenas;
pub mod objects;
mod pool;
mod tally;

use std::ops::Range;

use crate::blocks::{BlockCollector, Visitor};
use crate::engine::interface::{Engine, EnginePlaces, WalkedEngine};
use crate::memory::Memory;
use crate::ranges::{gaps, joined};
use crate::residency::Residency;
use crate::rewalk::least_torn;
use crate::rooms::RoomKind;
use arenas::{Arena, Arenas};
use pool::{HEAD, POOLS_IN_ARENA, Pool};
pub use tally::{Heap, SizeClass};

/// Maximum number of times that an inconsistent pool is read again.
const REREADS: u32 = 3;

/// Returns the pools in some ranges of anonymous memory, in order, adjacent ones merged. Pools that
/// were never used are not resident, and are left out.
pub fn pools(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    pool::each(memory, anonymous, |at, pool| {
        found.push(at..at + pool.bytes);
        true
    });
    joined(found)
}

/// The engine CPython.
pub(crate) enum CPython {}

impl Engine for CPython {
    fn walk(
        memory: &impl Memory,
        places: &EnginePlaces<'_>,
        visitor: Visitor<'_>,
    ) -> Option<WalkedEngine> {
        // The array of arenas is on the heap of malloc. CPython maps its arenas.
        let layout = Layout::find(memory, places.data, places.heaps, places.mapped)?;
        Some(walk(memory, &layout, places.mapped, visitor).into_walked())
    }
}

/// The place of the array of arenas.
#[derive(Debug)]
pub struct Layout {
    arenas: Arenas,
}

impl Layout {
    /// Finds the array of arenas. `data` is the writable data of the file that contains CPython.
    /// The array is in one of `heaps`, the private writable anonymous mappings. The arenas are in
    /// `anonymous`, the part of these mappings without another owner. Both are in order, adjacent
    /// ones merged.
    pub fn find(
        memory: &impl Memory,
        data: &[Range<u64>],
        heaps: &[Range<u64>],
        anonymous: &[Range<u64>],
    ) -> Option<Self> {
        Arenas::find(memory, data, heaps, anonymous).map(|arenas| Self { arenas })
    }
}

/// Walks the arenas that are in `anonymous`.
pub fn walk(
    memory: &impl Memory,
    layout: &Layout,
    anonymous: &[Range<u64>],
    visitor: Visitor<'_>,
) -> Heap {
    let walk = |mut blocks: BlockCollector<'_>| walk_once(memory, layout, anonymous, &mut blocks);
    least_torn(memory, visitor, walk, Heap::torn_share)
}

fn walk_once(
    memory: &impl Memory,
    layout: &Layout,
    anonymous: &[Range<u64>],
    blocks: &mut BlockCollector<'_>,
) -> Heap {
    let arenas = layout.arenas.read(memory, anonymous);
    let mut heap = Heap::new(layout.arenas.pool_bytes);
    let mut residency = Residency::new(memory);
    for arena in &arenas {
        walk_arena(memory, &mut residency, arena, &mut heap, blocks);
    }
    heap.areas = joined(arenas.into_iter().map(|arena| arena.range).collect());
    heap
}

fn walk_arena<M: Memory>(
    memory: &M,
    residency: &mut Residency<'_, M>,
    arena: &Arena,
    heap: &mut Heap,
    blocks: &mut BlockCollector<'_>,
) {
    let bytes = heap.pool_bytes;
    let mut sums = heap.begin_arena();
    let pools = arena.first_pool..arena.first_pool + arena.pools * bytes;
    for at in pools.clone().step_by(bytes as usize) {
        let resident_bytes = residency.bytes(at..at + bytes);
        if at >= arena.next_pool {
            // The pool was never used, or belonged to an earlier arena at this place.
            heap.add_free_pool(resident_bytes);
            continue;
        }
        let is_resident = residency.bytes(at..at + HEAD) == HEAD;
        let read = || Pool::read(memory, at).filter(|p| p.bytes == bytes && p.arena == arena.index);
        match (0..=REREADS).find_map(|_| is_resident.then(read).flatten()) {
            Some(pool) if pool.used_blocks == 0 => heap.add_free_pool(resident_bytes),
            Some(pool) => {
                heap.add_pool(&pool, resident_bytes, &mut sums);
                collect(memory, at, &pool, blocks);
            }
            None => {
                heap.add_torn_pool(resident_bytes);
                blocks.unknown(at..at + bytes);
            }
        }
    }
    let outside = gaps(std::iter::once(arena.range.clone()), &[pools]);
    heap.end_arena(sums, residency.bytes_in(&outside));
    blocks.room(RoomKind::CPythonArena, arena.range.clone());
}

/// Collects the blocks in use of a pool.
fn collect(memory: &impl Memory, at: u64, pool: &Pool, blocks: &mut BlockCollector<'_>) {
    if !blocks.is_on() {
        return;
    }
    let pool_range = at..at + pool.bytes;
    match (0..=REREADS).find_map(|_| Pool::read(memory, at)?.free_blocks(memory, at)) {
        Some((pool, free)) => {
            let start = at + HEAD;
            blocks.row(memory, start, pool.block_bytes, pool.carved_blocks, |index| {
                free.binary_search(&(start + index * pool.block_bytes)).is_err()
            });
        }
        None => blocks.unknown(pool_range),
    }
}

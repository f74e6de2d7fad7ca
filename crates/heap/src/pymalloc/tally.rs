//! Sums over the pools, in the terms of `sys._debugmallocstats()`.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_model::inspection::{CPythonHeap, CPythonSizeClass};
use lowtide_model::ledger::{Ledger, Owner, State, WalkedRuntime};

use super::POOLS_IN_ARENA;
use super::pool::{HEAD, Pool};
use crate::engine::interface::{EngineDetail, WalkedEngine};

/// Share of an arena in use below which it counts as mostly free.
const MOSTLY_FREE: f64 = 0.25;

/// A walked heap.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    /// Bytes of a pool.
    pub pool_bytes: u64,
    /// Number of arenas.
    pub arenas: u64,
    /// Number of arenas of which less than a quarter is in use.
    pub mostly_free_arenas: u64,
    /// Number of pools in use.
    pub used_pools: u64,
    /// Number of pools without a block in use, those that were never used included.
    pub free_pools: u64,
    /// Number of pools that could not be read.
    pub torn_pools: u64,
    /// The size classes, by bytes of a block.
    pub sizes: BTreeMap<u64, SizeClass>,
    /// The resident part of the heap.
    pub resident: Resident,
    /// The addresses of the heap, in order and disjoint.
    pub areas: Vec<Range<u64>>,
}

/// The pools with blocks of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SizeClass {
    /// Number of pools in use.
    pub pools: u64,
    /// Number of blocks in use.
    pub used_blocks: u64,
    /// Number of free blocks in these pools.
    pub free_blocks: u64,
    /// Number of arenas with a block of this size in use.
    pub arenas: u64,
    /// Number of mostly free arenas with a block of this size in use.
    pub mostly_free_arenas: u64,
}

/// Resident bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Blocks in use.
    pub allocated_bytes: u64,
    /// Free blocks in pools that have blocks in use.
    pub free_block_bytes: u64,
    /// Pools without a block in use.
    pub free_pool_bytes: u64,
    /// Heads of pools, and room that is smaller than a block or a pool.
    pub overhead_bytes: u64,
    /// Pools that could not be read.
    pub unknown_bytes: u64,
}

/// Sums over an arena.
#[derive(Debug, Default)]
pub(super) struct OfArena {
    allocated_bytes: u64,
    sizes: Vec<u64>,
}

impl Heap {
    pub(super) fn new(pool_bytes: u64) -> Self {
        Self { pool_bytes, ..Self::default() }
    }

    /// Returns the size of an arena, in bytes.
    pub fn arena_bytes(&self) -> u64 {
        Pool::arena_bytes(self.pool_bytes)
    }

    /// Returns the size of the blocks in use in bytes, resident or not.
    pub fn allocated_bytes(&self) -> u64 {
        self.sizes.iter().map(|(bytes, size)| bytes * size.used_blocks).sum()
    }

    /// Returns the size of the free blocks in pools that have blocks in use in bytes, resident or
    /// not.
    pub fn free_block_bytes(&self) -> u64 {
        self.sizes.iter().map(|(bytes, size)| bytes * size.free_blocks).sum()
    }

    /// Returns the share of pools that could not be read.
    pub(super) fn torn_share(&self) -> f64 {
        self.torn_pools as f64 / (self.arenas * POOLS_IN_ARENA).max(1) as f64
    }

    /// Returns the heap in the terms that all engines share.
    pub(super) fn into_walked(self) -> WalkedEngine {
        let resident = &self.resident;
        let rows = [
            (State::Allocated, resident.allocated_bytes),
            (State::Free, resident.free_block_bytes + resident.free_pool_bytes),
            (State::Unknown, resident.unknown_bytes),
        ];
        let mut ledger = Ledger::default();
        for (state, bytes) in rows {
            ledger.add_walked(WalkedRuntime::CPython, state, bytes);
        }
        ledger.add(Owner::Metadata, resident.overhead_bytes);
        WalkedEngine {
            ledger,
            unwalked_bytes: self.torn_pools * self.pool_bytes,
            detail: EngineDetail::CPython(self.described()),
            areas: self.areas,
        }
    }

    /// Returns the heap in the terms of `sys._debugmallocstats()`.
    fn described(&self) -> CPythonHeap {
        let size = |(block_bytes, size): (&u64, &SizeClass)| CPythonSizeClass {
            block_bytes: *block_bytes,
            pools: size.pools,
            used_blocks: size.used_blocks,
            free_blocks: size.free_blocks,
            arenas: size.arenas,
            mostly_free_arenas: size.mostly_free_arenas,
        };
        CPythonHeap {
            arenas: self.arenas,
            arena_bytes: self.arena_bytes(),
            mostly_free_arenas: self.mostly_free_arenas,
            pool_bytes: self.pool_bytes,
            used_pools: self.used_pools,
            free_pools: self.free_pools,
            allocated_bytes: self.allocated_bytes(),
            free_block_bytes: self.free_block_bytes(),
            sizes: self.sizes.iter().map(size).collect(),
        }
    }

    pub(super) fn begin_arena(&mut self) -> OfArena {
        self.arenas += 1;
        OfArena::default()
    }

    pub(super) fn add_free_pool(&mut self, resident_bytes: u64) {
        self.free_pools += 1;
        self.resident.free_pool_bytes += resident_bytes;
    }

    pub(super) fn add_torn_pool(&mut self, resident_bytes: u64) {
        self.torn_pools += 1;
        self.resident.unknown_bytes += resident_bytes;
    }

    pub(super) fn add_pool(&mut self, pool: &Pool, resident_bytes: u64, arena: &mut OfArena) {
        self.used_pools += 1;
        let allocated_bytes = pool.used_blocks * pool.block_bytes;
        let size = self.sizes.entry(pool.block_bytes).or_default();
        size.pools += 1;
        size.used_blocks += pool.used_blocks;
        size.free_blocks += pool.capacity() - pool.used_blocks;
        arena.allocated_bytes += allocated_bytes;
        if !arena.sizes.contains(&pool.block_bytes) {
            arena.sizes.push(pool.block_bytes);
        }
        // A page of a pool that no block has needed yet is not resident.
        let mut left = resident_bytes;
        let mut take = |bytes: u64| {
            let taken = bytes.min(left);
            left -= taken;
            taken
        };
        let head = take(HEAD);
        let allocated = take(allocated_bytes);
        let free = take((pool.capacity() - pool.used_blocks) * pool.block_bytes);
        self.resident.overhead_bytes += head + left;
        self.resident.allocated_bytes += allocated;
        self.resident.free_block_bytes += free;
    }

    /// Ends an arena. `outside_bytes` are resident, and belong to no pool.
    pub(super) fn end_arena(&mut self, arena: OfArena, outside_bytes: u64) {
        self.resident.overhead_bytes += outside_bytes;
        let share = arena.allocated_bytes as f64 / self.arena_bytes() as f64;
        let is_mostly_free = share < MOSTLY_FREE;
        self.mostly_free_arenas += u64::from(is_mostly_free);
        for bytes in arena.sizes {
            let size = self.sizes.entry(bytes).or_default();
            size.arenas += 1;
            size.mostly_free_arenas += u64::from(is_mostly_free);
        }
    }
}

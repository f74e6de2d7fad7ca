//! A pool: a header (`struct pool_header`), and blocks of one size.

use std::ops::Range;

use crate::memory::{ADDRESS_END, Memory, half_in, word_in};

/// Bytes of a pool's head (`POOL_OVERHEAD`).
pub(super) const HEAD: u64 = 48;
/// Unit of the size of a block, in bytes (`ALIGNMENT`). The maximum is [`LARGEST`]
/// (`SMALL_REQUEST_THRESHOLD`).
const UNIT: u64 = 16;
const LARGEST: u64 = 512;
/// Size and alignment of a pool, in bytes: up to 3.9, and from 3.10 on.
pub(super) const SIZES: [u64; 2] = [4 << 10, 16 << 10];
/// Maximum number of pools of an arena (`MAX_POOLS_IN_ARENA`): arenas have 256 KiB up to 3.9, and 1
/// MiB from 3.10 on.
pub(super) const POOLS_IN_ARENA: u64 = 64;

/// A pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pool {
    /// Its size in bytes: one of [`SIZES`].
    pub(super) bytes: u64,
    /// Bytes of a block.
    pub(super) block_bytes: u64,
    /// Number of blocks in use.
    pub(super) used_blocks: u64,
    /// Index of its arena in the array of arenas.
    pub(super) arena: u64,
    /// Number of blocks that have been in use at least once (`nextoffset`).
    pub(super) carved_blocks: u64,
    /// The first block of the list of free ones (`freeblock`); 0 if there is none.
    first_free: u64,
}

impl Pool {
    /// Reads a pool. Returns `None` if no pool begins at this address.
    pub(super) fn read(memory: &impl Memory, at: u64) -> Option<Self> {
        if !at.is_multiple_of(SIZES[0]) {
            return None;
        }
        let mut head = [0; HEAD as usize];
        (memory.read_resident(at, &mut head) == head.len()).then_some(())?;
        Self::parse(&head, at)
    }

    /// Parses a head: `ref.count`, `freeblock`, `nextpool`, `prevpool`, `arenaindex`, `szidx`,
    /// `nextoffset`, `maxnextoffset`.
    fn parse(head: &[u8], at: u64) -> Option<Self> {
        let (count, free) = (half_in(head, 0)?, word_in(head, 8)?);
        let (next, previous) = (word_in(head, 16)?, word_in(head, 24)?);
        let half = |place: usize| Some(u64::from(half_in(head, place)?));
        let (arena, class, offset, last) = (half(32)?, half(36)?, half(40)?, half(44)?);
        let block = (class + 1) * UNIT;
        if block > LARGEST || arena >= 1 << 24 {
            return None;
        }
        let bytes = SIZES.into_iter().find(|bytes| {
            let is_free_block = free == 0 || (at + HEAD..at + bytes).contains(&free);
            at.is_multiple_of(*bytes)
                && last == bytes - block
                && offset >= HEAD + block
                && offset <= last + block
                && (offset - HEAD).is_multiple_of(block)
                && u64::from(count) <= (offset - HEAD) / block
                && is_free_block
                && [next, previous].iter().all(|pool| pool.is_multiple_of(8) && *pool < ADDRESS_END)
        })?;
        Some(Self {
            bytes,
            block_bytes: block,
            used_blocks: u64::from(count),
            arena,
            carved_blocks: (offset - HEAD) / block,
            first_free: free,
        })
    }

    /// Returns the pool with the addresses of its free blocks among those that were in use, in
    /// order, or `None` if the length of its list of free blocks does not agree with its head.
    pub(super) fn free_blocks(self, memory: &impl Memory, at: u64) -> Option<(Self, Vec<u64>)> {
        let mut bytes = vec![0; self.bytes as usize];
        let length = memory.read(at, &mut bytes);
        let count = self.carved_blocks.checked_sub(self.used_blocks)?;
        let (mut free, mut next) = (Vec::with_capacity(count as usize), self.first_free);
        while next != 0 {
            let place = next.checked_sub(at + HEAD).filter(|p| p % self.block_bytes == 0)?;
            if place / self.block_bytes >= self.carved_blocks || free.len() as u64 >= count {
                return None;
            }
            free.push(next);
            next = word_in(&bytes[..length], (next - at) as usize)?;
        }
        free.sort_unstable();
        (free.len() as u64 == count).then_some((self, free))
    }

    /// Returns the number of blocks that fit.
    pub(super) fn capacity(&self) -> u64 {
        (self.bytes - HEAD) / self.block_bytes
    }

    /// Returns the bytes of an arena with such pools (`ARENA_SIZE`).
    pub(super) fn arena_bytes(pool_bytes: u64) -> u64 {
        pool_bytes * POOLS_IN_ARENA
    }
}

/// Calls `each` for the pools in some resident memory, in order, until it returns `false`.
pub(super) fn each(
    memory: &impl Memory,
    anonymous: &[Range<u64>],
    mut each: impl FnMut(u64, Pool) -> bool,
) {
    for range in anonymous {
        for run in memory.resident(range.clone()) {
            let mut at = run.start.max(range.start);
            while at < run.end {
                at = match Pool::read(memory, at).filter(|pool| at + pool.bytes <= range.end) {
                    Some(pool) => {
                        if !each(at, pool) {
                            return;
                        }
                        at + pool.bytes
                    }
                    None => at + memory.page_bytes(),
                };
            }
        }
    }
}

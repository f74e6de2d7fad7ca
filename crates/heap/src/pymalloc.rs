//! Where the memory of CPython's own allocator is (`Objects/obmalloc.c`).
//!
//! It cuts arenas into pools, each of which serves blocks of one size and begins with a head that says so. Pools
//! are recognised by their heads: what else a program maps has none.

use std::ops::Range;

use crate::memory::{Memory, half_in, word_in};

/// A pool's head in bytes (`POOL_OVERHEAD`).
const HEAD: u64 = 48;
/// Blocks are a multiple of so many bytes, and have at most so many (`ALIGNMENT`,
/// `SMALL_REQUEST_THRESHOLD`).
const UNIT: u64 = 16;
const LARGEST: u64 = 512;
/// Bytes of a pool, at a multiple of which it begins: up to 3.9, and from 3.10 on.
const POOLS: [u64; 2] = [4 << 10, 16 << 10];

/// The pools in some ranges of anonymous memory, in order, neighbours joined; those that were never used are
/// not resident, and are left out.
pub fn pools(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in anonymous {
        for run in memory.resident(range.clone()) {
            let mut at = run.start.max(range.start);
            while at < run.end {
                at = match pool(memory, at).filter(|bytes| at + bytes <= range.end) {
                    Some(bytes) => {
                        match found.last_mut().filter(|last| last.end == at) {
                            Some(last) => last.end = at + bytes,
                            None => found.push(at..at + bytes),
                        }
                        at + bytes
                    }
                    None => at + memory.page_bytes(),
                };
            }
        }
    }
    found
}

/// The bytes of a pool, if one begins here.
fn pool(memory: &impl Memory, at: u64) -> Option<u64> {
    if !at.is_multiple_of(POOLS[0]) {
        return None;
    }
    let mut head = [0; HEAD as usize];
    (memory.read_resident(at, &mut head) == head.len()).then_some(())?;
    // `ref.count`, `freeblock`, `nextpool`, `prevpool`, `arenaindex`, `szidx`, `nextoffset`, `maxnextoffset`.
    let (count, free) = (half_in(&head, 0)?, word_in(&head, 8)?);
    let (next, previous) = (word_in(&head, 16)?, word_in(&head, 24)?);
    let half = |place: usize| Some(u64::from(half_in(&head, place)?));
    let (arena, class, offset, last) = (half(32)?, half(36)?, half(40)?, half(44)?);
    let block = (class + 1) * UNIT;
    if block > LARGEST || arena >= 1 << 24 {
        return None;
    }
    POOLS.into_iter().find(|bytes| {
        let most = (bytes - HEAD) / block;
        let is_free_block = free == 0 || (at + HEAD..at + bytes).contains(&free);
        at.is_multiple_of(*bytes)
            && last == bytes - block
            && offset >= HEAD + block
            && offset <= last + block
            && (offset - HEAD).is_multiple_of(block)
            && u64::from(count) <= most
            && is_free_block
            && [next, previous].iter().all(|pool| pool.is_multiple_of(8) && *pool < 1 << 47)
    })
}

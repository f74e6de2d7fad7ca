//! The array of arenas (`struct arena_object`), which a variable of CPython points to: `arenas` up
//! to 3.11, and `_obmalloc_mgmt.arenas` from 3.12 on. The array is recognised by the pools: the
//! arena with the index in a pool's head is the one that contains the pool.

use std::collections::HashSet;
use std::ops::Range;

use super::pool::{self, POOLS_IN_ARENA, Pool};
use crate::memory::{ADDRESS_END, Memory, each_word, half_in, word_in};
use crate::ranges::hold;
use crate::scattered::Scattered;

/// Bytes of `struct arena_object`: `address`, `pool_address`, `nfreepools`, `ntotalpools`,
/// `freepools`, `nextarena`, `prevarena`.
const ENTRY: u64 = 48;
/// Maximum number of entries that are read: arenas for 1 TiB.
const MAX_ENTRIES: u64 = 1 << 20;
/// Number of pools, of different arenas, that an array is compared with.
const SAMPLES: usize = 8;
/// Number of bytes that are searched for pools at once.
const WINDOW: u64 = 1 << 20;
/// Maximum number of words that are tried as the address of the array.
const MAX_TRIED: usize = 256 << 10;
/// Number of entries that are read at once.
const AT_ONCE: u64 = 256;

/// The array of arenas.
#[derive(Debug)]
pub(super) struct Arenas {
    at: u64,
    pub(super) pool_bytes: u64,
}

/// An arena in use.
#[derive(Debug)]
pub(super) struct Arena {
    /// Its place in the array.
    pub(super) index: u64,
    pub(super) range: Range<u64>,
    pub(super) first_pool: u64,
    /// Number of pools.
    pub(super) pools: u64,
    /// The pools from this address on were never used (`pool_address`).
    pub(super) next_pool: u64,
}

impl Arenas {
    pub(super) fn find(
        memory: &impl Memory,
        data: &[Range<u64>],
        heaps: &[Range<u64>],
        anonymous: &[Range<u64>],
    ) -> Option<Self> {
        let samples = samples(memory, anonymous);
        let mut words = Scattered::new(memory);
        let mut tried = HashSet::new();
        for range in data {
            let mut found = None;
            each_word(memory, range.clone(), |_, word| {
                if is_pointer(word) && hold(heaps, &(word..word + 1)) && tried.insert(word) {
                    let mut samples = samples.iter();
                    found = samples.find_map(|sample| Self::led_to_by(&mut words, word, sample));
                }
                found.is_none() && tried.len() < MAX_TRIED
            });
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns the array at an address, if its entries agree with the place of a pool.
    fn led_to_by<M: Memory>(
        words: &mut Scattered<'_, M>,
        at: u64,
        (address, pool): &(u64, Pool),
    ) -> Option<Self> {
        let arenas = Self { at, pool_bytes: pool.bytes };
        let entry = at.checked_add(pool.arena * ENTRY)?;
        let start = words.word(entry)?;
        if !(start..start.saturating_add(Pool::arena_bytes(pool.bytes))).contains(address) {
            return None;
        }
        let mut bytes = [0; ENTRY as usize];
        for (place, word) in (entry..).step_by(8).zip(bytes.chunks_exact_mut(8)) {
            word.copy_from_slice(&words.word(place)?.to_le_bytes());
        }
        match arenas.parse(&bytes, pool.arena)? {
            Some(arena) if arena.range.contains(address) => Some(arenas),
            _ => None,
        }
    }

    /// Returns the arenas that lie in `anonymous`, in order of address and disjoint.
    pub(super) fn read(&self, memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Arena> {
        let is_mapped = |arena: &Arena| hold(anonymous, &arena.range);
        let mut found = Vec::new();
        let mut bytes = vec![0; (AT_ONCE * ENTRY) as usize];
        'array: for first in (0..MAX_ENTRIES).step_by(AT_ONCE as usize) {
            let Some(at) = self.at.checked_add(first * ENTRY) else { break };
            let length = memory.read(at, &mut bytes);
            for (index, entry) in (first..).zip(bytes[..length].chunks_exact(ENTRY as usize)) {
                // An invalid entry is past the end of the array.
                let Some(arena) = self.parse(entry, index) else { break 'array };
                found.extend(arena.filter(is_mapped));
            }
            if length < bytes.len() {
                break;
            }
        }
        found.sort_unstable_by_key(|arena| arena.range.start);
        let mut end = 0;
        found.retain(|arena| {
            let is_apart = arena.range.start >= end;
            end = end.max(arena.range.end);
            is_apart
        });
        found
    }

    /// Parses an entry. Returns `None` if it is invalid, and `Some(None)` if it has no arena.
    #[expect(clippy::option_option, reason = "no entry, an entry without an arena, an arena")]
    fn parse(&self, entry: &[u8], index: u64) -> Option<Option<Arena>> {
        let (address, next_pool) = (word_in(entry, 0)?, word_in(entry, 8)?);
        let (free, total) = (half_in(entry, 16)?, half_in(entry, 20)?);
        let lists = [word_in(entry, 24)?, word_in(entry, 32)?, word_in(entry, 40)?];
        if !lists.iter().all(|pointer| *pointer == 0 || is_pointer(*pointer)) {
            return None;
        }
        if address == 0 {
            return Some(None);
        }
        let end = address.checked_add(Pool::arena_bytes(self.pool_bytes))?;
        let first_pool = address.checked_next_multiple_of(self.pool_bytes)?;
        // The first pool is unused if the arena does not begin at a multiple of the size of a pool.
        let pools = POOLS_IN_ARENA - u64::from(first_pool != address);
        let is_sound = is_pointer(address)
            && address.is_multiple_of(pool::SIZES[0])
            && u64::from(total) == pools
            && free <= total
            && next_pool.is_multiple_of(self.pool_bytes)
            && (first_pool..=first_pool + pools * self.pool_bytes).contains(&next_pool);
        is_sound.then_some(Some(Arena { index, range: address..end, first_pool, pools, next_pool }))
    }
}

/// Finds pools of different arenas. The first arenas of a process are at the highest addresses,
/// since the kernel places mappings from there downwards.
fn samples(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<(u64, Pool)> {
    let mut samples: Vec<(u64, Pool)> = Vec::new();
    for range in anonymous.iter().rev() {
        let mut end = range.end;
        while end > range.start && samples.len() < SAMPLES {
            let start = (end - 1 - (end - 1) % WINDOW).max(range.start);
            pool::each(memory, std::slice::from_ref(&(start..end)), |at, pool| {
                let is_new = samples.iter().all(|(_, sample)| sample.arena != pool.arena);
                if is_new {
                    samples.push((at, pool));
                }
                samples.len() < SAMPLES
            });
            end = start;
        }
    }
    samples
}

fn is_pointer(word: u64) -> bool {
    (1 << 12..ADDRESS_END).contains(&word) && word.is_multiple_of(8)
}

//! The caches of threads (`tcache`).

use std::ops::Range;

use super::chunk::SMALLEST;
use super::lists::Links;
use crate::memory::{ADDRESS_END, Memory, half_in, word_in};
use crate::scattered::Scattered;

/// Size of a chunk header, in bytes.
const HEAD: u64 = 16;
/// Maximum length of a list, more than a thread can have: `glibc.malloc.tcache_count` is at most
/// 65535.
const LONGEST: usize = 1 << 16;
/// Maximum number of cached blocks that are distinguished from used ones.
const MOST_BLOCKS: usize = 1 << 19;

/// Minimum number of blocks to follow, whatever the lists look like.
const FEWEST_READ: u64 = 1 << 16;
/// Maximum number of times that a cache is read until it is consistent.
const TRIES: u32 = 3;

/// The blocks in thread caches. The arenas count them as used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caches {
    /// Number of caches that are not empty.
    pub caches: u64,
    /// Number of blocks in them.
    pub count: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// Number of those bytes that are resident.
    pub resident_bytes: u64,
    /// Resident bytes of the caches' own structures.
    pub structures_resident_bytes: u64,
    /// The chunks of the caches themselves.
    pub(super) structures: Vec<Range<u64>>,
    /// The blocks.
    pub(super) blocks: Vec<Range<u64>>,
}

impl Caches {
    /// Returns the addresses of the caches themselves, without their chunk headers.
    pub(super) fn structures(&self) -> impl Iterator<Item = Range<u64>> {
        let words = |chunk: &Range<u64>| chunk.start.saturating_add(HEAD)..chunk.end;
        self.structures.iter().map(words).filter(|words| words.start < words.end)
    }

    /// Removes the blocks that `which` selects.
    pub(super) fn leave_out(&mut self, mut which: impl FnMut(&Range<u64>) -> bool) {
        self.blocks.retain(|block| {
            let is_left_out = which(block);
            if is_left_out {
                self.count -= 1;
                self.bytes -= block.end - block.start;
            }
            !is_left_out
        });
    }
}

/// The layout of a thread's cache in some versions.
#[derive(Debug, Clone, Copy)]
struct TcacheForm {
    /// Size of its chunk.
    chunk: u64,
    /// Number of size classes.
    bins: u64,
    /// Bytes of a count.
    count: u64,
}

/// The layouts of 2.26 to 2.29, of 2.30 to 2.41, and of 2.42 and newer.
const FORMS: [TcacheForm; 4] = [
    TcacheForm { chunk: 0x250, bins: 64, count: 1 },
    TcacheForm { chunk: 0x290, bins: 64, count: 2 },
    TcacheForm { chunk: 0x300, bins: 76, count: 2 },
    TcacheForm { chunk: 0x310, bins: 76, count: 2 },
];

impl TcacheForm {
    fn lists_at(self) -> usize {
        (self.bins * self.count).next_multiple_of(8) as usize
    }

    /// Returns the first blocks of the lists.
    fn firsts(self, bytes: &[u8]) -> impl Iterator<Item = Option<u64>> {
        (0..self.bins as usize).map(move |class| word_in(bytes, self.lists_at() + class * 8))
    }
}

/// Returns whether a chunk of this size may be a thread's cache.
#[inline]
pub fn is_size_of_cache(size: u64) -> bool {
    matches!(size, 0x250 | 0x290 | 0x300 | 0x310)
}

/// Returns whether a chunk, given with its head, may be a thread's cache that is not empty: each of
/// its lists is empty or begins at a chunk.
pub(super) fn may_be_cache(bytes: &[u8]) -> bool {
    let size = word_in(bytes, 8).map(|head| head & !7);
    FORMS.iter().filter(|form| Some(form.chunk) == size).any(|form| {
        let mut any = false;
        let mut firsts = form.firsts(bytes.get(16..).unwrap_or_default());
        firsts.all(|first| {
            any |= first.is_some_and(|f| f != 0);
            first.is_some_and(|f| f % 16 == 0 && f < ADDRESS_END)
        }) && any
    })
}

/// Finds the thread caches among the `suspects`, and the blocks in them. `chunks` is the number of
/// used chunks of the heap, which bounds the number of cached blocks.
pub(super) fn caches<M: Memory>(memory: &M, suspects: &[u64], chunks: u64) -> Caches {
    let mut found = Caches::default();
    // A chunk is in one cache only. Its lists are read in two ways, and again if they change.
    let mut budget = chunks.saturating_mul(2 * u64::from(TRIES)).saturating_add(FEWEST_READ);
    for chunk in suspects {
        // Its thread may be taking from it or adding to it.
        let read = (0..TRIES).find_map(|_| read(memory, *chunk, &mut budget));
        let Some((size, blocks)) = read else { continue };
        found.caches += 1;
        found.count += blocks.len() as u64;
        found.bytes += blocks.iter().map(|b| b.end - b.start).sum::<u64>();
        let room = MOST_BLOCKS.saturating_sub(found.blocks.len());
        found.blocks.extend(blocks.into_iter().take(room));
        found.structures.push(*chunk..chunk.saturating_add(size));
    }
    found.blocks.sort_unstable_by_key(|b| b.start);
    found.blocks.dedup_by(|later, earlier| later.start < earlier.end);
    found.structures.sort_unstable_by_key(|b| b.start);
    found
}

/// Returns the size of a cache and the blocks in it, or `None` if the chunk is not a cache.
fn read(memory: &impl Memory, chunk: u64, budget: &mut u64) -> Option<(u64, Vec<Range<u64>>)> {
    let mut bytes = vec![0; 0x310];
    let length = memory.read(chunk, &mut bytes);
    bytes.truncate(length);
    let size = word_in(&bytes, 8)? & !7;
    let mut words = Scattered::new(memory);
    let form = FORMS.into_iter().find(|form| form.chunk == size)?;
    Some((size, cache(&mut words, bytes.get(16..)?, form, budget)?))
}

/// Returns the blocks in a cache, or `None` if it is not one: the chunks of every list must have
/// the size of its class, and the list must end and have the length that its count states.
fn cache<M: Memory>(
    words: &mut Scattered<'_, M>,
    bytes: &[u8],
    form: TcacheForm,
    budget: &mut u64,
) -> Option<Vec<Range<u64>>> {
    let mut read = |links: Links, words: &mut Scattered<'_, M>| {
        let mut blocks = Vec::new();
        let mut lengths = Vec::new();
        for (class, first) in form.firsts(bytes).enumerate() {
            // Lists of large blocks contain several sizes (from 2.42 on).
            let size = (class < 64).then_some(SMALLEST + class as u64 * 16);
            let before = blocks.len();
            list(words, first?, size, links, &mut blocks, budget)?;
            lengths.push((blocks.len() - before) as u64);
        }
        (!blocks.is_empty() && counts_agree(bytes, form, &lengths)).then_some(blocks)
    };
    Links::BOTH.into_iter().find_map(|links| read(links, words))
}

/// Follows a list, whose pointers lead to the user's memory. Returns `None` if the list is invalid.
fn list<M: Memory>(
    words: &mut Scattered<'_, M>,
    first: u64,
    size: Option<u64>,
    links: Links,
    blocks: &mut Vec<Range<u64>>,
    budget: &mut u64,
) -> Option<()> {
    let mut next = first;
    let most = blocks.len() + LONGEST;
    while next != 0 {
        *budget = budget.checked_sub(1)?;
        if !next.is_multiple_of(16) || blocks.len() >= most {
            return None;
        }
        let (head, link) = words.pair(next.checked_sub(8)?)?;
        let bytes = head & !7;
        if size.is_some_and(|size| bytes != size) || !(SMALLEST..1 << 32).contains(&bytes) {
            return None;
        }
        let chunk = next - 16;
        blocks.push(chunk..chunk.checked_add(bytes)?);
        next = links.decode(next, link);
    }
    Some(())
}

/// Returns whether the lists have the lengths that the counts state. From 2.42 on, a count is the
/// number of blocks that may still be added.
fn counts_agree(bytes: &[u8], form: TcacheForm, lengths: &[u64]) -> bool {
    let count = |class: u64| -> Option<u64> {
        let at = (class * form.count) as usize;
        let half = half_in(bytes, at - at % 4)? >> (at % 4 * 8);
        Some(u64::from(if form.count == 1 { half & 0xff } else { half & 0xffff }))
    };
    let Some(counts) = (0..form.bins).map(count).collect::<Option<Vec<u64>>>() else {
        return false;
    };
    if form.bins == 64 {
        return counts == lengths;
    }
    let most = counts.iter().zip(lengths).map(|(left, length)| left + length).max().unwrap_or(0);
    let agree = |(left, length): (&u64, &u64)| left + length == most || *length == 0;
    counts.iter().zip(lengths).all(agree)
}

//! The memory of PHP's own allocator (`Zend/zend_alloc.c`): chunks of 2 MiB in a ring, and huge
//! blocks in a list.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::memory::{ADDRESS_END, Memory, resident_places, word};
use crate::ranges::union;

/// Size of a chunk, and alignment of chunks and huge blocks, in bytes (`ZEND_MM_CHUNK_SIZE`).
const CHUNK: u64 = 2 << 20;
/// Place of the heap in its first chunk, after the chunk's own fields, in bytes (`heap_slot`).
const HEAP: u64 = 64;
/// Number of words of the heap that are searched for the pointer to its first chunk. The list of
/// huge blocks is in the word before that pointer.
const WORDS: u64 = 128;
/// Unit of the size of huge blocks, in bytes.
const PAGE: u64 = 4096;
/// Maximum number of words between the size of the memory and the pointer to the first chunk.
const MAX_BEFORE: u64 = 8;
/// Values from this one on are addresses, or stand for no limit.
const MAX_LIMIT: u64 = 1 << 36;
/// Maximum number of chunks and huge blocks: 128 GiB.
const MAX: usize = 1 << 16;

/// Returns the chunks and huge blocks in some ranges of anonymous memory, in order, adjacent ones
/// merged.
pub fn chunks(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut heaps = BTreeSet::new();
    for range in anonymous {
        for at in resident_places(memory, range, CHUNK) {
            heaps.extend(heap_of(memory, at));
        }
    }
    // A huge block may have grown since the ranges were read.
    let inside = |block: Range<u64>| {
        let place = anonymous.partition_point(|range| range.end <= block.start);
        let range = anonymous.get(place).filter(|range| range.start <= block.start)?;
        Some(block.start..block.end.min(range.end))
    };
    let mut found = Vec::new();
    for heap in heaps {
        of_heap(memory, heap, &mut found);
    }
    union(found.into_iter().filter_map(inside).collect())
}

/// The memory of the request that PHP serves, and its limit (`memory_limit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestMemory {
    /// Chunks and huge blocks, in bytes.
    pub used_bytes: u64,
    /// The limit, in bytes.
    pub limit_bytes: u64,
}

/// Returns the memory of the only heap in some ranges of anonymous memory, with its limit; `None`
/// for several heaps (one per thread), and without a limit.
pub fn limit(memory: &impl Memory, anonymous: &[Range<u64>]) -> Option<RequestMemory> {
    let places = anonymous.iter().flat_map(|range| resident_places(memory, range, CHUNK));
    let heaps: BTreeSet<u64> = places.filter_map(|at| heap_of(memory, at)).collect();
    let heap = heaps.first().copied().filter(|_| heaps.len() == 1)?;
    let place = place_of_first(memory, heap)?;
    // `{ real_size, real_peak, limit, … }`, after the lists of free blocks. What follows before the
    // list of huge blocks depends on the version.
    (1..=MAX_BEFORE).rev().find_map(|before| {
        let at = heap + place.checked_sub(before)? * 8;
        let [size, peak, limit] = [0, 8, 16].map(|field| word(memory, at + field));
        let (used_bytes, peak, limit_bytes) = (size?, peak?, limit?);
        let are_sizes = [used_bytes, peak].iter().all(|size| size.is_multiple_of(PAGE));
        let is_one = are_sizes && used_bytes >= CHUNK && used_bytes <= peak;
        (is_one && (peak..MAX_LIMIT).contains(&limit_bytes))
            .then_some(RequestMemory { used_bytes, limit_bytes })
    })
}

/// Returns the place of the pointer of a heap to its first chunk, in words.
fn place_of_first(memory: &impl Memory, heap: u64) -> Option<u64> {
    (1..WORDS).find(|place| word(memory, heap + place * 8) == Some(heap - HEAP))
}

/// Returns the heap of a chunk: `{ heap, next, prev }`, each in a chunk.
fn heap_of(memory: &impl Memory, chunk: u64) -> Option<u64> {
    let [heap, next, previous] = [0, 8, 16].map(|at| word(memory, chunk + at).unwrap_or(0));
    let is_one = heap > CHUNK && heap % CHUNK == HEAP && is_chunk(next) && is_chunk(previous);
    let first = heap.checked_sub(HEAP)?;
    (is_one && word(memory, first) == Some(heap)).then_some(heap)
}

/// Adds the chunks and huge blocks of a heap, up to the maximum.
fn of_heap(memory: &impl Memory, heap: u64, found: &mut Vec<Range<u64>>) {
    let first = heap - HEAP;
    let mut chunk = first;
    while found.len() < MAX {
        found.push(chunk..chunk + CHUNK);
        let next = word(memory, chunk + 8).filter(|next| is_chunk(*next) && *next != first);
        let Some(next) = next else { break };
        chunk = next;
    }
    let Some(place) = place_of_first(memory, heap) else { return };
    let [huge, cached] = [place - 1, place + 1].map(|at| word(memory, heap + at * 8).unwrap_or(0));
    // `{ ptr, size, next }`
    let mut next = huge;
    while next != 0 && found.len() < MAX {
        let fields = [0, 8, 16].map(|at| word(memory, next.wrapping_add(at)));
        let [Some(at), Some(bytes), Some(after)] = fields else { break };
        let Some(end) = at.checked_add(bytes).filter(|_| is_chunk(at)) else { break };
        found.push(at..end);
        next = after;
    }
    // Freed chunks are in a separate list.
    let mut next = cached;
    while is_chunk(next) && found.len() < MAX {
        found.push(next..next + CHUNK);
        next = word(memory, next + 8).unwrap_or(0);
    }
}

fn is_chunk(at: u64) -> bool {
    at != 0 && at.is_multiple_of(CHUNK) && at < ADDRESS_END
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;

    #[test]
    fn the_limit_of_a_request_is_found_beside_its_size() {
        const FIRST: u64 = 0x7f00_0020_0000;
        let with = |fields: &[u64]| {
            let mut bytes = vec![0_u8; 4096];
            let places = (HEAP + 80..).step_by(8);
            let fields = fields.iter().copied().chain([0, FIRST]).zip(places);
            let head = [(FIRST + HEAP, 0), (FIRST, 8), (FIRST, 16)];
            for (word, at) in head.into_iter().chain(fields) {
                bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
            }
            let memory = Saved::new(vec![(FIRST, bytes)]);
            limit(&memory, std::slice::from_ref(&(FIRST..FIRST + CHUNK)))
        };
        let (size, peak, most) = (2 * CHUNK, 4 * CHUNK, 64 * CHUNK);
        let expected = Some(RequestMemory { used_bytes: size, limit_bytes: most });
        assert_eq!(with(&[FIRST + 0x400, size, peak, most, 0xbad_0000_0000]), expected);
        assert_eq!(with(&[0, size, peak, most, 2 * most, u64::MAX, 0]), expected, "two more words");
        assert_eq!(with(&[0, size, peak, u64::MAX >> 1, 0]), None, "without a limit");
        assert_eq!(with(&[0, peak, size, most, 0]), None, "more than its peak");
    }

    #[test]
    fn a_huge_block_that_grew_since_the_mappings_were_read_counts_up_to_their_end() {
        const FIRST: u64 = 0x7f00_0020_0000;
        const HUGE: u64 = FIRST + 2 * CHUNK;
        let mut bytes = vec![0_u8; 4096];
        // The chunk with its heap, which has the list of huge blocks before its first chunk.
        let node = FIRST + 0x800;
        for (at, word) in [
            (0, FIRST + HEAP),
            (8, FIRST),
            (16, FIRST),
            (HEAP + 16, node),
            (HEAP + 24, FIRST),
            (0x800, HUGE),
            (0x808, 3 * CHUNK),
        ] {
            bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let memory = Saved::new(vec![(FIRST, bytes)]);
        let found = chunks(&memory, &[FIRST..FIRST + CHUNK, HUGE..HUGE + 2 * CHUNK]);
        assert_eq!(found, [FIRST..FIRST + CHUNK, HUGE..HUGE + 2 * CHUNK]);
        assert_eq!(chunks(&memory, std::slice::from_ref(&(FIRST..FIRST + CHUNK))).len(), 1);
    }
}

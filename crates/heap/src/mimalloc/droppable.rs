//! The free slices of version 3, which a thread claims by their bits.
//!
//! A set bit of `slices_free` is a free slice. A thread that clears it by an atomic operation owns
//! the slice: `mi_arena_try_purge_range` (`arena.c`) claims slices in this way, returns their
//! memory, and sets the bits again. No lock is involved, and a thread that allocates meanwhile
//! takes other slices. These rules are the same in 3.0.10 to 3.4.3:
//!
//! - `mi_bbitmap_try_clearNC` clears bits of one word by a compare-and-exchange. It changes nothing
//!   else that other threads rely on.
//! - `mi_bbitmap_setN` sets the bits, and then the bit of their chunk in `chunkmap`. A thread that
//!   found the chunk empty may clear that bit at the same time. It checks the chunk again
//!   afterwards, and sets the bit if the chunk is not empty (`mi_bbitmap_chunkmap_try_clear`). So a
//!   free slice is never lost.
//! - `chunk_max_accessed` covers each chunk of which a slice was ever in use, and only such slices
//!   are resident. The size class of a chunk (`chunkmap_bins`) is a hint.
//!
//! The contents of a free slice are never read: its bit in `slices_dirty` means that it may be
//! nonzero. A slice with a clear bit there is zero, like a dropped page.

use std::ops::Range;

use super::find::{Arena, CHUNK, Place, SLICE};
use super::owned::each_of_segment;
use super::{Layout, Walker};
use crate::blocks::BlockCollector;
use crate::droppable::{Check, Droppable, Guard, Sums};
use crate::memory::{Memory, word};
use crate::residency::Residency;

/// Slices of a word of a bitmap.
const WORD_SLICES: u64 = 64;
/// Bytes of a chunk of a bitmap.
const CHUNK_BYTES: u64 = CHUNK / 8;
/// Place of `chunkmap` in a bitmap (`mi_bbitmap_t`).
const CHUNKMAP_AT: u64 = 64;
/// Place in an arena and mask of the byte that is set if its memory cannot be returned
/// (`memid.is_pinned`), from 3.0.10 on.
const IS_PINNED: (u64, u64) = (16, 0xff << 32);

/// Passes the resident free memory to `visit`, and returns the sums.
pub fn each_droppable(
    memory: &impl Memory,
    layout: &Layout,
    visit: &mut dyn FnMut(Droppable),
) -> Sums {
    let (mut sums, mut residency) = (Sums::default(), Residency::new(memory));
    let mut walker = Walker::new(memory, BlockCollector::new(None));
    for place in &layout.places {
        if memory.is_over() {
            break;
        }
        match place {
            Place::Arena(arena) => {
                each_of_arena(memory, &mut residency, arena, &mut sums, visit);
            }
            Place::Segment(segment) => each_of_segment(&mut walker, segment, &mut sums, visit),
            Place::Reserved { .. } => {}
        }
    }
    sums
}

fn each_of_arena<M: Memory>(
    memory: &M,
    residency: &mut Residency<'_, M>,
    arena: &Arena,
    sums: &mut Sums,
    visit: &mut dyn FnMut(Droppable),
) {
    let pointers = arena.at + 8 * arena.bitmaps_at;
    let [committed, dirty, purge] = arena.bitmaps;
    let chunks_bytes = arena.slices / CHUNK * CHUNK_BYTES;
    let (Some(free), Some(chunks)) = (word(memory, pointers), committed.checked_sub(chunks_bytes))
    else {
        return;
    };
    // Between them are the chunk map and the maps of the bins.
    let is_sound = free > arena.at && free.saturating_add(2 * CHUNKMAP_AT) <= chunks;
    let pinned = word(memory, arena.at + IS_PINNED.0).is_none_or(|word| word & IS_PINNED.1 != 0);
    let mut checks = vec![Check::bits(arena.at + IS_PINNED.0, IS_PINNED.1, 0)];
    let expected = [free, committed, dirty, purge];
    checks.extend((pointers..).step_by(8).zip(expected).map(|(at, to)| Check::word(at, to)));
    for number in arena.info / WORD_SLICES..arena.slices / WORD_SLICES {
        let at = chunks + 8 * number;
        let mut bits = word(memory, at).unwrap_or(0);
        let first = number * WORD_SLICES;
        if first < arena.info {
            bits &= u64::MAX << (arena.info - first);
        }
        for run in runs(bits) {
            let slice = |place: u64| arena.at + (first + place) * SLICE;
            let pages = slice(run.start)..slice(run.end);
            let resident_bytes = residency.bytes(pages.clone());
            if resident_bytes == 0 {
                continue;
            }
            if !is_sound || pinned {
                sums.unguarded_bytes += resident_bytes;
                continue;
            }
            sums.guarded_bytes += resident_bytes;
            let chunk = first / CHUNK;
            let guard = Guard::Claim {
                word: at,
                base: slice(0),
                slice_bytes: SLICE,
                summary: free + CHUNKMAP_AT + 8 * (chunk / 64),
                summary_bits: 1 << (chunk % 64),
            };
            visit(Droppable { pages, resident_bytes, guard, checks: checks.clone() });
        }
    }
}

/// Returns the runs of set bits of a word.
fn runs(bits: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = if at < 64 { bits >> at } else { 0 };
        if left == 0 {
            return None;
        }
        let start = at + u64::from(left.trailing_zeros());
        let end = start + u64::from((!(bits >> start)).trailing_zeros()).min(64 - start);
        at = end;
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_ranges_of_set_bits_in_a_word() {
        let found = |bits| runs(bits).collect::<Vec<_>>();
        assert_eq!(found(0), []);
        assert_eq!(found(u64::MAX).first(), Some(&(0..64)));
        assert_eq!(found(1 << 63 | 0b110), [1..3, 63..64]);
        assert_eq!(found(u64::MAX << 60 | 1), [0..1, 60..64]);
    }
}

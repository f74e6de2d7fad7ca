//! Where the memory of mimalloc is: the segments of version 2, and the arenas of version 3.
//!
//! Both are recognised by how they begin (`types.h`, `arena.c`), without symbols and without a version. Blocks
//! of more than half a segment, and those outside of arenas, have segments or mappings of their own; what is
//! not recognised is left out.

use std::ops::Range;

use crate::memory::{Memory, half_in, word_in};
use crate::ranges::joined;

/// Segments begin at multiples of it, and have as many bytes (`MI_SEGMENT_SIZE`).
const SEGMENT: u64 = 32 << 20;
/// A slice of either version (`MI_SEGMENT_SLICE_SIZE`, `MI_ARENA_SLICE_SIZE`).
const SLICE: u64 = 64 << 10;
/// Slices of a segment.
const SLICES: u64 = SEGMENT / SLICE;
/// Where the slices of a segment are described, and the bytes of each description.
const SLICES_AT: [usize; 61] = places();
const STRIDES: [usize; 2] = [80, 96];
/// Bytes of the beginning of a segment with all descriptions.
const SEGMENT_HEAD: usize = 520 + STRIDES[1] * SLICES as usize;

/// Version 2 reserves arenas of so many bytes (`mi_option_arena_reserve`), of which segments are parts: freed
/// segments stay there, without a head that could be recognised.
const RESERVED: u64 = 1 << 30;
/// Maximum number of slices that are read in search of a beginning: 4 GiB that are mimalloc's or not.
const MAX_READ: u32 = 1 << 16;

/// An arena has a multiple of so many slices (`MI_BCHUNK_BITS`), and at most so many: 16 GiB.
const CHUNK: u64 = 512;
const MAX_SLICES: u64 = 1 << 18;
/// Words of the beginning of an arena that are looked at.
const ARENA_HEAD: usize = 64;
/// Bitmaps of an arena that follow each other: free, committed, dirty, purge.
const BITMAPS: usize = 4;

const fn places() -> [usize; 61] {
    let mut places = [0; 61];
    let mut place = 0;
    while place < places.len() {
        places[place] = 40 + 8 * place;
        place += 1;
    }
    places
}

/// The addresses that belong to mimalloc, in order and apart from each other; nothing where there is none.
/// `anonymous` are the private writable mappings of no file, neighbours joined.
pub fn areas(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut left = MAX_READ;
    // Neither a segment nor an arena is smaller.
    for range in anonymous.iter().filter(|range| range.end - range.start >= SEGMENT) {
        let mut at = range.start.next_multiple_of(SLICE);
        // Only a resident slice can begin anything.
        let mut runs = memory.resident(range.clone()).into_iter().peekable();
        while at < range.end && left > 0 {
            while runs.next_if(|run| run.end <= at).is_some() {}
            let Some(run) = runs.peek() else { break };
            if run.start > at {
                at = run.start.next_multiple_of(SLICE);
                continue;
            }
            left -= 1;
            let of_segment =
                if at.is_multiple_of(SEGMENT) { segment(memory, at, range.end) } else { None };
            if of_segment.is_some() && range.end - range.start >= RESERVED {
                found.push(range.start.next_multiple_of(SEGMENT)..range.end - range.end % SEGMENT);
                break;
            }
            let bytes = of_segment.or_else(|| arena(memory, at, range.end));
            found.extend(bytes.map(|bytes| at..at + bytes));
            at += bytes.unwrap_or(SLICE);
        }
    }
    joined(found)
}

/// The bytes of a segment of version 2, if one begins here.
fn segment(memory: &impl Memory, at: u64, end: u64) -> Option<u64> {
    let mut head = vec![0; SEGMENT_HEAD];
    let length = memory.read(at, &mut head);
    head.truncate(length);
    for from in SLICES_AT {
        for stride in STRIDES {
            if let Some(bytes) = slices(&head, from, stride).filter(|bytes| *bytes <= end - at) {
                return Some(bytes);
            }
        }
    }
    None
}

/// The bytes of a segment whose slices are described here: its spans follow each other to its end, each with
/// its number of slices at its first, and its offset from there at its last (`slice_count`,
/// `slice_offset`).
fn slices(head: &[u8], from: usize, stride: usize) -> Option<u64> {
    let at = |slice: u64| {
        let place = from + stride * usize::try_from(slice).ok()?;
        Some((half_in(head, place)?, half_in(head, place + 4)?))
    };
    let (mut slice, mut spans) = (0, 0);
    while slice < SLICES {
        let (count, offset) = at(slice)?;
        let count = u64::from(count);
        if offset != 0 || count == 0 {
            return None;
        }
        // The head of the segment is its first span; a huge block is the only one behind it.
        if spans == 0 && count > 32 {
            return None;
        }
        if slice + count > SLICES {
            let is_huge = spans == 1 && count > SLICES / 2 && count < MAX_SLICES;
            return is_huge.then_some((slice + count) * SLICE);
        }
        if count > 1 && spans > 0 {
            let (_, offset) = at(slice + count - 1)?;
            if u64::from(offset) != stride as u64 * (count - 1) {
                return None;
            }
        }
        slice += count;
        spans += 1;
    }
    (spans >= 2).then_some(SEGMENT)
}

/// The bytes of an arena of version 3, if one begins here: its head has the number of its slices, how many of
/// them describe it, and the places of its bitmaps in these, each of which begins with its number of chunks.
fn arena(memory: &impl Memory, at: u64, end: u64) -> Option<u64> {
    let mut head = [0; ARENA_HEAD * 8];
    let length = memory.read_resident(at, &mut head);
    let word = |place: usize| word_in(&head[..length], place * 8);
    for place in 3..ARENA_HEAD - 1 {
        let (Some(slices), Some(info)) = (word(place), word(place + 1)) else { return None };
        let is_head = slices > 0
            && slices.is_multiple_of(CHUNK)
            && slices <= MAX_SLICES
            && (1..CHUNK).contains(&info)
            && slices * SLICE <= end - at;
        if is_head && has_bitmaps(memory, at, (slices, info), &head[..length], place + 2) {
            return Some(slices * SLICE);
        }
    }
    None
}

fn has_bitmaps(
    memory: &impl Memory,
    at: u64,
    (slices, info): (u64, u64),
    head: &[u8],
    from: usize,
) -> bool {
    let within = at..at + info * SLICE;
    let words = (from..head.len() / 8).map(|place| word_in(head, place * 8).unwrap_or(0));
    let words: Vec<u64> = words.collect();
    words.windows(BITMAPS).any(|bitmaps| {
        let are_in_order = bitmaps.windows(2).all(|pair| pair[0] < pair[1])
            && bitmaps.iter().all(|bitmap| within.contains(bitmap) && bitmap.is_multiple_of(64));
        are_in_order
            // The first has another form (`mi_bbitmap_t`).
            && bitmaps[1..].iter().all(|bitmap| {
                crate::memory::word(memory, *bitmap) == Some(slices / CHUNK)
            })
    })
}

//! Finds the segments of version 2 and the arenas of version 3.
//!
//! Both are recognised by their heads (`types.h`, `arena.c`), without symbols and without a
//! version. Blocks of more than half a segment, and those outside of arenas, have their own
//! segments or mappings. Memory that is not recognised is left out.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::memory::{Memory, half_in, word_in};

/// Size and alignment of a segment, in bytes (`MI_SEGMENT_SIZE`).
pub(super) const SEGMENT: u64 = 32 << 20;
/// Size of a slice of either version, in bytes (`MI_SEGMENT_SLICE_SIZE`, `MI_ARENA_SLICE_SIZE`).
pub(super) const SLICE: u64 = 64 << 10;
/// Number of slices of a segment.
pub(super) const SLICES: u64 = SEGMENT / SLICE;
/// Possible places of the descriptions of the slices of a segment, and possible sizes of a
/// description, in bytes.
const SLICES_AT: [usize; 61] = slices_at();
const STRIDES: [usize; 2] = [80, 96];
/// Size of the beginning of a segment with all descriptions, in bytes.
const SEGMENT_HEAD: usize = 520 + STRIDES[1] * SLICES as usize;

/// Size of the arenas that version 2 reserves, in bytes (`mi_option_arena_reserve`). Segments are
/// parts of them: freed segments stay there, without a recognisable head.
const RESERVED: u64 = 1 << 30;
/// Maximum number of slices that are read in search of a head: 4 GiB, whether mimalloc's or not.
const MAX_READ: u32 = 1 << 16;

/// Number of slices of which an arena has a multiple (`MI_BCHUNK_BITS`), and maximum number of
/// slices of an arena: 16 GiB.
pub(super) const CHUNK: u64 = 512;
const MAX_SLICES: u64 = 1 << 18;
/// Number of words at the beginning of an arena that are inspected.
const ARENA_HEAD: usize = 64;
/// Number of consecutive bitmaps of an arena: free, committed, dirty, purge.
const BITMAPS: usize = 4;

const fn slices_at() -> [usize; 61] {
    let mut places = [0; 61];
    let mut place = 0;
    while place < places.len() {
        places[place] = 40 + 8 * place;
        place += 1;
    }
    places
}

/// A segment of version 2.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// Place of the first description of a slice, in bytes.
    pub(super) slices_at: u64,
    /// Bytes of a description.
    pub(super) stride: u64,
}

/// An arena of version 3.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arena {
    pub(super) at: u64,
    /// Number of slices.
    pub(super) slices: u64,
    /// The first slices, which describe the arena.
    pub(super) info: u64,
    /// The place in the head of the pointer to the first bitmap, in words.
    pub(super) bitmaps_at: u64,
    /// The second to the fourth bitmap: committed, dirty, purge.
    pub(super) bitmaps: [u64; 3],
}

/// A range of mimalloc's memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Segment(Segment),
    Arena(Arena),
    /// The part of a reserved range that contains segments.
    Reserved {
        start: u64,
        end: u64,
    },
}

impl Place {
    pub(super) fn range(&self) -> Range<u64> {
        match self {
            Self::Segment(segment) => segment.at..segment.at + segment.bytes,
            Self::Arena(arena) => arena.at..arena.at + arena.slices * SLICE,
            Self::Reserved { start, end } => *start..*end,
        }
    }

    /// Returns the part with mimalloc's own records, into which the program has no pointers.
    pub(super) fn head(&self) -> Range<u64> {
        match self {
            Self::Segment(segment) => segment.at..segment.at + SEGMENT_HEAD as u64,
            Self::Arena(arena) => arena.at..arena.at + arena.info * SLICE,
            Self::Reserved { start, .. } => *start..*start,
        }
    }
}

/// Finds mimalloc's memory, in order of address. The result is empty if there is none. `anonymous`
/// are the private writable anonymous mappings, adjacent ones merged.
pub(super) fn places(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Place> {
    let (mut found, mut left) = (Vec::new(), MAX_READ);
    // The end of the previous place, which may be beyond the end of its mapping.
    let mut known = 0;
    for range in anonymous {
        // No arena is smaller. The end of a segment may not be accessible yet.
        let mut only_segments = range.end - range.start < SEGMENT;
        let mut is_reserved = false;
        let start = range.start.max(known);
        let mut at = start.next_multiple_of(if only_segments { SEGMENT } else { SLICE });
        // Only a resident slice can begin anything.
        let mut runs = memory.resident(range.clone()).into_iter().peekable();
        while at < range.end && left > 0 {
            while runs.next_if(|run| run.end <= at).is_some() {}
            let Some(run) = runs.peek() else { break };
            if run.start > at {
                at = run.start.next_multiple_of(if only_segments { SEGMENT } else { SLICE });
                continue;
            }
            left -= 1;
            let of_segment =
                if at.is_multiple_of(SEGMENT) { segment(memory, at, range.end) } else { None };
            if of_segment.is_some() && !is_reserved && range.end - range.start >= RESERVED {
                // Version 2 has no arenas of this form.
                (is_reserved, only_segments) = (true, true);
                found.push(Place::Reserved { start: at, end: range.end - range.end % SEGMENT });
            }
            let place = of_segment.map(Place::Segment).or_else(|| {
                if only_segments { None } else { arena(memory, at, range.end).map(Place::Arena) }
            });
            found.extend(place);
            known = place.map_or(known, |place| place.range().end);
            at = match place {
                Some(place) => place.range().end,
                None if only_segments => (at + 1).next_multiple_of(SEGMENT),
                None => at + SLICE,
            };
        }
    }
    agree(memory, &mut found);
    found
}

/// Makes the segments agree on one layout, that of most of them. One that does not fit is removed.
fn agree(memory: &impl Memory, found: &mut Vec<Place>) {
    let layout = |place: &Place| match place {
        Place::Segment(segment) => Some((segment.slices_at, segment.stride)),
        _ => None,
    };
    let mut votes: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for layout in found.iter().filter_map(layout) {
        *votes.entry(layout).or_default() += 1;
    }
    let Some((most, _)) = votes.into_iter().max_by_key(|(_, votes)| *votes) else { return };
    found.retain_mut(|place| {
        let Place::Segment(segment) = place else { return true };
        if (segment.slices_at, segment.stride) == most {
            return true;
        }
        let again = read_head(memory, segment.at);
        let bytes = slices(&again, most.0 as usize, most.1 as usize);
        let fits = bytes == Some(SEGMENT);
        *segment = Segment { bytes: SEGMENT, slices_at: most.0, stride: most.1, ..*segment };
        fits
    });
}

/// Reads the beginning of a segment. Descriptions that were never written are zeros.
fn read_head(memory: &impl Memory, at: u64) -> Vec<u8> {
    let mut head = vec![0; SEGMENT_HEAD];
    let end = at.saturating_add(SEGMENT_HEAD as u64);
    for run in memory.resident(at..end) {
        let (from, to) = (run.start.max(at) - at, run.end.min(end).saturating_sub(at));
        if let Some(part) = head.get_mut(from as usize..to as usize) {
            memory.read_resident(at + from, part);
        }
    }
    head
}

/// Returns the segment of version 2 that begins at an address.
fn segment(memory: &impl Memory, at: u64, end: u64) -> Option<Segment> {
    let head = read_head(memory, at);
    for from in SLICES_AT {
        for stride in STRIDES {
            let fits = |bytes: &u64| {
                (*bytes == SEGMENT || *bytes <= end - at) && has_counts(&head, from, *bytes)
            };
            if let Some(bytes) = slices(&head, from, stride).filter(fits) {
                return Some(Segment { at, bytes, slices_at: from as u64, stride: stride as u64 });
            }
        }
    }
    None
}

/// Returns whether the words before the descriptions of slices contain the number of slices,
/// followed by the number of slices of the first span (`segment_slices`, `segment_info_slices`). An
/// array of ones looks like descriptions, but lacks these words.
fn has_counts(head: &[u8], slices_at: usize, bytes: u64) -> bool {
    let info = half_in(head, slices_at).map(u64::from);
    let word = |place: usize| word_in(head, place);
    (0..slices_at.saturating_sub(8)).step_by(8).any(|place| {
        word(place) == Some(bytes / SLICE) && info.is_some() && word(place + 8) == info
    })
}

/// Returns the size of a segment with these descriptions of slices, in bytes. Its spans are
/// consecutive up to its end. The first slice of each has the number of its slices, and the last
/// one its offset from the first (`slice_count`, `slice_offset`).
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
        // The first span is the head of the segment. A huge block is the only span after it.
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

/// Returns the arena of version 3 that begins at an address. Its head has the number of its slices,
/// the number of slices that describe it, and the places of its bitmaps in these. Each bitmap
/// begins with its number of chunks.
fn arena(memory: &impl Memory, at: u64, end: u64) -> Option<Arena> {
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
        let bitmaps = || bitmaps(memory, at, (slices, info), &head[..length], place + 2);
        if is_head && let Some((bitmaps_at, bitmaps)) = bitmaps() {
            return Some(Arena { at, slices, info, bitmaps_at, bitmaps });
        }
    }
    None
}

/// Returns the place of the first bitmap's pointer, in words, and the other bitmaps.
fn bitmaps(
    memory: &impl Memory,
    at: u64,
    (slices, info): (u64, u64),
    head: &[u8],
    from: usize,
) -> Option<(u64, [u64; BITMAPS - 1])> {
    let within = at..at + info * SLICE;
    let words = (from..head.len() / 8).map(|place| word_in(head, place * 8).unwrap_or(0));
    let words: Vec<u64> = words.collect();
    words.windows(BITMAPS).enumerate().find_map(|(place, bitmaps)| {
        let are_in_order = bitmaps.windows(2).all(|pair| pair[0] < pair[1])
            && bitmaps.iter().all(|bitmap| within.contains(bitmap) && bitmap.is_multiple_of(64));
        // The first has another form (`mi_bbitmap_t`).
        let are_bitmaps = are_in_order
            && bitmaps[1..]
                .iter()
                .all(|bitmap| crate::memory::word(memory, *bitmap) == Some(slices / CHUNK));
        are_bitmaps.then(|| ((from + place) as u64, [bitmaps[1], bitmaps[2], bitmaps[3]]))
    })
}

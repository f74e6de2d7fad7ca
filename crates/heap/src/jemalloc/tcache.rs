//! The caches of threads (`tcache.h`, `cache_bin.h`). Cached regions count as allocated in the
//! slabs.
//!
//! A cache is in the thread's local storage, mostly near the end of its stack's mapping. It is
//! recognised by its bins, one for each small size class, whose stacks of pointers are consecutive.

use std::ops::Range;

use super::extent::BitsLayout;
use super::size_class;
use crate::memory::{ADDRESS_END, Memory, word_in};
use crate::ranges::without;
use crate::scattered::Scattered;

/// Bytes of a bin.
const BIN: usize = 24;
/// Maximum number of bins: small classes, and large ones up to 4 MiB. With larger pages, more of
/// them are small.
const MAX_BINS: usize = 76;
/// Bytes of the bins that every jemalloc has, whatever its pages.
const SMALL_BINS: usize = BIN * size_class::MIN_SMALL;
/// Maximum distance between the stacks of two neighbouring bins.
const MAX_DISTANCE: u64 = 64 << 10;
/// Maximum number of pointers in a bin before 5.3.
const MAX_CACHED: u32 = 4096;
/// Maximum number of cached regions whose addresses are passed on.
const MAX_LISTED: u64 = 1 << 20;
/// Number of bytes at the start and at the end of each mapping that are searched for caches. The
/// local storage of a static program's first thread is at the beginning of the heap, that of other
/// threads at the end of their stacks.
const SOUGHT: u64 = 1 << 20;
/// Number of bytes read at once.
const PART: u64 = 256 << 10;

/// A bin: the address and the number of its pointers.
struct CacheBin {
    /// The address of the first pointer; before 5.3, the end of the last one.
    at: u64,
    count: u64,
    /// The addresses of its stack, as far as they are known.
    stack: Range<u64>,
}

/// The cached regions of each size class.
pub(super) type CachedRegions = [u64; MAX_BINS];

/// What the caches of threads pass on.
pub(super) enum InCache {
    /// The size class and the address of a cached region.
    Region(usize, u64),
    /// The addresses of the stacks of a cache, of which at least one leads to a region of its
    /// class. They are in memory that jemalloc allocated for itself.
    Stacks(Range<u64>),
}

/// Counts the regions that threads cache. `places` may contain caches, `extents` are jemalloc's, in
/// order. `class_of` returns the size class of an address. `each` receives the stacks and the
/// regions, except those beyond [`MAX_LISTED`].
pub(super) fn count(
    memory: &impl Memory,
    version: BitsLayout,
    places: &[Range<u64>],
    extents: &[Range<u64>],
    class_of: impl Fn(u64) -> Option<usize>,
    mut each: impl FnMut(InCache),
) -> CachedRegions {
    let mut cached = [0; MAX_BINS];
    let mut words = Scattered::new(memory);
    let mut buffer = vec![0; PART as usize];
    let mut left = MAX_LISTED;
    for place in places {
        for part in without(place.clone(), extents) {
            for part in ends(part) {
                each_cache(memory, version, part, &mut buffer, |bins| {
                    let mut is_cache = false;
                    for (class, bin) in bins.iter().enumerate().filter(|(_, bin)| bin.count > 0) {
                        let at = match version.is_since_53() {
                            true => Some(bin.at),
                            false => bin.at.checked_sub(8),
                        };
                        // A bin is accepted if its next region is of its class.
                        let region = at.and_then(|at| words.word(at));
                        if region.and_then(&class_of) == Some(class) {
                            is_cache = true;
                            cached[class] += bin.count;
                            let first = match version.is_since_53() {
                                true => bin.at,
                                false => bin.at.saturating_sub(8 * bin.count),
                            };
                            let count = bin.count.min(left);
                            left -= count;
                            let places = (0..count).map(|place| first + 8 * place);
                            let regions = places.filter_map(|at| words.word(at));
                            regions.for_each(|region| each(InCache::Region(class, region)));
                        }
                    }
                    if is_cache && let Some(stacks) = stacks(bins) {
                        each(InCache::Stacks(stacks));
                    }
                });
            }
        }
    }
    cached
}

/// Returns the addresses of the stacks of a cache, which are consecutive.
fn stacks(bins: &[CacheBin]) -> Option<Range<u64>> {
    let [first, second, .., last] = bins else { return None };
    let start = match first.stack.is_empty() {
        // The stacks of the first two classes have the same length.
        true => first.stack.end.checked_sub(second.stack.end.checked_sub(first.stack.end)?)?,
        false => first.stack.start,
    };
    (start < last.stack.end).then_some(start..last.stack.end)
}

/// Returns the start and the end of a range, or all of it if it is small.
fn ends(range: Range<u64>) -> Vec<Range<u64>> {
    if range.end - range.start <= 2 * SOUGHT {
        vec![range]
    } else {
        vec![range.start..range.start + SOUGHT, range.end - SOUGHT..range.end]
    }
}

/// Calls `each` with the bins of each cache in a range.
fn each_cache(
    memory: &impl Memory,
    version: BitsLayout,
    range: Range<u64>,
    bytes: &mut [u8],
    mut each: impl FnMut(&[CacheBin]),
) {
    for run in memory.resident(range.clone()) {
        let end = run.end.min(range.end);
        let mut at = run.start.max(range.start);
        while at + SMALL_BINS as u64 <= end {
            let part = &mut bytes[..(end - at).min(PART) as usize];
            let length = memory.read_resident(at, part);
            let is_last = at + PART >= end || (length as u64) < PART;
            let needed = if is_last { SMALL_BINS } else { BIN * MAX_BINS };
            let mut place = 0;
            while place + needed <= length {
                let found = bins(version, &part[place..length]);
                place += match &found {
                    Some(bins) => {
                        each(bins);
                        SMALL_BINS
                    }
                    None => 8,
                };
            }
            if is_last {
                break;
            }
            // A cache could still begin there.
            at += place as u64;
        }
    }
}

/// Returns the bins at the beginning of `bytes`, if there are enough.
fn bins(version: BitsLayout, bytes: &[u8]) -> Option<Vec<CacheBin>> {
    let mut end_before = 0;
    let mut next = |at: usize| {
        let words = [word_in(bytes, at)?, word_in(bytes, at + 8)?, word_in(bytes, at + 16)?];
        let (bin, end) = match version.is_since_53() {
            true => bin_of_53(words)?,
            false => bin_of_52(words)?,
        };
        let follows = end_before == 0 || (end_before < end && end - end_before <= MAX_DISTANCE);
        end_before = end;
        follows.then_some(bin)
    };
    // The check of the first bin rejects most words.
    let mut found = vec![next(0)?];
    found.extend((1..MAX_BINS).map_while(|bin| next(bin * BIN)));
    (found.len() >= size_class::MIN_SMALL).then_some(found)
}

/// `{ head, requests, u16 low_water, full, empty, … }`: the pointers lie from `head` up to the next
/// address that ends in `empty`. Returns the bin and the end of its stack.
fn bin_of_53([head, _, lows]: [u64; 3]) -> Option<(CacheBin, u64)> {
    let low = |place: u32| (lows >> (16 * place)) as u16;
    let (low_water, full, empty) = (low(0), low(1), low(2));
    let room = empty.wrapping_sub(full);
    let used = empty.wrapping_sub(head as u16);
    let is_bin = is_pointer(head)
        && room > 0
        && room.is_multiple_of(8)
        && used <= room
        && used.is_multiple_of(8)
        && empty.wrapping_sub(low_water) <= room;
    is_bin.then(|| {
        let end = head + u64::from(used);
        let stack = end.saturating_sub(u64::from(room))..end;
        (CacheBin { at: head, count: u64::from(used) / 8, stack }, end)
    })
}

/// `{ i32 low_water, cached; u64 requests; avail }`: the pointers lie before `avail`. Returns the
/// bin and `avail`.
fn bin_of_52([counts, _, avail]: [u64; 3]) -> Option<(CacheBin, u64)> {
    let (low_water, count) = (counts as u32 as i32, (counts >> 32) as u32);
    let is_bin = is_pointer(avail)
        && count <= MAX_CACHED
        && low_water >= -1
        && i64::from(low_water) <= i64::from(count);
    let bin = CacheBin { at: avail, count: u64::from(count), stack: avail..avail };
    is_bin.then_some((bin, avail))
}

fn is_pointer(word: u64) -> bool {
    (0x1_0000..ADDRESS_END).contains(&word) && word.is_multiple_of(8)
}

//! Finds glibc's arenas and settings, and their layout, by their form.
//!
//! No version is assumed: an empty bin points to itself, the ring of arenas closes, and the
//! settings are recognised by their defaults. Values that cannot be determined are not guessed.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::HEAP_BYTES;
use crate::memory::{ADDRESS_END, Memory, half_in, word, word_in};

/// Number of bins of an arena (`NBINS - 1`). The first contains the unsorted chunks.
pub(super) const BINS: u64 = 127;
/// Size of a bin's header in bytes: forward and backward pointer.
pub(super) const BIN: u64 = 16;
/// Distance from the chunk that a bin's header stands for to the header, in bytes (`offsetof
/// (malloc_chunk, fd)`).
const FD: u64 = 16;
/// Place of `next`, `next_free`, `attached_threads`, `system_mem`, `max_system_mem`, after the bins
/// and the bitmap.
const NEXT: u64 = BINS * BIN + 16;
const SYSTEM_MEM: u64 = NEXT + 24;
const MAX_SYSTEM_MEM: u64 = NEXT + 32;
/// Distance from an arena's bins to the end of its structure, in bytes.
const END: u64 = NEXT + 40;
/// Maximum number of arenas, more than any process has.
const MOST_ARENAS: usize = 1 << 16;
/// Maximum number of arenas to follow in all rings, including candidates that are not rings.
const MOST_FOLLOWED: usize = 4 * MOST_ARENAS;
/// Maximum number of bytes of a library's data to search. No known library has more.
const MOST_SEARCHED: u64 = 64 << 20;

/// The addresses of the arenas, and their layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The arenas in the order of their ring. The main arena is the first.
    pub arenas: Vec<u64>,
    /// Bytes of an arena before its bins: 112 up to 2.42, 24 from 2.43 on.
    pub head_bytes: u64,
    /// The settings, if they were found.
    pub settings: Option<MallocParams>,
}

/// The settings in force (`mp_`), and the allocator's own counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MallocParams {
    /// The addresses of the fields of `mp_` that are read.
    #[serde(default)]
    pub range: Range<u64>,
    /// Minimum size of the top chunk from which the main heap is trimmed, in bytes.
    pub trim_threshold_bytes: u64,
    /// Number of bytes requested from the system beyond the need.
    pub top_pad_bytes: u64,
    /// Minimum size of a chunk that is mmapped, in bytes.
    pub mmap_threshold_bytes: u64,
    /// Whether both thresholds still adapt to the chunks that the program frees.
    pub mmap_threshold_dynamic: bool,
    /// Maximum number of arenas, if it was set.
    pub arena_max: Option<u64>,
    /// Current number of mmapped chunks.
    pub mmapped_count: u64,
    /// Bytes of those mappings.
    pub mmapped_bytes: u64,
    /// Start of the main heap; 0 before it exists.
    pub sbrk_base: u64,
    /// Number of size classes of a thread's cache.
    pub tcache_bins: u64,
    /// The largest block that is cached, in bytes.
    pub tcache_max_bytes: u64,
    /// Maximum number of blocks of a class that a thread caches.
    pub tcache_count: u64,
    /// Unit by which the end of the main heap moves, in bytes, if huge pages are requested
    /// (`thp_pagesize`, from 2.35 on); 0 if they are not.
    pub thp_page_bytes: u64,
}

impl Layout {
    /// Finds the arenas in ranges of writable data: those of the C library, or of a statically
    /// linked executable. Returns `None` if there are none, because the program uses another
    /// allocator or has not allocated yet.
    pub fn find(memory: &impl Memory, data: &[Range<u64>]) -> Option<Self> {
        let mut budget = MOST_FOLLOWED;
        for range in data {
            let range = range.start..range.end.min(range.start.saturating_add(MOST_SEARCHED));
            let runs = memory.resident(range);
            let find = |base: u64, bytes: &[u8]| find_ring(memory, base, bytes, &mut budget);
            let Some((arenas, head_bytes)) = search(memory, &runs, find) else { continue };
            let settings = search(memory, &runs, find_settings);
            return Some(Self { arenas, head_bytes, settings });
        }
        None
    }

    /// Returns the address of an arena's bins.
    pub fn bins(&self, arena: u64) -> u64 {
        arena + self.head_bytes
    }

    /// Returns the addresses of the arenas' structures and of the settings.
    pub(super) fn structures(&self) -> Vec<Range<u64>> {
        let arenas = self.arenas.iter().map(|arena| *arena..self.end(*arena));
        arenas.chain(self.settings.iter().map(|settings| settings.range.clone())).collect()
    }

    /// Returns the end of an arena's structure.
    pub fn end(&self, arena: u64) -> u64 {
        self.bins(arena) + END
    }

    /// Returns the address of an arena's pointer to its top chunk.
    pub fn top_at(&self, arena: u64) -> u64 {
        self.bins(arena) - 16
    }

    /// Returns the number of bytes that an arena has from the system.
    pub(super) fn system_bytes(&self, memory: &impl Memory, arena: u64) -> Option<u64> {
        word(memory, self.bins(arena) + SYSTEM_MEM)
    }

    /// Returns the maximum number of bytes that an arena ever had from the system.
    pub(super) fn max_system_bytes(&self, memory: &impl Memory, arena: u64) -> Option<u64> {
        word(memory, self.bins(arena) + MAX_SYSTEM_MEM)
    }

    /// Returns whether an arena's parts need not be contiguous (`NONCONTIGUOUS_BIT`).
    pub(super) fn is_scattered(&self, memory: &impl Memory, arena: u64) -> bool {
        word(memory, arena).is_some_and(|w| (w >> 32) & 2 != 0)
    }

    /// Returns the heads of an arena's fast bins; none from 2.43 on, which has no such bins.
    pub fn fast_bins(&self, arena: u64) -> Option<Range<u64>> {
        // There are ten, before the top and the last remainder.
        (self.head_bytes >= 104).then(|| self.bins(arena) - 96..self.bins(arena) - 16)
    }
}

/// Searches resident data in parts, because a program's data may be large.
fn search<T>(
    memory: &impl Memory,
    runs: &[Range<u64>],
    mut look: impl FnMut(u64, &[u8]) -> Option<T>,
) -> Option<T> {
    const PART: u64 = 1 << 20;
    // No searched structure is longer, so each is completely in one part or in the next.
    const OVERLAP: u64 = 4 << 10;
    let mut bytes = Vec::new();
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let end = run.end.min(at.saturating_add(PART + OVERLAP));
            bytes.resize(usize::try_from(end - at).unwrap_or(0), 0);
            let length = memory.read(at, &mut bytes);
            if let Some(found) = look(at, &bytes[..length]) {
                return Some(found);
            }
            at = at.saturating_add(PART);
        }
    }
    None
}

/// Finds a main arena in data that begins at `base`. Returns its ring, and the number of bytes
/// before its bins.
fn find_ring(
    memory: &impl Memory,
    base: u64,
    bytes: &[u8],
    budget: &mut usize,
) -> Option<(Vec<u64>, u64)> {
    let at = |address: u64| word_in(bytes, usize::try_from(address.checked_sub(base)?).ok()?);
    let mut seen = BTreeSet::new();
    for offset in (0..bytes.len().saturating_sub(16)).step_by(8) {
        let header = base + offset as u64;
        let empty = header.wrapping_sub(FD);
        if at(header) != Some(empty) || at(header + 8) != Some(empty) {
            continue;
        }
        // The header belongs to one of the bins, but its index is unknown.
        for place in 0..BINS {
            let Some(bins) = header.checked_sub(place * BIN).filter(|b| *b >= base) else { break };
            let Some(next) = at(bins + NEXT).filter(|next| *next != 0 && next % 8 == 0) else {
                continue;
            };
            if !seen.insert(bins) || !bins_are_sound(bins, &at) {
                continue;
            }
            let heads = if bins > next && bins - next <= 160 {
                bins - next..bins - next + 1
            } else {
                24..161
            };
            for head in heads.step_by(8) {
                if let Some(ring) = ring(memory, bins - head, head, next, budget) {
                    return Some((ring, head));
                }
            }
        }
    }
    None
}

/// Returns whether these can be the bins of an arena: each points to itself, or to chunks.
fn bins_are_sound(bins: u64, at: &impl Fn(u64) -> Option<u64>) -> bool {
    let sound = |bin: u64| {
        let header = bins + bin * BIN;
        let (Some(fd), Some(bk)) = (at(header), at(header + 8)) else { return false };
        let empty = header - FD;
        (fd == empty && bk == empty) || (fd != empty && bk != empty && is_chunk(fd) && is_chunk(bk))
    };
    let totals = (at(bins + SYSTEM_MEM), at(bins + MAX_SYSTEM_MEM));
    // The program may be changing some of them.
    const IN_FLUX: usize = 3;
    let is_sound = (0..BINS).filter(|bin| !sound(*bin)).count() <= IN_FLUX;
    is_sound && matches!(totals, (Some(now), Some(most)) if now <= most && most < ADDRESS_END)
}

fn is_chunk(address: u64) -> bool {
    address != 0 && address.is_multiple_of(16) && address < ADDRESS_END
}

/// Follows the arenas from one to the next until they come back to the first.
fn ring(
    memory: &impl Memory,
    main: u64,
    head: u64,
    first: u64,
    budget: &mut usize,
) -> Option<Vec<u64>> {
    *budget = budget.checked_sub(1)?;
    // The lock is free, held, or held with waiters.
    if word(memory, main)? as u32 > 2 {
        return None;
    }
    let mut arenas = vec![main];
    let mut next = first;
    while next != main {
        // The other arenas are at the beginning of a heap, after its short head.
        if !next.is_multiple_of(8) || next % HEAP_BYTES > 256 || arenas.len() >= MOST_ARENAS {
            return None;
        }
        *budget = budget.checked_sub(1)?;
        arenas.push(next);
        next = word(memory, next.checked_add(head + NEXT)?)?;
    }
    Some(arenas)
}

/// The layout of the settings in some versions: their places before the classes of the cache.
struct ArenaForm {
    /// Distance from the beginning to the classes of the cache, in bytes.
    length: usize,
    /// Index of the word `thp_pagesize`, if there is one.
    thp: Option<usize>,
    /// Distance from `n_mmaps` to the classes of the cache, in bytes.
    counts: usize,
}

/// The layouts from 2.26, from 2.35 (with huge pages), and from 2.43 (with one more word about
/// them).
const FORMS: [ArenaForm; 3] = [
    ArenaForm { length: 80, thp: None, counts: 40 },
    ArenaForm { length: 104, thp: Some(5), counts: 44 },
    ArenaForm { length: 112, thp: Some(6), counts: 44 },
];

/// Finds the settings by the number of classes of the thread's cache and its largest block, which
/// belong together, and by the words before them.
fn find_settings(base: u64, bytes: &[u8]) -> Option<MallocParams> {
    (FORMS[0].length..bytes.len().saturating_sub(24))
        .step_by(8)
        .filter(|at| {
            let (bins, largest) = (word_in(bytes, *at), word_in(bytes, at + 8));
            // The largest block of `bins` classes, by the definitions of all versions.
            matches!((bins, largest), (Some(bins), Some(largest))
                if (1..=128).contains(&bins) && largest.abs_diff(bins * 16 + 8) <= 16)
        })
        .find_map(|at| FORMS.iter().find_map(|form| read_settings(base, bytes, at, form)))
}

fn read_settings(base: u64, bytes: &[u8], at: usize, form: &ArenaForm) -> Option<MallocParams> {
    let begin = at.checked_sub(form.length)?;
    let field = |place: usize| word_in(bytes, begin + place * 8);
    let count = |place: usize| half_in(bytes, at - form.counts + place * 4);
    let (n_mmaps, n_mmaps_max, max_n_mmaps, no_dyn) = (count(0)?, count(1)?, count(2)?, count(3)?);
    let (mmapped, max_mmapped) = (word_in(bytes, at - 24)?, word_in(bytes, at - 16)?);
    let settings = MallocParams {
        range: base + begin as u64..base + at as u64 + 24,
        trim_threshold_bytes: field(0)?,
        top_pad_bytes: field(1)?,
        mmap_threshold_bytes: field(2)?,
        mmap_threshold_dynamic: no_dyn == 0,
        arena_max: field(4).filter(|max| *max != 0),
        mmapped_count: u64::from(n_mmaps),
        mmapped_bytes: mmapped,
        sbrk_base: word_in(bytes, at - 8)?,
        tcache_bins: word_in(bytes, at)?,
        tcache_max_bytes: word_in(bytes, at + 8)?,
        tcache_count: word_in(bytes, at + 16)?,
        thp_page_bytes: form.thp.and_then(field).unwrap_or(0),
    };
    // The maximum number of mappings is 65536, unless it was set.
    let counts_are_sound = n_mmaps <= max_n_mmaps
        && (n_mmaps_max == 65_536 || n_mmaps <= n_mmaps_max)
        && mmapped <= max_mmapped
        && max_mmapped < ADDRESS_END
        && no_dyn <= 1;
    let arena_test = field(3)?;
    let settings_are_sound = (1..=4096).contains(&arena_test)
        && field(4)? <= 1 << 20
        && settings.sbrk_base < ADDRESS_END
        && settings.sbrk_base.is_multiple_of(8)
        && settings.tcache_count <= 65_535
        && settings.mmap_threshold_bytes > 0
        && (settings.thp_page_bytes == 0 || settings.thp_page_bytes.is_power_of_two());
    (counts_are_sound && settings_are_sound).then_some(settings)
}

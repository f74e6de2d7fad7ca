//! The locks that guard free memory: those of the caches of free extents, and those of the bins of
//! slabs.
//!
//! Each arena is in its own first base block, after the `base_t` with its number and its extent
//! hooks. Its caches of dirty, muzzy and retained extents are consecutive, and so are its bins.
//! They are recognised by this order, by the states in the caches, and by the records that their
//! lists lead to. No symbols are assumed.
//!
//! A mutex of jemalloc (`malloc_mutex_t`) has statistics, a hint since 5.2, and a
//! `pthread_mutex_t`. glibc's first word of the latter is a lock in the protocol of `lll_lock`, for
//! mutexes of the default kind and adaptive ones.
//!
//! Before 5.3, a further mutex, of a pool (`extent_mutex_pool`), guards an extent while it is split
//! or merged. It is not taken here: such an extent is active, and it was made active under the lock
//! of its cache. jemalloc's own handlers of `fork` forget this pool, so a child can hang in it.
//!
//! Sources: jemalloc 5.0.1, 5.1.0, 5.2.0, 5.2.1, 5.3.0 and 5.3.1, `mutex.h`, `ecache.h`, `eset.h`,
//! `extent_structs.h` and `extent.c` (before 5.3), `bin.h`, `base.h`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::extent::{BitsLayout, MIN_PAGE_BYTES, State};
use super::rtree::{Next, Rtree};
use super::{Layout, size_class};
use crate::droppable::{Check, Unguarded};
use crate::memory::{Memory, half_in, word, word_in};
use crate::ranges::joined;

/// Number of bytes of a base block that may contain an arena.
const HEAD_BYTES: u64 = 2 << 20;
/// Place of `base_t` in the first block of an arena: after the block's size, the next block and a
/// record, aligned to 64.
const BASE_AT: usize = 192;
/// Place of the pointer to the extent hooks.
const HOOKS_AT: usize = BASE_AT + 8;
/// Bytes of a mutex since 5.2, and before.
const MUTEX: usize = 112;
const MUTEX_51: usize = 104;
/// Possible places of the `pthread_mutex_t` in a mutex: before the hint up to 5.3.0, and after it
/// since.
const PTHREAD_AT: [usize; 2] = [64, 72];
/// Kinds of a mutex whose lock is that of `lll_lock`: the default one (without elision), and an
/// adaptive one.
const KINDS: [u32; 2] = [0x200, 3];
/// Number of caches of free extents of an arena.
const CACHES: usize = 3;
/// Number of bins of a shard: one for each small size class, with pages of 4 KiB.
const BINS: usize = size_class::MIN_SMALL;
/// Number of bytes after the caches that are searched for the bins.
const BINS_WITHIN: usize = 256 << 10;
/// Bytes of a bin (`bin_t`) from 5.3 on, and the places of the current slab, the heap of those that
/// are not full, and the list of full ones.
const BIN: usize = 224;
const BIN_LISTS: [usize; 3] = [192, 200, 216];

/// The layout of a cache of free extents (`ecache_t`, `extents_t`).
struct CacheShape {
    /// Its size in bytes.
    bytes: usize,
    /// The places of its state. The number of its arena follows the last of them from 5.3 on.
    states: &'static [usize],
    /// The places of the list of all extents.
    lists: &'static [usize],
}

/// The layout from 5.3 on: two sets of extents, one of them for guarded extents.
const SHAPE_53: CacheShape = CacheShape {
    bytes: 19440,
    states: &[MUTEX + 9648, MUTEX + 19304, MUTEX + 19312],
    lists: &[MUTEX + 9632, MUTEX + 19288],
};
const SHAPE_52: CacheShape =
    CacheShape { bytes: 4968, states: &[MUTEX + 4848], lists: &[MUTEX + 4832] };
/// The layout of 5.0 and 5.1, without the numbers and the bytes of the extents of each size.
const SHAPE_51: CacheShape =
    CacheShape { bytes: 1760, states: &[MUTEX_51 + 1648], lists: &[MUTEX_51 + 1632] };

/// The locks of the arenas.
#[derive(Debug, Default)]
pub struct Locks {
    arenas: BTreeMap<u64, ArenaLocks>,
}

/// The addresses of the locks of an arena.
#[derive(Debug, Clone)]
struct ArenaLocks {
    /// The locks of its dirty, muzzy and retained extents.
    caches: [u64; CACHES],
    /// The locks of its bins, by size class; `None` for a bin that is not confirmed.
    bins: [Option<u64>; BINS],
    /// The check that the arena still exists.
    check: Check,
}

impl Locks {
    /// Returns the lock of the free extents of an arena in a state.
    pub(super) fn of_extents(&self, arena: u64, state: State) -> Option<u64> {
        let place = match state {
            State::Dirty => 0,
            State::Muzzy => 1,
            State::Retained => 2,
            State::Active | State::Other => return None,
        };
        Some(self.arenas.get(&arena)?.caches[place])
    }

    /// Returns the check that an arena is still the one to which these locks belong. A program can
    /// destroy an arena (`arena.<i>.destroy`). Another arena with other locks then gets its number,
    /// and its pages are unmapped or zeroed.
    pub(super) fn check_of(&self, arena: u64) -> Option<Check> {
        Some(self.arenas.get(&arena)?.check)
    }

    /// Returns the lock of the slabs of a size class.
    pub(super) fn of_slabs(&self, arena: u64, class: usize) -> Option<u64> {
        *self.arenas.get(&arena)?.bins.get(class)?
    }
}

/// Finds the locks of a heap. `mappings` are the private writable anonymous mappings, in order;
/// `module` are the addresses of the mapped file that contains jemalloc.
///
/// # Errors
/// Fails with the reason if the free extents cannot be dropped safely.
pub fn locks(
    memory: &impl Memory,
    layout: &Layout,
    mappings: &[Range<u64>],
    module: &[Range<u64>],
) -> Result<Locks, Unguarded> {
    if layout.format.page_bytes != MIN_PAGE_BYTES {
        return Err("it was built for larger pages than 4 KiB, for which its locks are not known");
    }
    let anonymous = joined(mappings.to_vec());
    let mut tree = Rtree::new(memory, &anonymous);
    let (mut own, mut has_huge_pages) = (BTreeSet::new(), false);
    tree.each_extent(layout.root, |_, found| {
        has_huge_pages |= layout.bits(found.record.word).is_of_huge_pages();
        own.extend(found.places());
        if has_huge_pages || memory.is_over() { Next::Stop } else { Next::Go }
    });
    if has_huge_pages {
        return Err(
            "its allocator of huge pages is on (opt.hpa), whose free pages have no records",
        );
    }
    let (mut locks, mut hooks) = (Locks::default(), BTreeSet::new());
    for block in tree.base_blocks(&own) {
        let Some(arena) = Head::read(memory, &block).and_then(|head| head.arena(memory, layout))
        else {
            continue;
        };
        hooks.insert(arena.hooks);
        if locks.arenas.insert(arena.number, arena.locks).is_some() {
            return Err("two of its arenas have the same number");
        }
    }
    if locks.arenas.is_empty() {
        return Err("the locks of its arenas were not found");
    }
    let are_own = hooks.len() == 1
        && hooks.iter().all(|at| module.iter().any(|mapping| mapping.contains(at)));
    if !are_own {
        return Err("the program has set extent hooks, which may treat its extents in any way");
    }
    Ok(locks)
}

/// An arena.
struct Arena {
    number: u64,
    /// The address of its extent hooks.
    hooks: u64,
    locks: ArenaLocks,
}

/// The beginning of a base block.
struct Head {
    at: u64,
    bytes: Vec<u8>,
}

impl Head {
    /// Reads the pages that are resident. The others are zeros.
    fn read(memory: &impl Memory, block: &Range<u64>) -> Option<Self> {
        let end = block.end.min(block.start.checked_add(HEAD_BYTES)?);
        let mut bytes = vec![0; (end - block.start) as usize];
        for run in memory.resident(block.start..end) {
            let (from, to) = (run.start.max(block.start), run.end.min(end));
            let part = bytes.get_mut((from - block.start) as usize..(to - block.start) as usize)?;
            memory.read_resident(from, part);
        }
        Some(Self { at: block.start, bytes })
    }

    fn word(&self, place: usize) -> Option<u64> {
        word_in(&self.bytes, place)
    }

    fn half(&self, place: usize) -> Option<u32> {
        half_in(&self.bytes, place)
    }

    /// Returns the arena of the block, if it has one.
    fn arena(&self, memory: &impl Memory, layout: &Layout) -> Option<Arena> {
        let number = self.half(BASE_AT)?;
        let (caches_at, shape) = self.caches(memory, layout, number)?;
        let places = |cache: usize| caches_at + cache * shape.bytes;
        let are_mutexes =
            |pthread: &&usize| (0..CACHES).all(|cache| self.is_mutex(places(cache) + **pthread));
        let mut fitting = PTHREAD_AT.iter().filter(are_mutexes);
        let (Some(pthread), None) = (fitting.next(), fitting.next()) else { return None };
        let caches = [0, 1, 2].map(|cache| self.at + (places(cache) + pthread) as u64);
        let bins = match layout.format.version {
            BitsLayout::V50 | BitsLayout::V52 => None,
            BitsLayout::V53 => self.bins(memory, layout, number, places(CACHES), *pthread),
        };
        let bins = bins.unwrap_or([None; BINS]);
        let hooks = self.word(HOOKS_AT)?;
        let check = Check::word(self.at + HOOKS_AT as u64, hooks);
        let locks = ArenaLocks { caches, bins, check };
        Some(Arena { number: number.into(), hooks, locks })
    }

    /// Returns the place and the layout of the caches of an arena, if they are at one place only.
    fn caches(
        &self,
        memory: &impl Memory,
        layout: &Layout,
        number: u32,
    ) -> Option<(usize, &'static CacheShape)> {
        let shapes: &[&'static CacheShape] = match layout.format.version {
            BitsLayout::V50 => &[&SHAPE_51],
            BitsLayout::V52 => &[&SHAPE_51, &SHAPE_52],
            BitsLayout::V53 => &[&SHAPE_53],
        };
        let mut found = None;
        for shape in shapes {
            let last = shape.states[shape.states.len() - 1];
            for state in (last..self.bytes.len()).step_by(8) {
                if self.half(state) == Some(1)
                    && self.are_caches(memory, layout, number, shape, state - last)
                    && found.replace((state - last, *shape)).is_some()
                {
                    return None;
                }
            }
        }
        found
    }

    /// Returns whether the caches of an arena are at this place.
    fn are_caches(
        &self,
        memory: &impl Memory,
        layout: &Layout,
        number: u32,
        shape: &CacheShape,
        at: usize,
    ) -> bool {
        (0..CACHES).all(|cache| {
            let at = at + cache * shape.bytes;
            let state = cache as u32 + 1;
            let last = at + shape.states[shape.states.len() - 1];
            // From 5.3 on, the number of the arena follows; before, whether merging is delayed.
            let follows = self.half(last + 4);
            let is_followed = match layout.format.version {
                BitsLayout::V50 | BitsLayout::V52 => follows.is_some_and(|flag| flag <= 1),
                BitsLayout::V53 => follows == Some(number),
            };
            is_followed
                && shape.states.iter().all(|place| self.half(at + place) == Some(state))
                && shape.lists.iter().all(|place| {
                    self.word(at + place).is_some_and(|first| {
                        first == 0 || self.is_in_state(memory, layout, number, first, state)
                    })
                })
        })
    }

    /// Returns whether the record at an address is that of an extent of the arena in the state of a
    /// cache.
    fn is_in_state(
        &self,
        memory: &impl Memory,
        layout: &Layout,
        number: u32,
        record: u64,
        state: u32,
    ) -> bool {
        let states = [State::Dirty, State::Muzzy, State::Retained];
        let bits = word(memory, record).map(|word| layout.bits(word));
        bits.is_some_and(|bits| {
            bits.arena() == u64::from(number) && bits.state() == states[state as usize - 1]
        })
    }

    /// Returns whether a `pthread_mutex_t` of a known kind is at this place. Its lock may be held.
    fn is_mutex(&self, at: usize) -> bool {
        let half = |place: usize| self.half(at + place);
        // `__lock`, `__count`, `__kind`, `__list`.
        half(0).is_some_and(|lock| lock <= 2)
            && half(4) == Some(0)
            && half(16).is_some_and(|kind| KINDS.contains(&kind))
            && self.word(at + 24) == Some(0)
            && self.word(at + 32) == Some(0)
    }

    /// Finds the locks of the bins, one for each size class. A bin is confirmed if it leads to a
    /// slab of its class. No bin may lead to anything else.
    fn bins(
        &self,
        memory: &impl Memory,
        layout: &Layout,
        number: u32,
        from: usize,
        pthread: usize,
    ) -> Option<[Option<u64>; BINS]> {
        let mut found = None;
        for at in (from..self.bytes.len().min(from + BINS_WITHIN)).step_by(8) {
            if !(0..BINS).all(|class| self.is_mutex(at + class * BIN + pthread)) {
                continue;
            }
            let bin = |class: usize| {
                let at = at + class * BIN;
                let mut leads = BIN_LISTS.iter().filter_map(|place| self.word(at + place));
                let mut is_confirmed = false;
                let is_sound = leads.all(|record| {
                    let is_slab = is_slab(memory, layout, number, record, class);
                    is_confirmed |= is_slab;
                    is_slab || record == 0
                });
                is_sound.then(|| is_confirmed.then_some(self.at + (at + pthread) as u64))
            };
            let bins: Option<Vec<Option<u64>>> = (0..BINS).map(bin).collect();
            let bins = bins.filter(|bins| bins.iter().any(Option::is_some));
            if let Some(bins) = bins.and_then(|bins| bins.try_into().ok())
                && found.replace(bins).is_some()
            {
                return None;
            }
        }
        found
    }
}

/// Returns whether the record at an address is that of a slab of the first shard.
fn is_slab(memory: &impl Memory, layout: &Layout, number: u32, record: u64, class: usize) -> bool {
    let word = if record == 0 { None } else { word(memory, record) };
    word.map(|word| layout.bits(word)).is_some_and(|bits| {
        bits.arena() == u64::from(number)
            && bits.state() == State::Active
            && bits.is_slab()
            && bits.class() == class
            && bits.shard() == 0
    })
}

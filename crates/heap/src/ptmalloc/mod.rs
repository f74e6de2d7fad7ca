//! glibc's allocator, from 2.26 on.
//!
//! [`Layout::find`] finds the arenas and how they are laid out, [`walk`] goes over every chunk of the
//! main heap, the heaps of the other arenas and the blocks with a mapping of their own, and says what
//! `malloc_trim(0)` would return. The rules are those of glibc's `malloc/malloc.c` and `arena.c`.

mod layout;
mod lists;
mod walk;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::memory::{Memory, Residency, word};
use walk::{Ending, Stretch, TopRule, Walker};

pub use layout::{Layout, Settings};
pub use lists::Caches;
pub use walk::{Class, ResidentTally, Tally};

/// Heaps of thread arenas begin at multiples of this (`HEAP_MAX_SIZE`), in bytes.
pub(crate) const HEAP_BYTES: u64 = 64 << 20;

/// A mapping that may hold a part of the heap: private, writable, of no file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Where it is.
    pub range: Range<u64>,
    /// Whether it is the one that `brk` moves the end of.
    pub is_brk: bool,
}

/// Everything that the allocator holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heap {
    /// The arenas; the main one first.
    pub arenas: Vec<Arena>,
    /// Blocks that have a mapping of their own.
    pub mmapped: Mmapped,
    /// What the threads hold back for themselves; counted as used by the arenas.
    pub caches: Caches,
    /// Resident bytes of the blocks in the caches.
    pub cached_resident_bytes: u64,
    /// Resident bytes of the caches' own structures; counted as used by the arenas.
    pub cache_structures_resident_bytes: u64,
    /// The addresses that belong to it all, in order.
    pub areas: Vec<Range<u64>>,
    /// How often something had to be read again, and how often the walk went back.
    pub rereads: u64,
    /// How often the walk went back to an earlier place.
    pub returns: u64,
}

/// One arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arena {
    /// Where it is.
    pub address: u64,
    /// The pieces that it consists of.
    pub heaps: u64,
    /// What it has got from the system by its own account, in bytes.
    pub system_bytes: u64,
    /// What was walked of it, in bytes.
    pub walked_bytes: u64,
    /// What it holds.
    pub tally: Tally,
}

impl Arena {
    /// Whether what was walked is what the arena itself says that it has got.
    pub fn is_whole(&self) -> bool {
        self.walked_bytes == self.system_bytes && self.tally.unwalked_bytes == 0
    }
}

/// Blocks that have a mapping of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mmapped {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of those bytes are resident.
    pub resident_bytes: u64,
}

impl Heap {
    /// What all arenas hold together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for arena in &self.arenas {
            total.add(&arena.tally);
        }
        total
    }
}

/// Walks everything that the allocator holds. `mappings` are those that may hold a part of it, in order.
pub fn walk(memory: &impl Memory, layout: &Layout, mappings: &[Mapping]) -> Heap {
    let fast = lists::fast_chunks(memory, layout);
    let mut work = Work {
        memory,
        layout,
        mappings,
        walker: Walker::new(memory, &fast, &lists::CACHE_SIZES),
        suspects: Vec::new(),
        areas: Vec::new(),
        rereads: 0,
        returns: 0,
    };
    let mut arenas: Vec<Arena> = Vec::new();
    for address in layout.arenas.iter().skip(1) {
        arenas.push(work.thread_arena(*address));
    }
    if let Some(main) = layout.arenas.first() {
        arenas.insert(0, work.main_arena(*main));
    }
    let mmapped = work.mmapped();
    let caches = lists::caches(memory, &work.suspects);
    let Work { mut areas, rereads, returns, .. } = work;
    areas.sort_unstable_by_key(|a| a.start);
    let resident = |ranges: &[Range<u64>]| {
        let runs = areas.iter().flat_map(|a| memory.resident(a.clone())).collect();
        let mut residency = Residency::new(runs);
        ranges.iter().map(|r| residency.bytes(r.clone())).sum()
    };
    Heap {
        arenas,
        mmapped,
        cached_resident_bytes: resident(&caches.blocks),
        cache_structures_resident_bytes: resident(&caches.structures),
        caches,
        areas,
        rereads,
        returns,
    }
}

struct Work<'m, M> {
    memory: &'m M,
    layout: &'m Layout,
    mappings: &'m [Mapping],
    walker: Walker<'m, M>,
    suspects: Vec<u64>,
    areas: Vec<Range<u64>>,
    rereads: u64,
    returns: u64,
}

impl<M: Memory> Work<'_, M> {
    /// Walks a stretch, and adds it to an arena.
    fn stretch(&mut self, arena: &mut Arena, mut stretch: Stretch) {
        let walked = self.walker.walk(&mut stretch);
        self.rereads += walked.rereads;
        self.returns += walked.returns;
        self.suspects.extend(walked.suspects);
        arena.tally.add(&walked.tally);
        arena.walked_bytes += stretch.range.end.saturating_sub(stretch.range.start);
        arena.heaps += 1;
    }

    fn arena(&self, address: u64) -> Arena {
        Arena {
            address,
            heaps: 0,
            system_bytes: self.layout.system_bytes(self.memory, address).unwrap_or(0),
            walked_bytes: 0,
            tally: Tally::default(),
        }
    }

    /// The chunk at the top of an arena, and where it ends.
    fn top(&self, arena: u64) -> Option<Range<u64>> {
        let top = word(self.memory, self.layout.top_at(arena))?;
        let size = word(self.memory, top.checked_add(8)?)? & !7;
        Some(top..top.checked_add(size)?)
    }

    fn thread_arena(&mut self, address: u64) -> Arena {
        let mut arena = self.arena(address);
        let head = address % HEAP_BYTES;
        let Some(top) = self.top(address) else { return arena };
        let mut heap = top.start - top.start % HEAP_BYTES;
        let mut is_last = true;
        // Each heap names the one before it; the first holds the arena itself.
        for _ in 0..=self.mappings.len() {
            let size = word(self.memory, heap + 16).filter(|s| *s <= HEAP_BYTES).unwrap_or(0);
            let is_first = heap == address - head;
            let begin = if is_first { self.layout.end(address) } else { heap + head };
            let begin = begin.next_multiple_of(16);
            let (end, ending) = if is_last {
                (top.end, Ending::Top(TopRule::Kept))
            } else {
                (heap + size, Ending::Fence)
            };
            if begin >= end || end > heap + HEAP_BYTES {
                break;
            }
            let own = self.memory.resident(heap..begin);
            let mut own = Residency::new(own);
            arena.tally.resident.metadata_bytes += own.bytes(heap..begin);
            arena.walked_bytes += begin - heap;
            self.areas.push(heap..heap + size.max(end - heap));
            let top_at = self.layout.top_at(address);
            self.stretch(&mut arena, Stretch { range: begin..end, ending, top_at });
            if is_first {
                break;
            }
            let Some(previous) = word(self.memory, heap + 8) else { break };
            if previous == 0 || previous % HEAP_BYTES != 0 {
                break;
            }
            heap = previous;
            is_last = false;
        }
        arena
    }

    fn main_arena(&mut self, address: u64) -> Arena {
        let mut arena = self.arena(address);
        let Some(top) = self.top(address) else { return arena };
        let top_at = self.layout.top_at(address);
        let settings = self.layout.settings.as_ref();
        let brk = self.mappings.iter().find(|m| m.is_brk).map(|m| m.range.clone());
        let base = settings.map(|s| s.sbrk_base).filter(|b| *b != 0);
        let base = base.or(brk.as_ref().map(|b| b.start)).unwrap_or(0);
        // What the user gets is aligned, which is 16 bytes behind the chunk.
        let first = base.next_multiple_of(16);
        let is_in_brk =
            base != 0 && top.start >= base && brk.as_ref().is_some_and(|b| b.contains(&top.start));
        if is_in_brk && !self.layout.is_scattered(self.memory, address) {
            let stretch =
                Stretch { range: first..top.end, ending: Ending::Top(TopRule::Trimmed), top_at };
            self.areas.push(base..top.end);
            arena.walked_bytes += first - base;
            self.stretch(&mut arena, stretch);
            return arena;
        }
        if is_in_brk {
            let stretch =
                Stretch { range: first..top.end, ending: Ending::Top(TopRule::Trimmed), top_at };
            self.areas.push(base..top.end);
            self.stretch(&mut arena, stretch);
        } else if let Some(brk) = brk.filter(|b| base != 0 && b.contains(&base)) {
            self.areas.push(base..brk.end);
            self.stretch(
                &mut arena,
                Stretch { range: first..brk.end, ending: Ending::Fence, top_at },
            );
        }
        self.pieces(&mut arena, &top, top_at);
        arena
    }

    /// The pieces of a main arena that could not grow by `brk`: mappings which are walked soundly from
    /// their beginning to a fence, or to the top.
    fn pieces(&mut self, arena: &mut Arena, top: &Range<u64>, top_at: u64) {
        for mapping in self.mappings.iter().filter(|m| !m.is_brk) {
            let Range { start, end } = mapping.range;
            if self.areas.iter().any(|a| a.start < end && start < a.end) {
                continue;
            }
            let mut from = start;
            if mapping.range.contains(&top.start) {
                let range = start..top.end;
                if self.piece(arena, Stretch { range, ending: Ending::Top(TopRule::Kept), top_at })
                {
                    from = top.end;
                }
            }
            if from < end {
                self.piece(arena, Stretch { range: from..end, ending: Ending::Fence, top_at });
            }
        }
    }

    fn piece(&mut self, arena: &mut Arena, mut stretch: Stretch) -> bool {
        // The first chunk of a piece has nothing free before it, and is the main arena's.
        let head = word(self.memory, stretch.range.start + 8);
        let is_piece = head.is_some_and(|h| h & 7 == 1 && h & !7 >= walk::SMALLEST);
        if !is_piece {
            return false;
        }
        let walked = self.walker.walk(&mut stretch);
        if walked.tally.unwalked_bytes > 0 {
            return false;
        }
        self.suspects.extend(walked.suspects);
        arena.tally.add(&walked.tally);
        arena.walked_bytes += stretch.range.end - stretch.range.start;
        arena.heaps += 1;
        self.areas.push(stretch.range);
        true
    }

    /// Blocks that have a mapping of their own: they begin where a page does, and fill whole pages.
    fn mmapped(&mut self) -> Mmapped {
        const IS_MMAPPED: u64 = 2;
        let page = self.memory.page_bytes();
        let mut found = Mmapped::default();
        for mapping in self.mappings.iter().filter(|m| !m.is_brk) {
            let Range { start, end } = mapping.range;
            if self.areas.iter().any(|a| a.start < end && start < a.end) {
                continue;
            }
            let mut at = start;
            while at < end {
                let head = word(self.memory, at).zip(word(self.memory, at + 8));
                let Some((0, head)) = head.filter(|(_, h)| h & 7 == IS_MMAPPED) else { break };
                // From 2.43 on, the size leaves out the head and what stands before it.
                let size = head & !7;
                let bytes = if size % page == 0 { size } else { size + 16 };
                if bytes % page != 0 || bytes == 0 || bytes > end - at {
                    break;
                }
                found.count += 1;
                found.bytes += bytes;
                let mut residency = Residency::new(self.memory.resident(at..at + bytes));
                found.resident_bytes += residency.bytes(at..at + bytes);
                self.areas.push(at..at + bytes);
                at += bytes;
            }
        }
        found
    }
}

//! Goes over the arenas, and over what lies outside of them.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use super::caches::{self, Caches};
use super::chunk::{FLAGS, HEAD_BYTES, IS_MMAPPED, PREV_INUSE, USER_AT};
use super::layout::{Layout, MallocParams};
use super::lists::FastChunks;
use super::stretch_tally::TopRule;
use super::walk::{self, Ending, MAX_SUSPECTS, Stretch, StretchWalk, Walker};
use super::{FreePages, HEAP_BYTES, Heap, HeapMapping, Mmapped, Tally, WalkedArena};
use crate::blocks::Visitor;
use crate::memory::{Memory, word, word_in};
use crate::ranges::{gaps, joined, parts};
use crate::residency::Residency;

/// Minimum number of times an arena is walked that changes meanwhile.
const MIN_TRIES: u32 = 3;
/// The first of the waits for a thread in the middle of a change, and how many there are in a walk, each twice
/// as long as the one before: 127 ms in all. Such a thread may have to wait for a processor, even because the
/// walk uses it.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const MAX_WAITS: u32 = 7;
/// The main heap may have grown by so much since its mapping was looked up.
const GROWN: u64 = 1 << 30;
/// Of so much the resident pages are asked for at once, in bytes: the answer takes 2 MiB at most.
const ASKED_AT_ONCE: u64 = 1 << 30;
/// So much is read at once where blocks are searched for everywhere, in bytes.
const SEARCHED_AT_ONCE: u64 = 128 << 10;
pub(super) struct HeapWalk<'m, M> {
    memory: &'m M,
    layout: &'m Layout,
    mappings: Vec<HeapMapping>,
    walker: Walker<'m, M>,
    suspects: Vec<u64>,
    areas: Vec<Range<u64>>,
    /// The heaps of threads among them: a heap that is named twice is walked once.
    heaps: HashSet<u64>,
    mmapped: Mmapped,
    rereads: u64,
    returns: u64,
    /// Number of waits so far.
    waits: u32,
}

impl<'m, M: Memory> HeapWalk<'m, M> {
    pub(super) fn new(
        memory: &'m M,
        layout: &'m Layout,
        mappings: &[HeapMapping],
        found: Option<&'m mut dyn FnMut(FreePages)>,
        visitor: Visitor<'m>,
    ) -> Self {
        Self {
            memory,
            layout,
            mappings: joined_mappings(mappings),
            walker: Walker::new(memory, FastChunks::new(memory, layout), found, visitor),
            suspects: Vec::new(),
            areas: Vec::new(),
            heaps: HashSet::new(),
            mmapped: Mmapped::default(),
            rereads: 0,
            returns: 0,
            waits: 0,
        }
    }

    pub(super) fn walk(mut self) -> Heap {
        let mut arenas: Vec<WalkedArena> = Vec::new();
        let addresses = self.layout.arenas.clone();
        for address in addresses.iter().skip(1) {
            arenas.push(self.until_whole(|walk| walk.thread_arena(*address)));
        }
        if let Some(main) = addresses.first() {
            let main = self.until_whole(|walk| walk.main_arena(*main));
            arenas.insert(0, main);
        }
        self.outside(arenas.first_mut());
        self.mmapped.is_whole = self.layout.settings.as_ref().is_some_and(|s| self.agrees(s));
        let caches = self.caches(arenas.iter().map(|arena| arena.tally.used_count).sum());
        self.areas.sort_unstable_by_key(|a| a.start);
        Heap {
            arenas,
            mmapped: self.mmapped,
            caches,
            areas: joined(self.areas),
            rereads: self.rereads,
            returns: self.returns,
        }
    }

    fn caches(&mut self, chunks: u64) -> Caches {
        self.walker.fast.end_walk();
        let mut caches = caches::caches(self.memory, &self.suspects, chunks);
        // What counts as free already is not counted as cached as well.
        let is_free = |block: &Range<u64>| self.walker.fast.was_recognised(block.start);
        caches.leave_out(is_free);
        for chunk in caches.blocks.iter().chain(&caches.structures) {
            self.walker.blocks.is_free(chunk.start + USER_AT);
        }
        // They lie scattered, and mostly within a page, which is there because it was just read.
        let page = self.memory.page_bytes();
        let resident = |range: &Range<u64>| {
            if range.start / page == (range.end - 1) / page {
                return range.end - range.start;
            }
            let runs = self.memory.resident(range.clone());
            runs.iter().map(|r| r.end.min(range.end) - r.start.max(range.start)).sum()
        };
        caches.resident_bytes = caches.blocks.iter().map(resident).sum();
        caches.structures_resident_bytes = caches.structures.iter().map(resident).sum();
        caches
    }

    /// Walks an arena again if it did not come out whole, because it may have grown meanwhile.
    fn until_whole(&mut self, mut once: impl FnMut(&mut Self) -> WalkedArena) -> WalkedArena {
        let (areas, suspects) = (self.areas.len(), self.suspects.len());
        let mut arena = once(self);
        for attempt in 1.. {
            // The pieces of a main arena that is scattered are yet to come. (All others have that flag.)
            let is_main = self.layout.arenas.first() == Some(&arena.address);
            if arena.is_whole() || (is_main && self.is_scattered(&arena)) {
                break;
            }
            // A change that is over shows at the second try, one that is under way does not.
            let is_torn = arena.tally.unwalked_bytes > 0 || arena.walked_bytes == 0;
            let has_waited = is_torn && attempt > 1 && self.wait();
            if (attempt >= MIN_TRIES && !has_waited) || self.memory.is_over() {
                break;
            }
            for area in self.areas.drain(areas..) {
                self.heaps.remove(&(area.start - area.start % HEAP_BYTES));
            }
            self.suspects.truncate(suspects);
            self.walker.residency.forget();
            arena = once(self);
        }
        arena
    }

    /// Gives the program time to complete a change. `false` if it had enough, or nothing changes by that.
    fn wait(&mut self) -> bool {
        self.waits += 1;
        let time = FIRST_WAIT * 2_u32.pow(self.waits.min(MAX_WAITS) - 1);
        self.waits <= MAX_WAITS && self.memory.wait(time)
    }

    fn is_scattered(&self, arena: &WalkedArena) -> bool {
        self.layout.is_scattered(self.memory, arena.address)
    }

    fn arena(&self, address: u64) -> WalkedArena {
        let system_bytes = self.system_bytes(address);
        WalkedArena { address, heaps: 0, system_bytes, walked_bytes: 0, tally: Tally::default() }
    }

    fn system_bytes(&self, arena: u64) -> u64 {
        self.layout.system_bytes(self.memory, arena).unwrap_or(0)
    }

    /// Walks a stretch, and adds it to an arena.
    fn stretch(&mut self, arena: &mut WalkedArena, mut stretch: Stretch) -> Range<u64> {
        let walked = self.walker.walk(&mut stretch);
        self.add(arena, walked, &stretch.range);
        stretch.range
    }

    fn add(&mut self, arena: &mut WalkedArena, walked: StretchWalk, range: &Range<u64>) {
        self.rereads += walked.rereads;
        self.returns += walked.returns;
        let room = MAX_SUSPECTS.saturating_sub(self.suspects.len());
        self.suspects.extend(walked.suspects.into_iter().take(room));
        arena.tally.add(&walked.tally);
        arena.walked_bytes += range.end.saturating_sub(range.start);
        arena.heaps += 1;
    }

    /// The allocator's own bytes before the first chunk.
    fn head(&mut self, arena: &mut WalkedArena, head: Range<u64>) {
        arena.walked_bytes += head.end - head.start;
        arena.tally.resident.metadata_bytes += self.walker.residency.bytes(head);
    }

    fn thread_arena(&mut self, address: u64) -> WalkedArena {
        let mut arena = self.arena(address);
        let head = address % HEAP_BYTES;
        let top_at = self.layout.top_at(address);
        let Some(top) = walk::top(self.memory, top_at) else { return arena };
        let mut heap = top.start - top.start % HEAP_BYTES;
        let mut end = top.end;
        let mut ending = Ending::Top(TopRule::Kept);
        // Each heap names the one before it (`heap_info.prev`); the first holds the arena itself.
        loop {
            let is_first = heap == address - head;
            let begin = if is_first { self.layout.end(address) } else { heap + head };
            let begin = begin.next_multiple_of(16);
            let most = heap.saturating_add(HEAP_BYTES);
            let is_main = self.brk().is_some_and(|brk| brk.start < most && heap < brk.end);
            if begin >= end || end > most || is_main || !self.heaps.insert(heap) {
                break;
            }
            self.head(&mut arena, heap..begin);
            let stretch = Stretch { range: begin..end, ending, top_at, most, arena: address };
            let walked = self.stretch(&mut arena, stretch);
            self.areas.push(heap..walked.end);
            if is_first {
                break;
            }
            let Some(previous) = word(self.memory, heap + 8) else { break };
            if previous == 0 || previous % HEAP_BYTES != 0 || previous > 1 << 47 {
                break;
            }
            heap = previous;
            let size = word(self.memory, heap + 16).filter(|s| *s <= HEAP_BYTES).unwrap_or(0);
            end = heap + size;
            ending = Ending::Fencepost;
        }
        self.settle(arena)
    }

    /// Takes what the arena says now, unless what was walked is what it said before.
    fn settle(&self, mut arena: WalkedArena) -> WalkedArena {
        if arena.walked_bytes != arena.system_bytes {
            arena.system_bytes = self.system_bytes(arena.address);
        }
        arena
    }

    fn brk(&self) -> Option<Range<u64>> {
        let mut all = self.mappings.iter().filter(|m| m.is_brk);
        let first = all.next()?;
        Some(first.range.start..all.next_back().unwrap_or(first).range.end)
    }

    /// The part of the main arena that grew by `brk`.
    fn main_arena(&mut self, address: u64) -> WalkedArena {
        let mut arena = self.arena(address);
        let top_at = self.layout.top_at(address);
        let Some(top) = walk::top(self.memory, top_at) else { return arena };
        let Some(brk) = self.brk() else { return arena };
        let settings = self.layout.settings.as_ref();
        let base = settings.map_or(brk.start, |s| s.sbrk_base);
        if !brk.contains(&base) {
            return arena;
        }
        // The chunk is aligned as what the user gets is, which lies 16 bytes behind it.
        let first = base.next_multiple_of(16);
        // It may have grown since the mappings were read; that of a scattered one may lie anywhere.
        let most = brk.end.saturating_add(GROWN);
        let within = if self.is_scattered(&arena) { brk.end } else { most };
        let has_top = (brk.start..within).contains(&top.start) && top.end <= most;
        let (end, ending) = if has_top {
            // `systrim` gives up where somebody else has moved the end since. That it has grown since
            // the mappings were looked up is another matter.
            let is_ours = top.end >= brk.end;
            let unit = settings.map_or(0, |s| s.thp_page_bytes);
            let rule = if is_ours { TopRule::Trimmed(unit) } else { TopRule::Kept };
            (top.end, Ending::Top(rule))
        } else {
            (brk.end, Ending::Fencepost)
        };
        // The end is what the heap itself says.
        if self.areas.iter().any(|area| area.start < most && base < area.end) {
            return arena;
        }
        self.head(&mut arena, base..first);
        let stretch = Stretch { range: first..end, ending, top_at, most, arena: address };
        let walked = self.stretch(&mut arena, stretch);
        self.areas.push(base..walked.end);
        self.settle(arena)
    }

    fn agrees(&self, settings: &MallocParams) -> bool {
        // From 2.43 on, glibc miscounts some bytes whenever `realloc` changes an aligned block.
        let slack = (settings.mmapped_bytes / 100).max(self.memory.page_bytes());
        self.mmapped.count == settings.mmapped_count
            && self.mmapped.bytes.abs_diff(settings.mmapped_bytes) < slack
    }

    /// Whether the allocator counts more blocks with a mapping of their own than were found.
    fn misses_blocks(&self) -> bool {
        self.layout.settings.as_ref().is_some_and(|s| {
            self.mmapped.count < s.mmapped_count
                || (self.mmapped.bytes < s.mmapped_bytes && !self.agrees(s))
        })
    }

    /// What lies in mappings besides the thread heaps: blocks that have one of their own, and pieces
    /// of a main arena that could not grow by `brk`. Neighbouring mappings are one to the kernel, so
    /// that a block may begin at any page of one.
    fn outside(&mut self, mut main: Option<&mut WalkedArena>) {
        let is_scattered = main.as_ref().is_some_and(|main| self.is_scattered(main));
        let (mut budget, mut heads) = (MAX_SEARCHED, MAX_HEADS);
        for search in [Search::Beginnings, Search::Heads, Search::Everywhere] {
            self.areas.sort_unstable_by_key(|a| a.start);
            let ranges = self.mappings.iter().filter(|m| !m.is_brk).map(|m| m.range.clone());
            for gap in gaps(ranges, &self.areas) {
                let is_piece_missing = is_scattered && main.as_ref().is_some_and(|m| !m.is_whole());
                let pieces = main.as_deref_mut().filter(|_| is_piece_missing);
                if search != Search::Beginnings && pieces.is_none() && !self.misses_blocks() {
                    return;
                }
                match search {
                    Search::Beginnings => self.beginning(gap, pieces),
                    Search::Heads => self.heads(gap, pieces, &mut heads),
                    Search::Everywhere => self.everywhere(gap, &mut budget),
                }
            }
        }
    }

    /// Blocks and pieces that follow each other from the beginning of a gap on.
    fn beginning(&mut self, gap: Range<u64>, mut main: Option<&mut WalkedArena>) {
        let mut ahead = PageReader::new(self.memory.page_bytes());
        let mut at = gap.start;
        while at < gap.end {
            match self.block_or_piece(at..gap.end, &mut main, &mut ahead) {
                Some(end) => at = end,
                None => break,
            }
        }
    }

    /// Blocks and pieces that begin at any page of a gap, of which no more are looked at than the budget
    /// allows.
    fn heads(&mut self, gap: Range<u64>, mut main: Option<&mut WalkedArena>, budget: &mut u64) {
        let page = self.memory.page_bytes();
        let mut ahead = PageReader::new(page);
        let mut at = gap.start;
        let memory = self.memory;
        for run in parts(gap.clone(), ASKED_AT_ONCE).flat_map(|part| memory.resident(part)) {
            at = at.max(run.start);
            while at < run.end && *budget > 0 {
                let is_piece_missing = main.as_ref().is_some_and(|main| !main.is_whole());
                if !is_piece_missing && !self.misses_blocks() {
                    return;
                }
                *budget -= 1;
                let end = self.two_words(at).and_then(|(before, head)| {
                    let is_piece = is_piece_missing && head & FLAGS == PREV_INUSE;
                    let is_one = is_piece || mapping_of(0, before, head, page).is_some();
                    let found =
                        is_one.then(|| self.block_or_piece(at..gap.end, &mut main, &mut ahead));
                    found.flatten()
                });
                at = end.unwrap_or(at + page);
            }
        }
    }

    /// Blocks that were aligned, so that they do not begin where their mapping does: every page must
    /// be read for them, and no more than the budget is.
    fn everywhere(&mut self, gap: Range<u64>, budget: &mut u64) {
        let page = self.memory.page_bytes();
        let mut ahead = PageReader::new(SEARCHED_AT_ONCE);
        let mut at = gap.start;
        let memory = self.memory;
        for run in parts(gap.clone(), ASKED_AT_ONCE).flat_map(|part| memory.resident(part)) {
            at = at.max(run.start);
            while at < run.end && *budget > 0 && self.misses_blocks() {
                *budget = budget.saturating_sub(page);
                at =
                    self.block(at, gap.end, &mut ahead).unwrap_or(at + page).next_multiple_of(page);
            }
        }
    }

    fn block_or_piece(
        &mut self,
        range: Range<u64>,
        main: &mut Option<&mut WalkedArena>,
        ahead: &mut PageReader,
    ) -> Option<u64> {
        let page = self.memory.page_bytes();
        let found = self.block(range.start, range.end, ahead).or_else(|| {
            let main = main.as_deref_mut().filter(|main| !main.is_whole())?;
            self.piece(main, range.clone())
        });
        found.map(|end| end.max(range.start + 16).next_multiple_of(page))
    }

    /// A block that has a mapping of its own: it begins where a page does, and fills whole pages.
    /// Gives its end.
    fn block(&mut self, at: u64, end: u64, ahead: &mut PageReader) -> Option<u64> {
        let page = self.memory.page_bytes();
        let bytes = ahead.page(at, end, self.memory, &mut self.walker.residency)?;
        // Its block need not begin where the mapping does, if it was aligned: its head tells how far it
        // is from there. What stands at the beginning is out of date once `mremap` has changed the size.
        let offsets = (16..bytes.len() as u64).step_by(16).chain([0]);
        let (offset, bytes) = offsets.into_iter().find_map(|offset| {
            let place = offset as usize;
            let (before, head) = (word_in(bytes, place)?, word_in(bytes, place + 8)?);
            let bytes = mapping_of(offset, before, head, page).filter(|bytes| *bytes <= end - at);
            Some((offset, bytes?))
        })?;
        let (user, usable) =
            (at + offset + USER_AT, bytes.saturating_sub(offset + USER_AT + HEAD_BYTES));
        self.walker.blocks.lone(self.memory, user, bytes, usable);
        self.mmapped.count += 1;
        self.mmapped.bytes += bytes;
        self.mmapped.resident_bytes += self.walker.residency.bytes(at..at + bytes);
        self.areas.push(at..at + bytes);
        Some(at + bytes)
    }

    /// A piece of the main arena. Gives its end.
    fn piece(&mut self, main: &mut WalkedArena, range: Range<u64>) -> Option<u64> {
        // The first chunk of a piece has nothing free before it, and is the main arena's.
        let (_, head) = self.two_words(range.start)?;
        let is_first = head & FLAGS == PREV_INUSE;
        if !is_first || !self.walker.is_sound_from(range.start, range.end, true) {
            return None;
        }
        let top_at = self.layout.top_at(main.address);
        let top = word(self.memory, top_at)?;
        let most = range.end;
        let ending = Ending::Piece { top };
        let mut stretch = Stretch { range, ending, top_at, most, arena: main.address };
        let (left, reads) = (self.walker.effort.left(), self.walker.reads());
        let walked = self.walker.walk(&mut stretch);
        if walked.tally.unwalked_bytes > 0 {
            let reads = self.walker.reads() - reads;
            let bytes = walked.tally.used_bytes + walked.tally.free_bytes + walked.tally.fast_bytes;
            let start = stretch.range.start;
            self.walker.blocks.erase(start..start.saturating_add(bytes).min(stretch.range.end));
            self.walker.effort.revoke(left, walked.tally.chunks(), reads);
            return None;
        }
        self.add(main, walked, &stretch.range);
        self.areas.push(stretch.range.clone());
        Some(stretch.range.end)
    }

    fn two_words(&mut self, at: u64) -> Option<(u64, u64)> {
        self.walker.residency.end_of_run(at)?;
        let mut bytes = [0; 16];
        let is_read = self.memory.read_resident(at, &mut bytes) == bytes.len();
        is_read.then_some((word_in(&bytes, 0)?, word_in(&bytes, 8)?))
    }
}

/// Where blocks with a mapping of their own are looked for, the cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    Beginnings,
    Heads,
    Everywhere,
}

/// No more than this is read, in bytes, to find blocks that do not begin where a page does.
const MAX_SEARCHED: u64 = 256 << 20;
/// Of no more pages than this, the first words are read to find those that do.
const MAX_HEADS: u64 = 1 << 19;
/// Pages that are looked at one behind the other, and read many at once.
struct PageReader {
    start: u64,
    bytes: Vec<u8>,
    most: u64,
}

impl PageReader {
    fn new(most: u64) -> Self {
        Self { start: 0, bytes: Vec::new(), most }
    }

    /// What stands on the page at an address, where it is resident, and before `end`.
    fn page<M: Memory>(
        &mut self,
        at: u64,
        end: u64,
        memory: &M,
        residency: &mut Residency<'_, M>,
    ) -> Option<&[u8]> {
        let known = self.start..self.start.saturating_add(self.bytes.len() as u64);
        if !known.contains(&at) {
            let resident_until = residency.end_of_run(at)?;
            let length = (resident_until.min(end).checked_sub(at)?).min(self.most);
            self.bytes.resize(usize::try_from(length).ok()?, 0);
            let read = memory.read_resident(at, &mut self.bytes);
            self.bytes.truncate(read);
            self.start = at;
        }
        let from = usize::try_from(at - self.start).ok()?;
        let to = self.bytes.len().min(from + memory.page_bytes() as usize);
        self.bytes.get(from..to)
    }
}

/// The bytes of the mapping that a block has for itself, by the two words of its head, if that is what
/// they are: `before` is how far it is from the beginning of the mapping.
fn mapping_of(offset: u64, before: u64, head: u64, page: u64) -> Option<u64> {
    // From 2.43 on: the mapping consists of huge pages.
    const IS_HUGE: u64 = 1;
    if head & FLAGS != IS_MMAPPED || before & !IS_HUGE != offset {
        return None;
    }
    let upto = offset.checked_add(head & !FLAGS)?;
    // From 2.43 on, the size leaves out the head as well.
    let bytes = if upto.is_multiple_of(page) { upto } else { upto.checked_add(16)? };
    (bytes.is_multiple_of(page) && bytes > 0).then_some(bytes)
}

/// Mappings that follow each other without a gap as one.
fn joined_mappings(mappings: &[HeapMapping]) -> Vec<HeapMapping> {
    let mut all: Vec<HeapMapping> = Vec::new();
    for mapping in mappings.iter().filter(|m| m.range.start < m.range.end) {
        match all.last_mut() {
            Some(last)
                if last.is_brk == mapping.is_brk && last.range.end == mapping.range.start =>
            {
                last.range.end = mapping.range.end;
            }
            _ => all.push(mapping.clone()),
        }
    }
    all
}

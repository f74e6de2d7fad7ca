//! Walks the arenas, and the memory outside of them.

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
use crate::memory::{ADDRESS_END, Memory, word, word_in};
use crate::ranges::{gaps, joined, parts};
use crate::residency::Residency;

/// Minimum number of times that an arena is walked if it changes during the walk.
const MIN_TRIES: u32 = 3;
/// Duration of the first wait for a thread in the middle of a change, and maximum number of waits
/// in a walk. Each wait is twice as long as the one before: 127 ms in all. Such a thread may have
/// to wait for a processor, possibly because the walk uses it.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const MAX_WAITS: u32 = 7;
/// Maximum growth of the main heap since its mapping was read, in bytes.
const GROWN: u64 = 1 << 30;
/// Size of the range whose resident pages are queried at once, in bytes: the result takes 2 MiB at
/// most.
const ASKED_AT_ONCE: u64 = 1 << 30;
/// Number of bytes read at once when every page is searched for mmapped chunks.
const SEARCHED_AT_ONCE: u64 = 128 << 10;
pub(super) struct HeapWalk<'m, M> {
    memory: &'m M,
    layout: &'m Layout,
    mappings: Vec<HeapMapping>,
    walker: Walker<'m, M>,
    suspects: Vec<u64>,
    areas: Vec<Range<u64>>,
    /// The heaps of threads among the areas. A heap that two arenas refer to is walked once.
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
        // Blocks that already count as free are not counted as cached too.
        let is_free = |block: &Range<u64>| self.walker.fast.was_recognised(block.start);
        caches.leave_out(is_free);
        for chunk in caches.blocks.iter().chain(&caches.structures) {
            self.walker.blocks.is_free(chunk.start + USER_AT);
        }
        // The blocks are scattered. Most lie within one page, which is resident because it was just
        // read.
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

    /// Walks an arena, and again if it is not whole, because it may have grown meanwhile.
    fn until_whole(&mut self, mut once: impl FnMut(&mut Self) -> WalkedArena) -> WalkedArena {
        let (areas, suspects) = (self.areas.len(), self.suspects.len());
        let mut arena = once(self);
        for attempt in 1.. {
            // The other parts of a scattered main arena are found later. (All other arenas have
            // that flag.)
            let is_main = self.layout.arenas.first() == Some(&arena.address);
            if arena.is_whole() || (is_main && self.is_scattered(&arena)) {
                break;
            }
            // The second try sees a change that is complete, but not one that is in progress.
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

    /// Gives the program time to complete a change. Returns `false` if the waits are used up, or if
    /// waiting has no effect.
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

    /// Adds the allocator's own bytes before the first chunk.
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
        // Each heap points to the previous one (`heap_info.prev`). The first contains the arena
        // itself.
        loop {
            let is_first = heap == address - head;
            let begin = if is_first { self.layout.end(address) } else { heap + head };
            let begin = begin.next_multiple_of(16);
            let most = heap.saturating_add(HEAP_BYTES);
            let is_main = self.brk().is_some_and(|brk| brk.start < most && heap < brk.end);
            // The heap names its arena (`heap_info.ar_ptr`).
            let is_of_other = word(self.memory, heap).is_some_and(|arena| arena != address);
            let is_wrong = begin >= end || end > most || is_main || is_of_other;
            if is_wrong || !self.heaps.insert(heap) {
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
            if previous == 0 || previous % HEAP_BYTES != 0 || previous > ADDRESS_END {
                break;
            }
            heap = previous;
            let size = word(self.memory, heap + 16).filter(|s| *s <= HEAP_BYTES).unwrap_or(0);
            end = heap + size;
            ending = Ending::Fencepost;
        }
        self.settle(arena)
    }

    /// Updates the system bytes of an arena, unless the walked bytes equal the earlier value.
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

    /// Walks the part of the main arena that grew by `brk`.
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
        // The chunk has the alignment of the user's memory, which begins 16 bytes after it.
        let first = base.next_multiple_of(16);
        // The heap may have grown since the mappings were read. The top of a scattered arena may be
        // anywhere.
        let most = brk.end.saturating_add(GROWN);
        let within = if self.is_scattered(&arena) { brk.end } else { most };
        let has_top = (brk.start..within).contains(&top.start) && top.end <= most;
        let (end, ending) = if has_top {
            // `systrim` fails if the program itself has moved the end of the heap since. Growth of
            // the heap after the mappings were read does not count as that.
            let is_ours = top.end >= brk.end;
            let unit = settings.map_or(0, |s| s.thp_page_bytes);
            let rule = if is_ours { TopRule::Trimmed(unit) } else { TopRule::Kept };
            (top.end, Ending::Top(rule))
        } else {
            (brk.end, Ending::Fencepost)
        };
        // The end comes from the heap itself.
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

    /// Returns whether the allocator counts more mmapped chunks than were found.
    fn misses_blocks(&self) -> bool {
        self.layout.settings.as_ref().is_some_and(|s| {
            self.mmapped.count < s.mmapped_count
                || (self.mmapped.bytes < s.mmapped_bytes && !self.agrees(s))
        })
    }

    /// Finds mmapped chunks, and parts of a main arena that could not grow by `brk`, in the
    /// mappings outside of the thread heaps. The kernel merges adjacent mappings, so a chunk may
    /// begin at any page of a mapping.
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

    /// Finds consecutive mmapped chunks and parts from the beginning of a gap.
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

    /// Finds mmapped chunks and parts that begin at any page of a gap. The budget limits the number
    /// of inspected pages.
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

    /// Finds aligned mmapped chunks, which do not begin at the start of their mapping. Every page
    /// must be read, up to the budget in bytes.
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

    /// Adds the mmapped chunk whose mapping begins at a page and fills whole pages. Returns the end
    /// of the mapping.
    fn block(&mut self, at: u64, end: u64, ahead: &mut PageReader) -> Option<u64> {
        let page = self.memory.page_bytes();
        let bytes = ahead.page(at, end, self.memory, &mut self.walker.residency)?;
        // An aligned chunk need not begin at the start of its mapping: its head contains the
        // distance. The words at the start are out of date once `mremap` has changed the size.
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

    /// Walks a part of the main arena. Returns its end.
    fn piece(&mut self, main: &mut WalkedArena, range: Range<u64>) -> Option<u64> {
        // The first chunk of a part has no free chunk before it, and belongs to the main arena.
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

/// The ways to search for mmapped chunks, the cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    Beginnings,
    Heads,
    Everywhere,
}

/// Maximum number of bytes read to find mmapped chunks that do not begin at a page.
const MAX_SEARCHED: u64 = 256 << 20;
/// Maximum number of pages whose first words are read to find mmapped chunks that begin at a page.
const MAX_HEADS: u64 = 1 << 19;
/// Reads many pages at once, for a scan in order of address.
struct PageReader {
    start: u64,
    bytes: Vec<u8>,
    most: u64,
}

impl PageReader {
    fn new(most: u64) -> Self {
        Self { start: 0, bytes: Vec::new(), most }
    }

    /// Returns the contents of the page at an address up to `end`, if the page is resident.
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

/// Returns the size of the mapping of an mmapped chunk in bytes, by the two words of its head, or
/// `None` if they are not such a head. `before` is the distance from the start of the mapping.
fn mapping_of(offset: u64, before: u64, head: u64, page: u64) -> Option<u64> {
    // From 2.43 on: the mapping consists of huge pages.
    const IS_HUGE: u64 = 1;
    if head & FLAGS != IS_MMAPPED || before & !IS_HUGE != offset {
        return None;
    }
    let upto = offset.checked_add(head & !FLAGS)?;
    // From 2.43 on, the size excludes the head as well.
    let bytes = if upto.is_multiple_of(page) { upto } else { upto.checked_add(16)? };
    (bytes.is_multiple_of(page) && bytes > 0).then_some(bytes)
}

/// Merges adjacent mappings.
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

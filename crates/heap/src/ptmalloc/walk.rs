//! Walks the chunks of a heap, one behind the other, while the program may change them.
//!
//! What was read may be torn. Each chunk must lead to a sound next one; where it does not, the place is
//! read again, and then the walk goes back to an earlier place that was sound. What cannot be walked
//! is counted as such.

use std::collections::VecDeque;
use std::ops::Range;

use crate::memory::{Memory, Residency, word, word_in};

/// The smallest chunk, in bytes (`MINSIZE`).
pub(super) const SMALLEST: u64 = 32;
/// What a free chunk keeps for its lists (`sizeof (struct malloc_chunk)`): a page that holds a part of
/// it is not given back.
const LIST_BYTES: u64 = 48;
const PREV_INUSE: u64 = 1;
/// The three lowest bits of a size are flags.
const FLAGS: u64 = 7;

/// How far the walk goes until it remembers where it is.
const STRIDE: u64 = 64 << 10;
/// So many places are remembered.
const CHECKPOINTS: usize = 8;
/// After so many returns to an earlier place, the rest is given up.
const MOST_RETURNS: u64 = 2000;
/// The least and the most that is read at once.
const LEAST_READ: u64 = 4 << 10;
const MOST_READ: u64 = 256 << 10;

/// What a stretch of a heap holds, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks that the program has, and those that a thread's cache holds back.
    pub used_count: u64,
    /// Their bytes.
    pub used_bytes: u64,
    /// Free blocks in the bins.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Free blocks in the fast bins.
    pub fast_count: u64,
    /// Their bytes.
    pub fast_bytes: u64,
    /// Bytes at the top, behind the last block.
    pub top_bytes: u64,
    /// The largest free block, fast ones joined with their neighbours and the top aside.
    pub largest_free_bytes: u64,
    /// Free blocks by size: those of class `n` have from 2ⁿ to 2ⁿ⁺¹ bytes, those of the last any more.
    pub classes: [Class; 32],
    /// What of these bytes is resident.
    pub resident: ResidentTally,
    /// Resident bytes that `malloc_trim(0)` would return.
    pub trim_bytes: u64,
    /// Resident bytes that it cannot return, though they are free: tops of thread heaps.
    pub more_bytes: u64,
    /// Bytes that could not be walked.
    pub unwalked_bytes: u64,
}

/// Free blocks of about one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Class {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Resident bytes of a heap by what they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResidentTally {
    /// Blocks that the program has, and those that a thread's cache holds back.
    pub used_bytes: u64,
    /// Whole free pages, which can go back.
    pub reclaimable_bytes: u64,
    /// Free bytes on pages that something else keeps.
    pub fragmented_bytes: u64,
    /// Pages that only the head of a free block keeps, and the allocator's own structures.
    pub metadata_bytes: u64,
    /// Bytes that could not be walked.
    pub unwalked_bytes: u64,
}

impl ResidentTally {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.used_bytes
            + self.reclaimable_bytes
            + self.fragmented_bytes
            + self.metadata_bytes
            + self.unwalked_bytes
    }

    fn add(&mut self, other: &Self) {
        self.used_bytes += other.used_bytes;
        self.reclaimable_bytes += other.reclaimable_bytes;
        self.fragmented_bytes += other.fragmented_bytes;
        self.metadata_bytes += other.metadata_bytes;
        self.unwalked_bytes += other.unwalked_bytes;
    }
}

impl Tally {
    /// Adds what another stretch holds.
    pub fn add(&mut self, other: &Self) {
        self.used_count += other.used_count;
        self.used_bytes += other.used_bytes;
        self.free_count += other.free_count;
        self.free_bytes += other.free_bytes;
        self.fast_count += other.fast_count;
        self.fast_bytes += other.fast_bytes;
        self.top_bytes += other.top_bytes;
        self.largest_free_bytes = self.largest_free_bytes.max(other.largest_free_bytes);
        for (mine, theirs) in self.classes.iter_mut().zip(&other.classes) {
            mine.count += theirs.count;
            mine.bytes += theirs.bytes;
        }
        self.resident.add(&other.resident);
        self.trim_bytes += other.trim_bytes;
        self.more_bytes += other.more_bytes;
        self.unwalked_bytes += other.unwalked_bytes;
    }
}

/// How a stretch of a heap ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// With the top of its arena, of which so much is given back by a trim.
    Top(TopRule),
    /// With the short chunks that close a piece which is no longer the last.
    Fence,
}

/// What a trim does with the top of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopRule {
    /// It moves the end of the main heap down.
    Trimmed,
    /// Nothing: neither those of thread heaps nor that of a main heap in pieces are given back.
    Kept,
}

/// A stretch to walk.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    /// From its first chunk to where it must end.
    pub(super) range: Range<u64>,
    pub(super) ending: Ending,
    /// Where the arena says which chunk is its top, for a stretch that ends with that.
    pub(super) top_at: u64,
}

/// What came of a walk.
#[derive(Debug, Clone, Default)]
pub(super) struct Walked {
    pub(super) tally: Tally,
    /// Chunks in use that have the size of a thread's cache.
    pub(super) suspects: Vec<u64>,
    /// How often something was read again, and how often the walk went back.
    pub(super) rereads: u64,
    pub(super) returns: u64,
}

/// Walks stretches of one heap.
pub(super) struct Walker<'m, M> {
    memory: &'m M,
    page: u64,
    /// The chunks that stand in fast bins, in order.
    fast: &'m [u64],
    /// Sizes of chunks that may be a thread's cache.
    suspect_sizes: &'m [u64],
    window: Window,
}

/// The piece of memory that was read last.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// How much is read next.
    next: u64,
}

/// Everything that a walk knows at some place.
#[derive(Clone)]
struct State {
    at: u64,
    tally: Tally,
    /// Where the run of free chunks begins that reaches up to here.
    free_from: Option<u64>,
    /// Whether the last of them stood in a fast bin.
    last_is_fast: bool,
    /// Whether the chunk before is free by its own flag.
    previous_is_binned: bool,
    fast: usize,
    suspects: usize,
}

/// Why a chunk is not sound.
enum Unsound {
    /// It cannot be read.
    Absent,
    /// It makes no sense, or what follows it does not.
    Nonsense,
}

impl<'m, M: Memory> Walker<'m, M> {
    pub(super) fn new(memory: &'m M, fast: &'m [u64], suspect_sizes: &'m [u64]) -> Self {
        let window = Window { next: LEAST_READ, ..Window::default() };
        Self { memory, page: memory.page_bytes(), fast, suspect_sizes, window }
    }

    /// Walks one stretch from its first chunk to its end, which is put right where it moves.
    pub(super) fn walk(&mut self, stretch: &mut Stretch) -> Walked {
        let Range { start, end } = stretch.range;
        let mut residency = Residency::new(self.memory.resident(start..end));
        let mut walked = Walked::default();
        let mut state = State {
            at: start,
            tally: Tally::default(),
            free_from: None,
            last_is_fast: false,
            previous_is_binned: false,
            fast: self.fast.partition_point(|f| *f < start),
            suspects: 0,
        };
        let mut checkpoints: VecDeque<State> = VecDeque::from([state.clone()]);
        let mut last_trouble = None;
        loop {
            if state.at >= checkpoints.back().map_or(start, |c| c.at) + STRIDE {
                if checkpoints.len() == CHECKPOINTS {
                    checkpoints.pop_front();
                }
                checkpoints.push_back(state.clone());
            }
            match self.step(&mut state, stretch, &mut residency, &mut walked.suspects) {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) if last_trouble != Some(state.at) => {
                    // It may have been read while it was being written.
                    last_trouble = Some(state.at);
                    walked.rereads += 1;
                    self.window.bytes.clear();
                    self.window.next = LEAST_READ;
                    if self.follow_top(stretch) {
                        let range = stretch.range.clone();
                        residency = Residency::new(self.memory.resident(range));
                    }
                }
                Err(_) if walked.returns < MOST_RETURNS && checkpoints.len() > 1 => {
                    walked.returns += 1;
                    checkpoints.pop_back();
                    if let Some(earlier) = checkpoints.back() {
                        state = earlier.clone();
                    }
                    walked.suspects.truncate(state.suspects);
                    self.window.bytes.clear();
                    last_trouble = None;
                }
                Err(_) => {
                    self.close_run(&mut state, &mut residency);
                    let rest = state.at..stretch.range.end.max(state.at);
                    state.tally.unwalked_bytes += rest.end.saturating_sub(rest.start);
                    state.tally.resident.unwalked_bytes += residency.bytes(rest);
                    break;
                }
            }
        }
        walked.tally = state.tally;
        walked
    }

    /// Looks where the top of the arena is now. `true` when it has moved.
    fn follow_top(&self, stretch: &mut Stretch) -> bool {
        if stretch.ending == Ending::Fence {
            return false;
        }
        let now = word(self.memory, stretch.top_at).and_then(|top| {
            let size = word(self.memory, top.checked_add(8)?)? & !FLAGS;
            Some((top, top.checked_add(size)?))
        });
        match now {
            Some((top, end)) if top >= stretch.range.start && end != stretch.range.end => {
                stretch.range.end = end;
                true
            }
            _ => false,
        }
    }

    /// Goes over one chunk. `true` when the stretch has ended.
    fn step(
        &mut self,
        state: &mut State,
        stretch: &Stretch,
        residency: &mut Residency,
        suspects: &mut Vec<u64>,
    ) -> Result<bool, Unsound> {
        let at = state.at;
        let end = stretch.range.end;
        let (_, head) = self.header(at)?;
        let size = head & !FLAGS;
        if (head & PREV_INUSE == 0) != state.previous_is_binned {
            return Err(Unsound::Nonsense);
        }
        if let Ending::Top(rule) = stretch.ending
            && size >= 16
            && at + size == end
        {
            self.close_at_top(state, at..end, rule, residency);
            return Ok(true);
        }
        let fence_end = at.next_multiple_of(self.page);
        if size <= 16 && fence_end - at <= 2 * 16 && fence_end > at {
            // A piece that is no longer the last ends with one or two chunks too short to be used.
            self.close_run(state, residency);
            state.tally.resident.metadata_bytes += residency.bytes(at..fence_end);
            state.previous_is_binned = false;
            state.at = fence_end;
            return match stretch.ending {
                Ending::Fence if fence_end == end => Ok(true),
                // Behind it lies another piece, in the same mapping.
                _ if fence_end < end => Ok(false),
                _ => Err(Unsound::Nonsense),
            };
        }
        if size < SMALLEST || !size.is_multiple_of(16) || size > end - at {
            return Err(Unsound::Nonsense);
        }
        let next = at + size;
        let (previous_size, next_head) = self.header(next)?;
        let is_binned = next_head & PREV_INUSE == 0;
        if is_binned && previous_size != size {
            return Err(Unsound::Nonsense);
        }
        while self.fast.get(state.fast).is_some_and(|f| *f < at) {
            state.fast += 1;
        }
        let is_fast = !is_binned && self.fast.get(state.fast) == Some(&at);
        let tally = &mut state.tally;
        if is_binned || is_fast {
            let (count, bytes) = if is_fast {
                (&mut tally.fast_count, &mut tally.fast_bytes)
            } else {
                (&mut tally.free_count, &mut tally.free_bytes)
            };
            *count += 1;
            *bytes += size;
            if is_binned {
                let class = &mut tally.classes[(size.ilog2() as usize).min(31)];
                class.count += 1;
                class.bytes += size;
            }
            state.free_from.get_or_insert(at);
            state.last_is_fast = is_fast;
        } else {
            self.close_run(state, residency);
            let tally = &mut state.tally;
            tally.used_count += 1;
            tally.used_bytes += size;
            tally.resident.used_bytes += residency.bytes(at..next);
            if self.suspect_sizes.contains(&size) {
                suspects.push(at);
                state.suspects = suspects.len();
            }
        }
        state.previous_is_binned = is_binned;
        state.at = next;
        Ok(false)
    }

    /// Accounts for the free chunks that reach up to here. Fast ones are joined with their neighbours
    /// before a trim looks at them (`malloc_consolidate`), so that they count as one.
    fn close_run(&self, state: &mut State, residency: &mut Residency) {
        let Some(from) = state.free_from.take() else { return };
        let run = from..state.at;
        let tally = &mut state.tally;
        tally.largest_free_bytes = tally.largest_free_bytes.max(run.end - run.start);
        let inner = self.inner(&run);
        let reclaimable = residency.bytes(inner.clone());
        // Up to where no other block lies on the page, the head of this one alone keeps it.
        let kept_by_head = run.start.next_multiple_of(self.page)..inner.start;
        let metadata = if inner.start > run.end { 0 } else { residency.bytes(kept_by_head) };
        let all = residency.bytes(run);
        tally.resident.reclaimable_bytes += reclaimable;
        tally.resident.metadata_bytes += metadata;
        tally.resident.fragmented_bytes += all - reclaimable - metadata;
        tally.trim_bytes += reclaimable;
    }

    /// The whole pages inside of a free run that a trim gives back (`mtrim`).
    fn inner(&self, run: &Range<u64>) -> Range<u64> {
        let start = (run.start + LIST_BYTES).next_multiple_of(self.page);
        let end = run.end - run.end % self.page;
        start..end.max(start)
    }

    /// Accounts for the top, with the free chunks before it where they would be joined with it.
    fn close_at_top(
        &self,
        state: &mut State,
        top: Range<u64>,
        rule: TopRule,
        residency: &mut Residency,
    ) {
        state.tally.top_bytes += top.end - top.start;
        let joined = if state.last_is_fast { state.free_from.take() } else { None };
        self.close_run(state, residency);
        let all = joined.unwrap_or(top.start)..top.end;
        // `systrim`: whole pages, as far as the smallest chunk and a byte more stay.
        let size = all.end - all.start;
        let page = self.page;
        let given = match rule {
            TopRule::Trimmed => size.saturating_sub(SMALLEST + 1) / page * page,
            TopRule::Kept => 0,
        };
        let trimmed = residency.bytes(all.end - given..all.end);
        // What a release of ours returns: all whole pages behind the head of the top.
        let pages = self.inner(&all);
        let more = residency.bytes(pages.start..pages.end.min(all.end - given).max(pages.start));
        let resident = residency.bytes(all.clone());
        let tally = &mut state.tally;
        tally.trim_bytes += trimmed;
        tally.more_bytes += more;
        tally.resident.reclaimable_bytes += trimmed + more;
        tally.resident.fragmented_bytes += resident - trimmed - more;
        state.at = all.end;
    }

    /// The two words of a chunk's head: the size of a free one before it, and its own with its flags.
    fn header(&mut self, at: u64) -> Result<(u64, u64), Unsound> {
        if let Some(found) = self.window.header(at) {
            return Ok(found);
        }
        // Blocks that lie close together are read many at once; of large ones, only the heads.
        let used = self.window.start + self.window.bytes.len() as u64;
        self.window.next = if at < used + LEAST_READ && !self.window.bytes.is_empty() {
            (self.window.next * 2).min(MOST_READ)
        } else {
            LEAST_READ
        };
        let start = at - at % 16;
        let end = (start + self.window.next).next_multiple_of(self.page);
        let length = usize::try_from(end - start).unwrap_or(0);
        self.window.bytes.resize(length, 0);
        let read = self.memory.read(start, &mut self.window.bytes);
        self.window.bytes.truncate(read);
        self.window.start = start;
        self.window.header(at).ok_or(Unsound::Absent)
    }
}

impl Window {
    fn header(&self, at: u64) -> Option<(u64, u64)> {
        let place = usize::try_from(at.checked_sub(self.start)?).ok()?;
        Some((word_in(&self.bytes, place)?, word_in(&self.bytes, place.checked_add(8)?)?))
    }
}

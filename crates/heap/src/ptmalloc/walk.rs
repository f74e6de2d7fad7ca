//! Walks the chunks of a heap in order of address, while the program may change them.
//!
//! The memory that was read may be torn. Each chunk must lead to a valid next chunk. If it does
//! not, the walk reads it again, and then returns to an earlier valid position. Memory that cannot
//! be walked is counted separately.

use std::ops::Range;

use super::caches;
use super::chunk::{
    FLAGS, HEAD_BYTES, IS_MMAPPED, LARGEST_FAST, LIST_BYTES, PREV_INUSE, SMALLEST, USER_AT,
};
use super::effort::Effort;
use super::lists::FastChunks;
use super::position::{Checkpoints, Position, Trouble};
use super::stretch_tally::{StretchTally, TopRule};
use super::tally::Tally;
use super::window::Window;
use super::{FreeKind, FreePages};
use crate::blocks::{BlockCollector, Visitor, printed_bytes, read_print};
use crate::memory::{Memory, word, word_in};
use crate::ranges::without;
use crate::residency::Residency;
use crate::rooms::RoomKind;

/// Maximum size of the fenceposts at the end of a part, in bytes: two chunks of 16 bytes, sometimes
/// three.
const FENCEPOST_BYTES: u64 = 4 * 16;

/// Maximum number of positions that a walk skips because they cannot be walked.
const MOST_GAPS: u32 = 16;
/// Maximum distance to search for a valid chunk after such a position, in bytes.
const FARTHEST: u64 = 16 << 20;
/// Maximum size of memory from `brk` that is not the allocator's, in bytes. The heap is searched
/// for after it.
const LARGEST_FOREIGN: u64 = 256 << 20;
/// Number of consecutive valid chunks that are accepted as a heap.
const CONVINCING: u32 = 32;
/// Maximum number of candidates for thread caches: more than there can be threads (`PID_MAX_LIMIT`
/// is larger, but the memory would not suffice).
pub(super) const MAX_SUSPECTS: usize = 1 << 18;

/// The end of a stretch of a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It ends with the top chunk of its arena, with the rule by which a trim treats it.
    Top(TopRule),
    /// It ends with fenceposts, because the part is no longer the last.
    Fencepost,
    /// It ends with the first fenceposts, wherever they are, or with the top chunk.
    Piece {
        /// The address of the arena's top chunk.
        top: u64,
    },
}

/// A stretch to walk.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    /// The addresses from its first chunk to its expected end.
    pub(super) range: Range<u64>,
    pub(super) ending: Ending,
    /// The address of the arena's pointer to its top chunk, for a stretch that ends with the top
    /// chunk.
    pub(super) top_at: u64,
    /// Upper bound of its end, if it has grown by the time of the walk.
    pub(super) most: u64,
    /// The arena that it belongs to.
    pub(super) arena: u64,
}

/// The result of walking a stretch.
#[derive(Debug, Clone, Default)]
pub(super) struct StretchWalk {
    pub(super) tally: Tally,
    /// Chunks in use that may be thread caches.
    pub(super) suspects: Vec<u64>,
    /// Number of rereads, and number of returns to a checkpoint.
    pub(super) rereads: u64,
    pub(super) returns: u64,
}

/// Walks stretches of one heap.
pub(super) struct Walker<'m, M> {
    memory: &'m M,
    page: u64,
    /// The chunks in fast bins.
    pub(super) fast: FastChunks<'m, M>,
    window: Window,
    /// Effort left for steps without progress.
    pub(super) effort: Effort,
    /// The position after which a search found no continuation of the heap. It is not searched
    /// again, because a search takes long.
    barren: Option<u64>,
    pub(super) residency: Residency<'m, M>,
    /// Receives the free pages.
    found: Option<&'m mut dyn FnMut(FreePages)>,
    /// Collects the blocks in use.
    pub(super) blocks: BlockCollector<'m>,
}

/// The result of a step.
enum NextChunk {
    Chunk,
    /// The stretch has ended. Its chunks end at this address, before the fenceposts.
    End(u64),
}

/// The error for a chunk that is invalid or cannot be read.
struct Unsound;

impl<'m, M: Memory> Walker<'m, M> {
    pub(super) fn new(
        memory: &'m M,
        fast: FastChunks<'m, M>,
        found: Option<&'m mut dyn FnMut(FreePages)>,
        visitor: Visitor<'m>,
    ) -> Self {
        let page = memory.page_bytes();
        let (window, residency) = (Window::new(), Residency::new(memory));
        let effort = Effort::new();
        let blocks = BlockCollector::new(visitor);
        Self { memory, page, fast, window, effort, barren: None, residency, found, blocks }
    }

    /// Walks one stretch from its first chunk to its end. Corrects the end if it moves.
    pub(super) fn walk(&mut self, stretch: &mut Stretch) -> StretchWalk {
        let mut walked = StretchWalk::default();
        let start = stretch.range.start;
        let account = StretchTally::new(self.page);
        let mut state = Position { at: start, head: None, account, suspects: 0 };
        let mut checkpoints = Checkpoints::new(&state);
        let mut trouble = Trouble::default();
        let is_piece = matches!(stretch.ending, Ending::Piece { .. });
        let mut reached = start;
        self.barren = None;
        self.blocks.begin(start);
        loop {
            checkpoints.pass(&state);
            let reads = self.window.reads();
            let stepped = self.step(&mut state, stretch, &mut walked.suspects);
            if state.at > reached {
                reached = state.at;
                self.effort.earn();
            } else {
                self.effort.spend(1, self.window.reads() - reads);
            }
            match stepped {
                Ok(NextChunk::Chunk) if !self.effort.is_spent() => continue,
                Ok(NextChunk::End(end)) => {
                    self.blocks.end(state.at);
                    self.blocks.room(RoomKind::GlibcStretch, start..end);
                    break;
                }
                Ok(NextChunk::Chunk) | Err(Unsound) => {}
            }
            // The program may have written to the chunk while it was read.
            self.window.forget();
            self.residency.forget();
            self.follow_top(stretch);
            state.head = None;
            if self.effort.is_spent() || self.memory.is_over() {
                self.give_up(&mut state, stretch);
                break;
            }
            if trouble.is_new_at(state.at) {
                walked.rereads += 1;
            } else if trouble.may_return() {
                walked.returns += 1;
                checkpoints.go_back(&mut state);
                self.blocks.back_to(state.at);
                walked.suspects.truncate(state.suspects);
            } else if is_piece || !self.pass_over(&mut state, stretch, &mut trouble) {
                self.give_up(&mut state, stretch);
                break;
            }
        }
        walked.tally = state.account.tally;
        walked
    }

    /// Returns the number of reads so far.
    pub(super) fn reads(&self) -> u64 {
        self.window.reads()
    }

    /// Counts the rest of a stretch as unwalked.
    fn give_up(&mut self, state: &mut Position, stretch: &mut Stretch) {
        let start = stretch.range.start;
        state.account.close(&mut self.residency);
        self.blocks.end(state.at);
        // The top may have moved below the position that the walk has already reached.
        stretch.range.end = stretch.range.end.max(state.at);
        state.account.unwalked(state.at..stretch.range.end, &mut self.residency);
        self.blocks.unknown(state.at..stretch.range.end);
        self.blocks.room(RoomKind::GlibcStretch, start..state.at);
    }

    /// Updates the end of a stretch from the arena's current top chunk.
    fn follow_top(&self, stretch: &mut Stretch) {
        if matches!(stretch.ending, Ending::Top(_))
            && let Some(top) = top(self.memory, stretch.top_at)
            && top.start >= stretch.range.start
            // The top of a thread arena may have moved to another heap.
            && top.end <= stretch.most
        {
            stretch.range.end = top.end;
        }
    }

    /// Walks one chunk.
    #[inline]
    fn step(
        &mut self,
        state: &mut Position,
        stretch: &mut Stretch,
        suspects: &mut Vec<u64>,
    ) -> Result<NextChunk, Unsound> {
        let at = state.at;
        let head = match state.head {
            Some(head) => head,
            None => {
                let head = self.header(at)?.1;
                if (head & PREV_INUSE == 0) != state.account.last_is_binned {
                    return Err(Unsound);
                }
                head
            }
        };
        let size = head & !FLAGS;
        let next = at.checked_add(size).ok_or(Unsound)?;
        let is_top = stretch.ending == (Ending::Piece { top: at });
        if size < SMALLEST
            || !size.is_multiple_of(16)
            || next >= stretch.range.end
            || head & IS_MMAPPED != 0
            || is_top
        {
            return self.border(state, stretch, size);
        }
        let (previous_size, next_head) = self.header(next)?;
        let is_binned = next_head & PREV_INUSE == 0;
        if is_binned {
            if previous_size != size {
                return Err(Unsound);
            }
            state.account.binned(at, size);
            if size > self.page {
                self.visit(state, stretch.arena, at..next, FreeKind::Chunk);
            }
        } else if size <= LARGEST_FAST && self.is_fast(at, size) {
            state.account.fast(at, size);
        } else {
            state.account.used(at, size, &mut self.residency);
            if self.blocks.is_on() {
                self.collect(at, size);
            }
            if caches::is_size_of_cache(size)
                && suspects.len() < MAX_SUSPECTS
                && self.may_be_cache(at, size)
            {
                suspects.push(at);
                state.suspects = suspects.len();
            }
        }
        state.at = next;
        state.head = Some(next_head);
        Ok(NextChunk::Chunk)
    }

    /// Handles a position without an ordinary chunk: the top chunk, a fencepost, or invalid data.
    #[cold]
    fn border(
        &mut self,
        state: &mut Position,
        stretch: &mut Stretch,
        size: u64,
    ) -> Result<NextChunk, Unsound> {
        let (at, end) = (state.at, stretch.range.end);
        if let Ending::Top(rule) = stretch.ending
            && size >= 16
            && at.checked_add(size) == Some(end)
        {
            state.account.close_at_top(at..end, rule, &mut self.residency);
            self.visit(state, stretch.arena, at..end, FreeKind::Top);
            state.at = end;
            return Ok(NextChunk::End(end));
        }
        if stretch.ending == (Ending::Piece { top: at }) && next_is_in(at, size, &stretch.range) {
            stretch.range.end = at + size;
            let all = at..stretch.range.end;
            state.account.close_at_top(all.clone(), TopRule::Kept, &mut self.residency);
            self.visit(state, stretch.arena, all, FreeKind::Top);
            return Ok(NextChunk::End(stretch.range.end));
        }
        // A part that is no longer the last ends with fenceposts.
        let fence_end = at.checked_next_multiple_of(self.page).ok_or(Unsound)?;
        if size > 16 || fence_end - at > FENCEPOST_BYTES || fence_end == at {
            return Err(Unsound);
        }
        state.account.fence(at..fence_end, &mut self.residency);
        state.at = fence_end;
        state.head = None;
        match stretch.ending {
            Ending::Fencepost if fence_end == end => Ok(NextChunk::End(at)),
            Ending::Piece { .. } if fence_end <= end => {
                stretch.range.end = fence_end;
                Ok(NextChunk::End(at))
            }
            // Memory that the program got from `brk` itself follows, and then the next part of the
            // heap.
            Ending::Top(_) if fence_end < end => {
                if self.barren == Some(fence_end) {
                    return Err(Unsound);
                }
                let last = end.min(fence_end.saturating_add(LARGEST_FOREIGN));
                let Some(next) = self.next_sound(fence_end..last, end, true) else {
                    self.barren = Some(fence_end);
                    return Err(Unsound);
                };
                state.account.foreign(fence_end..next, &mut self.residency);
                self.blocks.end(at);
                self.blocks.unknown(at..next);
                self.blocks.begin(next);
                state.at = next;
                Ok(NextChunk::Chunk)
            }
            _ => Err(Unsound),
        }
    }

    /// Reports the whole pages inside one free chunk or the top chunk.
    fn visit(&mut self, state: &mut Position, arena: u64, chunk: Range<u64>, kind: FreeKind) {
        let from = (chunk.start + LIST_BYTES).next_multiple_of(self.page);
        let to = chunk.end - chunk.end % self.page;
        if from >= to {
            return;
        }
        state.account.tally.single_bytes += self.residency.free_bytes(from..to).droppable;
        let Some(found) = self.found.as_mut() else { return };
        for pages in without(from..to, self.memory.locked()) {
            let resident_bytes = self.residency.bytes(pages.clone());
            if resident_bytes > 0 {
                found(FreePages { arena, kind, chunk: chunk.clone(), pages, resident_bytes });
            }
        }
    }

    /// Skips memory that cannot be walked. Returns `false` if no valid chunk follows.
    fn pass_over(
        &mut self,
        state: &mut Position,
        stretch: &Stretch,
        trouble: &mut Trouble,
    ) -> bool {
        trouble.gaps += 1;
        if trouble.gaps > MOST_GAPS {
            return false;
        }
        let from = state.at.saturating_add(16);
        let end = stretch.range.end;
        let last = end.min(from.saturating_add(FARTHEST));
        let Some(next) = self.next_sound(from..last, end, false) else { return false };
        state.account.close(&mut self.residency);
        state.account.unwalked(state.at..next, &mut self.residency);
        self.blocks.end(state.at);
        self.blocks.unknown(state.at..next);
        self.blocks.begin(next);
        state.at = next;
        state.head = None;
        // The state of the chunk before is unknown, so the flag of this chunk is used.
        state.account.last_is_binned =
            self.header(next).is_ok_and(|(_, head)| head & PREV_INUSE == 0);
        trouble.begin_anew();
        true
    }

    /// Returns the first address from which many valid chunks follow each other, or the chunks up
    /// to `end`.
    fn next_sound(&mut self, among: Range<u64>, end: u64, is_first: bool) -> Option<u64> {
        let mut at = among.start.checked_next_multiple_of(16)?;
        while at < among.end && !self.effort.is_spent() {
            // No chunk begins on a page that is not resident.
            if self.residency.end_of_run(at).is_none() {
                at = at.checked_add(1)?.checked_next_multiple_of(self.page)?;
                self.effort.spend(1, 0);
            } else if self.is_sound_from(at, end, is_first) {
                return Some(at);
            } else {
                at = at.checked_add(16)?;
            }
        }
        None
    }

    /// Calls [`Walker::chunks_follow`], and accounts for its effort.
    pub(super) fn is_sound_from(&mut self, start: u64, end: u64, is_first: bool) -> bool {
        let reads = self.window.reads();
        let is_sound = self.chunks_follow(start, end, is_first);
        self.effort.spend(1, self.window.reads() - reads);
        is_sound
    }

    /// Returns whether many valid chunks follow each other, or all chunks up to the end or a
    /// fencepost are valid.
    fn chunks_follow(&mut self, start: u64, end: u64, is_first: bool) -> bool {
        let mut at = start;
        for _ in 0..CONVINCING {
            let Ok((_, head)) = self.header(at) else { return false };
            let size = head & !FLAGS;
            if size == 16 && at > start && self.page - at % self.page <= FENCEPOST_BYTES {
                return true;
            }
            let Some(next) = at.checked_add(size).filter(|next| *next <= end) else { return false };
            if size < SMALLEST || !size.is_multiple_of(16) || head & IS_MMAPPED != 0 {
                return false;
            }
            if is_first && at == start && head & PREV_INUSE == 0 {
                return false;
            }
            if next == end {
                return true;
            }
            let Ok((previous, next_head)) = self.header(next) else { return false };
            if next_head & PREV_INUSE == 0 && previous != size {
                return false;
            }
            at = next;
        }
        true
    }

    /// Collects a chunk in use.
    #[inline]
    fn collect(&mut self, at: u64, size: u64) {
        let (window, memory) = (&self.window, self.memory);
        let user = at + USER_AT;
        self.blocks.add(user, size, |visitor| {
            let usable = size - HEAD_BYTES;
            match window.bytes(user, printed_bytes(usable)) {
                Some(first) => visitor.print(user, first),
                None => read_print(memory, user, usable, visitor),
            }
        });
    }

    #[inline]
    fn is_fast(&mut self, at: u64, size: u64) -> bool {
        let (window, memory) = (&self.window, self.memory);
        self.fast.contains(at, size, || match window.bytes(at + 16, 8) {
            Some(bytes) => word_in(bytes, 0),
            None => word(memory, at + 16),
        })
    }

    fn may_be_cache(&self, at: u64, size: u64) -> bool {
        // The memory of the program extends into the head of the next chunk.
        let length = size as usize + 8;
        match self.window.bytes(at, length) {
            Some(bytes) => caches::may_be_cache(bytes),
            None => {
                let mut bytes = vec![0; length];
                self.memory.read(at, &mut bytes) == length && caches::may_be_cache(&bytes)
            }
        }
    }

    #[inline]
    fn header(&mut self, at: u64) -> Result<(u64, u64), Unsound> {
        self.window.header(at, self.memory, &mut self.residency).ok_or(Unsound)
    }
}

/// Returns the chunk at the top of an arena, with its end.
pub(super) fn top(memory: &impl Memory, top_at: u64) -> Option<Range<u64>> {
    let top = word(memory, top_at)?;
    let size = word(memory, top.checked_add(8)?)? & !FLAGS;
    Some(top..top.checked_add(size)?)
}

fn next_is_in(at: u64, size: u64, range: &Range<u64>) -> bool {
    size >= 16 && at.checked_add(size).is_some_and(|next| next <= range.end)
}

//! The blocks in use, one by one, as a walk finds them.

use std::iter::Peekable;
use std::mem::take;
use std::ops::Range;
use std::vec::IntoIter;

use crate::memory::Memory;
use crate::rooms::{Room, RoomKind};

/// Size of a place in bytes: the unit in which blocks are passed on, and in which a heap can be
/// sampled. A place begins at a multiple of its size.
pub const PLACE: u64 = 64 << 10;
/// Maximum number of bytes of a block that its print covers.
pub const PRINTED: u64 = 48;
/// Number of bytes of a row of blocks that are read at once.
const AT_ONCE: u64 = 64 << 10;

/// A block in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The address of the program's memory.
    pub at: u64,
    /// Number of bytes that it takes, including the allocator's overhead.
    pub bytes: u64,
    /// What the visitor made of its first bytes ([`BlockVisitor::print`]); 0 if they could not be
    /// read.
    pub print: u16,
}

/// Receives the blocks in use.
///
/// A walk may report an address more than once, because the heap changes while it is read. The last
/// report counts.
pub trait BlockVisitor {
    /// Returns whether the visitor wants the blocks that begin in a place. `place` is the address
    /// of the place divided by [`PLACE`].
    fn wants(&self, place: u64) -> bool;

    /// Receives all blocks in use that begin in a range, in order of address. The range lies in one
    /// place. They replace all blocks that were received for the range before, including large
    /// ones.
    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]);

    /// Receives a block of at least [`PLACE`] bytes, whether its place is wanted or not.
    fn large(&mut self, block: Block);

    /// Receives a range in which the blocks could not be read in this walk.
    fn unknown(&mut self, range: Range<u64>);

    /// Receives the address of a block that turned out to be free: a thread caches it, or it is in
    /// a list of free blocks.
    fn is_free(&mut self, at: u64);

    /// Receives a room, after the blocks in it. It replaces all rooms that it overlaps.
    fn room(&mut self, _: Room) {}

    /// Makes the print of a block from its address and its first bytes, at most [`PRINTED`]: by
    /// default a hash of the bytes, which identifies the block beside its address and size.
    fn print(&mut self, _: u64, first: &[u8]) -> u16 {
        print(first)
    }
}

/// The visitor of a walk, if its blocks are wanted.
pub type Visitor<'v> = Option<&'v mut dyn BlockVisitor>;

/// Lends a visitor for one of several walks.
pub fn lend<'v>(visitor: &'v mut Visitor<'_>) -> Visitor<'v> {
    match visitor {
        Some(visitor) => Some(&mut **visitor),
        None => None,
    }
}

/// Makes the print of a block from its first bytes. It is never 0.
pub fn print(first: &[u8]) -> u16 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in first.chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        hash = (hash ^ word).wrapping_mul(PRIME);
        hash ^= hash >> 29;
    }
    (hash >> 40) as u16 | 1
}

/// Returns the number of first bytes of a block that its print covers. `bytes` is the usable size
/// of the block.
pub(crate) fn printed_bytes(bytes: u64) -> usize {
    (bytes - bytes % 8).min(PRINTED) as usize
}

/// Collects the blocks of a walk place by place, and passes them on.
pub(crate) struct BlockCollector<'v> {
    visitor: Visitor<'v>,
    /// The place that is being collected, and whether it is wanted.
    place: u64,
    is_wanted: bool,
    /// The address from which blocks of this place were collected.
    from: u64,
    found: Vec<Block>,
    buffer: Vec<u8>,
}

impl<'v> BlockCollector<'v> {
    /// Passes blocks on to a visitor, if there is one.
    pub(crate) fn new(visitor: Visitor<'v>) -> Self {
        Self {
            visitor,
            place: u64::MAX,
            is_wanted: false,
            from: 0,
            found: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// Returns whether there is a visitor.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.visitor.is_some()
    }

    /// Begins to collect at an address.
    pub(crate) fn begin(&mut self, at: u64) {
        self.found.clear();
        self.from = at;
        self.enter(at / PLACE);
    }

    fn enter(&mut self, place: u64) {
        self.place = place;
        self.is_wanted = self.visitor.as_ref().is_some_and(|visitor| visitor.wants(place));
    }

    /// Goes back to an earlier address, and drops the blocks that were collected from there on.
    pub(crate) fn back_to(&mut self, at: u64) {
        if at / PLACE != self.place || at < self.from {
            self.begin(at);
        } else {
            let kept = self.found.partition_point(|block| block.at < at);
            self.found.truncate(kept);
        }
    }

    /// Adds a block with a higher address than those before it. `print` makes its print with the
    /// visitor.
    #[inline]
    pub(crate) fn add(
        &mut self,
        at: u64,
        bytes: u64,
        print: impl FnOnce(&mut dyn BlockVisitor) -> u16,
    ) {
        self.move_to(at);
        if bytes >= PLACE {
            self.end(at);
            self.from = at + 1;
            if let Some(visitor) = &mut self.visitor {
                let print = print(&mut **visitor);
                visitor.large(Block { at, bytes, print });
            }
        } else if self.is_wanted
            && let Some(visitor) = &mut self.visitor
        {
            let print = print(&mut **visitor);
            self.found.push(Block { at, bytes, print });
        }
    }

    /// Passes on the blocks that were collected before the place of an address.
    #[inline]
    fn move_to(&mut self, at: u64) {
        if at / PLACE != self.place {
            let start = at - at % PLACE;
            self.end(start);
            self.enter(at / PLACE);
        }
    }

    /// Returns whether the blocks that begin in a range are wanted.
    pub(crate) fn wants(&self, range: &Range<u64>) -> bool {
        let wants = |at: u64| self.visitor.as_ref().is_some_and(|v| v.wants(at / PLACE));
        range.end - range.start >= PLACE || wants(range.start) || wants(range.end - 1)
    }

    /// Goes on to an address, and passes on each place before it, also if no block begins there.
    pub(crate) fn go_to(&mut self, at: u64) {
        while self.place < at / PLACE {
            let next = (self.place + 1).saturating_mul(PLACE);
            self.end(next);
            self.enter(next / PLACE);
        }
    }

    /// Ends collecting at an address.
    pub(crate) fn end(&mut self, at: u64) {
        self.pass_on(at);
        self.from = at;
    }

    fn pass_on(&mut self, end: u64) {
        let end = end.min((self.place.saturating_add(1)).saturating_mul(PLACE));
        if self.is_wanted
            && self.from < end
            && let Some(visitor) = &mut self.visitor
        {
            visitor.blocks(self.from..end, &self.found);
        }
        self.found.clear();
    }

    /// Passes on that a range could not be read.
    pub(crate) fn unknown(&mut self, range: Range<u64>) {
        if let Some(visitor) = &mut self.visitor
            && range.start < range.end
        {
            visitor.unknown(range);
        }
    }

    /// Withdraws the blocks that begin in a range.
    pub(crate) fn erase(&mut self, range: Range<u64>) {
        let (mut at, end) = (range.start, range.end);
        while self.is_on() && at < end {
            self.begin(at);
            at = (at - at % PLACE).saturating_add(PLACE).min(end);
            self.end(at);
        }
    }

    /// Passes on a room, whose blocks were passed on before.
    pub(crate) fn room(&mut self, kind: RoomKind, range: Range<u64>) {
        if let Some(visitor) = &mut self.visitor
            && range.start < range.end
        {
            visitor.room(Room { range, kind });
        }
    }

    /// Passes on that a block is free.
    pub(crate) fn is_free(&mut self, at: u64) {
        if let Some(visitor) = &mut self.visitor {
            visitor.is_free(at);
        }
    }

    /// Passes on one block that has pages of its own.
    pub(crate) fn lone(&mut self, memory: &impl Memory, at: u64, bytes: u64, usable: u64) {
        if self.is_on() && bytes > 0 {
            self.begin(at);
            self.add(at, bytes, |visitor| read_print(memory, at, usable, visitor));
            self.end(at + 1);
        }
    }

    /// Passes on a row of blocks of one size: those that `is_used` selects by their index, resident
    /// or not.
    pub(crate) fn row(
        &mut self,
        memory: &impl Memory,
        start: u64,
        bytes: u64,
        count: u64,
        is_used: impl Fn(u64) -> bool,
    ) {
        if !self.is_on() || bytes == 0 || count == 0 {
            return;
        }
        let used = (0..count).filter(|index| is_used(*index)).map(|index| start + index * bytes);
        if bytes >= PLACE {
            used.for_each(|at| self.lone(memory, at, bytes, bytes));
            return;
        }
        let Some(end) = bytes.checked_mul(count).and_then(|bytes| start.checked_add(bytes)) else {
            return;
        };
        let mut content = Content::of(memory, start..end, take(&mut self.buffer));
        self.begin(start);
        for at in used {
            self.go_to(at);
            if let Some(visitor) = self.visitor.as_mut().filter(|_| self.is_wanted) {
                let first = content.first(at, printed_bytes(bytes));
                let print = first.map_or(0, |first| visitor.print(at, first));
                self.found.push(Block { at, bytes, print });
            }
        }
        self.go_to(end - 1);
        self.end(end);
        self.buffer = content.buffer;
    }
}

/// The resident content of a row of blocks, which is read in order of address.
struct Content<'m, M> {
    memory: &'m M,
    /// The resident parts of the row from the last address on, in order.
    resident: Peekable<IntoIter<Range<u64>>>,
    end: u64,
    /// The address of the buffer's first byte, and the number of bytes that were read there.
    known: u64,
    length: usize,
    buffer: Vec<u8>,
}

impl<'m, M: Memory> Content<'m, M> {
    fn of(memory: &'m M, row: Range<u64>, buffer: Vec<u8>) -> Self {
        let resident = memory.resident(row.clone()).into_iter().peekable();
        Self { memory, resident, end: row.end, known: row.start, length: 0, buffer }
    }

    /// Returns the first bytes of a block, or `None` if they are not resident.
    fn first(&mut self, at: u64, wanted: usize) -> Option<&[u8]> {
        while self.resident.next_if(|run| run.end <= at).is_some() {}
        self.resident.peek().filter(|run| run.start <= at)?;
        if at + wanted as u64 > self.known + self.length as u64 {
            self.known = at;
            self.buffer.resize((self.end - at).min(AT_ONCE) as usize, 0);
            self.length = self.memory.read(at, &mut self.buffer);
        }
        let first = (at - self.known) as usize;
        self.buffer[..self.length].get(first..first + wanted)
    }
}

/// Reads the print of a block, or returns 0 if its first bytes are not resident.
pub(crate) fn read_print(
    memory: &impl Memory,
    at: u64,
    usable: u64,
    visitor: &mut dyn BlockVisitor,
) -> u16 {
    let mut first = [0; PRINTED as usize];
    let first = &mut first[..printed_bytes(usable)];
    if memory.read(at, first) == first.len() { visitor.print(at, first) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;

    #[derive(Default)]
    struct Seen {
        calls: Vec<(Range<u64>, Vec<u64>)>,
        large: Vec<u64>,
        /// The blocks whose first bytes were read.
        printed: Vec<u64>,
    }

    impl BlockVisitor for Seen {
        fn wants(&self, place: u64) -> bool {
            place != 2
        }

        fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
            self.calls.push((range, blocks.iter().map(|block| block.at).collect()));
        }

        fn large(&mut self, block: Block) {
            self.large.push(block.at);
        }

        fn unknown(&mut self, _: Range<u64>) {}

        fn is_free(&mut self, _: u64) {}

        fn print(&mut self, at: u64, first: &[u8]) -> u16 {
            self.printed.push(at);
            print(first)
        }
    }

    #[test]
    fn blocks_are_passed_on_place_by_place_without_unwanted_places() {
        let mut seen = Seen::default();
        let mut collector = BlockCollector::new(Some(&mut seen));
        collector.begin(0x8000);
        for at in [0x8010, 0xfff0, 0x10010, 0x20010, 0x30010] {
            collector.add(at, 32, |_| 1);
        }
        collector.add(0x30030, 0x20000, |_| 1);
        collector.end(0x30040);
        let expected = vec![
            (0x8000..0x10000, vec![0x8010, 0xfff0]),
            (0x10000..0x20000, vec![0x10010]),
            (0x30000..0x30030, vec![0x30010]),
            (0x30031..0x30040, vec![]),
        ];
        assert_eq!((seen.calls, seen.large), (expected, vec![0x30030]));
    }

    #[test]
    fn blocks_that_a_walk_discards_by_going_back_are_not_passed_on() {
        let mut seen = Seen::default();
        let mut collector = BlockCollector::new(Some(&mut seen));
        collector.begin(0x1000);
        collector.add(0x1010, 32, |_| 1);
        collector.add(0x1040, 32, |_| 1);
        collector.back_to(0x1030);
        collector.add(0x1050, 32, |_| 1);
        collector.end(0x2000);
        assert_eq!(seen.calls, [(0x1000..0x2000, vec![0x1010, 0x1050])]);
    }

    #[test]
    fn a_row_passes_on_its_blocks_in_use_with_hashes_of_their_contents() {
        let memory = Saved::new(vec![(0x10000, vec![7; 4096])]);
        let mut seen = Seen::default();
        let mut collector = BlockCollector::new(Some(&mut seen));
        collector.row(&memory, 0x10000, 64, 4, |index| index != 1);
        assert_eq!(seen.calls, [(0x10000..0x10100, vec![0x10000, 0x10080, 0x100c0])]);
        assert_eq!(read_print(&memory, 0x10000, 64, &mut seen), print(&[7; 48]));
        assert_eq!(read_print(&memory, 0x20000, 64, &mut seen), 0);
    }

    #[test]
    fn a_row_passes_on_blocks_on_pages_that_were_never_touched() {
        let memory = Saved::new(vec![(0x18000, vec![7; 4096])]);
        let mut seen = Seen::default();
        let mut collector = BlockCollector::new(Some(&mut seen));
        collector.row(&memory, 0x10000, 0x4000, 10, |index| ![0, 7].contains(&index));
        assert_eq!(
            seen.calls,
            [
                (0x10000..0x20000, vec![0x14000, 0x18000, 0x1c000]),
                (0x30000..0x38000, vec![0x30000, 0x34000])
            ]
        );
        assert_eq!(seen.printed, [0x18000]);
    }
}

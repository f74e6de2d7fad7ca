//! Finds all pointers to blocks.

use std::ops::Range;

use lowtide_heap::memory::{ADDRESS_END, Memory};
use lowtide_heap::ranges::hold;

use super::index::{BlockId, BlockIndex};
use super::words::{SizeWords, Word, chunk_bytes};

/// Maximum number of bytes per read: of memory that is read completely, and of scattered parts.
const AT_ONCE: u64 = 1 << 20;
const SCATTERED_AT_ONCE: u64 = 16 << 10;
/// Mask of the address bits of a pointer into user space: a program may store other bits above
/// them.
const ADDRESS_BITS: u64 = ADDRESS_END - 1;
/// Size of the ranges whose resident pages are queried at once, in bytes.
const SLICE: u64 = 1 << 30;

/// Interprets a word as an address; `None` if it is too low.
#[inline]
pub(crate) fn address(word: u64) -> Option<u64> {
    let at = word & ADDRESS_BITS;
    (at > 0xffff).then_some(at)
}

/// Reads the resident words of some ranges, which are in order.
pub(super) fn each_word<M: Memory>(
    memory: &M,
    ranges: impl IntoIterator<Item = Range<u64>>,
    mut each: impl FnMut(u64, u64),
) {
    let mut buffer = Vec::new();
    let slices = ranges.into_iter().flat_map(|range| {
        let starts = (range.start..range.end).step_by(SLICE as usize);
        starts.map(move |start| start..range.end.min(start.saturating_add(SLICE)))
    });
    for range in slices {
        if memory.is_over() {
            return;
        }
        for run in memory.resident(range.clone()) {
            let end = run.end.min(range.end);
            let mut at = run.start.max(range.start).next_multiple_of(8);
            while at < end && !memory.is_over() {
                // Most of the ranges are short.
                buffer.resize((end - at).min(AT_ONCE) as usize, 0);
                let length = memory.read_resident(at, &mut buffer);
                for (place, word) in buffer[..length].chunks_exact(8).enumerate() {
                    let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                    if word != 0 {
                        each(at + place as u64 * 8, word);
                    }
                }
                at += buffer.len() as u64;
            }
        }
    }
}

/// The target of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointerTarget {
    /// In a block.
    Block(BlockId),
    /// An address in no block: it may belong to one that was allocated after the walk.
    Other(u64),
}

impl PointerTarget {
    /// Returns what a word points to; `None` if it is not a pointer.
    #[inline]
    pub(crate) fn of(index: &BlockIndex, word: u64) -> Option<Self> {
        let at = address(word)?;
        Some(index.containing(at).map_or(Self::Other(at), Self::Block))
    }

    /// Returns the block.
    #[inline]
    pub(crate) fn block(self) -> Option<BlockId> {
        match self {
            Self::Block(id) => Some(id),
            Self::Other(_) => None,
        }
    }
}

/// Calls `each` for every pointer in the roots, with its target.
pub(crate) fn each_root<M: Memory>(
    memory: &M,
    index: &BlockIndex,
    roots: &[Range<u64>],
    mut each: impl FnMut(Word, PointerTarget),
) {
    let mut sizes = SizeWords::default();
    each_word(memory, roots.iter().cloned(), |at, value| {
        let word = sizes.word(at, value);
        if let Some(to) = PointerTarget::of(index, value) {
            each(word, to);
        }
    });
}

/// Calls `each` for every pointer in blocks, except those to their own block, in order of the
/// numbers of the blocks: with the block, and its target. `chunks` are the heaps in which the size
/// of a block is in the word before it, in order and disjoint.
pub(crate) fn each_in_blocks<M: Memory>(
    memory: &M,
    index: &BlockIndex,
    chunks: &[Range<u64>],
    mut each: impl FnMut(BlockId, Word, PointerTarget),
) {
    each_word_in_blocks(
        memory,
        index,
        chunks,
        |_| true,
        |from, _, word| {
            let to = PointerTarget::of(index, word.value);
            if let Some(to) = to.filter(|to| *to != PointerTarget::Block(from)) {
                each(from, word, to);
            }
        },
    );
}

/// Calls `each` for every word in the blocks that `is_wanted` selects by their addresses, in order
/// of their numbers: with the block, and its addresses. `chunks` as in [`each_in_blocks`].
pub(super) fn each_word_in_blocks<M: Memory>(
    memory: &M,
    blocks: &BlockIndex,
    chunks: &[Range<u64>],
    mut is_wanted: impl FnMut(&Range<u64>) -> bool,
    mut each: impl FnMut(BlockId, &Range<u64>, Word),
) {
    let mut sizes = SizeWords::default();
    let mut window = WordReader::new(memory);
    blocks.each(|from, block| {
        if !is_wanted(&block) {
            return;
        }
        sizes.block(block.start);
        let is_divided = hold(chunks, &block) && is_divided(&mut window, &block);
        window.each(block.clone(), |at, value| {
            each(from, &block, Word { is_of_divided: is_divided, ..sizes.word(at, value) });
        });
    });
}

/// Returns whether a block of the walk was divided since: its chunk is smaller now. Its memory then
/// belongs to other blocks.
fn is_divided(words: &mut WordReader<'_, impl Memory>, block: &Range<u64>) -> bool {
    let size = block.start.checked_sub(8).and_then(|at| words.two(at)).map(|[size, _]| size);
    size.and_then(chunk_bytes).is_some_and(|bytes| bytes < block.end - block.start)
}

/// Calls `each` for every pointer to some blocks that is in a block of a heap, with its own
/// address.
pub(crate) fn each_pointer<M: Memory>(
    memory: &M,
    index: &BlockIndex,
    to: &BlockIndex,
    mut each: impl FnMut(u64, BlockId),
) {
    let mut words = WordReader::new(memory);
    index.each(|_, block| {
        words.each(block, |at, word| {
            if let Some(to) = address(word).and_then(|word| to.containing(word)) {
                each(at, to);
            }
        });
    });
}

/// Reads words at ascending addresses.
pub(crate) struct WordReader<'m, M>(ScanWindow<'m, M>);

impl<'m, M: Memory> WordReader<'m, M> {
    /// Creates a reader of memory of which most is read.
    pub(crate) fn new(memory: &'m M) -> Self {
        Self(ScanWindow::new(memory, AT_ONCE))
    }

    /// Creates a reader of scattered parts.
    pub(crate) fn of_parts(memory: &'m M) -> Self {
        Self(ScanWindow::new(memory, SCATTERED_AT_ONCE))
    }

    /// Calls `each` for every word of a range that is resident and not zero, with its address.
    pub(crate) fn each(&mut self, range: Range<u64>, each: impl FnMut(u64, u64)) {
        self.0.each_word(range, each);
    }

    /// Returns two consecutive words; `None` if they are not resident.
    pub(crate) fn two(&mut self, at: u64) -> Option<[u64; 2]> {
        let ScanWindow { start, bytes, .. } = &self.0;
        let is_known = *start <= at && at + 16 <= start + bytes.len() as u64;
        if !is_known {
            self.0.load(at)?;
        }
        let first = (at - self.0.start) as usize;
        let word = |place: usize| {
            let word = self.0.bytes.get(first + place..first + place + 8)?;
            Some(u64::from_le_bytes(word.try_into().unwrap_or_default()))
        };
        Some([word(0)?, word(8)?])
    }
}

/// A window over memory that is read in ascending order.
struct ScanWindow<'m, M> {
    memory: &'m M,
    /// Maximum number of bytes per read.
    at_once: u64,
    start: u64,
    bytes: Vec<u8>,
    /// The range whose resident runs are known.
    resident: Range<u64>,
    slice: Vec<Range<u64>>,
}

impl<'m, M: Memory> ScanWindow<'m, M> {
    fn new(memory: &'m M, at_once: u64) -> Self {
        Self { memory, at_once, start: 0, bytes: Vec::new(), resident: 0..0, slice: Vec::new() }
    }

    /// Calls `each` for every word of a range that is resident and not zero.
    #[inline]
    fn each_word(&mut self, range: Range<u64>, mut each: impl FnMut(u64, u64)) {
        let mut at = range.start.next_multiple_of(8);
        while at + 8 <= range.end {
            let known = self.start..self.start + self.bytes.len() as u64;
            if at < known.start || at + 8 > known.end {
                match self.load(at) {
                    Some(()) => continue,
                    None => match self.next_resident(at, range.end) {
                        Some(next) => at = next,
                        None => return,
                    },
                }
                continue;
            }
            let first = (at - self.start) as usize;
            let last = ((range.end - self.start) as usize).min(self.bytes.len());
            for (place, word) in self.bytes[first..last].chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                if word != 0 {
                    each(at + place as u64 * 8, word);
                }
            }
            at += (last - first) as u64 & !7;
        }
    }

    /// Reads from the page of an address on, as far as pages are resident. Returns `None` if the
    /// word at the address is not among them.
    fn load(&mut self, at: u64) -> Option<()> {
        self.know(at);
        let run = self.slice[self.first_ending_after(at)..].first()?;
        if run.start > at {
            return None;
        }
        let start = run.start.max(at - at % self.memory.page_bytes());
        let end = run.end.min(start + self.at_once);
        self.bytes.resize((end - start) as usize, 0);
        let length = self.memory.read_resident(start, &mut self.bytes);
        self.bytes.truncate(length);
        self.start = start;
        (at + 8 <= start + length as u64).then_some(())
    }

    /// Returns the next resident address before `end`.
    fn next_resident(&mut self, at: u64, end: u64) -> Option<u64> {
        let page = self.memory.page_bytes();
        let mut at = (at - at % page).saturating_add(page);
        while at < end {
            self.know(at);
            let next = self.slice[self.first_ending_after(at)..].first();
            let next = next.map(|run| run.start.max(at));
            match next {
                Some(next) if next < end => return Some(next),
                Some(_) => return None,
                None => at = self.resident.end,
            }
        }
        None
    }

    /// Returns the index of the first resident run that ends after an address.
    fn first_ending_after(&self, at: u64) -> usize {
        self.slice.partition_point(|run| run.end <= at)
    }

    /// Queries which pages around an address are resident.
    fn know(&mut self, at: u64) {
        const SLICE: u64 = 16 << 20;
        if !self.resident.contains(&at) {
            let start = at - at % SLICE;
            self.resident = start..start + SLICE;
            self.slice = self.memory.resident(self.resident.clone());
        }
    }
}

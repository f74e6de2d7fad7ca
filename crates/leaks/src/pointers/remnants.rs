//! Recognises the links of free chunks that glibc has left in memory.
//!
//! A free chunk begins with its size and with links to other free chunks of its list (`fd`, `bk`,
//! and `fd_nextsize`, `bk_nextsize` of a large one). When its memory becomes part of a block again,
//! the program may leave them there. A link is the address of a chunk header, which begins 16 bytes
//! before the end of the block before the chunk. Taken for a pointer, one link would make that
//! block and all that it points to reachable. A program's own pointer to the last word of a block
//! has the same value, so the words beside it decide.
//!
//! Where chunks were merged and divided since, a link leads to any place in a block. So do a
//! program's own pointers, and the words beside them may look alike. Such a word is doubtful: a
//! block to which only doubtful words lead is neither reachable nor lost. The same is true of a
//! word beside a link of which the program has overwritten a part, and of the first words of a
//! block: they may be links that the program has not overwritten yet, after the size of the block.
//!
//! All words of a block that was divided after the walk are doubtful, too. Its memory belongs to
//! other blocks now, and it is unknown to which of them a pointer into it leads.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::hold;
use lowtide_probe::detect::WalkedHeaps;

use super::index::{BlockId, BlockIndex};
use super::words::{BEFORE, FLAGS, HEAD, PREVIOUS_IN_USE, SMALLEST, Word, is_size, may_be_rest};

/// Number of words that are read: those before a link, the link and the word after it.
const WORDS: usize = BEFORE + 2;
/// Maximum number of words that are checked. Further ones count as pointers of the program.
const MAX_CHECKED: u32 = 1 << 20;

/// What a word that points into a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pointer {
    /// A pointer of the program.
    Program,
    /// A link of a chunk that was free once, or a pointer of the program.
    Doubtful,
    /// A link of a chunk that was free once.
    Link,
}

/// Recognises links that were left in memory.
pub(super) struct Remnants<'m, M> {
    memory: &'m M,
    /// Structures of the allocators: the lists of free chunks begin and end in them. Empty if no
    /// heap belongs to glibc.
    structures: &'m [Range<u64>],
    /// The addresses of the heaps.
    areas: &'m [Range<u64>],
    /// Those of glibc, into which all links lead.
    chunks: &'m [Range<u64>],
    checked: u32,
}

impl<'m, M: Memory> Remnants<'m, M> {
    pub(super) fn new(memory: &'m M, heaps: &'m WalkedHeaps) -> Self {
        let WalkedHeaps { structures, areas, chunks, .. } = heaps;
        Self { memory, structures, areas, chunks, checked: 0 }
    }

    /// Returns what a word is. `to` is the block that it points into; `None` if it points to memory
    /// that was in no block. `inside` returns the block that it is in; `None` if it is in none.
    #[inline]
    pub(super) fn kind(
        &mut self,
        index: &BlockIndex,
        word: Word,
        to: Option<BlockId>,
        inside: impl FnOnce() -> Option<Range<u64>>,
    ) -> Pointer {
        if word.is_of_divided {
            return Pointer::Doubtful;
        }
        // Most words end here.
        if !word.may_be_link || !word.value.is_multiple_of(HEAD) || self.structures.is_empty() {
            return Pointer::Program;
        }
        let to = to.and_then(|to| index.range(to));
        // A pointer with a mark is no link.
        if to.as_ref().is_some_and(|to| !to.contains(&word.value)) {
            return Pointer::Program;
        }
        // Nor is one into the heap of another allocator.
        let place = word.value..word.value.saturating_add(1);
        if !hold(self.chunks, &place) && !hold(self.structures, &place) {
            return Pointer::Program;
        }
        let is_header = to.is_some_and(|to| is_header(word.value, to.end));
        self.kind_of_link(index, word.at, is_header, inside())
    }

    #[cold]
    fn kind_of_link(
        &mut self,
        index: &BlockIndex,
        at: u64,
        is_header: bool,
        inside: Option<Range<u64>>,
    ) -> Pointer {
        let begin = at.checked_sub(8 * BEFORE as u64).filter(|_| self.checked < MAX_CHECKED);
        let Some(begin) = begin else { return Pointer::Program };
        self.checked += 1;
        let mut bytes = [0; 8 * WORDS];
        let length = self.memory.read(begin, &mut bytes);
        if length < bytes.len() {
            return Pointer::Program;
        }
        let word = |place: usize| {
            let word = bytes[8 * place..8 * place + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let place_of = |at: u64| Some(at.checked_sub(begin)? as usize / 8);
        // A block begins after its own size, which says nothing about its first words, unless the
        // block was freed.
        let own = inside.as_ref().and_then(|inside| place_of(inside.start.checked_sub(8)?));
        let is_own = |place: usize| own == Some(place) && is_size(word(place));
        let is_other = |place: usize| own != Some(place) && is_size(word(place));
        // The two links of a chunk in a list differ, unless both lead to the head of the list. A
        // program often has two equal pointers: to the beginning of a buffer, and to its first
        // character.
        let value = word(BEFORE);
        let is_head = hold(self.structures, &(value..value.saturating_add(1)));
        let may_be_other = |place: usize| is_head || word(place) != value;
        let is_among = |is_size: &dyn Fn(usize) -> bool, is_link: &dyn Fn(usize) -> bool| {
            is_among(is_size, is_link, may_be_other)
        };
        let may_be_link = |place: usize| self.may_be_link(index, word(place));
        if is_header && is_among(&is_other, &may_be_link) {
            return Pointer::Link;
        }
        let is_of_free = |place: usize| {
            let chunk = begin + 8 * place as u64 - 8;
            is_own(place) && self.is_free(chunk, word(place) & !FLAGS)
        };
        if is_among(&is_of_free, &|place| self.may_be_doubtful(word(place))) {
            return Pointer::Link;
        }
        let Some(inside) = inside else { return Pointer::Program };
        if is_header && is_among(&is_own, &may_be_link) {
            return Pointer::Doubtful;
        }
        // The block ends before the size of the next chunk.
        let inside = inside.start..inside.end.saturating_sub(8);
        let is_in_block = |place: usize| inside.contains(&(begin + 8 * place as u64));
        let is_own_size = |place: usize| is_in_block(place) && is_size(word(place));
        // The size of another chunk may have replaced the other link: that of the next one, after
        // the end of the block, or that of the rest of this one.
        let size_of = |place: usize| word(place) & !FLAGS;
        let is_rest = |place: usize| {
            place > BEFORE && is_size(word(place)) && size_of(place) + HEAD == size_of(BEFORE - 1)
        };
        let may_be_link = |place: usize| {
            !is_in_block(place) || self.may_be_doubtful(word(place)) || is_rest(place)
        };
        let is_beside_rest =
            is_in_block(BEFORE - 1) && self.is_rest(word(BEFORE - 1), word(BEFORE));
        match is_among(&is_own_size, &may_be_link) || is_beside_rest {
            true => Pointer::Doubtful,
            false => Pointer::Program,
        }
    }

    /// Returns whether a chunk of a size is free now: the chunk after it says so, and repeats the
    /// size.
    fn is_free(&self, chunk: u64, size: u64) -> bool {
        let mut bytes = [0; HEAD as usize];
        let is_read = self.memory.read(chunk.saturating_add(size), &mut bytes) == bytes.len();
        let words = u128::from_le_bytes(bytes);
        let (repeated, head) = (words as u64, (words >> 64) as u64);
        is_read && repeated == size && head & !FLAGS >= SMALLEST && head & PREVIOUS_IN_USE == 0
    }

    /// Returns whether a word is the rest of a link whose lower bytes were overwritten: it leads to
    /// no memory.
    fn is_rest(&self, word: u64, other: u64) -> bool {
        may_be_rest(word, other) && self.memory.read(word & !7, &mut [0; 8]) == 0
    }

    /// Returns whether a word may be a link beside a doubtful one: it points to a structure of the
    /// allocator, or into a heap.
    fn may_be_doubtful(&self, word: u64) -> bool {
        let place = word..word.saturating_add(1);
        word.is_multiple_of(HEAD) && (hold(self.structures, &place) || hold(self.areas, &place))
    }

    /// Returns whether a word may be a link: it points to a structure of the allocator, to the
    /// header of the chunk after a block, or to memory of a heap that is in no block.
    fn may_be_link(&self, index: &BlockIndex, word: u64) -> bool {
        if !word.is_multiple_of(HEAD) || word == 0 {
            return false;
        }
        if hold(self.structures, &(word..word + 1)) {
            return true;
        }
        match index.containing(word).and_then(|id| index.range(id)) {
            Some(block) => is_header(word, block.end),
            None => hold(self.areas, &(word..word + 1)),
        }
    }
}

/// Returns whether the word at [`BEFORE`] is among the links of a chunk: as `fd`, `bk`,
/// `fd_nextsize` or `bk_nextsize`. `may_be_other` returns whether a link can be the other one of
/// `fd` and `bk`.
fn is_among(
    is_size: impl Fn(usize) -> bool,
    is_link: impl Fn(usize) -> bool,
    may_be_other: impl Fn(usize) -> bool,
) -> bool {
    let own = BEFORE;
    is_size(own - 1) && is_link(own + 1) && may_be_other(own + 1)
        || is_size(own - 2) && is_link(own - 1) && may_be_other(own - 1)
        || is_size(own - 3) && is_link(own - 2) && is_link(own - 1)
        || is_size(own - 4) && is_link(own - 3) && is_link(own - 2)
}

/// Returns whether a word is the address of the header after a block that ends at `end`.
fn is_header(word: u64, end: u64) -> bool {
    word.is_multiple_of(HEAD) && word.checked_add(HEAD) == Some(end)
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::{Block, BlockVisitor};
    use lowtide_heap::memory::Saved;

    use super::*;
    use crate::pointers::index::IndexBuilder;
    use crate::pointers::words::SizeWords;

    const BASE: u64 = 0x7f00_0000_0000;
    const BIN: u64 = 0x7f80_0000_0100;

    fn is_remnant(words: &[u64], place: usize) -> bool {
        kind(words, place) == Pointer::Link
    }

    /// Returns what the word at a place among words in memory is, which are in a block. Blocks of
    /// 80 bytes are at 0x1010 and at 0x2010, and nothing follows them.
    fn kind(words: &[u64], place: usize) -> Pointer {
        kind_inside(words, place, Some(BASE + 0x8000..BASE + 0x8040))
    }

    fn kind_inside(words: &[u64], place: usize, inside: Option<Range<u64>>) -> Pointer {
        kind_among(words, place, inside, std::iter::once(BASE..BASE + 0x10000).collect())
    }

    /// Returns the same if the heaps of glibc are at `chunks`.
    fn kind_among(
        words: &[u64],
        place: usize,
        inside: Option<Range<u64>>,
        chunks: Vec<Range<u64>>,
    ) -> Pointer {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = Saved::new(vec![(BASE + 0x7000, vec![0; 0x1000]), (BASE + 0x8000, bytes)]);
        let mut builder = IndexBuilder::new(10);
        let block = |offset| Block { at: BASE + offset, bytes: 80, print: 1 };
        builder.blocks(BASE..BASE + 0x10000, &[block(0x1010), block(0x2010)]);
        let index = builder.build().unwrap();
        let heaps = WalkedHeaps {
            areas: std::iter::once(BASE..BASE + 0x10000).collect(),
            chunks,
            structures: std::iter::once(BIN - 0x100..BIN + 0x800).collect(),
            ..WalkedHeaps::default()
        };
        let mut remnants = Remnants::new(&memory, &heaps);
        let to = index.containing(words[place]);
        let mut sizes = SizeWords::default();
        let at = |place: usize| BASE + 0x8000 + 8 * place as u64;
        let noted = (0..=place).map(|place| sizes.word(at(place), words[place])).last().unwrap();
        remnants.kind(&index, noted, to, || inside)
    }

    const ONE: u64 = BASE + 0x1050;
    const OTHER: u64 = BASE + 0x2050;

    #[test]
    fn links_beside_a_size_and_each_other_are_remnants() {
        for links in [[ONE, OTHER], [ONE, BIN], [ONE, BASE + 0x5000]] {
            let words = [7, 7, 7, 7, 0x1f1, links[0], links[1], 7, 7];
            assert!(is_remnant(&words, 5), "{links:x?}");
            let words = [7, 7, 7, 7, 0x1f1, links[1], links[0], 7, 7];
            assert!(is_remnant(&words, 6), "{links:x?}");
        }
        let large = [7, 7, 7, 7, 7, 0x1001, BIN, BIN, ONE, OTHER, 7, 7];
        assert!(is_remnant(&large, 8) && is_remnant(&large, 9));
    }

    #[test]
    fn a_pointer_of_the_program_to_the_end_of_a_block_is_none() {
        let start = BASE + 0x1010;
        for words in [
            // A vector, with a size that could be that of a chunk.
            [7, 7, 7, 7, 0x41, start, ONE, ONE, 7],
            [7, 7, 7, 7, 64, ONE, ONE, 64, 64],
            [7, 7, 7, 7, 0x41, start, ONE, 0x1f1, 7],
            [0, 0, 0, 0, 0, 0, ONE, 0, 0],
            [7, 7, 7, 7, 0x1f2, OTHER, ONE, 7, 7],
            [0x1f3, 7, 7, 0x1f1, 7, start, ONE, 7, 7],
        ] {
            assert!(!is_remnant(&words, words.iter().position(|word| *word == ONE).unwrap()));
        }
        // Beside code.
        let beside_code = [7, 7, 7, 7, 0x1f1, ONE, 0x5555_5555_0010, 7, 7];
        assert_eq!(kind(&beside_code, 5), Pointer::Program);
    }

    #[test]
    fn a_word_beside_a_size_and_a_link_is_doubtful_wherever_in_a_block_it_leads() {
        let start = BASE + 0x1010;
        let beside = |word, other| [7, 7, 7, 7, 0x1f1, word, other, 7, 7];
        let pairs =
            [(start, OTHER), (start + 16, OTHER), (start + 32, start + 48), (ONE, start + 16)];
        for (word, other) in pairs {
            assert_eq!(kind(&beside(word, other), 5), Pointer::Doubtful, "{word:x} {other:x}");
        }
        // With a mark, and without a size or another link.
        for (word, other) in [(start + 17, OTHER), (start + 16, 7)] {
            assert_eq!(kind(&beside(word, other), 5), Pointer::Program, "{word:x} {other:x}");
        }
        assert_eq!(kind(&[7, 7, 7, 7, 7, start + 16, OTHER, 7, 7], 5), Pointer::Program);
        // At the end of a block, the size of the next chunk has replaced the other link.
        let inside = || Some(BASE + 0x8000..BASE + 0x8048);
        let last = [7, 7, 7, 7, 7, 7, 0x1f1, start + 16, 0xe1];
        assert_eq!(kind_inside(&last, 7, inside()), Pointer::Doubtful);
        let before = [0, 7, 7, 7, 7, 0x1f1, start + 16, 0xe1, 0];
        assert_eq!(kind_inside(&before, 6, inside()), Pointer::Program);
        // The rest of the chunk has its own size.
        let before_rest = [0, 7, 7, 7, 7, 0x1f1, start + 16, 0x1e1, 0];
        assert_eq!(kind_inside(&before_rest, 6, inside()), Pointer::Doubtful);
        // The lower half of the link before it was overwritten.
        let beside_rest = [7, 7, 7, 7, 7, 0x7f00_0101_0101, start + 16, 0, 0];
        assert_eq!(kind_inside(&beside_rest, 6, inside()), Pointer::Doubtful);
    }

    #[test]
    fn no_link_leads_into_the_heap_of_another_allocator() {
        let words = [7, 7, 7, 7, 0x1f1, ONE, OTHER, 7, 7];
        assert_eq!(kind(&words, 5), Pointer::Link);
        let others = std::iter::once(BASE + 0x20000..BASE + 0x30000).collect();
        assert_eq!(kind_among(&words, 5, None, others), Pointer::Program);
    }

    #[test]
    fn two_equal_words_are_no_links() {
        // A `bytearray` of CPython with 500 bytes: what it has allocated, its buffer and the
        // first byte in use.
        let start = BASE + 0x1010;
        let buffer = [1, 0x5555_5555_0010, 500, 501, start, start, 0, 0, 0];
        assert_eq!([4, 5].map(|place| kind(&buffer, place)), [Pointer::Program; 2]);
        let ends = [7, 7, 7, 7, 0x1f1, ONE, ONE, 0, 0];
        assert_eq!([5, 6].map(|place| kind(&ends, place)), [Pointer::Program; 2]);
    }

    #[test]
    fn the_first_words_of_a_block_are_links_if_it_was_freed() {
        let own = BASE + 0x8010..BASE + 0x8050;
        let first = [0, 0x41, BASE + 0x1010, OTHER, 7, 7, 7, 7, 0x40, 0x50];
        assert_eq!(kind_inside(&first, 2, Some(own.clone())), Pointer::Link);
        // The next chunk says that it is in use: two pointers of a program, at most to the ends of
        // blocks.
        let in_use = [0, 0x41, BASE + 0x1010, OTHER, 7, 7, 7, 7, 0x40, 0x51];
        assert_eq!(kind_inside(&in_use, 2, Some(own.clone())), Pointer::Program);
        let to_ends = [0, 0x41, ONE, OTHER, 7, 7, 7, 7, 0x40, 0x51];
        assert_eq!(kind_inside(&to_ends, 2, Some(own)), Pointer::Doubtful);
    }

    #[test]
    fn the_size_of_a_block_makes_its_first_words_no_links() {
        let start = BASE + 0x1010;
        let inside = BASE + 0x8000 + 0x28..BASE + 0x8000 + 0x40;
        let first = [7, 7, 7, 7, 0x31, start, OTHER, 7, 7];
        assert_eq!(kind_inside(&first, 5, Some(inside)), Pointer::Program);
        assert_eq!(kind_inside(&first, 5, None), Pointer::Program);
        assert_eq!(kind(&first, 5), Pointer::Doubtful);
    }
}

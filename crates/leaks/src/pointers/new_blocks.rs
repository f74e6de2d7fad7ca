//! Memory that was in no block at the time of the walk, and that pointers lead to.

use std::collections::HashSet;
use std::ops::Range;

use lowtide_heap::memory::{MIN_PAGE_BYTES, Memory};
use lowtide_heap::ranges::{hold, without};
use lowtide_probe::detect::WalkedHeaps;

use super::block_set::BlockSet;
use super::index::{BlockId, BlockIndex};
use super::scan::{PointerTarget, WordReader};
use super::words::{SizeWords, Word};
use crate::book::ByPlace;

/// Memory of the heap that pointers lead to, but that was in no block at the time of the walk:
/// blocks that were allocated since. A list that grows at its head is reachable only through them.
/// Each word is searched once, whatever number of pointers lead there.
pub(super) struct NewBlocks {
    pub(super) areas: Vec<Range<u64>>,
    /// Structures of the allocators. They are not blocks, and their pointers lead to free memory.
    structures: Vec<Range<u64>>,
    seen: HashSet<u64>,
    /// The words that were searched, by the number of their page: a bit for each.
    searched: ByPlace<[u64; WORDS_OF_PAGE / 64]>,
    /// Addresses that are left to search, each with the address of the first pointer on its path.
    pub(super) left: Vec<(u64, u64)>,
    /// The pointers in blocks that lead there, in order of the blocks. They are searched once their
    /// block is reached.
    from_blocks: Vec<FromBlock>,
    /// Where doubtful words lead.
    pub(super) doubtful: Vec<u64>,
    /// The blocks of a later walk, and those already searched; `None` if that walk failed.
    pub(super) later: Option<(BlockIndex, BlockSet)>,
    /// Whether there was a later walk.
    pub(super) is_walked: bool,
    /// Whether there are more blocks than the maximum.
    pub(super) is_full: bool,
}

/// A pointer from a block to memory that was in no block.
struct FromBlock {
    block: BlockId,
    /// The address of the pointer, and where it leads.
    at: u64,
    to: u64,
}

/// Bytes of a word, and of the pages in which searched words are counted.
const WORD: u64 = 8;
const PAGE: u64 = MIN_PAGE_BYTES;
const WORDS_OF_PAGE: usize = (PAGE / WORD) as usize;

impl NewBlocks {
    /// Bytes to search of a new block of unknown size, and the maximum if its size is known.
    const BYTES: u64 = 4 << 10;
    const MAX_BYTES: u64 = 1 << 20;
    /// Maximum number of new blocks that are searched, and of pointers in blocks that lead there.
    const MAX: usize = 1 << 20;
    const MAX_NOTED: usize = 4 << 20;

    pub(super) fn new(heaps: &WalkedHeaps) -> Self {
        Self {
            areas: heaps.areas.clone(),
            structures: heaps.structures.clone(),
            seen: HashSet::new(),
            searched: ByPlace::default(),
            left: Vec::new(),
            from_blocks: Vec::new(),
            doubtful: Vec::new(),
            later: None,
            is_walked: false,
            is_full: false,
        }
    }

    /// Sets the blocks of a later walk; `None` if that walk failed.
    pub(super) fn set_later(&mut self, later: Option<BlockIndex>) {
        self.is_walked = true;
        self.later = later.map(|later| {
            let searched = BlockSet::new(later.len());
            (later, searched)
        });
    }

    /// Begins another reading, with the blocks of a walk: whatever was searched may have changed.
    pub(super) fn begin_again(&mut self, later: Option<BlockIndex>) {
        self.seen.clear();
        self.searched.clear();
        self.set_later(later);
    }

    /// Notes a pointer in a block: its address, and where it leads. The blocks come in order.
    pub(super) fn note(&mut self, block: BlockId, [at, to]: [u64; 2]) {
        if !self.may_be_block(to) {
            return;
        }
        let is_repeated =
            self.from_blocks.last().is_some_and(|last| last.block == block && last.to == to);
        if self.from_blocks.len() >= Self::MAX_NOTED {
            // It then counts although its block may be lost.
            self.add(to, at);
        } else if !is_repeated {
            self.from_blocks.push(FromBlock { block, at, to });
        }
    }

    /// Adds the pointers of a block that was reached.
    pub(super) fn add_of(&mut self, block: BlockId) {
        let first = self.from_blocks.partition_point(|pointer| pointer.block < block);
        for place in first..self.from_blocks.len() {
            let FromBlock { block: of, at, to } = self.from_blocks[place];
            if of != block {
                return;
            }
            self.add(to, at);
        }
    }

    /// Adds the pointers of all blocks.
    pub(super) fn add_all(&mut self) {
        for FromBlock { at, to, .. } in std::mem::take(&mut self.from_blocks) {
            self.add(to, at);
        }
    }

    /// Adds a pointer, which is at the end of a path from the pointer at `from`. A pointer may have
    /// a mark in its lowest bits.
    pub(super) fn add(&mut self, at: u64, from: u64) {
        let at = at - at % WORD;
        if !self.may_be_block(at) {
            return;
        }
        if self.seen.len() >= Self::MAX {
            self.is_full = true;
        } else if self.seen.insert(at) {
            self.left.push((at, from));
        }
    }

    pub(super) fn may_lead_to(&self, to: PointerTarget) -> bool {
        match to {
            PointerTarget::Block(_) => true,
            PointerTarget::Other(at) => self.may_be_block(at),
        }
    }

    fn may_be_block(&self, at: u64) -> bool {
        hold(&self.areas, &(at..at + 1)) && !hold(&self.structures, &(at..at + 1))
    }

    /// Returns the memory to search for a pointer to an address. If a block contains the address,
    /// this is that block, once. Otherwise it is the memory up to the next block: a block may have
    /// been there between the two walks. It is at most the guessed size of that block.
    fn memory_of(
        &mut self,
        words: &mut WordReader<'_, impl Memory>,
        at: u64,
    ) -> Option<Range<u64>> {
        let guess = at..at.saturating_add(Self::bytes_of(words, at));
        let Some((index, searched)) = &mut self.later else { return Some(guess) };
        match index.containing(at) {
            Some(id) => index.range(id).filter(|_| searched.insert(id)),
            None => Some(at..index.first_start_in(guess)),
        }
    }

    /// Returns the number of bytes to search of the block at an address: those of its chunk, if it
    /// belongs to glibc.
    fn bytes_of(words: &mut WordReader<'_, impl Memory>, at: u64) -> u64 {
        let head = at.checked_sub(WORD).and_then(|at| words.two(at));
        let size = head.map_or(0, |[head, _]| head & !7);
        if size.is_multiple_of(16) && (Self::BYTES..=Self::MAX_BYTES).contains(&size) {
            size
        } else {
            Self::BYTES
        }
    }

    /// Returns the runs of words in a block that were not searched yet, and counts them as
    /// searched.
    fn unsearched(&mut self, block: &Range<u64>) -> Vec<Range<u64>> {
        /// Bytes whose words have their bits in one number.
        const GROUP: u64 = 64 * WORD;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut at = block.start;
        while at < block.end {
            let page = at - at % PAGE;
            let bits = self.searched.entry(page / PAGE).or_default();
            for (number, bits) in bits.iter_mut().enumerate() {
                let group = page + number as u64 * GROUP;
                let from = block.start.saturating_sub(group).div_ceil(WORD).min(64);
                let to = block.end.saturating_sub(group).div_ceil(WORD).min(64);
                if from >= to {
                    continue;
                }
                let of_block = u64::MAX >> (64 - (to - from)) << from;
                let mut new = of_block & !*bits;
                *bits |= of_block;
                while new != 0 {
                    let first = u64::from(new.trailing_zeros());
                    let count = u64::from((new >> first).trailing_ones());
                    new &= u64::MAX.checked_shl((first + count) as u32).unwrap_or(0);
                    let run = group + first * WORD..group + (first + count) * WORD;
                    match runs.last_mut() {
                        Some(last) if last.end == run.start => last.end = run.end,
                        _ => runs.push(run),
                    }
                }
            }
            at = page + PAGE;
        }
        runs
    }

    /// Searches the blocks at the addresses that are left, in order. Calls `each` with the address
    /// of the first pointer on the path to a word, with the word, and with the block that it is in.
    pub(super) fn each_word<M: Memory>(
        &mut self,
        words: &mut WordReader<'_, M>,
        mut each: impl FnMut(&mut Self, u64, Word, Range<u64>),
    ) {
        let mut left = std::mem::take(&mut self.left);
        left.sort_unstable();
        let mut sizes = SizeWords::default();
        for (at, from) in left {
            // Most pointers lead to what was searched by now.
            let Some(block) = self.memory_of(words, at) else { continue };
            sizes.block(block.start);
            for run in self.unsearched(&block) {
                for part in without(run, &self.structures) {
                    words.each(part, |at, value| {
                        each(self, from, sizes.word(at, value), block.clone());
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::{Block, BlockVisitor};
    use lowtide_heap::memory::Saved;
    use proptest::prelude::*;

    use super::super::index::IndexBuilder;
    use super::*;

    proptest! {
        #[test]
        fn each_word_of_new_blocks_is_searched_once(
            rounds in proptest::collection::vec(proptest::collection::vec(0_u64..40_000, 1..20), 1..5),
        ) {
            const BEGIN: u64 = 0x10000;
            // At the beginning there are chunks of 8 KiB, each with its size in the word before it.
            // Every other word holds its own address, with a mark.
            let (mut bytes, chunk_of) = (Vec::new(), |at: u64| at % 8192 == 8 && at < BEGIN + 20_000);
            for at in (BEGIN..BEGIN + 60_000).step_by(8) {
                let word = if chunk_of(at + 8) { 8192 | 1 } else { at | 1 << 40 };
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            let memory = Saved::new(vec![(BEGIN, bytes)]);
            let mut new = NewBlocks::new(&WalkedHeaps { areas: std::iter::once(BEGIN..BEGIN + 50_000).collect(), ..WalkedHeaps::default() });
            let mut words = WordReader::of_parts(&memory);
            let mut expected = HashSet::new();
            let mut found = Vec::new();
            for round in rounds {
                for at in round {
                    new.add(BEGIN + at, 0);
                    let at = BEGIN + at - at % 8;
                    let bytes = if chunk_of(at) { 8192 } else { 4096 };
                    expected.extend((at..at + bytes).step_by(8).filter(|at| *at < BEGIN + 60_000));
                }
                new.each_word(&mut words, |_, _, word, _| found.push(word.value));
            }
            let searched: HashSet<u64> = found.iter().copied().collect();
            let headers = expected.iter().filter(|at| chunk_of(**at + 8)).count();
            let addresses = searched.iter().filter(|word| **word != 8193).count();
            prop_assert_eq!(found.len(), expected.len());
            prop_assert_eq!(addresses, expected.len() - headers);
            prop_assert!(searched.iter().all(|word| *word == 8193 || expected.contains(&(word ^ 1 << 40))));
        }
    }

    #[test]
    fn new_blocks_are_searched_to_their_ends_and_structures_of_the_allocator_are_not() {
        const BEGIN: u64 = 0x10000;
        let bytes = (BEGIN..BEGIN + 0x4000).step_by(8).flat_map(u64::to_le_bytes).collect();
        let memory = Saved::new(vec![(BEGIN, bytes)]);
        let heaps = WalkedHeaps {
            areas: std::iter::once(BEGIN..BEGIN + 0x4000).collect(),
            structures: std::iter::once(BEGIN + 0x1000..BEGIN + 0x1100).collect(),
            ..WalkedHeaps::default()
        };
        let mut new = NewBlocks::new(&heaps);
        let block = |at, bytes| Block { at: BEGIN + at, bytes, print: 1 };
        let mut later = IndexBuilder::new(10);
        later.blocks(BEGIN..BEGIN + 0x4000, &[block(0x100, 64), block(0x800, 32)]);
        new.set_later(later.build());
        // Twice into a block, into free memory before another one, and into a structure.
        for at in [0x110, 0x120, 0x7e0, 0x1010] {
            new.add(BEGIN + at, 0);
        }
        let mut found = Vec::new();
        new.each_word(&mut WordReader::of_parts(&memory), |_, _, word, _| {
            found.push(word.at - BEGIN)
        });
        let expected: Vec<u64> =
            (0x100..0x140).step_by(8).chain((0x7e0..0x800).step_by(8)).collect();
        assert_eq!(found, expected);
    }
}

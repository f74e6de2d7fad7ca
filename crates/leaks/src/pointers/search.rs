//! Follows the roots of a process, through blocks and through new blocks.

use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::union;
use lowtide_probe::detect::WalkedHeaps;

use super::block_set::BlockSet;
use super::doubts::Doubts;
use super::graph::Graph;
use super::index::{BlockId, BlockIndex};
use super::new_blocks::NewBlocks;
use super::remnants::{Pointer, Remnants};
use super::roots::Roots;
use super::scan::{PointerTarget, WordReader, each_root, each_word_in_blocks};
use super::waiting::ThreadWords;
use super::words::Word;

/// The blocks that were reached so far.
#[derive(Default)]
pub(super) struct Found {
    reached: BlockSet,
    /// Those whose pointers are still to follow.
    stack: Vec<BlockId>,
    /// Those to which a pointer outside of blocks leads, with the address of the first pointer on
    /// the path.
    pub(super) roots: Vec<(BlockId, u64)>,
}

impl Found {
    /// Adds a block to which the path from a pointer leads.
    fn add(&mut self, to: BlockId, from: u64) {
        if self.reached.insert(to) {
            self.stack.push(to);
            self.roots.push((to, from));
        }
    }

    /// Returns the blocks of the roots that were added since the last call.
    pub(super) fn take_roots(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.roots).into_iter().map(|(block, _)| block).collect()
    }
}

/// A search for the blocks to which the roots lead through new blocks.
pub(super) struct Search<'s, M> {
    index: &'s BlockIndex,
    remnants: Remnants<'s, M>,
    pub(super) found: Found,
    pub(super) doubts: Doubts<'s>,
    /// The blocks to which doubtful words outside of blocks point.
    doubtful_roots: Vec<BlockId>,
    /// Whether doubtful words are followed, too.
    follows_doubtful: bool,
}

impl<'s, M: Memory> Search<'s, M> {
    pub(super) fn new(
        index: &'s BlockIndex,
        remnants: Remnants<'s, M>,
        doubts: Doubts<'s>,
    ) -> Self {
        Self {
            index,
            remnants,
            found: Found { reached: BlockSet::new(index.len()), ..Found::default() },
            doubts,
            doubtful_roots: Vec::new(),
            follows_doubtful: false,
        }
    }

    /// Follows the roots. `walk_again` returns the blocks of this time.
    pub(super) fn follow_roots(
        &mut self,
        memory: &M,
        graph: &Graph,
        roots: &Roots,
        new: &mut NewBlocks,
        walk_again: &mut impl FnMut() -> Option<BlockIndex>,
    ) {
        new.areas = union([&new.areas[..], &roots.new[..]].concat());
        self.add_threads(roots, new);
        // First what the program certainly reaches. It is unknown whether memory that it has
        // obtained since is reachable, so the words there come last.
        for root in [&roots.ranges, &roots.new] {
            each_root(memory, self.index, root, |word, to| {
                self.word(word.at, word, None, to, new);
            });
            self.settle(memory, graph, new, walk_again);
        }
    }

    /// Reads the reached blocks again, as they are now, and notes the pointers to others.
    pub(super) fn read_again(&mut self, memory: &M, heaps: &WalkedHeaps, new: &mut NewBlocks) {
        let later = new.later.take();
        let (index, reached) = (self.index, self.found.reached.clone());
        let blocks = later.as_ref().map_or(index, |(blocks, _)| blocks);
        let is_reached = |block: &Range<u64>| {
            index.containing(block.start).is_some_and(|id| reached.contains(id))
        };
        each_word_in_blocks(memory, blocks, &heaps.chunks, is_reached, |_, block, word| {
            match PointerTarget::of(index, word.value) {
                Some(PointerTarget::Block(to)) if self.found.reached.contains(to) => {}
                Some(to) if new.may_lead_to(to) => {
                    self.word(word.at, word, Some(block.clone()), to, new);
                }
                _ => {}
            }
        });
        new.later = later;
    }

    /// Returns whether there are blocks that were not reached.
    pub(super) fn misses_blocks(&self) -> bool {
        (0..self.index.len() as BlockId).any(|id| !self.found.reached.contains(id))
    }

    /// Notes the words of threads, and those that are in no memory.
    fn add_threads(&mut self, roots: &Roots, new: &mut NewBlocks) {
        for word in roots.words.iter().chain(&roots.threads.words) {
            match PointerTarget::of(self.index, *word) {
                Some(PointerTarget::Block(to)) => self.found.add(to, 0),
                Some(PointerTarget::Other(to)) => new.add(to, 0),
                None => {}
            }
        }
        for stale in &roots.threads.stale {
            let to = PointerTarget::of(self.index, stale.value);
            if let Some(to) = to.filter(|to| new.may_lead_to(*to)) {
                self.doubtful(stale.at, stale.value, to, new);
            }
        }
        let ThreadWords { copies, used, .. } = &roots.threads;
        each_root(copies, self.index, used, |word, to| self.word(word.at, word, None, to, new));
    }

    /// Follows doubtful words from now on, those between `pairs` of blocks first.
    pub(super) fn follow_doubtful(&mut self, pairs: &[(BlockId, BlockId)]) {
        self.follows_doubtful = true;
        for (from, to) in pairs {
            if self.found.reached.contains(*from) {
                self.found.add(*to, 0);
            }
        }
    }

    /// Notes a word that leads `to` somewhere, on the path from the pointer at `from`. `inside` is
    /// the block that it is in, if there is one.
    pub(super) fn word(
        &mut self,
        from: u64,
        word: Word,
        inside: Option<Range<u64>>,
        to: PointerTarget,
        new: &mut NewBlocks,
    ) {
        let block = to.block();
        let kind = self.remnants.kind(self.index, word, block, || inside);
        match (kind, to) {
            (Pointer::Program, PointerTarget::Block(to)) => self.found.add(to, from),
            (Pointer::Program, PointerTarget::Other(to)) => new.add(to, from),
            (Pointer::Doubtful, to) => self.doubtful(word.at, word.value, to, new),
            (Pointer::Link, _) => self.doubts.links.extend(block),
        }
    }

    /// Notes a doubtful word at an address, which leads `to` somewhere.
    fn doubtful(&mut self, at: u64, value: u64, to: PointerTarget, new: &mut NewBlocks) {
        if self.doubts.counts(at, value, to.block()) {
            match to {
                PointerTarget::Block(to) => self.doubtful_roots.push(to),
                PointerTarget::Other(to) => new.doubtful.push(to),
            }
        }
    }

    /// Follows all pointers from the blocks that were added, also through new blocks. `walk_again`
    /// returns the blocks of this time.
    pub(super) fn settle(
        &mut self,
        memory: &M,
        graph: &Graph,
        new: &mut NewBlocks,
        walk_again: &mut impl FnMut() -> Option<BlockIndex>,
    ) {
        let mut words = WordReader::of_parts(memory);
        loop {
            let Found { reached, stack, .. } = &mut self.found;
            graph.follow(reached, stack, self.follows_doubtful, |block| new.add_of(block));
            if self.follows_doubtful {
                for to in std::mem::take(&mut self.doubtful_roots) {
                    self.found.add(to, 0);
                }
                for to in std::mem::take(&mut new.doubtful) {
                    new.add(to, 0);
                }
            }
            if memory.is_over() {
                return;
            }
            if !self.found.stack.is_empty() {
                continue;
            }
            if new.left.is_empty() {
                return;
            }
            if !new.is_walked {
                new.set_later(walk_again());
            }
            new.each_word(&mut words, |new, from, word, inside| {
                if let Some(to) = PointerTarget::of(self.index, word.value) {
                    self.word(from, word, Some(inside), to, new);
                }
            });
        }
    }
}

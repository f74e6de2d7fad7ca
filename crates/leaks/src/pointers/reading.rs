//! The graph of a process, read from its memory.

use lowtide_heap::memory::Memory;
use lowtide_probe::detect::WalkedHeaps;
use thiserror::Error;

use super::doubts::{CountedDoubts, Doubts};
use super::graph::{Graph, MAX_POINTERS};
use super::index::BlockIndex;
use super::new_blocks::NewBlocks;
use super::remnants::{Pointer, Remnants};
use super::roots::Roots;
use super::scan::{PointerTarget, each_in_blocks};
use super::search::Search;

/// The reason why not all pointers of a heap were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum GraphError {
    /// There are more blocks than can be stored.
    #[error("the heap has too many blocks")]
    TooManyBlocks,
    /// The blocks contain more pointers than can be stored.
    #[error("the heap has too many pointers")]
    TooManyPointers,
    /// Reading was interrupted, or took too long.
    #[error("following its pointers took too long")]
    Interrupted,
}

/// Maximum number of times that the reached memory is read again.
const MAX_READINGS: usize = 3;

impl Graph {
    /// Reads the pointers of heaps. `find_roots` is called after those in blocks have been read:
    /// the program may have obtained memory meanwhile. `walk_again` is called after the roots have
    /// been read, and returns the blocks of that time. `before` are the doubtful words
    /// that counted in the search before (see [`Graph::into_counted`]): others do not count.
    ///
    /// A pointer can move from memory that was not read yet to memory that was. In particular, a
    /// block that was read can be freed and used again, as the only one that leads to others. So
    /// all roots and reached blocks are read again, until they lead to no further block.
    ///
    /// # Errors
    /// Fails if there are too many pointers, or if reading is interrupted.
    pub(crate) fn read<M: Memory>(
        memory: &M,
        index: &BlockIndex,
        heaps: &WalkedHeaps,
        mut find_roots: impl FnMut() -> Roots,
        mut walk_again: impl FnMut() -> Option<BlockIndex>,
        before: Option<&CountedDoubts>,
    ) -> Result<(Self, Roots), GraphError> {
        let mut remnants = Remnants::new(memory, heaps);
        let (mut new, mut doubts) = (NewBlocks::new(heaps), Doubts::new(before));
        let mut graph = Self::of_blocks(memory, index, heaps, &mut remnants, &mut new, &mut doubts);
        let mut roots = find_roots();
        let mut search = Search::new(index, remnants, doubts);
        search.follow_roots(memory, &graph, &roots, &mut new, &mut walk_again);
        graph.from_roots = std::mem::take(&mut search.found.roots);
        for _ in 0..MAX_READINGS {
            if !search.misses_blocks() || memory.is_over() {
                break;
            }
            new.begin_again(walk_again());
            let hidden = std::mem::replace(&mut roots, find_roots()).hidden;
            roots.hidden.extend(hidden);
            search.read_again(memory, heaps, &mut new);
            search.follow_roots(memory, &graph, &roots, &mut new, &mut walk_again);
            let found = search.found.take_roots();
            if found.is_empty() {
                break;
            }
            graph.late_roots.extend(found);
        }
        // A register may lead to a block that nothing else leads to, and from there to new blocks.
        // So what they lead to is not lost for certain.
        if roots.threads.hidden_registers > 0 {
            new.add_all();
        }
        search.settle(memory, &graph, &mut new, &mut walk_again);
        graph.new_roots = search.found.take_roots();
        // Then what doubtful words lead to.
        search.follow_doubtful(&graph.doubtful);
        search.settle(memory, &graph, &mut new, &mut walk_again);
        graph.doubtful_roots = search.found.take_roots();
        (graph.counted, graph.links, graph.doubtful_targets) = search.doubts.end();
        roots.hidden.sort_unstable();
        roots.hidden.dedup();
        if new.is_full {
            roots.hidden.push("it allocates faster than its pointers can be read".to_owned());
        }
        match () {
            () if memory.is_over() => Err(GraphError::Interrupted),
            () if graph.targets.len() >= MAX_POINTERS => Err(GraphError::TooManyPointers),
            () => Ok((graph, roots)),
        }
    }

    /// Reads the pointers in blocks. Notes those that lead to `new` blocks, and the links of
    /// former free chunks.
    fn of_blocks<M: Memory>(
        memory: &M,
        index: &BlockIndex,
        heaps: &WalkedHeaps,
        remnants: &mut Remnants<'_, M>,
        new: &mut NewBlocks,
        doubts: &mut Doubts<'_>,
    ) -> Self {
        let mut graph = Self { first: Vec::with_capacity(index.len() + 1), ..Self::default() };
        each_in_blocks(memory, index, &heaps.chunks, |from, word, to| {
            let block = to.block();
            let kind = remnants.kind(index, word, block, || index.range(from));
            match (kind, to) {
                (Pointer::Program, PointerTarget::Block(to)) => graph.add(from, to),
                (Pointer::Program, PointerTarget::Other(to)) => new.note(from, [word.at, to]),
                (Pointer::Doubtful, to) if doubts.counts(word.at, word.value, block) => match to {
                    PointerTarget::Block(to) => graph.doubtful.push((from, to)),
                    PointerTarget::Other(to) => new.doubtful.push(to),
                },
                (Pointer::Doubtful, _) => {}
                (Pointer::Link, _) => doubts.links.extend(block),
            }
        });
        graph.first.resize(index.len() + 1, graph.targets.len() as u32);
        graph
    }
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::{Block, BlockVisitor};
    use lowtide_heap::memory::Saved;

    use super::super::graph::Unreached;
    use super::super::index::IndexBuilder;
    use super::*;

    #[test]
    fn adjacent_blocks_with_the_same_target_each_get_an_edge() {
        let mut bytes = vec![0_u8; 4096];
        // Three blocks of 64 bytes; the second and the third start and end with a pointer to the
        // first.
        for at in [64, 120, 128, 184] {
            bytes[at..at + 8].copy_from_slice(&0x10000_u64.to_le_bytes());
        }
        let memory = Saved::new(vec![(0x10000, bytes)]);
        let mut builder = IndexBuilder::new(10);
        let block = |at| Block { at, bytes: 64, print: 1 };
        builder.blocks(0x10000..0x20000, &[block(0x10000), block(0x10040), block(0x10080)]);
        let index = builder.build().unwrap();
        let (graph, _) =
            Graph::read(&memory, &index, &WalkedHeaps::default(), Roots::default, || None, None)
                .unwrap();
        assert_eq!([0, 1, 2].map(|block| graph.targets(block).len()), [0, 1, 1]);
    }

    #[test]
    fn words_in_a_block_that_was_divided_since_are_doubtful() {
        // A block of 384 bytes, which now has 96, was divided: its rest is a node of a list. The
        // root leads to it, and the node leads to the list.
        const BEGIN: u64 = 0x10000;
        let bytes_with = |words: &[(u64, u64)]| {
            let mut bytes = vec![0_u8; 4096];
            for (at, word) in words {
                bytes[*at as usize..][..8].copy_from_slice(&word.to_le_bytes());
            }
            bytes
        };
        let reads = |size: u64| {
            let bytes = bytes_with(&[(0xf8, size), (0x200, BEGIN + 0x400), (0x3f8, 0x61)]);
            let memory =
                Saved::new(vec![(BEGIN, bytes), (0x90000, (BEGIN + 0x200).to_le_bytes().to_vec())]);
            let mut builder = IndexBuilder::new(10);
            let block = |at, bytes| Block { at: BEGIN + at, bytes, print: 1 };
            let blocks = [block(0x100, 0x180), block(0x400, 0x60)];
            builder.blocks(BEGIN..BEGIN + 0x10000, &blocks);
            let index = builder.build().unwrap();
            let heaps = WalkedHeaps {
                chunks: std::iter::once(BEGIN..BEGIN + 4096).collect(),
                ..WalkedHeaps::default()
            };
            let roots = || Roots {
                ranges: std::iter::once(0x90000..0x90008).collect(),
                ..Roots::default()
            };
            let (graph, _) = Graph::read(&memory, &index, &heaps, roots, || None, None).unwrap();
            let Unreached { lost, unsure, .. } = graph.unreached(0, |_| 80);
            (lost, unsure)
        };
        assert_eq!(reads(0x181), (vec![], vec![]));
        assert_eq!(reads(0x61), (vec![], vec![1]));
    }

    #[test]
    fn the_root_of_a_list_is_its_variable_even_if_its_head_is_newer_than_the_walk() {
        let pointer = |at: u64, to: u64| (at, [to.to_le_bytes(), [0; 8]].concat());
        let (block, variable, head) = (0x10000, 0x90000, 0x50000);
        let blocks = vec![pointer(block, 0), pointer(head, block), pointer(variable, head)];
        let memory = Saved::new(blocks);
        let mut builder = IndexBuilder::new(10);
        builder.blocks(0x10000..0x20000, &[Block { at: block, bytes: 64, print: 1 }]);
        let index = builder.build().unwrap();
        let find_roots = || Roots {
            ranges: std::iter::once(variable..variable + 16).collect(),
            new: std::iter::once(head..head + 16).collect(),
            ..Roots::default()
        };
        let (graph, _) =
            Graph::read(&memory, &index, &WalkedHeaps::default(), find_roots, || None, None)
                .unwrap();
        assert_eq!(graph.roots(|_| 0).of(0), Some(variable));
    }
}

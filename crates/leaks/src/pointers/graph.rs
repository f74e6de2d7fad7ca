//! The graph of pointers between blocks, and the blocks that no root leads to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use lowtide_heap::memory::{Memory, word};
use lowtide_heap::ranges::hold;

use super::index::{BlockId, BlockIndex};
use super::roots::Roots;
use super::scan::{Target, address, each_in_blocks, each_root};

/// Maximum number of structures of one size for each hidden root. If there are more, none of them
/// counts as held by such a root, because the roots could lead to less than a tenth of them.
const MANY: usize = 10;
/// Maximum number of stored pointers, which take 256 MiB.
const MAX_POINTERS: usize = 64 << 20;

/// A set of blocks.
#[derive(Debug, Clone)]
pub struct BlockSet(Vec<u64>);

impl BlockSet {
    fn new(blocks: usize) -> Self {
        Self(vec![0; blocks.div_ceil(64)])
    }

    /// Returns whether a block is in the set.
    pub fn contains(&self, id: BlockId) -> bool {
        self.0[id as usize / 64] >> (id % 64) & 1 == 1
    }

    /// Adds a block. Returns whether it is new.
    fn insert(&mut self, id: BlockId) -> bool {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

/// Memory of the heap that pointers lead to, but that was in no block at the time of the walk:
/// blocks that were allocated since. A list that grows at its head is reachable only through them.
struct NewBlocks {
    areas: Vec<Range<u64>>,
    seen: HashSet<u64>,
    /// Addresses that are left to read, each with the address of the first pointer on its path.
    left: Vec<(u64, u64)>,
    /// Whether there are more blocks than the maximum.
    is_full: bool,
}

impl NewBlocks {
    /// Bytes to read of a new block of unknown size, and the maximum if its size is known.
    const BYTES: u64 = 4 << 10;
    const MAX_BYTES: u64 = 1 << 20;
    /// Maximum number of new blocks that are read.
    const MAX: usize = 1 << 20;

    /// Returns the number of bytes to read of the block at an address: those of its chunk, if it
    /// belongs to glibc.
    fn bytes_of(memory: &impl Memory, at: u64) -> u64 {
        let size = word(memory, at.saturating_sub(8)).map_or(0, |head| head & !7);
        if size.is_multiple_of(16) && (Self::BYTES..=Self::MAX_BYTES).contains(&size) {
            size
        } else {
            Self::BYTES
        }
    }

    fn add(&mut self, at: u64, from: u64) {
        if !hold(&self.areas, &(at..at + 1)) {
            return;
        }
        if self.seen.len() >= Self::MAX {
            self.is_full = true;
        } else if self.seen.insert(at) {
            self.left.push((at, from));
        }
    }
}

/// The pointers between the blocks of a heap.
#[derive(Debug)]
pub struct Graph {
    /// The index in `targets` of the first pointer of each block, and at the end the total.
    first: Vec<u32>,
    targets: Vec<BlockId>,
    /// Blocks that roots point to, with the address of the pointer; 0 stands for one that is not in memory.
    from_roots: Vec<(BlockId, u64)>,
}

/// The root of the shortest path to each block.
#[derive(Debug)]
pub struct RootOf {
    root_of: Vec<u32>,
    addresses: Vec<u64>,
}

/// Marks a block that no root leads to.
const NO_ROOT: u32 = u32::MAX;

impl RootOf {
    /// Returns the address of the root pointer at the start of the shortest path to a block; 0 if
    /// that pointer is not in memory. `None` if no root leads to the block.
    pub fn of(&self, block: BlockId) -> Option<u64> {
        self.addresses.get(*self.root_of.get(block as usize)? as usize).copied()
    }
}

/// The reason why not all pointers of a heap were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphError {
    /// The blocks contain more pointers than can be stored.
    TooManyPointers,
    /// Reading was interrupted, or took too long.
    Interrupted,
}

impl Graph {
    /// Reads the pointers of a heap, whose addresses are `areas`. `find_roots` is called after
    /// those in blocks have been read: the program may have obtained memory meanwhile.
    ///
    /// # Errors
    /// Fails if there are too many pointers, or if reading is interrupted.
    pub fn read<M: Memory>(
        memory: &M,
        index: &BlockIndex,
        areas: &[Range<u64>],
        find_roots: impl FnOnce() -> Roots,
    ) -> Result<(Self, Roots), GraphError> {
        let mut graph = Self {
            first: Vec::with_capacity(index.len() + 1),
            targets: Vec::new(),
            from_roots: Vec::new(),
        };
        let areas = areas.to_vec();
        let mut new = NewBlocks { areas, seen: HashSet::new(), left: Vec::new(), is_full: false };
        each_in_blocks(memory, index, |from, at, to| match to {
            Target::Block(to) => {
                while graph.first.len() <= from as usize {
                    graph.first.push(graph.targets.len() as u32);
                }
                let first = graph.first.last().map_or(0, |first| *first as usize);
                let is_repeated = graph.targets[first..].last() == Some(&to);
                if graph.targets.len() < MAX_POINTERS && !is_repeated {
                    graph.targets.push(to);
                }
            }
            Target::Other(to) => new.add(to, at),
        });
        graph.first.resize(index.len() + 1, graph.targets.len() as u32);
        let mut roots = find_roots();
        new.areas.extend_from_slice(&roots.new);
        new.areas.sort_unstable_by_key(|area| area.start);
        let mut reached = BlockSet::new(index.len());
        let mut reach = |at: u64, to: Target, new: &mut NewBlocks| match to {
            Target::Block(to) if reached.insert(to) => graph.from_roots.push((to, at)),
            Target::Block(_) => {}
            Target::Other(to) => new.add(to, at),
        };
        for word in &roots.words {
            if let Some(to) = address(*word).and_then(|at| index.containing(at)) {
                reach(0, Target::Block(to), &mut new);
            }
        }
        each_root(memory, index, &roots.ranges, |at, to| reach(at, to, &mut new));
        // It is unknown whether a new block is reachable. Blocks that it points to count as
        // reachable.
        while let Some((at, from)) = new.left.pop() {
            let range = at..at.saturating_add(NewBlocks::bytes_of(memory, at));
            each_root(memory, index, &[range], |_, to| reach(from, to, &mut new));
        }
        each_root(memory, index, &roots.new, |at, to| reach(at, to, &mut new));
        if new.is_full {
            roots.hidden.push("it allocates faster than its pointers can be read".to_owned());
        }
        match () {
            () if memory.is_over() => Err(GraphError::Interrupted),
            () if graph.targets.len() >= MAX_POINTERS => Err(GraphError::TooManyPointers),
            () => Ok((graph, roots)),
        }
    }

    /// Returns the blocks that a block points to.
    pub fn targets(&self, from: BlockId) -> &[BlockId] {
        let from = from as usize;
        &self.targets[self.first[from] as usize..self.first[from + 1] as usize]
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the blocks that no root leads to, without those that `hidden` further roots could
    /// lead to: the registers of threads cannot be read, and each of them could point to any block.
    /// `bytes_of` returns the size of a block.
    pub fn unreachable(&self, hidden: usize, bytes_of: impl Fn(BlockId) -> u64) -> Vec<BlockId> {
        let mut reached = BlockSet::new(self.blocks());
        let mut stack: Vec<BlockId> = Vec::new();
        for (root, _) in &self.from_roots {
            if reached.insert(*root) {
                stack.push(*root);
            }
        }
        self.follow(&mut reached, &mut stack, |_| {});
        self.without_hidden(&mut reached, hidden, bytes_of);
        (0..self.blocks() as BlockId).filter(|id| !reached.contains(*id)).collect()
    }

    /// Finds the root of the shortest path to each block. Roots that `is_last` selects are used
    /// only if no other root leads to a block.
    pub fn roots(&self, is_last: impl Fn(u64) -> bool) -> RootOf {
        let mut root_of = vec![NO_ROOT; self.blocks()];
        let mut queue = VecDeque::new();
        for last in [false, true] {
            for (number, (root, at)) in self.from_roots.iter().enumerate() {
                if is_last(*at) == last && root_of[*root as usize] == NO_ROOT {
                    root_of[*root as usize] = number as u32;
                    queue.push_back(*root);
                }
            }
            while let Some(from) = queue.pop_front() {
                for to in self.targets(from) {
                    if root_of[*to as usize] == NO_ROOT {
                        root_of[*to as usize] = root_of[from as usize];
                        queue.push_back(*to);
                    }
                }
            }
        }
        RootOf { root_of, addresses: self.from_roots.iter().map(|(_, at)| *at).collect() }
    }

    fn follow(
        &self,
        reached: &mut BlockSet,
        stack: &mut Vec<BlockId>,
        mut each: impl FnMut(BlockId),
    ) {
        while let Some(from) = stack.pop() {
            each(from);
            for to in self.targets(from) {
                if reached.insert(*to) {
                    stack.push(*to);
                }
            }
        }
    }

    /// Adds the blocks that `hidden` further roots could lead to, on the assumption that they point
    /// to the largest structures. If there are many more structures of one size than further roots,
    /// none of them is added: the roots could lead to only a small part of them.
    fn without_hidden(
        &self,
        reached: &mut BlockSet,
        hidden: usize,
        bytes_of: impl Fn(BlockId) -> u64,
    ) {
        if hidden == 0 {
            return;
        }
        // In the post-order of a depth-first search, every block that leads to the last block is
        // also reachable from it. The same is true of the last block that is not reached yet. So
        // each of these, taken from the last to the first, is the head of a structure that only a
        // further root can lead to.
        let order = self.left_in_order(reached);
        let mut seen = reached.clone();
        let mut heads: Vec<(usize, BlockId)> = Vec::new();
        let mut stack = Vec::new();
        for head in order.into_iter().rev() {
            if seen.insert(head) {
                stack.push(head);
                let mut count = 0;
                self.follow(&mut seen, &mut stack, |_| count += 1);
                heads.push((count, head));
            }
        }
        // Structures are alike if they have as many blocks, and their first blocks are as large.
        let mut alike: HashMap<(usize, u64), usize> = HashMap::new();
        for (count, head) in &heads {
            *alike.entry((*count, bytes_of(*head))).or_default() += 1;
        }
        heads.retain(|(count, head)| {
            alike.get(&(*count, bytes_of(*head))).is_none_or(|alike| *alike <= hidden * MANY)
        });
        heads.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        let held: Vec<BlockId> = heads.into_iter().take(hidden).map(|(_, head)| head).collect();
        for head in held {
            if reached.insert(head) {
                stack.push(head);
            }
            self.follow(reached, &mut stack, |_| {});
        }
    }

    /// Returns the blocks that are not reached, in the post-order of a depth-first search.
    fn left_in_order(&self, reached: &BlockSet) -> Vec<BlockId> {
        let mut entered = reached.clone();
        let mut order = Vec::new();
        // The index of the next pointer to follow, for each block on the path.
        let mut way: Vec<(BlockId, usize)> = Vec::new();
        for start in 0..self.blocks() as BlockId {
            if !entered.insert(start) {
                continue;
            }
            way.push((start, 0));
            while let Some((block, next)) = way.last_mut() {
                let to = self.targets(*block).get(*next).copied();
                *next += 1;
                match to {
                    Some(to) if entered.insert(to) => way.push((to, 0)),
                    Some(_) => {}
                    None => {
                        order.push(*block);
                        way.pop();
                    }
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::{Block, BlockVisitor};
    use lowtide_heap::memory::Saved;

    use super::*;
    use crate::pointers::index::IndexBuilder;

    fn graph(blocks: usize, roots: &[BlockId], pointers: &[(BlockId, BlockId)]) -> Graph {
        let mut sorted = pointers.to_vec();
        sorted.sort_unstable();
        let mut first = vec![0; blocks + 1];
        for (from, _) in &sorted {
            first[*from as usize + 1] += 1;
        }
        for place in 1..=blocks {
            first[place] += first[place - 1];
        }
        let targets = sorted.iter().map(|(_, to)| *to).collect();
        let from_roots = (0x1000..).step_by(8).zip(roots).map(|(at, root)| (*root, at)).collect();
        Graph { first, targets, from_roots }
    }

    #[test]
    fn blocks_without_a_path_from_a_root_are_unreachable_even_in_a_cycle() {
        let graph = graph(7, &[0], &[(0, 1), (1, 2), (3, 4), (4, 3), (5, 2), (6, 6)]);
        assert_eq!(graph.unreachable(0, |_| 80), [3, 4, 5, 6]);
    }

    #[test]
    fn a_block_gets_its_nearest_root_and_a_stack_only_as_a_last_resort() {
        let graph = graph(6, &[0, 3, 5], &[(0, 1), (1, 2), (3, 2), (5, 1), (5, 4)]);
        let is_stack = |at| at == 0x1010;
        let roots = graph.roots(is_stack);
        let found = [1, 2, 4, 6].map(|block| roots.of(block));
        assert_eq!(found, [Some(0x1000), Some(0x1008), Some(0x1010), None]);
    }

    #[test]
    fn adjacent_blocks_with_the_same_target_each_get_an_edge() {
        let mut bytes = vec![0_u8; 4096];
        // Three blocks of 64 bytes; the second and the third start and end with a pointer to the
        // first.
        for at in [64, 120, 128, 184] {
            bytes[at..at + 8].copy_from_slice(&0x10000_u64.to_le_bytes());
        }
        let memory = Saved { blocks: vec![(0x10000, bytes)] };
        let mut builder = IndexBuilder::new(10);
        let block = |at| Block { at, bytes: 64, print: 1 };
        builder.blocks(0x10000..0x20000, &[block(0x10000), block(0x10040), block(0x10080)]);
        let index = builder.build().unwrap();
        let (graph, _) = Graph::read(&memory, &index, &[], Roots::default).unwrap();
        assert_eq!([0, 1, 2].map(|block| graph.targets(block).len()), [0, 1, 1]);
    }

    #[test]
    fn the_root_of_a_list_is_its_variable_even_if_its_head_is_newer_than_the_walk() {
        let pointer = |at: u64, to: u64| (at, [to.to_le_bytes(), [0; 8]].concat());
        let (block, variable, head) = (0x10000, 0x90000, 0x50000);
        let blocks = vec![pointer(block, 0), pointer(head, block), pointer(variable, head)];
        let memory = Saved { blocks };
        let mut builder = IndexBuilder::new(10);
        builder.blocks(0x10000..0x20000, &[Block { at: block, bytes: 64, print: 1 }]);
        let index = builder.build().unwrap();
        let find_roots = || Roots {
            ranges: std::iter::once(variable..variable + 16).collect(),
            new: std::iter::once(head..head + 16).collect(),
            ..Roots::default()
        };
        let (graph, _) = Graph::read(&memory, &index, &[], find_roots).unwrap();
        assert_eq!(graph.roots(|_| false).of(0), Some(variable));
    }

    #[test]
    fn registers_account_for_one_large_block_but_not_for_many_small_ones() {
        let graph = graph(101, &[], &[]);
        let bytes_of = |block| if block == 7 { 1 << 20 } else { 80 };
        let lost = graph.unreachable(3, bytes_of);
        assert!(!lost.contains(&7) && lost.len() == 100, "{lost:?}");
    }

    #[test]
    fn each_register_is_assumed_to_hold_the_largest_unreferenced_structure() {
        // A list of five, a cycle of two that leads to one more, and three single blocks.
        let pointers = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 5), (6, 7)];
        let graph = graph(11, &[], &pointers);
        assert_eq!(graph.unreachable(0, |_| 80).len(), 11);
        assert_eq!(graph.unreachable(1, |_| 80), [5, 6, 7, 8, 9, 10]);
        assert_eq!(graph.unreachable(2, |_| 80), [8, 9, 10]);
        assert!(graph.unreachable(5, |_| 80).is_empty());
    }

    #[test]
    fn each_register_can_hold_only_one_unreachable_cycle() {
        let cycles: Vec<(BlockId, BlockId)> =
            (0..100).flat_map(|n| [(2 * n, 2 * n + 1), (2 * n + 1, 2 * n)]).collect();
        assert_eq!(graph(200, &[], &cycles).unreachable(20, |_| 80).len(), 160);
        // At most a tenth of them can be held by so few registers.
        assert_eq!(graph(200, &[], &cycles).unreachable(9, |_| 80).len(), 200);
    }
}

//! Which blocks point to which, and which of them no root leads to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use lowtide_heap::memory::Memory;

use super::index::{BlockId, BlockIndex};
use super::scan::{Target, each_in_blocks, each_root};

/// There are many structures of a size if they are so many times as many as the roots that could lead to them.
const MANY: usize = 10;
/// Maximum number of pointers that are kept: 256 MiB.
const MAX_POINTERS: usize = 64 << 20;

/// A set of blocks.
#[derive(Debug, Clone)]
pub struct BlockSet(Vec<u64>);

impl BlockSet {
    fn new(blocks: usize) -> Self {
        Self(vec![0; blocks.div_ceil(64)])
    }

    /// Whether a block is in it.
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

/// Memory of the heap that pointers lead to, but that was in no block at the time of the walk: blocks that were allocated since.
/// A list that grows at its head is reachable only through them.
struct NewBlocks<'n> {
    areas: &'n [Range<u64>],
    seen: HashSet<u64>,
    /// What is left to read, with the address of the first pointer on the way there.
    left: Vec<(u64, u64)>,
}

impl NewBlocks<'_> {
    /// Bytes that are read of one.
    const BYTES: u64 = 512;
    /// Maximum number that is read.
    const MAX: usize = 64 << 10;

    fn add(&mut self, at: u64, from: u64) {
        let place = self.areas.partition_point(|area| area.end <= at);
        let is_in_heap = self.areas.get(place).is_some_and(|area| area.start <= at);
        if is_in_heap && self.seen.len() < Self::MAX && self.seen.insert(at) {
            self.left.push((at, from));
        }
    }
}

/// The pointers between the blocks of a heap.
#[derive(Debug)]
pub struct Graph {
    /// Where the pointers of each block begin in `targets`, and where the last ends.
    first: Vec<u32>,
    targets: Vec<BlockId>,
    /// Blocks that roots point to, with the address of the pointer; 0 stands for one that is not in memory.
    from_roots: Vec<(BlockId, u64)>,
}

/// The root from which the shortest way leads to each block.
#[derive(Debug)]
pub struct RootOf {
    root_of: Vec<u32>,
    addresses: Vec<u64>,
}

/// Stands for a block that no root leads to.
const NO_ROOT: u32 = u32::MAX;

impl RootOf {
    /// The address of the pointer from which the way to a block begins; 0 for one that is not in memory. `None` if there is
    /// none.
    pub fn of(&self, block: BlockId) -> Option<u64> {
        self.addresses.get(*self.root_of.get(block as usize)? as usize).copied()
    }
}

/// Why there is no graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphError {
    /// The blocks have more pointers than are kept.
    TooManyPointers,
    /// Reading was interrupted, or took too long.
    Interrupted,
}

impl Graph {
    /// Reads the pointers of a heap, whose addresses are `areas`. `known` are words of the program that are not in its memory.
    ///
    /// # Errors
    /// Fails if there are too many, or if reading is over before it is complete.
    pub fn read<M: Memory>(
        memory: &M,
        index: &BlockIndex,
        areas: &[Range<u64>],
        roots: &[Range<u64>],
        known: &[u64],
    ) -> Result<Self, GraphError> {
        let mut graph = Self {
            first: Vec::with_capacity(index.len() + 1),
            targets: Vec::new(),
            from_roots: Vec::new(),
        };
        let mut reached = BlockSet::new(index.len());
        let mut new = NewBlocks { areas, seen: HashSet::new(), left: Vec::new() };
        let mut reach = |at: u64, to: Target, new: &mut NewBlocks<'_>| match to {
            Target::Block(to) if reached.insert(to) => graph.from_roots.push((to, at)),
            Target::Block(_) => {}
            Target::Other(to) => new.add(to, at),
        };
        for word in known {
            if let Some(to) = index.containing(*word) {
                reach(0, Target::Block(to), &mut new);
            }
        }
        each_root(memory, index, roots, |at, to| reach(at, to, &mut new));
        each_in_blocks(memory, index, |from, at, to| match to {
            Target::Block(to) => {
                while graph.first.len() <= from as usize {
                    graph.first.push(graph.targets.len() as u32);
                }
                if graph.targets.len() < MAX_POINTERS && graph.targets.last() != Some(&to) {
                    graph.targets.push(to);
                }
            }
            Target::Other(to) => new.add(to, at),
        });
        // What a new block points to is reachable, whoever has the new block.
        while let Some((at, from)) = new.left.pop() {
            let range = at..at + NewBlocks::BYTES;
            each_root(memory, index, &[range], |_, to| reach(from, to, &mut new));
        }
        graph.first.resize(index.len() + 1, graph.targets.len() as u32);
        match () {
            () if memory.is_over() => Err(GraphError::Interrupted),
            () if graph.targets.len() >= MAX_POINTERS => Err(GraphError::TooManyPointers),
            () => Ok(graph),
        }
    }

    /// The blocks that a block points to.
    pub fn targets(&self, from: BlockId) -> &[BlockId] {
        let from = from as usize;
        &self.targets[self.first[from] as usize..self.first[from + 1] as usize]
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the blocks that no root leads to, without those that `hidden` further roots could lead to: the registers of
    /// threads cannot be read, and each of them could point to any block.
    pub fn unreachable(&self, hidden: usize) -> Vec<BlockId> {
        let mut reached = BlockSet::new(self.blocks());
        let mut stack: Vec<BlockId> = Vec::new();
        for (root, _) in &self.from_roots {
            if reached.insert(*root) {
                stack.push(*root);
            }
        }
        self.follow(&mut reached, &mut stack, |_| {});
        self.without_hidden(&mut reached, hidden);
        (0..self.blocks() as BlockId).filter(|id| !reached.contains(*id)).collect()
    }

    /// Finds the root from which the shortest way leads to each block. Roots that `is_last` selects are used only if no other
    /// leads there.
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

    /// Adds what further roots could lead to: those that lead to most. Structures of a size of which there are many more than
    /// roots are left out, as at most a small part of them can be reached.
    fn without_hidden(&self, reached: &mut BlockSet, hidden: usize) {
        if hidden == 0 {
            return;
        }
        // In the order in which a search leaves blocks, the last one is not led to by any before it that it does not lead to
        // itself. From the last to the first, each block that is not reached yet is one that a further root must lead to.
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
        let most = hidden.min(heads.len());
        if most > 0 && most < heads.len() {
            heads.select_nth_unstable_by(most - 1, |a, b| b.0.cmp(&a.0));
        }
        let mut alike: HashMap<usize, usize> = HashMap::new();
        for (count, _) in &heads {
            *alike.entry(*count).or_default() += 1;
        }
        let is_rare = |count: &usize| alike.get(count).is_none_or(|alike| *alike <= hidden * MANY);
        let held: Vec<BlockId> = heads
            .iter()
            .take(most)
            .filter(|(count, _)| is_rare(count))
            .map(|(_, head)| *head)
            .collect();
        for head in held {
            if reached.insert(head) {
                stack.push(head);
            }
            self.follow(reached, &mut stack, |_| {});
        }
    }

    /// The blocks that are not reached, in the order in which a search in depth leaves them.
    fn left_in_order(&self, reached: &BlockSet) -> Vec<BlockId> {
        let mut entered = reached.clone();
        let mut order = Vec::new();
        // The number of the next pointer to follow, for each block on the way.
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
    use super::*;

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
    fn what_no_root_leads_to_is_unreachable_even_if_it_points_to_itself() {
        let graph = graph(7, &[0], &[(0, 1), (1, 2), (3, 4), (4, 3), (5, 2), (6, 6)]);
        assert_eq!(graph.unreachable(0), [3, 4, 5, 6]);
    }

    #[test]
    fn the_root_of_a_block_is_the_nearest_one_and_a_stack_only_if_there_is_no_other() {
        let graph = graph(6, &[0, 3, 5], &[(0, 1), (1, 2), (3, 2), (5, 1), (5, 4)]);
        let is_stack = |at| at == 0x1010;
        let roots = graph.roots(is_stack);
        let found = [1, 2, 4, 6].map(|block| roots.of(block));
        assert_eq!(found, [Some(0x1000), Some(0x1008), Some(0x1010), None]);
    }

    #[test]
    fn a_register_could_hold_the_largest_structure_that_nothing_else_leads_to() {
        // A list of five, a cycle of two that leads to one more, and three single blocks.
        let pointers = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 5), (6, 7)];
        let graph = graph(11, &[], &pointers);
        assert_eq!(graph.unreachable(0).len(), 11);
        assert_eq!(graph.unreachable(1), [5, 6, 7, 8, 9, 10]);
        assert_eq!(graph.unreachable(2), [8, 9, 10]);
        assert!(graph.unreachable(5).is_empty());
    }

    #[test]
    fn each_lost_cycle_needs_a_register_of_its_own() {
        let cycles: Vec<(BlockId, BlockId)> =
            (0..100).flat_map(|n| [(2 * n, 2 * n + 1), (2 * n + 1, 2 * n)]).collect();
        assert_eq!(graph(200, &[], &cycles).unreachable(20).len(), 160);
        // At most a tenth of them can be held by so few registers.
        assert_eq!(graph(200, &[], &cycles).unreachable(9).len(), 200);
    }
}

//! The graph of pointers between blocks, and the blocks that no root leads to.

use std::collections::{HashMap, VecDeque};

pub(crate) use super::block_set::BlockSet;
use super::doubts::CountedDoubts;
use super::index::BlockId;

/// Maximum number of structures of one size for each hidden root. If there are more, none of them
/// counts as held by such a root, because the roots could lead to less than a tenth of them.
const MANY: usize = 10;
/// Maximum number of stored pointers, which take 256 MiB.
pub(super) const MAX_POINTERS: usize = 64 << 20;

/// The pointers between the blocks of a heap.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// The index in `targets` of the first pointer of each block, and at the end the total.
    pub(super) first: Vec<u32>,
    pub(super) targets: Vec<BlockId>,
    /// Blocks that roots point to, with the address of the pointer; 0 stands for one that is not in
    /// memory.
    pub(super) from_roots: Vec<(BlockId, u64)>,
    /// Blocks that were reached when memory was read again.
    pub(super) late_roots: Vec<BlockId>,
    /// Blocks to which new blocks lead that nothing leads to.
    pub(super) new_roots: Vec<BlockId>,
    /// Blocks to which links of former free chunks point.
    pub(super) links: Vec<BlockId>,
    /// Doubtful pointers between blocks, in order of the first, and the blocks to which others
    /// point: each may be such a link.
    pub(super) doubtful: Vec<(BlockId, BlockId)>,
    pub(super) doubtful_roots: Vec<BlockId>,
    /// The blocks to which doubtful words point, also those words that do not count.
    pub(super) doubtful_targets: Vec<BlockId>,
    /// The doubtful words that count.
    pub(super) counted: CountedDoubts,
}

/// The blocks to which no pointer of the program leads.
#[derive(Debug)]
pub(crate) struct Unreached {
    /// Those that the program cannot reach, in order.
    pub lost: Vec<BlockId>,
    /// Those, and those that only words lead to that may be links of former free chunks, in order.
    pub but_for_doubts: Vec<BlockId>,
    /// Those to which only words lead that may be links of former free chunks, or new blocks to
    /// which no pointer was found, in order. It is unknown whether the program can reach them.
    pub unsure: Vec<BlockId>,
    /// Number of words that may be such links and lead to blocks which nothing else leads to.
    pub doubtful: usize,
    /// Number of those among them that count.
    pub doubts: usize,
    /// Whether pointers moved during the search: blocks were reached only when memory was read
    /// again.
    pub is_restless: bool,
}

/// The root of the shortest path to each block.
#[derive(Debug)]
pub(crate) struct RootOf {
    root_of: Vec<u32>,
    addresses: Vec<u64>,
}

/// Marks a block that no root leads to.
const NO_ROOT: u32 = u32::MAX;

impl RootOf {
    /// Returns the address of the root pointer at the start of the shortest path to a block; 0 if
    /// that pointer is not in memory. `None` if no root leads to the block.
    pub(crate) fn of(&self, block: BlockId) -> Option<u64> {
        self.addresses.get(*self.root_of.get(block as usize)? as usize).copied()
    }
}

impl Graph {
    /// Adds a pointer from a block to another one, in order of the first.
    pub(super) fn add(&mut self, from: BlockId, to: BlockId) {
        while self.first.len() <= from as usize {
            self.first.push(self.targets.len() as u32);
        }
        let first = self.first.last().map_or(0, |first| *first as usize);
        let is_repeated = self.targets[first..].last() == Some(&to);
        if self.targets.len() < MAX_POINTERS && !is_repeated {
            self.targets.push(to);
        }
    }

    /// Returns the blocks that a block points to, without doubtful pointers.
    pub(crate) fn targets(&self, from: BlockId) -> &[BlockId] {
        let from = from as usize;
        &self.targets[self.first[from] as usize..self.first[from + 1] as usize]
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the blocks to which no pointer leads from a root. Those that `hidden` further roots
    /// could lead to are not lost: the registers of threads cannot be read, and each of them could
    /// point to any block. `bytes_of` returns the size of a block.
    pub(crate) fn unreached(
        &self,
        hidden: usize,
        bytes_of: impl Fn(BlockId) -> u64 + Copy,
    ) -> Unreached {
        let (mut sure, mut stack) = (BlockSet::new(self.blocks()), Vec::new());
        let first = self.from_roots.iter().map(|(root, _)| *root);
        sure.add_all(first.chain(self.late_roots.iter().copied()), &mut stack);
        self.follow(&mut sure, &mut stack, false, |_| {});
        let mut without_doubts = sure.clone();
        without_doubts.add_all(self.new_roots.iter().copied(), &mut stack);
        self.follow(&mut without_doubts, &mut stack, false, |_| {});
        let mut reached = without_doubts.clone();
        reached.add_all(self.doubtful_roots.iter().copied(), &mut stack);
        self.follow_doubtful(&mut reached, &mut stack);
        self.without_hidden(&mut without_doubts, hidden, false, bytes_of);
        // What a link leads to is not followed.
        let mut may_be_reached = reached.clone();
        may_be_reached.add_all(self.links.iter().copied(), &mut Vec::new());
        match self.doubtful.is_empty() && self.doubtful_roots.is_empty() {
            true => reached.clone_from(&without_doubts),
            false => self.without_hidden(&mut reached, hidden, true, bytes_of),
        }
        let all = || 0..self.blocks() as BlockId;
        let is_lost = |id: &BlockId| !reached.contains(*id) && !may_be_reached.contains(*id);
        let is_unsure = |id: &BlockId| may_be_reached.contains(*id) && !sure.contains(*id);
        let to_these = |to: &&BlockId| !without_doubts.contains(**to);
        let doubts = self.doubtful.iter().map(|(_, to)| to).chain(&self.doubtful_roots);
        Unreached {
            lost: all().filter(is_lost).collect(),
            but_for_doubts: all().filter(|id| !without_doubts.contains(*id)).collect(),
            unsure: all().filter(is_unsure).collect(),
            doubtful: self.doubtful_targets.iter().filter(to_these).count(),
            doubts: doubts.filter(to_these).count(),
            is_restless: !self.late_roots.is_empty(),
        }
    }

    /// Returns the doubtful words that count.
    pub(crate) fn into_counted(self) -> CountedDoubts {
        self.counted
    }

    /// Returns the doubtful pointers in a block.
    fn doubtful_of(&self, from: BlockId) -> &[(BlockId, BlockId)] {
        let first = self.doubtful.partition_point(|(other, _)| *other < from);
        let rest = &self.doubtful[first..];
        &rest[..rest.iter().take_while(|(other, _)| *other == from).count()]
    }

    /// Adds the blocks that all pointers lead to, doubtful ones included.
    fn follow_doubtful(&self, reached: &mut BlockSet, stack: &mut Vec<BlockId>) {
        self.follow(reached, stack, true, |_| {});
        for (from, to) in &self.doubtful {
            if reached.contains(*from) && reached.insert(*to) {
                stack.push(*to);
            }
        }
        self.follow(reached, stack, true, |_| {});
    }

    /// Finds the root of the shortest path to each block. `turn` returns when a root at an address
    /// is followed, from 0 to 2: it is used only if none before leads to a block.
    pub(crate) fn roots(&self, turn: impl Fn(u64) -> usize) -> RootOf {
        let mut root_of = vec![NO_ROOT; self.blocks()];
        let mut queue = VecDeque::new();
        for now in 0..=2 {
            for (number, (root, at)) in self.from_roots.iter().enumerate() {
                if turn(*at) == now && root_of[*root as usize] == NO_ROOT {
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

    /// Adds the blocks that the pointers of the blocks on the stack lead to, and calls `each` with
    /// each block. Follows doubtful words, too, if `doubtful` is set.
    pub(super) fn follow(
        &self,
        reached: &mut BlockSet,
        stack: &mut Vec<BlockId>,
        doubtful: bool,
        mut each: impl FnMut(BlockId),
    ) {
        while let Some(from) = stack.pop() {
            each(from);
            let more = if doubtful { self.doubtful_of(from) } else { &[] };
            for to in self.targets(from).iter().chain(more.iter().map(|(_, to)| to)) {
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
        doubtful: bool,
        bytes_of: impl Fn(BlockId) -> u64,
    ) {
        if hidden == 0 {
            return;
        }
        // In the post-order of a depth-first search, every block that leads to the last block is
        // also reachable from it. The same is true of the last block that is not reached yet. So
        // each of these, taken from the last to the first, is the head of a structure that only a
        // further root can lead to.
        let order = self.left_in_order(reached, doubtful);
        let mut seen = reached.clone();
        let mut heads: Vec<(usize, BlockId)> = Vec::new();
        let mut stack = Vec::new();
        for head in order.into_iter().rev() {
            if seen.insert(head) {
                stack.push(head);
                let mut count = 0;
                self.follow(&mut seen, &mut stack, doubtful, |_| count += 1);
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
            self.follow(reached, &mut stack, doubtful, |_| {});
        }
    }

    /// Returns the blocks that are not reached, in the post-order of a depth-first search.
    /// Follows doubtful words, too, if `doubtful` is set.
    fn left_in_order(&self, reached: &BlockSet, doubtful: bool) -> Vec<BlockId> {
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
                let sure = self.targets(*block);
                let more = if doubtful { self.doubtful_of(*block) } else { &[] };
                let rest = next.checked_sub(sure.len());
                let to = match rest {
                    None => sure.get(*next).copied(),
                    Some(rest) => more.get(rest).map(|(_, to)| *to),
                };
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
        Graph { first, targets, from_roots, ..Graph::default() }
    }

    #[test]
    fn blocks_without_a_path_from_a_root_are_unreachable_even_in_a_cycle() {
        let graph = graph(7, &[0], &[(0, 1), (1, 2), (3, 4), (4, 3), (5, 2), (6, 6)]);
        assert_eq!(graph.unreached(0, |_| 80).lost, [3, 4, 5, 6]);
    }

    #[test]
    fn blocks_to_which_only_doubtful_words_lead_are_neither_reachable_nor_lost() {
        // The root leads to 0 and 1, a doubtful word in 1 to 2, and that to 3; a link leads to 4,
        // and that to 5; doubtful words in 6, which nothing leads to, lead to 7 and to 0.
        let mut graph = graph(8, &[0], &[(0, 1), (2, 3), (4, 5)]);
        graph.doubtful = vec![(1, 2), (6, 0), (6, 7)];
        graph.links = vec![4];
        let Unreached { lost, unsure, .. } = graph.unreached(0, |_| 80);
        assert_eq!((lost, unsure), (vec![5, 6, 7], vec![2, 3, 4]));
        graph.doubtful_roots = vec![6];
        assert_eq!(graph.unreached(0, |_| 80).unsure, [2, 3, 4, 6, 7]);
        assert_eq!(graph.roots(|_| 0).of(3), None);
    }

    #[test]
    fn doubtful_words_join_the_structure_that_a_register_may_hold() {
        let mut list = graph(100, &[], &[]);
        list.doubtful = (0..99).map(|id| (id, id + 1)).collect();
        assert_eq!(list.unreached(0, |_| 80).lost.len(), 100);
        assert!(list.unreached(1, |_| 80).lost.is_empty());
    }

    #[test]
    fn doubtful_words_make_their_blocks_unsure_only_while_they_count() {
        let pointers: Vec<(BlockId, BlockId)> = (0..299).map(|id| (id, id + 1)).collect();
        let mut list = graph(300, &[], &pointers);
        list.doubtful_targets = vec![0, 1, 2];
        list.doubtful_roots.clone_from(&list.doubtful_targets);
        let found = list.unreached(0, |_| 80);
        assert_eq!(
            (found.lost.len(), found.but_for_doubts.len(), found.unsure.len()),
            (0, 300, 300)
        );
        assert_eq!((found.doubtful, found.doubts), (3, 3));
        list.doubtful_roots = vec![2];
        let found = list.unreached(0, |_| 80);
        assert_eq!((found.lost, found.doubtful, found.doubts), (vec![0, 1], 3, 1));
    }

    #[test]
    fn a_block_gets_its_nearest_root_and_a_stack_only_as_a_last_resort() {
        let graph = graph(6, &[0, 3, 5], &[(0, 1), (1, 2), (3, 2), (5, 1), (5, 4)]);
        let roots = graph.roots(|at| if at == 0x1010 { 2 } else { 0 });
        let found = [1, 2, 4, 6].map(|block| roots.of(block));
        assert_eq!(found, [Some(0x1000), Some(0x1008), Some(0x1010), None]);
    }

    #[test]
    fn a_pointer_in_an_old_buffer_of_the_c_library_does_not_own_the_rest_of_a_list() {
        let graph = graph(4, &[0, 2], &[(0, 1), (1, 2), (2, 3)]);
        let roots = graph.roots(|at| usize::from(at == 0x1008));
        assert_eq!([2, 3].map(|block| roots.of(block)), [Some(0x1000); 2]);
    }

    #[test]
    fn registers_account_for_one_large_block_but_not_for_many_small_ones() {
        let graph = graph(101, &[], &[]);
        let bytes_of = |block| if block == 7 { 1 << 20 } else { 80 };
        let lost = graph.unreached(3, bytes_of).lost;
        assert!(!lost.contains(&7) && lost.len() == 100, "{lost:?}");
    }

    #[test]
    fn each_register_is_assumed_to_hold_the_largest_unreferenced_structure() {
        // A list of five, a cycle of two that leads to one more, and three single blocks.
        let pointers = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 5), (6, 7)];
        let graph = graph(11, &[], &pointers);
        assert_eq!(graph.unreached(0, |_| 80).lost.len(), 11);
        assert_eq!(graph.unreached(1, |_| 80).lost, [5, 6, 7, 8, 9, 10]);
        assert_eq!(graph.unreached(2, |_| 80).lost, [8, 9, 10]);
        assert!(graph.unreached(5, |_| 80).lost.is_empty());
    }

    #[test]
    fn each_register_can_hold_only_one_unreachable_cycle() {
        let cycles: Vec<(BlockId, BlockId)> =
            (0..100).flat_map(|n| [(2 * n, 2 * n + 1), (2 * n + 1, 2 * n)]).collect();
        assert_eq!(graph(200, &[], &cycles).unreached(20, |_| 80).lost.len(), 160);
        // At most a tenth of them can be held by so few registers.
        assert_eq!(graph(200, &[], &cycles).unreached(9, |_| 80).lost.len(), 200);
    }
}

//! The graph of pointers between blocks, and the blocks that no root leads to.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use lowtide_heap::memory::{MIN_PAGE_BYTES, Memory};
use lowtide_heap::ranges::{hold, without};
use lowtide_probe::detect::WalkedHeaps;

use crate::book::ByPlace;

use super::doubts::{Counted, Doubts};
use super::index::{BlockId, BlockIndex};
use super::remnants::{Pointer, Remnants};
use super::roots::Roots;
use super::scan::{Target, Words, each_in_blocks, each_root};
use super::waiting::ThreadWords;
use super::words::{Sizes, Word};

/// Maximum number of structures of one size for each hidden root. If there are more, none of them
/// counts as held by such a root, because the roots could lead to less than a tenth of them.
const MANY: usize = 10;
/// Maximum number of stored pointers, which take 256 MiB.
const MAX_POINTERS: usize = 64 << 20;

/// A set of blocks.
#[derive(Debug, Clone, Default)]
pub struct BlockSet(Vec<u64>);

impl BlockSet {
    pub(super) fn new(blocks: usize) -> Self {
        Self(vec![0; blocks.div_ceil(64)])
    }

    /// Returns whether a block is in the set.
    pub fn contains(&self, id: BlockId) -> bool {
        self.0[id as usize / 64] >> (id % 64) & 1 == 1
    }

    /// Adds blocks, and puts the new ones on a stack.
    fn add_all(&mut self, blocks: impl Iterator<Item = BlockId>, stack: &mut Vec<BlockId>) {
        stack.extend(blocks.filter(|id| self.insert(*id)));
    }

    /// Adds a block. Returns whether it is new.
    pub(super) fn insert(&mut self, id: BlockId) -> bool {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

/// Memory of the heap that pointers lead to, but that was in no block at the time of the walk:
/// blocks that were allocated since. A list that grows at its head is reachable only through them.
/// Each word is searched once, whatever number of pointers lead there.
struct NewBlocks {
    areas: Vec<Range<u64>>,
    /// Structures of the allocators. They are not blocks, and their pointers lead to free memory.
    structures: Vec<Range<u64>>,
    seen: HashSet<u64>,
    /// The words that were searched, by the number of their page: a bit for each.
    searched: ByPlace<[u64; WORDS_OF_PAGE / 64]>,
    /// Addresses that are left to search, each with the address of the first pointer on its path.
    left: Vec<(u64, u64)>,
    /// The pointers in blocks that lead there, in order of the blocks. They are searched once their
    /// block is reached.
    from_blocks: Vec<FromBlock>,
    /// Where doubtful words lead.
    doubtful: Vec<u64>,
    /// The blocks of the second walk, and those already searched; `None` if that walk failed.
    later: Option<(BlockIndex, BlockSet)>,
    /// Whether there are more blocks than the maximum.
    is_full: bool,
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

    fn new(heaps: &WalkedHeaps) -> Self {
        Self {
            areas: heaps.areas.clone(),
            structures: heaps.structures.clone(),
            seen: HashSet::new(),
            searched: ByPlace::default(),
            left: Vec::new(),
            from_blocks: Vec::new(),
            doubtful: Vec::new(),
            later: None,
            is_full: false,
        }
    }

    /// Notes a pointer in a block: its address, and where it leads. The blocks come in order.
    fn note(&mut self, block: BlockId, [at, to]: [u64; 2]) {
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
    fn add_of(&mut self, block: BlockId) {
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
    fn add_all(&mut self) {
        for FromBlock { at, to, .. } in std::mem::take(&mut self.from_blocks) {
            self.add(to, at);
        }
    }

    /// Adds a pointer, which is at the end of a path from the pointer at `from`. A pointer may have
    /// a mark in its lowest bits.
    fn add(&mut self, at: u64, from: u64) {
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

    fn may_lead_to(&self, to: Target) -> bool {
        match to {
            Target::Block(_) => true,
            Target::Other(at) => self.may_be_block(at),
        }
    }

    fn may_be_block(&self, at: u64) -> bool {
        hold(&self.areas, &(at..at + 1)) && !hold(&self.structures, &(at..at + 1))
    }

    /// Returns the memory to search for a pointer to an address. If a block contains the address,
    /// this is that block, once. Otherwise it is the memory up to the next block: a block may have
    /// been there between the two walks. It is at most the guessed size of that block.
    fn memory_of(&mut self, words: &mut Words<'_, impl Memory>, at: u64) -> Option<Range<u64>> {
        let guess = at..at.saturating_add(Self::bytes_of(words, at));
        let Some((index, searched)) = &mut self.later else { return Some(guess) };
        match index.containing(at) {
            Some(id) => index.range(id).filter(|_| searched.insert(id)),
            None => Some(at..index.first_start_in(guess)),
        }
    }

    /// Returns the number of bytes to search of the block at an address: those of its chunk, if it
    /// belongs to glibc.
    fn bytes_of(words: &mut Words<'_, impl Memory>, at: u64) -> u64 {
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
    fn each_word<M: Memory>(
        &mut self,
        words: &mut Words<'_, M>,
        mut each: impl FnMut(&mut Self, u64, Word, Range<u64>),
    ) {
        let mut left = std::mem::take(&mut self.left);
        left.sort_unstable();
        let mut sizes = Sizes::default();
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

/// The blocks that were reached so far.
#[derive(Default)]
struct Found {
    reached: BlockSet,
    /// Those whose pointers are still to follow.
    stack: Vec<BlockId>,
    /// Those to which a pointer outside of blocks leads, with the address of the first pointer on
    /// the path.
    roots: Vec<(BlockId, u64)>,
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
    fn take_roots(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.roots).into_iter().map(|(block, _)| block).collect()
    }
}

/// A search for the blocks to which the roots lead through new blocks.
struct Search<'s, M> {
    index: &'s BlockIndex,
    remnants: Remnants<'s, M>,
    found: Found,
    doubts: Doubts<'s>,
    /// The blocks to which doubtful words outside of blocks point.
    doubtful_roots: Vec<BlockId>,
    /// Whether doubtful words are followed, too.
    follows_doubtful: bool,
}

impl<M: Memory> Search<'_, M> {
    /// Notes a word that leads `to` somewhere, on the path from the pointer at `from`. `inside` is
    /// the block that it is in, if there is one.
    fn word(
        &mut self,
        from: u64,
        word: Word,
        inside: Option<Range<u64>>,
        to: Target,
        new: &mut NewBlocks,
    ) {
        let block = to.block();
        let kind = self.remnants.kind(self.index, word, block, || inside);
        match (kind, to) {
            (Pointer::Program, Target::Block(to)) => self.found.add(to, from),
            (Pointer::Program, Target::Other(to)) => new.add(to, from),
            (Pointer::Doubtful, to) => self.doubtful(word.at, word.value, to, new),
            (Pointer::Link, _) => self.doubts.links.extend(block),
        }
    }

    /// Notes a doubtful word at an address, which leads `to` somewhere.
    fn doubtful(&mut self, at: u64, value: u64, to: Target, new: &mut NewBlocks) {
        if self.doubts.counts(at, value, to.block()) {
            match to {
                Target::Block(to) => self.doubtful_roots.push(to),
                Target::Other(to) => new.doubtful.push(to),
            }
        }
    }

    /// Follows all pointers from the blocks that were added, also through new blocks. `walk_again`
    /// returns the blocks of this time.
    fn settle(
        &mut self,
        memory: &M,
        graph: &Graph,
        new: &mut NewBlocks,
        words: &mut Words<'_, M>,
        walk_again: &mut Option<impl FnOnce() -> Option<BlockIndex>>,
    ) {
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
            if let Some(later) = walk_again.take().and_then(|walk_again| walk_again()) {
                let searched = BlockSet::new(later.len());
                new.later = Some((later, searched));
            }
            new.each_word(words, |new, from, word, inside| {
                if let Some(to) = Target::of(self.index, word.value) {
                    self.word(from, word, Some(inside), to, new);
                }
            });
        }
    }
}

/// The pointers between the blocks of a heap.
#[derive(Debug, Default)]
pub struct Graph {
    /// The index in `targets` of the first pointer of each block, and at the end the total.
    first: Vec<u32>,
    targets: Vec<BlockId>,
    /// Blocks that roots point to, with the address of the pointer; 0 stands for one that is not in
    /// memory.
    from_roots: Vec<(BlockId, u64)>,
    /// Blocks to which new blocks lead that nothing leads to.
    new_roots: Vec<BlockId>,
    /// Blocks to which links of former free chunks point.
    links: Vec<BlockId>,
    /// Doubtful pointers between blocks, in order of the first, and the blocks to which others
    /// point: each may be such a link.
    doubtful: Vec<(BlockId, BlockId)>,
    doubtful_roots: Vec<BlockId>,
    /// The blocks to which doubtful words point, also those words that do not count.
    doubtful_targets: Vec<BlockId>,
    /// The doubtful words that count.
    counted: Counted,
}

/// The blocks to which no pointer of the program leads.
#[derive(Debug)]
pub struct Unreached {
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
    /// Reads the pointers of heaps. `find_roots` is called after those in blocks have been read:
    /// the program may have obtained memory meanwhile. `walk_again` is called after the roots have
    /// been read, and returns the blocks of that time. `before` are the doubtful words
    /// that counted in the search before (see [`Graph::into_counted`]): others do not count.
    ///
    /// # Errors
    /// Fails if there are too many pointers, or if reading is interrupted.
    pub fn read<M: Memory>(
        memory: &M,
        index: &BlockIndex,
        heaps: &WalkedHeaps,
        find_roots: impl FnOnce() -> Roots,
        walk_again: impl FnOnce() -> Option<BlockIndex>,
        before: Option<&Counted>,
    ) -> Result<(Self, Roots), GraphError> {
        let mut graph = Self { first: Vec::with_capacity(index.len() + 1), ..Self::default() };
        let mut doubts = Doubts::new(before);
        let mut remnants = Remnants::new(memory, heaps);
        let mut new = NewBlocks::new(heaps);
        each_in_blocks(memory, index, &heaps.chunks, |from, word, to| {
            let block = to.block();
            let kind = remnants.kind(index, word, block, || index.range(from));
            match (kind, to) {
                (Pointer::Program, Target::Block(to)) => graph.add(from, to),
                (Pointer::Program, Target::Other(to)) => new.note(from, [word.at, to]),
                (Pointer::Doubtful, to) if doubts.counts(word.at, word.value, block) => match to {
                    Target::Block(to) => graph.doubtful.push((from, to)),
                    Target::Other(to) => new.doubtful.push(to),
                },
                (Pointer::Doubtful, _) => {}
                (Pointer::Link, _) => doubts.links.extend(block),
            }
        });
        graph.first.resize(index.len() + 1, graph.targets.len() as u32);
        let mut roots = find_roots();
        new.areas.extend_from_slice(&roots.new);
        new.areas.sort_unstable_by_key(|area| area.start);
        let mut search = Search {
            index,
            remnants,
            found: Found { reached: BlockSet::new(index.len()), ..Found::default() },
            doubts,
            doubtful_roots: Vec::new(),
            follows_doubtful: false,
        };
        for word in roots.words.iter().chain(&roots.threads.words) {
            match Target::of(index, *word) {
                Some(Target::Block(to)) => search.found.add(to, 0),
                Some(Target::Other(to)) => new.add(to, 0),
                None => {}
            }
        }
        for stale in &roots.threads.stale {
            let to = Target::of(index, stale.value);
            if let Some(to) = to.filter(|to| new.may_lead_to(*to)) {
                search.doubtful(stale.at, stale.value, to, &mut new);
            }
        }
        let ThreadWords { copies, used, .. } = &roots.threads;
        each_root(copies, index, used, |word, to| search.word(word.at, word, None, to, &mut new));
        let mut words = Words::of_parts(memory);
        let mut walk_again = Some(walk_again);
        // First what the program certainly reaches. It is unknown whether memory that it has
        // obtained since is reachable, so the words there come last.
        for root in [&roots.ranges, &roots.new] {
            each_root(memory, index, root, |word, to| {
                search.word(word.at, word, None, to, &mut new);
            });
            search.settle(memory, &graph, &mut new, &mut words, &mut walk_again);
        }
        graph.from_roots = std::mem::take(&mut search.found.roots);
        // A register may lead to a block that nothing else leads to, and from there to new blocks.
        // So what they lead to is not lost for certain.
        if roots.threads.hidden_registers > 0 {
            new.add_all();
        }
        search.settle(memory, &graph, &mut new, &mut words, &mut walk_again);
        graph.new_roots = search.found.take_roots();
        // Then what doubtful words lead to.
        search.follows_doubtful = true;
        for (from, to) in &graph.doubtful {
            if search.found.reached.contains(*from) {
                search.found.add(*to, 0);
            }
        }
        search.settle(memory, &graph, &mut new, &mut words, &mut walk_again);
        graph.doubtful_roots = search.found.take_roots();
        (graph.counted, graph.links, graph.doubtful_targets) = search.doubts.end();
        if new.is_full {
            roots.hidden.push("it allocates faster than its pointers can be read".to_owned());
        }
        match () {
            () if memory.is_over() => Err(GraphError::Interrupted),
            () if graph.targets.len() >= MAX_POINTERS => Err(GraphError::TooManyPointers),
            () => Ok((graph, roots)),
        }
    }

    /// Adds a pointer from a block to another one, in order of the first.
    fn add(&mut self, from: BlockId, to: BlockId) {
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
    pub fn targets(&self, from: BlockId) -> &[BlockId] {
        let from = from as usize;
        &self.targets[self.first[from] as usize..self.first[from + 1] as usize]
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the blocks to which no pointer leads from a root. Those that `hidden` further roots
    /// could lead to are not lost: the registers of threads cannot be read, and each of them could
    /// point to any block. `bytes_of` returns the size of a block.
    pub fn unreached(&self, hidden: usize, bytes_of: impl Fn(BlockId) -> u64 + Copy) -> Unreached {
        let (mut sure, mut stack) = (BlockSet::new(self.blocks()), Vec::new());
        sure.add_all(self.from_roots.iter().map(|(root, _)| *root), &mut stack);
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
        }
    }

    /// Returns the doubtful words that count.
    pub fn into_counted(self) -> Counted {
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

    /// Adds the blocks that the pointers of the blocks on the stack lead to, and calls `each` with
    /// each block. Follows doubtful words, too, if `doubtful` is set.
    fn follow(
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
    use lowtide_heap::blocks::{Block, BlockVisitor};
    use lowtide_heap::memory::Saved;
    use proptest::prelude::*;

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
        assert_eq!(graph.roots(|_| false).of(3), None);
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
            let mut words = Words::of_parts(&memory);
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
        let later = later.build().unwrap();
        let searched = BlockSet::new(later.len());
        new.later = Some((later, searched));
        // Twice into a block, into free memory before another one, and into a structure.
        for at in [0x110, 0x120, 0x7e0, 0x1010] {
            new.add(BEGIN + at, 0);
        }
        let mut found = Vec::new();
        new.each_word(&mut Words::of_parts(&memory), |_, _, word, _| found.push(word.at - BEGIN));
        let expected: Vec<u64> =
            (0x100..0x140).step_by(8).chain((0x7e0..0x800).step_by(8)).collect();
        assert_eq!(found, expected);
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
        assert_eq!(graph.roots(|_| false).of(0), Some(variable));
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

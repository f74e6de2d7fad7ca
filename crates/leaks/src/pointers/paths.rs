//! Paths from the roots of a process to some of its blocks.
//!
//! Unlike [`graph`](super::graph), this search stores no pointers, and ends before it takes too
//! long. It reads the blocks that it reaches, level by level and in order of address, and notes for
//! each block the root of the shortest path. Links of former free chunks that lead to the header of
//! a chunk are left out; other stale pointers are followed like those of the program. So the result
//! names what holds most blocks of a kind, and proves nothing about a single one.

use std::collections::HashMap;

use lowtide_heap::blocks::{Block, PLACE};
use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::{bytes, hold, overlaps, union, without};
use lowtide_probe::detect::WalkedHeaps;

use super::graph::BlockSet;
use super::index::{BlockId, BlockIndex};
use super::roots::Roots;
use super::scan::{address, each_word};
use super::words::HEAD;

/// Maximum number of pointers to a block that are noted.
const MAX_POINTERS: usize = 16;
/// The number of blocks that no root leads to yet, and of those whose root has no number.
const NOT_REACHED: u16 = u16::MAX;
const UNNUMBERED: u16 = u16::MAX - 1;

/// The time that a search may take, in ns, estimated by what it does: for each byte of the heap,
/// and at least.
const EFFORT_PER_BYTE: f64 = 0.2;
const MIN_EFFORT: u64 = 200_000_000;
/// The time for a read, for each byte of it, and for each address that is looked up, in ns.
const PER_READ: u64 = 1000;
const BYTES_PER_NS: u64 = 4;
const PER_LOOKUP: u64 = 40;

/// Some blocks of a heap, and what leads to them.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// The addresses of some of the pointers to each block, by its address.
    pub(crate) pointers: HashMap<u64, Vec<u64>>,
    /// The address of the root pointer at the start of the shortest path to each block, by its
    /// address; 0 if that pointer is not in memory.
    pub(crate) roots: HashMap<u64, u64>,
}

/// The blocks in use of a heap.
pub(crate) struct UsedBlocks<'h> {
    /// All blocks.
    pub(crate) index: &'h BlockIndex,
    /// The addresses of the blocks in caches, in order.
    pub(crate) cached: &'h [u64],
    pub(crate) heaps: &'h WalkedHeaps,
}

impl Paths {
    /// Finds what leads to the blocks at some addresses.
    pub(crate) fn find(
        memory: &impl Memory,
        blocks: &UsedBlocks<'_>,
        roots: &Roots,
        wanted: impl Iterator<Item = u64>,
    ) -> Self {
        let index = blocks.index;
        let wanted: Vec<(u64, BlockId)> =
            wanted.filter_map(|at| Some((at, index.starting_at(at)?))).collect();
        let mut search = PathSearch::new(memory, blocks, &wanted);
        search.roots(roots);
        let PathSearch { root_of, addresses, mut pointers, .. } = search;
        let mut paths = Self::default();
        for (at, id) in wanted {
            let root = addresses.get(usize::from(root_of[id as usize]));
            paths.roots.extend(root.map(|root| (at, *root)));
            paths.pointers.extend(pointers.remove(&id).map(|pointers| (at, pointers)));
        }
        paths
    }
}

struct PathSearch<'s, M> {
    memory: &'s M,
    blocks: &'s UsedBlocks<'s>,
    /// The blocks to which the pointers are noted, and their pointers.
    wanted: BlockSet,
    pointers: HashMap<BlockId, Vec<u64>>,
    /// The number of the root of each block.
    root_of: Vec<u16>,
    /// The addresses of the roots by their numbers.
    addresses: Vec<u64>,
    /// The blocks that were reached and not read.
    next: OrderedSet,
    /// What is left of the time, in ns.
    effort: u64,
}

impl<'s, M: Memory> PathSearch<'s, M> {
    fn new(memory: &'s M, blocks: &'s UsedBlocks<'s>, wanted: &[(u64, BlockId)]) -> Self {
        let (index, mut of_wanted) = (blocks.index, BlockSet::new(blocks.index.len()));
        for (_, id) in wanted {
            of_wanted.insert(*id);
        }
        let heap_bytes = bytes(&blocks.heaps.areas);
        Self {
            memory,
            blocks,
            wanted: of_wanted,
            pointers: HashMap::new(),
            root_of: vec![NOT_REACHED; index.len()],
            addresses: Vec::new(),
            next: OrderedSet::new(index.len()),
            effort: ((heap_bytes as f64 * EFFORT_PER_BYTE) as u64).max(MIN_EFFORT),
        }
    }

    /// Follows the roots, in the order of [`Roots::turn`].
    fn roots(&mut self, roots: &Roots) {
        for word in &roots.words {
            self.root(0, *word);
        }
        let stacks: Vec<_> = roots.stacks.iter().map(|stack| stack.range.clone()).collect();
        let all = || roots.ranges.iter().chain(&roots.new).cloned();
        let memory = self.memory;
        let later = union(stacks.iter().chain(&roots.c_library).cloned().collect());
        let first = all().flat_map(|range| without(range, &later));
        each_word(memory, first, |at, word| self.root(at, word));
        self.follow();
        for later in [&roots.c_library, &stacks] {
            let parts = all().flat_map(|range| overlaps(range, later).collect::<Vec<_>>());
            each_word(memory, parts, |at, word| self.root(at, word));
            self.follow();
        }
    }

    /// Adds the block that a root leads to.
    fn root(&mut self, at: u64, word: u64) {
        if let Some(to) = self.lead(at, word, None) {
            let number = self.addresses.len().min(usize::from(UNNUMBERED)) as u16;
            if number < UNNUMBERED {
                self.addresses.push(at);
            }
            self.reach(to, number);
        }
    }

    fn reach(&mut self, block: BlockId, root: u16) {
        self.root_of[block as usize] = root;
        self.next.insert(block);
    }

    /// Returns the block that a word at an address leads to, if it was not reached before.
    #[inline]
    fn lead(&mut self, at: u64, word: u64, inside: Option<BlockId>) -> Option<BlockId> {
        let to = address(word).filter(|to| self.blocks.index.spans(*to))?;
        self.effort = self.effort.saturating_sub(PER_LOOKUP);
        let (id, block) = self.blocks.index.find(to)?;
        if inside == Some(id) || self.is_link(to, &block) {
            return None;
        }
        if self.wanted.contains(id) {
            let pointers = self.pointers.entry(id).or_default();
            if pointers.len() < MAX_POINTERS {
                pointers.push(at);
            }
        }
        (self.root_of[id as usize] == NOT_REACHED).then_some(id)
    }

    /// Returns whether an address in a block of glibc is that of the header of the next chunk.
    fn is_link(&self, to: u64, block: &Block) -> bool {
        to.checked_add(HEAD) == Some(block.at + block.bytes)
            && hold(&self.blocks.heaps.chunks, &(to..to + 1))
    }

    /// Follows the pointers of all blocks that were reached, as far as there is time.
    fn follow(&mut self) {
        let (mut level, mut window) = (OrderedSet::new(self.root_of.len()), BlockWindow::default());
        while !self.next.is_empty() {
            std::mem::swap(&mut level, &mut self.next);
            while let Some(from) = level.pop_first() {
                if self.effort == 0 || self.memory.is_over() {
                    return;
                }
                self.read(from, &mut window);
            }
        }
    }

    /// Reads a block, and adds those that it leads to.
    fn read(&mut self, from: BlockId, window: &mut BlockWindow) {
        let Some(block) = self.blocks.index.get(from) else { return };
        if self.blocks.cached.binary_search(&block.at).is_ok() {
            return;
        }
        let (memory, range) = (self.memory, block.at..block.at.saturating_add(block.bytes));
        let root = self.root_of[from as usize];
        let mut word = |at: u64, word: u64| {
            if let Some(to) = self.lead(at, word, Some(from)) {
                self.reach(to, root);
            }
        };
        if block.bytes >= PLACE {
            each_word(memory, [range], word);
            self.effort = self.effort.saturating_sub(block.bytes / BYTES_PER_NS);
        } else {
            let (bytes, effort) = window.bytes(memory, &block);
            for (place, bytes) in bytes.chunks_exact(8).enumerate() {
                match u64::from_le_bytes(bytes.try_into().unwrap_or_default()) {
                    0 => {}
                    value => word(block.at + place as u64 * 8, value),
                }
            }
            self.effort = self.effort.saturating_sub(effort);
        }
    }
}

/// Reads small blocks, and ahead as far as they lie close together.
#[derive(Debug, Default)]
struct BlockWindow {
    start: u64,
    bytes: Vec<u8>,
    /// Number of bytes to read next.
    next: u64,
}

impl BlockWindow {
    /// Maximum distance between blocks that are read together, and numbers of bytes per read.
    const NEAR: u64 = 16 << 10;
    const LEAST: u64 = 4 << 10;
    const MOST: u64 = 256 << 10;

    /// Returns the bytes of a block, as far as they are resident, and the time that it took in ns.
    fn bytes(&mut self, memory: &impl Memory, block: &Block) -> (&[u8], u64) {
        let (range, end) = (block.at..block.at + block.bytes, self.start + self.bytes.len() as u64);
        let mut effort = 0;
        if range.start < self.start || range.end > end {
            let is_near = range.start >= self.start && range.start < end + Self::NEAR;
            self.next = if is_near { self.next * 2 } else { 0 }.clamp(Self::LEAST, Self::MOST);
            self.start = range.start;
            let end = range.end.max(range.start + self.next).next_multiple_of(Self::LEAST);
            self.bytes.resize((end - self.start) as usize, 0);
            let length = memory.read(self.start, &mut self.bytes);
            self.bytes.truncate(length);
            effort = PER_READ + (end - self.start) / BYTES_PER_NS;
        }
        let first = (range.start - self.start) as usize;
        let last = self.bytes.len().min((range.end - self.start) as usize);
        (self.bytes.get(first..last).unwrap_or_default(), effort)
    }
}

/// A set of blocks from which the first one is taken.
#[derive(Debug)]
struct OrderedSet {
    /// A bit for each block, and then for each word of the bits before that is not 0.
    levels: Vec<Vec<u64>>,
}

impl OrderedSet {
    fn new(blocks: usize) -> Self {
        let (mut levels, mut words) = (Vec::new(), blocks.max(1));
        while words > 1 || levels.is_empty() {
            words = words.div_ceil(64);
            levels.push(vec![0; words]);
        }
        Self { levels }
    }

    fn insert(&mut self, block: BlockId) {
        let mut place = block as usize;
        for level in &mut self.levels {
            level[place / 64] |= 1 << (place % 64);
            place /= 64;
        }
    }

    fn is_empty(&self) -> bool {
        self.levels.last().is_none_or(|level| level[0] == 0)
    }

    /// Removes the first block.
    fn pop_first(&mut self) -> Option<BlockId> {
        if self.is_empty() {
            return None;
        }
        let down = self.levels.iter().rev();
        let first = down.fold(0, |at, level| at * 64 + level[at].trailing_zeros() as usize);
        let mut place = first;
        for level in &mut self.levels {
            level[place / 64] &= !(1 << (place % 64));
            if level[place / 64] != 0 {
                break;
            }
            place /= 64;
        }
        Some(first as BlockId)
    }
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::BlockVisitor;
    use lowtide_heap::memory::Saved;

    use super::*;
    use crate::pointers::index::IndexBuilder;

    const HEAP: u64 = 0x7f00_0000_0000;
    const ROOT: u64 = 0x5500_0000_0000;

    /// Returns the paths to some blocks of 64 bytes, given by the words at their beginnings. The
    /// first root leads to the first block, the second one, on a stack, to the last.
    fn paths(blocks: &[[u64; 2]], wanted: &[u64]) -> Paths {
        let mut builder = IndexBuilder::new(usize::MAX);
        let block = |place: usize| Block { at: HEAP + 64 * place as u64, bytes: 64, print: 1 };
        let all: Vec<Block> = (0..blocks.len()).map(block).collect();
        builder.blocks(HEAP..HEAP + PLACE, &all);
        let index = builder.build().unwrap();
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let heap: Vec<u64> =
            blocks.iter().flat_map(|words| words.iter().copied().chain([0; 6])).collect();
        let last = HEAP + 64 * (blocks.len() as u64 - 1);
        let memory = Saved::new(vec![(ROOT, bytes(&[HEAP, last])), (HEAP, bytes(heap.as_slice()))]);
        let area = HEAP..HEAP + PLACE;
        let heaps =
            WalkedHeaps { areas: vec![area.clone()], chunks: vec![area], ..WalkedHeaps::default() };
        let used = UsedBlocks { index: &index, cached: &[HEAP + 64 * 5], heaps: &heaps };
        let roots =
            Roots { ranges: std::iter::once(ROOT..ROOT + 16).collect(), ..Roots::default() };
        Paths::find(&memory, &used, &roots, wanted.iter().copied())
    }

    fn at(place: u64) -> u64 {
        HEAP + 64 * place
    }

    #[test]
    fn blocks_are_led_to_by_the_root_of_the_shortest_path() {
        let blocks = [
            [at(1), 0],
            [at(2), 0],
            [at(0), at(3) + 8],
            [0, at(3)],
            [at(3), 0],
            [at(4), 0],
            [at(2), 0],
        ];
        let found = paths(&blocks, &[at(1), at(2), at(3), at(4)]);
        assert_eq!(found.roots[&at(1)], ROOT);
        assert_eq!(found.roots[&at(2)], ROOT + 8, "one pointer less");
        assert_eq!(found.roots[&at(3)], ROOT + 8);
        assert_eq!(found.roots.get(&at(4)), None, "only a cached block leads to it");
        assert_eq!(found.pointers[&at(2)], [at(6), at(1)], "in the order of the levels");
        assert_eq!(
            found.pointers[&at(3)],
            [at(2) + 8],
            "not its own pointer, nor that of a lost block"
        );
    }

    #[test]
    fn an_address_of_a_chunk_header_is_no_pointer() {
        let blocks = [[at(2) - 16, 0], [0, 0], [0, 0]];
        assert_eq!(paths(&blocks, &[at(1)]).roots, HashMap::new());
        let blocks = [[at(2) - 24, 0], [0, 0], [0, 0]];
        assert_eq!(paths(&blocks, &[at(1)]).roots, HashMap::from([(at(1), ROOT)]));
    }

    #[test]
    fn a_set_returns_its_blocks_in_order() {
        for blocks in [1, 64, 65, 5000, 300_000] {
            let mut set = OrderedSet::new(blocks);
            let members = [0, blocks / 3, blocks / 2, blocks - 1].map(|id| id as BlockId);
            members.iter().rev().for_each(|id| set.insert(*id));
            let mut expected = members.to_vec();
            expected.dedup();
            let found: Vec<BlockId> = std::iter::from_fn(|| set.pop_first()).collect();
            assert_eq!(found, expected);
            assert!(set.is_empty());
        }
    }
}

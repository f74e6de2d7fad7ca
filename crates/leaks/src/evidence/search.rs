//! Searches of all memory for pointers, and what they have reached.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_heap::blocks::Block;
use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{Links, is_size_of_cache};
use lowtide_probe::inspect::{BlockReader, BlockWalk};
use lowtide_probe::target::TargetError;

use crate::book::{FIRST_COHORT, Survivor, largest};
use crate::pointers::doubts::CountedDoubts;
use crate::pointers::graph::Graph;
use crate::pointers::index::{BlockId, BlockIndex, IndexBuilder};
use crate::pointers::reading::GraphError;
use crate::pointers::registers::RegisterWatch;
use crate::pointers::roots::Roots;
use crate::pointers::scan::WordReader;
use crate::pointers::unread::NotingMemory;
use crate::stacks::sampler::StackSamples;
use crate::unreached::{FoundBlock, UnreachedBlocks};
use crate::whole::is_whole;

/// Maximum number of searches of all memory for pointers, and the time between two of them. After
/// the least number, further ones follow while words that may be links of former free chunks lead
/// to blocks that seem lost, or while pointers move too much for a decision, unless a search takes
/// longer than [`LONG`]. More than [`MANY_ROUNDS`] follow only if these words have become fewer:
/// the memory with such a link is soon used again.
const MANY_ROUNDS: u32 = 8;
const MAX_ROUNDS: u32 = 14;
const PAUSE: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(4);
/// Maximum number of blocks of a heap that is searched completely.
const MAX_INDEXED: usize = 24 << 20;

/// The options of a search for evidence.
pub struct Search<'s> {
    /// Whether the text in blocks may be shown.
    pub with_text: bool,
    /// Ends the search when it is set.
    pub interrupt: &'s AtomicBool,
    /// Allocations that were sampled with their stacks.
    pub samples: Option<&'s StackSamples>,
    /// Time for which the call that leads to lost or growing blocks is counted.
    pub count_calls: Option<Duration>,
    /// Whether the kernel may note the registers of threads, for which perf events are opened.
    /// Otherwise their registers are unknown, and fewer blocks are found to be lost.
    pub notes_registers: bool,
    /// Time after which no further search of all memory begins.
    pub time: Duration,
}

impl<'s> Search<'s> {
    /// Creates a search that only reads: it shows no text in blocks, no stacks, and opens no perf
    /// events.
    pub fn new(interrupt: &'s AtomicBool) -> Self {
        Self {
            with_text: false,
            interrupt,
            samples: None,
            count_calls: None,
            notes_registers: false,
            time: Duration::from_secs(12),
        }
    }
}

/// The result of the searches of all memory.
pub struct Reached {
    pub(super) rounds: u32,
    pub(super) walk: BlockWalk,
    pub(super) roots: Roots,
    pub(super) index: Option<BlockIndex>,
    graph: Option<Graph>,
    /// Why it is unknown which blocks no root led to.
    pub(super) failed: Option<GraphError>,
    /// The blocks that no root led to in any search; `None` if that is unknown.
    pub(super) unreached: Option<UnreachedBlocks>,
    /// Duration of the last search.
    took: Duration,
}

/// Whether the program can reach a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// No root led to it in any search.
    Lost,
    /// Only words led to it that may be no pointers, or pointers may be hidden.
    Unsure,
    /// A root led to it.
    Reachable,
}

impl Reached {
    /// Returns the largest blocks of the last search, at most `most`; `None` if not all of its
    /// blocks are known.
    pub(crate) fn largest_blocks(&self, most: usize) -> Option<Vec<Survivor>> {
        let large = self.index.as_ref().filter(|_| is_whole(&self.walk))?.large();
        let block = |block: Block| Survivor {
            at: block.at,
            bytes: block.bytes,
            cohort: FIRST_COHORT,
            print: block.print,
            is_lost: false,
        };
        Some(largest(large.map(block), most))
    }

    /// Returns the roots of the paths to some blocks, as far as they are known: the addresses of
    /// the pointers, by the address of the block.
    pub(super) fn roots_of(&self, blocks: &[Survivor]) -> HashMap<u64, u64> {
        let Some((graph, index)) = self.graph.as_ref().zip(self.index.as_ref()) else {
            return HashMap::new();
        };
        let root_of = graph.roots(|at| self.roots.turn(at));
        let root = |at: u64| Some((at, root_of.of(index.starting_at(at)?)?));
        blocks.iter().filter_map(|block| root(block.at)).collect()
    }

    /// Returns the minimum number of searches.
    fn least_rounds(&self) -> u32 {
        self.unreached.as_ref().map_or(UnreachedBlocks::LEAST, UnreachedBlocks::least)
    }

    /// Returns whether a further search may find that more blocks are lost.
    fn may_be_decided(&self) -> bool {
        let is_undecided = self.unreached.as_ref().is_some_and(|found| {
            let most = if found.doubts_vanish() { MAX_ROUNDS } else { MANY_ROUNDS };
            found.is_undecided() && self.rounds < most
        });
        is_undecided && self.took <= LONG && self.roots.hidden.is_empty()
    }

    /// Returns whether the program can reach the block that starts at an address; `None` if there
    /// is no such block.
    pub fn state(&self, at: u64) -> Option<BlockState> {
        let index = self.index.as_ref()?;
        let print = index.print(index.starting_at(at)?);
        let unreached = self.unreached.as_ref();
        Some(match unreached {
            _ if self.is_lost(at, print) => BlockState::Lost,
            Some(found) if found.is_unsure(at, print) => BlockState::Unsure,
            Some(_) => BlockState::Reachable,
            None => BlockState::Unsure,
        })
    }

    /// Returns whether no root led to the block with an address and a print. No block is lost if
    /// pointers may be hidden.
    pub fn is_lost(&self, at: u64, print: u16) -> bool {
        let found = self.unreached.as_ref().filter(|_| self.roots.hidden.is_empty());
        found.is_some_and(|found| found.is_lost(at, print))
    }
}

/// Searches all memory for pointers to blocks, several times.
///
/// # Errors
/// Fails if the process has ended, or executes another program.
pub fn search(reader: &mut BlockReader, search: &Search<'_>) -> Result<Reached, TargetError> {
    let begun = Instant::now();
    let mut reached = round(reader, search, None)?;
    let has_time = || begun.elapsed() < search.time;
    let may_go_on = |reached: &Reached| {
        // Without time, nothing is lost whose pointers move.
        let may_be_decided = || reached.rounds < reached.least_rounds() || reached.may_be_decided();
        reached.rounds < UnreachedBlocks::LEAST || has_time() && may_be_decided()
    };
    while may_go_on(&reached) {
        let (before, rounds) = (reached.unreached.take(), reached.rounds);
        let has_few_doubts = before.as_ref().is_some_and(UnreachedBlocks::has_few_doubts);
        let counted = reached.graph.take().filter(|_| has_few_doubts).map(Graph::into_counted);
        drop(reached);
        reader.memory().until(search.interrupt).wait(PAUSE);
        reached = round(reader, search, counted.as_ref())?;
        let has_many = reached.unreached.as_ref().zip(before.as_ref());
        if counted.is_some() && has_many.is_none_or(|(new, before)| !new.has_few_beside(before)) {
            // Doubtful words have become many, so all of them have to count.
            drop(reached);
            reached = round(reader, search, None)?;
        }
        reached.rounds += rounds;
        reached.unreached = before.zip(reached.unreached).map(|(a, b)| a.and(b));
    }
    Ok(reached)
}

/// Walks the heap and follows its pointers once. `before` are the doubtful words that counted in
/// the search before.
fn round(
    reader: &mut BlockReader,
    search: &Search<'_>,
    before: Option<&CountedDoubts>,
) -> Result<Reached, TargetError> {
    let begun = Instant::now();
    let registers = match search.notes_registers {
        true => RegisterWatch::new(reader.target().pid),
        false => RegisterWatch::default(),
    };
    let registers = RefCell::new(registers);
    let mut builder = IndexBuilder::new(MAX_INDEXED);
    let walk = reader.walk(&mut builder)?;
    let index = builder.build();
    let unknown = index.as_ref().map_or(&[][..], |index| index.unknown());
    let memory = reader.memory().until(search.interrupt);
    let memory = NotingMemory::new(&memory);
    let find_roots = || {
        let registers = &mut registers.borrow_mut();
        Roots::find(reader.target(), reader.memory(), &walk, unknown, registers)
    };
    let walk_again = || {
        let mut builder = IndexBuilder::new(MAX_INDEXED);
        let again = reader.again().ok()?.walk(&mut builder).ok()?;
        builder.build().filter(|_| is_whole(&again))
    };
    let read = index.as_ref().map_or(Err(GraphError::TooManyBlocks), |index| {
        Graph::read(&memory, index, &walk.heaps, find_roots, walk_again, before)
    });
    let (graph, failed, mut roots) = match read {
        Ok((graph, roots)) => (Some(graph), None, roots),
        Err(reason) => (None, Some(reason), find_roots()),
    };
    if !is_whole(&walk) {
        roots.hidden.push("a part of its heap could not be read".to_owned());
    }
    let maps = reader.target().maps().unwrap_or_else(|_| walk.maps.clone());
    roots.hidden.extend(memory.reason(&maps));
    let unreached = graph.as_ref().zip(index.as_ref()).map(|(graph, index)| {
        let range = |id| index.range(id).unwrap_or(0..0);
        let bytes_of = |id| range(id).end - range(id).start;
        let found = graph.unreached(roots.threads.hidden_registers, bytes_of);
        let of = |id| Some((index.range(id)?, index.print(id)));
        // Blocks that could not be read have no meaningful print.
        let blocks_of = |ids: &[BlockId]| {
            let mut found: Vec<(Range<u64>, u16)> =
                ids.iter().filter_map(|id| of(*id)).filter(|(_, print)| *print != 0).collect();
            found.sort_unstable_by_key(|(range, _)| range.start);
            without_cached(&memory, index, found)
        };
        UnreachedBlocks::new(&found, index.len(), blocks_of)
    });
    Ok(Reached { rounds: 1, walk, roots, index, graph, failed, unreached, took: begun.elapsed() })
}

/// Returns the blocks that no thread caches, of those with some addresses and prints. The walk
/// recognises the cached blocks of glibc by the lists that they are in, but misses those of a list
/// that changes while it is read. This function recognises them by their content. The first word of
/// a cached block is an encoded link (`PROTECT_PTR`) to a block of the same size or to nothing, or,
/// before glibc 2.34, the second word is the address of the cache (`tcache_entry.key`).
fn without_cached(
    memory: &impl Memory,
    index: &BlockIndex,
    blocks: Vec<(Range<u64>, u16)>,
) -> Vec<FoundBlock> {
    const MAX_CACHED: u64 = 1040;
    let size_at = |at: u64| {
        let range = index.range(index.starting_at(at)?)?;
        Some(range.end - range.start)
    };
    let mut words = WordReader::new(memory);
    let is_cached = |block: &Range<u64>, words: &mut WordReader<'_, _>| {
        let bytes = block.end - block.start;
        if bytes > MAX_CACHED {
            return false;
        }
        let Some([link, key]) = words.two(block.start) else { return false };
        let next = Links::Mixed.decode(block.start, link);
        let is_link = next == 0 || (next.is_multiple_of(16) && size_at(next) == Some(bytes));
        is_link || size_at(key).is_some_and(is_size_of_cache)
    };
    let blocks = blocks.into_iter().filter(|(block, _)| !is_cached(block, &mut words));
    let found = |(block, print): (Range<u64>, u16)| FoundBlock::new(&block, print);
    blocks.map(found).collect()
}

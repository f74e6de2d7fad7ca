//! Collects evidence on blocks that grow: their types, their holders, and whether the program can
//! reach them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_analysis::leaks::{Reachability, Surroundings};
use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};
use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{Links, is_size_of_cache};
use lowtide_heap::ranges::hold;
use lowtide_model::leaks::{BlockType, CallProof, Holder, LeakGroup, LeakStack};
use lowtide_model::ledger::WalkedRuntime;
use lowtide_model::number::HumanCount;
use lowtide_probe::detect::{self, Area};
use lowtide_probe::inspect::{BlockReader, BlockWalk};
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::TargetError;

use crate::book::{FIRST_COHORT, Survivor, largest};
use crate::files::Image;
use crate::group::GroupKey;
use crate::pointers::doubts::Counted;
use crate::pointers::graph::Graph;
use crate::pointers::index::{BlockId, BlockIndex, IndexBuilder};
use crate::pointers::paths::{Paths, UsedBlocks};
use crate::pointers::registers::RegisterWatch;
use crate::pointers::roots::Roots;
use crate::pointers::scan::{Target, Words, each_pointer, each_root};
use crate::pointers::waiting::ThreadWords;
use crate::pointers::words::Word;
use crate::stacks::names::FrameNamer;
use crate::stacks::sampler::StackSamples;
use crate::stacks::survivors::{CallCount, SurvivingStacks};
use crate::types::{rust, type_of};
use crate::unreached::UnreachedBlocks;
use crate::variables::Variables;
use crate::whole::is_whole;

/// Number of searches of all memory for pointers, and the time between two of them. Further ones
/// follow while words that may be links of former free chunks lead to blocks that seem lost,
/// unless a search takes longer than [`LONG`]: the memory with such a link is soon used again.
/// More than [`MANY_ROUNDS`] follow only if these words have become fewer.
const ROUNDS: u32 = UnreachedBlocks::LEAST;
const MANY_ROUNDS: u32 = 6;
const MAX_ROUNDS: u32 = 14;
const PAUSE: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(2);
/// Maximum number of blocks of a group whose pointers are searched for, and of those whose type is
/// read.
pub const MAX_SAMPLED: usize = 1000;
const MAX_TYPED: usize = 300;
/// Maximum number of blocks of a group that are followed to a variable of Python.
const MAX_FOLLOWED: usize = 16;
/// Maximum number of pointers to a block that are inspected.
const MAX_POINTERS: usize = 8;
/// Maximum number of blocks of a heap that is searched completely.
const MAX_INDEXED: usize = 24 << 20;
/// Maximum number of types and of holders that are named.
const MAX_NAMED: usize = 5;
/// Minimum share of the blocks for a type or holder to be named.
const MIN_SHARE: f64 = 0.05;

/// A sample of the blocks of a group.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// The group.
    pub key: GroupKey,
    /// The sampled blocks.
    pub sample: Vec<Survivor>,
}

/// The evidence on the blocks of a group.
#[derive(Debug, Clone)]
pub struct Described {
    /// The group.
    key: GroupKey,
    /// Their types, the most frequent first.
    types: Vec<BlockType>,
    /// The memory that points to them, the most frequent first.
    holders: Vec<Holder>,
    /// The roots of the paths to them, the most frequent first.
    roots: Vec<Holder>,
    /// Whether they can be reached; `None` if that is unknown.
    pub reachability: Option<Reachability>,
    /// The stacks by which they were allocated, the most frequent first.
    stacks: Vec<LeakStack>,
    /// The number of calls through the call site in the first of these stacks.
    calls: Option<CallCount>,
}

impl Described {
    /// Names the variable from which the program reaches most of the blocks, or else what points to
    /// most of them.
    fn main_holder(&self) -> Option<String> {
        const MOST: f64 = 0.5;
        let is_variable =
            |root: &&Holder| root.what.starts_with("variable ") && !is_of_interpreter(root);
        let is_named = |root: &&Holder| is_variable(root) || root.what.starts_with("attribute ");
        let named = self.holders.first().filter(is_named).filter(|found| found.share >= MOST);
        if let Some(variable) = named {
            return Some(variable.what.clone());
        }
        let is_object = self.types.first().is_some_and(|found| found.name.starts_with("Python "));
        if is_object || self.roots.first().is_some_and(is_of_interpreter) {
            return None;
        }
        let root = self.roots.first().filter(is_variable);
        let main = root.into_iter().chain(self.holders.first()).find(|found| found.share >= MOST);
        main.map(|found| found.what.clone())
    }

    /// Returns whether the blocks are objects of Python, or are held by some.
    fn is_of_python(&self) -> bool {
        let types = self.types.iter().map(|found| &found.name);
        let mut names = types.chain(self.holders.iter().map(|holder| &holder.what));
        names.any(|name| name.starts_with("Python "))
    }

    /// Adds the variables of Python that lead to the blocks, before what points to them.
    /// `followed` are the blocks from which variables were searched for, and `names` those that
    /// were found.
    fn name_variables(&mut self, followed: &[u64], names: &HashMap<u64, String>) {
        /// Minimum share of a variable: an old pointer can lead to another one.
        const MIN: f64 = 0.3;
        let found = followed.iter().filter_map(|at| names.get(at).cloned());
        let variables = most_frequent(found, followed.len()).into_iter();
        let variables = variables.filter(|(_, share)| *share >= MIN);
        let variables = variables.map(|(what, share)| Holder { what, share });
        self.holders.splice(0..0, variables);
        self.holders.truncate(MAX_NAMED);
    }

    /// Adds the evidence to a group.
    pub fn describe(&self, group: &mut LeakGroup) {
        group.set_types(self.types.clone());
        group.holders.clone_from(&self.holders);
        group.roots.clone_from(&self.roots);
        group.stacks.clone_from(&self.stacks);
        let block_bytes = group.bytes as f64 / group.count.max(1) as f64;
        if let Some((first, counted)) = group.stacks.first_mut().zip(self.calls) {
            first.proof = Some(CallProof {
                calls: counted.calls,
                seconds: counted.seconds,
                calls_per_hour: counted.calls as f64 / counted.seconds * 3600.0,
                survivors_per_hour: group.bytes_per_hour as f64 / block_bytes.max(1.0),
            });
        }
    }
}

/// Returns whether a root is a variable of Python's interpreter: the garbage collector leads to
/// every object of Python, a free list to former ones, and its allocator to all their memory.
fn is_of_interpreter(root: &Holder) -> bool {
    let is_any = |names: [&str; 2]| names.iter().any(|name| root.what.starts_with(name));
    let is_of_file = [" of libpython", " of python"].iter().any(|file| root.what.contains(file));
    is_any(["variable _PyRuntime ", "variable free_list "])
        || root.what.starts_with("variable ") && is_of_file
}

/// The evidence on all groups.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// Number of searches of all memory for pointers.
    pub rounds: u32,
    /// Other facts that affect verdicts.
    pub surroundings: Surroundings,
    /// Notes for the user.
    pub notes: Vec<String>,
    groups: Vec<Described>,
}

impl Evidence {
    /// Returns the evidence on a group.
    pub fn of(&self, key: &GroupKey) -> Option<&Described> {
        self.groups.iter().find(|group| group.key == *key)
    }
}

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
    rounds: u32,
    walk: BlockWalk,
    roots: Roots,
    index: Option<BlockIndex>,
    graph: Option<Graph>,
    /// The blocks that no root led to in any search; `None` if that is unknown.
    unreached: Option<UnreachedBlocks>,
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
    while reached.rounds < ROUNDS || has_time() && reached.may_be_decided() {
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

/// A process whose blocks are known by a walk.
pub(crate) struct WalkedProcess<'w> {
    pub(crate) target: &'w lowtide_probe::target::Target,
    pub(crate) memory: &'w LiveMemory,
    pub(crate) walk: &'w BlockWalk,
    pub(crate) index: &'w BlockIndex,
    /// The addresses of the blocks in caches, in order.
    pub(crate) cached: &'w [u64],
}

/// Names what holds each of some samples of blocks, none of which is empty; `None` if nothing holds
/// at least half of the sample. The search is limited in time and memory.
///
/// # Errors
/// Fails if the process has ended, or executes another program.
pub(crate) fn holders(
    process: &WalkedProcess<'_>,
    samples: &[Vec<Survivor>],
    interrupt: &AtomicBool,
) -> Result<Vec<Option<String>>, TargetError> {
    let WalkedProcess { target, memory: live, walk, index, cached } = *process;
    let memory = &live.until(interrupt);
    let registers = &mut RegisterWatch::default();
    let roots = &Roots::find(target, live, walk, index.unknown(), registers);
    let used = UsedBlocks { index, cached, heaps: &walk.heaps };
    let wanted = samples.iter().flatten().map(|block| block.at);
    let Paths { mut pointers, roots: roots_of } = Paths::find(memory, &used, roots, wanted);
    // The search has not come to most blocks of these groups, or no root leads to them.
    let is_known = |block: &&Survivor| pointers.contains_key(&block.at);
    let others = samples.iter().filter(|s| s.iter().filter(is_known).count() * 2 < s.len());
    let others: Vec<Survivor> = others.flatten().copied().collect();
    if !others.is_empty() {
        let found = pointers_to(memory, ranges(&others), Some(index), roots, walk);
        let is_used = |at: &u64| match index.find(*at) {
            Some((_, block)) => cached.binary_search(&block.at).is_err(),
            None => true,
        };
        pointers.extend(found.into_iter().map(|(block, mut from)| {
            from.retain(is_used);
            (block, from)
        }));
    }
    if !live.is_in_use() {
        return Err(match target.is_alive() {
            true => TargetError::Replaced(target.pid),
            false => TargetError::Gone(target.pid),
        });
    }
    let image = Image::new(target.pid, live, &walk.maps);
    let areas = detect::areas(live, &walk.detected, &walk.maps, &roots.stacks, &walk.heaps);
    let namer = Namer { image: &image, memory, index: Some(index), roots_of, roots, walk, areas };
    let mut described: Vec<Described> = samples
        .iter()
        .map(|sample| {
            namer.describe(GroupKey::of_block(&sample[0]), sample, &pointers, None, false)
        })
        .collect();
    namer.name_variables(&mut described, samples, &pointers);
    Ok(described.iter().map(Described::main_holder).collect())
}

/// Returns the addresses and the prints of blocks.
fn ranges(blocks: &[Survivor]) -> impl Iterator<Item = (Range<u64>, u16)> {
    blocks.iter().map(|block| (block.at..block.at.saturating_add(block.bytes), block.print))
}

/// Determines the types of blocks, their holders, and the stacks by which they were allocated.
/// Blocks of at least the age `older_s` count as survivors.
pub(crate) fn describe(
    reader: &BlockReader,
    reached: &Reached,
    groups: Vec<Sampled>,
    stacks: Option<&SurvivingStacks<'_>>,
    older_s: f64,
    search: &Search<'_>,
) -> Evidence {
    let Reached { walk, roots, index, graph, unreached, rounds, .. } = reached;
    let memory = &reader.memory().until(search.interrupt);
    let mut evidence = Evidence { rounds: *rounds, ..Evidence::default() };
    evidence.surroundings.hidden_pointers = roots.hidden.first().cloned();
    if unreached.is_none() {
        evidence.notes.push(
            "lost memory could not be identified: the heap has too many pointers, or following them \
             took too long"
                .to_owned(),
        );
    }
    let image = Image::new(reader.target().pid, reader.memory(), &walk.maps);
    let all: Vec<Survivor> = groups.iter().flat_map(|group| group.sample.iter().copied()).collect();
    let pointers = pointers_to(memory, ranges(&all), index.as_ref(), roots, walk);
    let is_held = groups.iter().any(|group| !group.key.is_lost);
    let held = graph.as_ref().filter(|_| is_held);
    let root_of = held.map(|graph| graph.roots(|at| roots.is_in_stack(at)));
    let roots_of = root_of.zip(index.as_ref()).map(|(root_of, index)| {
        let root = |at: u64| Some((at, root_of.of(index.starting_at(at)?)?));
        all.iter().filter_map(|block| root(block.at)).collect()
    });
    let roots_of = roots_of.unwrap_or_default();
    let areas =
        detect::areas(reader.memory(), &walk.detected, &walk.maps, &roots.stacks, &walk.heaps);
    let namer =
        Namer { image: &image, memory, index: index.as_ref(), roots_of, roots, walk, areas };
    let frames = FrameNamer::new(&image, reader.target());
    let mut samples = Vec::new();
    for Sampled { key, sample } in groups {
        let is_there = |survivor: &&Survivor| match index {
            Some(index) => index.starting_at(survivor.at).is_some(),
            None => true,
        };
        let sample: Vec<Survivor> = sample.iter().filter(is_there).copied().collect();
        let reachability = unreached.as_ref().filter(|_| !sample.is_empty()).map(|found| {
            let share = |is: &dyn Fn(u64, u16) -> bool| {
                let among = sample.iter().filter(|s| is(s.at, s.print)).count();
                among as f64 / sample.len() as f64
            };
            let unreachable_share = share(&|at, print| found.is_lost(at, print));
            Reachability {
                sampled: sample.len() as u64,
                unreachable_share,
                unsure_share: share(&|at, print| found.is_unsure(at, print)),
                rounds: found.searches(),
            }
        });
        let mut described = namer.describe(key, &sample, &pointers, reachability, search.with_text);
        samples.push(sample);
        if let Some(stacks) = stacks {
            described.stacks = stacks.of(&described.key, older_s, &frames);
        }
        evidence.groups.push(described);
    }
    if let Some((stacks, time)) = stacks.zip(search.count_calls) {
        // Stacks of lost blocks first.
        let mut with_stacks: Vec<&mut Described> =
            evidence.groups.iter_mut().filter(|group| !group.stacks.is_empty()).collect();
        with_stacks.sort_by_key(|group| !group.key.is_lost);
        if let Some(first) = with_stacks.first_mut() {
            let pid = reader.target().pid;
            let memory = reader.memory();
            first.calls = stacks.count_calls(&first.key, older_s, pid, memory, &walk.maps, time);
        }
    }
    namer.name_variables(&mut evidence.groups, &samples, &pointers);
    evidence
}

/// Walks the heap and follows its pointers once. `before` are the doubtful words that counted in
/// the search before.
fn round(
    reader: &mut BlockReader,
    search: &Search<'_>,
    before: Option<&Counted>,
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
    let find_roots = || {
        let registers = &mut registers.borrow_mut();
        Roots::find(reader.target(), reader.memory(), &walk, unknown, registers)
    };
    let walk_again = || {
        let mut builder = IndexBuilder::new(MAX_INDEXED);
        let again = reader.again().ok()?.walk(&mut builder).ok()?;
        builder.build().filter(|_| is_whole(&again))
    };
    let read = index.as_ref().and_then(|index| {
        Graph::read(&memory, index, &walk.heaps, find_roots, walk_again, before).ok()
    });
    let (graph, mut roots) = match read {
        Some((graph, roots)) => (Some(graph), roots),
        None => (None, find_roots()),
    };
    if !is_whole(&walk) {
        roots.hidden.push("a part of its heap could not be read".to_owned());
    }
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
    Ok(Reached { rounds: 1, walk, roots, index, graph, unreached, took: begun.elapsed() })
}

/// Returns the addresses and prints of the blocks that no thread caches. The walk recognises the
/// cached blocks of glibc by the lists that they are in, but misses those of a list that changes
/// while it is read. This function recognises them by their content. The first word of a cached
/// block is an encoded link (`PROTECT_PTR`) to a block of the same size or to nothing, or, before
/// glibc 2.34, the second word is the address of the cache (`tcache_entry.key`).
fn without_cached(
    memory: &impl Memory,
    index: &BlockIndex,
    blocks: Vec<(Range<u64>, u16)>,
) -> Vec<(u64, u16)> {
    const MAX_CACHED: u64 = 1040;
    let size_at = |at: u64| {
        let range = index.range(index.starting_at(at)?)?;
        Some(range.end - range.start)
    };
    let mut words = Words::new(memory);
    let is_cached = |block: &Range<u64>, words: &mut Words<'_, _>| {
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
    blocks.map(|(block, print)| (block.start, print)).collect()
}

/// The addresses of pointers, by the address of the block that they point to.
pub(crate) type Pointers = HashMap<u64, Vec<u64>>;

/// Finds pointers to some blocks, given by their ranges and prints. Returns the addresses of some
/// of the pointers, by the address of the block.
pub(crate) fn pointers_to(
    memory: &impl Memory,
    blocks: impl Iterator<Item = (Range<u64>, u16)>,
    index: Option<&BlockIndex>,
    roots: &Roots,
    walk: &BlockWalk,
) -> Pointers {
    let sampled = index_of(blocks);
    let mut found = Pointers::new();
    let mut add = |from: u64, to: BlockId, most: usize| {
        let Some(to) = sampled.range(to) else { return };
        let pointers = found.entry(to.start).or_default();
        if pointers.len() < most && !to.contains(&from) {
            pointers.push(from);
        }
    };
    let mut add_root = |from: Word, to| {
        if let Target::Block(to) = to {
            add(from.at, to, MAX_POINTERS);
        }
    };
    let ThreadWords { copies, used, .. } = &roots.threads;
    each_root(copies, &sampled, used, &mut add_root);
    match index {
        Some(index) => {
            each_root(memory, &sampled, &roots.ranges, &mut add_root);
            // Old pointers on stacks can be many.
            each_pointer(memory, index, &sampled, |from, to| add(from, to, 2 * MAX_POINTERS));
        }
        // It is unknown which memory is free: stale pointers in free memory count.
        None => {
            let mut all: Vec<Range<u64>> =
                roots.ranges.iter().chain(&roots.new).chain(&walk.heaps.areas).cloned().collect();
            all.sort_unstable_by_key(|range| range.start);
            each_root(memory, &sampled, &all, &mut add_root);
        }
    }
    found.retain(|_, pointers| !pointers.is_empty());
    found
}

/// Builds an index of a few blocks.
fn index_of(blocks: impl Iterator<Item = (Range<u64>, u16)>) -> BlockIndex {
    let mut sorted: Vec<(Range<u64>, u16)> = blocks.collect();
    sorted.sort_unstable_by_key(|(range, _)| range.start);
    let mut builder = IndexBuilder::new(usize::MAX);
    for (Range { start: at, end }, print) in sorted {
        let bytes = end - at;
        let block = Block { at, bytes, print };
        if bytes < PLACE {
            builder.blocks(at..at + 1, &[block]);
        } else {
            builder.large(block);
        }
    }
    builder.build().unwrap_or_default()
}

/// Names blocks and their holders.
struct Namer<'n, M> {
    image: &'n Image<'n>,
    memory: &'n M,
    index: Option<&'n BlockIndex>,
    /// The roots of the paths to the sampled blocks, as far as they are known: the addresses of
    /// the pointers, by the address of the block.
    roots_of: HashMap<u64, u64>,
    roots: &'n Roots,
    walk: &'n BlockWalk,
    /// Memory of runtimes and of other allocators, in order.
    areas: Vec<Area>,
}

impl<M: Memory> Namer<'_, M> {
    fn describe(
        &self,
        key: GroupKey,
        sample: &[Survivor],
        pointers: &Pointers,
        reachability: Option<Reachability>,
        with_text: bool,
    ) -> Described {
        let step = sample.len().div_ceil(MAX_TYPED).max(1);
        let typed: Vec<u64> = sample.iter().step_by(step).map(|survivor| survivor.at).collect();
        let types = typed.iter().filter_map(|at| {
            type_of(self.image, self.memory, *at, with_text)
                .or_else(|| self.type_from_pointers(*at, pointers.get(at)?))
        });
        let types = most_frequent(types, typed.len());
        let mut names: HashMap<u64, String> = HashMap::new();
        let holders = typed.iter().flat_map(|block| {
            let from = pointers.get(block).into_iter().flatten();
            let mut of_block: Vec<String> = from
                .map(|at| names.entry(*at).or_insert_with(|| self.holder(*at)).clone())
                .collect();
            of_block.sort_unstable();
            of_block.dedup();
            of_block
        });
        let holders = most_frequent(holders, typed.len());
        let roots = typed.iter().filter_map(|at| match self.roots_of.get(at)? {
            0 => Some("a system call or an epoll instance".to_owned()),
            root => Some(names.entry(*root).or_insert_with(|| self.holder(*root)).clone()),
        });
        let holder = |(what, share)| Holder { what, share };
        Described {
            key,
            types: types.into_iter().map(|(name, share)| BlockType { name, share }).collect(),
            roots: most_frequent(roots, typed.len()).into_iter().map(holder).collect(),
            holders: holders.into_iter().map(holder).collect(),
            reachability,
            stacks: Vec::new(),
            calls: None,
        }
    }

    /// Adds the variables of Python that lead to the blocks of some samples.
    fn name_variables(
        &self,
        described: &mut [Described],
        samples: &[Vec<Survivor>],
        pointers: &Pointers,
    ) {
        let Some(index) = self.index else { return };
        let of_python = |(described, sample): (&Described, &Vec<Survivor>)| {
            let most = if described.is_of_python() { MAX_FOLLOWED } else { 0 };
            sample.iter().take(most).map(|block| block.at).collect()
        };
        let followed: Vec<Vec<u64>> = described.iter().zip(samples).map(of_python).collect();
        let all = followed.concat();
        if all.is_empty() {
            return;
        }
        let Self { image, memory, roots, walk, .. } = *self;
        let names = Variables { image, memory, index, roots, walk }.of(&all, pointers);
        for (described, followed) in described.iter_mut().zip(&followed) {
            described.name_variables(followed, &names);
        }
    }

    /// Returns the type of a trait object, by the vtable pointer beside a pointer to it.
    fn type_from_pointers(&self, at: u64, pointers: &[u64]) -> Option<String> {
        pointers.iter().find_map(|from| {
            let to = self.image.word(*from)?;
            let table = self.image.word(from.checked_add(8)?)?;
            (to == at).then(|| rust(self.image, table)).flatten().map(|name| format!("Rust {name}"))
        })
    }

    /// Names memory by its manager.
    fn memory_of_no_file(&self, at: u64) -> String {
        let place = self.areas.partition_point(|area| area.range.end <= at);
        if let Some(area) = self.areas.get(place).filter(|area| area.range.contains(&at)) {
            return format!("memory of {}", area.owner.name());
        }
        let engines = &self.walk.heaps.without_blocks;
        let place = engines.partition_point(|claim| claim.range.end <= at);
        if let Some(claim) = engines.get(place).filter(|claim| claim.range.contains(&at)) {
            return match claim.owner {
                WalkedRuntime::HotSpot => "the heap of Java objects".to_owned(),
                engine => format!("the heap of {}", engine.kind().name()),
            };
        }
        match self.image.mapping(at) {
            Some(mapping) if !mapping.name.is_empty() => mapping.name.clone(),
            _ => "anonymous memory".to_owned(),
        }
    }

    /// Names the memory at an address that holds a pointer.
    fn holder(&self, at: u64) -> String {
        if let Some(range) = self.index.and_then(|index| index.range(index.containing(at)?)) {
            return match type_of(self.image, self.memory, range.start, false) {
                Some(name) => name,
                None => untyped(at, range),
            };
        }
        if self.roots.is_in_stack(at) {
            return "a stack".to_owned();
        }
        // Memory after that of a file is the file's only as far as the file requests it.
        let is_of_file = |mapping: &&Mapping| {
            mapping.contains(at) || hold(&self.walk.detected.zeroed_data, &(at..at + 1))
        };
        let Some(mapping) = self.image.mapping_of_file(at).filter(is_of_file) else {
            return self.memory_of_no_file(at);
        };
        let file = mapping.name.rsplit('/').next().unwrap_or_default();
        match self.image.symbol(at) {
            Some(symbol) => format!("variable {} of {file}", symbol.name),
            None => format!("data of {file}"),
        }
    }
}

/// Names a block without a type that contains a pointer at an address.
fn untyped(at: u64, range: Range<u64>) -> String {
    /// Maximum size of a block whose name includes the offset of the pointer, in bytes: in a larger
    /// block, the offset differs from pointer to pointer.
    const MAX_RECORD: u64 = 512;
    match range.end - range.start {
        bytes @ 0..=MAX_RECORD => format!("a block of {bytes} bytes, at +{:#x}", at - range.start),
        bytes => format!("a block of {} bytes", HumanCount(bytes)),
    }
}

/// Returns the most frequent names, each with its share of `all`.
fn most_frequent(names: impl Iterator<Item = String>, all: usize) -> Vec<(String, f64)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let shares = counts.into_iter().map(|(name, count)| (name, count as f64 / all.max(1) as f64));
    let mut found: Vec<(String, f64)> = shares.filter(|(_, share)| *share >= MIN_SHARE).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.truncate(MAX_NAMED);
    found
}

//! What is found out about blocks that grow: their types, what holds them, and whether the program can reach them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lowtide_analysis::leaks::{LostBefore, Reachability, Surroundings};
use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};
use lowtide_heap::memory::Memory;
use lowtide_model::leaks::{BlockType, Holder, LeakGroup};
use lowtide_model::survivors::size_class;
use lowtide_probe::inspect::{BlockReader, BlockWalk};
use lowtide_probe::target::TargetError;

use crate::book::{Book, FIRST_COHORT, Survivor};
use crate::files::Image;
use crate::pointers::graph::Graph;
use crate::pointers::index::{BlockIndex, IndexBuilder};
use crate::pointers::roots::Roots;
use crate::pointers::scan::{each_pointer, each_root};
use crate::types::{rust, type_of};

/// Number of times that all memory is searched for pointers, and the time between two searches.
const ROUNDS: u32 = 2;
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of blocks of a group for which pointers are sought, and of those whose type is read.
pub const MAX_SAMPLED: usize = 1000;
const MAX_TYPED: usize = 300;
/// Maximum number of pointers to a block that are looked at.
const MAX_POINTERS: usize = 8;
/// Maximum number of blocks of a heap that is searched as a whole.
const MAX_INDEXED: usize = 24 << 20;
/// Maximum number of types, holders and groups of lost memory that are named.
const MAX_NAMED: usize = 5;
/// A type or holder of less than this part of the blocks is not named.
const MIN_SHARE: f64 = 0.05;

/// Blocks about which something is to be found out.
#[derive(Debug, Clone)]
pub struct Suspects {
    /// Their size classes.
    pub classes: Vec<u16>,
    /// Some of them.
    pub sample: Vec<Survivor>,
}

/// What is known of the blocks of a group.
#[derive(Debug, Clone, Default)]
pub struct Described {
    /// Their types, the most frequent first.
    pub types: Vec<BlockType>,
    /// What points to them, the most frequent first.
    pub holders: Vec<Holder>,
}

impl Described {
    /// Adds what is known to a group.
    pub fn describe(&self, group: &mut LeakGroup) {
        let first = self.types.first().filter(|found| found.share >= 0.5);
        group.block_type = first.map(|found| found.name.clone());
        group.types.clone_from(&self.types);
        group.holders.clone_from(&self.holders);
    }
}

/// What is known of the blocks of some size classes.
#[derive(Debug, Clone)]
pub struct OfClasses {
    classes: Vec<u16>,
    described: Described,
    /// Whether they can be reached; `None` if that could not be found out.
    pub reachability: Option<Reachability>,
}

impl OfClasses {
    /// Adds what is known to a group.
    pub fn describe(&self, group: &mut LeakGroup) {
        self.described.describe(group);
    }
}

/// Memory that was lost before the first snapshot.
#[derive(Debug, Clone)]
pub struct Lost {
    /// How much.
    pub found: LostBefore,
    /// What it is.
    pub described: Described,
}

/// Everything that was found out.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// Number of times that all memory was searched for pointers.
    pub rounds: u32,
    /// What else decides about verdicts.
    pub surroundings: Surroundings,
    /// Memory that was lost before the first snapshot, most bytes first.
    pub lost_before: Vec<Lost>,
    /// What the user should know.
    pub notes: Vec<String>,
    groups: Vec<OfClasses>,
}

impl Evidence {
    /// What is known of the blocks of some size classes: of the group that has most of them.
    pub fn of_classes(&self, classes: &[u16]) -> Option<&OfClasses> {
        let common =
            |group: &&OfClasses| classes.iter().filter(|c| group.classes.contains(c)).count();
        self.groups.iter().filter(|group| common(group) * 2 > classes.len()).max_by_key(common)
    }
}

/// How evidence is sought.
pub struct Search<'s> {
    /// Whether the text in blocks may be shown.
    pub with_text: bool,
    /// Ends the search when it is set.
    pub interrupt: &'s AtomicBool,
}

/// One search of all memory.
struct Round {
    walk: BlockWalk,
    roots: Roots,
    index: Option<BlockIndex>,
    /// Addresses of the blocks that no root leads to, in order; `None` if that was not found out.
    unreachable: Option<Vec<u64>>,
}

/// Finds out what the suspects are, what holds them, and which of the blocks of the book can be reached.
///
/// # Errors
/// Fails if the process has ended, or executes another program.
pub fn seek(
    reader: &mut BlockReader,
    book: &Book,
    suspects: Vec<Suspects>,
    search: &Search<'_>,
) -> Result<Evidence, TargetError> {
    let mut evidence = Evidence::default();
    let mut unreachable: Option<Vec<u64>> = None;
    let mut last = None;
    for number in 0..ROUNDS {
        if number > 0 {
            drop(last.take());
            reader.memory().until(search.interrupt).wait(PAUSE);
        }
        let round = round(reader, search)?;
        unreachable = match (number, &round.unreachable, unreachable) {
            (0, found, _) => found.clone(),
            (_, Some(found), Some(before)) => Some(in_both(&before, found)),
            _ => None,
        };
        evidence.rounds += 1;
        last = Some(round);
    }
    let Some(Round { walk, roots, index, .. }) = last else { return Ok(evidence) };
    let memory = &reader.memory().until(search.interrupt);
    evidence.surroundings.hidden_pointers = roots.hidden.first().cloned();
    if unreachable.is_none() {
        evidence.notes.push(
            "the heap has too many blocks to find all that no pointer leads to: only direct pointers to a \
             sample of them were sought"
                .to_owned(),
        );
    }
    let image = Image::new(reader.target().pid, reader.memory(), &walk.maps);
    let all: Vec<Survivor> =
        suspects.iter().flat_map(|group| group.sample.iter().copied()).collect();
    let pointers = pointers_to(memory, &all, index.as_ref(), &roots, &walk);
    let namer = Namer { image: &image, memory, index: index.as_ref(), roots: &roots };
    for group in suspects {
        let is_there = |survivor: &&Survivor| match &index {
            Some(index) => index.starting_at(survivor.at).is_some(),
            None => true,
        };
        let sample: Vec<Survivor> = group.sample.iter().filter(is_there).copied().collect();
        let is_lost = |survivor: &&Survivor| match &unreachable {
            Some(found) => found.binary_search(&survivor.at).is_ok(),
            None => !pointers.contains_key(&survivor.at),
        };
        let lost = sample.iter().filter(is_lost).count();
        let reachability = (!sample.is_empty()).then(|| Reachability {
            sampled: sample.len() as u64,
            unreachable_share: lost as f64 / sample.len() as f64,
            rounds: evidence.rounds,
        });
        let described = namer.describe(&sample, &pointers, search.with_text);
        evidence.groups.push(OfClasses { classes: group.classes, described, reachability });
    }
    if let Some(unreachable) = unreachable.filter(|_| roots.hidden.is_empty()) {
        for (found, sample) in lost_before(book, &unreachable) {
            let described = namer.describe(&sample, &HashMap::new(), search.with_text);
            evidence.lost_before.push(Lost { found, described });
        }
    }
    Ok(evidence)
}

/// Walks the heap and follows its pointers once.
fn round(reader: &mut BlockReader, search: &Search<'_>) -> Result<Round, TargetError> {
    let mut builder = IndexBuilder::new(MAX_INDEXED);
    let walk = reader.walk(&mut builder)?;
    let index = builder.build();
    let unknown = index.as_ref().map_or(&[][..], |index| index.unknown());
    let roots = Roots::find(reader.target(), reader.memory(), &walk, unknown);
    let memory = reader.memory().until(search.interrupt);
    let graph = index
        .as_ref()
        .and_then(|index| Graph::read(&memory, index, &roots.ranges, &roots.words).ok());
    let unreachable = graph.zip(index.as_ref()).map(|(graph, index)| {
        let blocks = graph.unreachable(roots.hidden_registers);
        let mut found: Vec<u64> =
            blocks.into_iter().filter_map(|id| Some(index.range(id)?.start)).collect();
        found.sort_unstable();
        found
    });
    Ok(Round { walk, roots, index, unreachable })
}

/// Returns what two ordered lists have in common.
fn in_both(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter().copied().filter(|at| other.binary_search(at).is_ok()).collect()
}

/// Returns the blocks of the first cohort that cannot be reached, by size class, with some of each.
fn lost_before(book: &Book, unreachable: &[u64]) -> Vec<(LostBefore, Vec<Survivor>)> {
    let mut found: BTreeMap<u16, (LostBefore, Vec<Survivor>)> = BTreeMap::new();
    book.each(|survivor| {
        if survivor.cohort != FIRST_COHORT || unreachable.binary_search(&survivor.at).is_err() {
            return;
        }
        let none = LostBefore { size_bytes: [u64::MAX, 0], count: 0, bytes: 0 };
        let (lost, sample) =
            found.entry(size_class(survivor.bytes)).or_insert_with(|| (none, Vec::new()));
        let [smallest, largest] = lost.size_bytes;
        lost.size_bytes = [smallest.min(survivor.bytes), largest.max(survivor.bytes)];
        lost.count += 1;
        lost.bytes += survivor.bytes;
        if sample.len() < MAX_TYPED {
            sample.push(survivor);
        }
    });
    let mut found: Vec<(LostBefore, Vec<Survivor>)> = found.into_values().collect();
    for (lost, sample) in &mut found {
        let is_large = size_class(lost.size_bytes[0]) >= size_class(PLACE);
        let share = if is_large { book.large_sampled_share() } else { book.sampled_share() };
        lost.count = (lost.count as f64 / share) as u64;
        lost.bytes = (lost.bytes as f64 / share) as u64;
        sample.sort_unstable_by_key(|survivor| survivor.at);
    }
    found.sort_by_key(|(lost, _)| std::cmp::Reverse(lost.bytes));
    found.truncate(MAX_NAMED);
    found
}

/// Where pointers to a block stand.
type Pointers = HashMap<u64, Vec<u64>>;

/// Finds pointers to blocks of a sample: by the address of the block, the addresses of some.
fn pointers_to(
    memory: &impl Memory,
    sample: &[Survivor],
    index: Option<&BlockIndex>,
    roots: &Roots,
    walk: &BlockWalk,
) -> Pointers {
    let sampled = index_of(sample);
    let mut found = Pointers::new();
    let mut add = |from: u64, to: Range<u64>| {
        let pointers = found.entry(to.start).or_default();
        if pointers.len() < MAX_POINTERS && !to.contains(&from) {
            pointers.push(from);
        }
    };
    match index {
        Some(index) => {
            each_root(memory, &sampled, &roots.ranges, |from, to| {
                sampled.range(to).into_iter().for_each(|to| add(from, to));
            });
            each_pointer(memory, index, &sampled, |from, to| {
                sampled.range(to).into_iter().for_each(|to| add(from, to));
            });
        }
        // It is not known which memory is free: pointers that are left over there count.
        None => {
            let mut all: Vec<Range<u64>> =
                roots.ranges.iter().chain(&walk.areas).cloned().collect();
            all.sort_unstable_by_key(|range| range.start);
            each_root(memory, &sampled, &all, |from, to| {
                sampled.range(to).into_iter().for_each(|to| add(from, to));
            });
        }
    }
    found.retain(|_, pointers| !pointers.is_empty());
    found
}

/// Makes an index of a few blocks.
fn index_of(sample: &[Survivor]) -> BlockIndex {
    let mut sorted = sample.to_vec();
    sorted.sort_unstable_by_key(|survivor| survivor.at);
    let mut builder = IndexBuilder::new(usize::MAX);
    for Survivor { at, bytes, print, .. } in sorted {
        let block = Block { at, bytes, print };
        if bytes < PLACE {
            builder.blocks(at..at + 1, &[block]);
        } else {
            builder.large(block);
        }
    }
    builder.build().unwrap_or_default()
}

/// Names blocks and what holds them.
struct Namer<'n, M> {
    image: &'n Image<'n>,
    memory: &'n M,
    index: Option<&'n BlockIndex>,
    roots: &'n Roots,
}

impl<M: Memory> Namer<'_, M> {
    fn describe(&self, sample: &[Survivor], pointers: &Pointers, with_text: bool) -> Described {
        let step = sample.len().div_ceil(MAX_TYPED).max(1);
        let typed: Vec<&Survivor> = sample.iter().step_by(step).collect();
        let mut types: BTreeMap<String, usize> = BTreeMap::new();
        for survivor in &typed {
            let found = type_of(self.image, self.memory, survivor.at, with_text)
                .or_else(|| self.type_from_pointers(survivor.at, pointers.get(&survivor.at)?));
            if let Some(name) = found {
                *types.entry(name).or_default() += 1;
            }
        }
        let mut holders: BTreeMap<String, usize> = BTreeMap::new();
        let mut names: HashMap<u64, String> = HashMap::new();
        for survivor in &typed {
            let from = pointers.get(&survivor.at).into_iter().flatten();
            let mut of_block: Vec<String> = from
                .map(|at| names.entry(*at).or_insert_with(|| self.holder(*at)).clone())
                .collect();
            of_block.sort_unstable();
            of_block.dedup();
            for name in of_block {
                *holders.entry(name).or_default() += 1;
            }
        }
        let most_frequent = |found: BTreeMap<String, usize>| {
            let mut found: Vec<(String, f64)> = found
                .into_iter()
                .map(|(name, count)| (name, count as f64 / typed.len().max(1) as f64))
                .filter(|(_, share)| *share >= MIN_SHARE)
                .collect();
            found.sort_by(|a, b| b.1.total_cmp(&a.1));
            found.truncate(MAX_NAMED);
            found
        };
        Described {
            types: most_frequent(types)
                .into_iter()
                .map(|(name, share)| BlockType { name, share })
                .collect(),
            holders: most_frequent(holders)
                .into_iter()
                .map(|(what, share)| Holder { what, share })
                .collect(),
        }
    }

    /// The type that a pointer to a trait object has beside it.
    fn type_from_pointers(&self, at: u64, pointers: &[u64]) -> Option<String> {
        pointers.iter().find_map(|from| {
            let to = self.image.word(*from)?;
            let table = self.image.word(from.checked_add(8)?)?;
            (to == at).then(|| rust(self.image, table)).flatten().map(|name| format!("Rust {name}"))
        })
    }

    /// Names the memory at an address that holds a pointer.
    fn holder(&self, at: u64) -> String {
        if let Some(range) = self.index.and_then(|index| index.range(index.containing(at)?)) {
            let bytes = range.end - range.start;
            return match type_of(self.image, self.memory, range.start, false) {
                Some(name) => name,
                None => format!("a block of {bytes} bytes, at +{:#x}", at - range.start),
            };
        }
        if self.roots.stacks.iter().any(|stack| stack.contains(&at)) {
            return "a stack".to_owned();
        }
        let Some(mapping) = self.image.mapping_of_file(at) else {
            return "memory of no file".to_owned();
        };
        let file = mapping.name.rsplit('/').next().unwrap_or_default();
        match self.image.symbol(at) {
            Some(symbol) => format!("variable {} of {file}", symbol.name),
            None => format!("data of {file}"),
        }
    }
}

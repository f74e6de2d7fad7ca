//! Collects evidence on blocks that grow: their types, their holders, and whether the program can
//! reach them.

mod described;
mod namer;
mod search;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use lowtide_analysis::leaks::Surroundings;
use lowtide_probe::core_file::CoreFile;
use lowtide_probe::detect;
use lowtide_probe::inspect::{BlockReader, BlockWalk};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::source::ProcessSource;
use lowtide_probe::target::{Target, TargetError};

pub use described::Described;
pub use search::{BlockState, Reached, Search, search};

use crate::book::Survivor;
use crate::files::Image;
use crate::group::GroupKey;
use crate::pointers::index::BlockIndex;
use crate::pointers::paths::{Paths, UsedBlocks};
use crate::pointers::registers::RegisterWatch;
use crate::pointers::roots::Roots;
use crate::pointers::sources::pointers_to;
use crate::stacks::names::FrameNamer;
use crate::stacks::survivors::SurvivingStacks;
use namer::Namer;

/// Maximum number of blocks of a group whose pointers are searched for.
pub const MAX_SAMPLED: usize = 1000;

/// A sample of the blocks of a group.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// The group.
    pub key: GroupKey,
    /// The sampled blocks.
    pub sample: Vec<Survivor>,
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

/// What was walked: a process, or the core of one.
#[derive(Clone, Copy)]
pub(crate) enum WalkedSubject<'w> {
    Process(&'w Target),
    Core(&'w CoreFile),
}

impl<'w> WalkedSubject<'w> {
    fn source(self) -> ProcessSource<'w> {
        match self {
            Self::Process(target) => target.pid.into(),
            Self::Core(core) => core.into(),
        }
    }

    /// Checks that the process still is what was walked.
    fn check(self, memory: &ProcessMemory) -> Result<(), TargetError> {
        match self {
            Self::Process(target) if !memory.is_in_use() => Err(match target.is_alive() {
                true => TargetError::Replaced(target.pid),
                false => TargetError::Gone(target.pid),
            }),
            _ => Ok(()),
        }
    }
}

/// A process whose blocks are known by a walk.
pub(crate) struct WalkedProcess<'w> {
    pub(crate) subject: WalkedSubject<'w>,
    pub(crate) memory: &'w ProcessMemory,
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
    let WalkedProcess { subject, memory: live, walk, index, cached } = *process;
    let memory = &live.until(interrupt);
    let roots = &match subject {
        WalkedSubject::Process(target) => {
            Roots::find(target, live, walk, index.unknown(), &mut RegisterWatch::default())
        }
        WalkedSubject::Core(core) => Roots::of_core(core, live, walk, index.unknown()),
    };
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
    subject.check(live)?;
    let image = Image::new(subject.source(), live, &walk.maps);
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
    let Reached { walk, roots, index, failed, unreached, rounds, .. } = reached;
    let memory = &reader.memory().until(search.interrupt);
    let mut evidence = Evidence { rounds: *rounds, ..Evidence::default() };
    evidence.surroundings.hidden_pointers = roots.hidden.first().cloned();
    if unreached.is_none() {
        let reason = failed.map_or_else(|| "a search failed".to_owned(), |error| error.to_string());
        evidence.notes.push(format!("lost memory could not be identified: {reason}"));
    }
    let image = Image::new(reader.target().pid, reader.memory(), &walk.maps);
    let all: Vec<Survivor> = groups.iter().flat_map(|group| group.sample.iter().copied()).collect();
    let pointers = pointers_to(memory, ranges(&all), index.as_ref(), roots, walk);
    let is_held = groups.iter().any(|group| !group.key.is_lost);
    let roots_of = if is_held { reached.roots_of(&all) } else { HashMap::new() };
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
        let reachability = unreached.as_ref().filter(|_| !sample.is_empty());
        let reachability = reachability.map(|unreached| unreached.reachability(&sample));
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

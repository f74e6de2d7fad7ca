//! Finds the sampled blocks that survive, and the stacks by which they were allocated.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};
use lowtide_heap::memory::Memory;
use lowtide_model::leaks::{LeakFrame, LeakStack};
use lowtide_model::survivors::size_class;
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::mapped::{MappedFile, open_mapped};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::TargetError;

use super::followed::WORDS;
use super::functions::is_unchanged;
use super::names::FrameNamer;
use super::sampler::{StackSamples, now_ns, read};
use super::unwind::{Frames, Place};
use crate::group::{GroupKey, Members};

/// Maximum number of stacks of a group that are reported.
const MAX_STACKS: usize = 5;
/// Maximum number of stacks of a group that are named: several can have the same names.
const MAX_NAMED: usize = 100;
/// Minimum part of the samples with a call whose blocks are still in use, so that calls are counted
/// as proof.
const MIN_SURVIVAL: f64 = 0.5;
/// Minimum part of these blocks that must belong to the group, for the same purpose.
const MIN_OF_GROUP: f64 = 0.9;
/// Minimum number of samples with a call, for the same purpose.
const MIN_SAMPLES: u64 = 3;
/// Maximum number of calls that are counted.
const MAX_CALLS: u64 = 2_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A sampled block that is in use, and unchanged since its allocation.
#[derive(Debug, Clone, Copy)]
struct SampledSurvivor {
    at: u64,
    class: u16,
    is_lost: bool,
    age_s: f64,
    stack: u32,
}

impl SampledSurvivor {
    fn is_of(&self, key: &GroupKey) -> bool {
        match key.members {
            Members::One(at) => self.at == at,
            Members::Before => false,
            _ => self.is_lost == key.is_lost && key.classes.contains(&self.class),
        }
    }
}

/// The stacks of blocks that survive.
#[derive(Debug)]
pub(crate) struct SurvivingStacks<'s> {
    samples: &'s StackSamples,
    survivors: Vec<SampledSurvivor>,
}

/// The result of counting calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallCount {
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
}

impl<'s> SurvivingStacks<'s> {
    /// Walks the heap for the sampled blocks. `is_lost` returns whether no pointer leads to the
    /// block with an address and a print.
    ///
    /// # Errors
    /// Fails if the process has ended, or executes another program.
    pub(crate) fn find(
        samples: &'s StackSamples,
        reader: &mut BlockReader,
        is_lost: &dyn Fn(u64, u16) -> bool,
    ) -> Result<Self, TargetError> {
        let mut present = Presence::new(samples.addresses());
        if !samples.blocks.is_empty() {
            reader.walk(&mut present)?;
        }
        Ok(Self::new(samples, reader.memory(), &present.found, is_lost))
    }

    /// Selects the sampled blocks that are in use, and unchanged. `found` has the block at the
    /// address of each sample.
    pub(crate) fn new(
        samples: &'s StackSamples,
        memory: &ProcessMemory,
        found: &[Option<Block>],
        is_lost: &dyn Fn(u64, u16) -> bool,
    ) -> Self {
        let now = now_ns();
        let survivors = samples.blocks.iter().zip(found).filter_map(|((at, block), found)| {
            let found = (*found)?;
            let content = read(memory, *at)?;
            // Some allocators keep 8 bytes beside a block, and count them.
            let words = (found.bytes.saturating_sub(8) / 8).clamp(1, WORDS as u64) as usize;
            content.is_like(&block.content, words).then(|| SampledSurvivor {
                at: *at,
                class: size_class(found.bytes),
                is_lost: is_lost(*at, found.print),
                age_s: now.saturating_sub(block.time_ns) as f64 / 1e9,
                stack: block.stack,
            })
        });
        Self { samples, survivors: survivors.collect() }
    }

    /// Counts the stacks of the survivors of a group, the most frequent first. Blocks of at least
    /// this age, in seconds, count.
    fn counts(&self, key: &GroupKey, older_s: f64) -> Vec<(u32, u64)> {
        // A block that has just become longer is as old as its last reallocation.
        let is_old = |survivor: &SampledSurvivor| {
            key.members != Members::Survivors || survivor.age_s >= older_s
        };
        self.counts_of(|survivor| survivor.is_of(key) && is_old(survivor))
    }

    fn counts_of(&self, is_member: impl Fn(&SampledSurvivor) -> bool) -> Vec<(u32, u64)> {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for survivor in self.survivors.iter().filter(|survivor| is_member(survivor)) {
            *counts.entry(survivor.stack).or_default() += 1;
        }
        let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|(stack, count)| (std::cmp::Reverse(*count), *stack));
        counts
    }

    /// Returns the stacks by which the blocks of a group were allocated, the most frequent first.
    pub(crate) fn of(
        &self,
        key: &GroupKey,
        older_s: f64,
        namer: &FrameNamer<'_>,
    ) -> Vec<LeakStack> {
        self.named(self.counts(key, older_s), MAX_STACKS, namer)
    }

    /// Returns the stacks by which some blocks were allocated, at most `most`, the most frequent
    /// first. `is_member` selects the blocks by their addresses.
    pub(crate) fn of_blocks(
        &self,
        is_member: impl Fn(u64) -> bool,
        most: usize,
        namer: &FrameNamer<'_>,
    ) -> Vec<LeakStack> {
        self.named(self.counts_of(|survivor| is_member(survivor.at)), most, namer)
    }

    fn named(
        &self,
        counts: Vec<(u32, u64)>,
        most: usize,
        namer: &FrameNamer<'_>,
    ) -> Vec<LeakStack> {
        let frames = |stack: u32| self.samples.stacks.get(stack as usize).map(|(frames, _)| frames);
        named_stacks(counts, frames, most, namer)
    }

    /// Returns the innermost call in the most frequent stack of a group that is nearly specific to
    /// survivors of the group.
    fn distinctive_call(&self, key: &GroupKey, older_s: f64) -> Option<(u64, Place)> {
        let (first, _) = *self.counts(key, older_s).first()?;
        let (frames, _) = self.samples.stacks.get(first as usize)?;
        let with = |at: u64| {
            let has = |stack: usize| self.samples.stacks[stack].0.addresses.contains(&at);
            let stacks: HashSet<usize> =
                (0..self.samples.stacks.len()).filter(|n| has(*n)).collect();
            let all: u64 = stacks.iter().map(|stack| self.samples.stacks[*stack].1).sum();
            let left = self.survivors.iter().filter(|one| stacks.contains(&(one.stack as usize)));
            let (left, of_group) = left.fold((0, 0), |(left, of_group), one| {
                (left + 1, of_group + u64::from(one.is_of(key)))
            });
            (all, left, of_group)
        };
        let places = frames.addresses.iter().copied().zip(&frames.places);
        places.filter_map(|(at, place)| Some((at, (*place)?))).find(|(at, _)| {
            let (all, left, of_group) = with(*at);
            all >= MIN_SAMPLES
                && left as f64 >= all as f64 * MIN_SURVIVAL
                && of_group as f64 >= left as f64 * MIN_OF_GROUP
        })
    }

    /// Counts the calls that lead to the survivors of a group by a probe at their return. Returns
    /// `None` if there is no such call, or the probe is not permitted.
    pub(crate) fn count_calls(
        &self,
        key: &GroupKey,
        older_s: f64,
        pid: u32,
        memory: &impl Memory,
        maps: &[Mapping],
        time: Duration,
    ) -> Option<CallCount> {
        let (at, place) = self.distinctive_call(key, older_s)?;
        let back_at = at.checked_add(1)?;
        let mapping = code_at(maps, back_at)?;
        if (mapping.file, mapping.offset + (at.checked_sub(mapping.start)?)) != place {
            return None;
        }
        let file = open_mapped(pid, mapping).ok()?;
        let offset = back_at - mapping.start + mapping.offset;
        // A probe in the middle of an instruction would corrupt it.
        if !follows_call(&file, offset, |at| {
            let target = mapping.start.wrapping_sub(mapping.offset).wrapping_add(at);
            code_at(maps, target).is_some()
        }) || !is_unchanged(memory, maps, mapping, &file, offset - CALL_BYTES)
            || !is_unchanged(memory, maps, mapping, &file, offset)
        {
            return None;
        }
        let sampler = &self.samples.sampler;
        sampler.allow(0);
        let probe = sampler.at_instruction(file.file().ok()?, offset, pid).ok()?;
        let begin = Instant::now();
        let before = sampler.hits();
        while begin.elapsed() < time && sampler.hits() - before < MAX_CALLS {
            thread::sleep(POLL_INTERVAL);
        }
        let (calls, seconds) = (sampler.hits() - before, begin.elapsed().as_secs_f64());
        drop(probe);
        Some(CallCount { calls, seconds })
    }
}

/// Size of a direct call, in bytes.
const CALL_BYTES: u64 = 5;

/// Names at most `most` stacks, the most frequent first. `counts` are the numbers of stacks and of
/// their samples, in this order; `frames` returns the frames of a stack.
pub(super) fn named_stacks<'f>(
    counts: Vec<(u32, u64)>,
    frames: impl Fn(u32) -> Option<&'f Frames>,
    most: usize,
    namer: &FrameNamer<'_>,
) -> Vec<LeakStack> {
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut stacks: Vec<LeakStack> = Vec::new();
    for (stack, count) in counts.into_iter().take(MAX_NAMED) {
        let Some(frames) = frames(stack) else { continue };
        let named = named(frames, namer);
        // Two calls in the same line have the same names.
        match stacks.iter_mut().find(|known| known.frames == named) {
            Some(known) => known.samples += count,
            None => stacks.push(LeakStack {
                share: 0.0,
                samples: count,
                is_cut: !frames.is_whole,
                frames: named,
                proof: None,
            }),
        }
    }
    stacks.sort_by_key(|stack| std::cmp::Reverse(stack.samples));
    stacks.truncate(most);
    for stack in &mut stacks {
        stack.share = stack.samples as f64 / all as f64;
    }
    stacks
}

/// Names the frames of a stack. A Python function precedes the frame that executes it.
fn named(frames: &Frames, namer: &FrameNamer<'_>) -> Vec<LeakFrame> {
    let mut named = Vec::new();
    for (number, (at, place)) in frames.addresses.iter().zip(&frames.places).enumerate() {
        let python = frames.python.iter().find(|(executing, _)| *executing == number);
        named.extend(python.map(|(_, function)| function.frame()));
        named.push(namer.frame(*at, *place));
    }
    named
}

/// Returns whether the instruction before an offset in a file is a direct call (`e8`, and the
/// distance in four bytes) to code. `is_code` returns whether there is code at an offset, relative
/// to the place of this file. Indirect calls have many forms, which could be a part of another
/// instruction.
fn follows_call(file: &MappedFile, offset: u64, is_code: impl Fn(u64) -> bool) -> bool {
    let mut bytes = [0; CALL_BYTES as usize];
    let Some(call) = offset.checked_sub(CALL_BYTES) else { return false };
    if file.read_exact_at(&mut bytes, call).is_err() {
        return false;
    }
    let [0xe8, distance @ ..] = bytes else { return false };
    is_code(offset.wrapping_add_signed(i32::from_le_bytes(distance).into()))
}

/// Returns the mapping of code of a file at an address.
fn code_at(maps: &[Mapping], at: u64) -> Option<&Mapping> {
    maps.iter().find(|m| m.contains(at) && m.has_file() && m.permissions.contains('x'))
}

/// Looks for blocks by their addresses.
struct Presence {
    /// In order.
    wanted: Vec<u64>,
    places: HashSet<u64>,
    found: Vec<Option<Block>>,
}

impl Presence {
    fn new(wanted: Vec<u64>) -> Self {
        let places = wanted.iter().map(|at| at / PLACE).collect();
        Self { found: vec![None; wanted.len()], wanted, places }
    }

    fn set(&mut self, at: u64, block: Option<Block>) {
        if let Ok(place) = self.wanted.binary_search(&at) {
            self.found[place] = block;
        }
    }
}

impl BlockVisitor for Presence {
    fn wants(&self, place: u64) -> bool {
        self.places.contains(&place)
    }

    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
        let first = self.wanted.partition_point(|at| *at < range.start);
        let end = self.wanted.partition_point(|at| *at < range.end);
        self.found[first..end].fill(None);
        for at in first..end {
            let place = blocks.binary_search_by_key(&self.wanted[at], |block| block.at);
            self.found[at] = place.ok().map(|place| blocks[place]);
        }
    }

    fn large(&mut self, block: Block) {
        self.set(block.at, Some(block));
    }

    fn unknown(&mut self, _: Range<u64>) {}

    fn is_free(&mut self, at: u64) {
        self.set(at, None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn calls_are_counted_only_at_return_addresses_of_direct_calls_to_code() {
        let mut file = tempfile::tempfile().unwrap();
        // Two bytes, a call 16 bytes back from its end, and an indirect call.
        file.write_all(b"\x90\x90\xe8\xf0\xff\xff\xff\xff\xd0\x90").unwrap();
        let file = MappedFile::from(file);
        let follows = |offset, is_code: bool| follows_call(&file, offset, |_| is_code);
        assert!(follows(7, true) && !follows(7, false));
        assert!(![0, 2, 6, 8, 9, 10, 100].into_iter().any(|offset| follows(offset, true)));
        assert!(follows_call(&file, 7, |target| target == 7_u64.wrapping_sub(16)));
    }

    #[test]
    fn the_last_report_of_an_address_determines_whether_its_block_is_present() {
        let block = |at| Block { at, bytes: 32, print: 1 };
        let mut present = Presence::new(vec![0x1000, 0x1040, 0x9_0000, 0xff_0000]);
        assert!(present.wants(0) && present.wants(9) && !present.wants(1));
        present.blocks(0..0x8000, &[block(0x1000), block(0x1020)]);
        present.blocks(0..0x8000, &[block(0x1040)]);
        present.large(block(0x9_0000));
        present.large(block(0xff_0000));
        present.is_free(0xff_0000);
        let found: Vec<bool> = present.found.iter().map(Option::is_some).collect();
        assert_eq!(found, [false, true, true, false]);
    }
}

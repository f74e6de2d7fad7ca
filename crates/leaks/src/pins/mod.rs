//! The blocks that pin fragmented memory: blocks in use on pages that are otherwise free.
//!
//! - `ages`: which blocks were there when a watch began.
//! - `blocks`: the blocks in use by size and type.
//! - `census`: the blocks of a walk with their types, and the rooms that they are in.
//! - `code`: the stacks that allocated blocks of a group.
//! - `columns`: the blocks, rooms and resident pages as bytes of a file.
//! - `groups`: the groups of blocks, and their shares of the pinned memory.
//! - `holders`: what holds the blocks of a group.
//! - `type_id`: the number of a type, with the age of a block.
//! - `units`: the units of memory with the blocks that hold them.
//!
//! One walk collects the blocks in 6 bytes each, and their types by their first words. Two passes
//! over them follow, without reading the process: the first adds up the share of each group of
//! blocks in the pinned memory, the second the sets of groups that hold each unit. What becomes
//! free with a set of groups is then a sum ([`lowtide_analysis::pins`]).

mod ages;
mod blocks;
mod census;
mod code;
mod columns;
mod groups;
mod holders;
mod type_id;
mod units;

use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lowtide_analysis::pins::holders::{Holders, MAX_GROUPS, REST, UnitSums};
use lowtide_analysis::pins::{GroupSums, HeapPins};
use lowtide_heap::blocks::BlockVisitor;
use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::{joined, overlaps};
use lowtide_heap::rooms::Room;
use lowtide_model::inspection::{Observation, Tunables};
use lowtide_model::pins::{BlockCensus, BlockGroup, Pins};
use lowtide_probe::core_file::CoreFile;
use lowtide_probe::inspect::{BlockReader, BlockWalk, Inspector, inspect_core};
use lowtide_probe::locked::LockedMemory;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::source::ProcessSource;
use lowtide_probe::target::{Target, TargetError};
use serde::{Deserialize, Serialize};

use crate::evidence::{WalkedProcess, WalkedSubject};
use crate::files::Image;
use crate::stacks::sampler::StackSamples;

pub use ages::EarlierBlocks;
pub(crate) use columns::{HeldSummary, decode, encode};

use census::{Census, CensusBuilder, TypeReader};
use code::AllocatingCode;
use groups::Groups;
use holders::Samples;
use units::{BlockInRoom, RoomUnits};

/// The note of a process without a heap that was walked.
const NO_HEAP: &str =
    "it has no heap whose blocks lowtide can read, so it is not known what pins its memory";
/// Maximum distance between rooms whose resident pages are queried at once, in bytes.
const NEAR: u64 = 1 << 20;
/// Size of the range whose resident pages are queried at once, in bytes.
const SLICE: u64 = 1 << 30;

/// What a watch has seen of a process before its blocks are read.
#[derive(Debug)]
pub struct Watched {
    /// The blocks at its beginning.
    pub earlier: EarlierBlocks,
    /// Allocations that were sampled with their stacks.
    pub samples: Option<StackSamples>,
}

impl Watched {
    /// Returns the code that allocated the blocks of a process, and sentences about it.
    fn code(
        watched: Option<&Self>,
        held: &HeldMemory,
        target: &Target,
    ) -> Result<(AllocatingCode, Vec<String>), TargetError> {
        match watched.and_then(|watched| watched.samples.as_ref()) {
            Some(samples) => Ok((held.code(samples, target)?, samples.notes())),
            None => Ok(Default::default()),
        }
    }
}

/// What is reported of the blocks of a process.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Whether those that pin memory are.
    pub pins: bool,
    /// Whether the blocks in use are.
    pub blocks: bool,
    /// Maximum number of groups of each.
    pub top: usize,
}

/// The blocks of a process in groups, with the names of what holds them.
#[derive(Debug, Clone, Default)]
pub struct BlockReport {
    /// Those that pin memory.
    pub pins: Option<Pins>,
    /// Those in use, the groups with the most bytes.
    pub blocks: Option<BlockCensus>,
}

/// Inspects a process, and reads its blocks with their types in the same walk; `None` if its memory
/// may not be read.
///
/// # Errors
/// Fails if it has ended, keeps executing other programs, or cannot be read in time.
pub fn inspect(
    inspector: &mut Inspector,
    target: &Target,
) -> Result<(Observation, Option<HeldMemory>), TargetError> {
    inspector.inspect_blocks(target, |target, walk| {
        let maps = target.maps().unwrap_or_default();
        let Ok(memory) = ProcessMemory::open(target.pid) else {
            return Ok((walk(None)?.observation, None));
        };
        let collect = |builder: &mut dyn BlockVisitor| walk(Some(builder));
        let (held, observation) =
            HeldMemory::collect(target, &maps, memory, (true, None), collect)?;
        let is_readable = observation.unreadable.is_none();
        // The time of the inspection is a part of the observation.
        let cpu_s = held.cpu_s - observation.cpu_s;
        let held = is_readable.then_some(HeldMemory { cpu_s, ..held });
        Ok((observation, held))
    })
}

/// Finds the groups of blocks that pin memory, the `top` largest with the names of what holds them.
///
/// # Errors
/// Fails if its memory may not be read, if it has ended, or executes another program.
pub fn pins(target: &Target, top: usize, interrupt: &AtomicBool) -> Result<Pins, TargetError> {
    let wanted = Wanted { pins: true, blocks: false, top };
    let report = HeldMemory::read(target, true)?.report(target, None, wanted, interrupt)?;
    Ok(report.pins.unwrap_or_default())
}

/// Names what holds the blocks of the groups that pin most memory, and of the `top` groups with the
/// most bytes.
///
/// # Errors
/// Fails if the process has ended, or executes another program.
pub(crate) fn name_holders(
    held: &HeldMemory,
    subject: WalkedSubject<'_>,
    top: usize,
    interrupt: &AtomicBool,
) -> Result<Holdings, TargetError> {
    let code = AllocatingCode::default();
    let (heap, of_pins) = held.sums(&code);
    let (census, of_blocks) = held.count(top, &code);
    let pinning = of_pins.len();
    let mut names = held.holders(of_pins.and(of_blocks), subject, interrupt)?;
    let of_blocks = names.split_off(pinning.min(names.len()));
    let pins = heap.groups.iter().map(Holdings::name_of_sums).zip(names);
    let blocks = census.groups.iter().map(Holdings::name_of_group).zip(of_blocks);
    Ok(Holdings { pins: Holdings::known(pins), blocks: Holdings::known(blocks) })
}

/// The allocator, the size and the type of a group of blocks.
type GroupName = (Option<String>, u64, Option<String>);

/// What holds the blocks of the largest groups, as it was when the process was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// By groups that pin memory.
    pins: Vec<(GroupName, String)>,
    /// By groups of blocks.
    blocks: Vec<(GroupName, String)>,
}

impl Holdings {
    fn name_of_sums(group: &GroupSums) -> GroupName {
        (Some(group.allocator.to_owned()), group.size_bytes[0], group.block_type.clone())
    }

    fn name_of_group(group: &BlockGroup) -> GroupName {
        (group.allocator.clone(), group.size_bytes[0], group.block_type.clone())
    }

    /// Keeps the groups whose holders are known.
    fn known(named: impl Iterator<Item = (GroupName, Option<String>)>) -> Vec<(GroupName, String)> {
        named.filter_map(|(group, holder)| Some((group, holder?))).collect()
    }

    fn holder(known: &[(GroupName, String)], group: &GroupName) -> Option<String> {
        known.iter().find(|(name, _)| name == group).map(|(_, holder)| holder.clone())
    }

    /// Names the holders of the groups.
    pub(crate) fn add_to_blocks(&self, census: &mut BlockCensus) {
        for group in &mut census.groups {
            group.holder = Self::holder(&self.blocks, &Self::name_of_group(group));
        }
    }
}

/// The blocks of a process, and the memory that they hold.
#[derive(Debug)]
pub struct HeldMemory {
    census: Census,
    resident: Vec<Range<u64>>,
    locked: Vec<Range<u64>>,
    page_bytes: u64,
    threads: u64,
    tunables: Option<Tunables>,
    /// The allocator, if all blocks outside of rooms belong to it.
    only_allocator: Option<String>,
    /// Where the blocks were read; absent if they are from a file.
    source: Option<BlockSource>,
    cpu_s: f64,
}

/// The memory in which blocks were read, and the walk that has found them.
#[derive(Debug)]
struct BlockSource {
    memory: ProcessMemory,
    walk: BlockWalk,
}

impl HeldMemory {
    /// Reads the blocks of a process. `with_types` recognises their types. The process is not
    /// stopped.
    ///
    /// # Errors
    /// Fails if its memory may not be read, if it has ended, or executes another program.
    pub fn read(target: &Target, with_types: bool) -> Result<Self, TargetError> {
        Self::read_with(target, (with_types, None))
    }

    /// Reads the blocks of a process with their types, and which of them were there when a watch
    /// began.
    ///
    /// # Errors
    /// Fails if its memory may not be read, if it has ended, or executes another program.
    pub fn read_since(target: &Target, watched: Option<&Watched>) -> Result<Self, TargetError> {
        Self::read_with(target, (true, watched.map(|watched| &watched.earlier)))
    }

    fn read_with(
        target: &Target,
        options: (bool, Option<&EarlierBlocks>),
    ) -> Result<Self, TargetError> {
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let mut reader = BlockReader::open(target)?;
        let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let walk = |builder: &mut dyn BlockVisitor| reader.walk(builder);
        Ok(Self::collect(target, &maps, memory, options, walk)?.0)
    }

    /// Reads the blocks of a process by a walk: with their types, and which of them were there
    /// earlier, if that is wanted.
    fn collect(
        target: &Target,
        maps: &[Mapping],
        memory: ProcessMemory,
        (with_types, earlier): (bool, Option<&EarlierBlocks>),
        walk: impl FnOnce(&mut dyn BlockVisitor) -> Result<BlockWalk, TargetError>,
    ) -> Result<(Self, Observation), TargetError> {
        let cpu = thread_cpu_s();
        let (held, observation) =
            Self::by_walk(target.pid.into(), maps, memory, (with_types, earlier), walk)?;
        let walked = held.source.as_ref().map_or(maps, |source| &source.walk.maps);
        let locked = LockedMemory::find(target, &target.status()?, walked).ranges;
        let threads = target.stat()?.threads;
        Ok((Self { locked, threads, cpu_s: thread_cpu_s() - cpu, ..held }, observation))
    }

    /// Reads the blocks of a core with their types.
    pub(crate) fn of_core(core: &Arc<CoreFile>) -> (Self, Observation) {
        let memory = ProcessMemory::of_core(Arc::clone(core));
        let walk =
            |builder: &mut dyn BlockVisitor| Ok::<_, Infallible>(inspect_core(core, Some(builder)));
        let source = ProcessSource::Core(core);
        match Self::by_walk(source, core.maps(), memory, (true, None), walk) {
            Ok((held, observation)) => {
                (Self { threads: core.threads().len() as u64, ..held }, observation)
            }
            Err(never) => match never {},
        }
    }

    /// Reads the blocks by a walk. What only a live process shows is left out: the locked memory
    /// and the number of threads.
    fn by_walk<E>(
        source: ProcessSource<'_>,
        maps: &[Mapping],
        memory: ProcessMemory,
        (with_types, earlier): (bool, Option<&EarlierBlocks>),
        walk: impl FnOnce(&mut dyn BlockVisitor) -> Result<BlockWalk, E>,
    ) -> Result<(Self, Observation), E> {
        let cpu = thread_cpu_s();
        let image = Image::new(source, &memory, maps);
        let types = with_types.then(|| TypeReader::new(&image, maps));
        let mut builder = CensusBuilder::new(types).since(earlier);
        let mut walk = walk(&mut builder)?;
        let census = builder.build();
        let observation = std::mem::take(&mut walk.observation);
        let held = Self {
            resident: resident(&memory, &census.rooms),
            census,
            locked: Vec::new(),
            page_bytes: memory.page_bytes(),
            threads: 0,
            only_allocator: match observation.heaps.as_slice() {
                [heap] => Some(heap.allocator.name().to_owned()),
                _ => None,
            },
            tunables: observation.tunables_in_force.clone(),
            source: Some(BlockSource { memory, walk }),
            cpu_s: thread_cpu_s() - cpu,
        };
        Ok((held, observation))
    }

    /// Reports the blocks in groups, and names what holds those that are shown.
    ///
    /// # Errors
    /// Fails if the process has ended, or executes another program.
    pub fn report(
        self,
        target: &Target,
        watched: Option<&Watched>,
        wanted: Wanted,
        interrupt: &AtomicBool,
    ) -> Result<BlockReport, TargetError> {
        let (cpu, before) = (thread_cpu_s(), self.cpu_s);
        let (code, of_code) = Watched::code(watched, &self, target)?;
        let (heap, of_pins) = wanted.pins.then(|| self.sums(&code)).unzip();
        let (mut blocks, of_blocks) = wanted.blocks.then(|| self.count(wanted.top, &code)).unzip();
        let (of_pins, of_blocks) = (of_pins.unwrap_or_default(), of_blocks.unwrap_or_default());
        let pinning = of_pins.len();
        let subject = WalkedSubject::Process(target);
        let mut names = self.holders(of_pins.and(of_blocks), subject, interrupt)?;
        let of_blocks = names.split_off(pinning.min(names.len()));
        let pins = heap.map(|heap| {
            let mut pins = self.with_notes(heap.with_holders(names).report(wanted.top));
            pins.notes.extend(of_code.clone());
            pins
        });
        let cpu_s = before + thread_cpu_s() - cpu;
        if let Some(census) = &mut blocks {
            let groups = census.groups.iter_mut();
            groups.zip(of_blocks).for_each(|(group, name)| group.holder = name);
            census.notes.extend(of_code);
            census.cpu_s = cpu_s;
        }
        Ok(BlockReport { pins: pins.map(|pins| Pins { cpu_s, ..pins }), blocks })
    }

    /// Names what holds the blocks of some samples.
    fn holders(
        &self,
        samples: Samples,
        subject: WalkedSubject<'_>,
        interrupt: &AtomicBool,
    ) -> Result<Vec<Option<String>>, TargetError> {
        let Some(BlockSource { memory, walk }) = &self.source else { return Ok(Vec::new()) };
        let Census { blocks: index, cached, .. } = &self.census;
        samples.holders(&WalkedProcess { subject, memory, walk, index, cached }, interrupt)
    }

    /// Reports the groups of blocks that pin memory, the `top` largest.
    pub fn pins(&self, top: usize) -> Pins {
        let cpu = thread_cpu_s();
        let pins = self.with_notes(self.sums(&AllocatingCode::default()).0.report(top));
        Pins { cpu_s: self.cpu_s + thread_cpu_s() - cpu, ..pins }
    }

    /// Reports the same with the names of what holds the blocks.
    pub(crate) fn pins_held_by(&self, holdings: &Holdings, top: usize) -> Pins {
        let (mut heap, _) = self.sums(&AllocatingCode::default());
        if heap.pinned_bytes() > 0 {
            let known = heap.groups.iter().take(MAX_GROUPS).map(Holdings::name_of_sums);
            let names = known.map(|name| Holdings::holder(&holdings.pins, &name)).collect();
            heap = heap.with_holders(names);
        }
        self.with_notes(heap.report(top))
    }

    fn with_notes(&self, mut pins: Pins) -> Pins {
        let is_empty = self.census.rooms.is_empty();
        pins.notes.extend(is_empty.then(|| NO_HEAP.to_owned()));
        pins
    }

    /// Returns the memory that a release returns after all blocks were freed that are no longer
    /// there `later`: resident bytes of units that only those blocks held, and the bytes that
    /// nothing held before.
    pub fn freed_since(&self, later: &Self) -> UnitSums {
        const GONE: usize = 0;
        const THERE: usize = 1;
        let mut kept = later.census.blocks.iter().map(|block| block.at).peekable();
        let mut freed = UnitSums::default();
        let group_of = |(block, _): BlockInRoom| {
            while kept.next_if(|at| *at < block.at).is_some() {}
            if kept.peek() == Some(&block.at) { THERE } else { GONE }
        };
        self.units().each(group_of, |unit| {
            let is_gone = unit.holders.iter().all(|(group, _)| *group == GONE);
            if is_gone && !unit.is_fixed {
                freed.add(unit.sums());
            }
        });
        freed
    }

    fn units(&self) -> RoomUnits<'_> {
        RoomUnits {
            census: &self.census,
            resident: &self.resident,
            locked: &self.locked,
            page_bytes: self.page_bytes,
        }
    }

    /// Adds up what pins memory by group. Returns samples of the blocks of the groups that pin most
    /// of it, too.
    fn sums(&self, code: &AllocatingCode) -> (HeapPins, Samples) {
        let units = self.units();
        let groups = RefCell::new(Groups::new());
        units.each(
            |(_, class)| groups.borrow_mut().add(class),
            |unit| groups.borrow_mut().divide(unit),
        );
        let mut groups = groups.into_inner();
        let mut ranked = groups.ranked(&self.census, code);
        let mut samples = ranked.samples();
        let mut holders = Holders::default();
        units.each(
            |(block, class)| {
                let group = groups.of(class);
                if let Some(place) = ranked.places[group] {
                    samples.add(place, &block);
                }
                group
            },
            |unit| {
                let of_groups = unit.holders.iter().map(|(group, _)| ranked.bits[*group]);
                let fixed = if unit.is_fixed { REST } else { 0 };
                holders.add(of_groups.fold(fixed, |set, bit| set | bit), unit.sums());
            },
        );
        let heap = HeapPins {
            groups: ranked.groups,
            cached: ranked.cached,
            fixed_bytes: groups.fixed_bytes,
            holders,
            read_share: self.census.read_share,
            estimated: self.is_estimated(),
            unread_bytes: self.unread_bytes(),
            threads: self.threads,
            page_bytes: self.page_bytes,
            tunables: self.tunables.clone(),
        };
        (heap, samples)
    }

    fn unread_bytes(&self) -> u64 {
        let unread = self.census.unread.iter();
        let resident = unread.flat_map(|range| overlaps(range.clone(), &self.resident));
        resident.map(|part| part.end - part.start).sum()
    }
}

/// Returns the resident pages of rooms, in order and disjoint. Other memory near them is included.
fn resident(memory: &impl Memory, rooms: &[Room]) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for Range { start, end } in rooms.iter().map(|room| room.range.clone()) {
        match spans.last_mut() {
            Some(last) if start <= last.end + NEAR => last.end = last.end.max(end),
            _ => spans.push(start..end),
        }
    }
    let slices = spans.into_iter().flat_map(|span| {
        let starts = (span.start..span.end).step_by(SLICE as usize);
        starts.map(move |start| start..span.end.min(start + SLICE))
    });
    joined(slices.flat_map(|slice| memory.resident(slice)).collect())
}

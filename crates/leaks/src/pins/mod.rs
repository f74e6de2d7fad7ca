//! The blocks that pin fragmented memory: blocks in use on pages that are otherwise free.
//!
//! - `blocks`: the blocks in use by size and type.
//! - `census`: the blocks of a walk with their types, and the rooms that they are in.
//! - `groups`: the groups of blocks, and their shares of the pinned memory.
//! - `holders`: what holds the blocks of a group.
//! - `units`: the units of memory with the blocks that hold them.
//!
//! One walk collects the blocks in 6 bytes each, and their types by their first words. Two passes
//! over them follow, without reading the process: the first adds up the share of each group of
//! blocks in the pinned memory, the second the sets of groups that hold each unit. What becomes
//! free with a set of groups is then a sum ([`lowtide_analysis::pins`]).

mod blocks;
mod census;
mod groups;
mod holders;
mod units;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use lowtide_analysis::pins::HeapPins;
use lowtide_analysis::pins::holders::{Holders, REST, UnitSums};
use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::{joined, overlaps};
use lowtide_heap::rooms::Room;
use lowtide_model::inspection::Tunables;
use lowtide_model::pins::{BlockCensus, Pins};
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::locked::LockedMemory;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::target::{Target, TargetError};

use crate::files::Image;

use census::{Census, CensusBuilder, TypeReader};
use groups::Groups;
use units::{BlockInRoom, Units};

/// The note of a process without a heap that was walked.
const NO_HEAP: &str =
    "it has no heap whose blocks lowtide can read, so it is not known what pins its memory";
/// Maximum distance between rooms whose resident pages are queried at once, in bytes.
const NEAR: u64 = 1 << 20;
/// Size of the range whose resident pages are queried at once, in bytes.
const SLICE: u64 = 1 << 30;

/// Finds the groups of blocks that pin memory, the `top` largest with the names of what holds them.
///
/// # Errors
/// Fails if its memory may not be read, if it has ended, or executes another program.
pub fn pins(target: &Target, top: usize, interrupt: &AtomicBool) -> Result<Pins, TargetError> {
    let cpu = thread_cpu_s();
    let held = HeldMemory::read(target, true)?;
    let mut heap = held.sums();
    let mut notes = held.notes();
    if heap.pinned_bytes() > 0 {
        let samples = held.samples(&heap);
        let blocks = heap.groups.iter().map(|group| group.blocks).sum();
        // Its memory is not needed any more.
        drop(held);
        match samples.holders(target, blocks, interrupt)? {
            Ok(names) => heap = heap.with_holders(names),
            Err(reason) => notes.push(reason.to_owned()),
        }
    }
    let mut pins = Pins { notes, ..heap.report(top) };
    pins.cpu_s = thread_cpu_s() - cpu;
    Ok(pins)
}

/// Counts the blocks in use, in the `top` groups with the most bytes and the names of what holds
/// them.
///
/// # Errors
/// Fails if its memory may not be read, if it has ended, or executes another program.
pub fn blocks(
    target: &Target,
    top: usize,
    interrupt: &AtomicBool,
) -> Result<BlockCensus, TargetError> {
    let cpu = thread_cpu_s();
    let held = HeldMemory::read(target, true)?;
    let (mut census, samples) = held.count(top);
    drop(held);
    match samples.holders(target, census.blocks, interrupt)? {
        Ok(names) => {
            census.groups.iter_mut().zip(names).for_each(|(group, name)| group.holder = name);
        }
        Err(reason) => census.notes.push(reason.to_owned()),
    }
    census.cpu_s = thread_cpu_s() - cpu;
    Ok(census)
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
    cpu_s: f64,
}

impl HeldMemory {
    /// Reads the blocks of a process. `with_types` recognises their types. The process is not
    /// stopped.
    ///
    /// # Errors
    /// Fails if its memory may not be read, if it has ended, or executes another program.
    pub fn read(target: &Target, with_types: bool) -> Result<Self, TargetError> {
        let cpu = thread_cpu_s();
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let memory = LiveMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let image = Image::new(target.pid, &memory, &maps);
        let types = with_types.then(|| TypeReader::new(&image, &maps));
        let mut builder = CensusBuilder::new(types);
        let mut reader = BlockReader::open(target)?;
        let walk = reader.walk(&mut builder)?;
        let census = builder.build();
        let locked = LockedMemory::find(target, &target.status()?, &walk.maps).ranges;
        Ok(Self {
            resident: resident(reader.memory(), &census.rooms),
            census,
            locked,
            page_bytes: reader.memory().page_bytes(),
            threads: target.stat()?.threads,
            only_allocator: match walk.observation.heaps.as_slice() {
                [heap] => Some(heap.allocator.name().to_owned()),
                _ => None,
            },
            tunables: walk.observation.tunables_in_force,
            cpu_s: thread_cpu_s() - cpu,
        })
    }

    /// Reports the groups of blocks that pin memory, the `top` largest.
    pub fn pins(&self, top: usize) -> Pins {
        let cpu = thread_cpu_s();
        let pins = Pins { notes: self.notes(), ..self.sums().report(top) };
        Pins { cpu_s: self.cpu_s + thread_cpu_s() - cpu, ..pins }
    }

    fn notes(&self) -> Vec<String> {
        let is_empty = self.census.rooms.is_empty();
        is_empty.then(|| NO_HEAP.to_owned()).into_iter().collect()
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
                freed.units += 1;
                freed.resident_bytes += unit.resident_bytes;
                freed.free_bytes += unit.free_bytes;
            }
        });
        freed
    }

    fn units(&self) -> Units<'_> {
        Units {
            census: &self.census,
            resident: &self.resident,
            locked: &self.locked,
            page_bytes: self.page_bytes,
        }
    }

    fn sums(&self) -> HeapPins {
        let units = self.units();
        let groups = RefCell::new(Groups::new());
        units.each(
            |(_, class)| groups.borrow_mut().add(class),
            |unit| groups.borrow_mut().divide(unit),
        );
        let mut groups = groups.into_inner();
        let ranked = groups.ranked(&self.census.types);
        let mut holders = Holders::default();
        units.each(
            |(_, class)| groups.of(class),
            |unit| {
                let of_groups = unit.holders.iter().map(|(group, _)| ranked.bits[*group]);
                let fixed = if unit.is_fixed { REST } else { 0 };
                let sums = UnitSums {
                    units: 1,
                    resident_bytes: unit.resident_bytes,
                    free_bytes: unit.free_bytes,
                };
                holders.add(of_groups.fold(fixed, |set, bit| set | bit), sums);
            },
        );
        HeapPins {
            groups: ranked.groups,
            cached: ranked.cached,
            fixed_bytes: groups.fixed_bytes,
            holders,
            read_share: self.census.read_share,
            unread_bytes: self.unread_bytes(),
            threads: self.threads,
            tunables: self.tunables.clone(),
        }
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

//! The blocks, rooms and resident pages of a process as bytes of a file: no content of memory.
//!
//! Each list is a column of numbers of variable length: 7 bits per byte, the lowest first.
//! Addresses are differences to the end of the element before. So most numbers are small and
//! repeat, and the columns compress well.

use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};
use lowtide_heap::ranges;
use lowtide_heap::rooms::{Room, RoomKind};
use lowtide_model::inspection::Tunables;
use serde::{Deserialize, Serialize};

use super::HeldMemory;
use super::census::{Census, MAX_BLOCKS, MAX_CACHED, MAX_ROOMS};
use super::type_id::{MAX_TYPES, type_of};
use crate::pointers::index::IndexBuilder;

/// The end of all addresses: 57 bits.
const END: u64 = 1 << 57;
/// Maximum number of ranges of a list: resident runs are as many as pages at most.
const MAX_RANGES: usize = 16 << 20;
/// Maximum number of resident bytes that a file may claim. The pages are visited one by one.
const MAX_RESIDENT: u64 = 1 << 41;
/// Maximum number of blocks that contain the same address: an arena of CPython may be a block of
/// another allocator.
const MAX_DEPTH: usize = 8;
/// Maximum number of bytes of all blocks, after a sample was scaled. They may not be resident.
const MAX_BLOCK_BYTES: f64 = (1_u64 << 50) as f64;
/// Maximum number of threads (`PID_MAX_LIMIT` of include/linux/threads.h).
const MAX_THREADS: u64 = 4 << 20;
/// Minimum and maximum size of a page, in bytes.
const PAGES: std::ops::RangeInclusive<u64> = 4096..=65536;

/// The columns are not those of a heap: they end early, or contain an impossible value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnError;

/// What is saved of [`HeldMemory`] besides its columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HeldSummary {
    types: Vec<String>,
    read_share: f64,
    page_bytes: u64,
    threads: u64,
    tunables: Option<Tunables>,
    only_allocator: Option<String>,
}

/// Writes the blocks of a process.
pub(crate) fn encode(held: &HeldMemory) -> (HeldSummary, Vec<u8>) {
    let census = &held.census;
    let summary = HeldSummary {
        types: census.types.iter().take(MAX_TYPES).cloned().collect(),
        read_share: census.read_share,
        page_bytes: held.page_bytes,
        threads: held.threads,
        tunables: held.tunables.clone(),
        only_allocator: held.only_allocator.clone(),
    };
    let mut nesting = Nesting::default();
    let blocks: Vec<Block> = census.blocks.iter().filter(|block| nesting.permits(block)).collect();
    let mut out = ColumnWriter::default();
    out.ranges(blocks.iter().map(|block| block.at..block.at.saturating_add(block.bytes)));
    blocks.iter().for_each(|block| out.number(type_of(block.print).into()));
    out.ranges(census.rooms.iter().map(|room| room.range.clone()));
    for room in &census.rooms {
        out.number(room.kind.number());
    }
    let mut cached = census.cached.clone();
    cached.dedup();
    out.ranges(cached.iter().map(|at| *at..*at));
    for ranges in [&census.unread, &held.resident, &held.locked] {
        out.ranges(ranges.iter().cloned());
    }
    (summary, out.0)
}

/// Reads the blocks of a process.
///
/// # Errors
/// Fails if the bytes are not those of [`encode`], or exceed a limit.
pub(crate) fn decode(summary: HeldSummary, bytes: &[u8]) -> Result<HeldMemory, ColumnError> {
    let HeldSummary { types, read_share, page_bytes, threads, tunables, only_allocator } = summary;
    let is_page = page_bytes.is_power_of_two() && PAGES.contains(&page_bytes);
    let is_share = (0.0..=1.0).contains(&read_share);
    if !is_page || !is_share || types.len() > MAX_TYPES || threads > MAX_THREADS {
        return Err(ColumnError);
    }
    let mut columns = ColumnReader(bytes);
    let blocks = columns.blocks(types.len())?;
    let rooms = columns.rooms()?;
    let cached = columns.ranges(MAX_CACHED)?.into_iter().map(|range| range.start).collect();
    let (unread, resident, locked) = (columns.apart()?, columns.apart()?, columns.apart()?);
    let resident_bytes = ranges::bytes(&resident);
    let block_bytes: f64 = blocks.iter().map(|block| block.bytes as f64).sum();
    let share = if read_share > 0.0 { read_share } else { 1.0 };
    if block_bytes / share > MAX_BLOCK_BYTES || resident_bytes as f64 / share > MAX_BLOCK_BYTES {
        return Err(ColumnError);
    }
    let is_whole = |run: &Range<u64>| (run.start | run.end).is_multiple_of(page_bytes);
    if !columns.0.is_empty() || resident_bytes > MAX_RESIDENT || !resident.iter().all(is_whole) {
        return Err(ColumnError);
    }
    let mut builder = IndexBuilder::new(usize::MAX);
    add(&mut builder, &blocks);
    let blocks = builder.build().unwrap_or_default();
    let census = Census { blocks, rooms, cached, unread, types, read_share, ..Census::default() };
    let cpu_s = 0.0;
    Ok(HeldMemory {
        census,
        resident,
        locked,
        page_bytes,
        threads,
        tunables,
        only_allocator,
        source: None,
        cpu_s,
    })
}

/// Adds blocks, which are in order, place by place.
fn add(builder: &mut IndexBuilder, blocks: &[Block]) {
    let is_small =
        |block: &&Block| block.bytes < PLACE && (block.at | block.bytes).is_multiple_of(8);
    let small: Vec<Block> = blocks.iter().filter(is_small).copied().collect();
    for part in small.chunk_by(|one, next| one.at / PLACE == next.at / PLACE) {
        let place = part[0].at / PLACE;
        builder.blocks(place * PLACE..(place + 1) * PLACE, part);
    }
    blocks.iter().filter(|block| !is_small(block)).for_each(|block| builder.large(*block));
}

/// The ends of the blocks that contain the current address.
#[derive(Debug, Default)]
struct Nesting(Vec<u64>);

impl Nesting {
    /// Returns whether few blocks overlap this one, which comes after those before it.
    fn permits(&mut self, block: &Block) -> bool {
        self.0.retain(|end| *end > block.at);
        let is_permitted = self.0.len() < MAX_DEPTH;
        if is_permitted {
            self.0.push(block.at.saturating_add(block.bytes));
        }
        is_permitted
    }
}

/// Writes columns.
#[derive(Debug, Default)]
struct ColumnWriter(Vec<u8>);

impl ColumnWriter {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Writes the number of ranges, a column of distances, and one of sizes.
    fn ranges(&mut self, ranges: impl Iterator<Item = Range<u64>> + Clone) {
        self.number(ranges.clone().count() as u64);
        let mut end = 0;
        for range in ranges.clone() {
            let distance = range.start.wrapping_sub(end) as i64;
            self.number((distance << 1 ^ distance >> 63) as u64);
            end = range.end;
        }
        ranges.for_each(|range| self.number(range.end - range.start));
    }
}

/// Reads columns.
struct ColumnReader<'b>(&'b [u8]);

impl ColumnReader<'_> {
    fn number(&mut self) -> Result<u64, ColumnError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(ColumnError)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ColumnError)
    }

    /// Reads ranges in order of their starts.
    fn ranges(&mut self, most: usize) -> Result<Vec<Range<u64>>, ColumnError> {
        let count = usize::try_from(self.number()?).map_err(|_| ColumnError)?;
        // Each takes two bytes at least.
        if count > most || count > self.0.len() / 2 {
            return Err(ColumnError);
        }
        let mut rest = self.distances(count)?;
        let (mut end, mut before) = (0_u64, None);
        for range in &mut rest {
            let start = end.wrapping_add(range.start);
            let size = self.number()?;
            if start > END || size > END || before.is_some_and(|before| start <= before) {
                return Err(ColumnError);
            }
            end = start + size;
            before = Some(start);
            *range = start..end;
        }
        Ok(rest)
    }

    /// Reads the column of distances, each as the start of a range.
    fn distances(&mut self, count: usize) -> Result<Vec<Range<u64>>, ColumnError> {
        let mut found = Vec::with_capacity(count);
        for _ in 0..count {
            let number = self.number()?;
            found.push((number >> 1 ^ (number & 1).wrapping_neg())..0);
        }
        Ok(found)
    }

    /// Reads disjoint ranges.
    fn apart(&mut self) -> Result<Vec<Range<u64>>, ColumnError> {
        let found = self.ranges(MAX_RANGES)?;
        let is_apart = found.iter().zip(found.iter().skip(1)).all(|(a, b)| a.end <= b.start);
        let is_apart = is_apart && found.iter().all(|range| range.start < range.end);
        if is_apart { Ok(found) } else { Err(ColumnError) }
    }

    fn blocks(&mut self, types: usize) -> Result<Vec<Block>, ColumnError> {
        // A walk collects a place before it samples.
        let ranges = self.ranges(MAX_BLOCKS + PLACE as usize)?;
        let mut nesting = Nesting::default();
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            let print = u16::try_from(self.number()?).map_err(|_| ColumnError)?;
            let block = Block { at: range.start, bytes: range.end - range.start, print };
            if block.bytes == 0 || usize::from(print) > types || !nesting.permits(&block) {
                return Err(ColumnError);
            }
            found.push(block);
        }
        Ok(found)
    }

    fn rooms(&mut self) -> Result<Vec<Room>, ColumnError> {
        let ranges = self.apart()?;
        if ranges.len() > MAX_ROOMS + 1 {
            return Err(ColumnError);
        }
        let room = |range| {
            let kind = RoomKind::of_number(self.number()?).ok_or(ColumnError)?;
            Ok(Room { range, kind })
        };
        ranges.into_iter().map(room).collect()
    }
}

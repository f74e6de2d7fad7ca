//! The units of memory with the blocks that hold them, by the rule of `lowtide_heap::rooms`.

use std::collections::VecDeque;
use std::ops::Range;

use lowtide_analysis::pins::holders::UnitSums;
use lowtide_heap::blocks::Block;
use lowtide_heap::ranges::overlaps;
use lowtide_heap::rooms::{Room, RoomKind};

use super::census::Census;
use super::type_id::TypeId;
use crate::pointers::index::Ordered;

/// What decides the group of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BlockClass {
    pub(super) kind: RoomKind,
    /// Its size, including the overhead of the allocator.
    pub(super) bytes: u64,
    pub(super) type_id: TypeId,
    pub(super) is_cached: bool,
}

/// A unit of memory: it is returned as a whole.
#[derive(Debug)]
pub(super) struct Unit<'u> {
    pub(super) resident_bytes: u64,
    /// The resident bytes in no block.
    pub(super) free_bytes: u64,
    /// Whether something other than blocks holds it: memory of the allocator, memory that could not
    /// be read, or a lock.
    pub(super) is_fixed: bool,
    /// The groups of the blocks that hold it, each with its bytes in the unit.
    pub(super) holders: &'u [(usize, u64)],
}

impl Unit<'_> {
    /// Returns the sums of this unit.
    pub(super) fn sums(&self) -> UnitSums {
        let Self { resident_bytes, free_bytes, .. } = *self;
        UnitSums { units: 1, resident_bytes, free_bytes }
    }
}

/// A block with what decides its group.
pub(super) type BlockInRoom = (Block, BlockClass);

/// The memory of rooms.
pub(super) struct RoomUnits<'c> {
    pub(super) census: &'c Census,
    /// The resident pages of the rooms, in order and disjoint.
    pub(super) resident: &'c [Range<u64>],
    /// The locked memory, in order and disjoint.
    pub(super) locked: &'c [Range<u64>],
    pub(super) page_bytes: u64,
}

/// Reads the blocks of rooms in order.
struct BlockCursor<'c> {
    blocks: Ordered<'c>,
    /// The addresses of the blocks in caches that are left.
    cached: &'c [u64],
}

impl BlockCursor<'_> {
    /// Goes on to the blocks of a room. Blocks outside of rooms have pages of their own. The first
    /// block of a part of a stretch may begin before it.
    fn go_to(&mut self, Room { range, kind }: &Room) {
        let is_before = |block: Block| match kind {
            RoomKind::GlibcStretch => {
                block.at.saturating_add(block.bytes) <= range.start + kind.user_at()
            }
            _ => block.at < range.start + kind.user_at(),
        };
        while self.blocks.peek().is_some_and(is_before) {
            self.blocks.next();
        }
    }

    /// Returns the next block that begins before an address, with the addresses that it takes.
    #[inline]
    fn next_before(&mut self, end: u64, kind: RoomKind) -> Option<(BlockInRoom, Range<u64>)> {
        let block = self.blocks.peek()?;
        let start = block.at.saturating_sub(kind.user_at());
        if start >= end {
            return None;
        }
        self.blocks.next();
        while let [first, rest @ ..] = self.cached
            && *first < block.at
        {
            self.cached = rest;
        }
        let is_cached = self.cached.first() == Some(&block.at);
        let class = BlockClass { kind, bytes: block.bytes, type_id: block.print, is_cached };
        Some(((block, class), start..start.saturating_add(block.bytes)))
    }
}

impl RoomUnits<'_> {
    /// Calls `group_of` for each block of each room, in order of address, and `visit` for each unit
    /// that has a resident page, with the groups that `group_of` has returned.
    pub(super) fn each(
        &self,
        mut group_of: impl FnMut(BlockInRoom) -> usize,
        mut visit: impl FnMut(&Unit<'_>),
    ) {
        let mut blocks =
            BlockCursor { blocks: self.census.blocks.iter(), cached: &self.census.cached };
        let mut first_run = 0;
        for room in &self.census.rooms {
            let Room { range, kind } = room;
            blocks.go_to(room);
            let rest = &self.resident[first_run..];
            first_run += rest.partition_point(|run| run.end <= range.start);
            let runs = &self.resident[first_run..];
            let runs = &runs[..runs.partition_point(|run| run.start < range.end)];
            let mut in_room = Vec::new();
            let mut next = |end: u64| {
                let (found, range) = blocks.next_before(end, *kind)?;
                Some((group_of(found), range))
            };
            if kind.is_one_unit() {
                while let Some(block) = next(range.end) {
                    in_room.push(block);
                }
                self.room(room, runs, &in_room, &mut visit);
            } else {
                self.pages(room, runs, &mut next, &mut visit);
            }
        }
    }

    /// Visits a room that is one unit.
    fn room(
        &self,
        room: &Room,
        runs: &[Range<u64>],
        blocks: &[(usize, Range<u64>)],
        visit: &mut impl FnMut(&Unit<'_>),
    ) {
        let resident_bytes: u64 = overlaps(room.range.clone(), runs).map(|r| r.end - r.start).sum();
        if resident_bytes > 0 {
            let mut holders = Vec::new();
            let used = hold(blocks.iter(), &room.range, &mut holders);
            let is_fixed = self.is_fixed(&room.range);
            let free_bytes = resident_bytes.saturating_sub(used);
            visit(&Unit { resident_bytes, free_bytes, is_fixed, holders: &holders });
        }
    }

    /// Visits the pages of a room.
    fn pages(
        &self,
        room: &Room,
        runs: &[Range<u64>],
        next: &mut impl FnMut(u64) -> Option<(usize, Range<u64>)>,
        visit: &mut impl FnMut(&Unit<'_>),
    ) {
        let mut near: VecDeque<(usize, Range<u64>)> = VecDeque::new();
        let mut holders = Vec::new();
        let all = room.range.start - room.range.start % self.page_bytes..room.range.end;
        for run in overlaps(all, runs) {
            for page in (run.start..run.end).step_by(self.page_bytes as usize) {
                let window =
                    page.saturating_sub(room.kind.bytes_before_page())..page + self.page_bytes;
                while near.front().is_some_and(|(_, block)| block.end <= window.start) {
                    near.pop_front();
                }
                while let Some(block) = next(window.end) {
                    if block.1.end > window.start {
                        near.push_back(block);
                    }
                }
                let part = page.max(room.range.start)..window.end.min(room.range.end);
                let resident_bytes = part.end - part.start;
                holders.clear();
                let used = hold(near.iter(), &part, &mut holders);
                let is_in_room = room.range.start <= window.start && window.end <= room.range.end;
                visit(&Unit {
                    resident_bytes,
                    free_bytes: resident_bytes.saturating_sub(used),
                    is_fixed: !is_in_room || self.is_fixed(&window),
                    holders: &holders,
                });
            }
        }
        // The blocks after the last resident page.
        while next(room.range.end).is_some() {}
    }

    fn is_fixed(&self, range: &Range<u64>) -> bool {
        let is_in = |ranges: &[Range<u64>]| overlaps(range.clone(), ranges).next().is_some();
        is_in(self.locked) || is_in(&self.census.unread)
    }
}

/// Adds up the bytes of blocks in a range by group. A block that is only near the range holds it
/// without a byte. Returns the sum.
fn hold<'b>(
    blocks: impl Iterator<Item = &'b (usize, Range<u64>)>,
    range: &Range<u64>,
    holders: &mut Vec<(usize, u64)>,
) -> u64 {
    let mut used = 0;
    for (group, block) in blocks {
        let bytes = block.end.min(range.end).saturating_sub(block.start.max(range.start));
        used += bytes;
        match holders.iter_mut().find(|(known, _)| known == group) {
            Some((_, all)) => *all += bytes,
            None => holders.push((*group, bytes)),
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::BlockVisitor;

    use super::*;
    use crate::pins::census::CensusBuilder;

    const PAGE: u64 = 4096;
    const START: u64 = 0x10000;

    /// Resident and free bytes of a unit, whether it is fixed, and the sizes of the blocks that
    /// hold it with their bytes.
    type UnitValues = (u64, u64, bool, Vec<(usize, u64)>);

    /// Returns the units of a room of four resident pages with some blocks, given by the offsets of
    /// their addresses and their sizes. One block may be in a cache.
    fn units(kind: RoomKind, blocks: &[(u64, u64)], cached: u64) -> Vec<UnitValues> {
        let mut builder = CensusBuilder::new(None);
        let block = |(at, bytes): &(u64, u64)| Block { at: START + at, bytes: *bytes, print: 0 };
        let blocks: Vec<Block> = blocks.iter().map(block).collect();
        builder.blocks(START..START + 4 * PAGE, &blocks);
        builder.room(Room { range: START..START + 4 * PAGE, kind });
        builder.is_free(START + cached);
        let census = builder.build();
        let resident = std::iter::once(START..START + 4 * PAGE).collect::<Vec<_>>();
        let units =
            RoomUnits { census: &census, resident: &resident, locked: &[], page_bytes: PAGE };
        let mut found = Vec::new();
        let group =
            |(_, class): BlockInRoom| class.bytes as usize * if class.is_cached { 1000 } else { 1 };
        units.each(group, |unit| {
            let Unit { resident_bytes, free_bytes, is_fixed, holders } = unit;
            found.push((*resident_bytes, *free_bytes, *is_fixed, holders.to_vec()));
        });
        found
    }

    #[test]
    fn a_chunk_of_glibc_also_holds_the_page_into_which_the_head_of_a_free_chunk_would_extend() {
        // The second chunk ends 32 bytes before the third page, the third 48 bytes before the
        // fourth, so that a free chunk fits in between.
        let chunks = [(16, 64), (2 * PAGE - 32 - 96 + 16, 96), (3 * PAGE - 48 - 80 + 16, 80)];
        let found = units(RoomKind::GlibcStretch, &chunks, 1);
        assert_eq!(
            found[0],
            (PAGE, PAGE - 64, true, vec![(64, 64)]),
            "no chunk head fits before it"
        );
        assert_eq!(found[1], (PAGE, PAGE - 96, false, vec![(96, 96)]));
        assert_eq!(found[2], (PAGE, PAGE - 80, false, vec![(96, 0), (80, 80)]));
        assert_eq!(found[3], (PAGE, PAGE, false, vec![]));
    }

    #[test]
    fn a_region_of_jemalloc_holds_the_pages_that_it_overlaps() {
        let found = units(RoomKind::JemallocSlab, &[(0, 320), (4000, 320), (9600, 320)], 9600);
        assert_eq!(found[0], (PAGE, PAGE - 320 - 96, false, vec![(320, 416)]));
        assert_eq!(found[1], (PAGE, PAGE - 224, false, vec![(320, 224)]));
        assert_eq!(found[2].3, [(320_000, 320)], "it is in a cache");
        assert_eq!(found[3].3, []);
    }

    #[test]
    fn a_page_of_mimalloc_is_held_as_a_whole() {
        let found = units(RoomKind::MimallocPage, &[(64, 64), (9600, 64)], 1);
        assert_eq!(found, [(4 * PAGE, 4 * PAGE - 128, false, vec![(64, 128)])]);
    }
}

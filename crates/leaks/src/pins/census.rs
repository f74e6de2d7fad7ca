//! Collects the blocks of a walk with their types, and the rooms that they are in.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE, print};
use lowtide_heap::ranges::joined;
use lowtide_heap::rooms::{Room, RoomKind};
use lowtide_model::pins::BlockAge;
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::{Target, TargetError};

use super::ages::EarlierBlocks;
use super::type_id::{MAX_TYPES, TypeId, age_of, type_of};
use crate::book::ByPlace;
use crate::files::Image;
use crate::pointers::index::{BlockIndex, IndexBuilder};
use crate::types::{PYTHON_TYPES, TypeWord, may_be_count};

/// Maximum number of blocks, which take 6 bytes each, and 2 more while their holders are searched
/// for: 44 MiB. A larger heap is sampled.
pub(super) const MAX_BLOCKS: usize = 5_750_000;
/// Maximum number of blocks of each of the two walks of a watch, which take 4 and 6 bytes each.
const MAX_WATCHED: usize = 4_000_000;
/// Maximum number of rooms before a heap is sampled, which take 8 MiB.
pub(super) const MAX_ROOMS: usize = 200_000;
/// Number of places of the parts in which a heap is sampled. Most rooms are smaller.
const PLACES_OF_PART: u64 = (4 << 20) / PLACE;
/// Maximum sampling, as a power of two.
const MAX_SAMPLING: u32 = 16;
/// Maximum number of words that are tried as a type.
const MAX_WORDS: usize = 64 << 10;
/// Maximum number of words that are tried as a type of Python if no file of Python is mapped, and
/// none of them is one.
const MAX_WITHOUT_PYTHON: usize = 4096;
/// Maximum number of blocks in caches that are distinguished.
pub(super) const MAX_CACHED: usize = 1 << 20;

/// Recognises the types of blocks by their first words.
pub(super) struct TypeReader<'i> {
    image: &'i Image<'i>,
    /// The addresses of files, in order and disjoint.
    files: Vec<Range<u64>>,
    /// The types by their words; those of Python by the word with its lowest bit set.
    known: ByPlace<TypeId>,
    names: Vec<String>,
    /// Number of words that are still tried as a type of Python.
    python_tries: usize,
}

impl<'i> TypeReader<'i> {
    pub(super) fn new(image: &'i Image<'i>, maps: &[Mapping]) -> Self {
        let files = || maps.iter().filter(|mapping| mapping.has_file());
        let is_python = files().any(|mapping| mapping.name.contains("python"));
        let files = joined(files().map(|m| m.start..m.end).collect());
        let python_tries = if is_python { usize::MAX } else { MAX_WITHOUT_PYTHON };
        Self { image, files, known: ByPlace::default(), names: Vec::new(), python_tries }
    }

    fn type_of(&mut self, first: &[u8]) -> TypeId {
        let word = |place: usize| {
            let bytes = first.get(place * 8..place * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if let Some(table) = word(0).filter(|table| self.is_of_file(*table)) {
            // The head of a list of Python's garbage collector is also in a file.
            let id = self.id(table, TypeWord::Table(table));
            if id > 0 {
                return id;
            }
        }
        if self.python_tries == 0 {
            return 0;
        }
        for place in PYTHON_TYPES {
            let [Some(count), Some(at)] = [word(place - 1), word(place)] else { break };
            if may_be_count(count) && at > 0xffff && at.is_multiple_of(8) {
                let known = self.known.len();
                let id = self.id(at | 1, TypeWord::Python(at));
                if id > 0 {
                    self.python_tries = usize::MAX;
                    return id;
                }
                self.python_tries = self.python_tries.saturating_sub(self.known.len() - known);
            }
        }
        0
    }

    fn is_of_file(&self, at: u64) -> bool {
        let [first, .., last] = self.files.as_slice() else { return false };
        if !at.is_multiple_of(8) || at < first.start || at >= last.end {
            return false;
        }
        let place = self.files.partition_point(|file| file.end <= at);
        self.files.get(place).is_some_and(|file| file.start <= at)
    }

    fn id(&mut self, key: u64, word: TypeWord) -> TypeId {
        if let Some(id) = self.known.get(&key) {
            return *id;
        }
        if self.known.len() >= MAX_WORDS {
            return 0;
        }
        let id = word.name(self.image).map_or(0, |name| self.id_of_name(name));
        self.known.insert(key, id);
        id
    }

    fn id_of_name(&mut self, name: String) -> TypeId {
        let place = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        if place < MAX_TYPES { place as TypeId + 1 } else { 0 }
    }
}

/// Collects blocks and rooms.
pub(super) struct CensusBuilder<'i> {
    types: Option<TypeReader<'i>>,
    /// The blocks when the watch began, if there is one.
    earlier: Option<&'i EarlierBlocks>,
    /// Whether the prints are hashes of content, and not types.
    is_of_content: bool,
    blocks: IndexBuilder,
    /// The end and the kind of each room, by its start.
    rooms: BTreeMap<u64, (u64, RoomKind)>,
    cached: Vec<u64>,
    max_blocks: usize,
    /// One of `2^sampling` parts of the heap is collected.
    pub(super) sampling: u32,
    /// Bytes of the rooms that are not in the sample.
    left_out_bytes: u64,
}

/// The blocks and rooms of a heap.
#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) blocks: BlockIndex,
    /// Rooms whose blocks are all known, in order and disjoint.
    pub(super) rooms: Vec<Room>,
    /// Addresses of the blocks in caches, in order.
    pub(super) cached: Vec<u64>,
    /// Memory that could not be read, in order.
    pub(super) unread: Vec<Range<u64>>,
    /// The names of types by their numbers, from 1 on.
    pub(super) types: Vec<String>,
    /// Part of the rooms that is known.
    pub(super) read_share: f64,
    /// Whether the types have the ages of blocks: there was a watch.
    pub(super) has_ages: bool,
    /// Whether a part of the heap could not be read when the watch began.
    pub(super) ages_are_estimates: bool,
}

impl<'i> CensusBuilder<'i> {
    pub(super) fn new(types: Option<TypeReader<'i>>) -> Self {
        Self::with_max_blocks(types, MAX_BLOCKS)
    }

    /// Collects the hashes of the content of blocks, and not their types.
    pub(super) fn of_content() -> Self {
        Self { is_of_content: true, ..Self::with_max_blocks(None, MAX_WATCHED) }
    }

    /// Determines the ages of blocks, and collects only the parts of the heap of which earlier
    /// blocks are known.
    pub(super) fn since(self, earlier: Option<&'i EarlierBlocks>) -> Self {
        let sampling = earlier.map_or(0, |earlier| earlier.sampling);
        let max_blocks = earlier.map_or(self.max_blocks, |_| MAX_WATCHED);
        Self { earlier, sampling, max_blocks, ..self }
    }

    fn with_max_blocks(types: Option<TypeReader<'i>>, max_blocks: usize) -> Self {
        Self {
            types,
            earlier: None,
            is_of_content: false,
            blocks: IndexBuilder::new(usize::MAX),
            rooms: BTreeMap::new(),
            cached: Vec::new(),
            max_blocks,
            sampling: 0,
            left_out_bytes: 0,
        }
    }

    fn sample_if_full(&mut self) {
        while self.sampling < MAX_SAMPLING
            && (self.blocks.len() > self.max_blocks || self.rooms.len() > MAX_ROOMS)
        {
            self.sampling += 1;
            let sampling = self.sampling;
            self.blocks.keep_places(|place| is_sampled(place / PLACES_OF_PART, sampling));
            for (start, (end, kind)) in std::mem::take(&mut self.rooms) {
                self.add_room(Room { range: start..end, kind });
            }
        }
    }

    /// Adds the parts of a room whose blocks are all known.
    fn add_room(&mut self, Room { range, kind }: Room) {
        self.left_out_bytes += range.end - range.start;
        for part in known_parts(range, kind, self.sampling) {
            self.left_out_bytes -= part.end - part.start;
            self.rooms.insert(part.start, (part.end, kind));
        }
    }

    pub(super) fn build(self) -> Census {
        let rooms = self.rooms.into_iter();
        let rooms = rooms.map(|(start, (end, kind))| Room { range: start..end, kind });
        let rooms: Vec<Room> = rooms.collect();
        let known: u64 = rooms.iter().map(|room| room.range.end - room.range.start).sum();
        let all = known + self.left_out_bytes;
        let mut cached = self.cached;
        cached.sort_unstable();
        let blocks = self.blocks.build().unwrap_or_default();
        let mut unread = blocks.unknown().to_vec();
        unread.sort_unstable_by_key(|range| range.start);
        Census {
            blocks,
            rooms,
            cached,
            unread: joined(unread),
            types: self.types.map(|types| types.names).unwrap_or_default(),
            read_share: if all == 0 { 1.0 } else { known as f64 / all as f64 },
            has_ages: self.earlier.is_some(),
            ages_are_estimates: self.earlier.is_some_and(|earlier| earlier.has_unread),
        }
    }
}

impl BlockVisitor for CensusBuilder<'_> {
    fn wants(&self, place: u64) -> bool {
        is_sampled(place / PLACES_OF_PART, self.sampling)
    }

    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
        self.blocks.blocks(range, blocks);
        self.sample_if_full();
    }

    fn large(&mut self, block: Block) {
        self.blocks.large(block);
    }

    fn unknown(&mut self, range: Range<u64>) {
        self.blocks.unknown(range);
    }

    fn is_free(&mut self, at: u64) {
        if self.cached.len() < MAX_CACHED {
            self.cached.push(at);
        }
    }

    fn room(&mut self, room: Room) {
        let Range { start, end } = room.range;
        let before = self.rooms.range(..end).rev();
        let replaced = before.take_while(|(_, (end, _))| *end > start);
        let replaced: Vec<u64> = replaced.map(|(start, _)| *start).collect();
        for start in replaced {
            self.rooms.remove(&start);
        }
        self.add_room(room);
        self.sample_if_full();
    }

    fn print(&mut self, at: u64, first: &[u8]) -> u16 {
        if self.is_of_content {
            return print(first);
        }
        let age = self.earlier.map_or(0, |earlier| earlier.age(at, first));
        age | self.types.as_mut().map_or(0, |types| types.type_of(first))
    }
}

impl Census {
    /// Returns the name of a type.
    pub(super) fn type_name(&self, type_id: TypeId) -> Option<&String> {
        let place = usize::from(type_of(type_id)).checked_sub(1)?;
        self.types.get(place)
    }

    /// Returns the age of a block with a type; `None` without a watch.
    pub(super) fn age(&self, type_id: TypeId) -> Option<BlockAge> {
        self.has_ages.then(|| age_of(type_id))
    }

    /// Returns the blocks in use.
    fn blocks_in_use(&self) -> impl Iterator<Item = Block> {
        let mut cached = self.cached.iter().peekable();
        self.blocks.iter().filter(move |block| {
            while cached.next_if(|free| **free < block.at).is_some() {}
            cached.peek() != Some(&&block.at)
        })
    }

    fn earlier_blocks(&self, sampling: u32) -> EarlierBlocks {
        EarlierBlocks::new(self.blocks_in_use(), sampling, !self.unread.is_empty())
    }
}

impl EarlierBlocks {
    /// Reads the blocks of a process. The process is not stopped.
    ///
    /// # Errors
    /// Fails if its memory may not be read, if it has ended, or executes another program.
    pub fn read(target: &Target) -> Result<Self, TargetError> {
        let mut builder = CensusBuilder::of_content();
        BlockReader::open(target)?.walk(&mut builder)?;
        let sampling = builder.sampling;
        Ok(builder.build().earlier_blocks(sampling))
    }
}

/// Returns the parts of a room whose blocks are all known, in order and disjoint. A stretch of
/// glibc may be the whole heap, and is divided; other rooms are known or not.
fn known_parts(room: Range<u64>, kind: RoomKind, sampling: u32) -> Vec<Range<u64>> {
    if sampling == 0 || kind != RoomKind::GlibcStretch {
        return if is_known(&room, sampling) { vec![room] } else { Vec::new() };
    }
    let bytes = PLACES_OF_PART * PLACE;
    let parts =
        (room.start / bytes..=(room.end - 1) / bytes).filter(|part| is_sampled(*part, sampling));
    let known = parts.map(|part| {
        let start = part * bytes;
        // A block before it may extend into it.
        let is_alone = part.checked_sub(1).is_none_or(|before| !is_sampled(before, sampling));
        let start = if is_alone && start > room.start { start + PLACE } else { start };
        start.max(room.start)..((part + 1) * bytes).min(room.end)
    });
    joined(known.filter(|part| part.start < part.end).collect())
}

/// Returns whether all blocks are known that begin in a range or extend into it.
fn is_known(range: &Range<u64>, sampling: u32) -> bool {
    let part = PLACES_OF_PART * PLACE;
    let mut parts = range.start.saturating_sub(PLACE) / part..=(range.end - 1) / part;
    sampling == 0 || parts.all(|part| is_sampled(part, sampling))
}

/// Returns whether a part of a heap is in the sample.
fn is_sampled(part: u64, sampling: u32) -> bool {
    let hash = (part ^ part >> 15).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash.leading_zeros() >= sampling
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::units::{BlockInRoom, RoomUnits};
    use super::*;

    const START: u64 = 0x10_0000_0000;
    const PLACES: u64 = 1024;
    const SMALL: u64 = 3;

    /// Reads a heap of one stretch, whose places each have two blocks and one that extends into the
    /// next place. One block is large.
    fn census(mut builder: CensusBuilder<'_>) -> Census {
        let large = START + 100 * PLACE + 0x6000..START + 203 * PLACE;
        let block = |at: u64, bytes: u64| Block { at, bytes, print: 0 };
        for number in 0..PLACES {
            let place = START + number * PLACE;
            let blocks = [(0x1390, 48), (0x4e20, 320), (PLACE - 64, 1024)];
            let blocks = blocks.map(|(at, bytes)| block(place + at, bytes));
            let blocks: Vec<Block> =
                blocks.into_iter().filter(|block| !large.contains(&block.at)).collect();
            if builder.wants(place / PLACE) {
                builder.blocks(place..place + PLACE, &blocks);
            }
            if large.start / PLACE == place / PLACE {
                builder.large(block(large.start, large.end - large.start));
            }
        }
        let range = START..START + (PLACES + 1) * PLACE;
        builder.room(Room { range, kind: RoomKind::GlibcStretch });
        builder.build()
    }

    /// Resident and free bytes of a unit, and the blocks that hold it.
    type UnitValues = (u64, u64, Vec<(usize, u64)>);

    fn units(census: &Census) -> Vec<UnitValues> {
        let resident: Vec<Range<u64>> =
            std::iter::once(START..START + (PLACES + 1) * PLACE).collect();
        let units = RoomUnits { census, resident: &resident, locked: &[], page_bytes: 4096 };
        let mut found = Vec::new();
        let number = |(block, _): BlockInRoom| (block.at - START) as usize;
        units.each(number, |unit| {
            if !unit.is_fixed {
                found.push((unit.resident_bytes, unit.free_bytes, unit.holders.to_vec()));
            }
        });
        found
    }

    #[test]
    fn the_units_of_a_sample_of_one_stretch_are_units_of_the_whole() {
        let all = census(CensusBuilder::new(None));
        let whole: HashSet<_> = units(&all).into_iter().collect();
        assert_eq!((all.read_share, all.rooms.len()), (1.0, 1));
        for max_blocks in [2000, 1000, 500] {
            let part = census(CensusBuilder::with_max_blocks(None, max_blocks));
            let found = units(&part);
            let pages = found.len() as u64;
            assert!(!part.rooms.is_empty() && pages > 100, "{max_blocks}: {:?}", part.rooms);
            assert!(found.iter().all(|unit| whole.contains(unit)), "{max_blocks}");
            let all_pages = (PLACES + 1) * PLACE / 4096;
            let share = pages as f64 / all_pages as f64;
            assert!((share - part.read_share).abs() < 0.01, "{share} {}", part.read_share);
            assert!(part.blocks.len() as u64 <= SMALL * PLACES * 3 / 4, "{}", part.blocks.len());
        }
    }

    fn census_of(
        mut builder: CensusBuilder<'_>,
        blocks: &[(u64, u64, u8)],
        cached: &[u64],
    ) -> Census {
        for (at, bytes, content) in blocks {
            let print = builder.print(*at, &[*content; 48]);
            let block = Block { at: *at, bytes: *bytes, print };
            match *bytes >= PLACE {
                true => builder.large(block),
                false => builder.blocks(*at..*at + 8, &[block]),
            }
        }
        cached.iter().for_each(|at| builder.is_free(*at));
        builder.build()
    }

    #[test]
    fn blocks_with_the_same_address_and_content_are_older_and_those_of_caches_were_free() {
        let before = [
            (0x10010, 32, 1),
            (0x10040, 32, 1),
            (0x10080, 32, 1),
            (0x25000, 48, 1),
            (0x90000, 2 * PLACE, 1),
        ];
        let before = census_of(CensusBuilder::of_content(), &before, &[0x10040]);
        let earlier = before.earlier_blocks(0);
        let after = [
            (0x10010, 32, 1),
            (0x10040, 32, 1),
            (0x10080, 32, 2),
            (0x25008, 48, 1),
            (0x90000, PLACE, 1),
            (0xd0000, PLACE, 1),
        ];
        let after = census_of(CensusBuilder::new(None).since(Some(&earlier)), &after, &[]);
        let ages: Vec<_> = after.blocks.iter().map(|block| after.age(block.print)).collect();
        let [older, new, unknown] =
            [BlockAge::BeforeWatch, BlockAge::SinceWatch, BlockAge::Unknown].map(Some);
        assert_eq!(ages, [older, new, unknown, new, older, new]);
        assert!(after.blocks.iter().all(|block| type_of(block.print) == 0));
        assert_eq!(Census::default().age(TypeId::MAX), None, "not watched");
    }
}

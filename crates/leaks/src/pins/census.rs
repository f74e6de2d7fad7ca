//! Collects the blocks of a walk with their types, and the rooms that they are in.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE, print};
use lowtide_heap::ranges::joined;
use lowtide_heap::rooms::{Room, RoomKind};
use lowtide_probe::proc::maps::Mapping;

use super::ages::EarlierBlocks;
use crate::files::Image;
use crate::pointers::index::{BlockIndex, IndexBuilder};
use crate::types::{PYTHON_TYPES, TypeWord, may_be_count};

/// Maximum number of blocks, which take 48 MiB. A larger heap is sampled.
pub(super) const MAX_BLOCKS: usize = 6_500_000;
/// Maximum number of blocks of each of the two walks of a watch, which take 4 and 6 bytes each.
const MAX_WATCHED: usize = 4_000_000;
/// Maximum number of rooms before a heap is sampled, which take 8 MiB.
pub(super) const MAX_ROOMS: usize = 200_000;
/// Number of places of the parts in which a heap is sampled. Most rooms are smaller.
const PLACES_OF_PART: u64 = (4 << 20) / PLACE;
/// Maximum sampling, as a power of two.
const MAX_SAMPLING: u32 = 16;
/// Maximum number of words that are tried as a type, and of types.
const MAX_WORDS: usize = 64 << 10;
pub(super) const MAX_TYPES: usize = 4096;
/// Maximum number of blocks in caches that are distinguished.
pub(super) const MAX_CACHED: usize = 1 << 20;

/// The number of a type; 0 if a block has none.
pub(super) type TypeId = u16;

/// Recognises the types of blocks by their first words.
pub(super) struct TypeReader<'i> {
    image: &'i Image<'i>,
    /// The addresses of files, in order and disjoint.
    files: Vec<Range<u64>>,
    known: HashMap<TypeWord, TypeId>,
    names: Vec<String>,
}

impl<'i> TypeReader<'i> {
    pub(super) fn new(image: &'i Image<'i>, maps: &[Mapping]) -> Self {
        let files = maps.iter().filter(|mapping| mapping.has_file());
        let files = joined(files.map(|m| m.start..m.end).collect());
        Self { image, files, known: HashMap::new(), names: Vec::new() }
    }

    fn type_of(&mut self, first: &[u8]) -> TypeId {
        let word = |place: usize| {
            let bytes = first.get(place * 8..place * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if let Some(table) = word(0).filter(|table| self.is_of_file(*table)) {
            // The head of a list of Python's garbage collector is also in a file.
            let id = self.id(TypeWord::Table(table));
            if id > 0 {
                return id;
            }
        }
        for place in PYTHON_TYPES {
            let [Some(count), Some(at)] = [word(place - 1), word(place)] else { break };
            if may_be_count(count) && at > 0xffff && at.is_multiple_of(8) {
                let id = self.id(TypeWord::Python(at));
                if id > 0 {
                    return id;
                }
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

    fn id(&mut self, word: TypeWord) -> TypeId {
        if let Some(id) = self.known.get(&word) {
            return *id;
        }
        if self.known.len() >= MAX_WORDS {
            return 0;
        }
        let id = word.name(self.image).map_or(0, |name| self.id_of_name(name));
        self.known.insert(word, id);
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
            let left_out_bytes = &mut self.left_out_bytes;
            self.rooms.retain(|start, (end, _)| {
                let is_kept = is_known(&(*start..*end), sampling);
                *left_out_bytes += if is_kept { 0 } else { *end - start };
                is_kept
            });
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
        if is_known(&(start..end), self.sampling) {
            self.rooms.insert(start, (end, room.kind));
            self.sample_if_full();
        } else {
            self.left_out_bytes += end - start;
        }
    }

    fn print(&mut self, at: u64, first: &[u8]) -> u16 {
        if self.is_of_content {
            return print(first);
        }
        let age = self.earlier.map_or(0, |earlier| earlier.age(at, first));
        age | self.types.as_mut().map_or(0, |types| types.type_of(first))
    }
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

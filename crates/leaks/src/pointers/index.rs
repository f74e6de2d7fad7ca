//! The index that finds the block that contains an address.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};

use crate::book::ByPlace;

/// Alignment of blocks, in bytes.
const UNIT: u64 = 8;
/// Number of units of a place.
const UNITS: usize = (PLACE / UNIT) as usize;

/// The number of a block in an index.
pub(crate) type BlockId = u32;

/// Offset in its place and size, of a block of less than [`PLACE`] bytes, in units; and its print.
type PackedBlock = (u16, u16, u16);

/// Collects the blocks of a walk.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    places: ByPlace<Vec<PackedBlock>>,
    /// Size and print of each large block, by its address.
    large: BTreeMap<u64, (u64, u16)>,
    blocks: usize,
    max_blocks: usize,
    /// Parts of the heap that could not be read.
    unknown: Vec<Range<u64>>,
}

impl IndexBuilder {
    /// Creates a builder for at most `max_blocks` blocks.
    pub(crate) fn new(max_blocks: usize) -> Self {
        Self {
            places: ByPlace::default(),
            large: BTreeMap::new(),
            blocks: 0,
            max_blocks,
            unknown: Vec::new(),
        }
    }

    /// Returns whether there are more blocks than permitted.
    pub(crate) fn is_full(&self) -> bool {
        self.blocks + self.large.len() > self.max_blocks
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks + self.large.len()
    }

    /// Drops the blocks of the places that `is_kept` does not select.
    pub(crate) fn keep_places(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.places.retain(|place, _| is_kept(*place));
        self.blocks = self.places.values().map(Vec::len).sum();
        self.places.shrink_to_fit();
    }

    /// Builds the index; `None` if there were too many blocks.
    pub(crate) fn build(self) -> Option<BlockIndex> {
        if self.is_full() {
            return None;
        }
        let places = self.places.into_iter();
        let places = places.map(|(number, blocks)| Place { number, first: 0, blocks });
        let large = self.large.into_iter();
        let mut index = BlockIndex {
            places: places.collect(),
            large: large.map(|(at, (bytes, print))| Block { at, bytes, print }).collect(),
            unknown: self.unknown,
            ..BlockIndex::default()
        };
        index.places.sort_unstable_by_key(|place| place.number);
        index.number();
        Some(index)
    }
}

impl BlockVisitor for IndexBuilder {
    fn wants(&self, _: u64) -> bool {
        !self.is_full()
    }

    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
        if self.is_full() {
            return;
        }
        let lost: Vec<u64> = self.large.range(range.clone()).map(|(at, _)| *at).collect();
        for at in lost {
            self.large.remove(&at);
        }
        if blocks.is_empty() && !self.places.contains_key(&(range.start / PLACE)) {
            return;
        }
        let known = self.places.entry(range.start / PLACE).or_default();
        let place = range.start - range.start % PLACE;
        let unit = |at: u64| ((at - place) / UNIT) as usize;
        let first = known.partition_point(|block| usize::from(block.0) < unit(range.start));
        let end = (range.end - place).div_ceil(UNIT) as usize;
        let last = known.partition_point(|block| usize::from(block.0) < end);
        self.blocks = self.blocks + blocks.len() - (last - first);
        let packed =
            |block: &Block| (unit(block.at) as u16, (block.bytes / UNIT) as u16, block.print);
        if first == known.len() {
            known.extend(blocks.iter().map(packed));
        } else {
            known.splice(first..last, blocks.iter().map(packed));
        }
    }

    fn large(&mut self, block: Block) {
        if !self.is_full() {
            self.large.insert(block.at, (block.bytes, block.print));
        }
    }

    fn unknown(&mut self, range: Range<u64>) {
        self.unknown.push(range);
    }

    fn is_free(&mut self, at: u64) {
        if let Some(blocks) = self.places.get_mut(&(at / PLACE)) {
            let offset = (at % PLACE / UNIT) as u16;
            if let Ok(place) = blocks.binary_search_by_key(&offset, |block| block.0) {
                // Blocks of size 0 are left out of the index.
                blocks[place].1 = 0;
            }
        }
        self.large.remove(&at);
    }
}

/// The blocks that begin in a place.
#[derive(Debug)]
struct Place {
    /// Its address divided by [`PLACE`].
    number: u64,
    /// The number of its first block.
    first: BlockId,
    /// In order of address.
    blocks: Vec<PackedBlock>,
}

impl Place {
    fn block(&self, packed: &PackedBlock) -> Block {
        let (offset, size, print) = *packed;
        Block {
            at: self.number * PLACE + u64::from(offset) * UNIT,
            bytes: u64::from(size) * UNIT,
            print,
        }
    }

    /// Returns the number of blocks that begin at or before a unit. Most places are filled evenly,
    /// so the search begins where the block would then be.
    #[inline]
    fn up_to(&self, unit: usize) -> usize {
        let blocks = self.blocks.as_slice();
        let is_before = |place: usize| usize::from(blocks[place].0) <= unit;
        let guess = blocks.len() * unit / UNITS;
        let (mut low, mut high, mut step) = (guess, guess, 1);
        while high < blocks.len() && is_before(high) {
            low = high + 1;
            high += step;
            step *= 2;
        }
        while low > 0 && !is_before(low - 1) {
            high = low - 1;
            low = low.saturating_sub(step);
            step *= 2;
        }
        let high = high.min(blocks.len());
        low + blocks[low..high].partition_point(|block| usize::from(block.0) <= unit)
    }
}

/// All blocks of a heap, or some of them. Their numbers are in order of address, except for large
/// blocks, which come last. A small block takes 6 bytes.
#[derive(Debug, Default)]
pub(crate) struct BlockIndex {
    /// The index of each place in `places`, by its number.
    by_number: ByPlace<u32>,
    places: Vec<Place>,
    /// Number of the blocks in places.
    small: usize,
    /// In order.
    large: Vec<Block>,
    /// The addresses between which all blocks are. Most words of most programs are outside.
    span: Range<u64>,
    unknown: Vec<Range<u64>>,
}

impl BlockIndex {
    /// Returns the blocks of at least [`PLACE`] bytes, in order of address.
    pub(crate) fn large(&self) -> impl Iterator<Item = Block> {
        self.large.iter().copied()
    }

    /// Returns all blocks in order of address.
    pub(crate) fn iter(&self) -> Ordered<'_> {
        let mut all = Ordered {
            places: self.places.iter(),
            place: None,
            blocks: [].iter(),
            small: None,
            large: self.large.iter().peekable(),
        };
        all.small = all.next_small();
        all
    }

    /// Numbers the blocks. Those that were free are dropped.
    fn number(&mut self) {
        for place in &mut self.places {
            place.blocks.retain(|block| block.1 > 0);
        }
        self.places.retain(|place| !place.blocks.is_empty());
        self.small = 0;
        for place in &mut self.places {
            place.first = self.small as BlockId;
            self.small += place.blocks.len();
        }
        let numbers = self.places.iter().enumerate();
        self.by_number = numbers.map(|(index, place)| (place.number, index as u32)).collect();
        self.span = self.measure();
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.small + self.large.len()
    }

    /// Returns the block with a number.
    pub(crate) fn get(&self, id: BlockId) -> Option<Block> {
        if let Some(large) = (id as usize).checked_sub(self.small) {
            return self.large.get(large).copied();
        }
        let place = self.places.partition_point(|place| place.first <= id).checked_sub(1)?;
        let place = &self.places[place];
        place.blocks.get((id - place.first) as usize).map(|packed| place.block(packed))
    }

    /// Returns the print of a block; 0 if it could not be read.
    pub(crate) fn print(&self, id: BlockId) -> u16 {
        self.get(id).map_or(0, |block| block.print)
    }

    /// Returns the parts of the heap that could not be read.
    pub(crate) fn unknown(&self) -> &[Range<u64>] {
        &self.unknown
    }

    /// Returns the addresses between which all blocks are.
    fn measure(&self) -> Range<u64> {
        let starts = self.places.iter().map(|place| place.number * PLACE);
        let start = starts.chain(self.large().map(|block| block.at)).min();
        // A block may extend into the next place.
        let ends = self.places.iter().map(|place| (place.number + 2).saturating_mul(PLACE));
        let large = self.large().map(|block| block.at.saturating_add(block.bytes));
        start.unwrap_or(0)..ends.chain(large).max().unwrap_or(0)
    }

    /// Returns whether an address is between those of the first and the last block.
    #[inline]
    pub(super) fn spans(&self, at: u64) -> bool {
        self.span.contains(&at)
    }

    /// Returns the block that contains an address, and its number.
    #[inline]
    pub(crate) fn find(&self, at: u64) -> Option<(BlockId, Block)> {
        if !self.spans(at) {
            return None;
        }
        self.small(at).or_else(|| self.large_containing(at))
    }

    /// Returns the number of the block that contains an address.
    #[inline]
    pub(crate) fn containing(&self, at: u64) -> Option<BlockId> {
        self.find(at).map(|(id, _)| id)
    }

    /// Returns the block that starts at an address.
    pub(crate) fn starting_at(&self, at: u64) -> Option<BlockId> {
        self.find(at).filter(|(_, block)| block.at == at).map(|(id, _)| id)
    }

    /// Returns the start of the first block in a range, or the end of the range if it has none.
    pub(crate) fn first_start_in(&self, range: Range<u64>) -> u64 {
        let mut end = range.end;
        let large = self.large.partition_point(|block| block.at < range.start);
        if let Some(block) = self.large.get(large) {
            end = end.min(block.at);
        }
        let first = self.places.partition_point(|place| place.number < range.start / PLACE);
        let small = self.places[first..].iter().find_map(|place| {
            let start = place.number * PLACE;
            let unit = range.start.saturating_sub(start).div_ceil(UNIT) as usize;
            let before = unit.checked_sub(1).map_or(0, |unit| place.up_to(unit));
            (start >= end)
                .then_some(end)
                .or_else(|| place.blocks.get(before).map(|packed| place.block(packed).at))
        });
        small.map_or(end, |at| at.min(end))
    }

    #[inline]
    fn small(&self, at: u64) -> Option<(BlockId, Block)> {
        let number = at / PLACE;
        let unit = (at % PLACE / UNIT) as usize;
        let found = self.by_number.get(&number);
        let found = found.and_then(|place| Self::last_before(&self.places[*place as usize], unit));
        // A block may extend into the next place.
        let found = found.or_else(|| {
            let place = self.by_number.get(&number.checked_sub(1)?)?;
            Self::last_before(&self.places[*place as usize], UNITS - 1)
        });
        found.filter(|(_, block)| at < block.at + block.bytes)
    }

    /// Returns the last block of a place that starts at or before a unit.
    #[inline]
    fn last_before(place: &Place, unit: usize) -> Option<(BlockId, Block)> {
        let index = place.up_to(unit).checked_sub(1)?;
        Some((place.first + index as BlockId, place.block(&place.blocks[index])))
    }

    #[cold]
    fn large_containing(&self, at: u64) -> Option<(BlockId, Block)> {
        let place = self.large.partition_point(|block| block.at <= at).checked_sub(1)?;
        let block = self.large[place];
        let is_inside = at < block.at.saturating_add(block.bytes);
        is_inside.then_some(((self.small + place) as BlockId, block))
    }

    /// Returns the addresses of a block.
    pub(crate) fn range(&self, id: BlockId) -> Option<Range<u64>> {
        self.get(id).map(|block| block.at..block.at.saturating_add(block.bytes))
    }

    /// Calls `each` for every block, in order of their numbers, with its addresses.
    pub(crate) fn each(&self, mut each: impl FnMut(BlockId, Range<u64>)) {
        let small = self.places.iter();
        let small = small.flat_map(|place| place.blocks.iter().map(|packed| place.block(packed)));
        for (id, block) in small.chain(self.large()).enumerate() {
            each(id as BlockId, block.at..block.at.saturating_add(block.bytes));
        }
    }
}

/// The blocks of an index in order of address.
#[derive(Debug, Clone)]
pub(crate) struct Ordered<'i> {
    places: std::slice::Iter<'i, Place>,
    place: Option<&'i Place>,
    /// The blocks of this place that are left.
    blocks: std::slice::Iter<'i, PackedBlock>,
    /// The next block of a place.
    small: Option<Block>,
    large: std::iter::Peekable<std::slice::Iter<'i, Block>>,
}

impl Ordered<'_> {
    #[inline]
    fn next_small(&mut self) -> Option<Block> {
        loop {
            if let Some((place, packed)) = self.place.zip(self.blocks.next()) {
                return Some(place.block(packed));
            }
            let place = self.places.next()?;
            (self.place, self.blocks) = (Some(place), place.blocks.iter());
        }
    }

    /// Returns the next block.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Block> {
        match (self.small, self.large.peek()) {
            (Some(small), Some(large)) if large.at < small.at => Some(**large),
            (Some(small), _) => Some(small),
            (None, large) => large.map(|large| **large),
        }
    }
}

impl Iterator for Ordered<'_> {
    type Item = Block;

    #[inline]
    fn next(&mut self) -> Option<Block> {
        match (self.small, self.large.peek()) {
            (Some(small), Some(large)) if large.at < small.at => self.large.next().copied(),
            (Some(small), _) => {
                self.small = self.next_small();
                Some(small)
            }
            (None, _) => self.large.next().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(blocks: &[(u64, u64)]) -> BlockIndex {
        let mut builder = IndexBuilder::new(1 << 20);
        let mut places: Vec<u64> = blocks.iter().map(|(at, _)| at / PLACE).collect();
        places.dedup();
        for place in places {
            let range = place * PLACE..(place + 1) * PLACE;
            let within = blocks.iter().filter(|(at, bytes)| range.contains(at) && *bytes < PLACE);
            let within: Vec<Block> =
                within.map(|(at, bytes)| Block { at: *at, bytes: *bytes, print: 1 }).collect();
            builder.blocks(range, &within);
        }
        for (at, bytes) in blocks.iter().filter(|(_, bytes)| *bytes >= PLACE) {
            builder.large(Block { at: *at, bytes: *bytes, print: 1 });
        }
        builder.build().unwrap()
    }

    proptest! {
        #[test]
        fn an_address_resolves_to_the_block_that_contains_it(
            gaps in proptest::collection::vec((0_u64..40, 1_u64..2000), 1..300),
            large in 0_usize..300,
        ) {
            let (mut at, mut blocks) = (0x7f12_3456_0010, Vec::new());
            for (number, (gap, size)) in gaps.iter().enumerate() {
                let bytes = if number == large { PLACE * 3 } else { size * 8 };
                at += gap * 8;
                blocks.push((at, bytes));
                at += bytes;
            }
            let index = index(&blocks);
            prop_assert_eq!(index.len(), blocks.len());
            for (start, bytes) in &blocks {
                let id = index.starting_at(*start).expect("a block begins here");
                prop_assert_eq!(index.range(id), Some(*start..start + bytes));
                prop_assert_eq!(index.containing(start + bytes - 1), Some(id));
                prop_assert_ne!(index.containing(start + bytes), Some(id));
                prop_assert_ne!(index.containing(start - 1), Some(id));
            }
            prop_assert_eq!(index.containing(at), None);
            let mut all = Vec::new();
            index.each(|id, range| all.push((id, range)));
            for (number, (id, range)) in all.iter().enumerate() {
                prop_assert_eq!(*id as usize, number);
                prop_assert_eq!(index.range(*id), Some(range.clone()));
            }
            prop_assert_eq!(all.len(), blocks.len());
        }
    }

    #[test]
    fn a_block_later_reported_as_free_is_not_indexed() {
        let mut builder = IndexBuilder::new(10);
        let block = |at| Block { at, bytes: 32, print: 1 };
        builder.blocks(0x10000..0x20000, &[block(0x10010), block(0x10050), block(0x10090)]);
        builder.is_free(0x10050);
        let index = builder.build().unwrap();
        assert_eq!((index.len(), index.containing(0x10058)), (2, None));
        assert_eq!(index.range(1), Some(0x10090..0x100b0));
    }

    #[test]
    fn a_block_reported_twice_is_indexed_once_with_its_last_size() {
        let mut builder = IndexBuilder::new(10);
        let block = |bytes| Block { at: 0x10010, bytes, print: 1 };
        for bytes in [64, 96] {
            builder.blocks(0x10010..0x10011, &[block(bytes)]);
            builder.large(Block { at: 0x40000, bytes: bytes << 12, print: 1 });
        }
        let index = builder.build().unwrap();
        assert_eq!((index.len(), index.range(0)), (2, Some(0x10010..0x10070)));
        assert_eq!(index.range(1), Some(0x40000..0x40000 + (96 << 12)));
    }

    #[test]
    fn no_index_is_built_from_too_many_blocks() {
        let mut builder = IndexBuilder::new(1);
        let block = |at| Block { at, bytes: 32, print: 1 };
        builder.blocks(0x10000..0x20000, &[block(0x10010), block(0x10050)]);
        assert!(!builder.wants(0) && builder.build().is_none());
    }
}

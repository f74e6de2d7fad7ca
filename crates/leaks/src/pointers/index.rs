//! The index that finds the block that contains an address.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};

use crate::book::ByPlace;

/// Alignment of blocks, in bytes.
const UNIT: u64 = 8;
/// Number of units of a place.
const UNITS: usize = (PLACE / UNIT) as usize;
const WORDS: usize = UNITS / 64;

/// The number of a block in an index.
pub type BlockId = u32;

/// Offset in its place and size, of a block of less than [`PLACE`] bytes, in units; and its print.
type Packed = (u16, u16, u16);

/// Collects the blocks of a walk.
#[derive(Debug)]
pub struct IndexBuilder {
    places: ByPlace<Vec<Packed>>,
    /// Size and print of each large block, by its address.
    large: BTreeMap<u64, (u64, u16)>,
    blocks: usize,
    max_blocks: usize,
    /// Parts of the heap that could not be read.
    unknown: Vec<Range<u64>>,
}

impl IndexBuilder {
    /// Creates a builder for at most `max_blocks` blocks.
    pub fn new(max_blocks: usize) -> Self {
        Self {
            places: ByPlace::default(),
            large: BTreeMap::new(),
            blocks: 0,
            max_blocks,
            unknown: Vec::new(),
        }
    }

    /// Returns whether there are more blocks than permitted.
    pub fn is_full(&self) -> bool {
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

    /// Returns the blocks in order of address, and the parts of the heap that could not be read.
    pub(crate) fn into_ordered(self) -> (OrderedBlocks, Vec<Range<u64>>) {
        let mut places: Vec<(u64, Vec<Packed>)> = self.places.into_iter().collect();
        places.sort_unstable_by_key(|(place, _)| *place);
        (OrderedBlocks { places, large: self.large }, self.unknown)
    }

    /// Builds the index; `None` if there were too many blocks.
    pub fn build(mut self) -> Option<BlockIndex> {
        if self.is_full() {
            return None;
        }
        let mut keys: Vec<u64> = self.places.keys().copied().collect();
        keys.sort_unstable();
        let mut index = BlockIndex {
            places: ByPlace::default(),
            tables: Vec::with_capacity(keys.len()),
            sizes: Vec::with_capacity(self.blocks),
            prints: Vec::with_capacity(self.blocks),
            large: Vec::new(),
            span: 0..0,
            unknown: self.unknown,
        };
        for key in keys {
            let blocks = self.places.remove(&key).unwrap_or_default();
            if !blocks.is_empty() {
                index.add_place(key, &blocks);
            }
        }
        for (at, (bytes, print)) in self.large {
            index.large.push((at, bytes));
            index.prints.push(print);
        }
        index.span = index.measure();
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

/// The blocks of a heap, in order of address.
#[derive(Debug, Default)]
pub(crate) struct OrderedBlocks {
    places: Vec<(u64, Vec<Packed>)>,
    large: BTreeMap<u64, (u64, u16)>,
}

impl OrderedBlocks {
    /// Returns the blocks in order of address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Block> {
        let mut small = self
            .places
            .iter()
            .flat_map(|(place, blocks)| {
                blocks.iter().map(move |(offset, size, print)| Block {
                    at: place * PLACE + u64::from(*offset) * UNIT,
                    bytes: u64::from(*size) * UNIT,
                    print: *print,
                })
            })
            .peekable();
        let large = self.large.iter();
        let mut large = large
            .map(|(at, (bytes, print))| Block { at: *at, bytes: *bytes, print: *print })
            .peekable();
        std::iter::from_fn(move || {
            let next_large = large.peek().map_or(u64::MAX, |block| block.at);
            match small.peek() {
                Some(block) if block.at < next_large => small.next(),
                _ => large.next(),
            }
        })
    }
}

/// The start bits of the blocks of a place.
#[derive(Debug)]
struct Table {
    place: u64,
    /// The number of the first block.
    first: BlockId,
    /// A bit for each unit at which a block starts.
    starts: [u64; WORDS],
    /// Number of blocks before each word.
    before: [u16; WORDS],
}

/// All blocks of a heap, or some of them. Their numbers are in order of address, except for large
/// blocks, which come last.
#[derive(Debug, Default)]
pub struct BlockIndex {
    places: ByPlace<u32>,
    tables: Vec<Table>,
    /// Sizes in units.
    sizes: Vec<u16>,
    /// Prints, those of large blocks last.
    prints: Vec<u16>,
    /// Addresses and sizes of large blocks, in order.
    large: Vec<(u64, u64)>,
    /// The addresses between which all blocks are. Most words of most programs are outside.
    span: Range<u64>,
    unknown: Vec<Range<u64>>,
}

impl BlockIndex {
    /// Returns the blocks of at least [`PLACE`] bytes, in order of address.
    pub fn large(&self) -> impl Iterator<Item = Block> {
        // Their prints are the last ones.
        let prints = &self.prints[self.prints.len() - self.large.len()..];
        self.large.iter().zip(prints).map(|((at, bytes), print)| Block {
            at: *at,
            bytes: *bytes,
            print: *print,
        })
    }

    fn add_place(&mut self, place: u64, blocks: &[Packed]) {
        let first = self.sizes.len() as BlockId;
        let mut table = Table { place, first, starts: [0; WORDS], before: [0; WORDS] };
        for (offset, size, print) in blocks.iter().filter(|block| block.1 > 0) {
            let (word, bit) = (usize::from(*offset) / 64, 1 << (offset % 64));
            if table.starts[word] & bit == 0 {
                table.starts[word] |= bit;
                self.sizes.push(*size);
                self.prints.push(*print);
            }
        }
        let mut before = 0;
        for (word, count) in table.starts.iter().zip(&mut table.before) {
            *count = before;
            before += word.count_ones() as u16;
        }
        self.places.insert(place, self.tables.len() as u32);
        self.tables.push(table);
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.sizes.len() + self.large.len()
    }

    /// Returns whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the print of a block; 0 if it could not be read.
    pub fn print(&self, id: BlockId) -> u16 {
        self.prints.get(id as usize).copied().unwrap_or(0)
    }

    /// Returns the parts of the heap that could not be read.
    pub fn unknown(&self) -> &[Range<u64>] {
        &self.unknown
    }

    /// Returns the addresses between which all blocks are.
    fn measure(&self) -> Range<u64> {
        let starts = self.tables.iter().map(|table| table.place * PLACE);
        let start = starts.chain(self.large.iter().map(|(at, _)| *at)).min();
        // A block may extend into the next place.
        let ends = self.tables.iter().map(|table| (table.place + 2).saturating_mul(PLACE));
        let large = self.large.iter().map(|(at, bytes)| at.saturating_add(*bytes));
        start.unwrap_or(0)..ends.chain(large).max().unwrap_or(0)
    }

    /// Returns the block that contains an address.
    #[inline]
    pub fn containing(&self, at: u64) -> Option<BlockId> {
        if !self.span.contains(&at) {
            return None;
        }
        self.small(at).or_else(|| self.large_containing(at))
    }

    /// Returns the block that starts at an address.
    pub fn starting_at(&self, at: u64) -> Option<BlockId> {
        self.containing(at).filter(|id| self.range(*id).is_some_and(|range| range.start == at))
    }

    /// Returns the start of the first block in a range, or the end of the range if it has none.
    pub fn first_start_in(&self, range: Range<u64>) -> u64 {
        let mut end = range.end;
        let large = self.large.partition_point(|(at, _)| *at < range.start);
        if let Some((at, _)) = self.large.get(large) {
            end = end.min(*at);
        }
        let mut at = range.start.next_multiple_of(UNIT);
        while at < end {
            let place = at / PLACE;
            if let Some(table) = self.places.get(&place).map(|table| &self.tables[*table as usize])
            {
                let unit = (at % PLACE / UNIT) as usize;
                let mut word = unit / 64;
                let mut bits = table.starts[word] & (u64::MAX << (unit % 64));
                while bits == 0 && word + 1 < WORDS {
                    word += 1;
                    bits = table.starts[word];
                }
                if bits != 0 {
                    let first = word as u64 * 64 + u64::from(bits.trailing_zeros());
                    return end.min(place * PLACE + first * UNIT);
                }
            }
            at = (place + 1) * PLACE;
        }
        end
    }

    #[inline]
    fn small(&self, at: u64) -> Option<BlockId> {
        let place = at / PLACE;
        let found = self.places.get(&place).and_then(|table| {
            let unit = (at % PLACE / UNIT) as usize;
            self.last_before(&self.tables[*table as usize], unit)
        });
        // A block may extend into the next place.
        let found = found.or_else(|| {
            let table = self.places.get(&place.checked_sub(1)?)?;
            self.last_before(&self.tables[*table as usize], UNITS - 1)
        });
        let (id, start) = found?;
        let size = u64::from(self.sizes[id as usize]) * UNIT;
        (at < start + size).then_some(id)
    }

    /// Returns the last block of a place that starts at or before a unit, with its address.
    #[inline]
    fn last_before(&self, table: &Table, unit: usize) -> Option<(BlockId, u64)> {
        let mut word = unit / 64;
        let mut bits = table.starts[word] & (u64::MAX >> (63 - unit % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = table.starts[word];
        }
        let bit = 63 - bits.leading_zeros();
        let rank = u32::from(table.before[word]) + bits.count_ones() - 1;
        let start = table.place * PLACE + (word as u64 * 64 + u64::from(bit)) * UNIT;
        Some((table.first + rank, start))
    }

    #[cold]
    fn large_containing(&self, at: u64) -> Option<BlockId> {
        let place = self.large.partition_point(|(start, _)| *start <= at).checked_sub(1)?;
        let (start, bytes) = self.large[place];
        (at < start + bytes).then_some((self.sizes.len() + place) as BlockId)
    }

    /// Returns the addresses of a block.
    pub fn range(&self, id: BlockId) -> Option<Range<u64>> {
        let place = id as usize;
        if let Some(large) = place.checked_sub(self.sizes.len()) {
            let (start, bytes) = *self.large.get(large)?;
            return Some(start..start + bytes);
        }
        let table = self.tables.partition_point(|table| table.first <= id).checked_sub(1)?;
        let table = &self.tables[table];
        let rank = (id - table.first) as u16;
        let word = table.before.partition_point(|before| *before <= rank).checked_sub(1)?;
        let mut bits = table.starts[word];
        for _ in 0..rank - table.before[word] {
            bits &= bits - 1;
        }
        let unit = word as u64 * 64 + u64::from(bits.trailing_zeros());
        let start = table.place * PLACE + unit * UNIT;
        Some(start..start + u64::from(self.sizes[place]) * UNIT)
    }

    /// Calls `each` for every block, in order of their numbers, with its addresses.
    pub fn each(&self, mut each: impl FnMut(BlockId, Range<u64>)) {
        let mut id = 0;
        for table in &self.tables {
            id = table.first;
            for (word, bits) in table.starts.iter().enumerate() {
                let mut bits = *bits;
                while bits != 0 {
                    let unit = word as u64 * 64 + u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    let start = table.place * PLACE + unit * UNIT;
                    each(id, start..start + u64::from(self.sizes[id as usize]) * UNIT);
                    id += 1;
                }
            }
        }
        id = id.max(self.sizes.len() as BlockId);
        for (start, bytes) in &self.large {
            each(id, *start..start + bytes);
            id += 1;
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

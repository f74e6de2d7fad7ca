//! jemalloc's tree from page numbers to the records of extents (`rtree.h`).
//!
//! Its root is in the zeroed data of the program or library, and is recognised by its leaves: the
//! entry of a page leads to a record that names the same page. No symbols and no version are
//! assumed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::extent::{BitsLayout, MAX_BITMAP_WORDS, MIN_PAGE_BYTES, Record};
use super::size_class;
use super::slab::Slab;
use crate::memory::{ADDRESS_END, Memory, each_word, resident_places};
use crate::ranges::{hold, keep_disjoint};
use crate::scattered::Scattered;

/// Alignment of records, in bytes (`EDATA_ALIGNMENT` is 128, that before 5.3 is 64).
const RECORD_ALIGNMENT: u64 = 64;
/// Alignment of base blocks, which contain jemalloc's own structures, in bytes (`HUGEPAGE`).
const BASE_ALIGNMENT: u64 = 2 << 20;
/// The arena number in the record of a base block (`MALLOCX_ARENA_LIMIT`).
const NO_ARENA: u64 = 4095;
/// Maximum number of words that are tried as pointers to a leaf, for each shape: redis has
/// 5,200.
const MAX_TRIED: usize = 16 << 10;
/// Maximum number of records that are read: 16 GiB of extents of one page.
const MAX_RECORDS: u64 = 4 << 20;
/// Maximum number of times that an inconsistent extent is read again.
const REREADS: u32 = 3;
/// The same for all extents of a walk.
const MAX_REREADS: u32 = 64 << 10;
/// Minimum number of entries of a leaf that agree with their records; none may contradict.
const AGREEING: u32 = 2;
/// Number of agreeing entries after which the scan of a leaf stops.
const ENOUGH: u32 = 8;
/// Number of contradicting entries after which it stops.
const CONTRADICTING: u32 = 3;

/// Bits of an entry of one word that have the size class (`rtree_leaf_elm_bits_encode`).
const SIZE_CLASS: u64 = 0xffff << 48;

/// The layout of the tree, by the number of address bits and the page size that it was built for
/// (`LG_VADDR`, `LG_PAGE`).
#[derive(Debug, Clone, Copy)]
pub(super) struct RtreeShape {
    /// Base-2 logarithm of the size of a page.
    page_bits: u32,
    /// Bytes of an entry of a leaf.
    entry: u64,
    /// Base-2 logarithm of the number of entries of a leaf.
    leaf_bits: u32,
    /// Base-2 logarithm of the number of entries of each level above the leaves, from the root
    /// down.
    node_bits: &'static [u32],
    /// Mask of the address of a record in an entry.
    pointer: u64,
}

/// The layouts for 48 address bits with pages of 4 KiB, 16 KiB and 64 KiB, and that for 57 bits,
/// which only x86-64 has.
const SHAPES: [RtreeShape; 4] = [
    RtreeShape::of_48_bits(12, &[18]),
    RtreeShape { page_bits: 12, entry: 16, leaf_bits: 15, node_bits: &[15, 15], pointer: !63 },
    RtreeShape::of_48_bits(14, &[17]),
    RtreeShape::of_48_bits(16, &[16]),
];

impl RtreeShape {
    /// Returns the layout for 48 address bits: two levels with the same number of bits.
    const fn of_48_bits(page_bits: u32, node_bits: &'static [u32]) -> Self {
        let pointer = 0x0000_ffff_ffff_ff80 | 64;
        Self { page_bits, entry: 8, leaf_bits: node_bits[0], node_bits, pointer }
    }

    /// Bytes of a page.
    const fn page_bytes(self) -> u64 {
        1 << self.page_bits
    }

    /// Identifies the layout among those that are tried.
    fn key(self) -> (u32, u64) {
        (self.page_bits, self.entry)
    }

    fn leaf_bytes(self) -> u64 {
        self.entry << self.leaf_bits
    }

    /// Bytes of the root.
    fn root_bytes(self) -> u64 {
        8 << self.node_bits[0]
    }
}

/// The place of a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Root {
    address: u64,
    shape: RtreeShape,
}

impl Root {
    /// Returns the size of jemalloc's pages, in bytes.
    pub(super) fn page_bytes(self) -> u64 {
        self.shape.page_bytes()
    }
}

/// The nodes and leaves that were tried, each with the layout by which it was read.
type TriedNodes = HashSet<(u64, (u32, u64))>;

/// The entry of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Its page.
    pub(super) page: u64,
    /// Its first word.
    word: u64,
    /// Its second word; 0 if it has one word.
    second: u64,
    shape: RtreeShape,
}

/// An extent: the entry of its first page, and its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) entry: Entry,
    pub(super) record: Record,
    /// The leaf of the tree that has the entry.
    leaf: u64,
    /// Whether the entry of the last page leads to the same record.
    pub(super) agrees: bool,
    /// Whether it will not be read again.
    pub(super) is_last: bool,
}

impl Found {
    /// Returns the places of its record and of the leaf, in units of [`BASE_ALIGNMENT`].
    pub(super) fn places(&self) -> [u64; 2] {
        [self.record.at / BASE_ALIGNMENT, self.leaf / BASE_ALIGNMENT]
    }

    /// Returns the addresses of the words of the entry of its first page, with their values.
    pub(super) fn entry_words(&self) -> impl Iterator<Item = (u64, u64)> {
        let Entry { page, word, second, shape } = self.entry;
        let slot = self.leaf + (page & ((1 << shape.leaf_bits) - 1)) * shape.entry;
        let words = [(slot, word), (slot + 8, second)];
        words.into_iter().take(shape.entry as usize / 8)
    }
}

/// The next step after an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Continue with the next extent.
    Go,
    /// Read the same extent again, because it is inconsistent.
    Again,
    /// Stop.
    Stop,
}

impl Entry {
    /// Returns the address of the record.
    pub(super) fn record(self) -> u64 {
        self.word & self.shape.pointer
    }

    /// Returns the index of the size class by a layout (`rtree_leaf_elm_bits_decode`).
    pub(super) fn class(self, version: BitsLayout) -> u64 {
        match self.shape.entry {
            8 => self.word >> 48,
            _ if version.is_since_53() => self.second >> 5,
            _ => self.second & 0xffff_ffff,
        }
    }
}

/// Reads trees.
pub(super) struct Rtree<'m, M> {
    words: Scattered<'m, M>,
    memory: &'m M,
    /// Private writable anonymous mappings in order of address, with adjacent ones merged.
    anonymous: &'m [Range<u64>],
    records: u64,
}

impl<'m, M: Memory> Rtree<'m, M> {
    pub(super) fn new(memory: &'m M, anonymous: &'m [Range<u64>]) -> Self {
        Self { words: Scattered::new(memory), memory, anonymous, records: 0 }
    }

    /// Clears the cache, because the memory may have changed.
    pub(super) fn forget(&mut self) {
        self.words.forget();
        self.records = 0;
    }

    /// Returns the memory that it reads.
    pub(super) fn memory(&self) -> &'m M {
        self.memory
    }

    /// Returns whether `bytes` bytes from an address are anonymous memory.
    fn is_anonymous(&self, address: u64, bytes: u64) -> bool {
        address.checked_add(bytes).is_some_and(|end| hold(self.anonymous, &(address..end)))
    }

    /// Returns the root of a tree in a range of data.
    pub(super) fn root(&mut self, data: &Range<u64>) -> Option<Root> {
        let (mut tried, mut found) = (TriedNodes::new(), None);
        each_word(self.memory, data.clone(), |slot, node| {
            found = SHAPES.into_iter().filter(|_| is_pointer(node)).find_map(|shape| {
                let root = slot.checked_sub(self.key_below(node, shape, &mut tried)? * 8)?;
                let is_inside = data.start <= root && root + shape.root_bytes() <= data.end;
                is_inside.then_some(Root { address: root, shape })
            });
            found.is_none() && tried.len() <= MAX_TRIED
        });
        found
    }

    /// Returns the index in the root of a node that leads to leaves, or `None` if it leads to none.
    fn key_below(&mut self, node: u64, shape: RtreeShape, tried: &mut TriedNodes) -> Option<u64> {
        if let [_] = shape.node_bits {
            let is_new =
                self.is_anonymous(node, shape.leaf_bytes()) && tried.insert((node, shape.key()));
            return is_new.then(|| self.key_of_leaf(node, shape))?;
        }
        let [.., inner] = *shape.node_bits else { return None };
        if !self.is_anonymous(node, 8 << inner) || !tried.insert((node, shape.key())) {
            return None;
        }
        self.first_leaves(node..node + (8 << inner)).into_iter().find_map(|(slot, leaf)| {
            let is_leaf =
                self.is_anonymous(leaf, shape.leaf_bytes()) && tried.insert((leaf, shape.key()));
            let key = is_leaf.then(|| self.key_of_leaf(leaf, shape))??;
            (key & ((1 << inner) - 1) == (slot - node) / 8).then_some(key >> inner)
        })
    }

    /// Returns words in a range that may be pointers, with their places.
    fn pointers(&self, range: Range<u64>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        each_word(self.memory, range, |at, word| {
            found.extend(is_pointer(word).then_some((at, word)));
            true
        });
        found
    }

    /// Returns the first few pointers in a node, with their places: they decide whether it is one.
    /// A node has pointers and zeros only, so any other word ends the search: most ranges that
    /// are tried are no nodes, and there can be thousands.
    fn first_leaves(&self, node: Range<u64>) -> Vec<(u64, u64)> {
        const MOST: usize = 4;
        let mut found = Vec::new();
        each_word(self.memory, node, |at, word| {
            found.extend(is_pointer(word).then_some((at, word)));
            is_pointer(word) && found.len() < MOST
        });
        found
    }

    /// Returns the high bits that all pages of a leaf share, or `None` if it is not a leaf.
    fn key_of_leaf(&mut self, leaf: u64, shape: RtreeShape) -> Option<u64> {
        let mask = (1 << shape.leaf_bits) - 1;
        let (mut key, mut agree, mut contradict) = (None, 0, 0);
        // An empty entry can have a size class (`rtree_leaf_elm_clear`), but no other bits.
        self.each_entry(leaf, 0, shape, !SIZE_CLASS, |tree, entry| {
            let index = entry.page;
            let Some(record) = tree.record(entry.record(), shape) else {
                contradict += 1;
                return contradict < CONTRADICTING;
            };
            let (first, last) = (record.first_page(), record.last_page());
            match [first, last].into_iter().find(|page| page & mask == index) {
                Some(page) if key.is_none_or(|key| key == page >> shape.leaf_bits) => {
                    key = Some(page >> shape.leaf_bits);
                    agree += 1;
                }
                // Within a slab, every page has an entry.
                None if last - first > 1 && index.wrapping_sub(first) & mask < last - first => {}
                _ => contradict += 1,
            }
            agree < ENOUGH && contradict < CONTRADICTING
        });
        key.filter(|_| agree >= AGREEING && contradict == 0)
    }

    /// Calls `each` with the entries of a leaf that have one of some bits, until it returns
    /// `false`. `first` is the page of the first.
    fn each_entry(
        &mut self,
        leaf: u64,
        first: u64,
        shape: RtreeShape,
        bits: u64,
        mut each: impl FnMut(&mut Self, Entry) -> bool,
    ) {
        each_word(self.memory, leaf..leaf + shape.leaf_bytes(), |at, word| {
            if !(at - leaf).is_multiple_of(shape.entry) || word & bits == 0 {
                return true;
            }
            let second = match shape.entry {
                8 => 0,
                _ => self.words.word(at + 8).unwrap_or(0),
            };
            let page = first + (at - leaf) / shape.entry;
            each(self, Entry { page, word, second, shape })
        });
    }

    /// Returns the record of an extent, if it can be one.
    fn record(&mut self, at: u64, shape: RtreeShape) -> Option<Record> {
        let page_bytes = shape.page_bytes();
        self.records += 1;
        if !is_pointer(at) || self.records > MAX_RECORDS {
            return None;
        }
        let (word, address) = self.words.pair(at)?;
        let bytes = self.words.word(at.checked_add(16)?)? & !(page_bytes - 1);
        let end = address.checked_add(bytes)?;
        let is_sound = bytes > 0 && end <= ADDRESS_END && address >= page_bytes;
        let (address, offset) = (address & !(page_bytes - 1), address % page_bytes);
        is_sound.then_some(Record { at, word, address, offset, bytes, page_bytes })
    }

    /// Returns the leaves of a tree, with the number of their first page.
    fn leaves(&self, root: Root) -> Vec<(u64, u64)> {
        let Root { address, shape } = root;
        let nodes = self.pointers(address..address + shape.root_bytes());
        let mut keys: Vec<(u64, u64)> =
            nodes.into_iter().map(|(slot, node)| ((slot - address) / 8, node)).collect();
        // The size of the nodes or leaves below the root.
        let below = shape.node_bits.get(1).map_or(shape.leaf_bytes(), |bits| 8 << bits);
        keep_disjoint(&mut keys, below);
        for bits in &shape.node_bits[1..] {
            let below = |(key, node): (u64, u64)| {
                let is_node = self.is_anonymous(node, 8 << bits);
                let end = if is_node { node + (8 << bits) } else { node };
                let inner = self.pointers(node..end).into_iter();
                inner.map(move |(slot, leaf)| ((key << bits) | ((slot - node) / 8), leaf))
            };
            keys = keys.into_iter().flat_map(below).collect();
        }
        keep_disjoint(&mut keys, shape.leaf_bytes());
        keys.retain(|(_, leaf)| self.is_anonymous(*leaf, shape.leaf_bytes()));
        keys.into_iter().map(|(key, leaf)| (key << shape.leaf_bits, leaf)).collect()
    }

    /// Calls `each` with the extents of a tree in order of address. They do not overlap.
    pub(super) fn each_extent(
        &mut self,
        root: Root,
        mut each: impl FnMut(&mut Self, &Found) -> Next,
    ) {
        let shape = root.shape;
        let (mut known, mut rereads) = (0, 0);
        for (first, leaf) in self.leaves(root) {
            let mut is_over = false;
            self.each_entry(leaf, first, shape, shape.pointer, |tree, entry| {
                // The other pages of an extent lead to the same record as its first.
                if entry.page < known {
                    return true;
                }
                if tree.records > MAX_RECORDS {
                    is_over = true;
                    return false;
                }
                let mut entry = entry;
                for attempt in 0..=REREADS {
                    let is_last = attempt == REREADS || rereads >= MAX_REREADS;
                    let found = tree.extent(entry, leaf, first, is_last);
                    let next = found.as_ref().map_or(Next::Again, |found| each(tree, found));
                    match next {
                        Next::Again if !is_last => {}
                        Next::Stop => {
                            is_over = true;
                            return false;
                        }
                        _ => {
                            let range = found.map(|found| found.record.last_page() + 1);
                            known = range.unwrap_or(known);
                            return true;
                        }
                    }
                    // It may have changed since the page of its entry or of its record was read.
                    rereads += 1;
                    let slot = leaf + (entry.page - first) * shape.entry;
                    tree.words.forget_page(slot);
                    tree.words.forget_page(entry.record());
                    let Some(word) = tree.words.word(slot).filter(|w| w & shape.pointer != 0)
                    else {
                        return true;
                    };
                    let record = word & shape.pointer;
                    // The bitmap of a record may be on the next page.
                    tree.words.forget_page(record);
                    tree.words.forget_page(record + RECORD_ALIGNMENT);
                    entry.word = word;
                    if shape.entry > 8 {
                        entry.second = tree.words.word(slot + 8).unwrap_or(0);
                    }
                }
                true
            });
            if is_over {
                return;
            }
        }
    }

    /// Returns the extent that begins with the page of an entry.
    fn extent(&mut self, entry: Entry, leaf: u64, first: u64, is_last: bool) -> Option<Found> {
        let record = self.record(entry.record(), entry.shape)?;
        let begins =
            record.first_page() == entry.page && self.is_anonymous(record.address, record.bytes);
        if !begins {
            return None;
        }
        let shape = entry.shape;
        let last = record.last_page() - first;
        let slot = leaf + (last & ((1 << shape.leaf_bits) - 1)) * shape.entry;
        // The last page may be in the next leaf.
        let at_last = if last >> shape.leaf_bits == 0 { self.words.word(slot) } else { None };
        let agrees = at_last.is_none_or(|word| word & shape.pointer == record.at);
        if !agrees {
            self.words.forget_page(slot);
        }
        Some(Found { entry, record, leaf, agrees, is_last })
    }

    /// Reads the bits of a slab with regions of a size class. Returns `None` if it can be no slab.
    pub(super) fn slab(&mut self, record: &Record, class: usize) -> Option<Slab> {
        let is_small = class < size_class::small(record.page_bytes);
        let region = size_class::size(class).filter(|_| is_small)?;
        let count = record.bytes / region;
        // An extent has at most as many regions as a page has words.
        if count == 0 || count > record.page_bytes / 8 {
            return None;
        }
        let mut slab = Slab { region, count, bitmap: [0; MAX_BITMAP_WORDS] };
        let words = slab.bitmap.iter_mut().zip(record.bitmap());
        for (word, at) in words.take(count.div_ceil(64) as usize) {
            *word = self.words.word(at)?;
        }
        Some(slab)
    }

    /// Returns the blocks with this jemalloc's own structures: they begin with `{ size, next,
    /// record }`. Each contains one of `own`, the addresses of structures in units of
    /// [`BASE_ALIGNMENT`], or is linked with a block that does, because another jemalloc in the
    /// process has blocks of the same form.
    pub(super) fn base_blocks(&mut self, own: &BTreeSet<u64>) -> Vec<Range<u64>> {
        let mut blocks: HashMap<u64, (Range<u64>, u64)> = HashMap::new();
        let mut previous: HashMap<u64, Vec<u64>> = HashMap::new();
        for range in self.anonymous {
            for at in resident_places(self.memory, range, BASE_ALIGNMENT) {
                if let Some((block, next)) = self.base_block(at, range.end) {
                    blocks.insert(at, (block, next));
                    previous.entry(next).or_default().push(at);
                }
            }
        }
        let holds_own = |(block, _): &&(Range<u64>, u64)| {
            let places = block.start / BASE_ALIGNMENT..block.end.div_ceil(BASE_ALIGNMENT);
            own.range(places).next().is_some()
        };
        let mut left: Vec<u64> =
            blocks.values().filter(holds_own).map(|(block, _)| block.start).collect();
        let mut found = Vec::new();
        while let Some(at) = left.pop() {
            // Each is taken once.
            if let Some((block, next)) = blocks.remove(&at) {
                left.push(next);
                left.extend(previous.remove(&at).unwrap_or_default());
                found.push(block);
            }
        }
        found.sort_unstable_by_key(|block| block.start);
        found
    }

    /// Returns the block that begins at an address, and the address of the next block.
    fn base_block(&mut self, at: u64, end: u64) -> Option<(Range<u64>, u64)> {
        let (bytes, next) = self.words.pair(at)?;
        let is_block = bytes > 0
            && bytes.is_multiple_of(BASE_ALIGNMENT)
            && bytes <= end - at
            && next.is_multiple_of(BASE_ALIGNMENT);
        if !is_block {
            return None;
        }
        // A full block has no space left.
        let (word, left) = self.words.pair(at + 16)?;
        let left_bytes = self.words.word(at + 32)?;
        let is_own =
            word & NO_ARENA == NO_ARENA && (at..=at + bytes).contains(&left) && left_bytes <= bytes;
        is_own.then_some((at..at + bytes, next))
    }
}

fn is_pointer(word: u64) -> bool {
    (MIN_PAGE_BYTES..ADDRESS_END).contains(&word) && word.is_multiple_of(RECORD_ALIGNMENT)
}

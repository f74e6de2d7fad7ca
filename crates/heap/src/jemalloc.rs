//! Where the memory of jemalloc is, from 5.2 to 5.3.
//!
//! jemalloc keeps a tree from page numbers to its extents (`rtree.h`), whose root is in the zeroed data of the
//! program or library. The root is recognised by its leaves: the entry of a page leads to a record
//! (`edata_t`, `extent_t` in 5.2) that names the same page. No symbols and no version are assumed. An extent is
//! jemalloc's whether it is in use, dirty, muzzy or retained.

use std::collections::HashSet;
use std::ops::Range;

use crate::memory::{Memory, each_word, resident_places};
use crate::ranges::joined;
use crate::scattered::Scattered;

const PAGE_BITS: u32 = 12;
const PAGE: u64 = 1 << PAGE_BITS;
/// Addresses of user space end here.
const HIGHEST: u64 = 1 << 47;
/// Records begin at multiples of it (`EDATA_ALIGNMENT` is 128, that of 5.2 is 64).
const RECORD_ALIGNMENT: u64 = 64;
/// Base blocks, which hold jemalloc's own structures, begin at multiples of it (`HUGEPAGE`).
const BASE_ALIGNMENT: u64 = 2 << 20;
/// The arena number in the record of a base block (`MALLOCX_ARENA_LIMIT`).
const NO_ARENA: u64 = 4095;
/// Maximum number of words that are tried as pointers to a leaf: redis has 2,600.
const MAX_TRIED: usize = 64 << 10;
/// Maximum number of records that are read: 16 GiB of extents of one page.
const MAX_RECORDS: u64 = 4 << 20;
/// So many entries must agree with their records to make a leaf, and fewer than so many may not.
const AGREEING: u32 = 2;
const ENOUGH: u32 = 8;
const CONTRADICTING: u32 = 3;

/// How the tree is laid out, by the number of address bits that it was built for (`LG_VADDR`).
#[derive(Debug, Clone, Copy)]
struct RtreeShape {
    /// Bytes of an entry of a leaf.
    entry: u64,
    /// A leaf has 2 to this power entries.
    leaf_bits: u32,
    /// The same of each node above the leaves, from the root on.
    node_bits: &'static [u32],
    /// The bits of an entry that are the address of a record.
    pointer: u64,
}

/// 48 bits of address, and 57.
const SHAPES: [RtreeShape; 2] = [
    RtreeShape { entry: 8, leaf_bits: 18, node_bits: &[18], pointer: 0x0000_ffff_ffff_ff80 | 64 },
    RtreeShape { entry: 16, leaf_bits: 15, node_bits: &[15, 15], pointer: !127 },
];

impl RtreeShape {
    fn leaf_bytes(self) -> u64 {
        self.entry << self.leaf_bits
    }

    /// Bytes of the root.
    fn root_bytes(self) -> u64 {
        8 << self.node_bits[0]
    }
}

/// The addresses that belong to jemalloc, in order and apart from each other; nothing where there is none.
/// `data` are the ranges of zeroed data of the program and its libraries, `anonymous` the private writable
/// mappings of no file in order, neighbours joined.
pub fn extents(
    memory: &impl Memory,
    data: &[Range<u64>],
    anonymous: &[Range<u64>],
) -> Vec<Range<u64>> {
    let mut tree = Rtree { words: Scattered::new(memory), memory, anonymous, records: 0 };
    let mut found = Vec::new();
    for range in data {
        if let Some((root, shape)) = tree.root(range) {
            tree.extents_below(root, shape, &mut found);
        }
    }
    if !found.is_empty() {
        found.extend(tree.base_blocks());
    }
    found.sort_unstable_by_key(|range| range.start);
    joined(found)
}

/// A record of an extent.
struct ExtentRecord {
    bits: u64,
    address: u64,
    bytes: u64,
}

impl ExtentRecord {
    fn first_page(&self) -> u64 {
        self.address >> PAGE_BITS
    }

    fn last_page(&self) -> u64 {
        (self.address + self.bytes - 1) >> PAGE_BITS
    }
}

struct Rtree<'m, M> {
    words: Scattered<'m, M>,
    memory: &'m M,
    anonymous: &'m [Range<u64>],
    records: u64,
}

impl<'m, M: Memory> Rtree<'m, M> {
    /// Whether so many bytes from an address on are anonymous memory.
    fn is_anonymous(&self, address: u64, bytes: u64) -> bool {
        let place = self.anonymous.partition_point(|range| range.end <= address);
        self.anonymous.get(place).is_some_and(|range| {
            range.start <= address && address.checked_add(bytes).is_some_and(|end| end <= range.end)
        })
    }

    /// The root of a tree in a range of data.
    fn root(&mut self, data: &Range<u64>) -> Option<(u64, RtreeShape)> {
        let (mut tried, mut found) = (HashSet::new(), None);
        each_word(self.memory, data.clone(), |slot, node| {
            found = SHAPES.into_iter().filter(|_| is_pointer(node)).find_map(|shape| {
                let root = slot.checked_sub(self.key_below(node, shape, &mut tried)? * 8)?;
                let is_inside = data.start <= root && root + shape.root_bytes() <= data.end;
                is_inside.then_some((root, shape))
            });
            found.is_none() && tried.len() <= MAX_TRIED
        });
        found
    }

    /// The place in the root of a node that leads to leaves; nothing for what is none.
    fn key_below(
        &mut self,
        node: u64,
        shape: RtreeShape,
        tried: &mut HashSet<(u64, u64)>,
    ) -> Option<u64> {
        if let [_] = shape.node_bits {
            let is_new =
                self.is_anonymous(node, shape.leaf_bytes()) && tried.insert((node, shape.entry));
            return is_new.then(|| self.key_of_leaf(node, shape))?;
        }
        let [.., inner] = *shape.node_bits else { return None };
        if !self.is_anonymous(node, 8 << inner) || !tried.insert((node, shape.entry)) {
            return None;
        }
        // The first few leaves of the node decide.
        let leaves: Vec<(u64, u64)> = self.pointers(node..node + (8 << inner), 4);
        leaves.into_iter().find_map(|(slot, leaf)| {
            let is_leaf =
                self.is_anonymous(leaf, shape.leaf_bytes()) && tried.insert((leaf, shape.entry));
            let key = is_leaf.then(|| self.key_of_leaf(leaf, shape))??;
            (key & ((1 << inner) - 1) == (slot - node) / 8).then_some(key >> inner)
        })
    }

    /// Words in a range that may be pointers, with their places, at most so many.
    fn pointers(&self, range: Range<u64>, most: usize) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        each_word(self.memory, range, |at, word| {
            found.extend(is_pointer(word).then_some((at, word)));
            found.len() < most
        });
        found
    }

    /// The high bits that all pages of a leaf share, if it is one.
    fn key_of_leaf(&mut self, leaf: u64, shape: RtreeShape) -> Option<u64> {
        let mask = (1 << shape.leaf_bits) - 1;
        let (mut key, mut agree, mut contradict) = (None, 0, 0);
        self.each_entry(leaf, shape, |tree, index, entry| {
            let Some(record) = tree.record(entry & shape.pointer) else {
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

    /// Gives the entries of a leaf with their indices, those that are empty left out, until `each` has
    /// enough.
    fn each_entry(
        &mut self,
        leaf: u64,
        shape: RtreeShape,
        mut each: impl FnMut(&mut Self, u64, u64) -> bool,
    ) {
        each_word(self.memory, leaf..leaf + shape.leaf_bytes(), |at, word| {
            let is_entry = (at - leaf).is_multiple_of(shape.entry) && word & shape.pointer != 0;
            !is_entry || each(self, (at - leaf) / shape.entry, word)
        });
    }

    /// The record of an extent, if it can be one.
    fn record(&mut self, at: u64) -> Option<ExtentRecord> {
        self.records += 1;
        if !is_pointer(at) || self.records > MAX_RECORDS {
            return None;
        }
        let (bits, address) = self.words.pair(at)?;
        let bytes = self.words.word(at.checked_add(16)?)? & !(PAGE - 1);
        let end = address.checked_add(bytes)?;
        let is_sound = bytes > 0 && end <= HIGHEST && address >= PAGE;
        is_sound.then_some(ExtentRecord { bits, address: address & !(PAGE - 1), bytes })
    }

    /// All extents of a tree.
    fn extents_below(&mut self, root: u64, shape: RtreeShape, found: &mut Vec<Range<u64>>) {
        let mut leaves = self.pointers(root..root + shape.root_bytes(), usize::MAX);
        let mut keys: Vec<(u64, u64)> =
            leaves.drain(..).map(|(slot, node)| ((slot - root) / 8, node)).collect();
        for bits in &shape.node_bits[1..] {
            let below = |(key, node): (u64, u64)| {
                let is_node = self.is_anonymous(node, 8 << bits);
                let end = if is_node { node + (8 << bits) } else { node };
                let inner = self.pointers(node..end, usize::MAX).into_iter();
                inner.map(move |(slot, leaf)| ((key << bits) | ((slot - node) / 8), leaf))
            };
            keys = keys.into_iter().flat_map(below).collect();
        }
        for (key, leaf) in keys {
            if !self.is_anonymous(leaf, shape.leaf_bytes()) {
                continue;
            }
            // The last page of an extent leads to the same record as its first.
            let mut known = 0;
            self.each_entry(leaf, shape, |tree, index, entry| {
                let page = (key << shape.leaf_bits) | index;
                if page >= known
                    && let Some(record) = tree.record(entry & shape.pointer)
                    && record.first_page() == page
                    && tree.is_anonymous(record.address, record.bytes)
                {
                    known = record.last_page() + 1;
                    found.push(record.address..record.address + record.bytes);
                }
                true
            });
        }
    }

    /// The blocks that hold jemalloc's own structures: `{ size, next, record }` at their beginnings.
    fn base_blocks(&mut self) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        for range in self.anonymous {
            for at in resident_places(self.memory, range, BASE_ALIGNMENT) {
                found.extend(self.base_block(at, range.end));
            }
        }
        found
    }

    fn base_block(&mut self, at: u64, end: u64) -> Option<Range<u64>> {
        let (bytes, next) = self.words.pair(at)?;
        let is_block = bytes > 0
            && bytes.is_multiple_of(BASE_ALIGNMENT)
            && bytes <= end - at
            && next.is_multiple_of(BASE_ALIGNMENT);
        if !is_block {
            return None;
        }
        let record = self.record(at + 16)?;
        let is_own =
            record.bits & NO_ARENA == NO_ARENA && (at..at + bytes).contains(&record.address);
        is_own.then_some(at..at + bytes)
    }
}

fn is_pointer(word: u64) -> bool {
    (PAGE..HIGHEST).contains(&word) && word.is_multiple_of(RECORD_ALIGNMENT)
}

//! The survivor book: the blocks of a heap, and the snapshot in which each of them first appeared.
//!
//! A block is identified by its address, its size and its print. Its cohort is the snapshot in
//! which it was first seen. To bound its memory, the book keeps only the blocks of the places that
//! a hash of the address selects. Such a sample is independent of the size of a block and of the
//! call path that allocated it.

mod entry;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use lowtide_analysis::leaks::LostCounts;
use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};
use lowtide_heap::ranges::union;
use lowtide_model::survivors::{ClassSizes, CohortCount, LARGE_BYTES, PARTS, size_class};

use self::entry::{PackedEntry, UNIT, prints_agree};

/// The cohort of the blocks that existed before the first snapshot.
pub(crate) const FIRST_COHORT: u8 = 0;
/// Maximum number of blocks in the book of `lowtide leaks`, which then takes 20 MiB.
pub const MAX_BLOCKS: usize = 2_500_000;
/// Maximum number of blocks of at least [`PLACE`] bytes, which take 4 MiB.
const MAX_LARGE: usize = 64 << 10;
/// Maximum number of stored ranges that a snapshot could not read.
const MAX_UNREAD: usize = 4096;
/// Maximum number of cohorts. Above it, neighbouring cohorts are merged.
pub(crate) const MAX_COHORTS: u8 = 96;

const _: () = assert!(LARGE_BYTES == PLACE, "blocks of at least a place are kept by themselves");

/// The blocks of a place, in order of address.
type Entries = Vec<PackedEntry>;

/// A block of at least [`PLACE`] bytes.
#[derive(Clone, Copy)]
struct Large {
    bytes: u64,
    print: u16,
    cohort: u8,
    is_lost: bool,
    is_seen: bool,
}

impl Large {
    fn survivor(&self, at: u64) -> Survivor {
        let Self { bytes, cohort, print, is_lost, .. } = *self;
        Survivor { at, bytes, cohort, print, is_lost }
    }
}

/// Returns the largest of some blocks, at most `most`, the largest first.
pub(crate) fn largest(blocks: impl Iterator<Item = Survivor>, most: usize) -> Vec<Survivor> {
    let mut all: Vec<Survivor> = blocks.collect();
    all.sort_by_key(|block| (Reverse(block.bytes), block.at));
    all.truncate(most);
    all
}

/// Returns the cohort of a block that is seen for the first time: the current one, unless the block
/// may be older.
fn cohort_at(unread: &[(Range<u64>, u8)], at: u64, current: u8) -> u8 {
    let place = unread.partition_point(|(range, _)| range.end <= at);
    let unread = unread.get(place).filter(|(range, _)| range.contains(&at));
    unread.map_or(current, |(_, since)| *since)
}

/// Hashes the number of a place.
#[derive(Default)]
pub(crate) struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, place: u64) {
        let mixed = (place ^ place >> 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

pub(crate) type ByPlace<T> = HashMap<u64, T, BuildHasherDefault<PlaceHasher>>;

fn hash(place: u64) -> u64 {
    let mut hasher = PlaceHasher::default();
    hasher.write_u64(place);
    hasher.finish()
}

/// Returns the part that a place belongs to, from 0 to [`PARTS`] - 1.
fn part(place: u64) -> usize {
    // Not the bits that select places.
    (hash(place) >> 24) as usize % PARTS
}

/// A block in the book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survivor {
    /// The address that the program uses.
    pub at: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The snapshot in which it was first seen.
    pub cohort: u8,
    /// The print of its content.
    pub print: u16,
    /// Whether no pointer to it was found.
    pub is_lost: bool,
}

/// The counts of the book after a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BookCounts {
    /// Blocks by class and cohort, in this order.
    pub counts: Vec<CohortCount>,
    /// The sizes of each class.
    pub sizes: BTreeMap<u16, ClassSizes>,
}

/// Blocks by size class, in each of the parts into which the places are divided at random.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ByPart {
    /// The survivors.
    pub survivors: BTreeMap<u16, [u64; PARTS]>,
    /// All blocks that were allocated since the first snapshot.
    pub all: BTreeMap<u16, [u64; PARTS]>,
}

/// The survivor book.
pub struct Book {
    places: ByPlace<Entries>,
    large: BTreeMap<u64, Large>,
    /// Places are sampled if these bits of their hash are 0.
    mask: u64,
    /// The same mask for the addresses of large blocks.
    large_mask: u64,
    max_blocks: usize,
    blocks: usize,
    /// The cohort of blocks that are seen for the first time.
    cohort: u8,
    /// Ranges that the last snapshot could not read, in order. Each has the cohort of the first
    /// snapshot that could not read it: a block that appears there now may have been allocated as
    /// early as that.
    unread_before: Vec<(Range<u64>, u8)>,
    /// Ranges that this snapshot could not read.
    unread: Vec<Range<u64>>,
    unread_bytes: u64,
    /// Whether it could not read more ranges than are stored.
    has_more_unread: bool,
    scratch: Entries,
}

impl Book {
    /// Creates an empty book for at most `max_blocks` blocks.
    pub fn new(max_blocks: usize) -> Self {
        Self {
            places: ByPlace::default(),
            large: BTreeMap::new(),
            mask: 0,
            large_mask: 0,
            max_blocks,
            blocks: 0,
            cohort: FIRST_COHORT,
            unread_before: Vec::new(),
            unread: Vec::new(),
            unread_bytes: 0,
            has_more_unread: false,
            scratch: Vec::new(),
        }
    }

    /// Returns the share of the places that are in the book.
    pub fn sampled_share(&self) -> f64 {
        1.0 / (self.mask + 1) as f64
    }

    /// Returns the share of the large blocks that are in the book.
    pub fn large_sampled_share(&self) -> f64 {
        1.0 / (self.large_mask + 1) as f64
    }

    /// Returns the number of blocks in the book.
    pub fn blocks(&self) -> usize {
        self.blocks + self.large.len()
    }

    /// Returns the cohort of the blocks that the next snapshot sees for the first time.
    pub fn cohort(&self) -> u8 {
        self.cohort
    }

    /// Returns the number of bytes that the snapshot could not read; `None` if these are in more
    /// ranges than the book stores.
    pub fn unread_bytes(&self) -> Option<u64> {
        (!self.has_more_unread).then_some(self.unread_bytes)
    }

    /// Starts a snapshot.
    pub fn begin(&mut self) {
        (self.unread_bytes, self.has_more_unread) = (0, false);
        for entry in self.places.values_mut().flatten() {
            *entry = entry.with_seen(false);
        }
        for large in self.large.values_mut() {
            large.is_seen = false;
        }
    }

    /// Ends a snapshot, and counts the blocks. If the snapshot was incomplete, blocks that were not
    /// seen are kept, and the next snapshot belongs to the same cohort.
    pub fn end(&mut self, is_whole: bool) -> BookCounts {
        if is_whole {
            self.places.retain(|_, entries| {
                entries.retain(|entry| entry.is_seen());
                if entries.capacity() > entries.len() + entries.len() / 4 + 8 {
                    entries.shrink_to_fit();
                }
                !entries.is_empty()
            });
            self.large.retain(|_, large| large.is_seen);
        }
        self.blocks = self.places.values().map(Vec::len).sum();
        self.remember_unread();
        let counted = self.count();
        if is_whole {
            self.cohort += 1;
        }
        counted
    }

    fn remember_unread(&mut self) {
        let unread = std::mem::take(&mut self.unread);
        let ranges = union(unread);
        let since = |range: &Range<u64>| {
            let overlapping = self.unread_before.iter();
            let before = overlapping
                .filter(|(other, _)| other.start < range.end && range.start < other.end)
                .map(|(_, since)| *since);
            before.min().unwrap_or(self.cohort).min(self.cohort)
        };
        self.unread_before = ranges.iter().map(|range| (range.clone(), since(range))).collect();
    }

    fn count(&self) -> BookCounts {
        let mut counts: BTreeMap<(u16, u8), u32> = BTreeMap::new();
        let mut small = vec![[0_u32; MAX_COHORTS as usize + 1]; usize::from(size_class(PLACE)) + 1];
        let mut sizes: BTreeMap<u16, ClassSizes> = BTreeMap::new();
        let mut by_size = vec![0_u64; (PLACE / UNIT) as usize];
        for entry in self.places.values().flatten() {
            let cohort = usize::from(entry.cohort().min(MAX_COHORTS));
            small[usize::from(size_class(entry.bytes()))][cohort] += 1;
            by_size[(entry.bytes() / UNIT) as usize] += 1;
        }
        for (class, cohorts) in small.iter().enumerate() {
            for (cohort, count) in cohorts.iter().enumerate().filter(|(_, count)| **count > 0) {
                counts.insert((class as u16, cohort as u8), *count);
            }
        }
        let mut add = |bytes: u64, count: u64| {
            let class = sizes.entry(size_class(bytes)).or_default();
            let smallest = if class.count == 0 { bytes } else { class.smallest_bytes };
            class.smallest_bytes = smallest.min(bytes);
            class.largest_bytes = class.largest_bytes.max(bytes);
            class.count += count;
            class.bytes += count * bytes;
        };
        for (units, count) in by_size.iter().enumerate().filter(|(_, count)| **count > 0) {
            add(units as u64 * UNIT, *count);
        }
        for large in self.large.values() {
            add(large.bytes, 1);
            *counts.entry((size_class(large.bytes), large.cohort)).or_default() += 1;
        }
        let counts = counts
            .into_iter()
            .map(|((class, cohort), count)| CohortCount { class, cohort, count })
            .collect();
        BookCounts { counts, sizes }
    }

    /// Calls `each` for every block of the book.
    pub fn each(&self, mut each: impl FnMut(Survivor)) {
        for (place, entries) in &self.places {
            for entry in entries {
                each(Survivor {
                    at: place * PLACE + entry.offset(),
                    bytes: entry.bytes(),
                    cohort: entry.cohort(),
                    print: entry.print(),
                    is_lost: entry.is_lost(),
                });
            }
        }
        for (at, large) in &self.large {
            each(large.survivor(*at));
        }
    }

    /// Returns the largest blocks of at least [`LARGE_BYTES`], at most `most`; none if the book has
    /// only a sample of them.
    pub fn largest(&self, most: usize) -> Vec<Survivor> {
        if self.large_mask != 0 {
            return Vec::new();
        }
        largest(self.large.iter().map(|(at, large)| large.survivor(*at)), most)
    }

    /// Marks each block as lost or not. `lost` returns whether no pointer was found to the block
    /// with an address and a print.
    pub(crate) fn mark_lost(&mut self, lost: impl Fn(u64, u16) -> bool) {
        for (place, entries) in &mut self.places {
            for entry in entries {
                *entry = entry.with_lost(lost(place * PLACE + entry.offset(), entry.print()));
            }
        }
        for (at, large) in &mut self.large {
            large.is_lost = lost(*at, large.print);
        }
    }

    /// Counts the blocks in each of the parts into which the places are divided at random. `old`
    /// are the cohorts whose blocks are survivors.
    pub fn by_part(&self, old: &Range<u8>) -> ByPart {
        let mut counted = ByPart::default();
        self.each(|block| {
            let (class, part) = (size_class(block.bytes), part(block.at / PLACE));
            if block.cohort != FIRST_COHORT {
                counted.all.entry(class).or_default()[part] += 1;
            }
            if old.contains(&block.cohort) {
                counted.survivors.entry(class).or_default()[part] += 1;
            }
        });
        counted
    }

    /// Counts the blocks to which no pointer was found. `old` are the cohorts whose blocks are
    /// survivors.
    pub fn lost(&self, old: &Range<u8>) -> LostCounts {
        let mut lost = LostCounts::default();
        self.each(|block| {
            if !block.is_lost {
                return;
            }
            let (class, part) = (size_class(block.bytes), part(block.at / PLACE));
            *lost.counts.entry(class).or_default().entry(block.cohort).or_default() += 1;
            if old.contains(&block.cohort) {
                lost.parts.entry(class).or_default()[part] += 1;
            }
            if block.cohort != FIRST_COHORT {
                lost.parts_of_all.entry(class).or_default()[part] += 1;
            }
        });
        lost
    }

    /// Merges cohorts: `renumbered` has the new number of each.
    pub(crate) fn renumber(&mut self, renumbered: &[u8]) {
        let new = |cohort: u8| renumbered.get(usize::from(cohort)).copied().unwrap_or(cohort);
        for entry in self.places.values_mut().flatten() {
            *entry = entry.with_cohort(new(entry.cohort()));
        }
        for large in self.large.values_mut() {
            large.cohort = new(large.cohort);
        }
        self.cohort = new(self.cohort);
        for (_, since) in &mut self.unread_before {
            *since = new(*since);
        }
    }

    /// Marks the large blocks that were received for a range as outdated.
    fn outdate_large(&mut self, range: Range<u64>) {
        for (_, large) in self.large.range_mut(range) {
            large.is_seen = false;
        }
    }

    /// Keeps the blocks of half as many places, until there is room.
    fn make_room(&mut self) {
        while self.blocks > self.max_blocks && self.mask < u64::from(u32::MAX) >> 8 {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.places.retain(|place, _| hash(*place) & mask == 0);
            self.blocks = self.places.values().map(Vec::len).sum();
        }
    }
}

impl BlockVisitor for Book {
    fn wants(&self, place: u64) -> bool {
        hash(place) & self.mask == 0
    }

    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
        let place = range.start / PLACE;
        if !self.wants(place) || (blocks.is_empty() && !self.places.contains_key(&place)) {
            self.outdate_large(range);
            return;
        }
        let (start, end) = (range.start - place * PLACE, range.end - place * PLACE);
        let (current, unread) = (self.cohort, &self.unread_before);
        let old = self.places.entry(place).or_default();
        let first = old.partition_point(|entry| entry.offset() < start);
        let last = old.partition_point(|entry| entry.offset() < end);
        let merged = &mut self.scratch;
        merged.clear();
        let mut before = old[first..last].iter().copied().peekable();
        for block in blocks {
            let new = PackedEntry::new(block, 0);
            while before.next_if(|entry| entry.offset() < new.offset()).is_some() {}
            let known = before.peek().filter(|old| old.offset() == new.offset());
            merged.push(match known.filter(|old| old.is_same(new)) {
                // Content that was not read this time keeps its earlier print.
                Some(old) if new.print() == 0 => old.with_seen(true),
                Some(old) => new.with_cohort(old.cohort()).with_lost(old.is_lost()),
                None => new.with_cohort(cohort_at(unread, block.at, current)),
            });
        }
        self.blocks = self.blocks + merged.len() - (last - first);
        if first == 0 && last == old.len() && merged.len() <= old.capacity() {
            old.clear();
            old.extend_from_slice(merged);
        } else {
            let mut entries = Vec::with_capacity(old.len() - (last - first) + merged.len());
            entries.extend_from_slice(&old[..first]);
            entries.extend_from_slice(merged);
            entries.extend_from_slice(&old[last..]);
            *old = entries;
        }
        self.outdate_large(range);
        self.make_room();
    }

    fn large(&mut self, block: Block) {
        if hash(block.at) & self.large_mask != 0 {
            return;
        }
        let old = self
            .large
            .get(&block.at)
            .filter(|old| old.bytes == block.bytes && prints_agree(old.print, block.print));
        let cohort = old.map_or_else(
            || cohort_at(&self.unread_before, block.at, self.cohort),
            |old| old.cohort,
        );
        let print = if block.print == 0 { old.map_or(0, |old| old.print) } else { block.print };
        let is_lost = old.is_some_and(|old| old.is_lost);
        let large = Large { bytes: block.bytes, print, cohort, is_lost, is_seen: true };
        self.large.insert(block.at, large);
        while self.large.len() > MAX_LARGE {
            self.large_mask = self.large_mask << 1 | 1;
            let mask = self.large_mask;
            self.large.retain(|at, _| hash(*at) & mask == 0);
        }
    }

    fn unknown(&mut self, range: Range<u64>) {
        self.unread_bytes += range.end - range.start;
        if self.unread.len() < MAX_UNREAD {
            self.unread.push(range.clone());
        } else {
            self.has_more_unread = true;
        }
        let seen = |place: u64, entries: &mut Entries| {
            for entry in entries {
                if range.contains(&(place * PLACE + entry.offset())) {
                    *entry = entry.with_seen(true);
                }
            }
        };
        let places = range.start / PLACE..range.end.div_ceil(PLACE);
        if places.end - places.start < self.places.len() as u64 {
            for place in places {
                if let Some(entries) = self.places.get_mut(&place) {
                    seen(place, entries);
                }
            }
        } else {
            self.places.iter_mut().for_each(|(place, entries)| seen(*place, entries));
        }
        for (_, large) in self.large.range_mut(range.clone()) {
            large.is_seen = true;
        }
    }

    fn is_free(&mut self, at: u64) {
        if let Some(large) = self.large.get_mut(&at) {
            large.is_seen = false;
        }
        if let Some(entries) = self.places.get_mut(&(at / PLACE)) {
            let place = entries.partition_point(|entry| entry.offset() < at % PLACE);
            if let Some(entry) = entries.get_mut(place).filter(|e| e.offset() == at % PLACE) {
                *entry = entry.with_seen(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Address and content of each block, which has 16 bytes for each step to the next slot that it
    /// takes.
    type Heap = BTreeMap<u64, (u64, u16)>;

    fn show(book: &mut Book, heap: &Heap, is_whole: bool) -> BookCounts {
        book.begin();
        let mut by_place: BTreeMap<u64, Vec<Block>> = BTreeMap::new();
        for (at, (bytes, print)) in heap.iter().filter(|(_, (bytes, _))| *bytes < PLACE) {
            let block = Block { at: *at, bytes: *bytes, print: *print };
            by_place.entry(at / PLACE).or_default().push(block);
        }
        for (place, blocks) in by_place {
            // A walk may visit a place in two parts.
            let middle = place * PLACE + PLACE / 2;
            let split = blocks.partition_point(|block| block.at < middle);
            book.blocks(place * PLACE..middle, &blocks[..split]);
            book.blocks(middle..(place + 1) * PLACE, &blocks[split..]);
        }
        for (at, (bytes, print)) in heap.iter().filter(|(_, (bytes, _))| *bytes >= PLACE) {
            book.large(Block { at: *at, bytes: *bytes, print: *print });
        }
        book.end(is_whole)
    }

    fn survivors(book: &Book) -> BTreeMap<u64, (u64, u8)> {
        let mut found = BTreeMap::new();
        book.each(|survivor| {
            found.insert(survivor.at, (survivor.bytes, survivor.cohort));
        });
        found
    }

    fn heaps() -> impl Strategy<Value = Vec<Heap>> {
        let slot = (0_u64..4096, 1_u64..4, 1_u16..4);
        let heap = proptest::collection::vec(slot, 0..300).prop_map(|slots| {
            let block = |(slot, size, print): (u64, u64, u16)| {
                let bytes = if slot % 97 == 0 { PLACE + size * 4096 } else { size * 32 };
                (0x7f00_0000_0010 + slot * 128, (bytes, print))
            };
            slots.into_iter().map(block).collect()
        });
        proptest::collection::vec(heap, 1..6)
    }

    proptest! {
        #[test]
        fn the_book_assigns_the_same_cohorts_as_a_map_of_all_blocks(heaps in heaps()) {
            let mut book = Book::new(MAX_BLOCKS);
            let mut known: BTreeMap<u64, (u64, u16, u8)> = BTreeMap::new();
            for (cohort, heap) in (0..).zip(&heaps) {
                let counted = show(&mut book, heap, true);
                let date = |(at, (bytes, print)): (&u64, &(u64, u16))| {
                    let old = known.get(at).filter(|old| (old.0, old.1) == (*bytes, *print));
                    (*at, (*bytes, *print, old.map_or(cohort, |old| old.2)))
                };
                known = heap.iter().map(date).collect();
                let expected: BTreeMap<u64, (u64, u8)> =
                    known.iter().map(|(at, (bytes, _, cohort))| (*at, (*bytes, *cohort))).collect();
                prop_assert_eq!(survivors(&book), expected);
                prop_assert_eq!(book.blocks(), heap.len());
                let count: u32 = counted.counts.iter().map(|found| found.count).sum();
                prop_assert_eq!(count as usize, heap.len());
                let bytes: u64 = counted.sizes.values().map(|class| class.bytes).sum();
                prop_assert_eq!(bytes, heap.values().map(|(bytes, _)| bytes).sum::<u64>());
            }
        }

        #[test]
        fn a_sampled_book_assigns_the_same_cohorts_to_the_blocks_it_keeps(heaps in heaps()) {
            let (mut all, mut some) = (Book::new(MAX_BLOCKS), Book::new(60));
            for heap in &heaps {
                show(&mut all, heap, true);
                show(&mut some, heap, true);
            }
            prop_assert!(some.blocks <= 60 || some.sampled_share() < 1e-3);
            let all = survivors(&all);
            for (at, found) in survivors(&some) {
                prop_assert_eq!(all.get(&at), Some(&found));
            }
        }
    }

    fn heap(blocks: &[(u64, u64, u16)]) -> Heap {
        blocks.iter().map(|(at, bytes, print)| (*at, (*bytes, *print))).collect()
    }

    #[test]
    fn an_incomplete_snapshot_drops_no_blocks_and_starts_no_cohort() {
        let mut book = Book::new(MAX_BLOCKS);
        show(&mut book, &heap(&[(0x10010, 32, 5), (0x10050, 32, 5)]), true);
        show(&mut book, &heap(&[(0x10010, 32, 5), (0x20010, 32, 5)]), false);
        assert_eq!(book.cohort(), 1);
        show(&mut book, &heap(&[(0x10010, 32, 5), (0x20010, 32, 5), (0x30010, 32, 5)]), true);
        let expected = [(0x10010, (32, 0)), (0x20010, (32, 1)), (0x30010, (32, 1))];
        assert_eq!(survivors(&book), BTreeMap::from(expected));
    }

    #[test]
    fn unreadable_blocks_keep_their_cohort_and_free_blocks_are_dropped() {
        let mut book = Book::new(MAX_BLOCKS);
        let first = heap(&[(0x10010, 32, 5), (0x10050, 32, 5), (0x20010, 0x20000, 7)]);
        show(&mut book, &first, true);
        book.begin();
        book.unknown(0x10000..0x30000);
        book.is_free(0x10050);
        book.end(true);
        let expected = [(0x10010, (32, 0)), (0x20010, (0x20000, 0))];
        assert_eq!(survivors(&book), BTreeMap::from(expected));
        // The print 0 agrees with any other, and does not replace one that was read.
        show(&mut book, &heap(&[(0x10010, 32, 0)]), true);
        show(&mut book, &heap(&[(0x10010, 32, 6)]), true);
        assert_eq!(survivors(&book), BTreeMap::from([(0x10010, (32, 3))]));
    }

    #[test]
    fn a_new_block_in_an_unreadable_range_dates_from_its_first_unreadable_snapshot() {
        let mut book = Book::new(MAX_BLOCKS);
        show(&mut book, &heap(&[(0x10010, 32, 5)]), true);
        book.begin();
        book.unknown(0x20000..0x30000);
        book.end(true);
        book.begin();
        book.unknown(0x28000..0x30000);
        book.end(true);
        let blocks = [(0x20010, 32, 5), (0x28010, 32, 5), (0x30010, 32, 5)];
        show(&mut book, &heap(&blocks), true);
        let expected = [(0x20010, (32, 3)), (0x28010, (32, 1)), (0x30010, (32, 3))];
        assert_eq!(survivors(&book), BTreeMap::from(expected));
    }

    #[test]
    fn merging_cohorts_combines_their_blocks() {
        let mut book = Book::new(MAX_BLOCKS);
        for count in 1..=4 {
            let blocks = (0..count).map(|number| (0x10010 + number * 0x40, 32, 5));
            show(&mut book, &heap(&blocks.collect::<Vec<_>>()), true);
        }
        book.renumber(&[0, 1, 1, 2, 3]);
        let cohorts: Vec<u8> = survivors(&book).values().map(|(_, cohort)| *cohort).collect();
        assert_eq!((cohorts, book.cohort()), (vec![0, 1, 1, 2], 3));
    }
}

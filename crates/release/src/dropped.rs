//! The pages that a release has dropped, as a sample that is checked later for pages that came
//! back.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::HeapMapping;
use lowtide_probe::heap;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::target::{Target, TargetError};

/// Number of pages in a block: one bit of a word for each.
const BLOCK_PAGES: u64 = 64;
/// Maximum number of blocks in a sample: 64 KiB of memory, and 4,096 short scans of a page table.
const MAX_BLOCKS: usize = 4096;

/// The pages that a release has dropped.
///
/// Memory is divided into aligned blocks of 64 pages. A block belongs to the sample if a hash of
/// its address ends with `level` zero bits, so that each page has the same probability of `1 /
/// 2^level`, whatever the sizes of the dropped ranges are. The level rises when there are too many
/// blocks; at level 0, the sample is everything.
#[derive(Debug)]
pub struct DroppedRanges {
    /// The dropped pages of each block, by the block's address divided by its size.
    blocks: BTreeMap<u64, u64>,
    level: u32,
    /// Size of a page in bytes.
    page: u64,
    /// The page table of the target. Present once the release has dropped anything.
    memory: Option<ProcessMemory>,
}

/// Dropped pages that are resident again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CameBack {
    /// All of them, in bytes.
    pub bytes: u64,
    /// The part of them that is in huge pages, in bytes: mostly pages that khugepaged filled, and
    /// not the program. `None` if the kernel does not report that (before Linux 6.7).
    pub huge_bytes: Option<u64>,
}

impl DroppedRanges {
    /// Returns an empty sample, for pages of this many bytes.
    pub(crate) fn new(page: u64) -> Self {
        Self { blocks: BTreeMap::new(), level: 0, page, memory: None }
    }

    /// Adds pages that are about to be dropped. Pages that were added before are counted once.
    pub(crate) fn add(&mut self, pages: &Range<u64>) {
        let size = self.block_bytes();
        for block in pages.start / size..pages.end.div_ceil(size) {
            if is_in_sample(block, self.level) {
                *self.blocks.entry(block).or_default() |= self.mask(block, pages);
            }
            self.bound();
        }
    }

    /// Adds the sample of another heap of the process.
    pub(crate) fn join(&mut self, other: Self) {
        self.level = self.level.max(other.level);
        for (block, pages) in other.blocks {
            *self.blocks.entry(block).or_default() |= pages;
        }
        self.blocks.retain(|block, _| is_in_sample(*block, self.level));
        self.bound();
        self.memory = self.memory.take().or(other.memory);
    }

    /// Raises the level until the sample has its bounded size.
    fn bound(&mut self) {
        while self.blocks.len() > MAX_BLOCKS {
            self.level += 1;
            self.blocks.retain(|block, _| is_in_sample(*block, self.level));
        }
    }

    /// Completes the sample at the end of a release: keeps the pages that are not resident now. The
    /// others are in use (their range was no longer free when its turn came), or were written to
    /// since.
    pub(crate) fn complete(&mut self, memory: ProcessMemory) {
        let size = self.block_bytes();
        let blocks = std::mem::take(&mut self.blocks);
        self.blocks = blocks
            .into_iter()
            .map(|(block, pages)| {
                let resident = memory.resident(block * size..(block + 1) * size);
                (block, pages & !self.mask_of_all(block, &resident))
            })
            .filter(|(_, pages)| *pages != 0)
            .collect();
        self.memory = Some(memory);
    }

    /// Returns the size of all pages that were dropped and were not resident when the release
    /// ended, in bytes. If the sample is not everything, this is an estimate with a standard error
    /// of about 2 %, the same for this and for what came back: the ratio of the two is more exact.
    pub fn bytes(&self) -> u64 {
        self.scaled(self.blocks.values().map(|pages| pages.count_ones()).sum())
    }

    /// Estimates how much of [`DroppedRanges::bytes`] is resident again, in mappings that may hold
    /// a heap (private, writable, anonymous). Pages of the heap that the program unmapped, and
    /// replaced with other memory of that kind, count as well.
    ///
    /// # Errors
    /// Fails if the process has ended, has executed another program, or may not be inspected any
    /// more.
    pub fn came_back(&self, target: &Target) -> Result<CameBack, TargetError> {
        target.stat()?;
        let Some(memory) = &self.memory else {
            return Ok(CameBack { bytes: 0, huge_bytes: Some(0) });
        };
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let mappings = heap::mappings(&maps);
        let size = self.block_bytes();
        let (mut pages, mut huge_pages) = (0, Some(0));
        for (block, dropped) in &self.blocks {
            let range = block * size..(block + 1) * size;
            let resident = self.mask_of_all(*block, &memory.resident(range.clone()));
            let back = dropped & resident & self.mask_of_mappings(*block, &mappings);
            if back == 0 {
                continue;
            }
            pages += back.count_ones();
            let huge = memory.huge(range).ok().flatten();
            let huge = huge.map(|huge| (back & self.mask_of_all(*block, &huge)).count_ones());
            huge_pages = huge_pages.zip(huge).map(|(sum, huge)| sum + huge);
        }
        // Unused mappings have no pages, and give no information about the program.
        if !memory.is_in_use() {
            return Err(match target.is_alive() && !maps.is_empty() {
                true => TargetError::Replaced(target.pid),
                false => TargetError::Gone(target.pid),
            });
        }
        let huge_bytes = huge_pages.map(|pages| self.scaled(pages));
        Ok(CameBack { bytes: self.scaled(pages), huge_bytes })
    }

    /// Returns the size of a block in bytes.
    fn block_bytes(&self) -> u64 {
        BLOCK_PAGES * self.page
    }

    /// Returns the size of all pages of which this many are in the sample, in bytes.
    fn scaled(&self, pages: u32) -> u64 {
        (u64::from(pages) * self.page) << self.level
    }

    /// Returns the bits of the pages in a block that a range covers; the range consists of whole
    /// pages.
    fn mask(&self, block: u64, range: &Range<u64>) -> u64 {
        let start = block * self.block_bytes();
        let from = (range.start.max(start) - start) / self.page;
        let to = range.end.saturating_sub(start) / self.page;
        let up_to = |pages: u64| if pages < BLOCK_PAGES { (1 << pages) - 1 } else { u64::MAX };
        up_to(to) & !up_to(from)
    }

    fn mask_of_all(&self, block: u64, ranges: &[Range<u64>]) -> u64 {
        ranges.iter().fold(0, |mask, range| mask | self.mask(block, range))
    }

    /// Returns the bits of the pages in a block that are in any of the mappings, which are in
    /// order.
    fn mask_of_mappings(&self, block: u64, mappings: &[HeapMapping]) -> u64 {
        let (start, end) = (block * self.block_bytes(), (block + 1) * self.block_bytes());
        let first = mappings.partition_point(|mapping| mapping.range.end <= start);
        let inside = mappings[first..].iter().take_while(|mapping| mapping.range.start < end);
        inside.fold(0, |mask, mapping| mask | self.mask(block, &mapping.range))
    }
}

/// Returns whether a block belongs to a sample of this level. The hash is the finalizer of
/// SplitMix64.
fn is_in_sample(block: u64, level: u32) -> bool {
    let hash = (block ^ block >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31).trailing_zeros() >= level
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn sample(ranges: impl IntoIterator<Item = Range<u64>>) -> DroppedRanges {
        let mut dropped = DroppedRanges::new(PAGE);
        ranges.into_iter().for_each(|range| dropped.add(&range));
        dropped
    }

    #[test]
    fn a_small_sample_is_exact_and_counts_each_page_once() {
        let whole = 0x7000_0000_0000..0x7000_0000_0000 + 200 * PAGE;
        let part = whole.start + 63 * PAGE..whole.start + 65 * PAGE;
        let apart = whole.end + PAGE..whole.end + 2 * PAGE;
        assert_eq!(sample([part.clone()]).bytes(), 2 * PAGE);
        assert_eq!(sample([whole, part, apart]).bytes(), 201 * PAGE);
        assert_eq!(sample([]).bytes(), 0);
    }

    #[test]
    fn a_large_sample_is_bounded_and_estimates_the_dropped_bytes() {
        for (bytes, distance) in [(PAGE, 3 * PAGE), (37 * PAGE, 41 * PAGE), (PAGE << 7, PAGE << 7)]
        {
            let count = 100_000;
            let start = |number: u64| 0x5555_0000_0000 + number * distance;
            let dropped = sample((0..count).map(|n| start(n)..start(n) + bytes));
            assert!(dropped.blocks.len() <= MAX_BLOCKS);
            let (estimate, exact) = (dropped.bytes() as f64, (count * bytes) as f64);
            assert!((estimate / exact - 1.0).abs() < 0.05, "{bytes}: {estimate} {exact}");
        }
    }

    #[test]
    fn the_samples_of_two_heaps_are_one() {
        let range = |start: u64, pages: u64| start..start + pages * PAGE;
        let mut both = sample([range(0x7000_0000_0000, 10)]);
        both.join(sample([range(0x7000_0000_5000, 10), range(0x7100_0000_0000, 3)]));
        assert_eq!(both.bytes(), 18 * PAGE);
        let many = |start: u64| sample((0..8000).map(|n| range(start + n * 256 * PAGE, 1)));
        let (mut one, other) = (many(0x6000_0000_0000), many(0x6100_0000_0000));
        one.join(other);
        assert!(one.blocks.len() <= MAX_BLOCKS);
        assert!((one.bytes() as f64 / (16_000 * PAGE) as f64 - 1.0).abs() < 0.05);
    }

    #[test]
    fn only_pages_in_possible_heap_mappings_are_counted() {
        let dropped = DroppedRanges::new(PAGE);
        let mapping = |range| HeapMapping { range, is_brk: false };
        let block = 10;
        let start = block * 64 * PAGE;
        let mappings = [
            mapping(0..start - PAGE),
            mapping(start - PAGE..start + 2 * PAGE),
            mapping(start + 62 * PAGE..start + 100 * PAGE),
        ];
        assert_eq!(dropped.mask_of_mappings(block, &mappings), 0b11 << 62 | 0b11);
        assert_eq!(dropped.mask_of_mappings(block, &[]), 0);
    }
}

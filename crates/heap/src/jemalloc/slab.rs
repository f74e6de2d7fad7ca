//! A slab: an extent of regions of one size, with a bit for each that is set if the region is free.

use std::ops::Range;

use super::extent::MAX_BITMAP_WORDS;

/// The bits of a slab; a set bit is a free region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slab {
    /// Bytes of a region.
    pub(super) region: u64,
    /// Number of regions.
    pub(super) count: u64,
    pub(super) bitmap: [u64; MAX_BITMAP_WORDS],
}

impl Slab {
    /// Returns the number of free regions by its bits.
    pub(super) fn free(&self) -> u64 {
        self.free_within(0, self.count)
    }

    /// Returns the number of free regions from one index up to another.
    fn free_within(&self, from: u64, to: u64) -> u64 {
        let words = self.bitmap.iter().enumerate();
        let bits = words.skip((from / 64) as usize).take_while(|(word, _)| *word as u64 * 64 < to);
        bits.map(|(word, bits)| {
            let first = word as u64 * 64;
            let above = from.saturating_sub(first);
            let below = (to - first).min(64);
            let mask = (u64::MAX >> (64 - below)) & (u64::MAX << above);
            u64::from((bits & mask).count_ones())
        })
        .sum()
    }

    /// Returns the free bytes of a part of the slab, with the room after its last region. `part` is
    /// in bytes from its beginning.
    pub(super) fn free_bytes(&self, part: Range<u64>) -> u64 {
        let (start, end) = (part.start, part.end.min(self.count * self.region));
        if start >= end {
            return part.end - part.start;
        }
        let (first, last) = (start / self.region, (end - 1) / self.region);
        let mut free = self.free_within(first, last + 1) * self.region;
        // Subtract what lies before and after the part.
        if self.is_free(first) {
            free -= start - first * self.region;
        }
        if self.is_free(last) {
            free -= (last + 1) * self.region - end;
        }
        free + part.end - end
    }

    /// Returns the first free page at or after a place, with the free pages that follow it, up to a
    /// size. All are in bytes from the beginning.
    pub(super) fn free_pages(&self, from: u64, bytes: u64, page: u64) -> Option<Range<u64>> {
        let pages = |from: u64| (from..bytes).step_by(page as usize);
        let is_free = |at: &u64| self.free_bytes(*at..at + page) == page;
        let start = pages(from).find(is_free)?;
        let end = pages(start).find(|at| !is_free(at)).unwrap_or(bytes);
        Some(start..end)
    }

    /// Returns the bits in a word of the bitmap for the regions in a part of the slab. `part` is in
    /// bytes from its beginning.
    pub(super) fn mask_of(&self, word: u64, part: Range<u64>) -> u64 {
        if part.start >= part.end {
            return 0;
        }
        let (first, last) = (part.start / self.region, (part.end - 1) / self.region);
        let regions = word * 64..word * 64 + 64;
        let bits = regions.filter(|region| (first..=last).contains(region));
        bits.fold(0, |mask, region| mask | 1 << (region % 64))
    }

    /// Returns whether a region is free.
    pub(super) fn is_free(&self, region: u64) -> bool {
        self.bitmap[(region / 64) as usize] >> (region % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Returns a slab in which these regions are in use.
    fn slab(region: u64, count: u64, used: &[u64]) -> Slab {
        let mut bitmap = [0; MAX_BITMAP_WORDS];
        for free in (0..count).filter(|region| !used.contains(region)) {
            bitmap[(free / 64) as usize] |= 1 << (free % 64);
        }
        Slab { region, count, bitmap }
    }

    #[test]
    fn the_free_bytes_per_page_add_up_to_those_of_the_regions() {
        let some = [
            slab(16, 256, &[0, 64, 255]),
            slab(48, 256, &[85, 170]),
            slab(14336, 2, &[1]),
            slab(5120, 4, &[]),
            slab(3584, 8, &[0, 1, 2, 3, 4, 5, 6, 7]),
        ];
        for slab in some {
            let pages = (slab.region * slab.count).div_ceil(PAGE);
            let on_pages: u64 =
                (0..pages).map(|page| slab.free_bytes(page * PAGE..(page + 1) * PAGE)).sum();
            let left_over = pages * PAGE - slab.region * slab.count;
            assert_eq!(on_pages, slab.free() * slab.region + left_over, "{slab:?}");
        }
    }

    #[test]
    fn a_page_is_free_if_all_regions_that_overlap_it_are_free() {
        let slab = slab(5120, 4, &[1]);
        let free: Vec<u64> =
            (0..5).map(|page| slab.free_bytes(page * PAGE..(page + 1) * PAGE)).collect();
        assert_eq!(free, [4096, 1024, 2048, 4096, 4096]);
        assert_eq!(slab.free_pages(0, 5 * PAGE, PAGE), Some(0..PAGE));
        assert_eq!(slab.free_pages(PAGE, 5 * PAGE, PAGE), Some(3 * PAGE..5 * PAGE));
        assert_eq!(slab.free_pages(5 * PAGE, 5 * PAGE, PAGE), None);
    }
}

//! A sample of pages that is spread evenly over ranges, without a period of its own: memory of
//! which each 512th page differs from the others is sampled rightly.

use std::ops::Range;

/// Maximum number of pages of a sample. A share that is estimated from it is off by 0.8 percentage
/// points (standard error) at most.
const MAX_PAGES: u64 = 4096;

/// Pages of some ranges.
pub(super) struct Spread {
    /// Addresses of the pages, in order.
    pub(super) pages: Vec<u64>,
    /// Bytes of the ranges for each page of the sample.
    bytes_of_each: f64,
    /// Whether it has all pages of the ranges.
    is_all: bool,
}

impl Spread {
    /// Selects the pages of a sample, or all pages if they are few.
    pub(super) fn over(ranges: &[Range<u64>], page: u64) -> Self {
        let pages_of = |range: &Range<u64>| (range.end - range.start) / page;
        let all: u64 = ranges.iter().map(pages_of).sum();
        let wanted = all.min(MAX_PAGES);
        let mut places: Vec<u64> = (0..wanted).map(|k| place(k, wanted, all)).collect();
        places.sort_unstable();
        let mut pages = Vec::with_capacity(places.len());
        let (mut of_ranges, mut before) = (ranges.iter().peekable(), 0);
        for place in places {
            while let Some(range) = of_ranges.next_if(|range| place >= before + pages_of(range)) {
                before += pages_of(range);
            }
            pages.extend(of_ranges.peek().map(|range| range.start + (place - before) * page));
        }
        let bytes_of_each = (all * page) as f64 / wanted.max(1) as f64;
        Self { pages, bytes_of_each, is_all: wanted == all }
    }

    /// Returns the bytes of the ranges for which a number of pages of the sample stand.
    pub(super) fn bytes(&self, pages: usize) -> u64 {
        (pages as f64 * self.bytes_of_each).round() as u64
    }

    /// Returns whether the bytes are an estimate.
    pub(super) fn is_estimate(&self) -> bool {
        !self.is_all
    }
}

/// Returns the place of the k-th page of a sample among all pages: one in each of `wanted` equal
/// parts, at a distance from its start that follows the golden ratio.
fn place(k: u64, wanted: u64, all: u64) -> u64 {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    let part = all as f64 / wanted.max(1) as f64;
    let within = if wanted == all { 0.0 } else { (k as f64 * RATIO).fract() };
    ((k as f64 + within) * part) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn few_pages_are_all_in_the_sample() {
        let ranges = [0x1000..0x4000, 0x10000..0x11000];
        let spread = Spread::over(&ranges, PAGE);
        assert_eq!(spread.pages, [0x1000, 0x2000, 0x3000, 0x10000]);
        assert_eq!((spread.bytes(3), spread.is_estimate()), (3 * PAGE, false));
        let none = Spread::over(&[], PAGE);
        assert_eq!((none.pages.len(), none.bytes(0), none.is_estimate()), (0, 0, false));
    }

    #[test]
    fn a_sample_has_its_share_of_pages_of_any_period() {
        let ranges = [0..1 << 30, 1 << 40..(1 << 40) + (512 << 20)];
        let spread = Spread::over(&ranges, PAGE);
        assert!(spread.is_estimate() && spread.pages.len() as u64 == MAX_PAGES);
        assert!(spread.pages.is_sorted());
        let in_ranges = |page: &u64| ranges.iter().any(|range| range.contains(page));
        assert!(spread.pages.iter().all(in_ranges));
        for period in [2_u64, 3, 8, 96, 512] {
            let is_hit = |page: &&u64| (**page / PAGE).is_multiple_of(period);
            let hits = spread.pages.iter().filter(is_hit).count();
            let (found, all) = (spread.bytes(hits) as f64, (1536 << 20) as f64);
            assert!((found / all - 1.0 / period as f64).abs() < 0.02, "{period}: {found}");
        }
    }
}

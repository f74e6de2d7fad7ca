//! Selects the parts of free memory that can be dropped without splitting a huge page.

use std::ops::Range;

use lowtide_probe::memory::ProcessMemory;

use crate::huge::{self, HUGE};
use crate::options::Options;

/// Size of the memory whose huge pages are read at once, in bytes.
const SLICE_BYTES: u64 = 16 << 20;

/// Finds the huge pages in a range; `None` if the kernel does not report them.
type HugePagesIn<'m> = dyn Fn(Range<u64>) -> Option<Vec<Range<u64>>> + 'm;

/// Keeps huge pages whole.
pub(crate) struct HugePageKeeper<'m> {
    huge_in: Box<HugePagesIn<'m>>,
    /// Number of the slice that was read last, and one bit for each of its huge pages.
    slice: Option<(u64, u8)>,
    /// Whether a huge page has the size that one operation drops: larger ones are kept, also if
    /// they are free as a whole.
    may_drop: bool,
}

/// A part of a free range that can be dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) pages: Range<u64>,
    /// Whether it is one whole huge page.
    pub(crate) is_huge: bool,
}

impl<'m> HugePageKeeper<'m> {
    /// Returns a keeper if the options require one.
    pub(crate) fn for_options(options: &Options, memory: &'m ProcessMemory) -> Option<Self> {
        options.keep_huge_pages.then(|| Self::of(memory))
    }

    /// Returns a keeper of the huge pages of a process. If the kernel does not report huge pages,
    /// all memory counts as such, unless the system has none.
    pub(crate) fn of(memory: &'m ProcessMemory) -> Self {
        Self::new(move |range| match memory.huge(range).ok().flatten() {
            None if huge::is_off() => Some(Vec::new()),
            huge => huge,
        })
    }

    pub(crate) fn new(huge_in: impl Fn(Range<u64>) -> Option<Vec<Range<u64>>> + 'm) -> Self {
        Self { huge_in: Box::new(huge_in), slice: None, may_drop: huge::huge_page_bytes() == HUGE }
    }

    /// Forgets what was read, because it may have changed.
    pub(crate) fn forget(&mut self) {
        self.slice = None;
    }

    /// Returns the parts of a free range that can be dropped: the huge pages that are free as a
    /// whole, and everything that is not in huge pages.
    pub(crate) fn parts(&mut self, free: &Range<u64>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut at = free.start;
        while at < free.end {
            let page = at - at % HUGE;
            let end = free.end.min(page.saturating_add(HUGE));
            let is_whole = self.may_drop && end - at == HUGE;
            match (self.is_huge(page), parts.last_mut()) {
                (true, _) if is_whole => parts.push(Part { pages: at..end, is_huge: true }),
                (true, _) => {}
                (false, Some(last)) if !last.is_huge && last.pages.end == at => {
                    last.pages.end = end
                }
                (false, _) => parts.push(Part { pages: at..end, is_huge: false }),
            }
            at = end;
        }
        parts
    }

    /// Returns whether a page of the size of huge pages is one.
    fn is_huge(&mut self, page: u64) -> bool {
        let number = page / SLICE_BYTES;
        let bits = match self.slice {
            Some((last, bits)) if last == number => bits,
            _ => self.read(number),
        };
        bits >> (page % SLICE_BYTES / HUGE) & 1 == 1
    }

    fn read(&mut self, number: u64) -> u8 {
        let start = number * SLICE_BYTES;
        let slice = start..start.saturating_add(SLICE_BYTES);
        let bits = (self.huge_in)(slice.clone()).map_or(u8::MAX, |huge| {
            let overlaps = |page: u64| huge.iter().any(|h| h.start < page + HUGE && page < h.end);
            let pages = slice.step_by(HUGE as usize).enumerate();
            pages.fold(0, |bits, (place, page)| bits | u8::from(overlaps(page)) << place)
        });
        self.slice = Some((number, bits));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 40 * SLICE_BYTES;

    fn part(pages: Range<u64>, is_huge: bool) -> Part {
        Part { pages: START + pages.start..START + pages.end, is_huge }
    }

    fn parts(huge: Option<Vec<Range<u64>>>, free: Range<u64>) -> Vec<Part> {
        let at = |range: &Range<u64>| START + range.start..START + range.end;
        let huge: Option<Vec<_>> = huge.map(|huge| huge.iter().map(at).collect());
        HugePageKeeper::new(move |_| huge.clone()).parts(&at(&free))
    }

    #[test]
    fn only_whole_huge_pages_and_small_pages_are_dropped() {
        let free = 4096..4 * HUGE + 8192;
        let huge = vec![0..2 * HUGE, 3 * HUGE..5 * HUGE];
        let expected = [
            part(HUGE..2 * HUGE, true),
            part(2 * HUGE..3 * HUGE, false),
            part(3 * HUGE..4 * HUGE, true),
        ];
        assert_eq!(parts(Some(huge), free), expected);
    }

    #[test]
    fn memory_without_huge_pages_is_one_part() {
        let free = 4096..4 * HUGE + 8192;
        assert_eq!(parts(Some(Vec::new()), free.clone()), [part(free, false)]);
    }

    #[test]
    fn memory_with_unknown_huge_pages_is_dropped_in_units_of_huge_page_size() {
        let expected = [part(HUGE..2 * HUGE, true), part(2 * HUGE..3 * HUGE, true)];
        assert_eq!(parts(None, 4096..3 * HUGE + 4096), expected);
    }
}

//! The residency of pages, queried one slice at a time.

use std::ops::Range;

use crate::memory::Memory;
use crate::ranges::overlaps;

/// Size of the range that is queried at once, in bytes: the result is then only a few milliseconds
/// old when it is used, and takes little space for a heap of any size.
const SLICE: u64 = 16 << 20;
/// Number of slices that are cached: one that is read, one that is accounted for, and two spare
/// ones.
const SLICES: usize = 4;

/// The resident pages of some memory, cached for a short time.
#[derive(Debug)]
pub struct Residency<'m, M> {
    memory: &'m M,
    slices: Vec<Slice>,
    /// Index of the slice that is replaced next.
    oldest: usize,
    /// The resident run of the last query.
    run: Range<u64>,
}

/// The resident bytes of a free range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeBytes {
    /// Bytes that the kernel drops on request (`MADV_DONTNEED`).
    pub droppable: u64,
    /// Bytes in locked memory, which it refuses to drop.
    pub locked: u64,
}

#[derive(Debug)]
struct Slice {
    number: u64,
    runs: Vec<Range<u64>>,
}

impl<'m, M: Memory> Residency<'m, M> {
    /// Creates an empty cache.
    pub fn new(memory: &'m M) -> Self {
        Self { memory, slices: Vec::new(), oldest: 0, run: 0..0 }
    }

    /// Returns the number of resident bytes between two addresses. This is fast if the addresses
    /// are close to those of the previous call.
    #[inline]
    pub fn bytes(&mut self, range: Range<u64>) -> u64 {
        if self.run.start <= range.start && range.end <= self.run.end {
            return range.end.saturating_sub(range.start);
        }
        self.sum(range)
    }

    /// Returns the number of resident bytes in some ranges.
    pub(crate) fn bytes_in(&mut self, ranges: &[Range<u64>]) -> u64 {
        ranges.iter().map(|range| self.bytes(range.clone())).sum()
    }

    /// Returns the number of resident bytes of a free range, by whether the kernel drops them.
    #[inline]
    pub fn free_bytes(&mut self, range: Range<u64>) -> FreeBytes {
        let all = self.bytes(range.clone());
        let locked = match all > 0 && !self.memory.locked().is_empty() {
            true => overlaps(range, self.memory.locked()).map(|part| self.bytes(part)).sum(),
            false => 0,
        };
        FreeBytes { droppable: all.saturating_sub(locked), locked }
    }

    /// Returns the end of the run of resident pages that contains an address, at most the end of a
    /// slice. Returns `None` if the page of the address is not resident.
    #[inline]
    pub(crate) fn end_of_run(&mut self, address: u64) -> Option<u64> {
        if !self.run.contains(&address) {
            let slice = self.slice(address / SLICE);
            let place = slice.runs.partition_point(|r| r.end <= address);
            self.run = slice.runs.get(place).filter(|r| r.contains(&address))?.clone();
        }
        Some(self.run.end)
    }

    /// Clears the cache, because the residency may have changed.
    pub fn forget(&mut self) {
        self.slices.clear();
        self.oldest = 0;
        self.run = 0..0;
    }

    fn sum(&mut self, range: Range<u64>) -> u64 {
        let mut sum = 0;
        let mut at = range.start;
        while at < range.end {
            let number = at / SLICE;
            let until = range.end.min((number + 1).saturating_mul(SLICE));
            let slice = self.slice(number);
            let place = slice.runs.partition_point(|r| r.end <= at);
            let mut last = None;
            for run in slice.runs[place..].iter().take_while(|r| r.start < until) {
                sum += run.end.min(until) - run.start.max(at);
                last = Some(run.clone());
            }
            self.run = last.unwrap_or(0..0);
            at = until;
        }
        sum
    }

    fn slice(&mut self, number: u64) -> &Slice {
        if let Some(place) = self.slices.iter().position(|s| s.number == number) {
            return &self.slices[place];
        }
        let start = number.saturating_mul(SLICE);
        let runs = self.memory.resident(start..start.saturating_add(SLICE));
        let slice = Slice { number, runs };
        let place = if self.slices.len() < SLICES {
            self.slices.push(slice);
            self.slices.len() - 1
        } else {
            self.slices[self.oldest] = slice;
            self.oldest
        };
        self.oldest = (place + 1) % SLICES;
        &self.slices[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;

    fn saved() -> Saved {
        Saved::new(vec![(0x1000, vec![0; 0x2000]), (0x5000, vec![0; 0x1000])])
    }

    #[test]
    fn free_bytes_in_locked_memory_are_not_droppable() {
        let memory = Saved { locked: vec![0..0x1800, 0x2800..0x9000], ..saved() };
        let mut r = Residency::new(&memory);
        let free = |droppable, locked| FreeBytes { droppable, locked };
        assert_eq!(r.free_bytes(0x1000..0x6000), free(0x1000, 0x2000));
        assert_eq!(r.free_bytes(0x1800..0x2800), free(0x1000, 0));
        assert_eq!(r.free_bytes(0x3000..0x9000), free(0, 0x1000));
        assert_eq!(Residency::new(&saved()).free_bytes(0..0x9000), free(0x3000, 0));
    }

    #[test]
    fn residency_is_correct_for_queries_in_any_order() {
        let memory = saved();
        let mut r = Residency::new(&memory);
        assert_eq!(r.bytes(0x0..0x1800), 0x800);
        assert_eq!(r.bytes(0x2800..0x5800), 0x1000);
        assert_eq!(r.bytes(0x1000..0x1010), 0x10);
        assert_eq!(r.bytes(0x7000..0x9000), 0);
        assert_eq!(r.bytes(0x0..0x9000), 0x3000);
        assert_eq!(r.end_of_run(0x1800), Some(0x3000));
        assert_eq!(r.end_of_run(0x3000), None);
    }

    #[test]
    fn residency_is_correct_across_many_slices_and_after_going_back() {
        let far = 9 * SLICE;
        let mut memory = saved();
        memory.blocks.push((far - 0x1000, vec![0; 0x2000]));
        let mut r = Residency::new(&memory);
        assert_eq!(r.bytes(0..far + SLICE), 0x5000);
        assert_eq!(r.bytes(0..0x2000), 0x1000);
        assert_eq!(r.end_of_run(far - 1), Some(far));
        assert_eq!(r.end_of_run(far), Some(far + 0x1000));
    }
}

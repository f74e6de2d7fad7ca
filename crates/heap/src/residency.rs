//! Which pages are resident, asked for a slice at a time.

use std::ops::Range;

use crate::memory::Memory;

/// So much is asked about at once: what is known is then a few milliseconds old when it is used, and
/// takes little room however large the heap is.
const SLICE: u64 = 16 << 20;
/// So many slices are remembered: one that is read in, one that is accounted for, and two to spare.
const SLICES: usize = 4;

/// The resident pages of some memory, remembered for a short while.
#[derive(Debug)]
pub struct Residency<'m, M> {
    memory: &'m M,
    slices: Vec<Slice>,
    /// The slice that is forgotten next.
    oldest: usize,
    /// The resident run that was asked about last.
    run: Range<u64>,
}

#[derive(Debug)]
struct Slice {
    number: u64,
    runs: Vec<Range<u64>>,
}

impl<'m, M: Memory> Residency<'m, M> {
    /// Knows nothing yet.
    pub fn new(memory: &'m M) -> Self {
        Self { memory, slices: Vec::new(), oldest: 0, run: 0..0 }
    }

    /// Resident bytes between two addresses. Quick where the addresses lie near those of the call
    /// before.
    #[inline]
    pub fn bytes(&mut self, range: Range<u64>) -> u64 {
        if self.run.start <= range.start && range.end <= self.run.end {
            return range.end.saturating_sub(range.start);
        }
        self.sum(range)
    }

    /// Where the resident pages end that hold an address; `None` when its own page is not resident.
    /// Looks no further than to the end of a slice.
    #[inline]
    pub fn end_of_run(&mut self, address: u64) -> Option<u64> {
        if !self.run.contains(&address) {
            let slice = self.slice(address / SLICE);
            let place = slice.runs.partition_point(|r| r.end <= address);
            self.run = slice.runs.get(place).filter(|r| r.contains(&address))?.clone();
        }
        Some(self.run.end)
    }

    /// Forgets what is known, because it may have changed.
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
        Saved { blocks: vec![(0x1000, vec![0; 0x2000]), (0x5000, vec![0; 0x1000])] }
    }

    #[test]
    fn residency_is_told_whichever_way_one_asks() {
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
    fn residency_is_told_across_many_slices_and_back() {
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

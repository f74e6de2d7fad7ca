//! Reads words anywhere in the heap, as the lists of free blocks lead to them.

use std::collections::HashMap;

use crate::memory::{MIN_PAGE_BYTES, Memory, word_in};

/// Unit of the cache, in bytes: a page, or a part of a larger one, which is resident as a whole.
const PAGE: u64 = MIN_PAGE_BYTES;
/// Maximum number of cached pages.
const KEPT: usize = 1024;
/// Number of pages read at once if the previous page was near.
const GROUP: u64 = 16;
/// Size of the range whose residency is queried at once, in bytes. The results are cached as one
/// bit per page.
const SLICE: u64 = 2 << 20;
/// Maximum number of cached results: 32 GiB, in about 2 MiB.
const MAX_SLICES: usize = 16 << 10;
const SLICE_WORDS: usize = (SLICE / PAGE / 64) as usize;
/// Number of words after which it is decided again whether to read whole pages.
const ROUND: u32 = 64;
/// Number of words that are read one by one until whole pages are tried again.
const PATIENCE: u32 = 4096;

/// Reads scattered words, but never from a page that is not resident.
pub(crate) struct Scattered<'m, M> {
    memory: &'m M,
    resident: HashMap<u64, Box<[u64; SLICE_WORDS]>>,
    pages: Vec<(u64, Vec<u8>)>,
    /// The page of the last cache miss.
    last: u64,
    buffer: Vec<u8>,
    reads: u32,
    misses: u32,
    /// Number of words that are still read one by one: if a list is scattered, reading whole pages
    /// does not pay.
    singly: u32,
}

impl<'m, M: Memory> Scattered<'m, M> {
    pub(crate) fn new(memory: &'m M) -> Self {
        let pages = vec![(u64::MAX, Vec::new()); KEPT];
        Self {
            memory,
            resident: HashMap::new(),
            pages,
            last: 0,
            buffer: Vec::new(),
            reads: 0,
            misses: 0,
            singly: 0,
        }
    }

    /// Clears the cache, because the memory may have changed.
    pub(crate) fn forget(&mut self) {
        self.resident.clear();
        self.pages.iter_mut().for_each(|page| page.0 = u64::MAX);
    }

    /// Drops the page of an address from the cache, because it has changed.
    pub(crate) fn forget_page(&mut self, address: u64) {
        let (number, _) = &mut self.pages[Self::slot(address)];
        if *number == address / PAGE {
            *number = u64::MAX;
        }
    }

    /// Clears the cache, and frees its memory.
    pub(crate) fn clear(&mut self) {
        self.resident = HashMap::new();
        self.pages = vec![(u64::MAX, Vec::new()); KEPT];
    }

    /// Returns a word, if it is resident.
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let place = (address % PAGE) as usize;
        word_in(self.page(address)?, place)
    }

    /// Returns two consecutive words.
    pub(crate) fn pair(&mut self, address: u64) -> Option<(u64, u64)> {
        let place = (address % PAGE) as usize;
        if place + 16 > PAGE as usize {
            return Some((self.word(address)?, self.word(address.checked_add(8)?)?));
        }
        if self.singly > 0 && self.pages[Self::slot(address)].0 != address / PAGE {
            self.singly -= 1;
            let mut bytes = [0; 16];
            let is_there = self.is_resident(address);
            let length = if is_there { self.memory.read_resident(address, &mut bytes) } else { 0 };
            return (length == 16).then_some((word_in(&bytes, 0)?, word_in(&bytes, 8)?));
        }
        let page = self.page(address)?;
        Some((word_in(page, place)?, word_in(page, place + 8)?))
    }

    fn slot(address: u64) -> usize {
        (address / PAGE) as usize % KEPT
    }

    fn page(&mut self, address: u64) -> Option<&[u8]> {
        let number = address / PAGE;
        self.reads += 1;
        if self.pages[Self::slot(address)].0 != number {
            // Blocks that were freed in order of address are in that order in the lists, mostly
            // backwards.
            let group = number - number % GROUP;
            let is_near = number.abs_diff(self.last) <= GROUP;
            if is_near && (group..group + GROUP).all(|n| self.is_resident(n * PAGE)) {
                self.load(group, GROUP);
            } else {
                self.misses += u32::from(!is_near);
                self.load(number, 1);
            }
            self.last = number;
        }
        if self.reads == ROUND {
            if self.misses > ROUND / 4 {
                self.singly = PATIENCE;
            }
            (self.reads, self.misses) = (0, 0);
        }
        Some(&self.pages[Self::slot(address)].1)
    }

    /// Reads consecutive pages.
    fn load(&mut self, first: u64, count: u64) {
        let is_there = self.is_resident(first * PAGE);
        self.buffer.resize(if is_there { (count * PAGE) as usize } else { 0 }, 0);
        let length = self.memory.read_resident(first * PAGE, &mut self.buffer);
        for number in first..first + count {
            let from = ((number - first) * PAGE) as usize;
            let page = self.buffer[..length].get(from..(from + PAGE as usize).min(length));
            let (kept, bytes) = &mut self.pages[Self::slot(number * PAGE)];
            *kept = number;
            bytes.clear();
            bytes.extend_from_slice(page.unwrap_or_default());
        }
    }

    fn is_resident(&mut self, address: u64) -> bool {
        let slice = address / SLICE;
        let memory = self.memory;
        if self.resident.len() >= MAX_SLICES && !self.resident.contains_key(&slice) {
            self.resident.clear();
        }
        let bits = self.resident.entry(slice).or_insert_with(|| {
            let mut bits = Box::new([0; SLICE_WORDS]);
            let start = slice.saturating_mul(SLICE);
            for run in memory.resident(start..start.saturating_add(SLICE)) {
                let first = run.start.max(start) - start;
                let last = run.end.saturating_sub(start).min(SLICE);
                for page in first / PAGE..last / PAGE {
                    bits[(page / 64) as usize] |= 1 << (page % 64);
                }
            }
            bits
        });
        let page = address % SLICE / PAGE;
        bits[(page / 64) as usize] >> (page % 64) & 1 == 1
    }
}

//! The lists of free chunks that the chunk heads do not mark as free.

use std::collections::HashMap;

use super::chunk::SMALLEST;
use super::layout::Layout;
use crate::memory::{ADDRESS_END, Memory, word};
use crate::scattered::Scattered;

/// The encoding of the pointers of a list: plain, or mixed with their own address (`PROTECT_PTR`,
/// from 2.32 on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// The address itself.
    Plain,
    /// The address, XORed with the pointer's own address shifted by 12 bits.
    Mixed,
}

impl Links {
    pub(super) const BOTH: [Self; 2] = [Self::Mixed, Self::Plain];

    /// Returns the address that a pointer leads to. `at` is the address of the pointer, `word` its
    /// value.
    pub fn decode(self, at: u64, word: u64) -> u64 {
        match self {
            Self::Plain => word,
            Self::Mixed => word ^ (at >> 12),
        }
    }
}

/// A set of chunks, with one bit for every 16 bytes of each place that contains any. For a heap of
/// only such chunks, it takes 1/120 of the size of the heap.
#[derive(Debug, Default)]
pub(super) struct ChunkSet {
    places: HashMap<u64, usize>,
    bits: Vec<[u64; PLACE_WORDS]>,
    /// The place of the last lookup, and the index of its bits.
    last: Option<(u64, Option<usize>)>,
}

/// Maximum number of places in a set, which then takes 4 MiB.
const MAX_PLACES: usize = 8192;
const PLACE: u64 = 64 << 10;
const PLACE_WORDS: usize = (PLACE / 16 / 64) as usize;

impl ChunkSet {
    /// Adds a chunk. Returns `false` if it was already present.
    pub(super) fn insert(&mut self, chunk: u64) -> bool {
        let place = chunk / PLACE;
        let known = self.find(place);
        let bits = known.unwrap_or_else(|| {
            self.bits.push([0; PLACE_WORDS]);
            self.places.insert(place, self.bits.len() - 1);
            self.bits.len() - 1
        });
        self.last = Some((place, Some(bits)));
        let (word, mask) = Self::bit(chunk);
        let is_new = self.bits[bits][word] & mask == 0;
        self.bits[bits][word] |= mask;
        is_new
    }

    /// Returns whether the set is full.
    fn is_full(&self) -> bool {
        self.bits.len() >= MAX_PLACES
    }

    /// Returns whether the set contains a chunk.
    #[inline]
    pub(super) fn contains(&mut self, chunk: u64) -> bool {
        if self.bits.is_empty() {
            return false;
        }
        let place = chunk / PLACE;
        let bits = match self.last {
            Some((last, bits)) if last == place => bits,
            _ => {
                let bits = self.find(place);
                self.last = Some((place, bits));
                bits
            }
        };
        let (word, mask) = Self::bit(chunk);
        bits.is_some_and(|bits| self.bits[bits][word] & mask != 0)
    }

    fn find(&self, place: u64) -> Option<usize> {
        match self.last {
            Some((last, Some(bits))) if last == place => Some(bits),
            _ => self.places.get(&place).copied(),
        }
    }

    fn bit(chunk: u64) -> (usize, u64) {
        let place = chunk % PLACE / 16;
        ((place / 64) as usize, 1 << (place % 64))
    }
}

/// The list of one fast bin.
#[derive(Debug, Clone, Copy)]
struct FastList {
    /// The address of the arena's pointer to the first chunk.
    head: u64,
    /// The first chunk.
    first: u64,
    /// Size of its chunks.
    size: u64,
}

/// Returns the fast bins that are not empty.
fn fast_lists<M: Memory>(words: &mut Scattered<'_, M>, layout: &Layout) -> Vec<FastList> {
    let mut lists = Vec::new();
    for arena in &layout.arenas {
        let Some(heads) = layout.fast_bins(*arena) else { continue };
        for (class, head) in heads.step_by(8).enumerate() {
            if let Some(first) = words.word(head).filter(|first| *first != 0) {
                lists.push(FastList { head, first, size: SMALLEST + class as u64 * 16 });
            }
        }
    }
    lists
}

/// Returns the fast bins that are not empty, and the encoding of their lists if their contents
/// decide it.
///
/// If the program takes the first chunk of each list between the two reads, the data in these
/// chunks decides nothing. A wrong encoding would find none of the chunks, so the lists are then
/// read again.
fn decided_lists<M: Memory>(
    words: &mut Scattered<'_, M>,
    layout: &Layout,
) -> (Vec<FastList>, Option<Links>) {
    /// Maximum number of reads: a program rarely takes all of the first chunks again.
    const MAX_READS: usize = 50;
    let mut reads = 1;
    loop {
        let lists = fast_lists(words, layout);
        let links = links_of(words, &lists);
        if links.is_some() || lists.is_empty() || reads == MAX_READS {
            return (lists, links);
        }
        words.forget();
        reads += 1;
    }
}

/// Returns the encoding of the lists of the fast bins, if their contents decide it.
pub fn fast_links(memory: &impl Memory, layout: &Layout) -> Option<Links> {
    let mut words = Scattered::new(memory);
    decided_lists(&mut words, layout).1
}

/// The chunks in fast bins.
///
/// A list may tear if the program takes chunks from it while it is followed: a chunk that was taken
/// leads nowhere, and the rest of the list is not reached. The walk recognises such chunks by their
/// own links: a link leads to the head of a chunk of the same size, whereas the pointers of a
/// program lead to the memory after a head.
pub(super) struct FastChunks<'m, M> {
    words: Scattered<'m, M>,
    links: Links,
    /// Chunks found by following the lists.
    listed: ChunkSet,
    /// Chunks that were recognised by their links.
    recognised: ChunkSet,
    /// A bit for each class whose lists changed while they were followed, or were too long.
    changing: u16,
}

impl<'m, M: Memory> FastChunks<'m, M> {
    /// Follows the lists of all arenas.
    pub(super) fn new(memory: &'m M, layout: &Layout) -> Self {
        let mut words = Scattered::new(memory);
        let (lists, links) = decided_lists(&mut words, layout);
        let links = links.unwrap_or(Links::Mixed);
        let (listed, recognised) = (ChunkSet::default(), ChunkSet::default());
        let mut found = Self { words, links, listed, recognised, changing: 0 };
        for list in lists {
            let is_torn = !found.follow(list);
            if is_torn || word(memory, list.head) != Some(list.first) {
                found.changing |= 1 << class_of(list.size);
            }
        }
        // The words that were read are out of date by the time of the walk.
        found.words.forget();
        found
    }

    /// Follows a list to its end, or to a chunk that is already known. Returns `false` if it is
    /// broken, or has more chunks than the set can hold.
    fn follow(&mut self, list: FastList) -> bool {
        let mut next = list.first;
        while next != 0 {
            let pair = || next.checked_add(8).filter(|at| at % 16 == 8);
            let Some((head, link)) = pair().and_then(|at| self.words.pair(at)) else {
                return false;
            };
            if head & !7 != list.size {
                return false;
            }
            if self.listed.is_full() {
                return false;
            }
            // A torn list may be circular.
            if !self.listed.insert(next) {
                return true;
            }
            next = self.links.decode(next + 16, link);
        }
        true
    }

    /// Returns whether a chunk of at most [`LARGEST_FAST`] bytes is in a fast bin. `link` reads its
    /// first word.
    #[inline]
    pub(super) fn contains(
        &mut self,
        chunk: u64,
        size: u64,
        link: impl FnOnce() -> Option<u64>,
    ) -> bool {
        self.listed.contains(chunk)
            || (self.changing >> class_of(size) & 1 == 1 && self.detect(chunk, size, link()))
    }

    /// Returns whether the first word of a chunk is the link of a free chunk. It leads to a chunk
    /// of the same size, or is the end of the list, if that differs from zeroed memory.
    #[cold]
    fn detect(&mut self, chunk: u64, size: u64, link: Option<u64>) -> bool {
        let Some(next) = link.map(|link| self.links.decode(chunk + 16, link)) else { return false };
        let is_link = (next == 0 && self.links == Links::Mixed)
            || (next != 0
                && next.is_multiple_of(16)
                && next < ADDRESS_END
                && self.words.pair(next).is_some_and(|(_, head)| head & !7 == size));
        if is_link && !self.recognised.is_full() {
            self.recognised.insert(chunk);
        }
        is_link
    }

    /// Drops everything but the chunks that were recognised by their links, at the end of the walk.
    pub(super) fn end_walk(&mut self) {
        self.listed = ChunkSet::default();
        self.words.clear();
    }

    /// Returns whether a chunk was recognised by its link. It may be in a thread's cache instead.
    pub(super) fn was_recognised(&mut self, chunk: u64) -> bool {
        self.recognised.contains(chunk)
    }
}

/// Returns the class of chunks of a size.
fn class_of(size: u64) -> u64 {
    (size.saturating_sub(SMALLEST) / 16).min(15)
}

/// Returns the encoding of the lists, by the first list that only one encoding fits.
fn links_of<M: Memory>(words: &mut Scattered<'_, M>, lists: &[FastList]) -> Option<Links> {
    for FastList { first, size, .. } in lists {
        let Some((head, link)) = first.checked_add(8).and_then(|at| words.pair(at)) else {
            continue;
        };
        if head & !7 != *size {
            continue;
        }
        let mut leads_on = |links: Links| {
            let next = links.decode(first + 16, link);
            let is_chunk = next.is_multiple_of(16) && next < ADDRESS_END;
            next == 0 || (is_chunk && words.word(next + 8).is_some_and(|head| head & !7 == *size))
        };
        match Links::BOTH.map(&mut leads_on) {
            [true, false] => return Some(Links::Mixed),
            [false, true] => return Some(Links::Plain),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::ops::Range;

    const BASE: u64 = 0x7000_0000_0000;

    /// Memory whose second page has a word of the program in place of a link for the first reads.
    struct Taken {
        saved: Saved,
        link_at: u64,
        reads_left: Cell<usize>,
    }

    impl Memory for Taken {
        fn page_bytes(&self) -> u64 {
            self.saved.page_bytes()
        }

        fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
            let read = self.saved.read(address, buffer);
            if let Some(offset) = self.link_at.checked_sub(address).map(|offset| offset as usize)
                && offset < read
                && self.reads_left.get() > 0
            {
                self.reads_left.set(self.reads_left.get() - 1);
                buffer[offset..offset + 8].fill(0x5a);
            }
            read
        }

        fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
            self.saved.resident(range)
        }
    }

    #[test]
    fn links_are_read_again_if_the_first_chunk_of_each_list_was_just_allocated() {
        for links in Links::BOTH {
            let layout = Layout { arenas: vec![BASE], head_bytes: 112, settings: None };
            let [first, second] = [BASE + 4096, BASE + 8192];
            let mut words = vec![0_u64; 3 * 512];
            let place = |at: u64| ((at - BASE) / 8) as usize;
            words[place(layout.fast_bins(BASE).unwrap().start)] = first;
            for chunk in [first, second] {
                words[place(chunk + 8)] = SMALLEST | 1;
            }
            // The encoding is its own inverse.
            words[place(first + 16)] = links.decode(first + 16, second);
            words[place(second + 16)] = links.decode(second + 16, 0);
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let saved = Saved::new(vec![(BASE, bytes)]);
            let memory = Taken { saved, link_at: first + 16, reads_left: Cell::new(5) };
            assert_eq!(fast_links(&memory, &layout), Some(links));
            memory.reads_left.set(5);
            let mut chunks = FastChunks::new(&memory, &layout);
            assert!(chunks.contains(second, SMALLEST, || None), "{links:?}");
        }
    }

    #[test]
    fn the_link_encoding_of_empty_lists_is_unknown() {
        let layout = Layout { arenas: vec![BASE], head_bytes: 112, settings: None };
        let saved = Saved::new(vec![(BASE, vec![0; 3 * 4096])]);
        assert_eq!(fast_links(&saved, &layout), None);
    }

    proptest! {
        #[test]
        fn a_chunk_set_contains_exactly_the_inserted_chunks(
            chunks in proptest::collection::btree_set(0_u64..1 << 16, 0..200),
            others in proptest::collection::vec(0_u64..1 << 16, 0..200),
        ) {
            let mut set = ChunkSet::default();
            for chunk in &chunks {
                prop_assert!(set.insert(chunk * 16));
                prop_assert!(!set.insert(chunk * 16));
            }
            for other in others {
                prop_assert_eq!(set.contains(other * 16), chunks.contains(&other));
            }
        }
    }
}

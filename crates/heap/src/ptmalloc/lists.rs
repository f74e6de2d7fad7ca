//! The lists of free blocks that the chunks themselves do not tell of.

use std::collections::HashMap;

use super::chunk::SMALLEST;
use super::layout::Layout;
use crate::memory::{Memory, word};
use crate::scattered::Scattered;

/// How a pointer of a list is written: plainly, or mixed with its own address (`PROTECT_PTR`, from
/// 2.32 on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// As it is.
    Plain,
    /// Mixed with where it stands, shifted by 12 bits.
    Mixed,
}

impl Links {
    pub(super) const BOTH: [Self; 2] = [Self::Mixed, Self::Plain];

    /// Returns the address that a pointer leads to. `at` is where it stands, `word` what stands there.
    pub fn decode(self, at: u64, word: u64) -> u64 {
        match self {
            Self::Plain => word,
            Self::Mixed => word ^ (at >> 12),
        }
    }
}

/// Chunks, as one bit for every 16 bytes of the places where there are any: a heap that consists of
/// nothing else takes 1/120 of its size.
#[derive(Debug, Default)]
pub(super) struct ChunkSet {
    places: HashMap<u64, usize>,
    bits: Vec<[u64; PLACE_WORDS]>,
    /// The place that was looked at last, and where its bits are.
    last: Option<(u64, Option<usize>)>,
}

/// Maximum number of places in a set, which then takes 4 MiB.
const MAX_PLACES: usize = 8192;
const PLACE: u64 = 64 << 10;
const PLACE_WORDS: usize = (PLACE / 16 / 64) as usize;

impl ChunkSet {
    /// Adds a chunk. `false` when it was there before.
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

    /// Whether it takes no further places.
    fn is_full(&self) -> bool {
        self.bits.len() >= MAX_PLACES
    }

    /// Whether a chunk is in it.
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
    /// Where its arena keeps the first chunk.
    head: u64,
    /// The first chunk.
    first: u64,
    /// Size of its chunks.
    size: u64,
}

/// The fast bins that hold any chunk.
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

/// How the lists of the fast bins are written, as far as what stands in them tells.
pub fn fast_links(memory: &impl Memory, layout: &Layout) -> Option<Links> {
    let mut words = Scattered::new(memory);
    let lists = fast_lists(&mut words, layout);
    links_of(&mut words, &lists)
}

/// The chunks in fast bins.
///
/// A list that is followed while the program takes chunks from it tears: a chunk that was taken leads
/// nowhere, and the rest of the list is not reached. Such chunks are recognised by their own links when the
/// walk comes to them: a link leads to the head of a chunk of the same size, where the pointers of a program
/// lead behind it.
pub(super) struct FastChunks<'m, M> {
    words: Scattered<'m, M>,
    links: Links,
    /// Chunks that the lists lead to.
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
        let lists = fast_lists(&mut words, layout);
        let links = links_of(&mut words, &lists).unwrap_or(Links::Mixed);
        let (listed, recognised) = (ChunkSet::default(), ChunkSet::default());
        let mut found = Self { words, links, listed, recognised, changing: 0 };
        for list in lists {
            let is_torn = !found.follow(list);
            if is_torn || word(memory, list.head) != Some(list.first) {
                found.changing |= 1 << class_of(list.size);
            }
        }
        // What was read of them is out of date by the time of the walk.
        found.words.forget();
        found
    }

    /// Follows a list to its end, or to a chunk that is known already. `false` if it leads nowhere, or to more
    /// chunks than are kept.
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
            // A list that is torn may turn in a circle.
            if !self.listed.insert(next) {
                return true;
            }
            next = self.links.decode(next + 16, link);
        }
        true
    }

    /// Whether a chunk of at most [`LARGEST_FAST`] bytes is in a fast bin. `link` reads its first word.
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

    /// Whether the first word of a chunk is the link of a free one: to a chunk of its size, or, where that
    /// does not look like zeroed memory, to nothing.
    #[cold]
    fn detect(&mut self, chunk: u64, size: u64, link: Option<u64>) -> bool {
        let Some(next) = link.map(|link| self.links.decode(chunk + 16, link)) else { return false };
        let is_link = (next == 0 && self.links == Links::Mixed)
            || (next != 0
                && next.is_multiple_of(16)
                && next < 1 << 47
                && self.words.pair(next).is_some_and(|(_, head)| head & !7 == size));
        if is_link && !self.recognised.is_full() {
            self.recognised.insert(chunk);
        }
        is_link
    }

    /// Forgets all but the chunks that were recognised by their links, when the walk is over.
    pub(super) fn end_walk(&mut self) {
        self.listed = ChunkSet::default();
        self.words.clear();
    }

    /// Whether a chunk was recognised by its link: it may be in a thread's cache just as well.
    pub(super) fn was_recognised(&mut self, chunk: u64) -> bool {
        self.recognised.contains(chunk)
    }
}

/// The class of chunks of a size.
fn class_of(size: u64) -> u64 {
    (size.saturating_sub(SMALLEST) / 16).min(15)
}

/// How the lists are written: the first that can only be read one way tells.
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
            let is_chunk = next.is_multiple_of(16) && next < 1 << 47;
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
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_chunks_holds_what_was_put_into_it(
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

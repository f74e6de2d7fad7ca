//! The lists of free blocks that the chunks themselves do not tell of.

use std::collections::HashMap;

use super::layout::Layout;
use super::scattered::Scattered;
use super::walk::SMALLEST;
use crate::memory::Memory;

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

    pub(super) fn decode(self, at: u64, word: u64) -> u64 {
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

/// The first chunk of every fast bin that holds any, and the size of its chunks.
fn fast_lists<M: Memory>(words: &mut Scattered<'_, M>, layout: &Layout) -> Vec<(u64, u64)> {
    let mut lists = Vec::new();
    for arena in &layout.arenas {
        let Some(heads) = layout.fast_bins(*arena) else { continue };
        for (class, head) in heads.step_by(8).enumerate() {
            if let Some(first) = words.word(head).filter(|first| *first != 0) {
                lists.push((first, SMALLEST + class as u64 * 16));
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

/// All chunks that stand in the fast bins of the arenas.
pub(super) fn fast_chunks<M: Memory>(memory: &M, layout: &Layout) -> ChunkSet {
    let mut words = Scattered::new(memory);
    let lists = fast_lists(&mut words, layout);
    let mut found = ChunkSet::default();
    let links = links_of(&mut words, &lists).unwrap_or(Links::Mixed);
    for (first, size) in lists {
        let mut next = first;
        while next != 0 && next % 16 == 0 {
            let Some((head, link)) = next.checked_add(8).and_then(|at| words.pair(at)) else {
                break;
            };
            // A list that is torn may turn in a circle.
            if head & !7 != size || !found.insert(next) {
                break;
            }
            next = links.decode(next + 16, link);
        }
    }
    found
}

/// How the lists are written: the first that can only be read one way tells.
fn links_of<M: Memory>(words: &mut Scattered<'_, M>, lists: &[(u64, u64)]) -> Option<Links> {
    for (first, size) in lists {
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

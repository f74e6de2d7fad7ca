//! Tells links that were left in memory from pointers of the program that look like them.
//!
//! The memory in which a link was left is used again sooner or later, and then the link is gone. A
//! pointer that the program keeps stays where it is, or another one takes its place, or it moves
//! elsewhere.

use super::index::BlockId;

/// Doubtful words that counted in a search.
#[derive(Debug, Default)]
pub(crate) struct CountedDoubts {
    /// Their addresses, in order.
    places: Vec<u64>,
    /// Their values, in order.
    values: Vec<u64>,
}

/// The words of a search that may be links of former free chunks. A word counts if one that counted
/// in the search before was at its address, or had its value.
pub(super) struct Doubts<'d> {
    /// Those that counted in the search before; `None` in the first search.
    before: Option<&'d CountedDoubts>,
    counted: CountedDoubts,
    /// Blocks to which links and words that do not count point. They are neither reachable nor
    /// lost.
    pub(super) links: Vec<BlockId>,
    /// The addresses of the doubtful words, with the blocks to which they point: those, and others.
    targets: Vec<(u64, BlockId)>,
}

impl<'d> Doubts<'d> {
    pub(super) fn new(before: Option<&'d CountedDoubts>) -> Self {
        Self { before, counted: CountedDoubts::default(), links: Vec::new(), targets: Vec::new() }
    }

    /// Notes a doubtful word at an address, which leads to a block if there was one. Returns
    /// whether it counts.
    pub(super) fn counts(&mut self, at: u64, value: u64, to: Option<BlockId>) -> bool {
        self.targets.extend(to.map(|to| (at, to)));
        let counts = self.before.is_none_or(|before| {
            before.places.binary_search(&at).is_ok() || before.values.binary_search(&value).is_ok()
        });
        match counts {
            true => {
                self.counted.places.push(at);
                self.counted.values.push(value);
            }
            false => self.links.extend(to),
        }
        counts
    }

    /// Returns those that counted, the blocks of `links`, and those to which doubtful words point:
    /// once for each word, however often it was read.
    pub(super) fn end(mut self) -> (CountedDoubts, Vec<BlockId>, Vec<BlockId>) {
        self.counted.places.sort_unstable();
        self.counted.values.sort_unstable();
        self.targets.sort_unstable();
        self.targets.dedup();
        (self.counted, self.links, self.targets.into_iter().map(|(_, to)| to).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_as_long_as_it_or_another_stays_at_its_place_or_it_moves() {
        let search = |before: Option<&CountedDoubts>, words: &[(u64, u64)]| {
            let mut doubts = Doubts::new(before);
            let counts: Vec<bool> =
                words.iter().map(|(at, value)| doubts.counts(*at, *value, Some(7))).collect();
            (counts, doubts.end())
        };
        let (counts, (first, ..)) = search(None, &[(0x10, 1), (0x20, 2), (0x30, 3)]);
        assert_eq!(counts, [true, true, true]);
        let words = [(0x10, 9), (0x20, 2), (0x50, 3), (0x60, 6)];
        let (counts, (second, links, targets)) = search(Some(&first), &words);
        assert_eq!((counts, links.len(), targets.len()), (vec![true, true, true, false], 1, 4));
        let (counts, _) = search(Some(&second), &[(0x60, 6), (0x30, 8), (0x50, 3)]);
        assert_eq!(counts, [false, false, true]);
    }
}

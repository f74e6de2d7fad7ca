//! Tells links that were left in memory from pointers of the program that look like them.
//!
//! The memory in which a link was left is used again sooner or later, and then the link is gone. A
//! pointer that the program keeps stays where it is, or another one takes its place.

use super::index::BlockId;

/// The words of a search that may be links of former free chunks. A word counts if a word that
/// may be such a link was at its address in each earlier search.
pub(super) struct Doubts<'d> {
    /// The addresses of those of the earlier searches, in order; `None` in the first search.
    seen: Option<&'d [u64]>,
    /// The addresses of those of this search that count.
    pub(super) places: Vec<u64>,
    /// Blocks to which links and words that do not count point. They are neither reachable nor
    /// lost.
    pub(super) links: Vec<BlockId>,
    /// The blocks among them, and others, to which doubtful words point.
    pub(super) targets: Vec<BlockId>,
}

impl<'d> Doubts<'d> {
    pub(super) fn new(seen: Option<&'d [u64]>) -> Self {
        Self { seen, places: Vec::new(), links: Vec::new(), targets: Vec::new() }
    }

    /// Notes a doubtful word at an address, which leads to a block if there was one. Returns
    /// whether it counts.
    pub(super) fn counts(&mut self, at: u64, to: Option<BlockId>) -> bool {
        self.targets.extend(to);
        let counts = self.seen.is_none_or(|seen| seen.binary_search(&at).is_ok());
        match counts {
            true => self.places.push(at),
            false => self.links.extend(to),
        }
        counts
    }
}

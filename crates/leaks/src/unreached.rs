//! The blocks that no root led to, in several searches of a program that runs.
//!
//! A search can miss a pointer that the program moves meanwhile, and it can find a word that was
//! left in memory and is no pointer. So a block is lost if no root led to it in nearly all
//! searches.

use std::cmp::Ordering;

use lowtide_analysis::leaks::Reachability;

use crate::book::Survivor;
use crate::pointers::graph::Unreached;
use crate::pointers::index::BlockId;

/// Address and print of a block.
type Place = (u64, u16);

/// Blocks that no root led to.
#[derive(Debug)]
pub(crate) struct UnreachedBlocks {
    /// Those of the last search that the program cannot reach.
    last: Vec<Place>,
    /// Those that the program cannot reach.
    sure: Tally,
    /// Those, and those that only words lead to that may be links of former free chunks.
    but_for_doubts: Tally,
    /// Those, and those of which it is unknown.
    all: Tally,
    /// Number of blocks in the heap.
    blocks: usize,
    /// Maximum number of words in a search that may be such links and lead to such blocks.
    doubtful: usize,
    /// Whether these are so few that they are links indeed (see
    /// [`UnreachedBlocks::has_few_doubts`]).
    has_few_doubts: bool,
    /// Number of these words that counted in the last search, and the maximum of all searches.
    doubts: usize,
    most_doubts: usize,
}

impl UnreachedBlocks {
    /// Minimum number of searches for a block to be lost.
    pub(crate) const LEAST: u32 = 2;

    /// Creates those of one search. `blocks_of` returns the blocks with some numbers, in order.
    pub(crate) fn new(
        found: &Unreached,
        blocks: usize,
        blocks_of: impl Fn(&[BlockId]) -> Vec<Place>,
    ) -> Self {
        let (last, but_for_doubts) = (blocks_of(&found.lost), blocks_of(&found.but_for_doubts));
        let mut all = [blocks_of(&found.unsure), but_for_doubts.clone()].concat();
        all.sort_unstable();
        all.dedup();
        Self {
            sure: Tally::new(last.clone()),
            last,
            but_for_doubts: Tally::new(but_for_doubts),
            all: Tally::new(all),
            blocks,
            doubtful: found.doubtful,
            doubts: found.doubts,
            most_doubts: found.doubts,
            has_few_doubts: false,
        }
        .judged()
    }

    /// Returns those of all searches so far. `later` are those of a further search.
    pub(crate) fn and(self, later: Self) -> Self {
        Self {
            last: later.last,
            sure: self.sure.and(later.sure),
            but_for_doubts: self.but_for_doubts.and(later.but_for_doubts),
            all: self.all.and(later.all),
            blocks: later.blocks,
            doubtful: self.doubtful.max(later.doubtful),
            doubts: later.doubts,
            most_doubts: self.most_doubts.max(later.doubts),
            has_few_doubts: false,
        }
        .judged()
    }

    /// Judges the doubtful words once: this goes through all blocks.
    fn judged(self) -> Self {
        Self { has_few_doubts: self.has_few_beside(&self), ..self }
    }

    /// Returns whether words that may be links are so few, compared to the blocks to which they
    /// lead, that they are links indeed: then a further search ignores those that are new.
    /// Otherwise they are pointers of the program, which are as many as its structures, and all of
    /// them count in each search.
    pub(crate) fn has_few_doubts(&self) -> bool {
        self.has_few_doubts
    }

    /// Returns the same of the words of this search and the blocks of another one, or of this one
    /// if they are more.
    pub(crate) fn has_few_beside(&self, other: &Self) -> bool {
        /// Minimum number of blocks for each word.
        const MANY: usize = 20;
        let unreached = self.but_for_doubts.candidates().max(other.but_for_doubts.candidates());
        self.doubtful * MANY <= unreached
    }

    /// Returns whether the block with an address and a print is lost: no root led to it in the last
    /// search, nor in nearly all others.
    pub(crate) fn is_lost(&self, at: u64, print: u16) -> bool {
        let place = (at, print);
        self.searches() >= Self::LEAST
            && self.last.binary_search(&place).is_ok()
            && self.decisive().contains(place)
    }

    /// Returns whether it is unknown whether the program can reach a block.
    pub(crate) fn is_unsure(&self, at: u64, print: u16) -> bool {
        !self.is_lost(at, print) && self.all.contains((at, print))
    }

    /// Returns how many of some blocks, of which there is at least one, the program cannot reach.
    pub(crate) fn reachability(&self, sample: &[Survivor]) -> Reachability {
        let share = |is: &dyn Fn(u64, u16) -> bool| {
            let among = sample.iter().filter(|block| is(block.at, block.print)).count();
            among as f64 / sample.len() as f64
        };
        Reachability {
            sampled: sample.len() as u64,
            unreachable_share: share(&|at, print| self.is_lost(at, print)),
            unsure_share: share(&|at, print| self.is_unsure(at, print)),
            rounds: self.searches(),
        }
    }

    /// Returns the number of searches.
    pub(crate) fn searches(&self) -> u32 {
        u32::from(self.all.searches)
    }

    /// Returns the blocks that are lost if the last search says so.
    fn decisive(&self) -> &Tally {
        match self.has_few_doubts {
            true => &self.but_for_doubts,
            false => &self.sure,
        }
    }

    /// Returns whether further searches may find that more blocks are lost: many others were found
    /// in at least half of the searches.
    pub(crate) fn is_undecided(&self) -> bool {
        const SHARE: f64 = 0.01;
        let lost = self.last.iter().filter(|(at, print)| self.is_lost(*at, *print)).count();
        let candidates = self.decisive().candidates();
        let others = candidates.saturating_sub(lost) as f64;
        others > candidates as f64 * SHARE && others > self.blocks as f64 * SHARE
    }

    /// Returns whether words that may be links have become fewer.
    pub(crate) fn doubts_vanish(&self) -> bool {
        self.doubts * 2 <= self.most_doubts
    }
}

/// Blocks, with the number of searches in which they were not found.
#[derive(Debug, Clone, Default)]
struct Tally {
    /// In order.
    found: Vec<(Place, u8)>,
    searches: u8,
}

impl Tally {
    /// Maximum number of searches in which a block was not found.
    const MAX: u8 = 4;

    fn new(places: Vec<Place>) -> Self {
        Self { found: places.into_iter().map(|place| (place, 0)).collect(), searches: 1 }
    }

    /// Returns the blocks of both, as far as they can still be found often.
    fn and(self, later: Self) -> Self {
        let (searches, missed) = (self.searches + later.searches, [later.searches, self.searches]);
        let mut found = Vec::with_capacity(self.found.len());
        let (mut one, mut other) =
            (self.found.into_iter().peekable(), later.found.into_iter().peekable());
        loop {
            let order = match (one.peek(), other.peek()) {
                (Some((a, _)), Some((b, _))) => a.cmp(b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Self { found, searches },
            };
            let of_one = if order.is_le() { one.next() } else { None };
            let of_other = if order.is_ge() { other.next() } else { None };
            let place = of_one.or(of_other).map(|(place, _)| place);
            let count = |of: Option<(Place, u8)>, missed| of.map_or(missed, |(_, count)| count);
            let count = count(of_one, missed[1]) + count(of_other, missed[0]);
            found.extend(place.filter(|_| count <= Self::MAX).map(|place| (place, count)));
        }
    }

    /// Returns the number of searches in which a block may not have been found: none of the first
    /// four, and one of each three after that. If a search misses a pointer that moves with a
    /// probability of at most one half, a block is called unreached by mistake less often than by
    /// two searches that must agree.
    fn permitted(&self) -> u8 {
        (self.searches.saturating_sub(2) / 3).min(Self::MAX)
    }

    /// Returns the number of blocks that were found in at least half of the searches.
    fn candidates(&self) -> usize {
        self.found.iter().filter(|(_, missed)| missed * 2 <= self.searches).count()
    }

    fn contains(&self, place: Place) -> bool {
        let found = self.found.binary_search_by_key(&place, |(place, _)| *place);
        found.is_ok_and(|at| self.found[at].1 <= self.permitted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(searches: &[&[u64]]) -> Vec<u64> {
        let of = |places: &&[u64]| Tally::new(places.iter().map(|at| (*at, 1)).collect());
        let all = searches.iter().map(of).reduce(Tally::and).unwrap();
        (1..=3).filter(|at| all.contains((*at, 1))).collect()
    }

    #[test]
    fn a_block_must_be_unreached_in_all_of_few_searches_and_in_most_of_many() {
        assert_eq!(tally(&[&[1, 2], &[2, 3]]), [2]);
        assert_eq!(tally(&[&[1, 2], &[2], &[1, 2], &[1, 2]]), [2]);
        assert_eq!(tally(&[&[1, 2], &[2], &[1, 2], &[1, 2], &[1, 2]]), [1, 2]);
        assert!(tally(&[&[], &[1], &[1], &[1], &[], &[1], &[1]]).is_empty());
        assert_eq!(tally(&[&[], &[1], &[1], &[1], &[], &[1], &[1], &[1]]), [1]);
    }

    #[test]
    fn a_pointer_that_moves_makes_no_block_lost_more_often_than_with_two_searches() {
        for searches in 2..=14_u32 {
            let tally = Tally { found: Vec::new(), searches: searches as u8 };
            let missed =
                |count: u32| (0..count).map(|n| f64::from(searches - n) / f64::from(n + 1));
            let ways: f64 =
                (0..=u32::from(tally.permitted())).map(|n| missed(n).product::<f64>()).sum();
            assert!(ways / 2_f64.powi(searches as i32) <= 0.25, "{searches}");
        }
    }

    fn found(lost: usize, unsure: usize, doubtful: usize) -> UnreachedBlocks {
        let ids = |range: std::ops::Range<usize>| range.map(|id| id as BlockId).collect();
        let found = Unreached {
            lost: ids(0..lost),
            but_for_doubts: ids(0..lost + unsure),
            unsure: ids(lost..lost + unsure),
            doubtful,
            doubts: doubtful,
        };
        let places = |ids: &[BlockId]| ids.iter().map(|id| (u64::from(*id), 1)).collect();
        UnreachedBlocks::new(&found, 1000, places)
    }

    #[test]
    fn few_doubtful_words_may_be_links_but_many_are_pointers_of_the_program() {
        assert!(found(0, 300, 15).has_few_doubts());
        assert!(!found(0, 300, 16).has_few_doubts());
        // Where they are few, the last search decides, otherwise each of the first.
        let few = found(0, 300, 15).and(found(300, 0, 0));
        assert!(few.is_lost(7, 1) && !few.is_undecided());
        let many = found(0, 300, 16).and(found(300, 0, 0));
        assert!(!many.is_lost(7, 1) && many.is_unsure(7, 1));
    }

    #[test]
    fn further_searches_follow_one_in_which_a_word_led_to_what_others_did_not_reach() {
        let reached = |first: UnreachedBlocks| first.and(found(0, 0, 0)).is_undecided();
        assert!(reached(found(300, 0, 0)));
        assert!(!reached(found(5, 0, 0)));
        let later = found(0, 0, 0).and(found(300, 0, 0)).and(found(300, 0, 0));
        let later = later.and(found(300, 0, 0));
        assert!(!later.is_lost(7, 1) && later.and(found(300, 0, 0)).is_lost(7, 1));
    }
}

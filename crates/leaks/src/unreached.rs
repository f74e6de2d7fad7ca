//! The blocks that no root led to, in several searches of a program that runs.
//!
//! A search can miss a pointer that the program moves meanwhile, and it can find a word that was
//! left in memory and is no pointer. So a block is lost only if all of these conditions hold:
//!
//! - No root led to it in the last search, nor in nearly all others. It is the same block in all of
//!   them, with the same address, size and content.
//! - There were enough searches: more if pointers moved during one of them.
//! - The searches agree on the blocks of about its size. A block that is missed because its
//!   pointers move is found by other searches. So if some blocks are missed by all searches for
//!   this reason, more of them are found by one search, and still more by two. Blocks that
//!   were found until they were missed do not count: the program may have lost them meanwhile.

use std::cmp::Ordering;
use std::ops::Range;

use lowtide_analysis::leaks::Reachability;

use crate::book::Survivor;
use crate::pointers::graph::Unreached;
use crate::pointers::index::BlockId;

/// A block that was found in a search: in order of address and print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FoundBlock {
    at: u64,
    print: u16,
    /// Its size in units of 8 bytes.
    units: u32,
}

impl FoundBlock {
    /// Creates the block with some addresses and a print.
    pub(crate) fn new(block: &Range<u64>, print: u16) -> Self {
        let units = (block.end - block.start) / 8;
        Self { at: block.start, print, units: u32::try_from(units).unwrap_or(u32::MAX) }
    }

    /// Returns its address and its print.
    fn place(self) -> (u64, u16) {
        (self.at, self.print)
    }

    /// Returns the number of its size class: those of one class differ by less than a factor of 2.
    fn class(self) -> usize {
        self.units.checked_ilog2().unwrap_or(0) as usize
    }
}

/// Number of size classes.
const CLASSES: usize = u32::BITS as usize;

/// Blocks that no root led to.
#[derive(Debug)]
pub(crate) struct UnreachedBlocks {
    /// Those of the last search that the program cannot reach.
    last: Vec<FoundBlock>,
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
    /// Whether pointers moved during a search.
    is_restless: bool,
    /// The number of searches that may have found a lost block of each size class; `None` if the
    /// searches disagree on the class.
    agreement: [Option<u32>; CLASSES],
}

impl UnreachedBlocks {
    /// Minimum number of searches for a block to be lost, and the same if pointers moved during one
    /// of them: a table that moves as a whole is then missed as a whole.
    pub(crate) const LEAST: u32 = 2;
    const LEAST_RESTLESS: u32 = 4;

    /// Creates those of one search. `blocks_of` returns the blocks with some numbers, in order.
    pub(crate) fn new(
        found: &Unreached,
        blocks: usize,
        blocks_of: impl Fn(&[BlockId]) -> Vec<FoundBlock>,
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
            is_restless: found.is_restless,
            agreement: [None; CLASSES],
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
            is_restless: self.is_restless || later.is_restless,
            agreement: [None; CLASSES],
        }
        .judged()
    }

    /// Judges the doubtful words and the agreement of the searches once: this goes through all
    /// blocks.
    fn judged(self) -> Self {
        let judged = Self { has_few_doubts: self.has_few_beside(&self), ..self };
        Self { agreement: judged.decisive().agreement(), ..judged }
    }

    /// Returns the minimum number of searches for a block to be lost.
    pub(crate) fn least(&self) -> u32 {
        let is_any =
            || self.all.blocks.iter().any(|(_, by)| by.count_ones() <= self.all.permitted());
        if self.is_restless && is_any() { Self::LEAST_RESTLESS } else { Self::LEAST }
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

    /// Returns whether the block with an address and a print is lost (see [the module](self)).
    pub(crate) fn is_lost(&self, at: u64, print: u16) -> bool {
        let place = (at, print);
        let found = self.last.binary_search_by_key(&place, |block| block.place());
        let Some(block) = found.ok().map(|found| self.last[found]) else { return false };
        let (most, found_by) =
            (self.agreement[block.class()], self.decisive().found_by_block(block));
        self.searches() >= self.least() && most.zip(found_by).is_some_and(|(most, n)| n <= most)
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
        self.all.searches
    }

    /// Returns the blocks that are lost if the last search says so.
    fn decisive(&self) -> &Tally {
        match self.has_few_doubts {
            true => &self.but_for_doubts,
            false => &self.sure,
        }
    }

    /// Returns whether further searches may find that more blocks are lost: the searches disagree
    /// on some, or many others were found in at least half of the searches.
    pub(crate) fn is_undecided(&self) -> bool {
        const SHARE: f64 = 0.01;
        if self.agreement.contains(&None) {
            return true;
        }
        let lost = self.last.iter().filter(|block| self.is_lost(block.at, block.print)).count();
        let candidates = self.decisive().candidates();
        let others = candidates.saturating_sub(lost) as f64;
        others > candidates as f64 * SHARE && others > self.blocks as f64 * SHARE
    }

    /// Returns whether words that may be links have become fewer.
    pub(crate) fn doubts_vanish(&self) -> bool {
        self.doubts * 2 <= self.most_doubts
    }
}

/// The searches that found a block: a bit for each, the first one lowest. A search in which it did
/// not exist has found it.
type FoundBy = u16;

/// Blocks, with the searches that found them.
#[derive(Debug, Clone, Default)]
struct Tally {
    /// In order.
    blocks: Vec<(FoundBlock, FoundBy)>,
    searches: u32,
}

impl Tally {
    /// Maximum number of searches that found a block: others are not lost.
    const MAX: u32 = 6;

    fn new(blocks: Vec<FoundBlock>) -> Self {
        Self { blocks: blocks.into_iter().map(|block| (block, 0)).collect(), searches: 1 }
    }

    /// Returns the blocks of both, as far as few searches have found them.
    fn and(self, later: Self) -> Self {
        let all = |searches: u32| ((1_u32 << searches) - 1) as FoundBy;
        let (missing, missing_later) = (all(self.searches), all(later.searches));
        let mut blocks = Vec::with_capacity(self.blocks.len());
        let (mut one, mut other) =
            (self.blocks.into_iter().peekable(), later.blocks.into_iter().peekable());
        loop {
            let order = match (one.peek(), other.peek()) {
                (Some((a, _)), Some((b, _))) => a.cmp(b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => {
                    return Self { blocks, searches: self.searches + later.searches };
                }
            };
            let of_one = if order.is_le() { one.next() } else { None };
            let of_other = if order.is_ge() { other.next() } else { None };
            let block = of_one.or(of_other).map(|(block, _)| block);
            let found_by = of_one.map_or(missing, |(_, by)| by)
                | of_other.map_or(missing_later, |(_, by)| by) << self.searches;
            let is_candidate = found_by.count_ones() <= Self::MAX;
            blocks.extend(block.filter(|_| is_candidate).map(|block| (block, found_by)));
        }
    }

    /// Returns the maximum number of searches that may have found a lost block: none of the first
    /// four, and one of each three after that. If a search misses a pointer that moves with a
    /// probability of at most one half, a block is called unreached by mistake less often than by
    /// two searches that must agree.
    fn permitted(&self) -> u32 {
        (self.searches.saturating_sub(2) / 3).min(Self::MAX - 1)
    }

    /// Returns the number of blocks that at least half of the searches missed.
    fn candidates(&self) -> usize {
        self.blocks.iter().filter(|(_, by)| by.count_ones() * 2 <= self.searches).count()
    }

    /// Returns the number of searches that found a block, if they are few.
    fn found_by(&self, place: (u64, u16)) -> Option<u32> {
        self.count(self.blocks.binary_search_by_key(&place, |(block, _)| block.place()))
    }

    /// Returns the same of a block of one size: its memory may have been a larger block before.
    fn found_by_block(&self, block: FoundBlock) -> Option<u32> {
        self.count(self.blocks.binary_search_by_key(&block, |(block, _)| *block))
    }

    fn count(&self, found: Result<usize, usize>) -> Option<u32> {
        found.ok().map(|at| self.blocks[at].1.count_ones())
    }

    fn contains(&self, place: (u64, u16)) -> bool {
        self.found_by(place).is_some_and(|count| count <= self.permitted())
    }

    /// Returns the number of searches that may have found a lost block of each size class; `None`
    /// if the searches disagree on the class.
    fn agreement(&self) -> [Option<u32>; CLASSES] {
        let mut counts = [ClassCounts::default(); CLASSES];
        for (block, by) in &self.blocks {
            let ClassCounts { all, again } = &mut counts[block.class()];
            all[by.count_ones() as usize] += 1;
            // Blocks that were found until they were missed may be lost since.
            again[by.count_ones() as usize] += usize::from(by & by.wrapping_add(1) != 0);
        }
        counts.map(|counts| (0..=self.permitted()).rev().find(|most| self.agrees(&counts, *most)))
    }

    /// Returns whether blocks that at most `most` searches found are lost.
    ///
    /// If searches miss a block by chance, there are more blocks that were found by one search
    /// more, and still more that were found by two more. (Old links make a few lost blocks seem
    /// reachable: of these, fewer are found by more searches.) So the smallest of these numbers
    /// bounds the number of blocks that all searches miss by chance, unless a search misses them
    /// more often than not. At least half of them are found again after a search has missed them.
    fn agrees(&self, counts: &ClassCounts, most: u32) -> bool {
        /// Maximum number of blocks that are called lost by mistake, as a share of the lost ones,
        /// and at least.
        const SHARE: f64 = 0.001;
        const LEAST: f64 = 0.05;
        let (place, searches) = (most as usize + 1, self.searches - most);
        let others = counts.again[place..].iter().take(searches as usize - 1).min();
        // If a search misses a block as often as not, all outcomes of the searches are as likely.
        let ratio = 2.0 * f64::from(most + 1) / f64::from(searches);
        let by_chance = others.map_or(0.0, |count| *count as f64 * ratio);
        let lost = counts.all[..place].iter().sum::<usize>() as f64;
        lost == 0.0 || by_chance <= (lost * SHARE).max(LEAST)
    }
}

/// Numbers of blocks of a size class, by the number of searches that found them.
#[derive(Debug, Clone, Copy, Default)]
struct ClassCounts {
    all: [usize; Tally::MAX as usize + 1],
    /// Those that a search found after one had missed them.
    again: [usize; Tally::MAX as usize + 1],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(at: u64) -> FoundBlock {
        FoundBlock::new(&(at..at + 80), 1)
    }

    fn tally(searches: &[&[u64]]) -> Vec<u64> {
        let of = |places: &&[u64]| Tally::new(places.iter().map(|at| block(*at)).collect());
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
            let tally = Tally { blocks: Vec::new(), searches };
            let missed =
                |count: u32| (0..count).map(|n| f64::from(searches - n) / f64::from(n + 1));
            let ways: f64 = (0..=tally.permitted()).map(|n| missed(n).product::<f64>()).sum();
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
            is_restless: false,
        };
        let places = |ids: &[BlockId]| ids.iter().map(|id| block(u64::from(*id))).collect();
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

    /// Returns the result of some searches, each of which finds all blocks with a number below
    /// `blocks` but those that `misses` selects, and that are lost.
    fn searches(
        count: u64,
        blocks: u64,
        is_restless: bool,
        misses: impl Fn(u64, u64) -> bool,
    ) -> UnreachedBlocks {
        let search = |search: u64| {
            let lost: Vec<BlockId> =
                (0..blocks).filter(|at| misses(search, *at)).map(|at| at as BlockId).collect();
            let found = Unreached {
                but_for_doubts: lost.clone(),
                lost,
                unsure: Vec::new(),
                doubtful: 0,
                doubts: 0,
                is_restless,
            };
            let places = |ids: &[BlockId]| ids.iter().map(|id| block(u64::from(*id))).collect();
            UnreachedBlocks::new(&found, blocks as usize, places)
        };
        (0..count).map(search).reduce(UnreachedBlocks::and).unwrap()
    }

    /// Returns whether a search misses a block by chance: one of `share`.
    fn is_missed(share: u64, search: u64, at: u64) -> bool {
        let mut random = (at << 8 | search).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random = (random ^ random >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (random >> 32).is_multiple_of(share)
    }

    #[test]
    fn blocks_that_all_searches_miss_by_chance_are_not_lost_and_lost_ones_beside_them_are() {
        for share in [2, 5, 100] {
            let is_missed = |search: u64, at: u64| is_missed(share, search, at);
            for count in 2..=14 {
                let none = searches(count, 4000, true, is_missed);
                let lost = (0..4000).filter(|at| none.is_lost(*at, 1)).count();
                assert_eq!(lost, 0, "{count} searches, of which each misses one of {share}");
            }
            let some = searches(14, 4000, true, |n, at| at < 1000 || is_missed(n, at));
            // At most one of a thousand is called lost by mistake.
            assert!((1000..4000).filter(|at| some.is_lost(*at, 1)).count() <= 1, "{share}");
            let is_found = (0..1000).all(|at| some.is_lost(at, 1));
            assert!(is_found || some.is_undecided() && share == 2, "{share}");
        }
        let is_missed = |search: u64, at: u64| at < 1000 || is_missed(100, search, at);
        assert!(searches(2, 4000, false, is_missed).is_undecided());
        let four = searches(4, 4000, true, is_missed);
        assert!(!four.is_undecided() && (0..4000).all(|at| four.is_lost(at, 1) == (at < 1000)));
    }

    #[test]
    fn lost_blocks_to_which_old_links_lead_in_few_searches_are_lost() {
        // One search of five reaches half of a list, and each reaches one of fifty other blocks.
        let is_missed = |search: u64, at: u64| match at {
            0..1000 => search != 3 || at < 500,
            _ => !is_missed(50, search, at),
        };
        let five = searches(5, 2000, true, is_missed);
        let lost = (0..2000).filter(|at| five.is_lost(*at, 1)).count();
        assert!(lost > 1950, "{lost}");
    }

    #[test]
    fn blocks_that_the_program_loses_meanwhile_do_not_make_searches_disagree() {
        let four = searches(4, 4000, true, |search, at| at < 1000 + 500 * search);
        assert!((0..4000).all(|at| four.is_lost(at, 1) == (at < 1000)));
    }

    #[test]
    fn more_searches_must_agree_if_pointers_moved_during_one_of_them() {
        let all = |_: u64, _: u64| true;
        assert!(searches(2, 100, false, all).is_lost(7, 1));
        assert!(!searches(3, 100, true, all).is_lost(7, 1));
        assert!(searches(4, 100, true, all).is_lost(7, 1));
    }

    #[test]
    fn a_block_of_another_size_at_the_same_place_is_another_one() {
        let one = Tally::new(vec![block(7)]).and(Tally::new(vec![FoundBlock::new(&(7..39), 1)]));
        assert!(!one.contains((7, 1)));
    }
}

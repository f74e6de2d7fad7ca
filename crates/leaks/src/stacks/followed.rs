//! Sampled blocks that are still unchanged.
//!
//! The address of a block does not identify it: after the block is freed, the next one can have the
//! same address. So a block is followed by its content from its allocation on. Its first word
//! changes when the allocator adds the block to a free list, and when the next block at that
//! address is filled. Only the walk of the heap then decides whether the block is in use.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Number of words at the start of a block that are stored.
pub(super) const WORDS: usize = 6;
/// Maximum number of blocks that are followed.
const MAX_FOLLOWED: usize = 1 << 17;
/// Delays between two checks of a block, in milliseconds. The last one repeats.
const STEPS_MS: [u64; 7] = [50, 300, 1_000, 3_000, 10_000, 30_000, 60_000];

/// The first words of a block, as many as could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstWords {
    words: [u64; WORDS],
    length: u8,
}

impl FirstWords {
    /// Creates it from bytes. Returns `None` if they are less than a word.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let mut content = Self { words: [0; WORDS], length: 0 };
        for (word, bytes) in content.words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            content.length += 1;
        }
        (content.length > 0).then_some(content)
    }

    /// Returns whether the first words are equal, at most this many.
    pub(super) fn is_like(&self, other: &Self, words: usize) -> bool {
        let common = usize::from(self.length.min(other.length)).min(words);
        self.words[..common] == other.words[..common]
    }
}

/// A block that is followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Followed {
    /// The time of its allocation, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) time_ns: u64,
    /// The number of its stack.
    pub(super) stack: u32,
    /// The stack pointer when the allocation function returned.
    pub(super) stack_pointer: u64,
    /// Its content when it was first read.
    pub(super) content: FirstWords,
    checks: u8,
}

impl Followed {
    /// Creates the entry of a block that was just allocated.
    pub(super) fn new(time_ns: u64, stack: u32, stack_pointer: u64, content: FirstWords) -> Self {
        Self { time_ns, stack, stack_pointer, content, checks: 0 }
    }
}

/// Blocks that are followed, by address.
#[derive(Debug, Default)]
pub(super) struct FollowedBlocks {
    blocks: HashMap<u64, Followed>,
    /// The time at which each is due, its address, and the time of its allocation.
    due: BinaryHeap<Reverse<(u64, u64, u64)>>,
    random: u64,
}

impl FollowedBlocks {
    /// Follows a block, and stops following an earlier one at the same address. Returns whether
    /// there was room.
    pub(super) fn add(&mut self, at: u64, block: Followed) -> bool {
        self.blocks.remove(&at);
        if self.blocks.len() >= MAX_FOLLOWED {
            return false;
        }
        let time_ns = block.time_ns;
        self.blocks.insert(at, block);
        self.schedule(at, time_ns, 0, time_ns);
        true
    }

    /// Removes and returns the block at an address that was allocated again.
    pub(super) fn remove(&mut self, at: u64) -> Option<Followed> {
        self.blocks.remove(&at)
    }

    fn schedule(&mut self, at: u64, now_ns: u64, checks: u8, time_ns: u64) {
        let step = STEPS_MS[usize::from(checks).min(STEPS_MS.len() - 1)] * 1_000_000;
        // Between half of the delay and one and a half, so that the checks do not coincide with a
        // rhythm of the program.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let jitter = ((u128::from(self.random >> 32) * u128::from(step)) >> 32) as u64;
        self.due.push(Reverse((now_ns + step / 2 + jitter, at, time_ns)));
    }

    /// Checks the blocks that are due. `read` reads the content at an address.
    pub(super) fn check(&mut self, now_ns: u64, read: &mut dyn FnMut(u64) -> Option<FirstWords>) {
        while let Some(Reverse((due, at, time_ns))) = self.due.peek().copied() {
            if due > now_ns {
                return;
            }
            self.due.pop();
            let Some(block) = self.blocks.get_mut(&at).filter(|block| block.time_ns == time_ns)
            else {
                continue;
            };
            if read(at).is_some_and(|content| content.is_like(&block.content, 1)) {
                block.checks = block.checks.saturating_add(1);
                let checks = block.checks;
                self.schedule(at, now_ns, checks, time_ns);
            } else {
                self.blocks.remove(&at);
            }
        }
    }

    /// Returns the blocks that are left, in order of address.
    pub(super) fn into_blocks(self) -> Vec<(u64, Followed)> {
        let mut blocks: Vec<(u64, Followed)> = self.blocks.into_iter().collect();
        blocks.sort_unstable_by_key(|(at, _)| *at);
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn content(word: u64) -> FirstWords {
        FirstWords::new(&word.to_le_bytes()).unwrap()
    }

    fn block(time_ns: u64, stack: u32, word: u64) -> Followed {
        Followed::new(time_ns, stack, 0, content(word))
    }

    #[test]
    fn a_block_whose_content_changes_is_no_longer_followed() {
        let mut followed = FollowedBlocks::default();
        followed.add(0x1000, block(0, 1, 1));
        followed.add(0x2000, block(0, 2, 2));
        followed.check(SECOND, &mut |at| Some(content(if at == 0x1000 { 9 } else { 2 })));
        let left: Vec<u64> = followed.into_blocks().iter().map(|(at, _)| *at).collect();
        assert_eq!(left, [0x2000]);
    }

    #[test]
    fn a_block_at_a_reused_address_has_its_own_time_and_stack() {
        let mut followed = FollowedBlocks::default();
        followed.add(0x1000, block(0, 1, 1));
        followed.add(0x1000, block(SECOND, 2, 5));
        // The due check of the first block does not affect the second.
        followed.check(SECOND, &mut |_| None);
        let left = followed.into_blocks();
        assert_eq!((left.len(), left[0].1.stack, left[0].1.time_ns), (1, 2, SECOND));
    }

    #[test]
    fn the_number_of_followed_blocks_is_bounded() {
        let mut followed = FollowedBlocks::default();
        let added =
            (0..MAX_FOLLOWED as u64 + 10).filter(|at| followed.add(at * 16, block(0, 0, 1)));
        assert_eq!(added.count(), MAX_FOLLOWED);
    }

    #[test]
    fn only_the_words_that_both_contents_have_are_compared() {
        let long = FirstWords::new(&[7; 48]).unwrap();
        let short = FirstWords::new(&[7; 23]).unwrap();
        assert!(long.is_like(&short, WORDS) && short.is_like(&long, 1));
        assert_eq!(FirstWords::new(&[7; 7]), None);
    }
}

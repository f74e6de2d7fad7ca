//! Follows large blocks that grow: in place, or because a larger copy replaces them.

use std::ops::RangeInclusive;

use lowtide_heap::blocks::{PRINTED, print};
use lowtide_model::survivors::LARGE_BYTES;

use crate::book::Survivor;

/// Maximum number of blocks that are followed.
pub(crate) const MAX_FOLLOWED: usize = 256;
/// Maximum ratio of the sizes of a block and the copy that replaces it.
const MAX_RATIO: u64 = 5;
/// Minimum growth of a block that is reported: in bytes, and as the inverse of the part of its
/// first size.
const MIN_BYTES: u64 = 1 << 20;
const MIN_PART: u64 = 10;
/// Minimum number of times that it must have grown.
const MIN_STEPS: u32 = 2;

const _: () = assert!(LARGE_BYTES <= MIN_BYTES, "the book has all blocks that are reported");

/// The large blocks of the last snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct LargeBlocks {
    followed: Vec<BlockHistory>,
    /// The time of that snapshot, in seconds.
    pub(crate) now_s: f64,
}

/// A block, and its history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BlockHistory {
    pub(crate) now: Survivor,
    /// Its size when it was first seen, in bytes, and the time in seconds.
    pub(crate) first_bytes: u64,
    pub(crate) first_s: f64,
    /// Number of snapshots in which it was larger than before, and the time of the last of them.
    pub(crate) steps: u32,
    last_step_s: f64,
}

impl BlockHistory {
    fn new(now: Survivor, t_s: f64) -> Self {
        Self { now, first_bytes: now.bytes, first_s: t_s, steps: 0, last_step_s: t_s }
    }

    fn update(&mut self, now: Survivor, t_s: f64) {
        if now.bytes > self.now.bytes {
            self.steps += 1;
            self.last_step_s = t_s;
        }
        self.now = now;
    }

    fn is_growing(&self, now_s: f64) -> bool {
        let grown = self.now.bytes.saturating_sub(self.first_bytes);
        grown >= MIN_BYTES.max(self.first_bytes / MIN_PART)
            && self.steps >= MIN_STEPS
            && self.last_step_s >= f64::midpoint(self.first_s, now_s)
            && self.first_s <= now_s / 2.0
    }

    /// Returns the sizes that a copy can have.
    fn sizes_of_copy(&self) -> RangeInclusive<u64> {
        self.now.bytes..=self.now.bytes.saturating_mul(MAX_RATIO)
    }

    /// Returns whether a block can be this one, or its larger copy, by their content.
    fn is_like(&self, block: &Survivor) -> bool {
        let is_known = block.print != 0 && block.print != print(&[0; PRINTED as usize]);
        is_known && block.print == self.now.print && self.sizes_of_copy().contains(&block.bytes)
    }
}

impl LargeBlocks {
    /// Follows the blocks to a complete snapshot. `blocks` are the largest of them.
    pub(crate) fn follow(&mut self, t_s: f64, blocks: Vec<Survivor>) {
        self.now_s = t_s;
        let mut new: Vec<Option<Survivor>> = blocks.into_iter().map(Some).collect();
        let mut kept: Vec<BlockHistory> = Vec::with_capacity(new.len());
        let mut gone: Vec<BlockHistory> = Vec::new();
        for mut followed in std::mem::take(&mut self.followed) {
            let here = |block: &Survivor| {
                block.at == followed.now.at
                    && (block.bytes == followed.now.bytes
                        || block.bytes > followed.now.bytes && block.print == followed.now.print)
            };
            let place = new.iter().position(|block| block.as_ref().is_some_and(here));
            match place.and_then(|place| new[place].take()) {
                Some(block) => {
                    followed.update(block, t_s);
                    kept.push(followed);
                }
                None => gone.push(followed),
            }
        }
        // A copy begins with the same content. If several do, it is not known which is the copy.
        let mut left = Vec::new();
        for mut followed in gone {
            let is_copy = |block: &Survivor| followed.is_like(block);
            match only(&mut new, is_copy) {
                Some(block) => {
                    followed.update(block, t_s);
                    kept.push(followed);
                }
                None => left.push(followed),
            }
        }
        // Exactly one block has disappeared, and one has appeared that is not smaller.
        if let [followed] = left.as_mut_slice() {
            let sizes = followed.sizes_of_copy();
            let is_all = new.iter().flatten().count() == 1;
            let is_next = |block: &Survivor| is_all && sizes.contains(&block.bytes);
            if let Some(block) = only(&mut new, is_next) {
                followed.update(block, t_s);
                kept.push(*followed);
            }
        }
        kept.extend(new.into_iter().flatten().map(|block| BlockHistory::new(block, t_s)));
        self.followed = kept;
    }

    /// Returns the blocks that grow, the one that grew most first.
    pub(crate) fn growing(&self) -> Vec<BlockHistory> {
        let growing = self.followed.iter().filter(|block| block.is_growing(self.now_s));
        let mut growing: Vec<BlockHistory> = growing.copied().collect();
        growing.sort_by_key(|block| std::cmp::Reverse(block.now.bytes - block.first_bytes));
        growing
    }
}

/// Takes the only block that fulfils a condition; `None` if there are others.
fn only(blocks: &mut [Option<Survivor>], is_it: impl Fn(&Survivor) -> bool) -> Option<Survivor> {
    let mut found = blocks.iter_mut().filter(|block| block.as_ref().is_some_and(&is_it));
    let first = found.next()?;
    if found.next().is_some() {
        return None;
    }
    first.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn block(at: u64, mib: u64, print: u16) -> Survivor {
        Survivor { at, bytes: mib * MIB, cohort: 0, print, is_lost: false }
    }

    /// Returns the first and the last size of the blocks that grow, in MiB, after these snapshots.
    fn growing(snapshots: &[&[Survivor]]) -> Vec<(u64, u64)> {
        let mut blocks = LargeBlocks::default();
        for (place, snapshot) in snapshots.iter().enumerate() {
            blocks.follow(place as f64 * 5.0, snapshot.to_vec());
        }
        let sizes = |block: &BlockHistory| (block.first_bytes / MIB, block.now.bytes / MIB);
        blocks.growing().iter().map(sizes).collect()
    }

    #[test]
    fn a_block_that_grows_in_place_or_moves_with_its_content_is_followed() {
        let others = [block(1, 8, 5), block(2, 8, 7)];
        let with = |one: Survivor| [others[0], others[1], one];
        let in_place = [with(block(9, 10, 7)), with(block(9, 15, 7)), with(block(9, 22, 7))];
        assert_eq!(growing(&[&in_place[0], &in_place[1], &in_place[2]]), [(10, 22)]);
        let moved = [with(block(9, 10, 7)), with(block(30, 15, 7)), with(block(70, 22, 7))];
        assert_eq!(growing(&[&moved[0], &moved[1], &moved[2]]), [(10, 22)]);
    }

    #[test]
    fn a_table_that_is_replaced_by_a_longer_one_with_other_content_is_followed() {
        let steps = [[block(9, 10, 3)], [block(30, 20, 5)], [block(50, 40, 7)]];
        assert_eq!(growing(&[&steps[0], &steps[1], &steps[2]]), [(10, 40)]);
    }

    #[test]
    fn blocks_that_are_replaced_by_several_others_are_not_followed() {
        let first = [block(1, 4, 3), block(2, 4, 3)];
        let then = [block(3, 8, 3), block(4, 8, 3)];
        let last = [block(5, 16, 3), block(6, 16, 3)];
        assert_eq!(growing(&[&first, &then, &last]), []);
    }

    #[test]
    fn temporary_blocks_and_blocks_of_zeros_are_not_followed_for_long() {
        let sizes = [8, 12, 20, 4, 9, 17, 3, 10, 16];
        let each: Vec<[Survivor; 1]> =
            sizes.iter().enumerate().map(|(at, mib)| [block(at as u64, *mib, at as u16)]).collect();
        assert_eq!(growing(&each.iter().map(|one| &one[..]).collect::<Vec<_>>()), []);
        // With two new blocks each time, only their content can connect them to earlier ones.
        let zeros = print(&[0; PRINTED as usize]);
        let two = |at, mib| [block(at, mib, zeros), block(at + 1, mib, at as u16)];
        assert_eq!(growing(&[&two(10, 8), &two(20, 12), &two(30, 20), &two(40, 30)]), []);
    }

    #[test]
    fn a_block_that_grew_once_or_only_at_first_is_not_growing() {
        let sizes = |mib: &[u64]| {
            let each: Vec<[Survivor; 1]> = mib.iter().map(|mib| [block(9, *mib, 3)]).collect();
            growing(&each.iter().map(|one| &one[..]).collect::<Vec<_>>())
        };
        assert_eq!(sizes(&[10, 10, 20, 20, 20]), []);
        assert_eq!(sizes(&[10, 15, 20, 20, 20, 20, 20, 20]), []);
        assert_eq!(sizes(&[10, 15, 20, 20, 20, 30]), [(10, 30)]);
        assert_eq!(sizes(&[10, 5, 10, 5, 10]), []);
    }
}

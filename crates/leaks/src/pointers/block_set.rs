//! A set of blocks.

use super::index::BlockId;

/// A set of blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockSet(Vec<u64>);

impl BlockSet {
    pub(super) fn new(blocks: usize) -> Self {
        Self(vec![0; blocks.div_ceil(64)])
    }

    /// Returns whether a block is in the set.
    pub(crate) fn contains(&self, id: BlockId) -> bool {
        self.0[id as usize / 64] >> (id % 64) & 1 == 1
    }

    /// Adds blocks, and puts the new ones on a stack.
    pub(super) fn add_all(
        &mut self,
        blocks: impl Iterator<Item = BlockId>,
        stack: &mut Vec<BlockId>,
    ) {
        stack.extend(blocks.filter(|id| self.insert(*id)));
    }

    /// Adds a block. Returns whether it is new.
    pub(super) fn insert(&mut self, id: BlockId) -> bool {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

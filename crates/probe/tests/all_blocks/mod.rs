//! A visitor that remembers all blocks of a walk.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor};

/// Remembers all blocks.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    pub(crate) found: BTreeMap<u64, Block>,
    pub(crate) unknown: Vec<Range<u64>>,
}

impl BlockVisitor for Blocks {
    fn wants(&self, _: u64) -> bool {
        true
    }

    fn blocks(&mut self, range: Range<u64>, blocks: &[Block]) {
        let old: Vec<u64> = self.found.range(range.clone()).map(|(at, _)| *at).collect();
        for at in old {
            self.found.remove(&at);
        }
        assert!(blocks.iter().all(|block| range.contains(&block.at)), "{range:x?}");
        self.found.extend(blocks.iter().map(|block| (block.at, *block)));
    }

    fn large(&mut self, block: Block) {
        self.found.insert(block.at, block);
    }

    fn unknown(&mut self, range: Range<u64>) {
        self.unknown.push(range);
    }

    fn is_free(&mut self, at: u64) {
        self.found.remove(&at);
    }
}

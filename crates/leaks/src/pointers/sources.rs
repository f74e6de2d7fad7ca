//! The addresses of pointers to some blocks.

use std::collections::HashMap;
use std::ops::Range;

use lowtide_heap::blocks::{Block, BlockVisitor, PLACE};
use lowtide_heap::memory::Memory;
use lowtide_probe::inspect::BlockWalk;

use super::index::{BlockId, BlockIndex, IndexBuilder};
use super::roots::Roots;
use super::scan::{PointerTarget, each_pointer, each_root};
use super::waiting::ThreadWords;
use super::words::Word;

/// Maximum number of pointers to a block that are inspected.
const MAX_POINTERS: usize = 8;

/// The addresses of pointers, by the address of the block that they point to.
pub(crate) type Pointers = HashMap<u64, Vec<u64>>;

/// Finds pointers to some blocks, given by their ranges and prints. Returns the addresses of some
/// of the pointers, by the address of the block.
pub(crate) fn pointers_to(
    memory: &impl Memory,
    blocks: impl Iterator<Item = (Range<u64>, u16)>,
    index: Option<&BlockIndex>,
    roots: &Roots,
    walk: &BlockWalk,
) -> Pointers {
    let sampled = index_of(blocks);
    let mut found = Pointers::new();
    let mut add = |from: u64, to: BlockId, most: usize| {
        let Some(to) = sampled.range(to) else { return };
        let pointers = found.entry(to.start).or_default();
        if pointers.len() < most && !to.contains(&from) {
            pointers.push(from);
        }
    };
    let mut add_root = |from: Word, to| {
        if let PointerTarget::Block(to) = to {
            add(from.at, to, MAX_POINTERS);
        }
    };
    let ThreadWords { copies, used, .. } = &roots.threads;
    each_root(copies, &sampled, used, &mut add_root);
    match index {
        Some(index) => {
            each_root(memory, &sampled, &roots.ranges, &mut add_root);
            // Old pointers on stacks can be many.
            each_pointer(memory, index, &sampled, |from, to| add(from, to, 2 * MAX_POINTERS));
        }
        // It is unknown which memory is free: stale pointers in free memory count.
        None => {
            let mut all: Vec<Range<u64>> =
                roots.ranges.iter().chain(&roots.new).chain(&walk.heaps.areas).cloned().collect();
            all.sort_unstable_by_key(|range| range.start);
            each_root(memory, &sampled, &all, &mut add_root);
        }
    }
    found.retain(|_, pointers| !pointers.is_empty());
    found
}

/// Builds an index of a few blocks.
fn index_of(blocks: impl Iterator<Item = (Range<u64>, u16)>) -> BlockIndex {
    let mut sorted: Vec<(Range<u64>, u16)> = blocks.collect();
    sorted.sort_unstable_by_key(|(range, _)| range.start);
    let mut builder = IndexBuilder::new(usize::MAX);
    for (Range { start: at, end }, print) in sorted {
        let bytes = end - at;
        let block = Block { at, bytes, print };
        if bytes < PLACE {
            builder.blocks(at..at + 1, &[block]);
        } else {
            builder.large(block);
        }
    }
    builder.build().unwrap_or_default()
}

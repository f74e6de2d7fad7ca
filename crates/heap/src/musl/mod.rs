//! The heap of musl's mallocng, from musl 1.2.1 on, group by group.
//!
//! - `context`: the allocator's context, and the records of all groups.
//! - `group`: a group of slots of one size, and its free whole pages.
//! - `tree`: groups with those in their slots.
//! - `slots`: the blocks in slots.
//! - `droppable`, `lock`: free whole pages with their guard, the lock of `malloc`.
//! - `tally`: the sums.
//!
//! The context is in the data of the program or library. It begins with a random word, its secret
//! (bytes 8 to 15 of `AT_RANDOM`), and so does each page of records. So the context proves itself:
//! no other word is followed by the address of a page that begins with the same word. Each record
//! has the address of a group, its class, and masks of its free slots. No slot is read for the
//! sums.
//!
//! Free slots of a group with a mapping of its own are reclaimable in whole pages. Their content is
//! never needed again. Other free slots are fragmented, and so is the rest of a mapping. Slots
//! count in full: a block can be smaller than its slot.
//!
//! Sources: musl 1.2.1 to 1.2.5, `src/malloc/mallocng/meta.h`, `malloc.c`, `donate.c`.

mod allocator;
mod context;
mod droppable;
mod group;
mod lock;
mod slots;
mod tally;
mod tree;

use std::ops::Range;

use crate::blocks::{BlockCollector, Visitor};
use crate::memory::Memory;
use crate::ranges::{overlaps, union};
use crate::residency::Residency;
use crate::rewalk::least_torn;
use context::{Context, GroupRecords};
pub use droppable::Guards;
pub use lock::Lock;
pub use slots::{Slot, each_slot};
pub use tally::Heap;
use tree::SlotGroups;

/// The place of the context.
#[derive(Debug)]
pub struct Layout {
    context: Context,
    /// The ranges of writable data in which it was found.
    data: Vec<Range<u64>>,
}

impl Layout {
    /// Finds a mallocng. `data` are the ranges of writable data of the program or library that
    /// contains it. A program that never frees has none, because musl then links another `malloc`.
    pub fn find(memory: &impl Memory, data: &[Range<u64>]) -> Option<Self> {
        let context = Context::find(memory, data)?;
        Some(Self { context, data: data.to_vec() })
    }

    /// Returns the share of the records in use that are none of a group, or whose group contradicts
    /// others.
    fn contradictory_share(&self, memory: &impl Memory, mappings: &[Range<u64>]) -> f64 {
        let (tree, records) = self.tree(memory, mappings);
        let wrong = records.rejected + tree.misplaced.len();
        wrong as f64 / (records.rejected + tree.count()).max(1) as f64
    }

    fn tree(&self, memory: &impl Memory, mappings: &[Range<u64>]) -> (SlotGroups, GroupRecords) {
        let mut records = self.context.records(memory, mappings);
        let groups = std::mem::take(&mut records.groups);
        (SlotGroups::new(groups, mappings, memory.page_bytes()), records)
    }
}

/// Walks the heap, as far as it lies in `mappings`: private writable anonymous memory in order,
/// adjacent ranges merged.
pub fn walk(
    memory: &impl Memory,
    layout: &Layout,
    mappings: &[Range<u64>],
    visitor: Visitor<'_>,
) -> Heap {
    let walk = |mut blocks: BlockCollector<'_>| walk_once(memory, layout, mappings, &mut blocks);
    least_torn(memory, visitor, walk, Heap::torn_share)
}

fn walk_once(
    memory: &impl Memory,
    layout: &Layout,
    mappings: &[Range<u64>],
    blocks: &mut BlockCollector<'_>,
) -> Heap {
    let (tree, records) = layout.tree(memory, mappings);
    let mut heap = Heap::default();
    let mut residency = Residency::new(memory);
    for mapped in &tree.mapped {
        heap.add(&mut residency, mapped, memory.page_bytes());
    }
    heap.add_misplaced(&tree.misplaced);
    heap.compare(tree.slots_by_class(), layout.context.usage(memory), records.is_cut);
    if blocks.is_on() {
        slots::collect(memory, &tree, blocks);
    }
    let mut areas: Vec<Range<u64>> = tree.mapped.iter().map(|m| m.group.range.clone()).collect();
    // A page of records that is also a part of a group is one of both only in a damaged heap.
    let own =
        records.pages.into_iter().filter(|page| overlaps(page.clone(), &areas).next().is_none());
    heap.structures = own.collect();
    heap.metadata_bytes += residency.bytes_in(&heap.structures);
    areas.extend_from_slice(&heap.structures);
    heap.areas = union(areas);
    // The rest of the pages of such memory is a program's or library's data.
    let donated = tree.donated.iter().map(|donated| donated.group.range.clone());
    heap.structures.extend(donated);
    heap.structures = union(heap.structures);
    heap
}

//! The sums of a walk, to which each extent adds.

use super::extent::{Bits, Record, State};
use super::rtree::{Entry, Rtree};
use super::size_class;
use super::slab::Slab;
use super::tally::Heap;
use crate::blocks::BlockCollector;
use crate::memory::Memory;
use crate::residency::{FreeBytes, Residency};
use crate::rooms::RoomKind;

/// An extent: the entry of its first page, its record, and the first word of that.
pub(super) struct Extent {
    pub(super) entry: Entry,
    pub(super) record: Record,
    pub(super) bits: Bits,
}

/// The sums of the extents so far.
pub(super) struct ExtentSums<'w, 'm, 'b, M> {
    pub(super) heap: Heap,
    pub(super) residency: Residency<'m, M>,
    pub(super) blocks: &'w mut BlockCollector<'b>,
    /// Padding after each large allocation, in bytes.
    padding: u64,
}

/// The resident pages of a slab, in bytes.
#[derive(Default)]
struct SlabPages {
    all: u64,
    /// Pages without a region in use.
    whole: FreeBytes,
    /// Free memory on the other pages.
    free_bytes: u64,
}

impl<'w, 'm, 'b, M: Memory> ExtentSums<'w, 'm, 'b, M> {
    pub(super) fn new(memory: &'m M, padding: u64, blocks: &'w mut BlockCollector<'b>) -> Self {
        Self { heap: Heap::default(), residency: Residency::new(memory), blocks, padding }
    }

    /// Adds an extent. Returns `false` if it is torn. Nothing is added then.
    pub(super) fn add(&mut self, tree: &mut Rtree<'_, M>, extent: &Extent) -> bool {
        let Extent { record, bits, .. } = extent;
        if bits.state() == State::Active {
            return self.add_active(tree, extent);
        }
        if bits.state() == State::Other {
            return false;
        }
        let bytes = self.residency.free_bytes(record.range());
        let tally = self.heap.arena(bits.arena());
        let resident = &mut tally.resident;
        let (all, droppable) = match bits.state() {
            State::Dirty => (&mut tally.dirty_bytes, &mut resident.dirty_bytes),
            State::Muzzy => (&mut tally.muzzy_bytes, &mut resident.muzzy_bytes),
            State::Retained => (&mut tally.retained_bytes, &mut resident.retained_bytes),
            State::Active | State::Other => return false,
        };
        *all += record.bytes;
        *droppable += bytes.droppable;
        resident.locked_bytes += bytes.locked;
        if bits.state() != State::Retained {
            tally.largest_free_bytes = tally.largest_free_bytes.max(record.bytes);
        }
        true
    }

    /// Adds an extent that stays torn.
    pub(super) fn add_torn(&mut self, Extent { record, bits, .. }: &Extent) {
        let tally = self.heap.arena(bits.arena());
        tally.torn_bytes += record.bytes;
        tally.resident.torn_bytes += self.residency.bytes(record.range());
        self.blocks.unknown(record.range());
    }

    fn add_active(&mut self, tree: &mut Rtree<'_, M>, extent: &Extent) -> bool {
        let Extent { entry, record, bits } = extent;
        let class = bits.class();
        if class == size_class::COUNT && self.residency.bytes(record.range()) == 0 {
            // It is reserved for allocations between guard pages (`san_bump.c`).
            self.heap.arena(bits.arena()).retained_bytes += record.bytes;
            return true;
        }
        // Another extent without a class is being purged.
        let is_class_of_entry = |_: &u64| entry.class(bits.version()) == class as u64;
        let Some(size) = size_class::size(class).filter(is_class_of_entry) else { return false };
        if !bits.is_slab() {
            // A small allocation that is sampled has an extent of its own (`arena_prof_promote`).
            let size = match class < size_class::small(record.page_bytes) {
                true => Some(size).filter(|size| *size <= record.bytes),
                false => large_bytes(record, class, self.padding),
            };
            let Some(size) = size else { return false };
            self.add_single(tree, extent, size);
            return true;
        }
        let slab = tree.slab(record, class).filter(|slab| slab.free() == bits.free_regions());
        let Some(slab) = slab else { return false };
        self.add_slab(tree, extent, &slab, size);
        true
    }

    /// Adds an extent with one allocation of this size.
    fn add_single(&mut self, tree: &Rtree<'_, M>, Extent { record, bits, .. }: &Extent, size: u64) {
        let end = record.address + size.next_multiple_of(record.page_bytes).min(record.bytes);
        let used = self.residency.bytes(record.address..end);
        let padding = self.residency.bytes(end..record.range().end);
        let tally = self.heap.arena(bits.arena());
        tally.active_bytes += record.bytes;
        tally.large_bytes += size;
        tally.large_count += 1;
        tally.resident.allocated_bytes += used;
        tally.resident.padding_bytes += padding;
        self.heap.add_allocated(bits.class(), 1, size);
        self.blocks.lone(tree.memory(), record.address + record.offset, size, size);
    }

    /// Adds an extent with regions of this size.
    fn add_slab(
        &mut self,
        tree: &Rtree<'_, M>,
        Extent { record, bits, .. }: &Extent,
        slab: &Slab,
        size: u64,
    ) {
        let (class, count, free) = (bits.class(), slab.count, slab.free());
        // Pages of jemalloc may be larger than those of the kernel, which are resident one by one.
        let page = tree.memory().page_bytes().min(record.page_bytes);
        let SlabPages { all, whole, free_bytes } = self.slab_pages(record, slab, page);
        let tally = self.heap.arena(bits.arena());
        tally.active_bytes += record.bytes;
        tally.slabs += 1;
        tally.small_bytes += (count - free) * size;
        tally.free_count += free;
        tally.free_bytes += free * size;
        tally.add_free(class, free, free * size);
        tally.resident.slab_pages_bytes += whole.droppable;
        tally.resident.locked_bytes += whole.locked;
        tally.resident.fragmented_bytes += free_bytes;
        tally.resident.allocated_bytes += all - whole.droppable - whole.locked - free_bytes;
        self.heap.add_allocated(class, count - free, (count - free) * size);
        self.blocks.row(tree.memory(), record.address, size, count, |index| !slab.is_free(index));
        self.blocks.room(RoomKind::JemallocSlab, record.range());
    }

    fn slab_pages(&mut self, record: &Record, slab: &Slab, page: u64) -> SlabPages {
        let mut pages = SlabPages::default();
        let has_free = slab.free() > 0;
        for from in (0..record.bytes).step_by(page as usize) {
            let at = record.address + from;
            if self.residency.end_of_run(at).is_none() {
                continue;
            }
            let free = if has_free { slab.free_bytes(from..from + page) } else { 0 };
            pages.all += page;
            if free == page {
                let free = self.residency.free_bytes(at..at + page);
                pages.whole.droppable += free.droppable;
                pages.whole.locked += free.locked;
            } else {
                pages.free_bytes += free;
            }
        }
        pages
    }
}

/// Returns the usable bytes of a large allocation (`edata_usize_get`): up to 5.3.0 the size of its
/// class; since then any number of pages that the class serves.
pub(super) fn large_bytes(record: &Record, class: usize, padding: u64) -> Option<u64> {
    let bytes = record.bytes.checked_sub(padding)?;
    let (from, to) = size_class::bounds(class);
    (from..to).contains(&bytes).then_some(bytes)
}

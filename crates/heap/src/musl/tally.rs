//! Sums over the groups.

use std::collections::BTreeMap;
use std::ops::Range;

use super::group::CLASSES;
use super::group::{Group, UNIT};
use super::tree::GroupTree;
use crate::memory::Memory;
use crate::residency::Residency;

/// A walked heap, in bytes unless the name states otherwise.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    /// Slots in use, resident or not.
    pub used_bytes: u64,
    /// Free slots, resident or not.
    pub free_bytes: u64,
    /// Number of free slots.
    pub free_count: u64,
    /// The largest free slot.
    pub largest_free_bytes: u64,
    /// Number of blocks with a mapping of their own.
    pub lone_count: u64,
    /// These blocks, resident or not.
    pub lone_bytes: u64,
    /// Mappings of groups.
    pub mapped_bytes: u64,
    /// Slots whose groups contradict others, or that were not counted as the allocator does: it
    /// changed while it was read.
    pub torn_bytes: u64,
    /// Resident bytes of slots in use.
    pub allocated_bytes: u64,
    /// Resident bytes of free slots in whole pages.
    pub reclaimable_bytes: u64,
    /// The same, in locked memory.
    pub locked_bytes: u64,
    /// Other resident bytes in mappings of groups.
    pub fragmented_bytes: u64,
    /// Resident bytes of the heads of groups, and of the pages of their records.
    pub metadata_bytes: u64,
    /// Number of slots in use, and of free ones, by their size.
    pub slots: BTreeMap<u64, (u64, u64)>,
    /// The addresses of the heap, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// The pages of the records of groups, and the groups in memory that the loader has given to
    /// the allocator, which are not in `areas`. In order and disjoint.
    pub structures: Vec<Range<u64>>,
}

impl Heap {
    pub(super) fn torn_share(&self) -> f64 {
        let all = self.used_bytes + self.free_bytes + self.torn_bytes;
        self.torn_bytes as f64 / all.max(1) as f64
    }

    /// Adds a group with a mapping of its own, and those in its slots.
    pub(super) fn add<M: Memory>(
        &mut self,
        residency: &mut Residency<'_, M>,
        mapped: &GroupTree,
        page_bytes: u64,
    ) {
        let group = &mapped.group;
        let (mut used, mut head) = (0, 0);
        for (group, parents) in mapped.groups() {
            head += residency.bytes(group.range.start..group.range.start + UNIT);
            self.count(group, parents);
            for index in (0..group.count).filter(|i| !group.is_free(*i) && parents >> i & 1 == 0) {
                used += residency.bytes(group.slot(index));
            }
        }
        let (mut droppable, mut locked) = (0, 0);
        for run in group.free_runs() {
            let free = residency.free_bytes(group.free_pages(run, page_bytes));
            droppable += free.droppable;
            locked += free.locked;
        }
        let resident = residency.bytes(group.range.clone());
        self.mapped_bytes += group.range.end - group.range.start;
        self.allocated_bytes += used;
        self.metadata_bytes += head;
        self.reclaimable_bytes += droppable;
        self.locked_bytes += locked;
        // The residency may have changed between two queries.
        self.fragmented_bytes += resident.saturating_sub(used + head + droppable + locked);
    }

    fn count(&mut self, group: &Group, parents: u32) {
        let free = u64::from(group.free.count_ones());
        let used = u64::from(group.count) - free - u64::from(parents.count_ones());
        self.used_bytes += used * group.stride;
        self.free_bytes += free * group.stride;
        self.free_count += free;
        if group.class.is_none() {
            self.lone_count += used;
            self.lone_bytes += used * group.stride;
            return;
        }
        if free > 0 {
            self.largest_free_bytes = self.largest_free_bytes.max(group.stride);
        }
        let slots = self.slots.entry(group.stride).or_default();
        slots.0 += used;
        slots.1 += free;
    }

    pub(super) fn add_misplaced(&mut self, groups: &[Group]) {
        self.torn_bytes += groups.iter().map(|g| g.stride * u64::from(g.count)).sum::<u64>();
    }

    /// Compares the number of slots by class with the allocator's own. Both change while the
    /// program runs.
    pub(super) fn compare(
        &mut self,
        walked: [u64; CLASSES],
        counted: Option<[u64; CLASSES]>,
        is_cut: bool,
    ) {
        let differences = counted.map(|counted| {
            let classes = walked.into_iter().zip(counted).enumerate();
            classes.map(|(class, (a, b))| Group::class_bytes(class) * missing(a, b)).sum()
        });
        let least = u64::from(is_cut || differences.is_none());
        self.torn_bytes += differences.unwrap_or(0_u64).max(least);
    }
}

/// Maximum number of slots of a class that are counted as not walked: a hostile program can write
/// any number.
const MAX_MISSING: u64 = 1 << 32;

fn missing(walked: u64, counted: u64) -> u64 {
    walked.abs_diff(counted).min(MAX_MISSING)
}

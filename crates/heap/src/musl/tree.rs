//! Groups with those in their slots.

use std::ops::Range;

use super::group::CLASSES;
use super::group::{Group, Location};
use crate::ranges::hold;

/// A group outside of other groups, with those in its slots.
#[derive(Debug)]
pub(super) struct GroupTree {
    pub(super) group: Group,
    /// The slots, one bit each, that contain another group.
    pub(super) parents: u32,
    /// The groups in its slots, and in theirs, each with its slots that contain another group; in
    /// order of address.
    pub(super) nested: Vec<(Group, u32)>,
}

/// All groups of a heap.
#[derive(Debug, Default)]
pub(super) struct SlotGroups {
    /// Those with a mapping of their own, in order and disjoint.
    pub(super) mapped: Vec<GroupTree>,
    /// Those in memory of files. Its pages are no part of the heap, but its blocks are.
    pub(super) donated: Vec<GroupTree>,
    /// Those that contradict others, because the heap changed while it was read.
    pub(super) misplaced: Vec<Group>,
}

impl SlotGroups {
    /// Puts groups into each other. `mappings` are the memory in which groups can have a mapping of
    /// their own, in order, adjacent ranges merged.
    pub(super) fn new(mut groups: Vec<Group>, mappings: &[Range<u64>], page_bytes: u64) -> Self {
        groups.sort_unstable_by_key(|group| (group.range.start, u64::MAX - group.range.end));
        let mut tree = Self::default();
        for group in groups {
            match group.location {
                Location::Mapped => {
                    let is_apart = !contains(tree.mapped.last(), &group);
                    if is_apart && hold(mappings, &group.range) {
                        tree.mapped.push(GroupTree::new(group));
                    } else {
                        tree.misplaced.push(group);
                    }
                }
                Location::Donated if contains(tree.donated.last(), &group) => {
                    tree.misplaced.push(group);
                }
                Location::Donated => tree.donated.push(GroupTree::new(group)),
                Location::Nested => tree.nest(group, page_bytes),
            }
        }
        tree
    }

    fn nest(&mut self, group: Group, page_bytes: u64) {
        // A block with a mapping of its own contains no group.
        let can_contain =
            |tree: &GroupTree| tree.group.location == Location::Donated || tree.group.count > 1;
        let trees = [self.mapped.last_mut(), self.donated.last_mut()].into_iter().flatten();
        let parent = trees.into_iter().find(|tree| contains(Some(tree), &group));
        let is_small = group.range.end - group.range.start <= page_bytes / 2;
        let rejected = match parent.filter(|parent| is_small && can_contain(parent)) {
            Some(parent) => parent.nest(group),
            None => Some(group),
        };
        self.misplaced.extend(rejected);
    }

    /// Returns the number of groups.
    pub(super) fn count(&self) -> usize {
        let trees = self.mapped.iter().chain(&self.donated);
        trees.map(|tree| 1 + tree.nested.len()).sum::<usize>() + self.misplaced.len()
    }

    /// Returns the number of slots by class, of the groups that the allocator counts.
    pub(super) fn slots_by_class(&self) -> [u64; CLASSES] {
        let mut slots = [0; CLASSES];
        let groups = self.mapped.iter().chain(&self.donated).flat_map(GroupTree::groups);
        for (group, _) in groups.filter(|(group, _)| group.location != Location::Donated) {
            if let Some(class) = group.class {
                slots[class] += u64::from(group.count);
            }
        }
        slots
    }
}

/// Maximum number of groups before another that can contain it: a group in a slot of another one
/// has at least two slots, and is at most half as large as a page.
const NEAR: usize = 256;

/// Returns whether a group begins in a tree.
fn contains(tree: Option<&GroupTree>, group: &Group) -> bool {
    tree.is_some_and(|tree| tree.group.range.contains(&group.range.start))
}

impl GroupTree {
    fn new(group: Group) -> Self {
        Self { group, parents: 0, nested: Vec::new() }
    }

    /// Adds a group that begins after those before it. Returns it if it is not in a slot in use
    /// that contains no other group.
    fn nest(&mut self, group: Group) -> Option<Group> {
        let nested =
            self.nested.iter_mut().rev().take(NEAR).map(|(other, parents)| (&*other, parents));
        let place = nested
            .chain([(&self.group, &mut self.parents)])
            .find(|(other, _)| other.range.end >= group.range.end);
        let slot =
            place.and_then(|(other, parents)| Some((other.used_slot_of(&group.range)?, parents)));
        let Some((slot, parents)) = slot.filter(|(slot, parents)| **parents >> slot & 1 == 0)
        else {
            return Some(group);
        };
        *parents |= 1 << slot;
        self.nested.push((group, 0));
        None
    }

    /// Returns the group and those in its slots, each with its slots that contain another group.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&Group, u32)> {
        let nested = self.nested.iter().map(|(group, parents)| (group, *parents));
        std::iter::once((&self.group, self.parents)).chain(nested)
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::GroupWords;
    use super::*;

    const AT: u64 = 0x7000_0000_0000;

    fn group(at: u64, bytes: u64, stride: u64, count: u32, location: Location) -> Group {
        let (range, record) = (at..at + bytes, GroupWords::default());
        Group { record, range, location, stride, count, free: 0, class: Some(1) }
    }

    fn mapped(at: u64) -> Group {
        group(at, 8192, 1008, 8, Location::Mapped)
    }

    fn nested(at: u64, count: u32) -> Group {
        group(at, 16 + 32 * u64::from(count), 32, count, Location::Nested)
    }

    fn tree(groups: &[Group]) -> SlotGroups {
        let heap = AT..AT + 0x10000;
        SlotGroups::new(groups.to_vec(), std::slice::from_ref(&heap), 4096)
    }

    #[test]
    fn groups_are_in_the_slots_of_others_down_to_any_depth() {
        let first = mapped(AT);
        let slot = first.slot(3);
        let outer = group(slot.start, 16 + 2 * 480, 480, 2, Location::Nested);
        let inner = nested(outer.slot(1).start + 32, 10);
        let found = tree(&[inner.clone(), mapped(AT + 8192), outer.clone(), first]);
        assert_eq!((found.mapped.len(), found.misplaced.len()), (2, 0));
        assert_eq!(found.mapped[0].parents, 1 << 3);
        assert_eq!(found.mapped[0].nested, [(outer, 1 << 1), (inner, 0)]);
        assert_eq!(found.slots_by_class()[1], 8 + 8 + 2 + 10);
    }

    #[test]
    fn groups_that_contradict_others_are_misplaced() {
        let first = mapped(AT);
        let slot = first.slot(2).start;
        for other in [
            mapped(AT + 4096),
            mapped(AT + 0x10000),
            nested(AT + 0x8000, 3),
            // Across two slots, in one that is not in use, and too large.
            nested(slot - 32, 3),
            group(slot, 4096, 1000, 4, Location::Nested),
        ] {
            let found = tree(&[first.clone(), other.clone()]);
            assert_eq!((found.mapped.len(), found.misplaced), (1, vec![other]));
        }
        let free = Group { free: 0xff, ..first.clone() };
        assert_eq!(tree(&[free, nested(slot, 3)]).misplaced.len(), 1);
        // Two in one slot.
        let found = tree(&[first, nested(slot, 3), nested(slot + 200, 3)]);
        assert_eq!((found.mapped[0].nested.len(), found.misplaced.len()), (1, 1));
    }

    #[test]
    fn groups_in_memory_of_files_are_counted_and_are_no_part_of_the_heap() {
        let donated = group(AT + 0x20000, 16 + 1008, 1008, 1, Location::Donated);
        let inner = nested(donated.slot(0).start, 5);
        let found = tree(&[donated, inner]);
        assert!(found.mapped.is_empty() && found.misplaced.is_empty());
        assert_eq!(found.slots_by_class()[1], 5);
    }
}

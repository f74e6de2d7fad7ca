//! Joins the groups of one holder that differ only in size, such as strings.

use std::cmp::Reverse;
use std::collections::HashMap;

use lowtide_model::pins::BlockAge;

use super::holders::MAX_GROUPS;
use super::{GroupSums, HeapPins};

/// Minimum number of sizes of one type and holder for their groups to be joined. Fewer are more
/// likely different structures, which are worth a line each.
const MIN_SIZES: usize = 4;

/// What the groups that are joined have in common.
type JoinKey = (&'static str, Option<String>, Option<BlockAge>, String);

impl HeapPins {
    /// Adds what holds the first groups, and joins those of one type and holder if they have many
    /// sizes: freeing one size returns little if each page also has another one. What becomes free
    /// with the joined group is exact, because it is computed from the pages.
    pub fn with_holders(mut self, names: Vec<Option<String>>) -> Self {
        self.groups.iter_mut().zip(names).for_each(|(group, name)| group.holder = name);
        let mut members: HashMap<JoinKey, usize> = HashMap::new();
        for group in self.groups.iter().take(MAX_GROUPS) {
            common(group).into_iter().for_each(|common| *members.entry(common).or_default() += 1);
        }
        members.retain(|_, count| *count >= MIN_SIZES);
        if members.is_empty() { self } else { self.joined(&members) }
    }

    fn joined(self, members: &HashMap<JoinKey, usize>) -> Self {
        let mut groups: Vec<(GroupSums, Vec<usize>)> = Vec::new();
        let mut place_of: HashMap<JoinKey, usize> = HashMap::new();
        for (place, group) in self.groups.into_iter().enumerate() {
            let common = common(&group).filter(|_| place < MAX_GROUPS);
            let common = common.filter(|common| members.contains_key(common));
            match common.as_ref().and_then(|common| place_of.get(common)) {
                Some(known) => {
                    groups[*known].0.add(&group);
                    groups[*known].1.push(place);
                }
                None => {
                    common.into_iter().for_each(|common| {
                        place_of.insert(common, groups.len());
                    });
                    groups.push((group, vec![place]));
                }
            }
        }
        groups.sort_by_key(|(group, places)| (Reverse(group.pinned_bytes), places[0]));
        let mut bits = vec![0; MAX_GROUPS];
        for (place, (_, before)) in groups.iter().enumerate() {
            let distinguished = before.iter().filter(|before| **before < MAX_GROUPS);
            distinguished.for_each(|before| bits[*before] = Self::bit(place));
        }
        let holders = self.holders.with_bits(&bits);
        for (place, (group, before)) in groups.iter_mut().enumerate() {
            if before.len() > 1 {
                // A page may have several of its sizes.
                group.units = holders.held_by(Self::bit(place)).units;
            }
        }
        let groups = groups.into_iter().map(|(group, _)| group).collect();
        Self { groups, holders, ..self }
    }
}

fn common(group: &GroupSums) -> Option<JoinKey> {
    Some((group.allocator, group.block_type.clone(), group.age, group.holder.clone()?))
}

#[cfg(test)]
mod tests {
    use super::super::holders::{Holders, REST, UnitSums};
    use super::*;

    fn heap(sizes: &[u64]) -> HeapPins {
        let group = |size: &u64| GroupSums {
            allocator: "glibc",
            size_bytes: [*size; 2],
            sizes: 1,
            blocks: 10,
            bytes: 10 * size,
            units: 2,
            pinned_bytes: 7000,
            ..GroupSums::default()
        };
        let mut holders = Holders::default();
        let sums = UnitSums { units: 1, resident_bytes: 4096, free_bytes: 4000 };
        for place in 0..sizes.len() {
            // A page with each two neighbours, and one with something else.
            let [bit, next] = [place, (place + 1) % sizes.len()].map(HeapPins::bit);
            holders.add(bit | next, sums);
            holders.add(bit | REST, sums);
        }
        let groups = sizes.iter().map(group).collect();
        HeapPins {
            groups,
            holders,
            read_share: 1.0,
            threads: 1,
            page_bytes: 4096,
            ..HeapPins::default()
        }
    }

    #[test]
    fn strings_of_many_sizes_with_one_holder_are_one_group_with_their_joint_gain() {
        let names = vec![Some("variable names".to_owned()); 9];
        let joined = heap(&[32, 48, 64, 80, 96, 112, 128, 144, 160]).with_holders(names);
        let [group] = joined.groups.as_slice() else { panic!("{:#?}", joined.groups) };
        assert_eq!((group.size_bytes, group.sizes, group.blocks), ([32, 160], 9, 90));
        assert_eq!(group.units, 18);
        let pins = joined.report(5);
        assert_eq!(pins.groups[0].gain_bytes, 9 * 4096);
        assert_eq!(pins.sets[0].gain_bytes, 9 * 4096);
    }

    #[test]
    fn a_few_sizes_of_one_holder_and_sizes_without_a_holder_stay_apart() {
        let three = heap(&[32, 48, 64]).with_holders(vec![Some("variable a".to_owned()); 3]);
        assert_eq!(three.groups.len(), 3);
        let unknown = heap(&[32, 48, 64, 80, 96]).with_holders(vec![None; 5]);
        assert_eq!(unknown.groups.len(), 5);
        let of_two: Vec<Option<String>> =
            (0..6).map(|place| Some(format!("variable {}", place % 2))).collect();
        assert_eq!(heap(&[32, 48, 64, 80, 96, 112]).with_holders(of_two).groups.len(), 6);
    }

    #[test]
    fn other_groups_keep_their_gains_when_some_are_joined() {
        let sizes: Vec<u64> = (2..72).map(|place| place * 16).collect();
        let heap = heap(&sizes);
        let before = heap.holders.gain(1 << 20 | 1 << 21).resident_bytes;
        let names: Vec<Option<String>> =
            (0..70).map(|place| (place < 20).then(|| "variable a".to_owned())).collect();
        let joined = heap.with_holders(names);
        assert_eq!(joined.groups.len(), 51);
        let place = |size: u64| joined.groups.iter().position(|g| g.size_bytes[0] == size).unwrap();
        let set = HeapPins::bit(place(22 * 16)) | HeapPins::bit(place(23 * 16));
        assert_eq!(joined.holders.gain(set).resident_bytes, before);
        assert_eq!(joined.groups[0].size_bytes, [32, 21 * 16]);
    }
}

//! The groups that hold each unit of memory, as sets: what becomes free if a set of groups does.

use std::collections::HashMap;

/// Number of groups that are distinguished.
pub const MAX_GROUPS: usize = 62;
/// The bit of the blocks in caches of threads.
pub const CACHED: u64 = 1 << 62;
/// The bit of everything else that holds memory.
pub const REST: u64 = 1 << 63;
/// Maximum number of groups of a small set. No small set frees a unit with more groups.
pub const SMALL_SET: u32 = 8;
/// Maximum number of sets that are tried as an extension of another set.
const MAX_CANDIDATES: usize = 256;
/// Maximum number of proposed sets.
const MAX_SETS: usize = 4;
/// Minimum part of the pinned memory that a further set must free.
const MIN_PART: f64 = 0.01;

/// Sums over units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitSums {
    /// Number of units.
    pub units: u64,
    /// Their resident bytes.
    pub resident_bytes: u64,
    /// The free part of them.
    pub free_bytes: u64,
}

impl UnitSums {
    /// Adds other units.
    pub fn add(&mut self, other: Self) {
        self.units += other.units;
        self.resident_bytes += other.resident_bytes;
        self.free_bytes += other.free_bytes;
    }
}

/// The units of all rooms, by the set of groups that hold them. A set is a mask: bit `n` stands for
/// group `n`, [`CACHED`] and [`REST`] for everything else.
#[derive(Debug, Clone, Default)]
pub struct Holders(HashMap<u64, UnitSums>);

impl Holders {
    /// Adds units that a set of groups holds.
    pub fn add(&mut self, set: u64, sums: UnitSums) {
        self.0.entry(set).or_default().add(sums);
    }

    /// Returns the units that become free if a set of groups is freed: those that no other group
    /// holds. Units that nothing holds are free already, and not among them.
    pub fn gain(&self, set: u64) -> UnitSums {
        let mut gain = UnitSums::default();
        let freed = self.0.iter().filter(|(holders, _)| **holders != 0 && **holders & !set == 0);
        freed.for_each(|(_, sums)| gain.add(*sums));
        gain
    }

    /// Returns the units that a group holds, alone or with others.
    pub(crate) fn held_by(&self, bit: u64) -> UnitSums {
        let mut held = UnitSums::default();
        let all = self.0.iter().filter(|(holders, _)| **holders & bit != 0);
        all.for_each(|(_, sums)| held.add(*sums));
        held
    }

    /// Returns the same units with other bits for the groups: `bits` has the new one of each.
    pub(crate) fn with_bits(&self, bits: &[u64]) -> Self {
        let mut changed = Self::default();
        for (set, sums) in &self.0 {
            let of_groups = bits.iter().enumerate().filter(|(place, _)| set >> place & 1 == 1);
            let new = of_groups.fold(set & (CACHED | REST), |all, (_, bit)| all | bit);
            changed.add(new, *sums);
        }
        changed
    }

    /// Returns the units that nothing holds.
    pub fn free(&self) -> UnitSums {
        self.0.get(&0).copied().unwrap_or_default()
    }

    /// Returns the units that too many groups hold for a small set to free them.
    pub(crate) fn crowded(&self) -> UnitSums {
        let mut crowded = UnitSums::default();
        let many = self.0.iter().filter(|(holders, _)| holders.count_ones() > SMALL_SET);
        many.for_each(|(_, sums)| crowded.add(*sums));
        crowded
    }

    /// Proposes sets of groups, each an extension of the one before. A set is extended by the
    /// groups of some units: those with the largest added gain of free memory for each added group.
    /// `pinned_bytes` is all pinned memory.
    pub fn sets(&self, pinned_bytes: u64) -> Vec<u64> {
        let mut candidates: Vec<(u64, UnitSums)> = self
            .0
            .iter()
            .filter(|(set, sums)| {
                let is_of_groups = **set & (CACHED | REST) == 0 && **set != 0;
                is_of_groups && set.count_ones() <= SMALL_SET && sums.free_bytes > 0
            })
            .map(|(set, sums)| (*set, *sums))
            .collect();
        candidates.sort_unstable_by_key(|(set, sums)| (std::cmp::Reverse(sums.free_bytes), *set));
        candidates.truncate(MAX_CANDIDATES);
        let (mut sets, mut set, mut gained) = (Vec::new(), 0, 0);
        let least = (pinned_bytes as f64 * MIN_PART) as u64;
        while sets.len() < MAX_SETS {
            let extended = candidates.iter().map(|(more, _)| set | more);
            let extended = extended.filter(|all| *all != set && all.count_ones() <= SMALL_SET);
            let best = extended
                .map(|all| {
                    let added = self.gain(all).free_bytes - gained;
                    (added / u64::from((all & !set).count_ones()), all, added)
                })
                .max_by_key(|(of_each, all, _)| (*of_each, std::cmp::Reverse(*all)));
            let Some((_, all, added)) = best.filter(|(.., added)| *added > least) else { break };
            (set, gained) = (all, gained + added);
            sets.push(set);
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(units: &[(u64, u64, u64)]) -> Holders {
        let mut holders = Holders::default();
        for (set, resident_bytes, free_bytes) in units {
            let sums =
                UnitSums { units: 1, resident_bytes: *resident_bytes, free_bytes: *free_bytes };
            holders.add(*set, sums);
        }
        holders
    }

    #[test]
    fn a_unit_is_gained_only_with_all_groups_that_hold_it() {
        let found = holders(&[(0, 7, 7), (1, 100, 60), (2, 10, 5), (3, 1000, 900), (REST, 1, 1)]);
        assert_eq!(found.gain(1).resident_bytes, 100);
        assert_eq!(found.gain(2).resident_bytes, 10);
        let both = UnitSums { units: 3, resident_bytes: 1110, free_bytes: 965 };
        assert_eq!(found.gain(3), both);
        assert_eq!(found.gain(4), UnitSums::default());
        assert_eq!(found.free().free_bytes, 7);
    }

    #[test]
    fn partners_that_gain_nothing_alone_are_proposed_as_a_set() {
        // An entry and its map node; another group with a page of its own.
        let found = holders(&[(0b011, 9000, 8000), (0b100, 200, 150), (0b110, 50, 40)]);
        assert_eq!(found.sets(8190), [0b011, 0b111]);
    }

    #[test]
    fn a_group_that_fills_its_pages_is_not_proposed() {
        let found = holders(&[(0b01, 1 << 30, 0), (0b10, 4096, 4000)]);
        assert_eq!(found.sets(4000), [0b10]);
    }

    #[test]
    fn units_of_many_groups_are_crowded_and_caches_are_in_no_set() {
        let found = holders(&[(0x1ff, 4096, 2000), (CACHED | 1, 4096, 4000), (REST, 9, 9)]);
        assert_eq!(found.crowded().free_bytes, 2000);
        assert!(found.sets(6009).is_empty());
        assert_eq!(found.gain(CACHED | 1).free_bytes, 4000);
    }
}

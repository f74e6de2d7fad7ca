//! The groups of blocks, and their shares of the pinned memory.

use lowtide_analysis::pins::holders::{CACHED, MAX_GROUPS as SAMPLED_GROUPS, REST, UnitSums};
use lowtide_analysis::pins::{GroupSums, HeapPins};
use lowtide_heap::rooms::RoomKind;

use super::census::Census;
use super::code::AllocatingCode;
use super::holders::Samples;
use super::units::{BlockClass, Unit};
use crate::book::ByPlace;

/// Maximum number of groups. Further blocks belong to the first group, of all others.
const MAX_GROUPS: usize = 64 << 10;
const OTHERS: usize = 0;
/// Part of the pinned memory from which the holders of a group are searched for.
const MIN_PART: f64 = 0.001;

/// A group of blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    class: BlockClass,
    blocks: u64,
    bytes: u64,
    units: u64,
    pinned_bytes: u64,
    /// The units that only this group holds.
    alone: UnitSums,
}

/// The groups in the order in which they appear.
#[derive(Debug)]
pub(super) struct Groups {
    ids: ByPlace<u32>,
    all: Vec<Group>,
    /// The share of memory that only something other than blocks holds.
    pub(super) fixed_bytes: u64,
}

impl Groups {
    pub(super) fn new() -> Self {
        let others =
            BlockClass { kind: RoomKind::GlibcStretch, bytes: 0, type_id: 0, is_cached: false };
        let mut groups = Self { ids: ByPlace::default(), all: Vec::new(), fixed_bytes: 0 };
        groups.of(others);
        groups
    }

    /// Returns the number of the group of a block.
    pub(super) fn of(&mut self, class: BlockClass) -> usize {
        let kind = class.kind as u64 * 2 + u64::from(class.is_cached);
        let key = kind << 60 | u64::from(class.type_id) << 44 | class.bytes & ((1 << 44) - 1);
        let next = self.all.len();
        if let Some(id) = self.ids.get(&key) {
            return *id as usize;
        }
        if next >= MAX_GROUPS {
            return OTHERS;
        }
        self.ids.insert(key, next as u32);
        let (blocks, bytes, units, pinned_bytes) = (0, 0, 0, 0);
        let alone = UnitSums::default();
        self.all.push(Group { class, blocks, bytes, units, pinned_bytes, alone });
        next
    }

    /// Adds a block, and returns the number of its group.
    pub(super) fn add(&mut self, class: BlockClass) -> usize {
        let group = self.of(class);
        self.all[group].blocks += 1;
        self.all[group].bytes += class.bytes;
        group
    }

    /// Divides the free bytes of a unit among the groups that hold it, by their bytes.
    pub(super) fn divide(&mut self, unit: &Unit<'_>) {
        let used: u64 = unit.holders.iter().map(|(_, bytes)| bytes).sum();
        let mut left = unit.free_bytes;
        for (place, (group, bytes)) in unit.holders.iter().enumerate() {
            let is_last = place + 1 == unit.holders.len();
            let part = match (is_last, used) {
                (true, _) => left,
                (false, 0) => unit.free_bytes / unit.holders.len() as u64,
                (false, used) => {
                    (u128::from(unit.free_bytes) * u128::from(*bytes) / u128::from(used)) as u64
                }
            };
            let part = part.min(left);
            left -= part;
            self.all[*group].units += 1;
            self.all[*group].pinned_bytes += part;
        }
        if unit.is_fixed {
            self.fixed_bytes += left;
        } else if let [(group, _)] = unit.holders {
            self.all[*group].alone.add(unit.sums());
        }
    }

    /// Returns the groups of blocks, the largest share first, the blocks in caches with their
    /// bytes, and the bit of each group by its number.
    pub(super) fn ranked(&self, census: &Census, code: &AllocatingCode) -> Ranked {
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.retain(|place| self.all[*place].blocks > 0);
        order.sort_by_key(|place| {
            let group = &self.all[*place];
            (std::cmp::Reverse((group.pinned_bytes, group.blocks)), *place)
        });
        let mut ranked = Ranked {
            bits: vec![REST; self.all.len()],
            places: vec![None; self.all.len()],
            ..Ranked::default()
        };
        for place in order {
            let group = &self.all[place];
            if group.class.is_cached {
                ranked.bits[place] = CACHED;
                ranked.cached.allocator = group.class.kind.allocator();
                ranked.cached.add(&sums(group, census));
            } else {
                let is_known = place != OTHERS;
                ranked.bits[place] =
                    if is_known { HeapPins::bit(ranked.groups.len()) } else { REST };
                let BlockClass { kind, bytes, type_id, .. } = group.class;
                ranked.places[place] = Some(ranked.groups.len());
                let stacks = code.of((Some(kind), bytes, type_id));
                ranked.groups.push(GroupSums { stacks, ..sums(group, census) });
            }
        }
        ranked
    }
}

/// The groups in the order of their shares.
#[derive(Debug, Default)]
pub(super) struct Ranked {
    pub(super) groups: Vec<GroupSums>,
    pub(super) cached: GroupSums,
    /// The bit of each group, by its number.
    pub(super) bits: Vec<u64>,
    /// The place of each group in `groups`, by its number, if its blocks are sampled.
    pub(super) places: Vec<Option<usize>>,
}

impl Ranked {
    /// Begins to sample the blocks of the groups that pin most memory.
    pub(super) fn samples(&mut self) -> Samples {
        let pinned = self.groups.iter().map(|group| group.pinned_bytes).sum::<u64>();
        let least = (pinned as f64 * MIN_PART).max(1.0) as u64;
        let groups = &self.groups[..self.groups.len().min(SAMPLED_GROUPS)];
        let sampled = groups.partition_point(|group| group.pinned_bytes >= least);
        self.places.iter_mut().for_each(|place| *place = place.filter(|place| *place < sampled));
        let counts: Vec<u64> = groups[..sampled].iter().map(|group| group.blocks).collect();
        Samples::new(&counts)
    }
}

fn sums(group: &Group, census: &Census) -> GroupSums {
    let BlockClass { kind, bytes, type_id, .. } = group.class;
    GroupSums {
        allocator: kind.allocator(),
        size_bytes: [bytes; 2],
        sizes: 1,
        holder: None,
        block_type: census.type_name(type_id).cloned(),
        age: census.age(type_id),
        blocks: group.blocks,
        bytes: group.bytes,
        units: group.units,
        pinned_bytes: group.pinned_bytes,
        alone: group.alone,
        stacks: Vec::new(),
    }
}

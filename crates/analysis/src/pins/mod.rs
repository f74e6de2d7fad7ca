//! What pins fragmented memory: from sums over blocks and pages to groups, sets and remedies.
//!
//! - [`holders`]: sets of groups, and what becomes free with them.
//! - [`bounds`]: what the caches of an allocator can hold back.
//! - [`remedies`]: what would cure it.

pub mod bounds;
pub mod holders;
pub mod remedies;

use lowtide_model::pins::{PinGroup, PinKind, PinSet, Pins};

use bounds::Bounds;
use holders::{CACHED, Holders, MAX_GROUPS, REST, UnitSums};

/// The blocks of a group, and the memory that they pin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSums {
    /// The allocator.
    pub allocator: &'static str,
    /// Size of a block in bytes, including the overhead of the allocator.
    pub size_bytes: u64,
    /// Their type.
    pub block_type: Option<String>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of units that they hold.
    pub units: u64,
    /// Their share of the pinned memory.
    pub pinned_bytes: u64,
}

impl GroupSums {
    /// Adds the blocks of another group.
    pub fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.units += other.units;
        self.pinned_bytes += other.pinned_bytes;
    }
}

/// The sums over a heap.
#[derive(Debug, Clone, Default)]
pub struct HeapPins {
    /// The groups of blocks. Those with the largest shares come first, and are told apart by
    /// [`Holders`].
    pub groups: Vec<GroupSums>,
    /// The blocks in the caches of threads.
    pub cached: GroupSums,
    /// The share of memory that only something other than blocks holds.
    pub fixed_bytes: u64,
    /// The units by their holders.
    pub holders: Holders,
    /// The heap is estimated from this part of it.
    pub read_share: f64,
    /// Resident bytes that could not be read.
    pub unread_bytes: u64,
    /// Number of threads of the process.
    pub threads: u64,
}

impl HeapPins {
    /// Returns the bit of a group, by its index.
    pub fn bit(place: usize) -> u64 {
        if place < MAX_GROUPS { 1 << place } else { REST }
    }

    /// Reports the groups with the largest shares, `top` of them and those of the proposed sets.
    pub fn report(&self, top: usize) -> Pins {
        let pinned_bytes = self.pinned_bytes();
        let sets = self.holders.sets(pinned_bytes);
        let in_set = sets.last().copied().unwrap_or(0);
        let is_shown = |place: usize| place < top || Self::bit(place) & in_set & !REST != 0;
        let shown: Vec<usize> = (0..self.groups.len()).filter(|place| is_shown(*place)).collect();
        let mut groups = self.listed(&shown);
        groups.extend(self.others(&shown));
        let sets = sets.iter().map(|set| self.set(*set, &shown)).collect();
        let free = self.holders.free();
        let crowded = self.holders.crowded();
        Pins {
            pinned_bytes: self.scaled(pinned_bytes),
            reclaimable_bytes: self.scaled(free.resident_bytes),
            crowded_bytes: self.scaled(crowded.free_bytes),
            unread_bytes: self.unread_bytes,
            blocks: self.scaled(self.groups.iter().map(|group| group.blocks).sum()),
            read_share: self.read_share,
            estimated: self.is_estimated(),
            groups,
            sets,
            notes: Vec::new(),
            cpu_s: 0.0,
        }
    }

    fn pinned_bytes(&self) -> u64 {
        let groups: u64 = self.groups.iter().map(|group| group.pinned_bytes).sum();
        groups + self.cached.pinned_bytes + self.fixed_bytes
    }

    fn is_estimated(&self) -> bool {
        self.read_share < 1.0 || self.unread_bytes > 0
    }

    /// Scales a sum over the part of the heap that was read.
    fn scaled(&self, value: u64) -> u64 {
        match self.read_share {
            share if share > 0.0 && share < 1.0 => (value as f64 / share) as u64,
            _ => value,
        }
    }

    fn listed(&self, shown: &[usize]) -> Vec<PinGroup> {
        let mut before = 0;
        let group = |place: &usize| {
            let sums = &self.groups[*place];
            let bit = Self::bit(*place) & !REST;
            before |= bit;
            let [gain, with_previous] = [bit, before].map(|set| self.holders.gain(set));
            PinGroup {
                kind: PinKind::Blocks,
                allocator: Some(sums.allocator.to_owned()),
                size_bytes: Some([sums.size_bytes; 2]),
                block_type: sums.block_type.clone(),
                ..self.group(sums, gain, with_previous)
            }
        };
        shown.iter().map(group).collect()
    }

    fn group(&self, sums: &GroupSums, gain: UnitSums, with_previous: UnitSums) -> PinGroup {
        PinGroup {
            kind: PinKind::Other,
            allocator: None,
            size_bytes: None,
            block_type: None,
            holder: None,
            blocks: self.scaled(sums.blocks),
            bytes: self.scaled(sums.bytes),
            pages: self.scaled(sums.units),
            pinned_bytes: self.scaled(sums.pinned_bytes),
            gain_bytes: self.scaled(gain.resident_bytes),
            gain_free_bytes: self.scaled(gain.free_bytes),
            gain_with_previous_bytes: self.scaled(with_previous.resident_bytes),
            estimated: self.is_estimated(),
            remedy: None,
        }
    }

    /// Returns the groups that are not of listed blocks, as far as they pin memory.
    fn others(&self, shown: &[usize]) -> Vec<PinGroup> {
        let none = UnitSums::default();
        let mut found = Vec::new();
        if self.cached.blocks > 0 {
            let gain = self.holders.gain(CACHED);
            found.push(PinGroup {
                kind: PinKind::Cached,
                remedy: remedies::of_caches(self.cached.allocator).map(str::to_owned),
                ..self.group(&self.cached, gain, none)
            });
        }
        let rest = self.groups.iter().enumerate().filter(|(place, _)| !shown.contains(place));
        let mut others = GroupSums::default();
        rest.for_each(|(_, group)| others.add(group));
        if others.pinned_bytes > 0 {
            // A page may be held by several of them.
            others.units = 0;
            found.push(self.group(&others, none, none));
        }
        if self.fixed_bytes > 0 {
            let fixed = GroupSums { pinned_bytes: self.fixed_bytes, ..GroupSums::default() };
            found.push(PinGroup { kind: PinKind::Fixed, ..self.group(&fixed, none, none) });
        }
        found
    }

    fn set(&self, set: u64, shown: &[usize]) -> PinSet {
        let members: Vec<usize> =
            (0..shown.len()).filter(|place| Self::bit(shown[*place]) & set & !REST != 0).collect();
        let sums: Vec<&GroupSums> =
            members.iter().map(|place| &self.groups[shown[*place]]).collect();
        let gain = self.holders.gain(set);
        let with_caches = self.holders.gain(set | CACHED);
        let bounds = Bounds::new(&sums, self.threads);
        PinSet {
            blocks: self.scaled(sums.iter().map(|group| group.blocks).sum()),
            bytes: self.scaled(sums.iter().map(|group| group.bytes).sum()),
            gain_bytes: self.scaled(gain.resident_bytes),
            gain_free_bytes: self.scaled(gain.free_bytes),
            gain_at_least_bytes: bounds
                .held_back_bytes
                .map(|bytes| self.scaled(gain.resident_bytes).saturating_sub(bytes)),
            gain_at_most_bytes: self.scaled(with_caches.resident_bytes),
            remedies: remedies::of_set(&sums, gain, &bounds),
            groups: members,
        }
    }
}

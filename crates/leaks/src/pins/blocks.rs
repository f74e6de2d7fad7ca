//! The blocks in use by size and type.

use std::cmp::Reverse;
use std::collections::HashMap;

use lowtide_heap::blocks::{Block, PLACE};
use lowtide_model::pins::{BlockCensus, BlockGroup};

use super::HeldMemory;
use super::code::{AllocatingCode, ClassKey};
use super::holders::Samples;

/// Maximum number of groups. Further blocks belong to the group of all others.
const MAX_GROUPS: usize = 64 << 10;

/// Number and bytes of blocks.
type BlockSums = (u64, u64);

impl HeldMemory {
    /// Calls `each` for each block in use, in order of address. Of a sample of the heap, small
    /// blocks in parts that are not completely known are left out. All large blocks are known.
    pub(super) fn each_block(&self, mut each: impl FnMut(Block, ClassKey)) {
        let is_sample = self.is_sample();
        let mut rooms = self.census.rooms.iter().peekable();
        let mut cached = self.census.cached.iter().peekable();
        for block in self.census.blocks.iter() {
            while rooms.next_if(|room| room.range.end <= block.at).is_some() {}
            while cached.next_if(|at| **at < block.at).is_some() {}
            if cached.peek() == Some(&&block.at) {
                continue;
            }
            let room = rooms.peek().filter(|room| room.range.start <= block.at);
            let kind = room.map(|room| room.kind);
            match (is_sample, kind) {
                (true, _) if block.bytes >= PLACE => each(block, (None, block.bytes, block.print)),
                (true, None) => {}
                _ => each(block, (kind, block.bytes, block.print)),
            }
        }
    }

    /// Counts the blocks in use. Returns the `top` groups with the most bytes, and samples of their
    /// blocks.
    pub(super) fn count(&self, top: usize, code: &AllocatingCode) -> (BlockCensus, Samples) {
        let (order, total) = self.largest(top);
        let counts: Vec<u64> = order.iter().map(|(_, (count, _))| *count).collect();
        let mut samples = Samples::new(&counts);
        let places: HashMap<ClassKey, usize> =
            order.iter().enumerate().map(|(place, (class, _))| (*class, place)).collect();
        self.each_block(|block, class| {
            if let Some(place) = places.get(&class) {
                samples.add(*place, &block);
            }
        });
        (self.census_of(&order, total, code), samples)
    }

    /// Counts the blocks in use, without names of what holds them.
    pub fn blocks(&self, top: usize) -> BlockCensus {
        let (order, total) = self.largest(top);
        self.census_of(&order, total, &AllocatingCode::default())
    }

    /// Returns the `top` classes with the most bytes, and the sums of all.
    fn largest(&self, top: usize) -> (Vec<(ClassKey, BlockSums)>, BlockSums) {
        let mut sums: HashMap<ClassKey, BlockSums> = HashMap::new();
        let (mut small, mut large) = ((0, 0), (0, 0));
        self.each_block(|block, class| {
            let is_counted = sums.len() < MAX_GROUPS || sums.contains_key(&class);
            let sums = is_counted.then(|| sums.entry(class).or_default());
            let total = if block.bytes >= PLACE { &mut large } else { &mut small };
            for sums in sums.into_iter().chain([total]) {
                sums.0 += 1;
                sums.1 += block.bytes;
            }
        });
        let total = (self.scaled(small.0) + large.0, self.scaled(small.1) + large.1);
        let mut order: Vec<(ClassKey, BlockSums)> = sums.into_iter().collect();
        order.sort_unstable_by_key(|(class, (count, bytes))| (Reverse((*bytes, *count)), *class));
        order.truncate(top);
        (order, total)
    }

    fn census_of(
        &self,
        order: &[(ClassKey, BlockSums)],
        total: BlockSums,
        code: &AllocatingCode,
    ) -> BlockCensus {
        let scaled = |class: &ClassKey, sums: &BlockSums| match class.1 >= PLACE {
            true => *sums,
            false => (self.scaled(sums.0), self.scaled(sums.1)),
        };
        let (mut groups, mut others) = (Vec::new(), total);
        for (class, sums) in order {
            let sums = scaled(class, sums);
            others = (others.0.saturating_sub(sums.0), others.1.saturating_sub(sums.1));
            groups.push(self.of_class(*class, sums, total.1, code));
        }
        if others.0 > 0 {
            let group = self.group((None, 0, 0), others, total.1);
            groups.push(BlockGroup { allocator: None, ..group });
        }
        BlockCensus {
            blocks: total.0,
            bytes: total.1,
            estimated: self.is_estimated(),
            groups,
            notes: Vec::new(),
            cpu_s: 0.0,
        }
    }

    /// Returns a group of blocks with their age and the code that allocates them, if that is known.
    fn of_class(
        &self,
        class: ClassKey,
        sums: BlockSums,
        all_bytes: u64,
        code: &AllocatingCode,
    ) -> BlockGroup {
        BlockGroup {
            age: self.census.age(class.2),
            stacks: code.of(class),
            ..self.group(class, sums, all_bytes)
        }
    }

    fn group(&self, class: ClassKey, (blocks, bytes): (u64, u64), all_bytes: u64) -> BlockGroup {
        let (kind, size_bytes, type_id) = class;
        let allocator = kind.map(|kind| kind.allocator().to_owned());
        BlockGroup {
            allocator: allocator.or_else(|| self.only_allocator.clone()),
            size_bytes: [size_bytes; 2],
            block_type: self.census.type_name(type_id).cloned(),
            age: None,
            holder: None,
            blocks,
            bytes,
            share: bytes as f64 / all_bytes.max(1) as f64,
            stacks: Vec::new(),
            spare_bytes: None,
            idle_bytes: None,
        }
    }

    pub(super) fn is_estimated(&self) -> bool {
        self.census.read_share < 1.0 || self.unread_bytes() > 0 || self.census.ages_are_estimates
    }

    /// Returns whether only a part of the heap was read.
    fn is_sample(&self) -> bool {
        self.census.read_share > 0.0 && self.census.read_share < 1.0
    }

    /// Scales a sum over the part of the heap that was read.
    fn scaled(&self, value: u64) -> u64 {
        match self.is_sample() {
            true => (value as f64 / self.census.read_share) as u64,
            false => value,
        }
    }
}

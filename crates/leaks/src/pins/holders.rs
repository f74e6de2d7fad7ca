//! Names what holds the blocks of the groups that are shown.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use lowtide_analysis::pins::holders::MAX_GROUPS;
use lowtide_analysis::pins::{GroupSums, HeapPins};
use lowtide_heap::blocks::Block;
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::{Target, TargetError};

use super::HeldMemory;
use super::units::{BlockClass, BlockInRoom};
use crate::book::{FIRST_COHORT, Survivor};
use crate::evidence::{self, Search};

/// Maximum number of blocks of a group whose holders are searched for, and of all groups.
const SAMPLED: u64 = 200;
const SAMPLED_IN_ALL: u64 = 4000;
/// Part of the pinned memory from which the holders of a group are searched for.
const MIN_PART: f64 = 0.001;
/// Maximum number of blocks in use of a heap whose pointers are searched: they take 64 MiB at most.
const MAX_BLOCKS: u64 = 2_000_000;
/// The note of a heap with more blocks.
const TOO_MANY: &str = "it has too many blocks for a search of their holders: lowtide leaks names the holders of \
                        blocks that grow";

/// Samples of the blocks of groups, evenly distributed over their addresses.
pub(super) struct Samples {
    steps: Vec<u64>,
    seen: Vec<u64>,
    blocks: Vec<Vec<Survivor>>,
}

impl Samples {
    /// Creates samples of groups with these numbers of blocks.
    pub(super) fn new(counts: &[u64]) -> Self {
        let sampled = SAMPLED.min(SAMPLED_IN_ALL / (counts.len() as u64).max(1)).max(1);
        Self {
            steps: counts.iter().map(|count| count.div_ceil(sampled).max(1)).collect(),
            seen: vec![0; counts.len()],
            blocks: vec![Vec::new(); counts.len()],
        }
    }

    /// Adds a block to the sample of a group, if it belongs there.
    pub(super) fn add(&mut self, place: usize, block: &Block) {
        if self.seen[place].is_multiple_of(self.steps[place]) {
            let Block { at, bytes, print } = *block;
            let (cohort, is_lost) = (FIRST_COHORT, false);
            self.blocks[place].push(Survivor { at, bytes, cohort, print, is_lost });
        }
        self.seen[place] += 1;
    }

    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Adds the groups of other samples, after these.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.blocks.extend(other.blocks);
        self
    }

    /// Names what holds the blocks of each group. `all` is the number of blocks in use of the
    /// process. Returns the reason if it is not searched for.
    ///
    /// # Errors
    /// Fails if the process has ended, or executes another program.
    pub(super) fn holders(
        self,
        target: &Target,
        all: u64,
        interrupt: &AtomicBool,
    ) -> Result<Result<Vec<Option<String>>, &'static str>, TargetError> {
        if all > MAX_BLOCKS {
            return Ok(Err(TOO_MANY));
        }
        let mut names = vec![None; self.blocks.len()];
        let some = self.blocks.into_iter().enumerate().filter(|(_, sample)| !sample.is_empty());
        let (places, samples): (Vec<usize>, Vec<Vec<Survivor>>) = some.unzip();
        let mut reader = BlockReader::open(target)?;
        let holders = evidence::holders(&mut reader, samples, &Search::new(interrupt))?;
        for (place, holder) in places.into_iter().zip(holders) {
            names[place] = holder;
        }
        Ok(Ok(names))
    }
}

impl HeldMemory {
    /// Returns samples of the blocks of the groups that pin most memory.
    pub(super) fn samples(&self, heap: &HeapPins) -> Samples {
        let least = (heap.pinned_bytes() as f64 * MIN_PART) as u64;
        let groups = &heap.groups[..heap.groups.len().min(MAX_GROUPS)];
        let groups = &groups[..groups.partition_point(|group| group.pinned_bytes >= least)];
        let counts: Vec<u64> = groups.iter().map(|group| group.blocks).collect();
        let mut samples = Samples::new(&counts);
        let mut place_of: HashMap<BlockClass, Option<usize>> = HashMap::new();
        let add = |(block, class): BlockInRoom| {
            let find = || groups.iter().position(|group| self.is_of(class, group));
            if let Some(place) = *place_of.entry(class).or_insert_with(find) {
                samples.add(place, &block);
            }
            0
        };
        self.units().each(add, |_| {});
        samples
    }

    /// Returns whether blocks of a class belong to a group.
    fn is_of(&self, class: BlockClass, group: &GroupSums) -> bool {
        let BlockClass { kind, bytes, type_id, is_cached } = class;
        !is_cached
            && group.allocator == kind.allocator()
            && group.size_bytes == [bytes; 2]
            && group.block_type.as_ref() == self.census.type_name(type_id)
            && group.age == self.census.age(type_id)
    }
}

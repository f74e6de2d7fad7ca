//! The code that allocates blocks of a group: the stacks of the allocations that a watch sampled,
//! and whose blocks are still in use.

use std::collections::HashMap;

use lowtide_heap::rooms::RoomKind;
use lowtide_model::leaks::LeakStack;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::target::{Target, TargetError};

use super::HeldMemory;
use super::type_id::{TypeId, type_of};
use crate::files::Image;
use crate::stacks::names::FrameNamer;
use crate::stacks::sampler::StackSamples;
use crate::stacks::survivors::SurvivingStacks;

/// Maximum number of groups whose stacks are named, and of stacks of each.
const MAX_GROUPS: usize = 100;
const MAX_STACKS: usize = 50;

/// What decides the group of a block: the kind of its room, if it has no pages of its own, its size
/// and its type.
pub(super) type ClassKey = (Option<RoomKind>, u64, TypeId);

/// The stacks that allocated blocks, by the kind of their room, their size and their type.
#[derive(Debug, Default)]
pub(super) struct AllocatingCode(HashMap<ClassKey, Vec<LeakStack>>);

impl AllocatingCode {
    /// Returns the stacks of the blocks of a class, of any age.
    pub(super) fn of(&self, (kind, bytes, type_id): ClassKey) -> Vec<LeakStack> {
        self.0.get(&(kind, bytes, type_of(type_id))).cloned().unwrap_or_default()
    }
}

impl HeldMemory {
    /// Names the stacks of the samples whose blocks are in use, and unchanged at their beginning.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub(super) fn code(
        &self,
        samples: &StackSamples,
        target: &Target,
    ) -> Result<AllocatingCode, TargetError> {
        let wanted = samples.addresses();
        let mut found = vec![None; wanted.len()];
        let mut members: HashMap<ClassKey, Vec<u64>> = HashMap::new();
        let mut next = 0;
        self.each_block(|block, (kind, bytes, type_id)| {
            while wanted.get(next).is_some_and(|at| *at < block.at) {
                next += 1;
            }
            if wanted.get(next) == Some(&block.at) {
                found[next] = Some(block);
                members.entry((kind, bytes, type_of(type_id))).or_default().push(block.at);
            }
        });
        let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let image = Image::new(target.pid, &memory, &maps);
        let namer = FrameNamer::new(&image, target);
        let stacks = SurvivingStacks::new(samples, &memory, &found, &|_, _| false);
        let mut order: Vec<(ClassKey, Vec<u64>)> = members.into_iter().collect();
        order.sort_by_key(|(class, blocks)| (std::cmp::Reverse(blocks.len()), *class));
        let named = order.into_iter().take(MAX_GROUPS).map(|(class, blocks)| {
            let is_member = |at: u64| blocks.binary_search(&at).is_ok();
            (class, stacks.of_blocks(is_member, MAX_STACKS, &namer))
        });
        Ok(AllocatingCode(named.collect()))
    }
}

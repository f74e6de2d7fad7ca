//! Names what holds the blocks of the groups that are shown.

use std::sync::atomic::AtomicBool;

use lowtide_heap::blocks::Block;
use lowtide_probe::target::TargetError;

use crate::book::{FIRST_COHORT, Survivor};
use crate::evidence::{self, WalkedProcess};

/// Maximum number of blocks of a group whose holders are searched for, and of all groups.
const SAMPLED: u64 = 200;
const SAMPLED_IN_ALL: u64 = 4000;
/// Samples of the blocks of groups, evenly distributed over their addresses.
#[derive(Debug, Default)]
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

    /// Names what holds the blocks of each group.
    ///
    /// # Errors
    /// Fails if the process has ended, or executes another program.
    pub(super) fn holders(
        self,
        process: &WalkedProcess<'_>,
        interrupt: &AtomicBool,
    ) -> Result<Vec<Option<String>>, TargetError> {
        let mut names = vec![None; self.blocks.len()];
        let some = self.blocks.into_iter().enumerate().filter(|(_, sample)| !sample.is_empty());
        let (places, samples): (Vec<usize>, Vec<Vec<Survivor>>) = some.unzip();
        if !samples.is_empty() {
            let holders = evidence::holders(process, &samples, interrupt)?;
            places.into_iter().zip(holders).for_each(|(place, holder)| names[place] = holder);
        }
        Ok(names)
    }
}

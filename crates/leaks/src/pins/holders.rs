//! Names what holds the blocks of the groups that are shown.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use lowtide_model::pins::{PinGroup, PinKind, Pins};
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::{Target, TargetError};

use super::HeldMemory;
use super::units::BlockClass;
use crate::book::{FIRST_COHORT, Survivor};
use crate::evidence::{self, Search};

/// Number of blocks of a group whose holders are searched for.
const SAMPLED: u64 = 200;
/// Maximum number of blocks in use of a heap whose pointers are searched: they take 64 MiB at most.
const MAX_BLOCKS: u64 = 2_000_000;
/// The note of a heap with more blocks.
const TOO_MANY: &str = "it has too many blocks for a search of their holders: lowtide leaks names the holders of \
                        blocks that grow";

/// Adds the holders of the groups.
///
/// # Errors
/// Fails if the process has ended, or executes another program.
pub(super) fn add(
    target: &Target,
    held: HeldMemory,
    pins: &mut Pins,
    interrupt: &AtomicBool,
) -> Result<(), TargetError> {
    if pins.blocks > MAX_BLOCKS {
        pins.notes.push(TOO_MANY.to_owned());
        return Ok(());
    }
    let samples = samples(&held, &pins.groups);
    // Its memory is not needed any more.
    drop(held);
    let mut reader = BlockReader::open(target)?;
    let (places, samples): (Vec<usize>, Vec<Vec<Survivor>>) =
        samples.into_iter().enumerate().filter(|(_, sample)| !sample.is_empty()).unzip();
    let holders = evidence::holders(&mut reader, samples, &Search::new(interrupt))?;
    for (place, holder) in places.into_iter().zip(holders) {
        pins.groups[place].holder = holder;
    }
    Ok(())
}

/// Returns some blocks of each group, evenly distributed over its addresses.
fn samples(held: &HeldMemory, groups: &[PinGroup]) -> Vec<Vec<Survivor>> {
    let mut samples = vec![Vec::new(); groups.len()];
    let mut seen = vec![0_u64; groups.len()];
    let mut place_of: HashMap<BlockClass, Option<usize>> = HashMap::new();
    held.units().each(
        |(block, class)| {
            let find = || groups.iter().position(|group| held.is_of(class, group));
            if let Some(place) = *place_of.entry(class).or_insert_with(find) {
                let step = (groups[place].blocks / SAMPLED).max(1);
                if seen[place].is_multiple_of(step) {
                    let (at, bytes) = (block.at, block.bytes);
                    let (cohort, print, is_lost) = (FIRST_COHORT, 0, false);
                    samples[place].push(Survivor { at, bytes, cohort, print, is_lost });
                }
                seen[place] += 1;
            }
            0
        },
        |_| {},
    );
    samples
}

impl HeldMemory {
    /// Returns whether blocks of a class belong to a group.
    fn is_of(&self, class: BlockClass, group: &PinGroup) -> bool {
        let BlockClass { kind, bytes, type_id, is_cached } = class;
        let name = usize::from(type_id).checked_sub(1).and_then(|id| self.census.types.get(id));
        group.kind == PinKind::Blocks
            && !is_cached
            && group.allocator.as_deref() == Some(kind.allocator())
            && group.size_bytes == Some([bytes; 2])
            && group.block_type.as_ref() == name
    }
}

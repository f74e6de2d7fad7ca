//! Groups of blocks.

use std::ops::Range;

use lowtide_analysis::leaks::{Trend, TrendKind};
use lowtide_model::survivors::size_class;

use crate::book::{FIRST_COHORT, Survivor};

/// The identity of a group of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupKey {
    /// The size classes of the blocks.
    pub classes: Vec<u16>,
    /// Whether no pointer to them was found.
    pub is_lost: bool,
    /// Which of the blocks of these classes belong to it.
    pub members: Members,
}

/// The blocks of some size classes that belong to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Members {
    /// Those that are old enough to be survivors.
    Survivors,
    /// Those that were allocated since the first snapshot: a backlog, or growth that started late.
    AllSince,
    /// Those that existed before the first snapshot.
    Before,
    /// The block at this address, which grows.
    One(u64),
}

impl GroupKey {
    /// Returns the key of the group of a trend.
    pub(crate) fn of_trend(trend: &Trend, is_lost: bool) -> Self {
        let members = match trend.kind {
            TrendKind::Backlog => Members::AllSince,
            _ if trend.is_late => Members::AllSince,
            _ => Members::Survivors,
        };
        Self { classes: trend.classes.clone(), is_lost, members }
    }

    /// Returns the key of the blocks of a class that were lost before the first snapshot.
    pub(crate) fn lost_before(class: u16) -> Self {
        Self { classes: vec![class], is_lost: true, members: Members::Before }
    }

    /// Returns the key of a block that grows.
    pub(crate) fn of_block(block: &Survivor) -> Self {
        let classes = vec![size_class(block.bytes)];
        Self { classes, is_lost: false, members: Members::One(block.at) }
    }

    /// Returns whether a block belongs to it. `old` are the cohorts whose blocks are survivors.
    pub(crate) fn has(&self, block: &Survivor, old: &Range<u8>) -> bool {
        let is_member = match self.members {
            Members::Survivors => old.contains(&block.cohort),
            Members::AllSince => block.cohort != FIRST_COHORT,
            Members::Before => block.cohort == FIRST_COHORT,
            Members::One(at) => block.at == at,
        };
        is_member
            && self.is_lost == block.is_lost
            && self.classes.contains(&size_class(block.bytes))
    }
}

//! Settled memory of two versions by owner, and the owners that grew.

use std::collections::BTreeSet;

use super::interval::{ComparedMetric, VersionVerdict};
use super::{ComparedOwner, GrownBlocks, GrownOwner, Pair};
use crate::owners::{BytesByOwner, NamedOwner};
use crate::trial_result::TrialResult;
use lowtide_model::ledger::Owner;
use lowtide_model::pins::{BlockShare, BlockSummary, PinShare, PinSummary};
use lowtide_model::stats::{ENOUGH_FOR_INTERVAL, median};

/// Minimum share of the memory of any trial for an owner to be listed if it did not change.
const MIN_SHARE: f64 = 0.02;
/// Minimum part of the growth for an owner to be named.
const MIN_PART: f64 = 0.1;
/// Maximum number of groups of blocks of an owner.
const MAX_GROUPS: usize = 3;

/// Compares the owners of settled memory. `margin` is the difference that does not matter, in
/// bytes: that of the whole.
pub(super) fn compare(pairs: &[Pair], margin: f64) -> Vec<ComparedOwner> {
    let divided: Vec<[BytesByOwner; 2]> =
        pairs.iter().filter_map(|[base, head]| Some([settled(base)?, settled(head)?])).collect();
    let owners: BTreeSet<&NamedOwner> =
        divided.iter().flatten().flat_map(|trial| trial.owners.keys()).collect();
    let mut found: Vec<ComparedOwner> =
        owners.into_iter().filter_map(|owner| of_owner(owner, &divided, margin)).collect();
    let growth = |owner: &ComparedOwner| owner.metric.difference_bytes.map_or(0, |d| d.median);
    found.sort_by_key(|owner| std::cmp::Reverse(growth(owner)));
    found
}

/// Compares one owner; `None` if it is small and did not change.
fn of_owner(
    owner: &NamedOwner,
    divided: &[[BytesByOwner; 2]],
    margin: f64,
) -> Option<ComparedOwner> {
    let bytes = |trial: &BytesByOwner| trial.of(owner).0 as f64;
    let values: Vec<[f64; 2]> =
        divided.iter().map(|[base, head]| [bytes(base), bytes(head)]).collect();
    let metric = ComparedMetric::new(&values, |_| margin);
    let is_large = |t: &BytesByOwner| bytes(t) >= t.total as f64 * MIN_SHARE && t.total > 0;
    let is_listed =
        metric.verdict != VersionVerdict::Same && metric.repeats > 0 && values_differ(&values);
    (is_listed || divided.iter().flatten().any(is_large)).then(|| ComparedOwner {
        owner: owner.owner(),
        name: owner.manager().map(str::to_owned),
        estimated: divided.iter().flatten().any(|trial| trial.of(owner).1),
        metric,
    })
}

fn values_differ(values: &[[f64; 2]]) -> bool {
    values.iter().any(|[base, head]| base != head)
}

fn settled(trial: &TrialResult) -> Option<BytesByOwner> {
    let managers = trial.managers.settled.as_deref().unwrap_or_default();
    Some(BytesByOwner::new(trial.ledgers.settled.as_ref()?, managers))
}

/// Returns the owners whose growth is certain and a material part of that of settled memory.
pub(super) fn grown(
    pairs: &[Pair],
    owners: &[ComparedOwner],
    settled: &ComparedMetric,
) -> Vec<GrownOwner> {
    let least = settled.difference_bytes.map_or(0.0, |d| d.median as f64 * MIN_PART);
    // The growth itself is already certain. Not every trial has a ledger, so fewer repeats are
    // enough to name its owner.
    let has_grown = |owner: &&ComparedOwner| {
        let is_known = owner.metric.repeats as usize >= ENOUGH_FOR_INTERVAL;
        let difference = owner.metric.difference_bytes.filter(|_| is_known);
        difference.is_some_and(|d| d.low > 0 && d.median as f64 >= least)
    };
    owners
        .iter()
        .filter(has_grown)
        .map(|owner| GrownOwner {
            owner: owner.owner,
            name: owner.name.clone(),
            bytes: owner.metric.difference_bytes.map_or(0, |d| d.median),
            blocks: match owner.owner {
                Owner::Fragmented => grown_blocks(pairs, Groups::pinning),
                Owner::Allocated => grown_blocks(pairs, Groups::allocated),
                _ => Vec::new(),
            },
        })
        .collect()
}

/// A group of blocks of a trial, with the bytes of the owner that are due to it.
#[derive(Clone, Copy)]
struct Group<'t> {
    size_bytes: u64,
    block_type: Option<&'t String>,
    blocks: u64,
    bytes: u64,
    owned_bytes: u64,
}

impl Group<'_> {
    fn is_same(&self, other: &Group) -> bool {
        (self.size_bytes, self.block_type) == (other.size_bytes, other.block_type)
    }
}

/// The recorded groups of a trial, the largest first.
struct Groups<'t> {
    groups: Vec<Group<'t>>,
    /// Whether further groups may exist, none of which is larger than the last one.
    is_full: bool,
}

impl<'t> Groups<'t> {
    fn allocated(trial: &'t TrialResult) -> Option<Self> {
        let group = |share: &'t BlockShare| Group {
            size_bytes: share.size_bytes,
            block_type: share.block_type.as_ref(),
            blocks: share.blocks,
            bytes: share.bytes,
            owned_bytes: share.bytes,
        };
        let groups: Vec<Group> = trial.blocks.as_ref()?.groups.iter().map(group).collect();
        let is_full = groups.len() >= BlockSummary::MAX_GROUPS;
        Some(Self { groups, is_full })
    }

    fn pinning(trial: &'t TrialResult) -> Option<Self> {
        let group = |share: &'t PinShare| Group {
            size_bytes: share.size_bytes,
            block_type: share.block_type.as_ref(),
            blocks: share.blocks,
            bytes: share.bytes,
            owned_bytes: share.pinned_bytes,
        };
        let groups: Vec<Group> = trial.pins.as_ref()?.groups.iter().map(group).collect();
        let is_full = groups.len() >= PinSummary::MAX_GROUPS;
        Some(Self { groups, is_full })
    }

    fn find(&self, group: &Group) -> Option<&Group<'t>> {
        self.groups.iter().find(|other| other.is_same(group))
    }

    /// Returns the most bytes of the owner that may be due to a group.
    fn most(&self, group: &Group) -> u64 {
        let last = || self.groups.last().filter(|_| self.is_full);
        self.find(group).or_else(last).map_or(0, |group| group.owned_bytes)
    }
}

/// Returns the groups of blocks that grew most; `of` returns those of a trial. Empty if one of the
/// versions has none.
fn grown_blocks<'t>(
    pairs: &[Pair<'t>],
    of: fn(&'t TrialResult) -> Option<Groups<'t>>,
) -> Vec<GrownBlocks> {
    let version =
        |place: usize| -> Vec<Groups> { pairs.iter().filter_map(|pair| of(pair[place])).collect() };
    let (base, head) = (version(0), version(1));
    if base.is_empty() {
        return Vec::new();
    }
    let mut known: Vec<Group> = Vec::new();
    for group in head.iter().flat_map(|trial| &trial.groups) {
        if !known.iter().any(|other| other.is_same(group)) {
            known.push(*group);
        }
    }
    let mut grown: Vec<GrownBlocks> =
        known.iter().filter_map(|group| growth(group, &base, &head)).collect();
    grown.sort_by_key(|blocks| std::cmp::Reverse(blocks.growth_bytes));
    grown.truncate(MAX_GROUPS);
    grown
}

/// Returns a group with its growth; `None` if it did not grow.
fn growth(group: &Group, base: &[Groups], head: &[Groups]) -> Option<GrownBlocks> {
    let middle = |values: Vec<f64>| median(&values).unwrap_or(0.0);
    let of_head = |value: fn(&Group) -> u64| {
        middle(head.iter().map(|t| t.find(group).map_or(0.0, |g| value(g) as f64)).collect())
    };
    let before = middle(base.iter().map(|trial| trial.most(group) as f64).collect());
    let growth = of_head(|group| group.owned_bytes) - before;
    (growth > 0.0).then(|| GrownBlocks {
        size_bytes: group.size_bytes,
        block_type: group.block_type.cloned(),
        blocks: of_head(|group| group.blocks) as u64,
        bytes: of_head(|group| group.bytes) as u64,
        growth_bytes: growth as u64,
    })
}

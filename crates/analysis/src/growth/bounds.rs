//! Bounds of growth: memory that fills blocks or mappings which did not grow, or the heap of a
//! runtime with a limit of its own. Such growth ends by itself.

use std::collections::BTreeMap;

use lowtide_model::growth::{GrowthPart, RuntimeLimit};
use lowtide_model::inspection::{Observation, Room};
use lowtide_model::ledger::Owner;

/// Maximum growth of blocks or mappings, as a part of the growth of resident memory, for them to
/// count as unchanged.
const MAX_ADDED: f64 = 0.05;
/// Maximum resident part of what a program mapped itself, at first, for its mappings to be a bound:
/// a program that maps one chunk after the other has filled most of them.
const MAX_FILLED: f64 = 0.5;

/// What bounds the growth of the owners in one observation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    rooms: BTreeMap<Owner, Room>,
    /// Blocks in use of all walked heaps, resident or not; `None` if not all of them are known.
    blocks: Option<Room>,
    limits: Vec<RuntimeLimit>,
}

impl Bounds {
    pub(super) fn new(observation: &Observation) -> Self {
        Self {
            rooms: observation.rooms.clone(),
            blocks: blocks(observation),
            limits: observation.runtime_limits.clone(),
        }
    }

    /// Returns the mappings or blocks that bound an owner.
    fn room(&self, owner: Owner) -> Option<Room> {
        match owner {
            Owner::Allocated => self.blocks,
            _ => self.rooms.get(&owner).copied(),
        }
    }
}

/// Returns the blocks in use of all walked heaps; `None` if other memory counts as blocks as well,
/// or if their sizes are not known.
fn blocks(observation: &Observation) -> Option<Room> {
    let bins: u64 = observation.allocated_by_size.iter().map(|bin| bin.bytes).sum();
    let mapped_bytes = bins.saturating_add(observation.mmapped_bytes);
    let resident_bytes = observation.ledger.bytes(Owner::Allocated);
    let of_heaps: u64 = observation.heaps.iter().map(|heap| heap.allocated_bytes).sum();
    let is_known = resident_bytes <= of_heaps.min(mapped_bytes) && observation.unwalked_bytes == 0;
    is_known.then_some(Room { mapped_bytes, resident_bytes })
}

/// Sets the bounds of the parts that grew. Blocks or mappings that grow in the observations from
/// `newer` on, from which rates are, are no bound.
pub(super) fn set_bounds(by: &mut [GrowthPart], all: &[&Bounds], newer: usize) {
    const BOUNDED: [Owner; 5] =
        [Owner::Allocated, Owner::Shared, Owner::ProgramData, Owner::Stacks, Owner::AnonymousOther];
    for owner in BOUNDED {
        let is_of_owner =
            |part: &GrowthPart| part.owner == owner.key() && !is_of_engine(part, owner);
        let risen = by.iter().filter(|part| is_of_owner(part)).map(|part| part.bytes).sum();
        let Some(bound) = bound(owner, risen, all, newer) else { continue };
        let grew = by.iter_mut().filter(|part| is_of_owner(part));
        grew.for_each(|part| part.bound_bytes = Some(bound));
    }
    for limit in all.last().map_or(&[][..], |last| &last.limits) {
        let Some(runtime) = limit.kind.runtime() else { continue };
        let bound = limit.limit_bytes.saturating_sub(limit.used_bytes);
        let of_runtime = by.iter_mut().filter(|part| part.is_of(runtime));
        of_runtime.for_each(|part| part.bound_bytes = Some(bound));
    }
}

/// Returns whether a part has the key of blocks of a heap, but is memory of an engine.
fn is_of_engine(part: &GrowthPart, owner: Owner) -> bool {
    owner == Owner::Allocated && part.name.is_some()
}

/// Returns by how many bytes an owner that grew can still grow, if its blocks or mappings did not
/// grow noticeably between any two observations, nor between any two of those from `newer` on.
fn bound(owner: Owner, risen: i64, all: &[&Bounds], newer: usize) -> Option<u64> {
    let rooms: Vec<Room> = all.iter().map(|bounds| bounds.room(owner)).collect::<Option<_>>()?;
    let (first, last) = (rooms.first()?, rooms.last()?);
    let is_chunk = owner == Owner::AnonymousOther
        && first.resident_bytes as f64 > MAX_FILLED * first.mapped_bytes as f64;
    let newer = &rooms[newer..];
    let risen_of_newer = last.resident_bytes as i64 - newer.first()?.resident_bytes as i64;
    let is_unchanged = is_unchanged(&rooms, risen) && is_unchanged(newer, risen_of_newer);
    (risen > 0 && !is_chunk && is_unchanged).then(|| last.free_bytes())
}

/// Returns whether blocks or mappings did not grow noticeably beside resident memory that rose by
/// some bytes. Others that went away meanwhile do not hide their growth.
fn is_unchanged(rooms: &[Room], risen: i64) -> bool {
    let (mut least, mut added) = (u64::MAX, 0);
    for room in rooms {
        least = least.min(room.mapped_bytes);
        added = added.max(room.mapped_bytes - least);
    }
    added as f64 <= MAX_ADDED * risen.max(0) as f64
}

#[cfg(test)]
mod tests {
    use lowtide_model::growth::{Growth, GrowthCourse, ProcessLimitKind};
    use lowtide_model::inspection::WalkedHeap;
    use lowtide_model::ledger::{State, WalkedRuntime};

    use super::super::owners::OwnerBytes;
    use super::super::tests::{growth_between, observed};
    use super::super::words::{bound, until_limit};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns an observation in which an owner has resident memory in its mappings, in MiB.
    fn filled(owner: Owner, mib: u64, mapped_mib: u64) -> Observation {
        let mut found = observed(&[(owner, mib)], &[]);
        let room = Room { mapped_bytes: mapped_mib * MIB, resident_bytes: mib * MIB };
        found.rooms.insert(owner, room);
        found
    }

    /// Returns steady growth with a limit, of which this many MiB are left.
    fn limited(growth: Growth, left_mib: u64) -> Growth {
        let mut growth = Growth { course: GrowthCourse::Steady, ..growth };
        growth.set_limit(Some(left_mib * MIB), Some(0));
        growth
    }

    #[test]
    fn memory_that_fills_mappings_has_a_bound_and_leads_to_no_limit() {
        for owner in [Owner::ProgramData, Owner::Shared, Owner::Stacks, Owner::AnonymousOther] {
            let growth = growth_between(&filled(owner, 10, 400), &filled(owner, 70, 400));
            let growth = limited(growth, 1000);
            assert_eq!(growth.bounded().bound_bytes, 330 * MIB, "{owner:?}");
            assert_eq!(growth.seconds_to_limit, None, "{owner:?}");
            assert!(bound(&growth).unwrap().ends_with("at most 330 MiB more can become resident"));
            assert!(limited(growth, 300).seconds_to_limit.is_some(), "the bound is beyond it");
        }
    }

    #[test]
    fn mappings_that_grow_and_chunks_that_were_filled_are_no_bound() {
        let grows = |before, after| limited(growth_between(&before, &after), 1000);
        let data = |mib, mapped| filled(Owner::ProgramData, mib, mapped);
        let growth = grows(data(10, 400), data(70, 450));
        assert!(growth.bounded().bound_bytes == 0 && growth.seconds_to_limit.is_some());
        let own = |mib| filled(Owner::AnonymousOther, mib, 640);
        assert!(grows(own(560), own(600)).seconds_to_limit.is_some(), "the next chunk follows");
        let unknown = |mib| observed(&[(Owner::Shared, mib)], &[]);
        assert!(grows(unknown(10), unknown(90)).seconds_to_limit.is_some());
    }

    #[test]
    fn blocks_in_use_that_become_resident_have_a_bound() {
        let blocks = |resident, in_use| {
            let mut found = observed(&[(Owner::Allocated, resident)], &[]);
            let heap = WalkedHeap::new(
                lowtide_model::allocator_kind::AllocatorKind::Glibc,
                None,
                &found.ledger,
                lowtide_model::inspection::HeapPrediction::default(),
            );
            found.heaps = vec![heap];
            found.mmapped_bytes = in_use * MIB;
            found
        };
        let growth = limited(growth_between(&blocks(10, 300), &blocks(90, 300)), 1000);
        assert_eq!((growth.bounded().bound_bytes, growth.seconds_to_limit), (210 * MIB, None));
        let added = limited(growth_between(&blocks(10, 300), &blocks(90, 380)), 1000);
        assert!(added.seconds_to_limit.is_some(), "blocks were added");
        // Blocks of another allocator, whose sizes are not known.
        let mut both = [blocks(10, 300), blocks(90, 300)];
        both.iter_mut().for_each(|found| found.heaps[0].allocated_bytes = MIB);
        let unsure = limited(growth_between(&both[0], &both[1]), 1000);
        assert_eq!(unsure.bounded().bound_bytes, 0);
    }

    #[test]
    fn growth_beside_a_bound_leads_to_the_limit_later() {
        let mixed = |filled_mib, stacks| {
            let mut found = filled(Owner::Shared, filled_mib, 100);
            found.ledger.add(Owner::AnonymousOther, stacks * MIB);
            found
        };
        let growth = limited(growth_between(&mixed(0, 0), &mixed(60, 60)), 1000);
        // 40 MiB more of shared memory, then 960 MiB at 1 MiB a second.
        assert!((growth.seconds_to_limit.unwrap() - 960.0).abs() < 1.0, "{growth:?}");
        let soon = limited(growth_between(&mixed(0, 0), &mixed(60, 60)), 60);
        assert!((soon.seconds_to_limit.unwrap() - 30.0).abs() < 1.0, "{soon:?}");
    }

    #[test]
    fn small_steady_growth_beside_a_bound_leads_to_the_limit() {
        let follow = |stacks: fn(u64) -> u64| {
            let samples: Vec<(f64, OwnerBytes)> = (0..20_u64)
                .map(|second| {
                    let mut found = filled(Owner::Shared, 100 * second, 4000);
                    found.ledger.add(Owner::Stacks, stacks(second) * MIB);
                    (second as f64, OwnerBytes::new(&found))
                })
                .collect();
            limited(super::super::owners::growth(&samples, 0.0), 8000)
        };
        let growing = follow(|second| 40 + second);
        assert!((growing.seconds_to_limit.unwrap() - 5900.0).abs() < 60.0, "{growing:?}");
        let said = until_limit(&growing).unwrap();
        assert!(said.starts_with("at 3.52 GiB an hour, the limit of 7.81 GiB"), "{said}");
        let noisy = follow(|second| 40 + 9 * (second % 2));
        assert_eq!(noisy.seconds_to_limit, None, "{noisy:?}");
    }

    #[test]
    fn the_own_limit_of_a_runtime_is_the_nearer_one() {
        let java = |mib| {
            let mut found = observed(&[(Owner::Allocated, 4)], &[]);
            found.ledger.add_walked(WalkedRuntime::HotSpot, State::Allocated, mib * MIB);
            let kind = ProcessLimitKind::JavaHeap;
            let (limit_bytes, used_bytes) = (150 * MIB, mib * MIB);
            found.runtime_limits = vec![RuntimeLimit { kind, limit_bytes, used_bytes }];
            found
        };
        let (before, after) = (java(10), java(70));
        let mut growth = limited(growth_between(&before, &after), 20_000);
        assert_eq!(growth.seconds_to_limit, None);
        growth.set_runtime_limit(after.runtime_limits[0]);
        assert_eq!(growth.limit_bytes, Some(150 * MIB));
        assert!((growth.seconds_to_limit.unwrap() - 80.0).abs() < 0.1, "{growth:?}");
        let said = until_limit(&growth).unwrap();
        let expected = "its Java heap grows by 3.52 GiB an hour, and reaches its own limit (-Xmx, or its default, \
                        150 MiB) in 1 min 20 s";
        assert_eq!(said, expected);
        assert_eq!(bound(&growth), None, "the limit says it");
    }
}

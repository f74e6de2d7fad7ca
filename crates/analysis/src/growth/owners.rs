//! The growth of each owner of resident memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lowtide_model::growth::{Growth, GrowthCourse, GrowthPart, LAZILY_FREED};
use lowtide_model::inspection::{MAX_NAMED, NamedMemory, Observation};
use lowtide_model::ledger::{Owner, State};
use lowtide_model::open_memory::OpenMemory;

use super::bounds::{Bounds, set_bounds};
use super::course::course;
use super::trend::{line_slope, without_spikes};
use crate::owners::{LedgerPart, parts};

/// Maximum memory of a name in a sample that does not have it, as a part of what it has in another.
const MAX_HIDDEN: f64 = 0.05;

/// The name of an owner in the ledger, the name of a part of it, and the kind of the part.
type Key = (&'static str, Option<String>, PartKind);

/// The kind of a part among those of the same owner and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PartKind {
    Usual,
    /// Pages of a file that the kernel cannot take back.
    Kept,
    /// Free memory of a runtime whose heap was walked.
    Free,
}

/// Resident memory by owner. The parts add up to RSS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnerBytes {
    rss_bytes: u64,
    page_tables_bytes: Option<u64>,
    hugetlb_bytes: Option<u64>,
    open_files: Option<u64>,
    open_memory: Option<OpenMemory>,
    parts: BTreeMap<Key, Part>,
    bounds: Bounds,
    /// The owners of which only the largest names are known, with the bytes of the smallest of
    /// these names.
    cut: BTreeMap<&'static str, u64>,
}

/// The memory of one owner, or of a part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Part {
    bytes: u64,
    /// Number of threads or of mappings; `None` if nothing is counted.
    count: Option<u64>,
}

/// Returns the growth over the samples of a process, of which there is at least one. The rates are
/// those of the samples since `since_s`. A rate is the slope of the line of least squares: those of
/// the parts add up to that of the whole.
pub(super) fn growth(samples: &[(f64, OwnerBytes)], since_s: f64) -> Growth {
    let unsure = unsure_names(samples);
    let samples: Vec<(f64, OwnerBytes)> =
        samples.iter().map(|(t_s, bytes)| (*t_s, bytes.without(&unsure))).collect();
    let ((first_s, before), (last_s, after)) = (&samples[0], &samples[samples.len() - 1]);
    let newer = samples.partition_point(|(t_s, _)| *t_s < since_s).min(samples.len().max(2) - 2);
    let rated = without_spikes(&samples[newer..], |(_, all)| all.rss_bytes as f64);
    let keys: BTreeSet<&Key> = rated.iter().flat_map(|(_, all)| all.parts.keys()).collect();
    let keys: BTreeSet<&Key> = keys.into_iter().chain(before.parts.keys()).collect();
    let mut by: Vec<GrowthPart> = keys
        .into_iter()
        .map(|key| growth_part(key, [before, after], &rated))
        .filter(|part| part.bytes != 0 || part.bytes_per_hour != 0)
        .collect();
    by.sort_by_key(|part| Reverse(part.bytes));
    let bounds: Vec<&Bounds> = samples.iter().map(|(_, bytes)| &bytes.bounds).collect();
    set_bounds(&mut by, &bounds, newer);
    let rise = after.rss_bytes as i64 - before.rss_bytes as i64;
    let of_both = |of: fn(&OwnerBytes) -> Option<u64>| Some([of(before)?, of(after)?]);
    let mut growth = Growth {
        rss_bytes: [before.rss_bytes, after.rss_bytes],
        page_tables_bytes: of_both(|all| all.page_tables_bytes),
        hugetlb_bytes: of_both(|all| all.hugetlb_bytes),
        open_files: of_both(|all| all.open_files),
        counts: Vec::new(),
        open_memory: open_memory(&samples),
        descendants: None,
        elapsed_s: last_s - first_s,
        course: GrowthCourse::Unknown,
        rss_bytes_per_hour: per_hour(&rated, |all| all.rss_bytes as f64),
        followed_share: 0.0,
        limit_bytes: None,
        seconds_to_limit: None,
        dirty_files_bytes: None,
        locked_files_bytes: None,
        process_limit: None,
        has_steady_unbounded: has_steady_unbounded(&by, &samples),
        by,
    };
    if rise > 0 {
        growth.followed_share = (growth.followed_bytes() as f64 / rise as f64).clamp(0.0, 1.0);
    }
    growth
}

/// Returns whether the memory that has no bound, and that the kernel does not take back, grows
/// steadily by itself.
fn has_steady_unbounded(by: &[GrowthPart], samples: &[(f64, OwnerBytes)]) -> bool {
    let is_other = |(key, _): &(&Key, &Part)| {
        let part = by.iter().find(|part| {
            (part.owner.as_str(), &part.name, part.kept, part.free)
                == (key.0, &key.1, key.2 == PartKind::Kept, key.2 == PartKind::Free)
        });
        part.is_some_and(|part| part.bound_bytes.is_some() || part.is_taken_back())
    };
    let readings = samples.iter().map(|(t_s, all)| {
        let others = all.parts.iter().filter(is_other).map(|(_, part)| part.bytes);
        (*t_s, all.rss_bytes.saturating_sub(others.sum()))
    });
    course(&readings.collect::<Vec<_>>()) == GrowthCourse::Steady
}

/// Returns the open files in memory in the first and in the last sample in which they were read.
fn open_memory(samples: &[(f64, OwnerBytes)]) -> Option<[OpenMemory; 2]> {
    let mut known = samples.iter().filter_map(|(_, all)| all.open_memory.as_ref());
    let before = known.next()?;
    Some([before.clone(), known.next_back().unwrap_or(before).clone()])
}

/// Returns the growth of one part between the first and the last sample, and its rate.
fn growth_part(key: &Key, ends: [&OwnerBytes; 2], rated: &[&(f64, OwnerBytes)]) -> GrowthPart {
    let [old, new] = ends.map(|all| all.parts.get(key).copied());
    let bytes_of = |part: Option<Part>| part.unwrap_or_default().bytes as i64;
    GrowthPart {
        owner: key.0.to_owned(),
        name: key.1.clone(),
        kept: key.2 == PartKind::Kept,
        free: key.2 == PartKind::Free,
        count: new.and_then(|part| part.count),
        more: new.and_then(|new| {
            let old = old.map_or(Some(0), |old| old.count)?;
            Some(new.count? as i64 - old as i64)
        }),
        bytes: bytes_of(new) - bytes_of(old),
        bytes_per_hour: per_hour(rated, |all| bytes_of(all.parts.get(key).copied()) as f64),
        bound_bytes: None,
    }
}

/// Returns the rate of an owner, in bytes an hour.
fn per_hour(samples: &[&(f64, OwnerBytes)], bytes: impl Fn(&OwnerBytes) -> f64) -> i64 {
    let series: Vec<(f64, f64)> = samples.iter().map(|(t_s, all)| (*t_s, bytes(all))).collect();
    (line_slope(&series) * 3600.0) as i64
}

/// Returns the names that may be missing in a sample only because it has the largest ones, if their
/// memory there may be more than a small part of what they have in another sample.
fn unsure_names(samples: &[(f64, OwnerBytes)]) -> BTreeSet<Key> {
    let mut keys: BTreeSet<&Key> = samples.iter().flat_map(|(_, all)| all.parts.keys()).collect();
    keys.retain(|key| {
        let bytes = |(_, all): &(f64, OwnerBytes)| all.parts.get(key).map_or(0, |part| part.bytes);
        let most = samples.iter().map(bytes).max().unwrap_or(0);
        let is_cut = |(_, all): &(f64, OwnerBytes)| {
            let has = |kind| all.parts.contains_key(&(key.0, key.1.clone(), kind));
            let hidden =
                all.cut.get(key.0).filter(|_| !has(PartKind::Usual) && !has(PartKind::Kept));
            hidden.is_some_and(|bytes| *bytes as f64 > MAX_HIDDEN * most as f64)
        };
        key.1.is_some() && samples.iter().any(is_cut)
    });
    keys.into_iter().cloned().collect()
}

impl OwnerBytes {
    /// Adds up the owners of an observation.
    pub(super) fn new(observation: &Observation) -> Self {
        let ledger = &observation.ledger;
        let mut all = Self {
            rss_bytes: ledger.total(),
            page_tables_bytes: observation.page_tables_bytes,
            hugetlb_bytes: observation.hugetlb_bytes,
            open_files: observation.open_files,
            open_memory: observation.open_memory.clone(),
            bounds: Bounds::new(observation),
            ..Self::default()
        };
        let parts = parts(ledger, &observation.managers);
        let is_named = |part: &&LedgerPart| part.manager.is_some() && part.state.is_none();
        all.note_names(Owner::Runtime, parts.iter().filter(is_named).map(|part| part.bytes));
        for LedgerPart { owner, manager, state, bytes, .. } in parts {
            match (owner, state) {
                (_, Some(State::Allocated)) => {
                    all.add((Owner::Allocated.key(), manager, PartKind::Usual), bytes, None);
                }
                (_, Some(State::Free)) => {
                    all.add((owner.key(), manager, PartKind::Free), bytes, None);
                }
                (Owner::Shared, _) => all.add_named(owner, bytes, &observation.shared, 0),
                (Owner::File, _) => {
                    all.add_named(owner, bytes, &observation.files, observation.kept_file_bytes);
                }
                (Owner::ProgramData, _) => {
                    all.add_named(owner, bytes, &observation.changed_files, 0);
                }
                (Owner::AnonymousOther, _) => {
                    let named = &observation.named_anonymous;
                    all.add_named(owner, bytes, named, 0);
                    let named: u64 = named.iter().map(|part| part.mappings).sum();
                    let mappings = observation.anonymous_mappings;
                    let rest = all.parts.get_mut(&(owner.key(), None, PartKind::Usual));
                    if let Some(part) = rest {
                        part.count = mappings.map(|count| count.saturating_sub(named));
                    }
                }
                _ => {
                    let count = match owner {
                        Owner::Stacks => Some(observation.threads),
                        _ => None,
                    };
                    all.add((owner.key(), manager, PartKind::Usual), bytes, count);
                }
            }
        }
        all.separate_lazily_freed(observation);
        all
    }

    /// Makes lazily freed memory a part of its own.
    fn separate_lazily_freed(&mut self, observation: &Observation) {
        let lazily_freed = LazilyFreed::new(observation);
        for (owner, bytes) in &lazily_freed.by_owner {
            let mut left = *bytes;
            let of_owner = self.parts.iter_mut().filter(|(key, _)| key.0 == owner.key());
            let mut of_owner: Vec<(&Key, &mut Part)> = of_owner.collect();
            // Memory that is free according to the runtime itself comes first.
            of_owner.sort_by_key(|(key, _)| key.2 != PartKind::Free);
            for (_, part) in of_owner {
                let taken = part.bytes.min(left);
                (part.bytes, left) = (part.bytes - taken, left - taken);
            }
            self.add((LAZILY_FREED, None, PartKind::Usual), bytes - left, None);
        }
    }

    /// Notes the smallest of the names of an owner, if there may be others.
    fn note_names(&mut self, owner: Owner, bytes: impl Iterator<Item = u64>) {
        let bytes: Vec<u64> = bytes.collect();
        if bytes.len() >= MAX_NAMED {
            self.cut.insert(owner.key(), bytes.into_iter().min().unwrap_or(0));
        }
    }

    /// Adds the bytes of an owner, of which the largest parts have names, and of which the kernel
    /// cannot take back `kept_bytes`.
    fn add_named(&mut self, owner: Owner, bytes: u64, parts: &[NamedMemory], kept_bytes: u64) {
        const KINDS: [PartKind; 2] = [PartKind::Usual, PartKind::Kept];
        self.note_names(owner, parts.iter().map(|part| part.bytes));
        let kept = kept_bytes.min(bytes);
        let mut rest = [bytes - kept, kept];
        for part in parts {
            let kept = part.kept_bytes.min(part.bytes);
            let bytes = [part.bytes - kept, kept];
            for ((kind, bytes), rest) in KINDS.into_iter().zip(bytes).zip(&mut rest) {
                let bytes = bytes.min(*rest);
                *rest -= bytes;
                let key = (owner.key(), Some(part.name.clone()), kind);
                self.add(key, bytes, Some(part.mappings));
            }
        }
        for (kind, rest) in KINDS.into_iter().zip(rest) {
            self.add((owner.key(), None, kind), rest, None);
        }
    }

    /// Returns the same memory without these names.
    fn without(&self, names: &BTreeSet<Key>) -> Self {
        let mut all = Self { parts: BTreeMap::new(), ..self.clone() };
        for (key, part) in &self.parts {
            if names.contains(key) {
                all.parts.entry((key.0, None, key.2)).or_default().bytes += part.bytes;
            } else {
                let own = all.parts.entry(key.clone()).or_default();
                own.bytes += part.bytes;
                own.count = own.count.max(part.count);
            }
        }
        all
    }

    fn add(&mut self, key: Key, bytes: u64, count: Option<u64>) {
        if bytes > 0 {
            let part = self.parts.entry(key).or_default();
            part.bytes += bytes;
            part.count = part.count.max(count);
        }
    }
}

/// Lazily freed memory (`MADV_FREE`). The kernel says how much it is, but not of which owner: it is
/// taken from those that free memory lazily, one after the other.
pub(super) struct LazilyFreed {
    by_owner: Vec<(Owner, u64)>,
}

impl LazilyFreed {
    /// Divides the lazily freed memory of an observation.
    pub(super) fn new(observation: &Observation) -> Self {
        const ORDER: [Owner; 6] = [
            Owner::Reclaimable,
            Owner::Locked,
            Owner::Cached,
            Owner::Runtime,
            Owner::AnonymousOther,
            Owner::Fragmented,
        ];
        let mut left = observation.lazyfree_bytes.unwrap_or(0);
        let of_owner = |owner: Owner| {
            let bytes = observation.ledger.bytes(owner).min(left);
            left -= bytes;
            (owner, bytes)
        };
        Self { by_owner: ORDER.into_iter().map(of_owner).collect() }
    }

    /// Returns what is lazily freed of some owners, in bytes.
    pub(super) fn of(&self, owners: &[Owner]) -> u64 {
        let of_owners = self.by_owner.iter().filter(|(owner, _)| owners.contains(owner));
        of_owners.map(|(_, bytes)| bytes).sum()
    }

    /// Returns all of it, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.by_owner.iter().map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use lowtide_model::inspection::Manager;
    use lowtide_model::ledger::{Ledger, WalkedRuntime};

    use super::super::words::sentence;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns an observation with these owners, in MiB.
    pub(crate) fn observed(rows: &[(Owner, u64)], managers: &[(&str, u64)]) -> Observation {
        let mut ledger = Ledger::default();
        rows.iter().for_each(|(owner, mib)| ledger.add(*owner, mib * MIB));
        let manager = |(name, mib): &(&str, u64)| Manager {
            name: (*name).to_owned(),
            bytes: mib * MIB,
            estimated: false,
        };
        let managers = managers.iter().map(manager).collect();
        let rss_bytes = ledger.total();
        Observation { ledger, managers, rss_bytes, threads: 3, ..Observation::default() }
    }

    /// Returns the growth between two observations a minute apart.
    pub(crate) fn growth_between(before: &Observation, after: &Observation) -> Growth {
        growth(&[(0.0, OwnerBytes::new(before)), (60.0, OwnerBytes::new(after))], 0.0)
    }

    #[test]
    fn a_name_that_enters_the_largest_ones_has_not_grown_from_nothing() {
        let shared = |last: (&str, u64)| {
            let one = |place| NamedMemory::new(format!("/memfd:{place:02}"), 9 * MIB, 1);
            let mut all: Vec<NamedMemory> = (0..MAX_NAMED - 1).map(one).collect();
            all.push(NamedMemory::new(last.0.to_owned(), last.1 * MIB, 1));
            all
        };
        let mut before = observed(&[(Owner::Shared, 9 * 15 + 8 + 7)], &[]);
        let mut after = observed(&[(Owner::Shared, 9 * 15 + 8 + 10)], &[]);
        (before.shared, after.shared) = (shared(("/memfd:a", 8)), shared(("/memfd:b", 10)));
        let found = growth_between(&before, &after);
        let by: Vec<_> = found.by.iter().map(|part| (part.name.as_deref(), part.bytes)).collect();
        assert_eq!(by, [(None, 3 * MIB as i64)], "{found:?}");
    }

    #[test]
    fn a_name_that_grows_far_above_the_ones_that_hide_it_has_grown() {
        let files = |last: (&str, u64)| {
            let one = |place| NamedMemory::new(format!("/lib/{place:02}.so"), MIB, 1);
            let mut all: Vec<NamedMemory> = (0..MAX_NAMED - 1).map(one).collect();
            all.push(NamedMemory::new(last.0.to_owned(), last.1 * MIB, 1));
            all
        };
        let mut before = observed(&[(Owner::File, 16)], &[]);
        let mut after = observed(&[(Owner::File, 15 + 200)], &[]);
        (before.files, after.files) = (files(("/lib/a.so", 1)), files(("/data", 200)));
        let found = growth_between(&before, &after);
        assert_eq!(found.by[0].name.as_deref(), Some("/data"), "{found:?}");
        assert!(found.by.iter().all(|part| part.bytes >= -(MIB as i64)), "{found:?}");
    }

    #[test]
    fn memory_that_the_program_mapped_grows_by_the_names_that_it_gave() {
        let with = |frames: u64, mappings: u64, others: u64| {
            let mut found = observed(&[(Owner::AnonymousOther, frames + others)], &[]);
            found.named_anonymous =
                vec![NamedMemory::new("frames".to_owned(), frames * MIB, mappings)];
            found.anonymous_mappings = Some(mappings + 2);
            found
        };
        let found = growth_between(&with(10, 1, 5), &with(90, 9, 6));
        let parts: Vec<_> =
            found.by.iter().map(|part| (part.name.as_deref(), part.more, part.bytes)).collect();
        let expected = [(Some("frames"), Some(8), 80 * MIB as i64), (None, Some(0), MIB as i64)];
        assert_eq!(parts, expected, "{found:?}");
    }

    #[test]
    fn free_memory_of_a_walked_runtime_is_a_part_of_its_own() {
        let with = |free: u64| {
            let mut observation = observed(&[(Owner::Allocated, 4)], &[]);
            for (state, mib) in [(State::Allocated, 20), (State::Free, free)] {
                observation.ledger.add_walked(WalkedRuntime::V8, state, mib * MIB);
            }
            observation
        };
        let found = growth_between(&with(2), &with(12));
        let parts: Vec<_> = found.by.iter().map(|part| (part.free, part.bytes)).collect();
        assert_eq!(parts, [(true, 10 * MIB as i64)], "{found:?}");
        assert!(sentence(&found).ends_with(": 10.0 MiB in free memory of V8"));
    }

    #[test]
    fn lazily_freed_memory_is_a_part_of_its_own_and_leads_to_no_limit() {
        let with = |owner: Owner, mib: u64| {
            let mut found = observed(&[(Owner::Allocated, 4), (owner, mib)], &[]);
            found.lazyfree_bytes = Some(mib * MIB);
            found
        };
        for owner in [Owner::AnonymousOther, Owner::Reclaimable, Owner::Runtime] {
            let mut found = growth_between(&with(owner, 2), &with(owner, 82));
            assert_eq!((found.kept_bytes(), found.by.len()), (0, 1), "{found:?}");
            let said = sentence(&found);
            assert!(said.ends_with(": 80.0 MiB that were freed lazily (MADV_FREE)"), "{said}");
            found.course = GrowthCourse::Steady;
            found.set_limit(Some(1 << 40), Some(0));
            assert_eq!(found.seconds_to_limit, None);
        }
    }

    #[test]
    fn lazily_freed_memory_that_is_used_again_is_growth() {
        let with = |lazy_mib: u64| {
            let mut found = observed(&[(Owner::AnonymousOther, 100)], &[]);
            found.lazyfree_bytes = Some(lazy_mib * MIB);
            found
        };
        let found = growth_between(&with(80), &with(20));
        assert_eq!(found.kept_bytes(), 60 * MIB as i64);
        let by: Vec<_> = found.by.iter().map(|part| (part.owner.as_str(), part.bytes)).collect();
        let mib = 60 * MIB as i64;
        assert_eq!(by, [("anonymous_other", mib), (LAZILY_FREED, -mib)]);
    }

    #[test]
    fn the_parts_of_growth_add_up_to_the_growth_of_rss() {
        let rows = |allocated, runtime, shared, file, stacks| {
            [
                (Owner::Allocated, allocated),
                (Owner::Runtime, runtime),
                (Owner::Shared, shared),
                (Owner::File, file),
                (Owner::Stacks, stacks),
            ]
        };
        let mut before = observed(&rows(10, 30, 5, 10, 8), &[("PHP", 20)]);
        let mut after = observed(&rows(22, 517, 105, 60, 4), &[("PHP", 507)]);
        let named =
            |name: &str, mib, count| vec![NamedMemory::new(name.to_owned(), mib * MIB, count)];
        before.shared = named("/memfd:screen", 5, 1);
        after.shared = named("/memfd:screen", 100, 20);
        after.files = named("/data.mdb", 45, 1);
        let found = growth_between(&before, &after);
        let sum: i64 = found.by.iter().map(|part| part.bytes).sum();
        assert_eq!(sum, found.rss_bytes[1] as i64 - found.rss_bytes[0] as i64);
        let part = |owner: &str, name: Option<&str>| {
            let is_it = |p: &&GrowthPart| p.owner == owner && p.name.as_deref() == name;
            found.by.iter().find(is_it).map(|part| (part.bytes / MIB as i64, part.more))
        };
        assert_eq!(part("runtime", Some("PHP")), Some((487, None)));
        assert_eq!(part("shared", Some("/memfd:screen")), Some((95, Some(19))));
        assert_eq!(part("file", Some("/data.mdb")), Some((45, Some(1))));
        assert_eq!(part("file", None), Some((5, None)));
        assert_eq!(
            (part("shared", None), part("stacks", None)),
            (Some((5, None)), Some((-4, Some(0))))
        );
        assert_eq!(part("allocated", None), Some((12, None)));
        assert!((found.followed_share - 12.0 / 645.0).abs() < 1e-3);
        assert_eq!(found.rss_bytes_per_hour, 645 * MIB as i64 * 60);
    }
}

//! The trend of each size.

use std::collections::BTreeMap;
use std::ops::Range;

use lowtide_model::survivors::{LARGE_BYTES, PARTS, Snapshot};

use super::history::{CohortCounts, History, counts_in};
use super::later_rate::{LaterRate, MIN_LATER_RATE};
use crate::growth::{MIN_SAMPLES, rising};

/// Minimum number of cohorts with survivors for a size to grow.
pub(super) const MIN_COHORTS: usize = 4;
/// Minimum number of observed survivors for a size to grow.
const MIN_SURVIVORS: u64 = 10;
/// The same of large blocks, of which a few are much memory.
const MIN_LARGE_SURVIVORS: u64 = 4;
/// The same of lost blocks that are large, and minimum number of cohorts that have them: that
/// nothing leads to them is more certain than that others accumulate.
const MIN_LARGE_LOST: u64 = 3;
const MIN_LARGE_LOST_COHORTS: usize = 3;
/// Minimum bytes of survivors that are noticed, and the same as a part of all blocks in use.
pub(super) const MIN_NOTICEABLE_BYTES: u64 = 1 << 20;
const MIN_NOTICEABLE_PART: f64 = 0.02;
/// Minimum part of the survivors that must remain from when they were half as old.
const MIN_SURVIVAL: f64 = 0.9;
/// Minimum net increase of blocks of the survivors' age, as a part of the survivors: below it, they
/// replace others.
const MIN_NET: f64 = 0.5;
/// Minimum growth of a backlog, as a part of its first number of blocks.
const MIN_RISE: f64 = 0.1;
/// The same in standard deviations of the number of blocks that come and go independently, which is
/// Poisson-distributed.
const MIN_DEVIATIONS: f64 = 6.0;
/// Maximum growth of the number of all blocks, as a multiple of the survivors, which explain about
/// half of a steady growth: above it, most of the growth is a backlog.
const MAX_UNEXPLAINED: f64 = 4.0;
/// Minimum part of the survivors that are not lost, for them to be reported.
const MIN_PART: f64 = 0.1;
/// Part of the age from which on a cohort is old enough: snapshots are taken some milliseconds
/// early or late.
const ABOUT: f64 = 0.98;
/// Maximum ratio of neighbouring sizes that belong together, and of their rates unless they differ
/// by chance.
const MAX_STEP: f64 = 1.25;
const MAX_RATIO: f64 = 3.0;
/// The 97.5 % quantile of Student's distribution with 15 degrees of freedom: one less than the
/// number of parts.
const QUANTILE: f64 = 2.131;

/// The kind of a trend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrendKind {
    /// It grows steadily.
    Growing,
    /// Its older blocks are freed, but the number of its blocks rises.
    Backlog,
    /// Its growth slows down, or its older blocks are freed. Of lost blocks: hardly any were added
    /// of late.
    Filling,
    /// It does not grow.
    Level,
}

/// The trend of the blocks of neighbouring sizes. Numbers are estimates for the whole heap.
#[derive(Debug, Clone, PartialEq)]
pub struct Trend {
    /// The kind.
    pub kind: TrendKind,
    /// Their size classes.
    pub classes: Vec<u16>,
    /// The smallest and the largest block, in bytes.
    pub size_bytes: [u64; 2],
    /// Number of survivors.
    pub count: f64,
    /// Bytes of the survivors.
    pub bytes: f64,
    /// Survivors per second.
    pub per_s: f64,
    /// The 95 % interval of that; both ends are equal if the whole heap was counted.
    pub per_s_interval: [f64; 2],
    /// The part of the survivors that remains from when they were half as old.
    pub survival: Option<f64>,
    /// Net increase of the blocks of the survivors' age.
    pub net: f64,
    /// Number of cohorts that are old enough.
    pub cohorts: usize,
    /// Number of these with a survivor.
    pub growing_cohorts: usize,
    /// The rate of the later cohorts, as a part of the rate of the first.
    pub later_rate: Option<f64>,
    /// Whether the survivors are a noticeable part of all blocks in use.
    pub is_noticeable: bool,
    /// The ages of the youngest and the oldest survivor, in seconds.
    pub age_s: [f64; 2],
    /// The number of all blocks at first and now, if it is a backlog. `count`, `bytes` and `per_s`
    /// are then those of all blocks.
    pub backlog: Option<[f64; 2]>,
    /// The cohorts whose blocks count as its survivors.
    pub old: Range<u8>,
    /// Whether it started late: survivors are then younger than half of the run.
    pub is_late: bool,
}

impl Trend {
    /// Returns the mean size of a survivor, in bytes.
    pub fn mean_bytes(&self) -> f64 {
        self.bytes / self.count.max(1.0)
    }

    /// Returns the same trend with another rate, in blocks per second.
    fn at_rate(self, per_s: f64) -> Self {
        let share = per_s / self.per_s;
        Self { per_s, per_s_interval: self.per_s_interval.map(|end| end * share), ..self }
    }

    /// Returns the growth in bytes per hour, with its interval.
    pub fn bytes_per_hour(&self) -> (u64, [u64; 2]) {
        let scale = |per_s: f64| (per_s * self.mean_bytes() * 3600.0).max(0.0) as u64;
        (scale(self.per_s), self.per_s_interval.map(scale))
    }
}

/// Returns the cohorts whose blocks count as survivors: those that are old enough, and were
/// observed twice since.
pub fn survivors(cohorts: &[f64], older_s: f64) -> Range<u8> {
    let now = cohorts.last().copied().unwrap_or(0.0);
    let old = cohorts.iter().skip(1).take_while(|end| now - **end >= older_s * ABOUT).count();
    let seen_twice = cohorts.len().saturating_sub(3);
    1..1 + old.min(seen_twice) as u8
}

/// Survivors to which no pointer was found, in the sampled part of the heap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostCounts {
    /// Their number, by class and cohort.
    pub counts: BTreeMap<u16, BTreeMap<u8, u64>>,
    /// The survivors among them by class, in each part of the sampled places.
    pub parts: BTreeMap<u16, [u64; PARTS]>,
    /// The same, with those that are younger than survivors. They cannot be freed either.
    pub parts_of_all: BTreeMap<u16, [u64; PARTS]>,
}

/// Returns the trends of the sizes with survivors, and of backlogs, the one that takes most memory
/// first. Leaves out survivors that are `lost`.
pub fn trends(history: &History<'_>, lost: &LostCounts) -> Vec<Trend> {
    let old = survivors(history.cohorts, history.older_s);
    let Some(now) = history.now() else { return Vec::new() };
    let mut seen: Seen = Seen::new();
    for found in now.counts.iter().filter(|found| old.contains(&found.cohort)) {
        *seen.entry(found.class).or_default().entry(found.cohort).or_default() +=
            u64::from(found.count);
    }
    let trends = joined(history, &seen).into_iter();
    let trends = trends.filter_map(|classes| trend(history, &old, classes));
    let trends = trends.chain(trends_without_survivors(history, &seen));
    by_bytes(trends.filter_map(|trend| match trend.kind {
        TrendKind::Backlog => (!is_lost(history, &trend, lost)).then_some(trend),
        _ => without_lost(history, trend, lost),
    }))
}

/// Returns the trends of the sizes with lost survivors, the one that takes most memory first.
pub fn lost_trends(history: &History<'_>, lost: &LostCounts) -> Vec<Trend> {
    let old = survivors(history.cohorts, history.older_s);
    // Those of the newest snapshot may be new blocks that the program holds by now.
    let all = 1..(history.cohorts.len().saturating_sub(1) as u8).max(1);
    let in_cohorts = |counts: &BTreeMap<u8, u64>| -> BTreeMap<u8, u64> {
        counts.range(all.clone()).map(|(cohort, count)| (*cohort, *count)).collect()
    };
    let seen: Seen = lost
        .counts
        .iter()
        .map(|(class, counts)| (*class, in_cohorts(counts)))
        .filter(|(_, counts)| !counts.is_empty())
        .collect();
    let trends = joined(history, &seen).into_iter();
    by_bytes(trends.filter_map(|classes| {
        let of_old = lost_trend(history, &old, classes.clone(), lost, &lost.parts);
        // The leak may have started late.
        match of_old.filter(|trend| trend.kind != TrendKind::Level) {
            None if old.len() >= MIN_COHORTS => {
                let late = lost_trend(history, &all, classes, lost, &lost.parts_of_all);
                late.map(|trend| Trend { is_late: true, ..trend })
            }
            None => lost_trend(history, &old, classes, lost, &lost.parts),
            found => found,
        }
    }))
}

fn by_bytes(trends: impl Iterator<Item = Trend>) -> Vec<Trend> {
    let mut found: Vec<Trend> = trends.collect();
    found.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
    found
}

/// Observed survivors, by class and cohort.
type Seen = BTreeMap<u16, BTreeMap<u8, u64>>;

/// Returns whether there are enough survivors for a growth, whatever their size.
fn is_enough(seen: u64, cohorts: usize) -> bool {
    cohorts >= MIN_COHORTS && seen >= MIN_SURVIVORS
}

/// Returns whether some bytes are a noticeable part of all blocks in use.
fn is_noticeable(history: &History<'_>, bytes: f64) -> bool {
    bytes >= (MIN_NOTICEABLE_PART * history.in_use_bytes()).max(MIN_NOTICEABLE_BYTES as f64)
}

/// Returns classes with survivors: a class by itself if it has enough of them, and otherwise
/// together with neighbours that grow alike.
fn joined(history: &History<'_>, seen: &Seen) -> Vec<Vec<u16>> {
    let mut groups: Vec<(Vec<u16>, u64, bool)> = Vec::new();
    for (class, cohorts) in seen {
        let count: u64 = cohorts.values().sum();
        let sizes = history.sizes_of(*class);
        let is_alone = is_enough(count, cohorts.values().filter(|count| **count > 0).count());
        let joins = groups.last().is_some_and(|(classes, sum, last_is_alone)| {
            let largest = classes.last().map_or(0, |last| history.sizes_of(*last).largest_bytes);
            let mean = *sum as f64 / classes.len() as f64;
            let (low, high) = (mean.min(count as f64), mean.max(count as f64));
            !is_alone
                && !last_is_alone
                && sizes.smallest_bytes as f64 <= largest as f64 * MAX_STEP
                && (high <= low * MAX_RATIO || high - low <= 3.0 * (high + low).sqrt())
        });
        match groups.last_mut().filter(|_| joins) {
            Some((classes, sum, _)) => {
                classes.push(*class);
                *sum += count;
            }
            None => groups.push((vec![*class], count, is_alone)),
        }
    }
    groups.into_iter().map(|(classes, ..)| classes).collect()
}

/// Returns the trend of some classes with survivors; that of their growth if it started late, and
/// that of a backlog if most of the growth is one.
fn trend(history: &History<'_>, old: &Range<u8>, classes: Vec<u16>) -> Option<Trend> {
    let of_old = trend_of(history, old, classes.clone(), history.parts);
    let found = match of_old {
        Some(found) if found.kind != TrendKind::Level => Some(found),
        level => match late(history, &classes) {
            Some(late) if late.kind != TrendKind::Level => Some(late),
            late => level.or(late),
        },
    };
    let survival = found.as_ref().and_then(|found| found.survival);
    // Blocks that accumulate explain the growth, whatever else is freed.
    let accumulates = found.as_ref().is_some_and(|found| {
        found.kind != TrendKind::Level
            && survival.is_none_or(|survival| survival >= MIN_SURVIVAL)
            && !is_little(history, &classes, found.count)
    });
    let waits = !accumulates && is_freed(history, &classes, survival);
    match backlog(history, &classes).filter(|_| waits) {
        Some(backlog) => Some(Trend { survival, ..backlog }),
        None => found,
    }
}

/// Returns whether survivors are little beside the growth of the number of all blocks.
fn is_little(history: &History<'_>, classes: &[u16], survivors: f64) -> bool {
    let all = |snapshot: Option<&Snapshot>| {
        snapshot.map_or(0.0, |snapshot| counts_in(snapshot, classes).values().sum())
    };
    all(history.now()) - all(history.snapshots.first()) > survivors * MAX_UNEXPLAINED
}

/// Returns the trend of the survivors of some classes.
fn trend_of(
    history: &History<'_>,
    old: &Range<u8>,
    classes: Vec<u16>,
    parts: &BTreeMap<u16, [u64; PARTS]>,
) -> Option<Trend> {
    let now = history.now()?;
    let counts = counts_in(now, &classes);
    let survivors = Survivors::new(history, old, &classes, &counts, parts)?;
    let survival = survival(history, old, &classes);
    let later = LaterRate::new(history, old, &counts);
    let later_rate = later.and_then(|later| later.share());
    let net = net(history, old, &classes, &counts);
    let grows =
        survivors.are_enough(MIN_COHORTS, MIN_LARGE_SURVIVORS) && net >= survivors.count * MIN_NET;
    let is_steady = survival.is_none_or(|survival| survival >= MIN_SURVIVAL)
        && later_rate.is_none_or(|rate| rate >= MIN_LATER_RATE);
    let kind = match (grows, is_steady) {
        (true, true) => TrendKind::Growing,
        (true, false) => TrendKind::Filling,
        (false, _) => TrendKind::Level,
    };
    let found = survivors.trend(history, old, classes)?;
    let trend = Trend { kind, survival, later_rate, net, ..found };
    Some(match later.filter(|later| later.is_slower()) {
        Some(later) if kind == TrendKind::Filling => trend.at_rate(later.per_s()),
        _ => trend,
    })
}

/// Returns the trend of some classes if their growth started late: blocks of earlier cohorts were
/// never there. Survivors are then the blocks that are older than half of the time since.
fn late(history: &History<'_>, classes: &[u16]) -> Option<Trend> {
    let lasting = lasting(history, classes);
    let first = lasting.range(1..).map(|(cohort, _)| *cohort).next().filter(|first| *first > 1)?;
    // It started within the first cohort, whose rate is too low.
    let start = first + 1;
    let since_s = history.now_s() - history.end_s(first);
    let old = start..survivors(history.cohorts, since_s / 2.0).end.max(start);
    let parts = parts_of(history, &old, classes);
    let trend = trend_of(history, &old, classes.to_vec(), &parts)?;
    Some(Trend { is_late: true, ..trend })
}

/// Returns the blocks of some cohorts in each part of the sampled places, as an estimate from all
/// blocks that were allocated since the first snapshot.
fn parts_of(
    history: &History<'_>,
    old: &Range<u8>,
    classes: &[u16],
) -> BTreeMap<u16, [u64; PARTS]> {
    let now = history.now();
    let of_class = |class: &u16| {
        let parts = history.parts_of_all.get(class)?;
        let counts = now?.counts.iter().filter(|found| found.class == *class);
        let count: u64 =
            counts.filter(|found| old.contains(&found.cohort)).map(|f| u64::from(f.count)).sum();
        let all = parts.iter().sum::<u64>().max(1);
        Some((*class, parts.map(|part| (part * count).div_ceil(all))))
    };
    classes.iter().filter_map(of_class).collect()
}

/// Returns the largest number of blocks of each cohort that outlived an interval between two
/// snapshots. Those of cohort 0 existed before.
fn lasting(history: &History<'_>, classes: &[u16]) -> CohortCounts {
    let mut largest = CohortCounts::new();
    for snapshot in history.snapshots {
        for (cohort, count) in counts_in(snapshot, classes) {
            if cohort == 0 || snapshot.t_s > history.end_s(cohort) {
                let largest = largest.entry(cohort).or_default();
                *largest = count.max(*largest);
            }
        }
    }
    largest
}

/// Returns whether a part of the blocks of some classes was freed, or changed, after it had
/// outlived an interval between two snapshots. `survival` is that of survivors.
fn is_freed(history: &History<'_>, classes: &[u16], survival: Option<f64>) -> bool {
    let now = history.now().map(|now| counts_in(now, classes)).unwrap_or_default();
    let lasting = lasting(history, classes);
    let left =
        |cohort: &u8, before: &f64| before - now.get(cohort).copied().unwrap_or(0.0).min(*before);
    let gone: f64 = lasting.iter().map(|(cohort, before)| left(cohort, before)).sum();
    survival.is_some_and(|survival| survival < MIN_SURVIVAL)
        || gone > (1.0 - MIN_SURVIVAL) * lasting.values().sum::<f64>()
}

/// Returns the trend of the blocks of some classes if their number rises, over the whole run and in
/// its newer half.
fn backlog(history: &History<'_>, classes: &[u16]) -> Option<Trend> {
    let all = |snapshot: &Snapshot| counts_in(snapshot, classes).values().sum::<f64>();
    let totals: Vec<(f64, f64)> =
        history.snapshots.iter().map(|snapshot| (snapshot.t_s, all(snapshot))).collect();
    let ((first_s, first), (last_s, count)) = (*totals.first()?, *totals.last()?);
    let middle_s = f64::midpoint(first_s, last_s);
    // Snapshots of a large heap are rare, and few of them are in the newer half.
    let enough = totals.len().saturating_sub(MIN_SAMPLES);
    let newer = &totals[totals.partition_point(|(t_s, _)| *t_s < middle_s).min(enough)..];
    let per_s = rising(&totals).filter(|_| rising(newer).is_some())?;
    let rise = per_s * (last_s - first_s);
    let chance = MIN_DEVIATIONS * first.max(count).sqrt();
    if rise < (MIN_SURVIVORS as f64).max(first * MIN_RISE).max(chance) {
        return None;
    }
    let now = history.now()?;
    let sizes = classes.iter().map(|class| (*class, history.sizes_of(*class)));
    let bytes = sizes.clone().map(|(class, sizes)| sizes.bytes as f64 / now.share_of(class)).sum();
    Some(Trend {
        kind: TrendKind::Backlog,
        size_bytes: [
            sizes.clone().map(|(_, sizes)| sizes.smallest_bytes).min()?,
            sizes.map(|(_, sizes)| sizes.largest_bytes).max()?,
        ],
        classes: classes.to_vec(),
        count,
        bytes,
        per_s,
        per_s_interval: [per_s; 2],
        survival: None,
        net: rise,
        cohorts: history.cohorts.len().saturating_sub(1),
        growing_cohorts: 0,
        later_rate: None,
        is_noticeable: is_noticeable(history, bytes),
        age_s: [0.0, history.now_s()],
        backlog: Some([first, count]),
        old: 1..history.cohorts.len() as u8,
        is_late: false,
    })
}

/// Returns the trends of the classes that have no survivors: their growth started late, or all of
/// their blocks are freed before they are that old.
fn trends_without_survivors(history: &History<'_>, seen: &Seen) -> Vec<Trend> {
    let Some(now) = history.now() else { return Vec::new() };
    let mut others = Seen::new();
    for found in now.counts.iter().filter(|found| !seen.contains_key(&found.class)) {
        others.entry(found.class).or_default().insert(found.cohort, u64::from(found.count));
    }
    let nothing = 1..1;
    let groups = joined(history, &others).into_iter();
    groups.filter_map(|classes| trend(history, &nothing, classes)).collect()
}

/// Returns the trend of the lost blocks of some cohorts, none of which can be freed any more.
/// `parts` are the numbers of these blocks.
fn lost_trend(
    history: &History<'_>,
    old: &Range<u8>,
    classes: Vec<u16>,
    lost: &LostCounts,
    parts: &BTreeMap<u16, [u64; PARTS]>,
) -> Option<Trend> {
    let counts = lost_in(history, &classes, lost);
    let survivors = Survivors::new(history, old, &classes, &counts, parts)?;
    let later = LaterRate::new(history, old, &counts);
    let kind = match survivors.are_enough(MIN_LARGE_LOST_COHORTS, MIN_LARGE_LOST) {
        true if later.is_some_and(|later| later.has_stopped()) => TrendKind::Filling,
        true => TrendKind::Growing,
        false => TrendKind::Level,
    };
    let (net, survival) = (survivors.count, Some(1.0));
    let later_rate = later.and_then(|later| later.share());
    Some(Trend { kind, survival, net, later_rate, ..survivors.trend(history, old, classes)? })
}

/// Returns the estimated counts of lost survivors of some classes, by cohort.
fn lost_in(history: &History<'_>, classes: &[u16], lost: &LostCounts) -> CohortCounts {
    let mut counts = CohortCounts::new();
    for class in classes {
        let share = history.now().map_or(1.0, |now| now.share_of(*class));
        for (cohort, count) in lost.counts.get(class).into_iter().flatten() {
            *counts.entry(*cohort).or_default() += *count as f64 / share;
        }
    }
    counts
}

/// Returns whether most of the rise of a backlog is lost blocks, which do not wait for anything.
fn is_lost(history: &History<'_>, trend: &Trend, lost: &LostCounts) -> bool {
    let lost = lost_in(history, &trend.classes, lost);
    lost.range(1..).map(|(_, count)| count).sum::<f64>() > trend.net * MIN_NET
}

/// Returns a trend without the lost survivors; `None` if hardly any others remain.
fn without_lost(history: &History<'_>, trend: Trend, lost: &LostCounts) -> Option<Trend> {
    let lost = lost_in(history, &trend.classes, lost);
    let old = &trend.old;
    let count: f64 = lost.range(old.clone()).map(|(_, count)| count).sum();
    if count == 0.0 {
        return Some(trend);
    }
    let counts = counts_in(history.now()?, &trend.classes);
    let left = |cohort: &u8| {
        let of = |counts: &CohortCounts| counts.get(cohort).copied().unwrap_or(0.0);
        of(&counts) - of(&lost)
    };
    let growing_cohorts = old.clone().filter(|cohort| left(cohort) >= 1.0).count();
    let part = (1.0 - count / trend.count).max(0.0);
    // It is not known whether a block that is allocated between the last snapshot and the search is
    // lost.
    let is_little = part < MIN_PART || !is_enough((trend.count * part) as u64, growing_cohorts);
    let (left_count, net) = (trend.count * part, trend.net - count);
    (!is_little).then(|| Trend {
        kind: if net < left_count * MIN_NET { TrendKind::Level } else { trend.kind },
        count: left_count,
        bytes: trend.bytes * part,
        per_s: trend.per_s * part,
        per_s_interval: trend.per_s_interval.map(|rate| rate * part),
        net,
        growing_cohorts,
        ..trend
    })
}

/// The survivors of some classes.
struct Survivors {
    /// Their number.
    count: f64,
    /// Number of survivors that were observed.
    seen: u64,
    /// The time in which they were allocated, in seconds.
    duration_s: f64,
    /// Number of cohorts that have any.
    cohorts: usize,
    bytes: f64,
    /// See [`Trend::is_noticeable`].
    is_noticeable: bool,
    interval: [f64; 2],
}

impl Survivors {
    fn new(
        history: &History<'_>,
        old: &Range<u8>,
        classes: &[u16],
        counts: &CohortCounts,
        parts: &BTreeMap<u16, [u64; PARTS]>,
    ) -> Option<Self> {
        let now = history.now()?;
        let of = |cohort: u8| counts.get(&cohort).copied().unwrap_or(0.0);
        let count: f64 = old.clone().map(of).sum();
        let duration_s: f64 = old.clone().map(|cohort| history.duration_s(cohort)).sum();
        if count <= 0.0 || duration_s <= 0.0 {
            return None;
        }
        let seen_of = |class: &u16| parts.get(class).map_or(0, |parts| parts.iter().sum::<u64>());
        let bytes_of = |class: &u16| {
            let count = seen_of(class) as f64 / now.share_of(*class);
            count * history.sizes_of(*class).mean_bytes()
        };
        let bytes = classes.iter().map(bytes_of).sum();
        Some(Self {
            count,
            seen: classes.iter().map(seen_of).sum(),
            duration_s,
            cohorts: old.clone().filter(|cohort| of(*cohort) > 0.0).count(),
            bytes,
            is_noticeable: is_noticeable(history, bytes),
            interval: interval(now, classes, count, parts),
        })
    }

    /// Returns whether there are enough of them for a growth. `cohorts` and `seen` are the minimum
    /// numbers if they are large.
    fn are_enough(&self, cohorts: usize, seen: u64) -> bool {
        let is_large = self.bytes >= self.count * LARGE_BYTES as f64;
        is_enough(self.seen, self.cohorts)
            || is_large && self.is_noticeable && self.cohorts >= cohorts && self.seen >= seen
    }

    /// Returns the trend of these survivors, which is level and has no further metrics yet.
    fn trend(&self, history: &History<'_>, old: &Range<u8>, classes: Vec<u16>) -> Option<Trend> {
        let sizes = classes.iter().map(|class| history.sizes_of(*class));
        let (youngest, oldest) = (old.end.saturating_sub(1), old.start.saturating_sub(1));
        Some(Trend {
            kind: TrendKind::Level,
            size_bytes: [
                sizes.clone().map(|sizes| sizes.smallest_bytes).min()?,
                sizes.map(|sizes| sizes.largest_bytes).max()?,
            ],
            classes,
            count: self.count,
            bytes: self.bytes,
            per_s: self.count / self.duration_s,
            per_s_interval: self.interval.map(|count| count / self.duration_s),
            survival: None,
            net: 0.0,
            cohorts: old.len(),
            growing_cohorts: self.cohorts,
            later_rate: None,
            backlog: None,
            is_noticeable: self.is_noticeable,
            age_s: [history.age_s(youngest), history.age_s(oldest)],
            old: old.clone(),
            is_late: false,
        })
    }
}

/// Returns the part of the survivors that remains from when they were half as old, for the older
/// half of the cohorts.
fn survival(history: &History<'_>, old: &Range<u8>, classes: &[u16]) -> Option<f64> {
    let counts = counts_in(history.now()?, classes);
    let (mut left, mut before) = (0.0, 0.0);
    for cohort in old.start..old.start + old.len().div_ceil(2) as u8 {
        let end = *history.cohorts.get(usize::from(cohort))?;
        let half = f64::midpoint(end, history.now_s());
        let snapshot = history.nearest(half, end)?;
        before += counts_in(snapshot, classes).get(&cohort).copied().unwrap_or(0.0);
        left += counts.get(&cohort).copied().unwrap_or(0.0);
    }
    (before > 0.0).then_some(left / before)
}

/// Returns the net increase of the blocks of the survivors' age, since the process had been
/// observed for that long. Blocks that are replaced by others of the same kind do not count.
fn net(history: &History<'_>, old: &Range<u8>, classes: &[u16], now: &CohortCounts) -> f64 {
    let youngest = old.end.saturating_sub(1);
    let Some(earlier) = history.nearest(history.age_s(youngest), 0.0) else { return 0.0 };
    let before = counts_in(earlier, classes).get(&0).copied().unwrap_or(0.0);
    now.range(..old.end).map(|(_, count)| count).sum::<f64>() - before
}

/// Returns the 95 % interval of an estimated number of survivors, from the variance between the
/// parts of the sample.
fn interval(
    now: &Snapshot,
    classes: &[u16],
    count: f64,
    parts_of: &BTreeMap<u16, [u64; PARTS]>,
) -> [f64; 2] {
    let mut parts = [0.0; PARTS];
    for class in classes {
        let (share, counts) = (now.share_of(*class), parts_of.get(class));
        if share < 1.0 {
            for (sum, part) in parts.iter_mut().zip(counts.into_iter().flatten()) {
                *sum += *part as f64 / share;
            }
        }
    }
    let sampled: f64 = parts.iter().sum();
    let mean = sampled / PARTS as f64;
    let variance = parts.iter().map(|part| (part - mean).powi(2)).sum::<f64>() / (PARTS - 1) as f64;
    // The sample is a part of the whole, and was drawn without replacement.
    let share = classes.iter().map(|class| now.share_of(*class)).fold(1.0, f64::min);
    let error = QUANTILE * (variance * PARTS as f64 * (1.0 - share)).sqrt();
    // The observed survivors are a lower bound.
    let seen = sampled * share + (count - sampled);
    [(count - error).max(seen), count + error]
}

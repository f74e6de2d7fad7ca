//! Reconciles the verdict of a search for leaks with the growth of RSS. The search follows only
//! blocks in heaps. Memory can also grow in runtimes, stacks, shared memory and free blocks.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::{Growth, GrowthCourse};
use lowtide_model::inspection::Observation;
use lowtide_model::leaks::{LeakKind, LeakReport, LeakVerdict};
use lowtide_model::ledger::Owner;
use lowtide_model::number::HumanCount;

use crate::growth::{
    beside_and_descendants, bound, count_limits, fate, has_risen, is_taken_back, rose_once_beside,
    sentence,
};

/// Minimum number of readings of RSS that show that a process does not grow.
const MIN_READINGS: usize = 8;
/// What is known of growth that is not steady.
const STOPPED: &str = "the growth is not steady and may have stopped";
/// Minimum part of the growth that groups of blocks must explain.
const EXPLAINED: f64 = 0.5;
/// Maximum free memory between blocks that counts with them, as a multiple of their growth.
const MAX_BETWEEN: f64 = 2.0;
/// Maximum rate of blocks by their sizes, as a multiple of the rate of resident memory, for which
/// the difference is not mentioned.
const MAX_ABOVE: f64 = 1.15;

/// Returns a sentence on the growth of mmapped chunks; `None` if they did not grow.
pub fn large_blocks(before: &Observation, after: &Observation) -> Option<String> {
    let text = |observation: &Observation| {
        let count = observation.mmapped_count;
        let blocks = if count == 1 { "mmapped chunk" } else { "mmapped chunks" };
        format!("{} {blocks}, {}", HumanCount(count), Human(observation.mmapped_bytes))
    };
    (after.mmapped_bytes > before.mmapped_bytes)
        .then(|| format!("{} before; {} now", text(before), text(after)))
}

/// Adds the growth of the process to a report, and changes a verdict that does not cover it.
/// `large` describes large blocks.
pub fn reconcile(report: &mut LeakReport, growth: Growth, large: Option<String>) {
    if growth.course == GrowthCourse::Steady && growth.kept_bytes() > 0 {
        if is_in_held_memory(&growth) && !is_of_blocks(report.verdict.kind) {
            reconcile_held(report, &growth);
        } else {
            reconcile_steady(report, &growth, large);
        }
    } else if report.verdict.kind == LeakKind::Level {
        reconcile_level(report, &growth);
    } else if report.verdict.kind == LeakKind::TooEarly
        && matches!(growth.course, GrowthCourse::Once | GrowthCourse::Little)
    {
        report.verdict.because.insert(0, sentence(&growth));
    } else if growth.course == GrowthCourse::Once
        && (report.verdict.kind.is_growth() || report.verdict.kind == LeakKind::Filling)
    {
        reconcile_once(report, &growth);
    } else if report.verdict.kind == LeakKind::LostBefore && growth.course == GrowthCourse::Once {
        report.verdict.because.insert(0, format!("{}; {STOPPED}", sentence(&growth)));
    }
    if growth.course == GrowthCourse::Level {
        reconcile_reused(report, &growth);
    }
    settle_level(report);
    reconcile_beside(report, &growth);
    reconcile_limit(report, &growth);
    report.growth = Some(growth);
}

/// Returns whether a verdict is on blocks that grow or are lost.
fn is_of_blocks(kind: LeakKind) -> bool {
    kind.is_growth() || kind == LeakKind::LostBefore
}

/// Returns whether growth is mostly free memory that the heap holds, not between blocks in use.
fn is_in_held_memory(growth: &Growth) -> bool {
    const HELD: [Owner; 3] = [Owner::Reclaimable, Owner::Locked, Owner::Cached];
    let held = growth.by.iter().filter(|part| HELD.iter().any(|owner| part.owner == owner.key()));
    held.map(|part| part.bytes).sum::<i64>() * 2 > growth.kept_bytes()
}

/// Sets the verdict on growth of free memory that the heap holds: it says nothing about the time
/// after it is used again.
fn reconcile_held(report: &mut LeakReport, growth: &Growth) {
    let why = "the program can use this free memory again before RSS grows";
    let because = vec![sentence(growth), why.to_owned()];
    report.verdict = LeakVerdict { kind: LeakKind::TooEarly, because };
    (report.bytes_per_hour, report.seconds_to_limit) = (0, None);
}

/// Adds to a verdict on blocks that grow that RSS does not: they use free memory that was resident
/// already, so their rate does not lead to a limit yet.
fn reconcile_reused(report: &mut LeakReport, growth: &Growth) {
    if matches!(report.verdict.kind, LeakKind::Growing | LeakKind::Backlog) {
        let [before, after] = growth.rss_bytes.map(Human);
        let why = format!(
            "RSS did not grow noticeably (from {before} to {after}): these blocks use memory that was free"
        );
        report.verdict.because.insert(0, why);
        report.seconds_to_limit = None;
    }
}

/// Returns the reasons of the largest group whose blocks accumulate, but not for long enough for a
/// verdict.
fn reasons_of_unknown(report: &LeakReport) -> Option<Vec<String>> {
    let groups = report.groups.iter().filter(|group| group.verdict == LeakKind::TooEarly);
    groups.max_by_key(|group| group.bytes).map(|group| group.because.clone())
}

/// Changes the verdict `level` to `too early` if blocks accumulate, but not for long enough.
fn settle_level(report: &mut LeakReport) {
    if report.verdict.kind != LeakKind::Level {
        return;
    }
    if let Some(because) = reasons_of_unknown(report) {
        report.verdict = LeakVerdict { kind: LeakKind::TooEarly, because };
    }
}

/// Changes the verdict `level` if RSS grew in another way than steadily, or by memory that the
/// kernel takes back.
fn reconcile_level(report: &mut LeakReport, growth: &Growth) {
    let (kind, why) = match growth.course {
        _ if is_taken_back(growth) => {
            report.bytes_per_hour = u64::try_from(growth.rss_bytes_per_hour).unwrap_or(0);
            (LeakKind::Elsewhere, fate(growth))
        }
        GrowthCourse::Once => (LeakKind::TooEarly, STOPPED.to_owned()),
        GrowthCourse::Little => (LeakKind::TooEarly, "this is too little for a verdict".to_owned()),
        _ => {
            let [before, after] = growth.rss_bytes.map(Human);
            let why = format!("RSS did not grow noticeably (from {before} to {after})");
            report.verdict.because.push(why);
            return;
        }
    };
    let because = vec![sentence(growth), why];
    report.verdict = LeakVerdict { kind, because };
}

/// Adds the growth of memory beside RSS. The verdict is `elsewhere` if this is most of all growth,
/// unless blocks are lost, or all of it is a count that rose at once, as in a start.
fn reconcile_beside(report: &mut LeakReport, growth: &Growth) {
    let mut beside = beside_and_descendants(growth);
    if beside.is_empty() {
        return;
    }
    beside.extend(count_limits(growth));
    let (blocks, rate) = (report.bytes_per_hour, rate_beside(growth));
    let LeakVerdict { kind, because } = &mut report.verdict;
    report.seconds_to_limit = growth.seconds_to_limit;
    let is_start = rose_once_beside(growth) && *kind != LeakKind::Level;
    if matches!(kind, LeakKind::Lost | LeakKind::LostBefore) || blocks > rate || is_start {
        because.extend(beside);
        return;
    }
    let also = (blocks > 0 && *kind != LeakKind::Elsewhere)
        .then(|| format!("blocks in use grow as well, by {} an hour", Human(blocks)));
    match *kind {
        LeakKind::Elsewhere => because.splice(0..0, beside).for_each(drop),
        _ => *because = beside.into_iter().chain(also).collect(),
    }
    *kind = LeakKind::Elsewhere;
    report.bytes_per_hour = blocks.saturating_add(rate);
}

/// Takes a limit of the process itself into account, which it may reach by memory that is not
/// resident.
fn reconcile_limit(report: &mut LeakReport, growth: &Growth) {
    let Some(limit) = growth.process_limit else { return };
    report.seconds_to_limit = growth.seconds_to_limit;
    if report.verdict.kind == LeakKind::Level && limit.kind.runtime().is_none() {
        let because = vec![format!(
            "RSS did not grow, but the {} of the process grows by {} an hour, whether it is used or not",
            limit.kind.what(),
            Human(limit.bytes_per_hour)
        )];
        report.verdict = LeakVerdict { kind: LeakKind::Elsewhere, because };
    }
}

/// Returns the growth of all memory beside RSS, in bytes an hour.
fn rate_beside(growth: &Growth) -> u64 {
    let descendants = growth.descendants.as_ref().filter(|_| growth.descendants_rise().is_some());
    let beside = u64::try_from(growth.beside_bytes_per_hour()).unwrap_or(0);
    beside.saturating_add(descendants.map_or(0, |descendants| descendants.bytes_per_hour))
}

/// Adds growth of RSS that was not steady to a verdict on blocks. If the blocks explain little of
/// it, their rate says nothing about the limit, and the verdict is `too early`, unless blocks are
/// lost.
fn reconcile_once(report: &mut LeakReport, growth: &Growth) {
    let blocks = report.bytes_per_hour;
    let of_blocks = blocks as f64 * growth.elapsed_s / 3600.0;
    let is_explained = match report.verdict.kind {
        // Its rate at the end may be 0.
        LeakKind::Filling => is_in_blocks(growth),
        _ => of_blocks >= EXPLAINED * growth.kept_bytes() as f64,
    };
    let LeakVerdict { kind, because } = &mut report.verdict;
    if !is_explained {
        report.seconds_to_limit = None;
        if *kind != LeakKind::Lost {
            (*kind, report.bytes_per_hour) = (LeakKind::TooEarly, 0);
            let also = format!("blocks in use grow by {} an hour", Human(blocks));
            *because = Some(also).filter(|_| blocks > 0).into_iter().collect();
        }
    }
    because.insert(0, format!("{}; {STOPPED}", sentence(growth)));
}

fn reconcile_steady(report: &mut LeakReport, growth: &Growth, large: Option<String>) {
    let rate = growth.lasting_bytes_per_hour();
    let is_explained = report.bytes_per_hour as f64 >= EXPLAINED * rate as f64;
    let is_in_blocks = is_in_blocks(growth);
    let was_level = report.verdict.kind == LeakKind::Level;
    let kind = match report.verdict.kind {
        // It is a fault of the program, wherever else memory grows.
        LeakKind::Lost => LeakKind::Lost,
        LeakKind::Level | LeakKind::LostBefore if is_in_blocks => LeakKind::Growing,
        kind if is_in_blocks => kind,
        kind @ (LeakKind::Growing | LeakKind::Backlog) if is_explained => kind,
        _ => LeakKind::Elsewhere,
    };
    report.verdict.kind = kind;
    let bound = bound(growth).filter(|_| kind != LeakKind::Lost);
    match kind {
        LeakKind::Elsewhere => {
            let blocks = report.bytes_per_hour;
            let also = format!("blocks in use grow as well, by {} an hour", Human(blocks));
            report.verdict.because = Some(also).filter(|_| blocks > 0).into_iter().collect();
        }
        _ if was_level => {
            report.verdict.because = reasons_of_growth(report, large, bound.is_some());
        }
        _ => {
            separate_resident(report, rate);
            name_other_blocks(report, growth);
        }
    }
    report.verdict.because.insert(0, sentence(growth));
    report.bytes_per_hour = growth.lasting_bytes_per_hour().max(0) as u64;
    report.seconds_to_limit = growth.seconds_to_limit;
    if let Some(bound) = bound {
        let LeakVerdict { kind, because } = &mut report.verdict;
        because.insert(1, bound);
        if *kind == LeakKind::Growing {
            *kind = LeakKind::Filling;
        }
    }
}

/// Returns whether growth is mostly in blocks that are followed, and in the free memory between
/// them, of which blocks in use keep a part resident.
fn is_in_blocks(growth: &Growth) -> bool {
    let between = growth.by.iter().filter(|part| part.owner == Owner::Fragmented.key());
    let between: i64 = between.map(|part| part.bytes.max(0)).sum();
    let (blocks, all) = (growth.followed_bytes() as f64, growth.kept_bytes() as f64);
    blocks + (between as f64).min(blocks.max(0.0) * MAX_BETWEEN) >= EXPLAINED * all
}

/// Returns the reasons of growth in blocks in which no size grew steadily. If it has a bound, that
/// is the reason.
fn reasons_of_growth(report: &LeakReport, large: Option<String>, is_bounded: bool) -> Vec<String> {
    reasons_of_unknown(report).unwrap_or_else(|| {
        let why = "no block size accumulates; probably a few large blocks were added, grew, or became resident";
        let why = (!is_bounded).then(|| why.to_owned());
        why.into_iter().chain(large).collect()
    })
}

/// Adds the growth of the blocks in use that no group explains, so that the rates add up to that of
/// all, if it is a noticeable part.
fn name_other_blocks(report: &mut LeakReport, growth: &Growth) {
    let followed = growth.by.iter().filter(|part| part.is_followed());
    let all = followed.map(|part| part.bytes_per_hour).sum::<i64>();
    let rest = all.saturating_sub_unsigned(report.bytes_per_hour);
    if report.bytes_per_hour == 0 || rest as f64 <= (1.0 - 1.0 / MAX_ABOVE) * all as f64 {
        return;
    }
    let said = format!("other blocks in use grow by {} an hour", Human(rest.unsigned_abs()));
    let place = report.verdict.because.len().min(1);
    report.verdict.because.insert(place, said);
}

/// Separates the rate of blocks by their sizes from that of resident memory, in bytes an hour, in
/// the first reason, if only a part of the blocks becomes resident.
fn separate_resident(report: &mut LeakReport, rate: i64) {
    let sum = format!("{} an hour", Human(report.bytes_per_hour));
    let is_partly_resident = report.bytes_per_hour as f64 > MAX_ABOVE * rate as f64;
    let said = report.verdict.because.first_mut();
    if let Some(said) = said.filter(|said| is_partly_resident && said.starts_with(&sum)) {
        let resident = Human(rate.max(0).unsigned_abs());
        *said = format!("{resident} an hour become resident; by the sizes of the blocks, {said}");
    }
}

/// Sets the verdict on a process whose heap cannot be walked: `level`, or `too early` with too few
/// readings of RSS. [`reconcile`] or [`doubt`] replaces it if RSS grew. `allocator` is the
/// allocator of that heap.
pub fn without_blocks(report: &mut LeakReport, allocator: &str, readings: usize) {
    let time = HumanSeconds(report.elapsed_s);
    let (kind, because) = match readings < MIN_READINGS {
        true => (
            LeakKind::TooEarly,
            format!("only {readings} of {MIN_READINGS} required readings of RSS"),
        ),
        false => (LeakKind::Level, format!("RSS did not grow noticeably in {time}")),
    };
    report.verdict = LeakVerdict { kind, because: vec![because] };
    report.notes.push(format!(
        "lowtide cannot read the blocks of this process (allocator: {allocator}): the report has only the \
         growth of each owner"
    ));
}

/// Changes `level` to `too early` if RSS grew, and no second inspection has divided the growth.
/// `kept_bytes` are the first and the last reading of RSS without pages of files.
pub fn doubt(report: &mut LeakReport, kept_bytes: [u64; 2]) {
    let [before, after] = kept_bytes;
    if report.verdict.kind == LeakKind::Level && has_risen(kept_bytes) {
        report.verdict.kind = LeakKind::TooEarly;
        report.verdict.because = vec![format!(
            "RSS without file pages grew from {} to {}; the growth is not divided by owner yet",
            Human(before),
            Human(after)
        )];
    }
    settle_level(report);
}

#[cfg(test)]
mod tests {
    use lowtide_model::counts::{CountGrowth, CountKind};
    use lowtide_model::growth::{DescendantGrowth, ProcessGrowth, ProcessLimit, ProcessLimitKind};
    use lowtide_model::leaks::{LeakGroup, LeakTier};
    use lowtide_model::open_memory::OpenMemory;

    use super::*;
    use crate::growth::tests::{growth_between, observed};

    const MIB: u64 = 1 << 20;

    fn reconciled(mut report: LeakReport, growth: Growth, course: GrowthCourse) -> LeakReport {
        reconcile(&mut report, Growth { course, ..growth }, None);
        report
    }

    fn report(kind: LeakKind, bytes_per_hour: u64) -> LeakReport {
        LeakReport {
            schema: LeakReport::SCHEMA.to_owned(),
            pid: 7,
            command: vec!["program".to_owned()],
            tier: LeakTier::Read,
            looks: 7,
            torn_looks: 0,
            elapsed_s: 60.0,
            cpu_s: 0.1,
            older_s: 30.0,
            exposure: 0.0,
            sampling: None,
            sampled_share: 1.0,
            in_use_bytes: 0,
            verdict: LeakVerdict { kind, because: vec!["as before".to_owned()] },
            bytes_per_hour,
            seconds_to_limit: None,
            coverage: None,
            growth: None,
            groups: Vec::new(),
            omitted_groups: 0,
            mapped_by: Vec::new(),
            next: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn growth_that_is_not_followed_is_elsewhere_with_its_owner_and_its_rate() {
        let before = observed(&[(Owner::Allocated, 20), (Owner::Runtime, 24)], &[("PHP", 24)]);
        let after = observed(&[(Owner::Allocated, 32), (Owner::Runtime, 511)], &[("PHP", 511)]);
        let kinds = [(LeakKind::Level, 0), (LeakKind::Growing, 80 * MIB), (LeakKind::TooEarly, 0)];
        for (kind, rate) in kinds {
            let growth = growth_between(&before, &after);
            let report = reconciled(report(kind, rate), growth, GrowthCourse::Steady);
            assert_eq!(report.verdict.kind, LeakKind::Elsewhere);
            let first = &report.verdict.because[0];
            let expected = "RSS grew by 499 MiB, from 44.0 MiB to 543 MiB: 487 MiB in memory of PHP, which \
                            lowtide does not divide";
            assert_eq!(first, expected);
            assert_eq!(report.bytes_per_hour, 499 * MIB * 60);
        }
    }

    #[test]
    fn growth_in_blocks_is_never_level() {
        let before = observed(&[(Owner::Allocated, 158)], &[]);
        let after = observed(&[(Owner::Allocated, 397)], &[]);
        let of = |kind, rate| {
            let growth = growth_between(&before, &after);
            reconciled(report(kind, rate), growth, GrowthCourse::Steady)
        };
        let level = of(LeakKind::Level, 0);
        assert_eq!(level.verdict.kind, LeakKind::Growing);
        assert!(level.verdict.because[1].contains("a few large blocks"), "{level:#?}");
        let early = of(LeakKind::TooEarly, 0);
        assert_eq!(early.verdict.kind, LeakKind::TooEarly);
        assert!(early.verdict.because[0].starts_with("RSS grew by 239 MiB"));
        assert_eq!(of(LeakKind::LostBefore, 0).verdict.kind, LeakKind::Growing);
    }

    #[test]
    fn blocks_that_accumulate_in_few_intervals_are_said_and_not_called_large_or_level() {
        let before = observed(&[(Owner::Allocated, 158)], &[]);
        let after = observed(&[(Owner::Allocated, 397)], &[]);
        let unknown = || {
            let mut found = report(LeakKind::Level, 0);
            let because = vec!["14,068 blocks (13.5 MiB)".to_owned(), "too few".to_owned()];
            found.groups = vec![LeakGroup::new(LeakKind::TooEarly, because)];
            found
        };
        let growth = growth_between(&before, &after);
        let steady = reconciled(unknown(), growth, GrowthCourse::Steady);
        assert_eq!(steady.verdict.kind, LeakKind::Growing);
        assert_eq!(steady.verdict.because[1..], ["14,068 blocks (13.5 MiB)", "too few"]);
        let level = reconciled(unknown(), growth_between(&after, &after), GrowthCourse::Level);
        assert_eq!(level.verdict.kind, LeakKind::TooEarly);
        assert_eq!(level.verdict.because[0], "14,068 blocks (13.5 MiB)");
    }

    #[test]
    fn address_space_that_grows_to_its_limit_is_not_level() {
        let steady = observed(&[(Owner::Allocated, 100)], &[]);
        let mut growth = growth_between(&steady, &steady);
        let limit = ProcessLimit {
            kind: ProcessLimitKind::AddressSpace,
            used_bytes: 512 * MIB,
            bytes_per_hour: 1024 * MIB,
        };
        growth.set_process_limit(1024 * MIB, limit);
        let found = reconciled(report(LeakKind::Level, 0), growth, GrowthCourse::Level);
        assert_eq!(found.verdict.kind, LeakKind::Elsewhere);
        assert_eq!(found.seconds_to_limit, Some(1800.0));
    }

    #[test]
    fn free_memory_that_is_held_or_used_again_has_no_time_to_the_limit() {
        let before = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 5)], &[]);
        let after = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 25)], &[]);
        let growth = growth_between(&before, &after);
        let held = reconciled(report(LeakKind::Level, 0), growth.clone(), GrowthCourse::Steady);
        assert_eq!((held.verdict.kind, held.bytes_per_hour), (LeakKind::TooEarly, 0));
        let lost = reconciled(report(LeakKind::Lost, MIB), growth, GrowthCourse::Steady);
        assert_eq!(lost.verdict.kind, LeakKind::Lost);
        let growing = LeakReport { seconds_to_limit: Some(1e6), ..report(LeakKind::Growing, MIB) };
        let reused = reconciled(growing, growth_between(&after, &after), GrowthCourse::Level);
        assert_eq!((reused.verdict.kind, reused.seconds_to_limit), (LeakKind::Growing, None));
        assert!(reused.verdict.because[0].starts_with("RSS did not grow"), "{reused:#?}");
    }

    #[test]
    fn the_rate_of_a_process_is_that_of_resident_memory_whatever_its_blocks_can_hold() {
        for (allocated, free, all) in [(300, 50, 200), (400, 0, 300)] {
            let before = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 50)], &[]);
            let after = observed(&[(Owner::Allocated, allocated), (Owner::Reclaimable, free)], &[]);
            for blocks in [120, 900] {
                let growth = growth_between(&before, &after);
                let lost = report(LeakKind::Lost, blocks * MIB * 60);
                let lost = reconciled(lost, growth, GrowthCourse::Steady);
                let found = (lost.verdict.kind, lost.bytes_per_hour);
                assert_eq!(found, (LeakKind::Lost, all * MIB * 60));
            }
        }
    }

    #[test]
    fn the_rate_of_blocks_that_are_not_touched_is_not_that_of_the_process() {
        let before = observed(&[(Owner::Allocated, 100)], &[]);
        let after = observed(&[(Owner::Allocated, 200)], &[]);
        for (blocks, is_said) in [(100, false), (400, true)] {
            let rate = blocks * MIB * 60;
            let mut lost = report(LeakKind::Lost, rate);
            lost.verdict.because = vec![format!("{} an hour in 2 groups", Human(rate))];
            let growth = growth_between(&before, &after);
            let found = reconciled(lost, growth, GrowthCourse::Steady);
            let said = &found.verdict.because[1];
            assert_eq!(said.starts_with("5.86 GiB an hour become resident"), is_said, "{said}");
        }
    }

    #[test]
    fn blocks_that_grew_until_growth_stopped_are_said_to_have_stopped() {
        let before = observed(&[(Owner::Allocated, 100)], &[]);
        let after = observed(&[(Owner::Allocated, 200)], &[]);
        let growth = growth_between(&before, &after);
        let lost = reconciled(report(LeakKind::Lost, 120 * MIB), growth, GrowthCourse::Once);
        assert_eq!(lost.verdict.kind, LeakKind::Lost);
        assert!(lost.verdict.because[0].ends_with("may have stopped"), "{lost:#?}");
    }

    #[test]
    fn blocks_that_fill_a_cache_do_not_hide_a_step_of_other_memory() {
        let of = |blocks_mib, other_mib| {
            let rows = |mib: u64| [(Owner::Allocated, 10 + mib), (Owner::Stacks, 10)];
            let before = observed(&rows(0), &[]);
            let mut after = observed(&rows(blocks_mib), &[]);
            after.ledger.add(Owner::Stacks, other_mib * MIB);
            let growth = growth_between(&before, &after);
            reconciled(report(LeakKind::Filling, 0), growth, GrowthCourse::Once)
        };
        let cache = of(60, 0);
        assert_eq!(cache.verdict.kind, LeakKind::Filling);
        assert!(cache.verdict.because[0].starts_with("RSS grew by 60.0 MiB"), "{cache:#?}");
        let other = of(1, 60);
        assert_eq!(other.verdict.kind, LeakKind::TooEarly);
        assert_eq!(other.verdict.because.len(), 1, "{other:#?}");
    }

    #[test]
    fn blocks_that_explain_little_of_a_step_do_not_give_it_their_rate() {
        let before =
            observed(&[(Owner::Allocated, 10), (Owner::Runtime, 100)], &[("HotSpot", 100)]);
        let after = observed(&[(Owner::Allocated, 10), (Owner::Runtime, 170)], &[("HotSpot", 170)]);
        let of = |kind, rate| {
            let report = LeakReport { seconds_to_limit: Some(1e9), ..report(kind, rate) };
            reconciled(report, growth_between(&before, &after), GrowthCourse::Once)
        };
        let small = of(LeakKind::Growing, 250 << 10);
        assert_eq!((small.verdict.kind, small.bytes_per_hour), (LeakKind::TooEarly, 0));
        assert_eq!(small.seconds_to_limit, None);
        assert!(small.verdict.because[1].contains("250 KiB an hour"), "{small:#?}");
        let lost = of(LeakKind::Lost, 250 << 10);
        assert_eq!((lost.verdict.kind, lost.seconds_to_limit), (LeakKind::Lost, None));
        assert_eq!(of(LeakKind::Growing, 60 * 60 * MIB).verdict.kind, LeakKind::Growing);
    }

    #[test]
    fn threads_that_start_at_once_hide_no_blocks_that_were_lost() {
        let before = observed(&[(Owner::Allocated, 10)], &[]);
        let count = CountGrowth::new(CountKind::Threads, [5, 205], None);
        let counts = count.into_iter().collect();
        let started = Growth { counts, ..growth_between(&before, &before) };
        let lost = report(LeakKind::LostBefore, 0);
        let lost = reconciled(lost, started, GrowthCourse::Level).verdict;
        assert_eq!(lost.kind, LeakKind::LostBefore);
        assert!(lost.because.last().unwrap().starts_with("threads grew from 5 to 205"));
    }

    #[test]
    fn memory_that_rss_does_not_count_is_not_level() {
        let before = observed(&[(Owner::Allocated, 10)], &[]);
        let growth = growth_between(&before, &before);
        let open = |files: u64| OpenMemory {
            files,
            bytes: files * MIB,
            name: Some("/memfd:frame".to_owned()),
        };
        let opened = Growth { open_memory: Some([open(20), open(150)]), ..growth.clone() };
        let opened = reconciled(report(LeakKind::Level, 0), opened, GrowthCourse::Level);
        assert_eq!(opened.verdict.kind, LeakKind::Elsewhere);
        assert_eq!(opened.bytes_per_hour, 130 * MIB * 60);
        let said = "files in memory that it has open and does not map, which RSS does not count, grew by 130 MiB, \
                    from 20.0 MiB in 20 files to 150 MiB in 150 (mostly /memfd:frame)";
        assert_eq!(opened.verdict.because, [said]);
        let pool = Growth { hugetlb_bytes: Some([0, 80 * MIB]), ..growth.clone() };
        let pool = reconciled(report(LeakKind::Level, 0), pool, GrowthCourse::Level);
        let found = (pool.verdict.kind, pool.bytes_per_hour);
        assert_eq!(found, (LeakKind::Elsewhere, 80 * MIB * 60));
        let files = |after| {
            let count = CountGrowth::new(CountKind::OpenFiles, [5, after], None);
            let growth = Growth { counts: count.into_iter().collect(), ..growth.clone() };
            reconciled(report(LeakKind::Level, 0), growth, GrowthCourse::Level).verdict
        };
        assert_eq!(files(50).kind, LeakKind::Level);
        assert_eq!(files(3451).kind, LeakKind::Elsewhere);
        assert!(files(3451).because[0].starts_with("open files grew from 5 to 3,451"));
        let most = ProcessGrowth { pid: 9, name: "worker".to_owned(), pss_bytes: [0, 90 * MIB] };
        let grown = DescendantGrowth {
            processes: [1, 2],
            pss_bytes: [MIB, 91 * MIB],
            estimated: false,
            bytes_per_hour: 90 * MIB * 60,
            shares_limit: true,
            most,
        };
        let forked = Growth { descendants: Some(grown), ..growth };
        for (kind, blocks, expected) in [
            (LeakKind::Growing, MIB, LeakKind::Elsewhere),
            (LeakKind::TooEarly, 0, LeakKind::Elsewhere),
            (LeakKind::Lost, MIB, LeakKind::Lost),
        ] {
            let found = reconciled(report(kind, blocks), forked.clone(), GrowthCourse::Level);
            assert_eq!(found.verdict.kind, expected, "{kind:?}");
            let said = found.verdict.because.join(" ");
            assert!(said.contains("descendant processes grew by 90.0 MiB"), "{said}");
            assert_eq!(said.contains("blocks in use grow as well"), kind == LeakKind::Growing);
        }
        let mut forked = forked;
        forked.set_limit(Some(1 << 30), Some(1 << 29));
        assert!(forked.seconds_to_limit.is_some_and(|left_s| left_s < 342.0), "{forked:?}");
        let forked = reconciled(report(LeakKind::Level, 0), forked, GrowthCourse::Level);
        let found = (forked.verdict.kind, forked.bytes_per_hour);
        assert_eq!(found, (LeakKind::Elsewhere, 90 * MIB * 60));
        let said = &forked.verdict.because[0];
        assert!(said.starts_with("its 2 descendant processes grew by 90.0 MiB (PSS)"), "{said}");
        assert!(said.ends_with("most by worker with PID 9, from 0 B to 90.0 MiB"), "{said}");
    }

    #[test]
    fn growth_that_was_not_divided_is_not_level() {
        for (rss, kind) in [
            ([44, 210], LeakKind::TooEarly),
            ([400, 401], LeakKind::Level),
            ([400, 300], LeakKind::Level),
        ] {
            let mut level = report(LeakKind::Level, 0);
            doubt(&mut level, rss.map(|mib| mib * MIB));
            assert_eq!(level.verdict.kind, kind, "{rss:?}");
        }
    }

    #[test]
    fn a_single_step_is_neither_level_nor_a_rate_and_fluctuation_is_level() {
        let before = observed(&[(Owner::AnonymousOther, 100)], &[]);
        let after = observed(&[(Owner::AnonymousOther, 200)], &[]);
        let of = |course| {
            reconciled(report(LeakKind::Level, 0), growth_between(&before, &after), course)
        };
        let early = reconciled(
            report(LeakKind::TooEarly, 0),
            growth_between(&before, &after),
            GrowthCourse::Once,
        );
        assert_eq!(early.verdict.because.len(), 2, "{early:#?}");
        let little = of(GrowthCourse::Little);
        assert_eq!(little.verdict.kind, LeakKind::TooEarly);
        let once = of(GrowthCourse::Once);
        assert_eq!((once.verdict.kind, once.bytes_per_hour), (LeakKind::TooEarly, 0));
        assert!(once.verdict.because[0].starts_with("RSS grew by 100 MiB"), "{once:#?}");
        let same = growth_between(&before, &before);
        let level = reconciled(report(LeakKind::Level, 0), same, GrowthCourse::Level);
        assert_eq!(level.verdict.kind, LeakKind::Level);
        assert!(level.growth.is_some());
    }

    #[test]
    fn pages_of_files_are_neither_level_nor_a_reason_to_hide_lost_blocks() {
        let before = observed(&[(Owner::Allocated, 10), (Owner::File, 100)], &[]);
        let files = observed(&[(Owner::Allocated, 10), (Owner::File, 300)], &[]);
        let growth = growth_between(&before, &files);
        let level = reconciled(report(LeakKind::Level, 0), growth, GrowthCourse::Level);
        assert_eq!(level.verdict.kind, LeakKind::Elsewhere);
        assert_eq!(level.seconds_to_limit, None);
        let both = observed(&[(Owner::Allocated, 14), (Owner::File, 300)], &[]);
        let growth = growth_between(&before, &both);
        let lost = report(LeakKind::Lost, 4 * MIB * 60);
        let lost = reconciled(lost, growth, GrowthCourse::Steady);
        assert_eq!((lost.verdict.kind, lost.bytes_per_hour), (LeakKind::Lost, 4 * MIB * 60));
    }
}

//! Synthetic leaks and programs without one. Each is a list of blocks that are allocated and freed
//! at given times, from which the snapshots are counted.

use std::collections::BTreeMap;

use lowtide_model::leaks::{LeakGroup, LeakKind};
use lowtide_model::survivors::{ClassSizes, CohortCount, PARTS, Snapshot, size_class};

use super::*;

/// A block: its size, when it was allocated, when it was freed, and whether it was lost.
#[derive(Debug, Clone, Copy)]
struct Life {
    bytes: u64,
    from_s: f64,
    to_s: f64,
    is_lost: bool,
}

const FOREVER: f64 = f64::INFINITY;

/// Returns `per_s` blocks a second from `from_s` to `to_s`, each of which lives for `lives_s`.
fn blocks(bytes: u64, per_s: f64, (from_s, to_s): (f64, f64), lives_s: f64) -> Vec<Life> {
    let count = (per_s * (to_s - from_s)) as usize;
    let life = |number: usize| {
        let from_s = from_s + number as f64 / per_s;
        Life { bytes, from_s, to_s: from_s + lives_s, is_lost: false }
    };
    (0..count).map(life).collect()
}

fn lost(blocks: Vec<Life>) -> Vec<Life> {
    blocks.into_iter().map(|life| Life { is_lost: true, ..life }).collect()
}

/// Returns the groups after a snapshot every 5 s. Times are relative to the first snapshot.
/// `is_sought` is whether pointers to the blocks were sought at the end.
fn groups(lives: &[Life], seconds: u32, is_sought: bool, others: &Surroundings) -> Vec<LeakGroup> {
    let times: Vec<f64> = (0..=seconds / 5).map(|look| f64::from(look) * 5.0).collect();
    groups_at(&times, lives, is_sought, others)
}

/// Returns the groups after snapshots at these times.
fn groups_at(
    times: &[f64],
    lives: &[Life],
    is_sought: bool,
    others: &Surroundings,
) -> Vec<LeakGroup> {
    let cohort = |life: &Life| times.partition_point(|time| *time < life.from_s) as u8;
    let snapshots: Vec<Snapshot> = times.iter().map(|t_s| snapshot(lives, *t_s, &cohort)).collect();
    let now = *times.last().unwrap();
    let older_s = now / 2.0;
    let old = survivors(times, older_s);
    let mut sizes: BTreeMap<u16, ClassSizes> = BTreeMap::new();
    let mut parts: BTreeMap<u16, [u64; PARTS]> = BTreeMap::new();
    let mut parts_of_all: BTreeMap<u16, [u64; PARTS]> = BTreeMap::new();
    let mut lost = LostCounts::default();
    for (number, life) in lives.iter().enumerate().filter(|(_, l)| l.from_s <= now && now < l.to_s)
    {
        let class = size_class(life.bytes);
        let of_class = sizes.entry(class).or_default();
        *of_class = ClassSizes {
            smallest_bytes: match of_class.count {
                0 => life.bytes,
                _ => of_class.smallest_bytes.min(life.bytes),
            },
            largest_bytes: of_class.largest_bytes.max(life.bytes),
            count: of_class.count + 1,
            bytes: of_class.bytes + life.bytes,
        };
        let is_old = old.contains(&cohort(life));
        parts.entry(class).or_default()[number % PARTS] += u64::from(is_old);
        parts_of_all.entry(class).or_default()[number % PARTS] += u64::from(cohort(life) > 0);
        if life.is_lost && is_sought {
            *lost.counts.entry(class).or_default().entry(cohort(life)).or_default() += 1;
            lost.parts.entry(class).or_default()[number % PARTS] += u64::from(is_old);
            let is_new = u64::from(cohort(life) > 0);
            lost.parts_of_all.entry(class).or_default()[number % PARTS] += is_new;
        }
    }
    let history = History {
        snapshots: &snapshots,
        cohorts: times,
        sizes: &sizes,
        parts: &parts,
        parts_of_all: &parts_of_all,
        older_s,
    };
    let reached = |unreachable_share| {
        is_sought.then_some(Reachability {
            sampled: 1000,
            unreachable_share,
            unsure_share: 0.0,
            rounds: 2,
        })
    };
    let held = trends(&history, &lost);
    let held = held.iter().map(|trend| group(trend, reached(0.0).as_ref(), others));
    let lost = lost_trends(&history, &lost);
    held.chain(lost.iter().map(|trend| group(trend, reached(1.0).as_ref(), others))).collect()
}

fn snapshot(lives: &[Life], t_s: f64, cohort: &impl Fn(&Life) -> u8) -> Snapshot {
    let mut counts: BTreeMap<(u16, u8), u32> = BTreeMap::new();
    for life in lives.iter().filter(|life| life.from_s <= t_s && t_s < life.to_s) {
        *counts.entry((size_class(life.bytes), cohort(life))).or_default() += 1;
    }
    let count = |((class, cohort), count)| CohortCount { class, cohort, count };
    let counts = counts.into_iter().map(count).collect();
    Snapshot { t_s, sampled_share: 1.0, large_sampled_share: 1.0, counts }
}

/// Returns the verdicts on a program whose pointers were sought, without level ones.
fn verdicts(lives: &[Life], seconds: u32) -> Vec<(LeakKind, u64)> {
    let groups = groups(lives, seconds, true, &Surroundings::default());
    let bad = groups.iter().filter(|group| group.verdict != LeakKind::Level);
    bad.map(|group| (group.verdict, group.size_bytes[0])).collect()
}

/// Returns churn of all sizes: most blocks live for less than a second.
fn churn() -> Vec<Life> {
    let sizes = [32, 64, 80, 96, 208, 1008];
    sizes.iter().flat_map(|bytes| blocks(*bytes, 400.0, (-20.0, 120.0), 0.7)).collect()
}

const ALWAYS: (f64, f64) = (-600.0, 120.0);

#[test]
fn lost_blocks_are_found_with_their_rate_among_heavy_churn() {
    let mut lives = churn();
    lives.extend(lost(blocks(80, 2.0, ALWAYS, FOREVER)));
    assert_eq!(verdicts(&lives, 60), [(LeakKind::Lost, 80)]);
    let groups = groups(&lives, 60, true, &Surroundings::default());
    let found = groups.iter().find(|group| group.verdict == LeakKind::Lost).unwrap();
    assert_eq!(found.bytes_per_hour, 2 * 80 * 3600);
    assert_eq!(found.bytes_per_hour_interval, [2 * 80 * 3600; 2]);
    assert_eq!(found.count, 60);
}

#[test]
fn referenced_blocks_and_blocks_without_a_pointer_search_are_growing() {
    let mut lives = churn();
    lives.extend(blocks(112, 5.0, ALWAYS, FOREVER));
    assert_eq!(verdicts(&lives, 60), [(LeakKind::Growing, 112)]);
    let lives = lost(lives);
    let found = groups(&lives, 60, false, &Surroundings::default());
    assert!(found.iter().all(|group| group.verdict != LeakKind::Lost));
    assert!(found.iter().any(|group| group.verdict == LeakKind::Growing));
}

#[test]
fn blocks_are_not_reported_as_lost_if_pointers_may_be_hidden() {
    let hidden = Some("part of its memory is swapped out".to_owned());
    let others = Surroundings { hidden_pointers: hidden, is_below_peak: false };
    let found = groups(&lost(blocks(80, 5.0, ALWAYS, FOREVER)), 60, true, &others);
    assert_eq!(found[0].verdict, LeakKind::Growing);
    assert!(
        found[0].because.iter().any(|why| why.contains("swapped out")),
        "{:?}",
        found[0].because
    );
}

#[test]
fn a_leak_and_a_cache_with_the_same_block_size_are_two_groups() {
    let mut lives = blocks(80, 20.0, ALWAYS, FOREVER);
    lives.extend(lost(blocks(80, 10.0, ALWAYS, FOREVER)));
    assert_eq!(verdicts(&lives, 60), [(LeakKind::Growing, 80), (LeakKind::Lost, 80)]);
}

#[test]
fn a_cache_of_the_most_recent_blocks_is_not_growing() {
    assert_eq!(verdicts(&blocks(64, 50.0, ALWAYS, 45.0), 60), []);
    assert_eq!(verdicts(&blocks(64, 50.0, ALWAYS, 300.0), 60), []);
}

#[test]
fn blocks_with_long_lifetimes_of_any_length_are_not_growing() {
    let lives: Vec<Life> = (1..60)
        .flat_map(|number| blocks(96, 2.0, ALWAYS, f64::from(number) * f64::from(number) / 10.0))
        .collect();
    assert_eq!(verdicts(&lives, 60), []);
}

#[test]
fn a_cache_that_is_emptied_periodically_is_not_growing() {
    let lives: Vec<Life> = (-10..5)
        .flat_map(|round| {
            let start = f64::from(round) * 30.0;
            let mut lives = blocks(112, 30.0, (start, start + 30.0), FOREVER);
            lives.iter_mut().for_each(|life| life.to_s = start + 30.0);
            lives
        })
        .collect();
    assert_eq!(verdicts(&lives, 60), []);
    assert_eq!(verdicts(&lives, 75), []);
}

#[test]
fn a_warm_up_is_not_growth_and_slowing_growth_is_filling() {
    assert_eq!(verdicts(&blocks(128, 100.0, (-5.0, 12.0), FOREVER), 60), []);
    // If its growth slows down, it fills up.
    let slower: Vec<Life> = (0..12)
        .flat_map(|step| {
            let start = f64::from(step) * 5.0;
            blocks(128, 100.0 / f64::from(1 + step), (start, start + 5.0), FOREVER)
        })
        .collect();
    assert_eq!(verdicts(&slower, 60), [(LeakKind::Filling, 128)]);
}

#[test]
fn a_queue_into_which_more_comes_than_goes_is_a_backlog_with_its_rate() {
    // What is put in at a time leaves at twice that time: half of the blocks wait.
    let queue = |bytes| -> Vec<Life> {
        let lives = blocks(bytes, 20.0, (0.0, 120.0), FOREVER).into_iter();
        lives.map(|life| Life { to_s: life.from_s * 2.0, ..life }).collect()
    };
    let mut lives = churn();
    lives.extend(queue(112));
    assert_eq!(verdicts(&lives, 60), [(LeakKind::Backlog, 112)]);
    let found = groups(&lives, 60, true, &Surroundings::default());
    let found = found.iter().find(|group| group.verdict == LeakKind::Backlog).unwrap();
    let truth = 10.0 * 112.0 * 3600.0;
    assert!((found.bytes_per_hour as f64 / truth - 1.0).abs() < 0.1, "{found:#?}");
    assert!(
        found.because[0].starts_with("the number of these blocks rose from 0 to 60"),
        "{found:#?}"
    );
    // Also if each block waits for less than half of the run.
    let mut early = blocks(112, 20.0, (-60.0, 120.0), FOREVER);
    early.iter_mut().for_each(|life| life.to_s = life.from_s + 5.0 + life.from_s.max(0.0) / 3.0);
    assert_eq!(verdicts(&early, 60), [(LeakKind::Backlog, 112)]);
}

#[test]
fn a_backlog_is_found_in_the_few_snapshots_of_a_heap_that_takes_long_to_walk() {
    // The time between two snapshots rises with the cost of the last one.
    let times = [0.0, 2.5, 5.0, 7.6, 10.4, 13.5, 18.1, 24.1, 30.0];
    let mut queue = blocks(1024, 3000.0, (-5.0, 40.0), FOREVER);
    queue.iter_mut().for_each(|life| life.to_s = (life.from_s + 5.0) * 1.5 - 5.0);
    let kinds = |lives: &[Life]| -> Vec<LeakKind> {
        let found = groups_at(&times, lives, true, &Surroundings::default());
        found.iter().map(|group| group.verdict).collect()
    };
    assert_eq!(kinds(&queue), [LeakKind::Backlog]);
    // A few blocks of the same size that stay do not hide it.
    let stay = blocks(1024, 2.0, (-5.0, 40.0), FOREVER);
    assert_eq!(kinds(&[queue, stay].concat()), [LeakKind::Backlog]);
}

#[test]
fn growth_that_starts_late_in_a_long_run_is_growing_unless_blocks_are_freed() {
    let times: Vec<f64> = (0..=60).map(|look| f64::from(look) * 120.0).collect();
    let of = |lives: &[Life]| groups_at(&times, lives, true, &Surroundings::default());
    for start_s in [3400.0, 3800.0, 5000.0] {
        let found = of(&blocks(4000, 3.0, (start_s, 7300.0), FOREVER));
        assert_eq!(found[0].verdict, LeakKind::Growing, "{found:#?}");
        let truth = 3.0 * 4000.0 * 3600.0;
        assert!((found[0].bytes_per_hour as f64 / truth - 1.0).abs() < 0.1, "{found:#?}");
    }
    let just_now = of(&blocks(4000, 3.0, (6700.0, 7300.0), FOREVER));
    assert_eq!(just_now[0].verdict, LeakKind::TooEarly, "{just_now:#?}");
    // Blocks of a queue that is younger than half of the run are freed.
    let mut queue = blocks(4000, 3.0, (3800.0, 7300.0), FOREVER);
    queue.iter_mut().for_each(|life| life.to_s = (life.from_s - 3800.0) * 2.0 + 3800.0);
    assert_eq!(of(&queue)[0].verdict, LeakKind::Backlog);
}

#[test]
fn blocks_that_grow_and_have_one_holder_are_one_group_with_their_sum() {
    const MIB: u64 = 1 << 20;
    let block = |bytes, steps| GrownBlock { bytes, steps, first_s: 0.0, now_s: 36.0 };
    let one = block([MIB, 4 * MIB], 2);
    let found = growing_blocks(&[one, block([2 * MIB, 8 * MIB], 3)], &Surroundings::default());
    assert_eq!((found.count, found.size_bytes), (2, [3 * MIB, 12 * MIB]));
    assert_eq!(found.bytes_per_hour, 900 * MIB);
    let said = "2 blocks with one holder grew, each in 2 to 3 snapshots, together from 3.00 MiB to 12.0 MiB in 36.0 s";
    assert_eq!(found.because, [said]);
    let alone = growing_blocks(&[one], &Surroundings::default());
    assert_eq!(
        alone.because,
        ["one block grew in 2 snapshots, from 1.00 MiB to 4.00 MiB in 36.0 s"]
    );
}

#[test]
fn populations_that_fluctuate_by_chance_are_no_backlog() {
    // Blocks of 36 sizes come and go independently; about 60 of each are there.
    for seed in 1..=20_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut exponential = |mean: f64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            -mean * ((random >> 11) as f64 / (1_u64 << 53) as f64).max(1e-12).ln()
        };
        let mut lives = Vec::new();
        for size in 0..36 {
            let mut from_s = -100.0;
            while from_s < 60.0 {
                from_s += exponential(0.25);
                let to_s = from_s + exponential(15.0);
                lives.push(Life { bytes: 64 + 32 * size, from_s, to_s, is_lost: false });
            }
        }
        let found = verdicts(&lives, 60);
        assert!(!found.iter().any(|(kind, _)| *kind == LeakKind::Backlog), "{seed}: {found:?}");
    }
}

#[test]
fn a_backlog_in_which_lost_blocks_accumulate_is_lost() {
    let mut lives = lost(blocks(112, 20.0, ALWAYS, FOREVER));
    lives.extend(blocks(112, 20.0, (0.0, 120.0), 35.0));
    assert_eq!(verdicts(&lives, 60), [(LeakKind::Lost, 112)]);
}

#[test]
fn a_group_whose_blocks_are_partly_freed_is_a_backlog() {
    // Half of the allocated blocks are freed after 35 s.
    let mut lives = blocks(112, 20.0, ALWAYS, FOREVER);
    lives.extend(blocks(112, 20.0, (0.0, 120.0), 35.0));
    assert_eq!(verdicts(&lives, 60), [(LeakKind::Backlog, 112)]);
}

#[test]
fn a_single_burst_is_not_growing() {
    let mut lives = churn();
    lives.extend(blocks(208, 1000.0, (7.0, 8.0), FOREVER));
    assert_eq!(verdicts(&lives, 60), []);
}

#[test]
fn a_few_large_blocks_are_lost_or_grow_or_are_too_early_but_not_level() {
    const MIB: u64 = 1 << 20;
    let seven = blocks(10 * MIB, 0.1, (2.0, 72.0), FOREVER);
    let with = |more: Vec<Life>, seconds| verdicts(&[churn(), more].concat(), seconds);
    assert_eq!(with(lost(seven.clone()), 75), [(LeakKind::Lost, 10 * MIB)]);
    let more = blocks(10 * MIB, 0.1, (2.0, 92.0), FOREVER);
    assert_eq!(with(more, 90), [(LeakKind::Growing, 10 * MIB)]);
    let two = blocks(10 * MIB, 0.1, (2.0, 22.0), FOREVER);
    assert_eq!(with(two.clone(), 60), [(LeakKind::TooEarly, 10 * MIB)]);
    // Each replaces one before it.
    let replaced = blocks(10 * MIB, 0.1, (-100.0, 100.0), 40.0);
    assert_eq!(with(replaced, 60), []);
    // They are little beside other blocks.
    let little = [two, blocks(100 * MIB, 2.0, (-100.0, -50.0), FOREVER)].concat();
    assert_eq!(with(little, 60), []);
}

#[test]
fn a_leak_that_has_stopped_has_no_rate() {
    let stopped = |until_s| lost(blocks(112, 20.0, (-5.0, until_s), FOREVER));
    let found = groups(&stopped(32.0), 60, true, &Surroundings::default());
    assert_eq!((found[0].verdict, found[0].bytes_per_hour), (LeakKind::LostBefore, 0));
    assert!(found[0].because[1].ends_with("this leak may have stopped"), "{found:#?}");
    // A burst of lost blocks is lost, too.
    let burst = lost(blocks(208, 1000.0, (7.0, 8.0), FOREVER));
    assert_eq!(verdicts(&burst, 60), [(LeakKind::LostBefore, 208)]);
    assert_eq!(verdicts(&stopped(60.0), 60), [(LeakKind::Lost, 112)]);
    // One that pauses by chance has not stopped.
    let seldom = lost(blocks(11_200, 0.4, (-5.0, 55.0), FOREVER));
    assert_eq!(verdicts(&seldom, 60), [(LeakKind::Lost, 11_200)]);
}

#[test]
fn a_leak_that_starts_late_is_lost_and_a_late_start_is_no_backlog() {
    let late = blocks(1008, 1000.0, (40.0, 120.0), FOREVER);
    assert_eq!(verdicts(&lost(late.clone()), 60), [(LeakKind::Lost, 1008)]);
    assert_eq!(
        verdicts(&blocks(1008, 1000.0, (25.0, 120.0), FOREVER), 60),
        [(LeakKind::TooEarly, 1008)]
    );
}

#[test]
fn growth_that_slows_down_has_its_later_rate() {
    let cache = blocks(112, 40.0, (-5.0, 30.0), FOREVER);
    let slow = blocks(112, 4.0, (30.0, 120.0), FOREVER);
    let found = groups(&[cache, slow].concat(), 60, true, &Surroundings::default());
    assert_eq!((found[0].verdict, found[0].bytes_per_hour), (LeakKind::Filling, 4 * 112 * 3600));
    let full =
        groups(&blocks(112, 40.0, (-5.0, 30.0), FOREVER), 60, true, &Surroundings::default());
    assert_eq!((full[0].verdict, full[0].bytes_per_hour), (LeakKind::Filling, 0));
    assert!(
        full[0].because.iter().any(|why| why == "the rate fell to 0 % of the initial rate"),
        "{full:?}"
    );
    assert!(!overall(&full, 6, 13).because[0].contains("an hour"));
}

#[test]
fn adjacent_sizes_with_few_survivors_each_form_one_group() {
    let lives: Vec<Life> = (0..20)
        .flat_map(|step| blocks(1664 + step * 48, 0.05, (f64::from(step as u32), 120.0), FOREVER))
        .collect();
    let found = groups(&lives, 60, true, &Surroundings::default());
    assert_eq!((found.len(), found[0].verdict), (1, LeakKind::Growing), "{found:#?}");
    assert!(found[0].size_bytes[0] < 1700 && found[0].size_bytes[1] > 2400);
}

#[test]
fn referenced_blocks_in_a_process_below_its_peak_are_filling_not_growing() {
    let others = Surroundings { hidden_pointers: None, is_below_peak: true };
    let held = groups(&blocks(80, 5.0, ALWAYS, FOREVER), 60, true, &others);
    assert_eq!(held[0].verdict, LeakKind::Filling);
    let lost = groups(&lost(blocks(80, 5.0, ALWAYS, FOREVER)), 60, true, &others);
    assert_eq!(lost[0].verdict, LeakKind::Lost);
}

#[test]
fn the_verdict_is_too_early_with_few_snapshots_and_level_without_growth() {
    assert_eq!(overall(&[], 3, 7).kind, LeakKind::TooEarly);
    assert_eq!(overall(&[], 4, 9).kind, LeakKind::Level);
    let before = LostBefore { size_bytes: [112, 112], count: 1000, bytes: 112_000 };
    let group = lost_before(&before, 60.0, 2).unwrap();
    // Memory that was lost before the first snapshot is found immediately.
    assert_eq!(overall(&[group], 0, 1).kind, LeakKind::LostBefore);
    assert_eq!(lost_before(&LostBefore { bytes: 1000, ..before }, 60.0, 2), None);
}

#[test]
fn blocks_that_accumulate_in_too_few_intervals_are_too_early_and_not_level() {
    let of = |lives: Vec<Life>| groups(&lives, 15, true, &Surroundings::default());
    let found = of(blocks(80, 5.0, ALWAYS, FOREVER));
    assert_eq!(found[0].verdict, LeakKind::TooEarly, "{found:#?}");
    assert!(found[0].because[1].ends_with("too few for steady growth"), "{found:#?}");
    // They replace others.
    let replaced = of(blocks(80, 5.0, ALWAYS, 12.0));
    assert!(replaced.iter().all(|group| group.verdict == LeakKind::Level), "{replaced:#?}");
}

#[test]
fn the_verdict_on_several_groups_names_their_sum_and_the_first_group() {
    let lost_of = |bytes| {
        groups(&lost(blocks(bytes, 5.0, ALWAYS, FOREVER)), 60, true, &Surroundings::default())
    };
    let mut two = lost_of(80);
    assert!(overall(&two, 9, 9).because[0].ends_with(" an hour"), "{two:#?}");
    two.extend(lost_of(4096));
    let because = overall(&two, 9, 9).because;
    assert!(because[0].ends_with(" an hour in 2 groups"), "{because:?}");
    assert!(because[1].starts_with("the first group: "), "{because:?}");
}

#[test]
fn a_small_group_does_not_lead_before_one_that_grows_much_faster() {
    let group = |verdict, bytes_per_hour| {
        let because = vec![format!("{verdict:?}")];
        LeakGroup { bytes_per_hour, ..LeakGroup::new(verdict, because) }
    };
    let both =
        |first, rate| overall(&[group(first, rate), group(LeakKind::Filling, 6400)], 6, 13).kind;
    assert_eq!(both(LeakKind::Growing, 98), LeakKind::Filling);
    assert_eq!(both(LeakKind::Growing, 1000), LeakKind::Growing);
    assert_eq!(both(LeakKind::Lost, 98), LeakKind::Lost);
}

#[test]
fn survivor_cohorts_have_the_minimum_age_and_two_later_snapshots() {
    let cohorts: Vec<f64> = (0..=12).map(|look| f64::from(look) * 5.0).collect();
    assert_eq!(survivors(&cohorts, 30.0), 1..7);
    assert_eq!(survivors(&cohorts, 0.0), 1..11);
    assert_eq!(survivors(&cohorts, 60.0), 1..1);
    assert_eq!(survivors(&[], 0.0), 1..1);
}

#[test]
fn the_interval_of_an_estimate_covers_the_true_value_in_most_samples() {
    // If each place holds several blocks, they are sampled place by place.
    let mut covered = 0;
    for seed in 0..200_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut truth, mut sampled, mut parts) = (0, 0, [0_u64; PARTS]);
        for _ in 0..4000 {
            let in_place = next() % 4;
            truth += in_place;
            if next() % 8 == 0 {
                sampled += in_place;
                parts[(next() % PARTS as u64) as usize] += in_place;
            }
        }
        let class = size_class(80);
        let count = sampled as u32 / 4;
        let counts: Vec<CohortCount> =
            (1..=8).map(|cohort| CohortCount { class, cohort, count }).collect();
        let times: Vec<f64> = (0..=8).map(f64::from).collect();
        let snapshot = |t_s| Snapshot {
            t_s,
            sampled_share: 1.0 / 8.0,
            large_sampled_share: 1.0,
            counts: if t_s == 0.0 { Vec::new() } else { counts.clone() },
        };
        let snapshots = [snapshot(0.0), snapshot(8.0)];
        let sizes = ClassSizes { smallest_bytes: 80, largest_bytes: 80, count: 1, bytes: 80 };
        let history = History {
            snapshots: &snapshots,
            cohorts: &times,
            sizes: &BTreeMap::from([(class, sizes)]),
            parts: &BTreeMap::from([(class, parts)]),
            parts_of_all: &BTreeMap::from([(class, parts)]),
            older_s: 4.0,
        };
        let found = trends(&history, &LostCounts::default());
        let [low, high] = found[0].per_s_interval;
        covered += u32::from((low..=high).contains(&(truth as f64 / 4.0)));
    }
    assert!((180..=200).contains(&covered), "{covered} of 200");
}

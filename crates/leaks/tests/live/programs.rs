//! Checks that each program of `subject.c` has the expected verdict.

use std::process::Command;

use lowtide_leaks::book::MAX_BLOCKS;
use lowtide_model::leaks::{Holder, LeakGroup, LeakGroupKind, LeakKind};

use crate::subject::{Subject, Watched, compile};

/// A program with its arguments, the steps between two snapshots, and its verdict.
struct Case {
    words: &'static [&'static str],
    steps: u64,
    verdict: LeakKind,
    /// The size of the blocks of the verdict, as counted by the allocator.
    bytes: u64,
}

const CASES: [Case; 19] = [
    Case { words: &["mix", "20000", "500"], steps: 250, verdict: LeakKind::Lost, bytes: 80 },
    Case { words: &["cycles", "400"], steps: 80, verdict: LeakKind::Lost, bytes: 80 },
    Case { words: &["busy", "400"], steps: 80, verdict: LeakKind::Lost, bytes: 80 },
    Case { words: &["restless", "400"], steps: 80, verdict: LeakKind::Lost, bytes: 80 },
    Case { words: &["crowd", "500"], steps: 200, verdict: LeakKind::Growing, bytes: 80 },
    Case { words: &["list", "500"], steps: 200, verdict: LeakKind::Growing, bytes: 80 },
    Case { words: &["local_list", "500"], steps: 200, verdict: LeakKind::Growing, bytes: 80 },
    Case { words: &["double_list", "500"], steps: 200, verdict: LeakKind::Growing, bytes: 80 },
    Case { words: &["tagged", "500"], steps: 200, verdict: LeakKind::Growing, bytes: 64 },
    Case { words: &["queue", "500"], steps: 200, verdict: LeakKind::Backlog, bytes: 80 },
    Case { words: &["buffer", "2"], steps: 1, verdict: LeakKind::Growing, bytes: 0 },
    Case {
        words: &["lost_before", "2000", "20000000"],
        steps: 800,
        verdict: LeakKind::LostBefore,
        bytes: 112,
    },
    Case { words: &["recent", "500"], steps: 200, verdict: LeakKind::Level, bytes: 0 },
    Case { words: &["zeroed", "2000"], steps: 800, verdict: LeakKind::Level, bytes: 0 },
    Case { words: &["refill", "500"], steps: 500, verdict: LeakKind::Level, bytes: 0 },
    Case { words: &["warm_up", "2000"], steps: 1000, verdict: LeakKind::Level, bytes: 0 },
    Case { words: &["double_buffer", "5000"], steps: 1, verdict: LeakKind::Level, bytes: 0 },
    Case { words: &["arenas"], steps: 8, verdict: LeakKind::Level, bytes: 0 },
    Case { words: &["grow", "3000"], steps: 1200, verdict: LeakKind::Level, bytes: 0 },
];

const LOOKS: usize = 13;

fn watch(case: &Case, looks: usize, max_blocks: usize) -> Watched {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), &["-O2"]);
    let mut subject = Subject::start(Command::new(program).args(case.words));
    if case.words[0] == "lost_before" {
        subject.wait_for(1);
    }
    subject.watch(looks, case.steps, max_blocks)
}

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.words[0] == name).unwrap()
}

/// Returns the group of a verdict.
fn group<'w>(case: &Case, watched: &'w Watched) -> &'w LeakGroup {
    let report = &watched.report;
    assert_eq!(report.verdict.kind, case.verdict, "{:?}: {report:#?}", case.words);
    let bad: Vec<&LeakGroup> =
        report.groups.iter().filter(|group| group.verdict == case.verdict).collect();
    let of_size = bad.iter().find(|group| group.size_bytes == [case.bytes; 2]);
    assert!(bad.len() == 1, "{:?}: {bad:#?}", case.words);
    of_size.unwrap_or_else(|| panic!("{:?}: {bad:#?}", case.words))
}

/// Checks that a count is within its bounds, with a tolerance of 5 %.
fn assert_agrees(name: &str, count: u64, [least, most]: [u64; 2]) {
    let (count, least, most) = (count as f64, least as f64, most as f64);
    assert!(
        (least * 0.95 - 2.0..=most * 1.05 + 2.0).contains(&count),
        "{name}: {least} {count} {most}"
    );
}

/// Checks that a program that does not leak has no suspicious group.
fn is_level(name: &str) {
    let watched = watch(case(name), LOOKS, MAX_BLOCKS);
    let bad =
        |group: &&LeakGroup| group.verdict.is_growth() || group.verdict == LeakKind::LostBefore;
    let bad: Vec<&LeakGroup> = watched.report.groups.iter().filter(bad).collect();
    assert!(bad.is_empty(), "{name}: {bad:#?}");
}

#[test]
fn lost_blocks_among_many_others_are_counted() {
    let case = case("mix");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    let group = group(case, &watched);
    assert_agrees("mix", group.count, watched.lost);
    let per_hour = watched.lost.map(|lost| (lost * 80) as f64 / watched.seconds * 3600.0);
    assert_agrees("rate", group.bytes_per_hour, per_hour.map(|bytes| bytes as u64));
    assert_eq!(group.bytes_per_hour_interval, [group.bytes_per_hour; 2]);
    assert!(group.unreachable_share.is_some_and(|share| share >= 0.9), "{group:#?}");
}

#[test]
fn unreachable_cycles_are_reported_as_lost() {
    let case = case("cycles");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    assert_agrees("cycles", group(case, &watched).count, watched.lost);
}

#[test]
fn a_leak_is_found_while_threads_keep_all_processors_busy() {
    let case = case("busy");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    assert_agrees("busy", group(case, &watched).count, watched.lost);
}

#[test]
fn a_leak_is_found_while_the_program_forks_and_loads_libraries() {
    let case = case("restless");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    assert_agrees("restless", group(case, &watched).count, watched.lost);
}

#[test]
fn a_growing_list_is_found_in_a_process_with_a_thousand_threads() {
    let case = case("crowd");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    let group = group(case, &watched);
    assert_agrees("crowd", group.count, watched.kept);
    let holder = "variable head of subject";
    assert!(group.roots.iter().any(|root| root.what == holder && root.share > 0.9), "{group:#?}");
}

#[test]
fn a_queue_into_which_more_comes_than_goes_is_a_backlog() {
    let case = case("queue");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    let group = group(case, &watched);
    assert_eq!(group.holders[0].what, "a block of 80 bytes, at +0x0", "{group:#?}");
    let per_hour = watched.kept.map(|kept| (kept * 80) as f64 / watched.seconds * 3600.0);
    assert_agrees("rate", group.bytes_per_hour, per_hour.map(|bytes| bytes as u64));
}

#[test]
fn a_buffer_that_becomes_longer_is_a_growing_block_with_its_variable() {
    let watched = watch(case("buffer"), 9, MAX_BLOCKS);
    let report = &watched.report;
    assert_eq!(report.verdict.kind, LeakKind::Growing, "{report:#?}");
    let is_block = |group: &&LeakGroup| group.kind == LeakGroupKind::GrowingBlock;
    let found: Vec<&LeakGroup> = report.groups.iter().filter(is_block).collect();
    let [group] = found[..] else { panic!("{report:#?}") };
    let [before, now] = group.size_bytes;
    assert!(((4 << 20)..now).contains(&before) && group.bytes == now, "{group:#?}");
    let is_held = |holder: &Holder| holder.what == "variable everything of subject";
    assert!(group.holders.iter().any(is_held), "{group:#?}");
}

#[test]
fn blocks_reachable_from_a_variable_are_held_by_it_even_with_tagged_pointers() {
    for (name, holder) in [
        ("list", "variable head of subject"),
        ("double_list", "variable ends of subject"),
        ("tagged", "variable table of subject"),
    ] {
        let case = case(name);
        let watched = watch(case, LOOKS, MAX_BLOCKS);
        let group = group(case, &watched);
        assert_agrees(name, group.count, watched.kept);
        assert_eq!([group.unreachable_share, group.unsure_share], [Some(0.0); 2], "{name}");
        assert!(
            group.roots.iter().any(|root| root.what == holder && root.share > 0.9),
            "{group:#?}"
        );
    }
}

#[test]
fn lost_cycles_are_found_in_the_heaps_of_other_allocators() {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), &["-O2"]);
    for carried in lowtide_allocators::bundled() {
        let library = carried.unpack_into(home.path()).unwrap();
        let mut command = Command::new(&program);
        let mut subject =
            Subject::start(command.args(["cycles", "400"]).env("LD_PRELOAD", &library));
        subject.wait_for(1);
        let watched = subject.watch(LOOKS, 80, MAX_BLOCKS);
        let verdict = &watched.report.verdict;
        assert_eq!(verdict.kind, LeakKind::Lost, "{}: {:#?}", library.display(), watched.report);
    }
}

#[test]
fn blocks_reachable_only_from_a_local_variable_are_not_lost() {
    let case = case("local_list");
    let watched = watch(case, LOOKS, MAX_BLOCKS);
    assert_agrees("local_list", group(case, &watched).count, watched.kept);
}

#[test]
fn memory_lost_before_the_start_is_counted_to_within_one_percent() {
    let case = case("lost_before");
    let watched = watch(case, 6, MAX_BLOCKS);
    let group = group(case, &watched);
    let [least, most] = watched.lost_before.map(|lost| lost as f64);
    assert!((least * 0.99..=most * 1.01).contains(&(group.count as f64)), "{group:#?}");
    assert_eq!(group.bytes_per_hour, 0);
}

#[test]
fn the_leak_rate_of_a_sampled_heap_is_estimated_with_an_interval() {
    let case = case("mix");
    let watched = watch(case, LOOKS, 30_000);
    assert!(watched.report.sampled_share < 1.0, "{:#?}", watched.report);
    let found: Vec<&LeakGroup> =
        watched.report.groups.iter().filter(|g| g.verdict == LeakKind::Lost).collect();
    assert!(found.iter().all(|group| group.size_bytes == [80; 2]), "{found:#?}");
    let [low, high] = found[0].bytes_per_hour_interval;
    assert!(low < found[0].bytes_per_hour && found[0].bytes_per_hour < high, "{found:#?}");
}

#[test]
fn a_cache_of_the_most_recent_blocks_is_level() {
    is_level("recent");
}

#[test]
fn blocks_with_identical_content_are_level() {
    is_level("zeroed");
}

#[test]
fn a_cache_that_is_emptied_and_refilled_is_level() {
    is_level("refill");
}

#[test]
fn a_program_that_has_warmed_up_is_level() {
    is_level("warm_up");
}

#[test]
fn a_double_buffer_is_level() {
    is_level("double_buffer");
}

#[test]
fn arenas_that_are_created_and_destroyed_are_level() {
    is_level("arenas");
}

#[test]
fn arrays_that_realloc_grows_to_a_maximum_size_are_level() {
    is_level("grow");
}

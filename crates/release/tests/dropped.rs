//! The pages that a release drops, and how many of them came back later.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/refault.rs"]
mod refault;
mod support;

use lowtide_model::release::{Release, ReleaseOutcome};
use lowtide_probe::target::TargetError;
use lowtide_release::{DroppedRanges, Options, PreparedRelease};
use refault::{Refault, options};

const HUGE: u64 = 2 << 20;

fn release(program: &Refault) -> (Release, DroppedRanges) {
    let (target, options) = (program.target(), options());
    let (release, dropped) = PreparedRelease::prepare(&target, &options).unwrap().run().unwrap();
    assert_eq!(release.outcome, ReleaseOutcome::Released, "{release:?}");
    assert!(release.cpu_s > 0.0 && release.cpu_s.is_finite(), "{release:?}");
    (release, dropped)
}

/// Asserts that a value differs from the expected one by at most one part in `parts`.
fn is_near(value: u64, expected: u64, parts: u64) {
    assert!(value.abs_diff(expected) <= expected / parts, "{value} is not {expected}");
}

#[test]
fn dropped_pages_count_as_back_only_after_the_program_touches_them() {
    // The first fits into the sample, the second does not.
    for (megabytes, parts) in [(64, 1000), (1800, 20)] {
        let mut program = Refault::start(megabytes, "small");
        let (release, dropped) = release(&program);
        is_near(dropped.bytes(), release.returned_bytes, parts);
        assert_eq!(dropped.came_back(&program.target()).unwrap().bytes, 0);
        let before = program.heap_bytes("Rss:");
        program.send("touch");
        let grown = program.heap_bytes("Rss:") - before;
        assert!(grown > release.returned_bytes / 3, "{grown}");
        let back = dropped.came_back(&program.target()).unwrap();
        // In the heap, only pages that were dropped can have become resident.
        is_near(back.bytes, grown, parts);
        assert!(back.huge_bytes.is_none_or(|bytes| bytes == 0), "{back:?}");
    }
}

#[test]
fn memory_that_is_no_longer_part_of_the_heap_is_not_counted() {
    let mut program = Refault::start(32, "small");
    let (_, dropped) = release(&program);
    program.send("share");
    assert_eq!(dropped.came_back(&program.target()).unwrap().bytes, 0);
}

#[test]
fn a_replaced_program_and_an_ended_one_cause_different_errors() {
    let mut program = Refault::start(32, "small");
    let (_, dropped) = release(&program);
    let target = program.target();
    assert_eq!(program.send("exec"), "ready");
    let replaced = dropped.came_back(&target);
    assert!(matches!(replaced, Err(TargetError::Replaced(_))), "{replaced:?}");
    let (_, dropped) = release(&program);
    program.kill();
    let gone = dropped.came_back(&target);
    assert!(matches!(gone, Err(TargetError::Gone(_))), "{gone:?}");
}

#[test]
fn a_release_that_drops_nothing_has_an_empty_sample() {
    let mut program = Refault::start(32, "small");
    let target = program.target();
    let dry = Options { dry_run: true, ..options() };
    let (_, dropped) = PreparedRelease::prepare(&target, &dry).unwrap().run().unwrap();
    assert_eq!((dropped.bytes(), dropped.came_back(&target).unwrap().bytes), (0, 0));
    program.kill();
    assert!(matches!(dropped.came_back(&target), Err(TargetError::Gone(_))));
}

#[test]
#[ignore = "needs transparent huge pages and Linux 6.7"]
fn pages_that_khugepaged_fills_are_reported_as_huge() {
    let mut program = Refault::start(64, "small");
    let (release, dropped) = release(&program);
    program.send("collapse");
    let back = dropped.came_back(&program.target()).unwrap();
    assert!(back.bytes > release.returned_bytes / 4 * 3, "{back:?} {release:?}");
    assert_eq!(back.huge_bytes, Some(back.bytes));
}

#[test]
#[ignore = "needs transparent huge pages"]
fn keep_huge_pages_drops_only_entirely_free_huge_pages() {
    let program = Refault::start(96, "huge");
    let before = program.heap_bytes("AnonHugePages:");
    assert!(before > 80 << 20, "{before}");
    let keep = Options { keep_huge_pages: true, ..options() };
    let dry = Options { dry_run: true, ..keep.clone() };
    let predicted = lowtide_release::release(&program.target(), &dry).unwrap().predicted_bytes;
    let kept = lowtide_release::release(&program.target(), &keep).unwrap();
    assert_eq!(kept.outcome, ReleaseOutcome::Released, "{kept:?}");
    assert_eq!((kept.predicted_bytes, kept.split_bytes), (predicted, 0), "{kept:?}");
    // A third of the heap is free as a whole, and its ends may be in small pages.
    let after = program.heap_bytes("AnonHugePages:");
    assert!(before - after > 28 << 20 && before - after < 34 << 20, "{before} {after}");
    assert!((before - after..before - after + 2 * HUGE).contains(&kept.returned_bytes), "{kept:?}");
    assert!(predicted.abs_diff(kept.returned_bytes) < HUGE, "{kept:?}");
    // Without the option, every second block of another third is dropped as well.
    let all = lowtide_release::release(&program.target(), &options()).unwrap();
    assert!(all.returned_bytes > 10 << 20, "{all:?}");
    assert!(program.heap_bytes("AnonHugePages:") < after - (24 << 20), "{all:?}");
}

#[test]
fn keep_huge_pages_still_drops_all_free_small_pages() {
    let program = Refault::start(96, "small");
    let keep = Options { keep_huge_pages: true, ..options() };
    let kept = lowtide_release::release(&program.target(), &keep).unwrap();
    assert!(kept.returned_bytes > 40 << 20, "{kept:?}");
    let all = lowtide_release::release(&program.target(), &options()).unwrap();
    assert_eq!(all.returned_bytes, 0, "{all:?}");
}

//! Releases that drop the free ranges of an earlier walk.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/refault.rs"]
mod refault;
mod support;

use std::sync::Arc;

use lowtide_model::release::{Release, ReleaseOutcome};
use lowtide_release::{KeptWalk, Options, PreparedRelease, Walk};
use refault::{Refault, options};

/// Returns the free ranges of a program, and how many bytes a release would return.
fn walk(program: &Refault) -> (Options, u64) {
    let walk = KeptWalk::make(&program.target(), &options()).unwrap().unwrap();
    let predicted_bytes = walk.predicted_bytes();
    (Options { walk: Walk::Earlier(Arc::new(walk)), ..options() }, predicted_bytes)
}

fn release(program: &Refault, options: &Options) -> Release {
    let target = program.target();
    let (release, _) = PreparedRelease::prepare(&target, options).unwrap().run().unwrap();
    assert_eq!(release.outcome, ReleaseOutcome::Released, "{release:?}");
    release
}

#[test]
fn the_ranges_of_an_earlier_walk_are_dropped_in_one_pass_and_counted_once() {
    let program = Refault::start(64, "small");
    let (options, predicted_bytes) = walk(&program);
    assert!(predicted_bytes > 24 << 20, "{predicted_bytes}");
    let before = program.heap_bytes("Rss:");
    let first = release(&program, &options);
    assert_eq!((first.passes, first.predicted_bytes), (1, predicted_bytes), "{first:?}");
    assert_eq!(before - program.heap_bytes("Rss:"), first.returned_bytes, "{first:?}");
    assert!(first.returned_bytes > predicted_bytes / 10 * 9, "{first:?}");
    // The pages are gone: what is not resident is not counted again.
    let second = release(&program, &options);
    assert!(second.returned_bytes < first.returned_bytes / 10, "{second:?}");
}

#[test]
fn memory_that_is_in_use_again_is_left_alone_and_the_rest_is_found_by_a_walk() {
    let mut program = Refault::start(64, "small");
    let (options, predicted_bytes) = walk(&program);
    program.send("touch");
    let before = program.heap_bytes("Rss:");
    let release = release(&program, &options);
    assert!(release.returned_bytes < predicted_bytes / 10 * 7, "{release:?}");
    assert!(release.returned_bytes > predicted_bytes / 10, "{release:?}");
    assert_eq!(before - program.heap_bytes("Rss:"), release.returned_bytes, "{release:?}");
}

#[test]
fn a_walk_of_another_program_is_not_used() {
    let mut program = Refault::start(64, "small");
    let (options, _) = walk(&program);
    assert_eq!(program.send("exec"), "ready");
    let release = release(&program, &options);
    assert!(release.returned_bytes > 24 << 20, "{release:?}");
}

#[test]
fn nothing_is_kept_of_a_program_without_free_memory_or_of_an_ended_one() {
    let mut program = Refault::start(64, "small");
    release(&program, &options());
    let target = program.target();
    assert!(KeptWalk::make(&target, &options()).unwrap().is_none());
    program.kill();
    assert!(KeptWalk::make(&target, &options()).is_err());
}

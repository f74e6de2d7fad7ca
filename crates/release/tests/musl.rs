//! Releases of musl's heap: what a release predicts is what it returns, to the byte; and threads
//! that musl does not count never run one.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/hoard.rs"]
mod hoard;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use hoard::Hoard;
use lowtide_model::release::{Release, ReleaseOutcome, RunsIn};
use lowtide_release::{Options, release};
use lowtide_testing::{Musl, MuslLinkage};
use tempfile::TempDir;

/// Minimum size of a hoard, in bytes.
const HOARD: u64 = 10 << 20;

/// Maximum time until a release returns something.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Releases, or predicts it.
fn act(hoard: &Hoard, dry_run: bool) -> Release {
    // This test determines which versions count as tested.
    let options = Options { dry_run, untested: true, ..Options::default() };
    release(&hoard.target, &options).unwrap()
}

#[test]
#[ignore = "needs musl-dev; LOWTIDE_TEST_MUSLS lists directories with other versions, with colons between"]
fn nothing_breaks_while_musl_ceases_to_take_locks_and_takes_them_again() {
    // Number of releases of a program that return something.
    let wanted = std::env::var("LOWTIDE_TORTURE_RELEASES").ok();
    let wanted = wanted.map_or(1, |releases| releases.parse().unwrap());
    let home = tempfile::tempdir().unwrap();
    for (musl, linkage) in
        Musl::all().iter().flat_map(|musl| MuslLinkage::ALL.map(|linkage| (musl, linkage)))
    {
        let what = format!("musl {}, {linkage:?}", musl.version());
        let program = compiled(&home, musl, linkage);
        let words = ["0", "0", "7", "turns"].map(str::to_owned);
        let mut hoard = Hoard::start_with(&program, &words);
        let begin = Instant::now();
        let (mut releases, mut returned, mut skipped) = (0, 0, 0);
        let mut refused = BTreeMap::new();
        while returned < wanted {
            assert!(begin.elapsed() < TIMEOUT * wanted, "{what}: {releases} releases, {refused:?}");
            let released = act(&hoard, false);
            releases += 1;
            returned += u32::from(released.returned_bytes > 0);
            skipped += released.skipped_ranges;
            if released.outcome == ReleaseOutcome::Refused {
                assert_eq!(released.may_pass, Some(true), "{what}: {released:?}");
                *refused.entry(released.reason.unwrap()).or_insert(0) += 1;
            }
        }
        println!(
            "{what}: {releases} releases, {returned} returned something, {skipped} ranges rejected, {refused:?}"
        );
        hoard.check(&what);
    }
}

fn compiled(home: &TempDir, musl: &Musl, linkage: MuslLinkage) -> std::path::PathBuf {
    let program = home.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/counted.c");
    musl.compile(linkage, &program, [source, "-O1".into(), "-pthread".into(), "-s".into()]);
    program
}

#[test]
#[ignore = "needs musl-dev; LOWTIDE_TEST_MUSLS lists directories with other versions, with colons between"]
fn a_release_of_musl_returns_what_it_predicts_to_the_byte() {
    let home = tempfile::tempdir().unwrap();
    for (musl, linkage) in
        Musl::all().iter().flat_map(|musl| MuslLinkage::ALL.map(|linkage| (musl, linkage)))
    {
        let program = compiled(&home, musl, linkage);
        for threads in [0, 3] {
            let what = format!("musl {}, {linkage:?}, {threads} more threads", musl.version());
            let mut hoard = Hoard::start(&program, threads, 0);
            for _ in 0..2 {
                let predicted = act(&hoard, true).predicted_bytes;
                assert!(predicted > HOARD, "{what}: {predicted}");
                let released = act(&hoard, false);
                assert_eq!(released.outcome, ReleaseOutcome::Released, "{what}: {released:?}");
                assert_eq!(released.runs_in, Some(RunsIn::Slices), "{what}");
                assert_eq!(
                    (released.predicted_bytes, released.returned_bytes, released.skipped_ranges),
                    (predicted, predicted, 0),
                    "{what}"
                );
                let again = act(&hoard, false);
                assert_eq!(again.outcome, ReleaseOutcome::NothingToRelease, "{what}: {again:?}");
                hoard.check(&what);
            }
        }
    }
}

#[test]
#[ignore = "needs musl-dev"]
fn memory_of_musl_is_left_alone_if_threads_take_no_part_in_its_locks() {
    let home = tempfile::tempdir().unwrap();
    let program = compiled(&home, &Musl::systems(), MuslLinkage::Static);
    for threads in [0, 2] {
        let mut hoard = Hoard::start(&program, threads, 1);
        let left_alone = act(&hoard, false);
        assert_eq!(left_alone.outcome, ReleaseOutcome::Refused, "{left_alone:?}");
        let reason = left_alone.reason.unwrap();
        assert!(reason.contains("other threads than musl counts"), "{threads}: {reason}");
        hoard.check("after a refusal");
    }
}

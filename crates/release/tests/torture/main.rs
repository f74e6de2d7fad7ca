//! Releases memory repeatedly from a program that verifies every byte of its heap, every wait and
//! every register (`tests/programs/torture`).
//!
//! By default it is short. The long form, whose results are in `bench/`, is the same test with
//!
//! - `LOWTIDE_TORTURE_RELEASES=1000`: starts programs on each glibc or allocator until this number
//!   of releases has returned something;
//! - `LOWTIDE_TORTURE_CONTROLS=3`: runs the first programs of each shape once more without
//!   releases, before or after, to compare the lateness of their waits;
//! - `LOWTIDE_TORTURE_SEED=100`: seed of the first program of each shape; the next ones count on
//!   from there;
//! - `LOWTIDE_TORTURE_MS=20000`: run time of a program;
//! - `LOWTIDE_TORTURE_ARGUMENTS="mb=8 waits=0"`: further arguments of the programs: with less
//!   memory and without its waits, a program makes a hoard several times as often;
//! - `LOWTIDE_TORTURE_SHAPE="one thread"`: only programs of this shape;
//! - `LOWTIDE_TORTURE_DELAY_MS=20`: maximum delay between a walk and the operations that follow it;
//! - `LOWTIDE_TORTURE_METHOD=purge`: calls the allocator's own purge instead;
//! - `LOWTIDE_TORTURE_BESIDE=1`: number of programs that run in parallel;
//! - `LOWTIDE_TORTURE_RECORD=FILE`: appends a line of JSON per program.
//!
//! The controls show that the test finds defects. With `RUSTFLAGS='--cfg
//! lowtide_control="unchecked"'`, the code for allocators other than glibc's checks nothing before
//! it drops pages. With `"unguarded"`, it takes neither locks nor claims, and waits for a
//! millisecond between the checks and the drop. In both cases, programs must break.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod record;
mod run;
mod subject;
mod tally;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;

use lowtide_testing::{Musl, MuslLinkage};
use record::{Kind, Records};
use run::{Draw, Run};
use subject::{Library, Shape};
use tally::Tally;

/// The extent of a test.
struct Scale {
    /// Number of releases that return something, on each glibc.
    releases: u64,
    /// Number of programs of each shape that also run without releases.
    controls: u64,
    seed: u64,
    ms: u64,
    beside: usize,
}

impl Scale {
    /// Reads it from the environment.
    fn from_environment() -> Self {
        let number = |name: &str| -> Option<u64> {
            let text = std::env::var(format!("LOWTIDE_TORTURE_{name}")).ok()?;
            Some(text.parse().unwrap_or_else(|_| panic!("LOWTIDE_TORTURE_{name} is no number")))
        };
        let releases = number("RELEASES");
        let is_long = releases.is_some();
        Self {
            releases: releases.unwrap_or(1),
            controls: number("CONTROLS").unwrap_or(if is_long { 3 } else { 0 }),
            seed: number("SEED").unwrap_or(1),
            ms: number("MS").unwrap_or(if is_long { 20_000 } else { 3_000 }),
            beside: number("BESIDE").map_or(if is_long { 1 } else { 2 }, |n| n as usize),
        }
    }
}

#[test]
fn nothing_breaks_in_a_program_during_repeated_releases() {
    let scale = Scale { releases: 1, controls: 0, seed: 1, ms: 2_500, beside: 2 };
    torture(&[Library::Systems], &scale).assert_nothing_broke();
}

#[test]
#[ignore = "needs other glibcs in the directories that LOWTIDE_TEST_GLIBCS lists, with colons between (.ci/fetch-glibc)"]
fn nothing_breaks_under_any_glibc() {
    let directories = std::env::var("LOWTIDE_TEST_GLIBCS").expect("LOWTIDE_TEST_GLIBCS is not set");
    let others = directories.split(':').map(|directory| Library::In(PathBuf::from(directory)));
    let libraries: Vec<_> = [Library::Systems].into_iter().chain(others).collect();
    let records = torture(&libraries, &Scale::from_environment());
    print!("{}", records.summary());
    records.assert_nothing_broke();
}

#[test]
fn nothing_breaks_with_another_allocator() {
    let scale = Scale { releases: 1, controls: 0, seed: 1, ms: 2_500, beside: 2 };
    let home = tempfile::tempdir().unwrap();
    let libraries: Vec<Library> = lowtide_allocators::bundled()
        .map(|carried| Library::Preloaded(carried.unpack_into(home.path()).unwrap()))
        .collect();
    assert!(!libraries.is_empty());
    torture(&libraries, &scale).assert_nothing_broke();
}

#[test]
#[ignore = "needs allocators, whose libraries LOWTIDE_TEST_ALLOCATORS lists, with colons between"]
fn nothing_breaks_with_any_allocator() {
    let paths =
        std::env::var("LOWTIDE_TEST_ALLOCATORS").expect("LOWTIDE_TEST_ALLOCATORS is not set");
    let libraries: Vec<_> =
        paths.split(':').map(|path| Library::Preloaded(PathBuf::from(path))).collect();
    let records = torture(&libraries, &Scale::from_environment());
    print!("{}", records.summary());
    records.assert_nothing_broke();
}

#[test]
#[ignore = "needs musl-dev; in the long form, LOWTIDE_TEST_MUSLS lists directories with other versions, with colons between"]
fn nothing_breaks_with_any_musl() {
    let is_long = std::env::var_os("LOWTIDE_TORTURE_RELEASES").is_some();
    let (musls, linkages, scale) = match is_long {
        true => (Musl::all(), &MuslLinkage::ALL[..], Scale::from_environment()),
        false => {
            let scale = Scale { releases: 1, controls: 0, seed: 1, ms: 1_500, beside: 2 };
            (vec![Musl::systems()], &[MuslLinkage::Dynamic, MuslLinkage::Static][..], scale)
        }
    };
    let of = |musl: Musl| linkages.iter().map(move |linkage| Library::Musl(musl.clone(), *linkage));
    let libraries: Vec<_> = musls.into_iter().flat_map(of).collect();
    let records = torture(&libraries, &scale);
    print!("{}", records.summary());
    records.assert_nothing_broke();
}

/// Reads the shapes from the environment.
fn shapes() -> Vec<Shape> {
    let Ok(name) = std::env::var("LOWTIDE_TORTURE_SHAPE") else { return Shape::ALL.to_vec() };
    let shape = Shape::ALL.into_iter().find(|shape| shape.name() == name);
    vec![shape.unwrap_or_else(|| panic!("LOWTIDE_TORTURE_SHAPE is no shape: {name}"))]
}

/// Runs all glibcs and shapes, some in parallel.
fn torture(libraries: &[Library], scale: &Scale) -> Records {
    let shapes = shapes();
    let jobs =
        libraries.iter().flat_map(|library| shapes.iter().map(move |shape| (library, *shape)));
    let jobs = Mutex::new(jobs.collect::<VecDeque<_>>());
    let records = Records::open();
    std::thread::scope(|scope| {
        for _ in 0..scale.beside {
            scope.spawn(|| {
                loop {
                    // In a separate statement, so that the lock is not held during the job.
                    let job = jobs.lock().unwrap().pop_front();
                    let Some((library, shape)) = job else { return };
                    torture_one(library, shape, scale, &records);
                }
            });
        }
    });
    records
}

/// Starts programs until enough releases have returned something.
fn torture_one(library: &Library, shape: Shape, scale: &Scale, records: &Records) {
    /// Maximum number of successive programs from which nothing is returned: on a busy machine, it
    /// takes a long time until a hoard is seen, and each program starts with one.
    const MAX_IN_VAIN: u64 = 16;
    let wanted = scale.releases.div_ceil(shapes().len() as u64);
    let (mut returned, mut in_vain) = (0, 0);
    for seed in scale.seed.. {
        let run = Run { library: library.clone(), shape, seed, ms: scale.ms };
        let mut kinds = vec![Kind::Release];
        if seed < scale.seed + scale.controls {
            kinds.insert(Draw::new(seed).below(2) as usize, Kind::Control);
        }
        let mut here = Tally::default();
        for kind in kinds {
            let record = run.go(kind);
            here = here.and(&record.tally);
            records.add(record);
        }
        returned += here.returned;
        in_vain = if here.returned == 0 { in_vain + 1 } else { 0 };
        assert!(in_vain < MAX_IN_VAIN, "{run:?}: nothing was returned: {}", here.json());
        if returned >= wanted {
            return;
        }
    }
}

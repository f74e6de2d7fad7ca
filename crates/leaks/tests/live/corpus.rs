//! Checks what is lost and what is kept in each program of `corpus.c`.

use std::process::Command;
use std::thread;

use lowtide_testing::compile;

use crate::labelled::{Counts, LabelledProgram};

/// Programs whose blocks are kept, but in a way that no tool can see: all of them seem lost.
const INVISIBLE: [&str; 3] = ["xored", "compressed", "in_pipe"];
/// Programs whose lost blocks may seem reachable, because memory of ended threads is kept for new
/// ones, and still has their pointers.
const MAY_SEEM_REACHABLE: [&str; 2] = ["in_ended_thread", "after_churn"];
/// Minimum share of lost blocks that are found: a register may lead to a few of them.
const MIN_FOUND: f64 = 0.75;

/// Returns what is wrong with the findings on a program.
fn fault(name: &str, [lost, kept]: [Counts; 2]) -> Option<String> {
    assert_eq!([lost.unknown, kept.unknown], [0; 2], "{name}: no block at some addresses");
    let has_false_alarms = kept.lost > 0 && !INVISIBLE.contains(&name);
    let misses = f64::from(lost.lost) < f64::from(lost.all()) * MIN_FOUND;
    let misses = misses && !MAY_SEEM_REACHABLE.contains(&name);
    (has_false_alarms || misses).then(|| format!("{name}: lost {lost:?}, kept {kept:?}\n"))
}

#[test]
fn lost_blocks_are_found_in_many_structures_and_kept_blocks_are_not_lost() {
    let home = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/corpus.c");
    let library = home.path().join("libcorpus.so");
    compile(&library, ["-shared", "-fPIC", "-DLIBRARY", source]);
    let program = home.path().join("corpus");
    compile(&program, ["-O1", "-pthread", source]);
    let names = Command::new(&program).output().unwrap().stdout;
    let names = String::from_utf8(names).unwrap();
    let names: Vec<&str> = names.lines().collect();
    assert!(names.len() >= 30, "{names:?}");
    // Each search waits for some seconds.
    let mut faults = String::new();
    for some in names.chunks(8) {
        let found: Vec<Option<String>> = thread::scope(|scope| {
            let search = |name: &'_ str| {
                let mut command = Command::new(&program);
                fault(name, LabelledProgram::start(command.arg(name).arg(&library)).search())
            };
            let started: Vec<_> =
                some.iter().map(|name| scope.spawn(move || search(name))).collect();
            started.into_iter().map(|search| search.join().unwrap()).collect()
        });
        faults.extend(found.into_iter().flatten());
    }
    assert!(faults.is_empty(), "{faults}");
}

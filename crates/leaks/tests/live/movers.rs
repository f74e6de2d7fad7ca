//! Checks that blocks whose pointers move constantly are not called lost, and that lost ones are
//! found beside them: the programs of `movers.c`.

use std::process::Command;
use std::thread;

use lowtide_testing::compile;

use crate::labelled::LabelledProgram;

/// Minimum share of lost blocks that are found: a register may lead to a few of them.
const MIN_FOUND: f64 = 0.75;

#[test]
fn blocks_whose_pointers_move_constantly_are_not_lost_and_lost_ones_are_found_beside_them() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("movers");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/movers.c");
    compile(&program, ["-O1", "-pthread", source]);
    let names = Command::new(&program).output().unwrap().stdout;
    let names = String::from_utf8(names).unwrap();
    let names: Vec<&str> = names.lines().collect();
    let mut faults = String::new();
    // Each search waits for some seconds.
    for some in names.chunks(3) {
        let search =
            |name: &'_ str| LabelledProgram::start(Command::new(&program).arg(name)).search();
        let found = thread::scope(|scope| {
            let started: Vec<_> =
                some.iter().map(|name| scope.spawn(move || search(name))).collect();
            started.into_iter().map(|search| search.join().unwrap()).collect::<Vec<_>>()
        });
        for (name, [lost, kept]) in some.iter().zip(found) {
            // So many pointers of a tree move that what is lost beside it can be in doubt.
            let found = if *name == "turn" { lost.lost + lost.unsure } else { lost.lost };
            let misses = f64::from(found) < f64::from(lost.all()) * MIN_FOUND;
            let line = format!("{name}: lost {lost:?}, kept {kept:?}\n");
            print!("{line}");
            if kept.lost > 0 || misses {
                faults += &line;
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

//! Types and holders of real programs.

use std::path::Path;
use std::process::Command;

use lowtide_leaks::book::MAX_BLOCKS;
use lowtide_model::leaks::{LeakGroup, LeakKind, LeakReport};

use crate::subject::Subject;

const LOOKS: usize = 13;
/// Steps between two snapshots.
const STEPS: u64 = 60;

fn watch(command: &mut Command) -> LeakReport {
    let mut subject = Subject::start(command);
    subject.wait_for(1);
    subject.watch(LOOKS, STEPS, MAX_BLOCKS).report
}

/// Returns the group of a verdict whose blocks have a type.
fn of_type<'r>(report: &'r LeakReport, verdict: LeakKind, name: &str) -> &'r LeakGroup {
    let is_it =
        |group: &&LeakGroup| group.verdict == verdict && group.block_type.as_deref() == Some(name);
    report.groups.iter().find(is_it).unwrap_or_else(|| panic!("{verdict:?} {name}: {report:#?}"))
}

pub(crate) fn source(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/types").join(name)
}

#[test]
#[ignore = "needs a C++ compiler (Debian: g++)"]
fn cpp_types_are_named_even_in_a_stripped_program() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("subject");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/types/sessions.cc");
    lowtide_testing::compile_with("g++", &program, ["-O2", "-pthread", source]);
    let report = watch(&mut Command::new(&program));
    of_type(&report, LeakKind::Lost, "C++ Session");
    let pools = of_type(&report, LeakKind::Growing, "C++ Pool<double>");
    assert!(pools.roots.iter().any(|root| root.what == "variable pools of subject"), "{pools:#?}");
    // The names of the sessions are lost with them.
    let names = report.groups.iter().find(|group| {
        group.verdict == LeakKind::Lost
            && group.holders.first().is_some_and(|holder| holder.what == "C++ Session")
    });
    assert!(names.is_some(), "{report:#?}");
    let in_registry = |group: &&LeakGroup| {
        group.roots.first().is_some_and(|root| root.what.starts_with("variable registry"))
    };
    assert_eq!(report.groups.iter().filter(in_registry).count(), 2, "{report:#?}");

    assert!(Command::new("strip").arg(&program).status().unwrap().success());
    let report = watch(&mut Command::new(&program));
    of_type(&report, LeakKind::Lost, "C++ Session");
    of_type(&report, LeakKind::Growing, "C++ Pool<double>");
}

#[test]
fn a_rust_cycle_is_reported_as_lost_and_a_trait_object_with_its_type() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("cycle");
    let mut rustc = Command::new("rustc");
    rustc.args(["-O", "--edition", "2021", "-o"]).arg(&program).arg(source("cycle.rs"));
    assert!(rustc.status().unwrap().success());
    let report = watch(&mut Command::new(program));
    let lost = report.groups.iter().find(|group| group.verdict == LeakKind::Lost);
    let holders = &lost.unwrap_or_else(|| panic!("{report:#?}")).holders;
    assert!(
        holders.iter().any(|holder| holder.what.contains("a block of 80 bytes")),
        "{holders:?}"
    );
    of_type(&report, LeakKind::Growing, "Rust cycle::Subscription");
}

#[test]
#[ignore = "needs python3"]
fn python_types_and_variables_are_named_and_lost_blocks_of_an_extension_are_found() {
    let seen = || watch(Command::new("python3").arg(source("cache.py")));
    let report = seen();
    of_type(&report, LeakKind::Growing, "Python Session");
    let lost = report.groups.iter().find(|group| group.verdict == LeakKind::Lost);
    assert_eq!(lost.map(|group| group.size_bytes), Some([320, 320]), "{report:#?}");
    // No path leads through a table that the program replaces by a larger one meanwhile.
    let variable = "variable cache of module __main__ (cache.py)";
    let is_named = |report: LeakReport| {
        let sessions = of_type(&report, LeakKind::Growing, "Python Session");
        sessions.holders.iter().any(|holder| holder.what == variable)
    };
    assert!(is_named(report) || (0..5).any(|_| is_named(seen())), "never named");
}

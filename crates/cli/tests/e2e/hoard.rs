//! `subjects/hoard`: each mode is checked against its expected verdict. Requires only the C
//! compiler that the other tests require, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::expected::{Expected, folder};
use crate::inspect::{self, plain};
use crate::support::{number, study, until};

/// Arguments for about 100 MiB, and for the shortest run that fills them.
const SMALL: [&str; 5] = ["threads=4", "mib=16", "main=32", "turns=2", "pause=1"];

fn build() -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hoard");
    let source = folder("hoard").join("hoard.c").display().to_string();
    let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", &source];
    lowtide_testing::compile(&program, flags);
    program
}

/// Inspects the program once it has reached the moment, which it then has as its name.
fn look(program: &Path, expected: &Expected) -> Value {
    let mut child = plain(&program.display().to_string())
        .args(SMALL)
        .args(&expected.arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let comm = format!("/proc/{}/comm", child.id());
    until(&expected.moment, || {
        (fs::read_to_string(&comm).unwrap().trim() == expected.moment).then_some(())
    });
    let watch = expected.watch.iter().flat_map(|time| ["--watch", time]).collect::<Vec<_>>();
    let output = inspect::inspect(&watch, child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    inspect::object(&output)
}

#[test]
fn every_mode_of_the_hoard_gets_its_expected_verdict() {
    let program = build();
    for expected in Expected::of("hoard") {
        assert_eq!(expected.allocator, "glibc", "no other is tried yet");
        expected.hold(&look(&program, &expected));
    }
}

#[test]
#[ignore = "takes half a minute, and needs leave to trace other processes"]
fn a_small_study_runs_and_a_release_returns_the_hoard() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/hoard.toml");
    let ran = study(&[
        file,
        "--set",
        "threads=4",
        "--set",
        "mib=8",
        "--set",
        "main=32",
        "--set",
        "pause=100",
        "-a",
        "glibc",
        "--repeat",
        "1",
        "--settle",
        "2s",
    ]);
    let trials = ran.trials();
    let of = |label: &str| {
        let is_it = |t: &&Value| ["tune", "policy"].iter().any(|key| t["treatment"][key] == label);
        trials.iter().find(is_it).unwrap_or_else(|| panic!("{label}"))
    };
    for trial in &trials {
        assert_eq!(trial["allocator_active"], true, "{trial}");
        let heap = &trial["heaps"]["settled"];
        // The main thread's burst is one free block, without a seam and not mmapped.
        assert!(number(heap, "largest_free_bytes") > 25e6, "{trial:#}");
        assert!(number(heap, "free_bytes") >= number(heap, "largest_free_bytes"), "{trial:#}");
    }
    assert_eq!(of("arena_max=1")["heaps"]["settled"]["arenas"], 1);
    assert!(number(of("trim_threshold"), "settled_ratio") > 0.8);
    let released = of("release");
    assert_eq!(released["releases"], 1);
    assert!(number(released, "settled_ratio") < 0.2);
}

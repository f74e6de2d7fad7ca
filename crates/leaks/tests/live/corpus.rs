//! Checks what is lost and what is kept in each program of `corpus.c`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;

use lowtide_leaks::evidence::{BlockState, Search, search};
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::Target;

use lowtide_testing::compile;

/// Programs whose blocks are kept, but in a way that no tool can see: all of them seem lost.
const INVISIBLE: [&str; 3] = ["xored", "compressed", "in_pipe"];
/// Programs whose lost blocks may seem reachable, because memory of ended threads is kept for new
/// ones, and still has their pointers.
const MAY_SEEM_REACHABLE: [&str; 2] = ["in_ended_thread", "after_churn"];
/// Minimum share of lost blocks that are found: a register may lead to a few of them.
const MIN_FOUND: f64 = 0.75;

/// Numbers of blocks that were found to be lost, unsure and reachable.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    lost: u32,
    unsure: u32,
    reachable: u32,
}

impl Counts {
    fn add(&mut self, state: BlockState) {
        match state {
            BlockState::Lost => self.lost += 1,
            BlockState::Unsure => self.unsure += 1,
            BlockState::Reachable => self.reachable += 1,
        }
    }
}

/// A program that waits, with the addresses of its lost blocks and of those that it keeps.
struct Waiting {
    child: Child,
    lost: Vec<u64>,
    kept: Vec<u64>,
}

impl Waiting {
    fn start(program: &Path, name: &str, library: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg(name).arg(library).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut lost, mut kept) = (Vec::new(), Vec::new());
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
            match line.split_once(' ') {
                Some(("lost", text)) => lost.push(address(text)),
                Some((_, text)) => kept.push(address(text)),
                None => return Self { child, lost, kept },
            }
        }
        panic!("{name} has ended")
    }

    /// Returns what is found of the lost blocks, and of those that are kept.
    fn search(&self) -> [Counts; 2] {
        let target = Target::open(self.child.id()).unwrap();
        let mut reader = BlockReader::open(&target).unwrap();
        let interrupt = AtomicBool::new(false);
        let options = Search { notes_registers: true, ..Search::new(&interrupt) };
        let reached = search(&mut reader, &options).unwrap();
        [&self.lost, &self.kept].map(|blocks| {
            let mut counts = Counts::default();
            for at in blocks {
                counts.add(reached.state(*at).unwrap_or_else(|| panic!("no block at {at:#x}")));
            }
            counts
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what is wrong with the findings on a program.
fn fault(name: &str, [lost, kept]: [Counts; 2]) -> Option<String> {
    let all = lost.lost + lost.unsure + lost.reachable;
    let has_false_alarms = kept.lost > 0 && !INVISIBLE.contains(&name);
    let misses = f64::from(lost.lost) < f64::from(all) * MIN_FOUND;
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
            let search =
                |name: &'_ str| fault(name, Waiting::start(&program, name, &library).search());
            let started: Vec<_> =
                some.iter().map(|name| scope.spawn(move || search(name))).collect();
            started.into_iter().map(|search| search.join().unwrap()).collect()
        });
        faults.extend(found.into_iter().flatten());
    }
    assert!(faults.is_empty(), "{faults}");
}

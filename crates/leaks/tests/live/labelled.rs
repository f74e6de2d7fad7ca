//! A running program that has printed which of its blocks are lost, and which it keeps.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lowtide_leaks::evidence::{BlockState, Search, search};
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::Target;

/// Numbers of blocks, by what was found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) lost: u32,
    pub(crate) unsure: u32,
    pub(crate) reachable: u32,
    /// Those at whose address the last walk found no block.
    pub(crate) unknown: u32,
}

impl Counts {
    fn add(&mut self, state: Option<BlockState>) {
        match state {
            Some(BlockState::Lost) => self.lost += 1,
            Some(BlockState::Unsure) => self.unsure += 1,
            Some(BlockState::Reachable) => self.reachable += 1,
            None => self.unknown += 1,
        }
    }

    pub(crate) fn all(&self) -> u32 {
        self.lost + self.unsure + self.reachable + self.unknown
    }
}

/// A running program, with the addresses of its lost blocks and of those that it keeps.
pub(crate) struct LabelledProgram {
    child: Child,
    lost: Vec<u64>,
    kept: Vec<u64>,
}

impl LabelledProgram {
    /// Starts a program, and reads its lines until it is ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
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
        panic!("{command:?} has ended")
    }

    /// Returns what is found of the lost blocks, and of those that are kept.
    pub(crate) fn search(&self) -> [Counts; 2] {
        let target = Target::open(self.child.id()).unwrap();
        let mut reader = BlockReader::open(&target).unwrap();
        let interrupt = AtomicBool::new(false);
        // On a busy machine, the searches that must agree take longer.
        let time = Duration::from_secs(60);
        let options = Search { notes_registers: true, time, ..Search::new(&interrupt) };
        let reached = search(&mut reader, &options).unwrap();
        [&self.lost, &self.kept].map(|blocks| {
            let mut counts = Counts::default();
            for at in blocks {
                counts.add(reached.state(*at));
            }
            counts
        })
    }
}

impl Drop for LabelledProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A program with a hoard, which knows what each of its blocks contains.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use lowtide_probe::target::Target;
use lowtide_testing::Running;

/// `programs/counted.c`.
pub(crate) struct Hoard {
    _child: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) target: Target,
}

impl Hoard {
    /// Starts it with so many threads that the C library counts, and others.
    pub(crate) fn start(program: &Path, threads: u32, uncounted: u32) -> Self {
        let numbers = [threads, uncounted, 7].map(|number| number.to_string());
        Self::start_with(program, &numbers)
    }

    pub(crate) fn start_with(program: &Path, words: &[String]) -> Self {
        let mut child = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let target = Target::open(child.id()).unwrap();
        let mut hoard = Self { _child: child.into(), input, output, target };
        assert_eq!(hoard.line(), "ready\n");
        hoard
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Makes it check its blocks, and make another hoard.
    pub(crate) fn check(&mut self, what: &str) {
        self.input.write_all(b"x").unwrap();
        assert_eq!(self.line(), "sound\n", "{what}");
    }
}

//! A program whose freed memory comes back on request (`programs/refault.c`).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command};
use std::time::Duration;

use lowtide_probe::target::Target;
use lowtide_release::Options;
use lowtide_testing::Running;
use tempfile::TempDir;

use crate::support;

/// The program, which waits. Dropping this ends it.
pub(crate) struct Refault {
    child: Running,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
    _home: TempDir,
}

impl Refault {
    /// Starts it with a heap of this many MiB in `small` or `huge` pages.
    pub(crate) fn start(megabytes: u32, pages: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = support::compile(home.path(), "refault.c", &[]);
        let command = &mut Command::new(program);
        let mut child = support::start(command.arg(megabytes.to_string()).arg(pages));
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut refault = Self { child: child.into(), input, lines, _home: home };
        assert_eq!(refault.read_line(), "ready");
        refault
    }

    pub(crate) fn target(&self) -> Target {
        Target::open(self.child.id()).unwrap()
    }

    /// Sends it a command, and returns its answer.
    pub(crate) fn send(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.read_line()
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the sum of a field of `smaps` over the mappings of its heap, in bytes.
    pub(crate) fn heap_bytes(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let of_mapping = |text: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() * 1024
        };
        text.split("[heap]").skip(1).map(of_mapping).sum()
    }
}

/// Returns the options of a release in tests.
pub(crate) fn options() -> Options {
    Options { untested: true, min_privileged_age: Duration::ZERO, ..Options::default() }
}

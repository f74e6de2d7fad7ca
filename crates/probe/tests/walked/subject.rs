//! A C program with a heap of jemalloc, mimalloc or tcmalloc, which prints its own count and the
//! allocator's statistics.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use lowtide_model::inspection::Observation;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::Target;
use lowtide_testing::Running;
use serde_json::Value;

/// A running subject.
pub(crate) struct Subject {
    child: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The allocator's own statistics: jemalloc's, or tcmalloc's; zeros for another allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statistics {
    pub(crate) allocated_bytes: u64,
    pub(crate) active_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) muzzy_bytes: u64,
    pub(crate) cached_bytes: u64,
    /// For gperftools' tcmalloc only, like the next three.
    pub(crate) central_bytes: u64,
    pub(crate) transfer_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) returned_bytes: u64,
}

impl Subject {
    /// Starts a program that uses the subject's protocol, and waits until its heap has its shape.
    pub(crate) fn start(
        command: &mut Command,
        bytes: u64,
        kept_percent: u64,
        threads: u64,
    ) -> Self {
        Self::start_with(command, bytes, kept_percent, threads, None)
    }

    /// Starts it with a library that serves its blocks, and nothing else.
    pub(crate) fn start_with(
        command: &mut Command,
        bytes: u64,
        kept_percent: u64,
        threads: u64,
        library: Option<&Path>,
    ) -> Self {
        let mut child = command
            .args([bytes, kept_percent, threads].map(|number| number.to_string()))
            .args(library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Self { child: child.into(), to, from };
        assert_eq!(subject.line(), "ready\n", "the subject could not make its heap");
        subject
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the usable bytes of the blocks that its threads keep.
    pub(crate) fn usable_bytes(&mut self) -> u64 {
        let reported: Value = serde_json::from_str(&self.ask("statistics")).unwrap();
        reported["usable"].as_u64().unwrap()
    }

    pub(crate) fn statistics(&mut self) -> Statistics {
        let reported: Value = serde_json::from_str(&self.ask("statistics")).unwrap();
        let figure = |key: &str| reported[key].as_u64().unwrap();
        // For jemalloc, which counts its own pages.
        let page = reported["page_bytes"].as_u64().unwrap_or(4096);
        Statistics {
            allocated_bytes: figure("allocated"),
            active_bytes: figure("active"),
            dirty_bytes: figure("dirty_pages") * page,
            muzzy_bytes: figure("muzzy_pages") * page,
            cached_bytes: figure("cached"),
            central_bytes: figure("central"),
            transfer_bytes: figure("transfer"),
            free_bytes: figure("free"),
            returned_bytes: figure("returned"),
        }
    }

    /// Makes it purge all arenas. Returns the decrease of its RSS, in bytes.
    pub(crate) fn purge(&mut self) -> i64 {
        self.ask("purge").trim().parse().unwrap()
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line
    }
}

/// Compiles the subject into a directory.
pub(crate) fn compile(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/walked/subject.c");
    let program = directory.join("subject");
    let source = source.display().to_string();
    lowtide_testing::compile(&program, ["-O1", "-pthread", &source, "-lm", "-ldl"]);
    program
}

/// Unpacks a bundled allocator.
pub(crate) fn bundled(name: &str) -> String {
    let library = lowtide_allocators::bundled().find(|library| library.name() == name).unwrap();
    library.unpack().unwrap().to_string_lossy().into_owned()
}

/// Starts the subject under a library with some variables. The directory contains the program.
pub(crate) fn start(library: &str, variables: &[(&str, &str)]) -> (tempfile::TempDir, Subject) {
    start_with(library, variables, (60_000_000, 5, 3))
}

/// Starts the subject with a heap of another shape: bytes, percentage that is kept, threads.
pub(crate) fn start_with(
    library: &str,
    variables: &[(&str, &str)],
    (bytes, kept_percent, threads): (u64, u64, u64),
) -> (tempfile::TempDir, Subject) {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path());
    // A library may need another C library than the system's: LIBRARY@DIRECTORY.
    let mut command = match library.split_once('@') {
        None => {
            let mut command = Command::new(program);
            command.env("LD_PRELOAD", library);
            command
        }
        Some((library, directory)) => {
            let mut command = Command::new(format!("{directory}/ld-linux-x86-64.so.2"));
            command.args(["--library-path", &format!("{directory}:/usr/lib/x86_64-linux-gnu")]);
            command.args(["--preload", library]).arg(program);
            command
        }
    };
    command.envs(variables.iter().copied());
    (home, Subject::start(&mut command, bytes, kept_percent, threads))
}

pub(crate) fn inspect(subject: &Subject) -> Observation {
    let target = Target::open(subject.pid()).unwrap();
    Inspector::default().inspect(&target).unwrap()
}

//! A program that preloads the library, and its counter as read from outside.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use lowtide_preload::{FREED_BYTES, Freed, TRIM_AT, find_counter, unpack};
use lowtide_probe::proc::maps;
use lowtide_testing::Running;

/// A directory with the library, and the programs of one test.
pub(crate) struct Home {
    directory: tempfile::TempDir,
    pub(crate) library: PathBuf,
}

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let library = unpack(directory.path()).unwrap();
        Self { directory, library }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Compiles `programs/frees.c`.
    pub(crate) fn compile(&self, arguments: &[&str]) -> PathBuf {
        let program = self.path().join("frees");
        compile("CC", "cc", &["frees.c"], &program, arguments);
        program
    }

    /// Compiles a source as a library that can be loaded.
    pub(crate) fn compile_library(&self, source: &str, arguments: &[&str]) -> PathBuf {
        let library = self.path().join(source).with_extension("so");
        let compiler = if source.ends_with(".cc") { ("CXX", "c++") } else { ("CC", "cc") };
        compile(
            compiler.0,
            compiler.1,
            &[source],
            &library,
            &[&["-shared", "-fPIC"], arguments].concat(),
        );
        library
    }

    /// Starts a program with the library, and other preloads after it.
    pub(crate) fn start(&self, mut command: Command, others: &[&Path]) -> Subject {
        let mut preload = self.library.clone().into_os_string();
        for other in others {
            preload.push(":");
            preload.push(other);
        }
        command.env_remove("GLIBC_TUNABLES").env("LD_PRELOAD", preload);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Subject { child: child.into(), input, lines };
        assert_eq!(subject.read_line(), "ready", "{command:?}");
        subject
    }

    /// Starts `programs/frees.c` on the system's C library.
    pub(crate) fn start_plain(&self) -> Subject {
        self.start(Command::new(self.compile(&["-pthread"])), &[])
    }

    /// Starts it like [`Home::start_plain`], with a value of the threshold.
    pub(crate) fn start_trimming(&self, trim_at: &str) -> Subject {
        let mut command = Command::new(self.compile(&["-pthread"]));
        command.env(TRIM_AT, trim_at);
        self.start(command, &[])
    }
}

/// Compiles programs of these tests. A name without a directory is that of a file in `programs`.
pub(crate) fn compile(
    variable: &str,
    default: &str,
    sources: &[&str],
    output: &Path,
    arguments: &[&str],
) {
    let compiler = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let status = Command::new(compiler)
        .args(["-O1", "-fno-builtin", "-o"])
        .arg(output)
        .args(sources.iter().map(|source| programs.join(source)))
        .args(arguments)
        .status()
        .unwrap_or_else(|error| panic!("{default} ({error}): Debian has it in build-essential"));
    assert!(status.success(), "{sources:?} {arguments:?} do not compile");
}

/// The running program. Dropping this ends it.
pub(crate) struct Subject {
    child: Running,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Subject {
    pub(crate) fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command, and returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        self.read_line()
    }

    /// Sends a command that frees memory. Returns the freed bytes, and those that have been
    /// counted.
    pub(crate) fn free(&mut self, command: &str) -> (u64, u64) {
        let before = self.freed().freed_bytes;
        let freed = self.ask(command).parse().unwrap();
        (freed, self.freed().freed_bytes - before)
    }

    pub(crate) fn freed(&self) -> Freed {
        freed_of(self.child.id()).expect("the counter can be read")
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }
}

/// Reads the counter of a process.
pub(crate) fn freed_of(pid: u32) -> Option<Freed> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let address = find_counter(&maps::parse(&text).unwrap())?;
    let mut bytes = [0; FREED_BYTES];
    File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut bytes, address).unwrap();
    Freed::parse(&bytes)
}

//! The program that memory is released from, under several C libraries and allocators.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use lowtide_testing::{Musl, MuslLinkage, Running, compile, library_of_compiler};
use tempfile::TempDir;

/// The C library of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Library {
    /// The system's C library.
    Systems,
    /// Another C library, in a directory with its loader.
    In(PathBuf),
    /// The system's C library, and a preloaded allocator.
    Preloaded(PathBuf),
    /// A musl.
    Musl(Musl, MuslLinkage),
}

/// The kind of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    ManyArenas,
    OneArena,
    OneThread,
}

impl Shape {
    pub(crate) const ALL: [Self; 3] = [Self::ManyArenas, Self::OneArena, Self::OneThread];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ManyArenas => "many arenas",
            Self::OneArena => "one arena",
            Self::OneThread => "one thread",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::ManyArenas => &["arenas=many"],
            Self::OneArena => &["arenas=one"],
            Self::OneThread => &["single=1"],
        }
    }
}

/// Returns further arguments from the environment.
fn arguments() -> String {
    std::env::var("LOWTIDE_TORTURE_ARGUMENTS").unwrap_or_default()
}

/// A running program. Dropping this ends it.
pub(crate) struct Subject {
    child: Running,
    said: Option<JoinHandle<String>>,
}

impl Subject {
    /// Starts it, and waits until its heap was filled and most of that freed.
    /// It ends after a time, or when `until` exists.
    pub(crate) fn start(
        library: &Library,
        shape: Shape,
        seed: u64,
        time: Duration,
        until: &Path,
    ) -> Self {
        let mut command = match library {
            Library::Systems => Command::new(program()),
            Library::In(directory) => {
                let mut command = Command::new(directory.join("ld-linux-x86-64.so.2"));
                command.arg("--library-path").arg(directory).arg(program());
                command
            }
            Library::Preloaded(_) => Command::new(program()),
            Library::Musl(musl, linkage) => Command::new(program_of_musl(musl, *linkage)),
        };
        command.env_remove("LD_PRELOAD");
        if let Library::Preloaded(allocator) = library {
            command.env("LD_PRELOAD", allocator);
        }
        let mut child = command
            .args(shape.arguments())
            .args([format!("seed={seed}"), format!("ms={}", time.as_millis())])
            .arg(format!("until={}", until.display()))
            .args(arguments().split_whitespace())
            .env_remove("GLIBC_TUNABLES")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            // Truncated output is not valid JSON, which is detected later.
            let _ = from.read_to_string(&mut text);
            text
        });
        let subject = Self { child: child.into(), said: Some(said) };
        assert_eq!(line, "ready\n", "{command:?}");
        subject
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it has printed its results. The process itself must not be waited for during
    /// a release: a parent that also traces would take a stop for the end.
    pub(crate) fn has_ended(&self) -> bool {
        self.said.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns its output, and whether it succeeded.
    pub(crate) fn end(mut self) -> (String, Result<(), String>) {
        let said = self.said.take().map(|said| said.join().unwrap()).unwrap_or_default();
        let status = self.child.wait().unwrap();
        (said, if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) })
    }

    /// Describes its threads, if it hangs.
    pub(crate) fn threads(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten();
        let line = |task: fs::DirEntry| {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            format!("{} {} {}", task.path().display(), read("stat"), read("syscall"))
        };
        tasks.flatten().map(line).collect()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

/// Returns the source files.
fn sources() -> impl Iterator<Item = PathBuf> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let sources = fs::read_dir(programs.join("torture")).unwrap().map(|e| e.unwrap().path());
    sources.filter(|path| path.extension().is_some_and(|e| e == "c" || e == "S"))
}

/// Compiles the program for a musl, once for each linkage.
fn program_of_musl(musl: &Musl, linkage: MuslLinkage) -> PathBuf {
    type Compiled = Vec<(Musl, MuslLinkage, PathBuf)>;
    static HOME: OnceLock<TempDir> = OnceLock::new();
    static COMPILED: Mutex<Compiled> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap();
    let is_same = |(other, of, _): &&(Musl, MuslLinkage, _)| (other, *of) == (musl, linkage);
    if let Some((.., program)) = compiled.iter().find(is_same) {
        return program.clone();
    }
    let home = HOME.get_or_init(|| tempfile::tempdir().unwrap());
    let program = home.path().join(format!("torture-{}", compiled.len()));
    musl.compile(linkage, &program, sources().chain(["-O2", "-pthread"].map(PathBuf::from)));
    compiled.push((musl.clone(), linkage, program.clone()));
    program
}

/// Compiles the program once, for every C library from the oldest on.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let build = || {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("torture");
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let mut arguments: Vec<PathBuf> = vec!["-O2".into(), "-include".into()];
        arguments.push(programs.join("oldest.h"));
        arguments.extend(["-fno-pie", "-no-pie", "-nostartfiles"].map(PathBuf::from));
        arguments.extend(sources());
        arguments.extend([programs.join("oldest.c"), "-Wl,--no-as-needed".into()]);
        arguments.push(library_of_compiler("libpthread.so.0"));
        compile(&program, arguments);
        (home, program)
    };
    &PROGRAM.get_or_init(build).1
}

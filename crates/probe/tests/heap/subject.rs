//! A C program with a heap of a known shape, under one C library or another.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{Heap, HeapMapping, Layout, malloc_info, walk};
use lowtide_probe::heap::{data_of, mappings};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps;
use lowtide_testing::{Running, compile_if_older, library_of_compiler};

/// The source of the subject's `malloc`.
#[derive(Debug, Clone)]
pub(crate) enum Library {
    /// The system's C library.
    Systems,
    /// The system's C library, linked statically into the subject.
    Static,
    /// Another C library, in a directory with its loader.
    In(PathBuf),
}

/// A running subject.
pub(crate) struct Subject {
    child: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The output of `malloc_info` for an arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InfoOfArena {
    pub(crate) fast_count: u64,
    pub(crate) fast_bytes: u64,
    /// Includes the top chunk.
    pub(crate) rest_count: u64,
    pub(crate) rest_bytes: u64,
    pub(crate) system_bytes: u64,
}

/// The output of `malloc_info`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Info {
    pub(crate) arenas: Vec<InfoOfArena>,
    pub(crate) mmapped_count: u64,
    pub(crate) mmapped_bytes: u64,
}

impl Subject {
    /// Starts a subject and waits until its heap has its shape. With no threads, the main thread
    /// does the work.
    pub(crate) fn start(library: &Library, shape: &str, threads: u32, bytes: u64) -> Self {
        let program = compile(library);
        let mut command = match library {
            Library::In(directory) => {
                let mut command = Command::new(directory.join("ld-linux-x86-64.so.2"));
                command.arg("--library-path").arg(directory).arg(program);
                command
            }
            _ => Command::new(program),
        };
        command.args([shape, &threads.to_string(), &bytes.to_string()]);
        Self::of(command)
    }

    /// Starts a program that uses the subject's protocol.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command
            .env_remove("GLIBC_TUNABLES")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Self { child: child.into(), to, from };
        assert!(subject.answer().contains("ready"), "the subject could not make its heap");
        subject
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn memory(&self) -> ProcessMemory {
        ProcessMemory::open(self.pid()).unwrap()
    }

    /// Returns the places where its arenas can be, and the mappings where its heap can be.
    pub(crate) fn places(&self) -> (Vec<std::ops::Range<u64>>, Vec<HeapMapping>) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let maps = maps::parse(&maps).unwrap();
        let is_library = |m: &&maps::Mapping| {
            let name = m.name.rsplit('/').next().unwrap_or_default();
            name.starts_with("libc.so") || name.starts_with("libc-2")
        };
        let library = maps.iter().find(is_library).or_else(|| maps.iter().find(|m| m.has_file()));
        (data_of(&maps, library.unwrap().file), mappings(&maps))
    }

    /// Walks its heap through a view of its memory.
    pub(crate) fn walk(&self, memory: &impl Memory) -> (Layout, Heap) {
        let (data, mappings) = self.places();
        let layout = Layout::find(memory, &data).expect("an arena");
        let heap = walk(memory, &layout, &mappings);
        (layout, heap)
    }

    pub(crate) fn info(&mut self) -> Info {
        read_info(&self.ask("info"))
    }

    /// Returns its output of `malloc_info`, and the same as read from outside.
    pub(crate) fn both_infos(&mut self) -> (String, String) {
        let (data, _) = self.places();
        let memory = self.memory();
        let layout = Layout::find(&memory, &data).expect("an arena");
        // The first call allocates a buffer.
        self.ask("info");
        let own = self.ask("info");
        const END: &str = "</malloc>\n";
        let end = own.find(END).unwrap() + END.len();
        let own = own[..end].to_owned();
        let found = malloc_info(&memory, &layout).expect("its settings");
        assert_eq!(found.torn_arenas, 0);
        (own, found.text)
    }

    /// Makes it call `malloc_trim(0)`. Returns the decrease of its anonymous memory, in bytes.
    pub(crate) fn trim(&mut self) -> u64 {
        let text = self.ask("trim");
        let line = text.lines().find_map(|l| l.strip_prefix("anonymous ")).expect("an answer");
        let mut figures = line.split_whitespace().map(|f| f.parse::<u64>().unwrap());
        let (before, after) = (figures.next().unwrap(), figures.next().unwrap());
        before.saturating_sub(after)
    }

    pub(crate) fn ask(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut text = String::new();
        loop {
            let from = text.len();
            let length = self.from.read_line(&mut text).unwrap();
            if length == 0 || &text[from..] == "done\n" {
                return text;
            }
        }
    }
}

/// Compiles the subject, once for each way of linking it.
fn compile(library: &Library) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/heap/subject.c");
    let threads = || library_of_compiler("libpthread.so.0").display().to_string();
    let (name, flags): (_, Vec<String>) = match library {
        Library::Systems => ("heap-subject", vec!["-lpthread".to_owned()]),
        Library::Static => ("heap-subject-static", ["-static", "-lpthread"].map(Into::into).into()),
        // The symbol versions of the oldest library, whose threads are in a separate library.
        Library::In(_) => {
            let flags = ["-DOLDEST", "-fno-pie", "-no-pie", "-nostartfiles", "-Wl,--no-as-needed"];
            let flags = flags.map(str::to_owned).into_iter().chain([threads()]);
            ("heap-subject-oldest", flags.collect())
        }
    };
    let directory =
        option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let target = directory.join(name);
    compile_if_older(&target, &source, std::iter::once("-O1".to_owned()).chain(flags));
    target
}

/// Parses the output of `malloc_info`: XML with one element per line.
fn read_info(text: &str) -> Info {
    let attribute = |line: &str, name: &str| -> u64 {
        let value =
            line.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
        value
            .and_then(|(value, _)| value.parse().ok())
            .unwrap_or_else(|| panic!("{name} in {line}"))
    };
    let mut info = Info::default();
    let mut is_in_arena = false;
    for line in text.lines() {
        if line.starts_with("<heap ") {
            info.arenas.push(InfoOfArena::default());
            is_in_arena = true;
        } else if line.starts_with("</heap>") {
            is_in_arena = false;
        } else if line.starts_with("<total type=\"mmap\"") {
            (info.mmapped_count, info.mmapped_bytes) =
                (attribute(line, "count"), attribute(line, "size"));
        } else if let Some(arena) = info.arenas.last_mut().filter(|_| is_in_arena) {
            if line.starts_with("<total type=\"fast\"") {
                (arena.fast_count, arena.fast_bytes) =
                    (attribute(line, "count"), attribute(line, "size"));
            } else if line.starts_with("<total type=\"rest\"") {
                (arena.rest_count, arena.rest_bytes) =
                    (attribute(line, "count"), attribute(line, "size"));
            } else if line.starts_with("<system type=\"current\"") {
                arena.system_bytes = attribute(line, "size");
            }
        }
    }
    info
}

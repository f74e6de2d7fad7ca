//! Programs that are inspected while they wait.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use lowtide_heap::residency::Residency;
use lowtide_probe::detect::{
    Area, AreaOwner, Detected, Detector, WalkedHeaps, areas, stack_pointers, stacks,
};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::{Mapping, parse};
use lowtide_probe::program::ProgramError;
use lowtide_testing::{Running, until};

/// A C program that allocates, has a second thread, prints the address of one of its blocks, and
/// waits for its input to end.
const SUBJECT: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *thread(void *barrier) { pthread_barrier_wait(barrier); for (;;) pause(); return 0; }
int main(void) {
    static pthread_barrier_t barrier;
    pthread_t other;
    char *block = 0;
    for (int i = 0; i < 20000; i++) { block = malloc(600); memset(block, 1, 600); }
    free(malloc(100));
    pthread_barrier_init(&barrier, 0, 2);
    if (pthread_create(&other, 0, thread, &barrier)) return 1;
    pthread_barrier_wait(&barrier);
    printf("%p\n", (void *)block);
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) < 0;
}
"#;

/// A running program, which ends when this is dropped.
pub(crate) struct Subject {
    child: Running,
    /// Kept open: a program may print more, and must not end because its output is closed.
    stdout: Option<BufReader<ChildStdout>>,
    /// The first line that it printed.
    pub(crate) said: String,
}

/// The facts that were detected about a program.
pub(crate) struct Found {
    pub(crate) detected: Detected,
    pub(crate) maps: Vec<Mapping>,
    pub(crate) areas: Vec<Area>,
    pub(crate) stacks: usize,
    memory: ProcessMemory,
}

/// Compiles the subject. `compiler` is the compiler and its arguments.
pub(crate) fn compile(home: &Path, compiler: &[&str]) -> PathBuf {
    compile_source(home, SUBJECT, compiler)
}

/// Compiles C source code.
pub(crate) fn compile_source(home: &Path, source: &str, compiler: &[&str]) -> PathBuf {
    let (file, program) = (home.join("subject.c"), home.join("subject"));
    std::fs::write(&file, source).unwrap();
    let (compiler, arguments) = compiler.split_first().unwrap();
    let file = file.display().to_string();
    // Libraries come after the source.
    let all = ["-O1", "-pthread", &file].into_iter().chain(arguments.iter().copied());
    lowtide_testing::compile_with(compiler, &program, all);
    program
}

impl Subject {
    /// Starts a program and waits for the first line that it prints.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut subject = Self::start_silent(command);
        let mut stdout = BufReader::new(subject.child.stdout.take().unwrap());
        stdout.read_line(&mut subject.said).unwrap();
        subject.stdout = Some(stdout);
        assert!(!subject.said.is_empty(), "{command:?} said nothing");
        subject
    }

    /// Starts a program that prints nothing.
    pub(crate) fn start_silent(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} ({error}): .ci/run installs it"));
        Self { child: child.into(), stdout: None, said: String::new() }
    }

    /// Returns the PID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address that it printed.
    pub(crate) fn address(&self) -> u64 {
        let word = self.said.trim().trim_start_matches("0x");
        u64::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{} is no address", self.said))
    }

    /// Inspects it.
    pub(crate) fn detect(&self) -> Found {
        self.recognise_when(|_| true)
    }

    /// Inspects it until the result is final.
    pub(crate) fn recognise_when(&self, is_ready: impl Fn(&Found) -> bool) -> Found {
        let mut detector = Detector::default();
        until("a result that is as it should be", || {
            let text = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
            let maps = parse(&text).unwrap();
            match detector.detect(self.child.id(), &maps) {
                Ok(detected) => {
                    let pointers = stack_pointers(self.child.id());
                    let memory = ProcessMemory::open(self.child.id()).unwrap();
                    let stacks = stacks(&memory, &detected, &maps, &pointers);
                    let areas = areas(&memory, &detected, &maps, &stacks, &WalkedHeaps::default());
                    let stacks = stacks.len();
                    let found = Found { detected, maps, areas, stacks, memory };
                    is_ready(&found).then_some(found)
                }
                Err(ProgramError::NotYet) => None,
                Err(error) => panic!("{error}"),
            }
        })
    }
}

impl Found {
    /// Returns name, version and linkage of the allocator that serves the program.
    pub(crate) fn allocator(&self) -> (&str, Option<&str>, &str) {
        let allocator = self.detected.allocator().expect("an allocator");
        (allocator.kind.name(), allocator.version.as_deref(), allocator.linkage.name())
    }

    /// Returns the resident bytes of an owner.
    pub(crate) fn resident(&self, owner: &AreaOwner) -> u64 {
        let ranges = self.areas.iter().filter(|area| area.owner == *owner).map(|a| a.range.clone());
        ranges.map(|range| Residency::new(&self.memory).bytes(range)).sum()
    }

    /// Returns the area that contains an address.
    pub(crate) fn area_of(&self, address: u64) -> Option<&Area> {
        self.areas.iter().find(|area| area.range.contains(&address))
    }

    /// Returns name and version of the runtimes.
    pub(crate) fn runtimes(&self) -> Vec<(&str, Option<&str>)> {
        let runtimes = self.detected.runtimes.iter();
        runtimes.map(|r| (r.kind.name(), r.version.as_deref())).collect()
    }
}

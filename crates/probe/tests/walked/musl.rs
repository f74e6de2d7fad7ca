//! Heaps of musl's mallocng, compared with the program's own list of its blocks: of dynamic, static
//! and position-independent static programs, with and without symbols.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use lowtide_heap::musl::{Layout, each_slot};
use lowtide_heap::ranges::joined;
use lowtide_model::inspection::Observation;
use lowtide_model::ledger::Owner;
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::inspect::{BlockReader, Inspector};
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::target::Target;
use lowtide_testing::Running;

use crate::all_blocks::Blocks;

/// A library of musl, from the package `musl-dev`.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-musl";
/// Blocks that the C library allocates for itself, at most.
const OTHERS: usize = 64;

/// The linkages of a program, with the words that compile it.
fn linkages() -> Vec<(&'static str, Vec<String>)> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let in_library = |name: &str| format!("{LIBRARIES}/{name}");
    // The wrapper musl-gcc links no position-independent static program.
    let mut pie = words("cc -static-pie -nostdlib -nostdinc -fPIE -s -isystem");
    pie.push("/usr/include/x86_64-linux-musl".to_owned());
    pie.extend(["rcrt1.o", "crti.o"].map(in_library));
    let mut found = vec![
        ("dynamic", words("musl-gcc")),
        ("static", words("musl-gcc -static")),
        ("stripped static", words("musl-gcc -static -s")),
    ];
    if cfg!(target_arch = "x86_64") {
        found.push(("stripped static PIE", pie));
    }
    found
}

fn compile(directory: &Path, source: &Path, words: &[String]) -> std::path::PathBuf {
    let program = directory.join("program");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["-O1", "-pthread", "-o"]).arg(&program).arg(source);
    if words.iter().any(|word| word == "-nostdlib") {
        command.args([format!("{LIBRARIES}/libc.a"), "-lgcc".to_owned()]);
        command.args([format!("{LIBRARIES}/libc.a"), format!("{LIBRARIES}/crtn.o")]);
    }
    assert!(command.status().unwrap().success(), "{command:?}");
    program
}

/// Starts the program, and returns it with its list: address and requested size.
fn start(program: &Path, threads: u32) -> (Running, BTreeMap<u64, u64>) {
    let mut command = Command::new(program);
    let mut child = command
        .args([threads.to_string(), "7".to_owned()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut list = BTreeMap::new();
    for line in lines.take_while(|line| line != "ready") {
        let (at, bytes) = line.split_once(' ').unwrap();
        list.insert(u64::from_str_radix(at, 16).unwrap(), bytes.parse().unwrap());
    }
    (child.into(), list)
}

/// Returns the blocks of a process with their requested sizes, by the walk over slots.
fn requested(target: &Target) -> BTreeMap<u64, u64> {
    let maps = target.maps().unwrap();
    let detected = Detector::default().detect(target.pid, &maps).unwrap();
    let library = heap::library(&maps, &detected.malloc.unwrap().path.to_string_lossy()).unwrap();
    let memory = LiveMemory::open(target.pid).unwrap();
    let mappings = joined(heap::mappings(&maps).into_iter().map(|m| m.range).collect());
    let layout = Layout::find(&memory, &heap::data_of(&maps, library.file)).unwrap();
    let mut found = BTreeMap::new();
    each_slot(&memory, &layout, &mappings, |slot| {
        let slot = slot.expect("a slot at rest");
        found.insert(slot.at, slot.requested_bytes.expect("a resident end"));
    });
    found
}

fn inspect(target: &Target) -> Observation {
    Inspector::default().inspect(target).unwrap()
}

#[test]
#[ignore = "needs musl-gcc (Debian: musl-tools)"]
fn the_blocks_of_a_musl_heap_are_those_of_the_programs_own_list() {
    let home = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/walked/musl.c");
    for (name, words) in linkages() {
        let program = compile(home.path(), &source, &words);
        for threads in [1, 6] {
            let what = format!("{name}, {threads} threads");
            let (child, list) = start(&program, threads);
            assert!(list.len() > 1000, "{what}: {}", list.len());
            let target = Target::open(child.id()).unwrap();
            let walked = requested(&target);
            let missing: Vec<_> = list.iter().filter(|(at, _)| !walked.contains_key(at)).collect();
            assert!(missing.is_empty(), "{what}: {missing:x?}");
            let other = list.iter().find(|(at, bytes)| walked[at] != **bytes);
            assert_eq!(other, None, "{what}: {:?}", other.map(|(at, _)| walked[at]));
            assert!(walked.len() <= list.len() + OTHERS, "{what}: {}", walked.len());
            let mut blocks = Blocks::default();
            BlockReader::open(&target).unwrap().walk(&mut blocks).unwrap();
            assert!(blocks.unknown.is_empty(), "{what}: {:x?}", blocks.unknown);
            assert!(blocks.found.keys().eq(walked.keys()), "{what}");
            let sizes = |at: &u64| (blocks.found[at].bytes, walked[at]);
            assert!(walked.keys().map(sizes).all(|(slot, bytes)| slot >= bytes + 4), "{what}");
            // Rows: what the program has requested is allocated, and the rest of its heap is known.
            let observed = inspect(&target);
            let bytes: u64 = list.values().sum();
            let allocated = observed.ledger.bytes(Owner::Allocated);
            assert!(
                (bytes..bytes + bytes / 3 + (1 << 20)).contains(&allocated),
                "{what}: {bytes}, {allocated}"
            );
            assert_eq!(observed.unwalked_bytes, 0, "{what}");
            assert_eq!(observed.ledger.bytes(Owner::Runtime), 0, "{what}: {:?}", observed.managers);
            assert!(observed.heaps[0].metadata_bytes > 0, "{what}: {:?}", observed.heaps);
        }
    }
}

#[test]
#[ignore = "needs musl-gcc (Debian: musl-tools)"]
fn a_musl_program_without_mallocng_is_not_walked_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("source.c");
    // It never frees: musl links a simpler allocator.
    let code = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\nint main(int count, char **words) { \
                for (int i = 0; i < 3000; i++) memset(malloc(1000), *strerror(count), 1000); \
                write(1, \"ready\\n\", 6); for (;;) pause(); }\n";
    std::fs::write(&source, code).unwrap();
    let words = ["musl-gcc", "-static", "-fno-builtin"].map(str::to_owned);
    let program = compile(home.path(), &source, &words);
    let (child, _) = start(&program, 1);
    let observed = inspect(&Target::open(child.id()).unwrap());
    assert!(observed.heaps.is_empty(), "{:?}", observed.heaps);
    let notes = observed.notes.join("\n");
    assert!(notes.contains("none of musl's mallocng"), "{notes}");
}

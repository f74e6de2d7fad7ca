//! Heaps of musl's mallocng, compared with the program's own list of its blocks: of dynamic, static
//! and position-independent static programs, with and without symbols.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[cfg(target_arch = "x86_64")]
use lowtide_heap::droppable::{Droppable, Guard};
use lowtide_heap::droppable_heap::DroppableHeap;
#[cfg(target_arch = "x86_64")]
use lowtide_heap::layout::HeapLayout;
use lowtide_heap::musl::{Layout, each_slot};
use lowtide_heap::ranges::joined;
use lowtide_model::inspection::Observation;
use lowtide_model::ledger::Owner;
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::inspect::{BlockReader, Inspector};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::target::Target;
use lowtide_testing::{Musl, MuslLinkage, Running};

use crate::all_blocks::Blocks;

/// Blocks that the C library allocates for itself, at most.
const OTHERS: usize = 64;

/// Compiles a program.
fn compile(
    musl: &Musl,
    linkage: MuslLinkage,
    home: &Path,
    source: &Path,
    flags: &[&str],
) -> PathBuf {
    let program = home.join("program");
    let flags = flags.iter().chain(&["-O1", "-pthread"]).map(PathBuf::from);
    musl.compile(linkage, &program, std::iter::once(source.to_owned()).chain(flags));
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
    let memory = ProcessMemory::open(target.pid).unwrap();
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
#[ignore = "needs musl-dev; LOWTIDE_TEST_MUSLS lists directories with other versions, with colons between"]
fn the_blocks_of_a_musl_heap_are_those_of_the_programs_own_list() {
    let home = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/walked/musl.c");
    let of = |musl: Musl| {
        MuslLinkage::ALL.into_iter().map(move |linkage| (musl.clone(), linkage, &["-s"][..]))
    };
    let all = Musl::all().into_iter().flat_map(of);
    for (musl, linkage, flags) in all.chain([(Musl::systems(), MuslLinkage::Static, &[][..])]) {
        let program = compile(&musl, linkage, home.path(), &source, flags);
        for threads in [1, 6] {
            let what = format!("{}, {linkage:?}, {flags:?}, {threads} threads", musl.version());
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
#[ignore = "needs musl-dev"]
fn a_musl_program_without_mallocng_is_not_walked_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("source.c");
    // It never frees: musl links a simpler allocator.
    let code = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\nint main(int count, char **words) { \
                for (int i = 0; i < 3000; i++) memset(malloc(1000), *strerror(count), 1000); \
                write(1, \"ready\\n\", 6); for (;;) pause(); }\n";
    std::fs::write(&source, code).unwrap();
    let (musl, flags) = (Musl::systems(), ["-fno-builtin"]);
    let program = compile(&musl, MuslLinkage::Static, home.path(), &source, &flags);
    let (child, _) = start(&program, 1);
    let observed = inspect(&Target::open(child.id()).unwrap());
    assert!(observed.heaps.is_empty(), "{:?}", observed.heaps);
    let notes = observed.notes.join("\n");
    assert!(notes.contains("none of musl's mallocng"), "{notes}");
}

/// Returns the address of a symbol of a static program.
#[cfg(target_arch = "x86_64")]
fn symbol(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.split(' ').next_back() == Some(name)).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

#[test]
#[ignore = "needs musl-dev; LOWTIDE_TEST_MUSLS lists directories with other versions, with colons between"]
#[cfg(target_arch = "x86_64")]
fn the_lock_that_the_code_shows_is_that_of_the_symbols() {
    let home = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/walked/musl.c");
    for musl in Musl::all() {
        for flags in [&[][..], &["-Wl,--gc-sections"]] {
            let program = compile(&musl, MuslLinkage::Static, home.path(), &source, flags);
            let (child, _) = start(&program, 3);
            let maps = Target::open(child.id()).unwrap().maps().unwrap();
            let detected = Detector::default().detect(child.id(), &maps).unwrap();
            let (malloc, memory) =
                (detected.malloc.unwrap(), ProcessMemory::open(child.id()).unwrap());
            let mappings = heap::mappings(&maps);
            let library = heap::library(&maps, &malloc.path.to_string_lossy()).unwrap();
            let layout = Layout::find(&memory, &heap::data_of(&maps, library.file)).unwrap();
            let layout = HeapLayout::Musl(layout);
            let found = heap::droppable(child.id(), &maps, &malloc, layout, &memory, &mappings);
            let mut guards = Vec::new();
            let visit = &mut |found: Droppable| guards.push(found.guard);
            let what = format!("musl {}, {flags:?}", musl.version());
            let found = found.unwrap_or_else(|why| panic!("{what}: {why}"));
            let DroppableHeap::Guarded(found) = found else { panic!("{what} is not glibc") };
            found.each_droppable(&memory, &mappings, visit).unwrap();
            let expected = Guard::MuslLock {
                lock: symbol(&program, "__malloc_lock"),
                threads: symbol(&program, "__libc"),
            };
            assert!(!guards.is_empty(), "{what}");
            assert!(
                guards.iter().all(|guard| *guard == expected),
                "{}: {guards:x?}",
                musl.version()
            );
        }
    }
}

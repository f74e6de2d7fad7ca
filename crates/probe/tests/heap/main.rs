//! Live heaps: the walk from outside, compared with the allocator's own data and actions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod subject;

use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;

use lowtide_heap::ptmalloc::{Heap, WalkedArena};
use lowtide_heap::residency::Residency;
use lowtide_probe::memory::ProcessMemory;
use subject::{Info, Library, Subject};

/// Shapes with the number of their threads (0: the main thread) and of the bytes that they
/// allocate.
const SHAPES: [(&str, u32, u64); 19] = [
    ("empty", 0, 0),
    ("uniform", 8, 64 << 20),
    ("single", 0, 32 << 20),
    ("log_uniform", 3, 32 << 20),
    ("log_uniform", 0, 16 << 20),
    ("small", 2, 16 << 20),
    ("fast", 0, 12 << 20),
    ("fast", 2, 12 << 20),
    ("fast_shuffled", 1, 2 << 20),
    ("fast_all", 0, 8 << 20),
    ("fast_all", 2, 8 << 20),
    ("pieces", 0, 48 << 20),
    ("heaps", 2, 300 << 20),
    ("kept", 3, 24 << 20),
    ("realloc", 0, 32 << 20),
    ("realloc", 3, 60 << 20),
    ("mmapped", 0, 40 << 20),
    ("mmapped", 2, 40 << 20),
    ("sbrk", 0, 32 << 20),
];

/// Returns the maximum error of a prediction: 0.1 %, or 64 KiB.
fn slack(bytes: u64) -> u64 {
    (bytes / 1000).max(64 << 10)
}

fn resident(memory: &ProcessMemory, areas: &[Range<u64>]) -> u64 {
    let mut residency = Residency::new(memory);
    areas.iter().map(|area| residency.bytes(area.clone())).sum()
}

/// Walks an idle subject, and compares the result with the allocator's data and actions.
fn check(
    library: &Library,
    (shape, threads, bytes): (&str, u32, u64),
    memory: fn(ProcessMemory) -> ProcessMemory,
) {
    let mut subject = Subject::start(library, shape, threads, bytes);
    let what = format!("{shape} with {threads} threads under {library:?}");
    let memory = memory(subject.memory());
    let (layout, heap) = subject.walk(&memory);
    assert!(heap.is_whole(), "{what}: {layout:?} {:?} {:?}", heap.mmapped, arenas_in_short(&heap));
    assert_eq!(heap.owners().total(), resident(&memory, &heap.areas), "{what}");
    // If threads freed small blocks, each retains some.
    let may_hold_none = matches!(shape, "mmapped" | "kept" | "heaps");
    let caches = heap.caches.caches;
    assert!(may_hold_none || caches >= u64::from(threads), "{what}: {caches} caches");
    agrees(&heap, &subject.info(), &what);
    let (mut own, mut read) = subject.both_infos();
    if matches!(library, Library::In(directory) if directory.ends_with("glibc-bionic/lib")) {
        [own, read] = [own, read].map(|text| without_tops(&text));
    }
    assert_eq!(own, read, "malloc_info of {what}");
    let predicted = heap.total().trim_bytes;
    let returned = subject.trim();
    assert!(predicted.abs_diff(returned) <= slack(returned), "{what}: {predicted}, but {returned}");
    // The rest can still be walked, with nothing more to return.
    let (_, heap) = subject.walk(&memory);
    assert!(heap.is_whole(), "{what}, after the trim");
    assert_eq!(heap.total().trim_bytes, 0, "{what}, after the trim");
}

/// Removes the parts that glibc 2.27 prints differently from later versions: free blocks without
/// the tops, no number of heaps, and other indentation.
fn without_tops(info: &str) -> String {
    let is_alike =
        |line: &&str| !line.contains("type=\"rest\"") && !line.contains("type=\"subheaps\"");
    info.lines().map(str::trim).filter(is_alike).collect::<Vec<_>>().join("\n")
}

fn arenas_in_short(heap: &Heap) -> Vec<(u64, u64, u64)> {
    let short = |a: &WalkedArena| (a.system_bytes, a.walked_bytes, a.tally.unwalked_bytes);
    heap.arenas.iter().map(short).collect()
}

fn agrees(heap: &Heap, info: &Info, what: &str) {
    assert_eq!(heap.arenas.len(), info.arenas.len(), "{what}");
    for (mine, theirs) in heap.arenas.iter().zip(&info.arenas) {
        let tally = &mine.tally;
        assert_eq!(mine.system_bytes, theirs.system_bytes, "{what}");
        assert_eq!(
            (tally.fast_count, tally.fast_bytes),
            (theirs.fast_count, theirs.fast_bytes),
            "{what}"
        );
        // Up to 2.27, the top chunk is not included.
        let has_top = theirs.rest_count == tally.free_count + 1;
        assert!(has_top || theirs.rest_count == tally.free_count, "{what}: {theirs:?}");
        // Many versions sum up sizes including their lowest flag.
        let rest = tally.free_bytes + if has_top { tally.top_bytes } else { 0 };
        let over = theirs.rest_bytes.checked_sub(rest);
        assert!(over == Some(0) || over == Some(tally.free_count), "{what}: {rest}, {theirs:?}");
    }
    assert_eq!(heap.mmapped.count, info.mmapped_count, "{what}");
}

#[test]
fn a_trim_returns_the_predicted_bytes() {
    for shape in SHAPES {
        check(&Library::Systems, shape, |memory| memory);
    }
}

#[test]
fn a_trim_returns_the_predicted_bytes_without_pagemap_scan() {
    for shape in [SHAPES[1], SHAPES[3], SHAPES[5], SHAPES[11], SHAPES[16]] {
        check(&Library::Systems, shape, ProcessMemory::without_scan);
    }
}

#[test]
fn a_program_that_has_not_allocated_has_no_heap() {
    let subject = Subject::start(&Library::Systems, "none", 0, 0);
    let (data, _) = subject.places();
    assert_eq!(lowtide_heap::ptmalloc::Layout::find(&subject.memory(), &data), None);
}

#[test]
fn walking_a_heap_does_not_make_its_pages_resident() {
    let subject = Subject::start(&Library::Systems, "uniform", 2, 64 << 20);
    let memory = subject.memory();
    let (_, mappings) = subject.places();
    let all = || {
        let ranges: Vec<_> = mappings.iter().map(|m| m.range.clone()).collect();
        resident(&memory, &ranges)
    };
    let before = all();
    subject.walk(&memory);
    assert_eq!(all(), before);
}

/// Checks a program whose free bytes change while it is walked.
fn check_while_it_changes(library: &Library) {
    let mut subject = Subject::start(library, "churn", 8, 200 << 20);
    for _ in 0..5 {
        let free =
            |info: &Info| info.arenas.iter().map(|a| a.fast_bytes + a.rest_bytes).sum::<u64>();
        let before = free(&subject.info());
        let (_, heap) = subject.walk(&subject.memory());
        let after = free(&subject.info());
        let total = heap.total();
        let walked = total.free_bytes + total.fast_bytes + total.top_bytes;
        let (least, most) = (before.min(after), before.max(after));
        let is_near = walked >= least - least / 50 && walked <= most + most / 50;
        // If a part could not be walked, the result must show it.
        assert!(is_near || !heap.is_whole(), "{library:?}: {walked}, but {before} and {after}");
        assert!(
            heap.arenas.iter().any(WalkedArena::is_whole),
            "{library:?}: {:?}",
            arenas_in_short(&heap)
        );
    }
    subject.ask("stop");
}

/// Checks two threads that each repeatedly take 3,000 blocks from their fast bins and free them
/// again.
fn check_fast_bins_that_change(library: &Library) {
    let mut subject = Subject::start(library, "fast_churn", 2, 20 << 20);
    let fast = |info: &Info| info.arenas.iter().map(|arena| arena.fast_count).sum::<u64>();
    for _ in 0..10 {
        let listed = fast(&subject.info());
        let (_, heap) = subject.walk(&subject.memory());
        let walked = heap.total().fast_count;
        // The blocks in use at this moment, and a few that a thread caches.
        let slack = 2 * (3000 + 8);
        assert!(walked.abs_diff(listed) <= slack, "{library:?}: {walked}, but {listed}");
        assert!(listed > 10 * slack || listed == 0, "{library:?}: {listed}");
    }
    subject.ask("stop");
}

#[test]
fn fast_bin_chunks_are_found_while_their_lists_change() {
    check_fast_bins_that_change(&Library::Systems);
}

#[test]
fn a_heap_is_walked_while_eight_threads_change_it() {
    check_while_it_changes(&Library::Systems);
}

#[test]
#[ignore = "needs a static C library (Debian: libc6-dev)"]
fn the_heap_of_a_static_program_is_walked_exactly() {
    for shape in SHAPES {
        check(&Library::Static, shape, |memory| memory);
    }
}

#[test]
#[ignore = "needs other glibcs in the directories that LOWTIDE_TEST_GLIBCS lists, with colons between (.ci/fetch-glibc)"]
fn the_heap_of_every_glibc_version_is_walked_exactly() {
    let directories = std::env::var("LOWTIDE_TEST_GLIBCS").expect("LOWTIDE_TEST_GLIBCS is not set");
    let check_version = |directory: &str| {
        let library = Library::In(PathBuf::from(directory));
        for shape in SHAPES {
            check(&library, shape, |memory| memory);
        }
        check_while_it_changes(&library);
        check_fast_bins_that_change(&library);
    };
    let directories: Vec<&str> = directories.split(':').collect();
    for pair in directories.chunks(2) {
        std::thread::scope(|scope| {
            for directory in pair {
                scope.spawn(|| check_version(directory));
            }
        });
    }
}

const PYTHON: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None)
def anonymous():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(l.split()[1]) * 1024 for l in f if l.startswith("Anonymous:"))
data = {i: [str(i) * 3, (i, i + 1), bytes(i % 3000)] for i in range(60000)}
keep = [data[i] for i in range(0, 60000, 40)]
del data
anonymous()
print("ready\ndone", flush=True)
for line in sys.stdin:
    before = anonymous()
    libc.malloc_trim(0)
    print("anonymous", before, anonymous(), "\ndone", flush=True)
"#;

#[test]
#[ignore = "needs python3"]
fn a_trim_of_python_returns_the_predicted_bytes() {
    for malloc in ["pymalloc", "malloc"] {
        let mut command = Command::new("python3");
        command.args(["-c", PYTHON]).env("PYTHONMALLOC", malloc);
        let mut subject = Subject::of(command);
        let (_, heap) = subject.walk(&subject.memory());
        assert!(heap.is_whole(), "{malloc}: {:?} {:?}", heap.mmapped, arenas_in_short(&heap));
        let predicted = heap.total().trim_bytes;
        let returned = subject.trim();
        assert!(predicted > 1 << 20, "{malloc}: {predicted}");
        assert!(
            predicted.abs_diff(returned) <= slack(returned),
            "{malloc}: {predicted}, but {returned}"
        );
    }
}

//! CPython's heap, compared with its own statistics.
//!
//! `LOWTIDE_TEST_PYTHONS` names the interpreters, separated by colons; without it, `python3` is the
//! only one.

#[path = "../all_blocks/mod.rs"]
mod all_blocks;
#[path = "../../../heap/tests/debug_malloc_stats/mod.rs"]
mod debug_malloc_stats;

use std::fs::File;
use std::process::Command;

use lowtide_heap::pymalloc;
use lowtide_heap::ranges::joined;
use lowtide_model::ledger::{Owner, State, WalkedRuntime};
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps;
use lowtide_probe::target::Target;

use crate::support::Subject;
use all_blocks::Blocks;
use debug_malloc_stats::DebugMallocStats;

/// A program that frees most of its objects, and prints the statistics to stderr.
const PROGRAM: &str = "import sys, random\n\
    random.seed(1)\n\
    blocks = [[i] for i in range(300000)] + ['x%d' % i for i in range(300000)]\n\
    blocks = [block for block in blocks if random.random() < 0.02]\n\
    sys._debugmallocstats()\n\
    print('counted', flush=True)\n\
    sys.stdin.read()";

fn interpreters() -> Vec<String> {
    let named = std::env::var("LOWTIDE_TEST_PYTHONS").unwrap_or_else(|_| "python3".to_owned());
    named.split(':').map(str::to_owned).collect()
}

#[test]
#[ignore = "needs python3"]
fn the_walked_heap_of_cpython_matches_its_statistics() {
    for interpreter in interpreters() {
        let home = tempfile::tempdir().unwrap();
        let statistics = home.path().join("statistics");
        let mut command = Command::new(&interpreter);
        command.args(["-c", PROGRAM]).stderr(File::create(&statistics).unwrap());
        let python = Subject::start(&mut command);
        let statistics = DebugMallocStats::parse(&std::fs::read_to_string(&statistics).unwrap());

        let text = std::fs::read_to_string(format!("/proc/{}/maps", python.pid())).unwrap();
        let maps = maps::parse(&text).unwrap();
        let memory = ProcessMemory::open(python.pid()).unwrap();
        let detected = Detector::default().detect(python.pid(), &maps).unwrap();
        let data = heap::data_of(&maps, detected.runtimes[0].file);
        let heaps = joined(heap::mappings(&maps).into_iter().map(|m| m.range).collect());
        let mapped = heap::mappings(&maps).into_iter().filter(|mapping| !mapping.is_brk);
        let mapped = joined(mapped.map(|mapping| mapping.range).collect());
        let layout = pymalloc::Layout::find(&memory, &data, &heaps, &mapped).expect(&interpreter);
        let mut blocks = Blocks::default();
        let heap = pymalloc::walk(&memory, &layout, &mapped, Some(&mut blocks));
        statistics.assert_equal(&heap, &interpreter);
        assert_eq!(heap.torn_pools, 0, "{interpreter}");
        let bytes: u64 = blocks.found.values().map(|block| block.bytes).sum();
        assert_eq!(bytes, heap.allocated_bytes(), "{interpreter}");
        assert!(blocks.unknown.is_empty(), "{interpreter}: {:x?}", blocks.unknown);

        let target = Target::open(python.pid()).unwrap();
        let observed = Inspector::default().inspect(&target).unwrap();
        let of = |state| observed.ledger.bytes_of(WalkedRuntime::CPython, state);
        assert_eq!(of(State::Allocated), heap.resident.allocated_bytes, "{interpreter}");
        let free_bytes = heap.resident.free_block_bytes + heap.resident.free_pool_bytes;
        assert_eq!((of(State::Free), of(State::Unknown)), (free_bytes, 0), "{interpreter}");
        // No pool is outside of the arenas.
        assert_eq!(observed.ledger.bytes(Owner::Runtime), of(State::Allocated) + of(State::Free));
        assert_eq!(observed.managers.len(), 1, "{interpreter}: {:?}", observed.managers);
    }
}

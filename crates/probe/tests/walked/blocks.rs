//! The blocks in use of each allocator, compared with the program's own count.

use std::process::Command;

use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::Target;

use crate::all_blocks::Blocks;
use crate::subject::{Subject, bundled, compile, start};

/// Allocations of the C library and the program beside the counted blocks, in bytes.
const OTHERS: u64 = 64 << 10;
/// Maximum size of the stacks of a thread's cache, which jemalloc counts as allocated, but which
/// are its own.
const STACKS: u64 = 128 << 10;

/// Compares the blocks of a subject with its own count, or with its allocator's statistics if there
/// are any.
fn agrees(name: &str, subject: &mut Subject) {
    // The first read of them allocates.
    subject.statistics();
    let statistics = subject.statistics();
    let usable = match name {
        "jemalloc" => statistics.allocated_bytes - statistics.cached_bytes,
        "gperftools" => statistics.allocated_bytes,
        _ => subject.usable_bytes(),
    };
    let target = Target::open(subject.pid()).unwrap();
    let mut reader = BlockReader::open(&target).unwrap();
    let mut blocks = Blocks::default();
    reader.walk(&mut blocks).unwrap();
    assert!(blocks.unknown.is_empty(), "{name}: {:x?}", blocks.unknown);
    let header = if name == "glibc" { 8 } else { 0 };
    let bytes: u64 = blocks.found.values().map(|block| block.bytes - header).sum();
    let least = if name == "jemalloc" { usable - STACKS } else { usable };
    assert!((least..usable + OTHERS).contains(&bytes), "{name}: {usable}, {bytes}");
    let mut end = 0;
    for block in blocks.found.values() {
        assert!(end <= block.at, "{name}: {block:x?} overlaps what ends at {end:x}");
        end = block.at + block.bytes;
    }
    // Nothing has changed.
    let mut again = Blocks::default();
    reader.walk(&mut again).unwrap();
    let changed = again.found.values().filter(|block| blocks.found.get(&block.at) != Some(block));
    assert!(changed.count() < 100, "{name}");
}

#[test]
fn the_walked_blocks_match_those_of_the_program() {
    for name in ["jemalloc", "mimalloc", "mimalloc2"] {
        let (_home, mut subject) = start(&bundled(name), &[]);
        agrees(name, &mut subject);
    }
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(compile(home.path()));
    agrees("glibc", &mut Subject::start(&mut command, 60_000_000, 5, 3));
}

#[test]
#[ignore = "needs gperftools 2.10 (Debian: libtcmalloc-minimal4)"]
fn the_walked_gperftools_blocks_match_those_of_the_program() {
    let (_home, mut subject) = start("libtcmalloc_minimal.so.4", &[]);
    agrees("gperftools", &mut subject);
}

//! The heap of an allocator that a library contains for its own use, while `malloc` is glibc's.

use std::path::Path;
use std::process::Command;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::Arena;
use lowtide_model::ledger::Owner;

use crate::subject::{Subject, bundled, compile, inspect};

/// Allocations of the allocator itself and the loader, in bytes.
const OTHERS: u64 = 256 << 10;

#[test]
fn the_allocator_of_a_library_is_found_by_its_structure_and_named_with_it() {
    for (name, kind) in [
        ("jemalloc", AllocatorKind::Jemalloc),
        ("mimalloc", AllocatorKind::Mimalloc),
        ("mimalloc2", AllocatorKind::Mimalloc),
    ] {
        let home = tempfile::tempdir().unwrap();
        let library = home.path().join("libcolumns.so.7");
        std::fs::copy(bundled(name), &library).unwrap();
        let mut command = Command::new(compile(home.path()));
        command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1");
        command.env("MIMALLOC_PURGE_DELAY", "1000000");
        // jemalloc is built to be preloaded: its thread-local data need room that the loader sets
        // aside.
        command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");
        let mut subject = start(&mut command, &library);
        let usable = subject.usable_bytes();
        let observed = inspect(&subject);
        assert_eq!(observed.allocator.unwrap().kind, AllocatorKind::Glibc, "{name}");
        let [glibc, own] = &observed.heaps[..] else { panic!("{name}: {:?}", observed.heaps) };
        assert_eq!((&glibc.allocator, &glibc.library), (&AllocatorKind::Glibc, &None), "{name}");
        assert_eq!((&own.allocator, own.library.as_deref()), (&kind, Some("libcolumns.so.7")));
        // The parts of its blocks that the program has not written to are not resident.
        let is_own = |arena: &&Arena| arena.jemalloc().is_some() || arena.mimalloc().is_some();
        let arenas = observed.arenas.iter().filter(is_own);
        let allocated: u64 = arenas.map(|arena| arena.allocated_bytes).sum();
        let is_exact = match kind {
            // Its caches have regions to which nothing was written yet.
            AllocatorKind::Jemalloc => {
                (usable - usable / 16..usable + OTHERS).contains(&own.allocated_bytes)
            }
            _ => (usable..usable + OTHERS).contains(&(allocated - own.cached_bytes)),
        };
        assert!(is_exact, "{name}: {usable}, {allocated}, {own:?}");
        // The threads of mimalloc 2 take over the segments of those that have ended, or return
        // them: which is a matter of their timing.
        let purge_bytes = own.prediction.purge_bytes.unwrap();
        assert!(purge_bytes > 0 || name == "mimalloc2", "{name}");
        // The ledger contains both, and no page twice.
        let both = own.allocated_bytes + glibc.allocated_bytes;
        assert_eq!(observed.ledger.bytes(Owner::Allocated), both, "{name}");
        assert_eq!(observed.ledger.bytes(Owner::Runtime), 0, "{name}: {:?}", observed.managers);
    }
}

#[test]
fn the_jemallocs_of_the_program_and_of_a_library_are_distinguished() {
    let home = tempfile::tempdir().unwrap();
    let library = home.path().join("libcolumns.so.7");
    std::fs::copy(bundled("jemalloc"), &library).unwrap();
    let mut command = Command::new(compile(home.path()));
    command.env("LD_PRELOAD", bundled("jemalloc"));
    command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");
    let mut subject = start(&mut command, &library);
    let usable = subject.usable_bytes();
    let observed = inspect(&subject);
    assert_eq!(observed.allocator.unwrap().kind, AllocatorKind::Jemalloc);
    let [program, own] = &observed.heaps[..] else { panic!("{:?}", observed.heaps) };
    let names = [program.library.as_deref(), own.library.as_deref()];
    assert_eq!(names, [None, Some("libcolumns.so.7")]);
    // The parts of its blocks that the program has not written to are not resident.
    assert!((usable / 2..usable + OTHERS).contains(&own.allocated_bytes), "{usable}, {own:?}");
    assert!(program.allocated_bytes < 1 << 20 && program.metadata_bytes > 0, "{program:?}");
    assert_eq!(observed.ledger.bytes(Owner::Runtime), 0, "{:?}", observed.managers);
}

fn start(command: &mut Command, library: &Path) -> Subject {
    Subject::start_with(command, 60_000_000, 5, 3, Some(library))
}

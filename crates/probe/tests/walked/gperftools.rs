//! A heap of gperftools' tcmalloc, compared with its own statistics.
//!
//! `LOWTIDE_TEST_TCMALLOCS` names the libraries, separated by colons; without it, only the system's
//! library is tested.

#[cfg(target_arch = "x86_64")]
use lowtide_heap::droppable::{Droppable, Guard};
use lowtide_heap::droppable_heap::DroppableHeap;
#[cfg(target_arch = "x86_64")]
use lowtide_heap::layout::{HeapLayout, Places};
use lowtide_model::inspection::GperftoolsHeap;
use lowtide_model::ledger::Owner;

#[cfg(target_arch = "x86_64")]
use crate::subject::start;
use crate::subject::{inspect, start_with};

fn libraries() -> Vec<String> {
    let installed = || {
        let directories = std::fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok);
        let names = directories.map(|entry| entry.path().join("libtcmalloc_minimal.so.4"));
        let found = names.filter(|path| path.exists()).map(|path| path.display().to_string());
        found.collect::<Vec<String>>().join(":")
    };
    let named = std::env::var("LOWTIDE_TEST_TCMALLOCS").unwrap_or_else(|_| installed());
    assert!(!named.is_empty(), "no gperftools (Debian: libgoogle-perftools4)");
    named.split(':').map(str::to_owned).collect()
}

#[test]
#[ignore = "needs gperftools (Debian: libgoogle-perftools4)"]
fn a_walk_matches_the_statistics_and_a_release_returns_the_predicted_bytes() {
    for library in libraries() {
        // Thread caches only, and caches through which blocks move between threads.
        for (bytes, kept_percent, threads) in [(60_000_000, 5, 3), (400_000_000, 10, 8)] {
            let what = format!("{library}, {bytes} bytes");
            let shape = (bytes, kept_percent, threads);
            let (_home, mut subject) = start_with(&library, &[], shape);
            // The first reply allocates.
            subject.statistics();
            let reported = subject.statistics();
            let observed = inspect(&subject);
            assert_eq!(observed.unwalked_bytes, 0, "{what}");
            let [arena] = &observed.arenas[..] else { panic!("{what}: {:?}", observed.arenas) };
            let own = *arena.gperftools().unwrap();
            let GperftoolsHeap { transfer_cache_bytes, thread_cache_bytes, .. } = own;
            let allocated = arena.allocated_bytes - transfer_cache_bytes - thread_cache_bytes;
            assert_eq!(allocated, reported.allocated_bytes, "{what}: allocated");
            assert_eq!(thread_cache_bytes, reported.cached_bytes, "{what}: in threads' caches");
            assert_eq!(transfer_cache_bytes, reported.transfer_bytes, "{what}: in transfer");
            assert_eq!(own.central_free_bytes, reported.central_bytes, "{what}: in central lists");
            assert_eq!(own.page_heap_free_bytes, reported.free_bytes, "{what}: free spans");
            assert_eq!(
                own.page_heap_returned_bytes, reported.returned_bytes,
                "{what}: returned spans"
            );
            let predicted = observed.heaps[0].prediction.purge_bytes.unwrap();
            assert_eq!(observed.ledger.bytes(Owner::Reclaimable), predicted, "{what}");
            let returned = u64::try_from(subject.purge()).unwrap();
            assert!(returned.abs_diff(predicted) <= 64 << 10, "{what}: {predicted}, {returned}");
        }
    }
}

/// Returns the distance of the lock from the start of a library, if it exports the lock.
#[cfg(target_arch = "x86_64")]
fn exported_lock(library: &str) -> Option<u64> {
    let output = std::process::Command::new("nm").args(["-D", library]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("6Static14pageheap_lock_E"))?;
    u64::from_str_radix(line.split(' ').next()?, 16).ok()
}

#[test]
#[ignore = "needs gperftools (Debian: libgoogle-perftools4)"]
#[cfg(target_arch = "x86_64")]
fn all_free_spans_are_guarded_by_the_lock_that_old_libraries_export() {
    use lowtide_probe::{detect::Detector, heap, memory::ProcessMemory, target::Target};
    for library in libraries() {
        let (_home, subject) = start(&library, &[]);
        let maps = Target::open(subject.pid()).unwrap().maps().unwrap();
        let malloc = Detector::default().detect(subject.pid(), &maps).unwrap().malloc.unwrap();
        let memory = ProcessMemory::open(subject.pid()).unwrap();
        let file = heap::library(&maps, &malloc.path.to_string_lossy()).unwrap();
        let (data, mappings) = (heap::data_of(&maps, file.file), heap::mappings(&maps));
        let places = Places { data: &data, zeroed_data: &data, mappings: &mappings };
        let layout = HeapLayout::find(&malloc.kind, &memory, &places).unwrap();
        let found = heap::droppable(subject.pid(), &maps, &malloc, layout, &memory, &mappings);
        let found = found.unwrap_or_else(|why| panic!("{library}: {why}"));
        let DroppableHeap::Guarded(found) = found else { panic!("{library} is not glibc") };
        let mut guards = Vec::new();
        let visit = &mut |found: Droppable| guards.push(found.guard);
        let sums = found.each_droppable(&memory, &mappings, visit).unwrap();
        assert_eq!(sums.unguarded_bytes, 0, "{library}");
        assert!(!guards.is_empty() && guards.iter().all(|guard| *guard == guards[0]), "{library}");
        if let Some(distance) = exported_lock(&library) {
            assert_eq!(guards[0], Guard::Lock(file.start + distance), "{library}");
        }
    }
}

//! A heap of jemalloc, compared with jemalloc's own statistics and a purge by the program.

use lowtide_model::inspection::{JemallocArena, Observation};
use lowtide_model::ledger::Owner;

use crate::subject::{Statistics, Subject, bundled, inspect, start};

/// Maximum difference between a purge and its prediction, in bytes: the program itself runs
/// meanwhile.
const TOLERANCE: u64 = 64 << 10;
/// Allocations of the C library and the loader, in bytes.
const OTHERS: u64 = 128 << 10;
/// Options that make the subject keep freed memory.
const KEEP: &str = "dirty_decay_ms:-1,muzzy_decay_ms:-1";

fn under(library: &str, options: &str) -> (tempfile::TempDir, Subject) {
    start(library, &[("MALLOC_CONF", options)])
}

fn sum(observation: &Observation, of: impl Fn(&JemallocArena) -> u64) -> u64 {
    observation.arenas.iter().filter_map(|arena| arena.jemalloc()).map(of).sum()
}

/// Compares an observation with the statistics and the program's blocks, and its prediction with a
/// purge.
fn agrees(library: &str, options: &str) {
    let (_home, mut subject) = under(library, options);
    let observation = agrees_with_statistics(&mut subject, options);
    let used = observation.ledger.bytes(Owner::Allocated);
    let usable = subject.usable_bytes();
    assert!((usable - usable / 16..usable + OTHERS).contains(&used), "{options}: {used} {usable}");
    purges_as_predicted(&mut subject, &observation, options);
}

/// Compares an observation with the statistics.
fn agrees_with_statistics(subject: &mut Subject, options: &str) -> Observation {
    // The first read of them allocates.
    subject.statistics();
    let statistics = subject.statistics();
    let observation = inspect(subject);
    assert_eq!(statistics, subject.statistics(), "it changes by itself");
    let allocated: u64 = observation.arenas.iter().map(|arena| arena.allocated_bytes).sum();
    let read = Statistics {
        allocated_bytes: allocated,
        active_bytes: sum(&observation, |own| own.active_bytes),
        dirty_bytes: sum(&observation, |own| own.dirty_bytes),
        muzzy_bytes: sum(&observation, |own| own.muzzy_bytes),
        ..statistics
    };
    assert_eq!(read, statistics, "{options}");
    // A cache takes many regions of a new slab at once, to which nothing was written yet.
    let cached = observation.ledger.bytes(Owner::Cached);
    assert!(cached <= statistics.cached_bytes, "{options}: {cached} {statistics:?}");
    let by_size: u64 = observation.allocated_by_size.iter().map(|bin| bin.bytes).sum();
    assert_eq!(by_size, allocated, "{options}");
    assert!(observation.managers.is_empty() && observation.unwalked_bytes == 0, "{observation:?}");
    observation
}

/// Compares the prediction of an observation with a purge.
fn purges_as_predicted(subject: &mut Subject, observation: &Observation, options: &str) {
    let predicted = observation.heap.and_then(|heap| heap.purge_bytes).unwrap();
    let returned = u64::try_from(subject.purge()).unwrap();
    assert!(predicted.abs_diff(returned) <= TOLERANCE, "{options}: {predicted}, {returned}");
    assert!(predicted > 20_000_000, "{options}: {predicted}");
    let after = inspect(subject);
    let left = after.heap.and_then(|heap| heap.purge_bytes).unwrap();
    assert!(left <= TOLERANCE, "{options}: {left}");
    // The remaining pages are slabs', which no purge returns.
    let slabs = sum(&after, |own| own.slab_free_pages_bytes);
    assert_eq!(after.ledger.bytes(Owner::Reclaimable), slabs + left, "{options}");
}

#[test]
fn the_heap_is_walked_to_the_byte_and_a_purge_returns_the_predicted_bytes() {
    let library = bundled("jemalloc");
    agrees(&library, KEEP);
    for options in ["narenas:1", "percpu_arena:percpu", "retain:false", "tcache:false"] {
        agrees(&library, &format!("{KEEP},{options}"));
    }
    agrees(&library, &format!("{KEEP},san_guard_large:4,san_guard_small:8"));
    agrees(&library, &format!("{KEEP},disable_large_size_classes:false"));
}

#[test]
#[ignore = "needs jemalloc 5.3.0 (Debian: libjemalloc2)"]
fn the_heap_of_debians_jemalloc_is_walked_to_the_byte() {
    agrees("libjemalloc.so.2", KEEP);
    agrees("libjemalloc.so.2", &format!("{KEEP},prof:false,narenas:2"));
}

#[test]
#[ignore = "needs other versions, whose libraries LOWTIDE_TEST_JEMALLOCS lists, with colons between (.ci/older-jemallocs)"]
fn the_heap_of_any_jemalloc_is_walked_to_the_byte() {
    let paths = std::env::var("LOWTIDE_TEST_JEMALLOCS").expect("LOWTIDE_TEST_JEMALLOCS is not set");
    for library in paths.split(':') {
        for options in [KEEP.to_owned(), format!("{KEEP},narenas:1")] {
            // The statistics of older versions count more than the blocks and the caches.
            let (_home, mut subject) = under(library, &options);
            let observation = agrees_with_statistics(&mut subject, &options);
            purges_as_predicted(&mut subject, &observation, &options);
        }
    }
}

#[test]
fn a_heap_with_the_huge_page_allocator_is_recognised_but_not_walked() {
    let (_home, subject) = under(&bundled("jemalloc"), "hpa:true");
    let observation = inspect(&subject);
    assert_eq!((observation.arenas.len(), observation.heap), (0, None));
    let managers: Vec<&str> = observation.managers.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(managers, ["jemalloc"]);
    let note = "its heap was not walked: jemalloc's allocator of huge pages (opt.hpa) is on";
    assert!(observation.notes.iter().any(|found| found == note), "{:?}", observation.notes);
}

use lowtide_model::inspection::{
    Allocator, Arena, ArenaDetail, ForkedMemory, GlibcArena, Inspection, NamedMemory, Observation,
    Tunables,
};
use lowtide_model::ledger::{Ledger, State, WalkedRuntime};

use super::*;
use crate::diagnose::diagnose;
use crate::diagnose::tests::{MIB, manager, observed, runtimes};

fn remedies_of(observation: Observation) -> Vec<Remedy> {
    diagnose(observation).remedies
}

fn kinds(found: &[Remedy]) -> Vec<(RemedyKind, Option<u64>)> {
    found.iter().map(|remedy| (remedy.kind, remedy.predicted_bytes)).collect()
}

#[test]
fn every_runtime_and_every_tunable_allocator_has_a_line_of_advice() {
    let is_not_glibc = |kind: &&AllocatorKind| **kind != AllocatorKind::Glibc;
    let allocators: Vec<_> = AllocatorKind::NAMED.iter().filter(is_not_glibc).collect();
    let allocators = allocators.iter().map(|kind| kind.name());
    for name in RuntimeKind::ALL.map(RuntimeKind::name).into_iter().chain(allocators) {
        let managers = vec![manager(name, 400), manager("other", 20)];
        let found = observed(&[(Owner::Allocated, 20), (Owner::Runtime, 500)]);
        let found = remedies_of(Observation { managers, ..found });
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].how.starts_with(&format!("{name}: ")), "{found:?}");
    }
}

#[test]
fn the_advice_for_hotspot_is_that_of_its_collector() {
    let of = |flag: &str| {
        let managers = vec![manager("HotSpot", 400)];
        let found = observed(&[(Owner::Allocated, 20), (Owner::Runtime, 500)]);
        let command = vec!["java".to_owned(), flag.to_owned(), "Main".to_owned()];
        remedies_of(Observation { managers, command, ..found })[0].how.clone()
    };
    assert!(of("-XX:+UseZGC").contains("-XX:SoftMaxHeapSize"));
    assert!(of("-XX:+UseShenandoahGC").contains("ShenandoahUncommitDelay"));
    assert!(of("-Xmx64m").contains("G1PeriodicGCInterval"));
}

/// Returns a program of Java with this collector in force, whose heap has free memory, in MiB, and
/// whose other memory is managed by HotSpot as well.
fn of_java(collector: Option<&str>, in_use: u64, free: u64, outside: u64) -> Vec<String> {
    let mut found = observed(&[(Owner::Allocated, 10), (Owner::File, 20)]);
    found.ledger.add_walked(WalkedRuntime::HotSpot, State::Allocated, in_use * MIB);
    found.ledger.add_walked(WalkedRuntime::HotSpot, State::Free, free * MIB);
    found.ledger.add(Owner::Runtime, outside * MIB);
    let managers = vec![manager("HotSpot", in_use + free + outside)];
    let java_collector = collector.map(str::to_owned);
    let found = remedies_of(Observation { managers, java_collector, ..found });
    found.into_iter().filter_map(|remedy| remedy.row).collect()
}

#[test]
fn a_collection_is_advised_only_for_a_collector_that_returns_memory_with_it() {
    let of = |collector| of_java(collector, 10, 140, 10).join(" ");
    assert_eq!(of(Some("G1")), "hotspot/g1");
    assert_eq!(of(Some("Serial")), "hotspot/serial");
    assert_eq!(of(Some("Parallel")), "hotspot/parallel");
    assert_eq!(of(Some("ZGC")), "hotspot/zgc");
    assert_eq!(of(Some("Shenandoah")), "hotspot/shenandoah");
    assert_eq!(of(Some("Epsilon")), "hotspot/epsilon");
    assert_eq!(of(None), "hotspot/unknown");
}

#[test]
fn memory_outside_of_the_java_heap_and_objects_in_use_get_no_advice_to_collect() {
    assert_eq!(of_java(Some("G1"), 10, 4, 60), ["hotspot/outside"]);
    assert_eq!(of_java(Some("G1"), 200, 4, 10), ["hotspot/in_use"]);
    assert_eq!(of_java(Some("G1"), 10, 60, 60), ["hotspot/g1", "hotspot/outside"]);
}

#[test]
fn memory_outside_of_the_spaces_of_v8_is_no_garbage_and_gets_no_limit_of_these_spaces() {
    for name in ["Node.js", "V8"] {
        let mut found = observed(&[(Owner::Allocated, 10), (Owner::File, 20)]);
        found.ledger.add_walked(WalkedRuntime::V8, State::Allocated, 3 * MIB);
        found.ledger.add(Owner::Runtime, 62 * MIB);
        let managers = match name {
            "V8" => vec![manager("V8", 65)],
            _ => vec![manager(name, 62), manager("V8", 3)],
        };
        let found = diagnose(Observation { managers, runtimes: runtimes(&[name]), ..found });
        let rows: Vec<_> = found.remedies.iter().filter_map(|r| r.row.as_deref()).collect();
        assert_eq!(rows, ["v8/outside"]);
        let because = &found.verdict.because[0];
        assert!(because.contains("outside of V8's spaces"), "{because}");
        assert!(!because.contains("garbage"), "{because}");
    }
}

#[test]
fn the_memory_of_go_is_not_called_garbage_and_the_advice_says_what_divides_it() {
    let found = observed(&[(Owner::Runtime, 141), (Owner::File, 2)]);
    let (managers, runtimes) = (vec![manager("Go", 141)], runtimes(&["Go"]));
    let found = diagnose(Observation { managers, runtimes, ..found });
    let because = &found.verdict.because[0];
    assert!(because.contains("stacks of goroutines") && because.contains("does not divide"));
    let [remedy] = &found.remedies[..] else { panic!("{:?}", found.remedies) };
    assert!(remedy.how.contains("runtime/metrics") && remedy.predicted_bytes.is_none());
}

#[test]
fn only_a_process_of_php_fpm_is_told_of_its_pool() {
    let row = |program: &str| {
        let found = observed(&[(Owner::Runtime, 97), (Owner::File, 7)]);
        let (managers, command) = (vec![manager("PHP", 97)], vec![program.to_owned()]);
        remedies_of(Observation { managers, command, ..found })[0].row.clone().unwrap()
    };
    assert_eq!(row("php-fpm: pool www"), "php/max_requests");
    assert_eq!(row("/usr/sbin/php-fpm8.2"), "php/max_requests");
    assert_eq!(row("/usr/bin/php"), "php/memory_usage");
    assert_eq!(row("/usr/sbin/apache2"), "php/memory_usage");
}

#[test]
fn the_setting_of_mimalloc_has_the_name_of_its_version_also_where_threads_keep_what_is_free() {
    let advised = |version: &str, purge_mib: Option<u64>| {
        let mut found = observed(&[(Owner::Allocated, 20), (Owner::Reclaimable, 75)]);
        let purge_bytes = purge_mib.map(|mib| mib * MIB);
        let prediction = HeapPrediction { purge_bytes, ..HeapPrediction::default() };
        let kind = AllocatorKind::Mimalloc;
        found.heaps = vec![WalkedHeap::new(kind.clone(), None, &found.ledger, prediction)];
        found.heap = Some(prediction);
        let version = Some(version.to_owned());
        found.allocator = Some(Allocator { kind, version, linkage: None });
        let found =
            remedies_of(found).into_iter().find(|remedy| remedy.kind == RemedyKind::Purge)?;
        Some((found.setting?.name, found.predicted_bytes?, found.estimated))
    };
    let name = |name: &str, mib: u64, estimated| Some((name.to_owned(), mib * MIB, estimated));
    assert_eq!(advised("2.0.9", Some(0)), name("MIMALLOC_DECOMMIT_DELAY", 75, true));
    assert_eq!(advised("2.3.2", Some(0)), name("MIMALLOC_PURGE_DELAY", 75, true));
    assert_eq!(advised("3.3.2", Some(70)), name("MIMALLOC_PURGE_DELAY", 70, false));
    // The program may not call the kernel for it.
    assert_eq!(advised("2.0.9", None), None);
    let of_manager = |version: &str| {
        let found = observed(&[(Owner::Runtime, 97), (Owner::File, 7)]);
        let kind = AllocatorKind::Mimalloc;
        let allocator = Some(Allocator { kind, version: Some(version.to_owned()), linkage: None });
        let managers = vec![manager("mimalloc", 97)];
        let [remedy] = &remedies_of(Observation { managers, allocator, ..found })[..] else {
            panic!("one remedy")
        };
        remedy.setting.clone().unwrap().name
    };
    assert_eq!(of_manager("2.0.9"), "MIMALLOC_DECOMMIT_DELAY");
    assert_eq!(of_manager("2.1.2"), "MIMALLOC_PURGE_DELAY");
}

#[test]
fn the_remedy_for_cached_memory_is_the_setting_of_the_allocator_in_force() {
    let of = |kind: AllocatorKind, variable: Option<&str>| {
        let found = observed(&[(Owner::Allocated, 20), (Owner::Cached, 300)]);
        let prediction = HeapPrediction::default();
        let mut heap = WalkedHeap::new(kind, None, &found.ledger, prediction);
        heap.variable = variable.map(str::to_owned);
        let remedies = remedies_of(Observation { heaps: vec![heap], ..found });
        let remedy =
            remedies.into_iter().find(|remedy| remedy.kind == RemedyKind::ThreadCaches).unwrap();
        (remedy.setting.map(|setting| setting.name), remedy.predicted_bytes, remedy.estimated)
    };
    let name = |name: &str| Some(name.to_owned());
    let bytes = Some(300 * MIB);
    assert_eq!(of(AllocatorKind::Glibc, None), (name("GLIBC_TUNABLES"), bytes, true));
    let variable = "_RJEM_MALLOC_CONF";
    assert_eq!(of(AllocatorKind::Jemalloc, Some(variable)), (name(variable), bytes, true));
    assert_eq!(of(AllocatorKind::Gperftools, None), (None, None, false));
}

#[test]
fn the_mimalloc_of_cpython_gets_no_setting_of_mimalloc() {
    let heap = |library: &str| {
        let ledger = observed(&[(Owner::Fragmented, 300)]).ledger;
        let purge_bytes = Some(3 * MIB);
        let prediction = HeapPrediction { purge_bytes, ..HeapPrediction::default() };
        WalkedHeap::new(AllocatorKind::Mimalloc, Some(library.to_owned()), &ledger, prediction)
    };
    let remedies = |library: &str| {
        let found = observed(&[(Owner::Allocated, 20), (Owner::Fragmented, 300)]);
        remedies_of(Observation { heaps: vec![heap(library)], ..found })
    };
    let of_python = remedies("libpython3.13.so.1.0");
    assert!(of_python.iter().all(|remedy| remedy.setting.is_none()), "{of_python:?}");
    assert!(of_python.iter().any(|remedy| remedy.how.contains("PYTHONMALLOC=pymalloc")));
    let of_arrow = remedies("libarrow.so.2600");
    assert!(of_arrow.iter().any(|remedy| remedy.setting.is_some()), "{of_arrow:?}");
}

#[test]
fn a_setting_has_the_exact_name_and_value() {
    let found = observed(&[(Owner::Allocated, 20), (Owner::Runtime, 500)]);
    let (managers, runtimes) = (vec![manager("mimalloc", 500)], runtimes(&["CPython"]));
    let found = remedies_of(Observation { managers, runtimes, ..found });
    let setting = found[0].setting.as_ref().unwrap();
    assert_eq!((setting.name.as_str(), setting.value.as_str()), ("MIMALLOC_PURGE_DELAY", "0"));
    assert!(found[0].how.contains("release_unused()"), "{found:?}");
}

#[test]
fn remedies_match_the_verdict() {
    let mut hoard = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
    hoard.heap.as_mut().unwrap().trim_bytes = Some(800 * MIB);
    let found = remedies_of(hoard);
    let expected =
        [(RemedyKind::Release, Some(900 * MIB)), (RemedyKind::MallocTrim, Some(800 * MIB))];
    assert_eq!(kinds(&found), expected);
    assert!(found[0].how.contains("including the top chunks of thread heaps (100 MiB)"));
    assert!(found[0].how.ends_with("lowtide release 7"), "{found:?}");

    let mut locked = observed(&[(Owner::Allocated, 100), (Owner::Locked, 900)]);
    assert_eq!(kinds(&remedies_of(locked.clone())), []);
    locked.heap.as_mut().unwrap().trim_bytes = Some(200 * MIB);
    assert_eq!(kinds(&remedies_of(locked)), [(RemedyKind::MallocTrim, Some(200 * MIB))]);

    let fragmented = observed(&[(Owner::Allocated, 500), (Owner::Fragmented, 500)]);
    assert_eq!(kinds(&remedies_of(fragmented)), [(RemedyKind::Allocator, None)]);

    let live = observed(&[(Owner::Allocated, 1000)]);
    let found = remedies_of(Observation { sockets_established: Some(1000), ..live });
    assert_eq!(found[0].kind, RemedyKind::CloseConnections);
    assert!(found[0].how.contains("at most 1.00 MiB each"), "{found:?}");
}

#[test]
fn a_trim_threshold_is_a_remedy_only_if_the_top_of_the_main_heap_is_free() {
    let tunables = Tunables {
        arena_max: None,
        trim_threshold_bytes: 64 << 20,
        top_pad_bytes: 0,
        mmap_threshold_bytes: 32 << 20,
        mmap_threshold_dynamic: true,
        tcache_count: 7,
        tcache_max_bytes: 1032,
    };
    let with_top = |top_bytes| {
        let mut found = observed(&[(Owner::Allocated, 100), (Owner::Fragmented, 200)]);
        let prediction = HeapPrediction::default();
        let heap = WalkedHeap::new(AllocatorKind::Glibc, None, &found.ledger, prediction);
        found.heaps = vec![heap];
        let detail = ArenaDetail::Glibc(GlibcArena { top_bytes, ..GlibcArena::default() });
        found.arenas = vec![Arena { detail, reclaimable_bytes: top_bytes, ..Arena::default() }];
        let found = Observation { tunables_in_force: Some(tunables.clone()), ..found };
        remedies_of(found).iter().any(|remedy| remedy.kind == RemedyKind::TrimThreshold)
    };
    assert!(with_top(150 * MIB));
    assert!(!with_top(MIB));
}

#[test]
fn another_allocator_is_no_remedy_for_one_that_separates_sizes() {
    let mut found = observed(&[(Owner::Allocated, 500), (Owner::Fragmented, 500)]);
    let prediction = HeapPrediction::default();
    let heap = WalkedHeap::new(AllocatorKind::Jemalloc, None, &found.ledger, prediction);
    found.heaps = vec![heap];
    let found = remedies_of(found);
    assert!(found[0].how.contains("jemalloc separates sizes"), "{found:?}");
    assert!(!found[0].how.contains("lowtide study"), "{found:?}");
}

#[test]
fn a_purge_of_a_library_heap_names_the_library_and_no_glibc_setting() {
    let mut ledger = Ledger::default();
    ledger.add(Owner::Reclaimable, 900 * MIB);
    let prediction = HeapPrediction { purge_bytes: Some(890 * MIB), ..HeapPrediction::default() };
    let heap = |kind, library: Option<&str>, ledger: &Ledger| {
        WalkedHeap::new(kind, library.map(str::to_owned), ledger, prediction)
    };
    let tunables = Tunables {
        arena_max: None,
        trim_threshold_bytes: 1 << 30,
        top_pad_bytes: 0,
        mmap_threshold_bytes: 0,
        mmap_threshold_dynamic: true,
        tcache_count: 7,
        tcache_max_bytes: 1032,
    };
    let glibc = WalkedHeap {
        prediction: HeapPrediction::default(),
        ..heap(AllocatorKind::Glibc, None, &Ledger::default())
    };
    let arrow = heap(AllocatorKind::Mimalloc, Some("libarrow.so.2600"), &ledger);
    let found = diagnose(Observation {
        heaps: vec![glibc.clone(), arrow],
        tunables_in_force: Some(tunables),
        runtimes: runtimes(&["CPython"]),
        ..observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)])
    });
    let because = &found.verdict.because[0];
    assert!(because.ends_with(" (mimalloc of libarrow.so.2600: 900 MiB)"), "{because}");
    let remedies: Vec<&Remedy> =
        found.remedies.iter().filter(|remedy| remedy.kind != RemedyKind::Release).collect();
    let purge = remedies.iter().find(|remedy| remedy.kind == RemedyKind::Purge).unwrap();
    assert_eq!(purge.predicted_bytes, Some(890 * MIB));
    assert!(purge.how.starts_with("pyarrow.default_memory_pool().release_unused();"), "{purge:?}");
    let is_of_glibc = |kind| matches!(kind, RemedyKind::ArenaMax | RemedyKind::TrimThreshold);
    assert!(!remedies.iter().any(|remedy| is_of_glibc(remedy.kind)), "{remedies:?}");

    let other = heap(AllocatorKind::Jemalloc, Some("_polars.so"), &ledger);
    let found = remedies_of(Observation {
        heaps: vec![glibc, other],
        ..observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)])
    });
    let purge = found.iter().find(|remedy| remedy.kind == RemedyKind::Purge).unwrap();
    assert!(purge.how.contains("in _polars.so;") && purge.setting.is_none(), "{purge:?}");
}

#[test]
fn only_pages_with_a_prediction_are_said_to_be_returnable() {
    let because = |release_bytes: Option<u64>| {
        let mut found = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let prediction = HeapPrediction { release_bytes, ..HeapPrediction::default() };
        found.heap = Some(prediction);
        found.heaps = vec![WalkedHeap::new(AllocatorKind::Musl, None, &found.ledger, prediction)];
        diagnose(found).verdict.because[0].clone()
    };
    for bytes in [None, Some(80 * MIB)] {
        let said = because(bytes);
        assert!(said.ends_with("still held, in whole pages"), "{said}");
    }
    let said = because(Some(300 * MIB));
    assert!(said.ends_with("in whole pages, of which 300 MiB can be returned"), "{said}");
    let said = because(Some(900 * MIB));
    assert!(said.ends_with("in whole pages that can be returned"), "{said}");
}

#[test]
fn a_release_that_would_be_refused_is_no_remedy_and_the_program_may_still_trim() {
    let found = |own_too: bool| {
        let mut found = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let all = HeapPrediction { trim_bytes: Some(900 * MIB), ..found.heap.unwrap() };
        found.heap = Some(all);
        found.heaps = vec![WalkedHeap::new(AllocatorKind::Glibc, None, &found.ledger, all)];
        assert!(promises_release(&found));
        found.withdraw_release("its only thread is in flock", own_too);
        assert!(!promises_release(&found));
        assert_eq!(found.notes, ["lowtide release would refuse it: its only thread is in flock"]);
        diagnose(found)
    };
    let kinds = |found: &Inspection| found.remedies.iter().map(|r| r.kind).collect::<Vec<_>>();
    let refused = found(false);
    assert_eq!(kinds(&refused), [RemedyKind::MallocTrim]);
    assert!(refused.verdict.because[0].ends_with("in whole pages that can be returned"));
    // A filter of system calls may kill the program for the calls of a trim as well.
    let filtered = found(true);
    assert_eq!(kinds(&filtered), []);
    assert!(filtered.verdict.because[0].ends_with("still held, in whole pages"));
}

#[test]
fn a_release_of_pages_that_forked_processes_share_does_not_promise_memory_of_the_machine() {
    let said = |free_shared_mib: u64| {
        let mut found = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let free_shared_bytes = Some(free_shared_mib * MIB);
        let shared_bytes = 950 * MIB;
        found.forked = Some(ForkedMemory {
            shared_bytes,
            free_shared_bytes,
            processes: 4,
            ..ForkedMemory::default()
        });
        let release = remedies_of(found).into_iter().find(|r| r.kind == RemedyKind::Release);
        release.unwrap().how
    };
    let how = said(890);
    assert!(how.contains("890 MiB of them are shared with forked processes"), "{how}");
    assert!(!said(20).contains("forked"));
}

#[test]
fn memory_that_waits_for_its_thread_is_no_hoard_and_the_advice_says_who_returns_it() {
    let mut found = observed(&[(Owner::Allocated, 1), (Owner::Cached, 60), (Owner::File, 2)]);
    let none = HeapPrediction { purge_bytes: Some(0), ..HeapPrediction::default() };
    found.heaps = vec![WalkedHeap::new(AllocatorKind::Mimalloc, None, &found.ledger, none)];
    let found = diagnose(found);
    assert_eq!(found.verdict.kind, VerdictKind::Cached);
    let [remedy] = &found.remedies[..] else { panic!("{:?}", found.remedies) };
    assert_eq!(remedy.row.as_deref(), Some("mimalloc/collect"));
    assert!(remedy.how.contains("mi_collect(true) in that thread"), "{remedy:?}");
}

#[test]
fn memory_with_a_name_that_the_program_gave_has_it_in_the_verdict() {
    let mut found = observed(&[(Owner::AnonymousOther, 100), (Owner::Allocated, 10)]);
    found.named_anonymous = vec![NamedMemory::new("frames".to_owned(), 70 * MIB, 3)];
    let because = &diagnose(found).verdict.because[0];
    let said =
        "were mapped by the program itself, outside of malloc, 70.0 MiB of them frames; the part";
    assert!(because.contains(said), "{because}");
}

#[test]
fn the_variable_of_a_jemalloc_is_the_one_that_its_build_reads() {
    let remedy = |library: Option<&str>, variable: Option<&str>| {
        let mut ledger = Ledger::default();
        ledger.add(Owner::Reclaimable, 900 * MIB);
        let prediction = HeapPrediction { purge_bytes: Some(900 * MIB), ..Default::default() };
        let library = library.map(str::to_owned);
        let heap = WalkedHeap::new(AllocatorKind::Jemalloc, library, &ledger, prediction);
        let heap = WalkedHeap { variable: variable.map(str::to_owned), ..heap };
        let observation = observed(&[(Owner::Allocated, 100), (Owner::Reclaimable, 900)]);
        let found = remedies_of(Observation { heaps: vec![heap], ..observation });
        found.into_iter().find(|remedy| remedy.kind == RemedyKind::Purge).unwrap()
    };
    let preloaded = remedy(None, Some("MALLOC_CONF"));
    assert_eq!(preloaded.setting.unwrap().name, "MALLOC_CONF");
    let of_rust = remedy(Some("_polars.so"), Some("_RJEM_MALLOC_CONF"));
    assert_eq!(of_rust.setting.unwrap().name, "_RJEM_MALLOC_CONF");
    assert!(of_rust.how.contains("; _RJEM_MALLOC_CONF=background_thread"), "{}", of_rust.how);
    assert_eq!(remedy(Some("_polars.so"), None).setting, None);
}

#[test]
fn every_row_names_a_known_holder_and_what_it_rests_on() {
    for row in table::rows() {
        let is_allocator = AllocatorKind::NAMED.iter().any(|kind| kind.name() == row.holder);
        let is_state = [table::HUGE_PAGES, table::FORKED].contains(&row.holder);
        let is_runtime = RuntimeKind::parse(row.holder).is_some();
        assert!(is_allocator || is_runtime || is_state, "{row:?}");
        assert!(!row.source.0.is_empty() && !row.source.1.is_empty(), "{row:?}");
        let is_named = |setting: table::RowSetting| row.how.contains(setting.name);
        let has_variable = row.how.contains("{variable}");
        assert!(has_variable || row.setting.is_none_or(is_named), "{row:?}");
    }
}

#[test]
fn the_advice_against_huge_pages_is_what_makes_the_process_have_them() {
    use lowtide_model::inspection::HugePages;
    use lowtide_model::remedy::Setting;
    let advice = |grant, setting: Option<Setting>, word: &str| {
        let huge = HugePages { zero_bytes: 180 * MIB, estimated: true, grant, setting };
        let found = observed(&[(Owner::Allocated, 184)]);
        let command = vec!["program".to_owned(), word.to_owned()];
        remedies_of(Observation { huge_pages: Some(huge), command, ..found })
    };
    let rows = |found: Vec<Remedy>| -> Vec<String> {
        found.into_iter().filter_map(|remedy| remedy.row).collect()
    };
    let numpy = Setting { name: "NUMPY_MADVISE_HUGEPAGE".to_owned(), value: "0".to_owned() };
    let [of_numpy] = &advice(Some(HugeGrant::Madvise), Some(numpy.clone()), "")[..] else {
        panic!("one remedy")
    };
    assert_eq!(of_numpy.setting.as_ref(), Some(&numpy));
    assert!(of_numpy.how.contains("NUMPY_MADVISE_HUGEPAGE=0"), "{of_numpy:?}");
    assert_eq!((of_numpy.predicted_bytes, of_numpy.estimated), (Some(180 * MIB), true));
    let java = "-XX:+UseTransparentHugePages";
    assert_eq!(rows(advice(Some(HugeGrant::Madvise), None, java)), ["huge_pages/hotspot"]);
    assert_eq!(rows(advice(Some(HugeGrant::Madvise), None, "")), ["huge_pages/asked"]);
    assert_eq!(rows(advice(Some(HugeGrant::Always), None, java)), ["huge_pages/always"]);
    assert!(advice(Some(HugeGrant::Never), None, "").is_empty());
    assert!(advice(None, None, "").is_empty());
}

#[test]
fn a_forked_process_that_has_copied_much_gets_the_advice_of_its_runtime() {
    use lowtide_model::inspection::{ForkedMemory, Runtime};
    let advice = |name: &str, version: &str, copied_mib: u64| {
        let forked = ForkedMemory {
            private_bytes: 85 * MIB,
            shared_bytes: 15 * MIB,
            copied_bytes: Some(copied_mib * MIB),
            free_shared_bytes: None,
            parent: Some(6),
            processes: 4,
            pids: vec![6, 8, 9, 10],
        };
        let found = observed(&[(Owner::Allocated, 60), (Owner::Runtime, 40)]);
        let runtimes = vec![Runtime { name: name.to_owned(), version: Some(version.to_owned()) }];
        let found = remedies_of(Observation { forked: Some(forked), runtimes, ..found });
        found.into_iter().filter(|remedy| remedy.kind == RemedyKind::Fork).find_map(|r| r.row)
    };
    assert_eq!(advice("CPython", "3.11.2", 80).as_deref(), Some("fork/cpython"));
    assert_eq!(advice("CPython", "2.7.18", 80).as_deref(), Some("fork/fewer"));
    assert_eq!(advice("Ruby", "3.1.2", 80).as_deref(), Some("fork/ruby_compact"));
    assert_eq!(advice("Ruby", "3.4.1", 80).as_deref(), Some("fork/ruby_warmup"));
    assert_eq!(advice("Ruby", "2.5", 80).as_deref(), Some("fork/fewer"));
    assert_eq!(advice("CPython", "3.11.2", 3), None);
}

#[test]
fn a_forked_process_of_python_is_not_told_to_collect() {
    use lowtide_model::inspection::{CPythonHeap, ForkedMemory};
    let rows = |shared_mib: u64| -> Vec<String> {
        let mut found = observed(&[(Owner::Allocated, 10)]);
        found.ledger.add_walked(WalkedRuntime::CPython, State::Allocated, 90 * MIB);
        let cpython = CPythonHeap { allocated_bytes: 90 * MIB, ..CPythonHeap::default() };
        let forked = ForkedMemory {
            shared_bytes: shared_mib * MIB,
            processes: 4,
            ..ForkedMemory::default()
        };
        let managers = vec![manager("CPython", 90)];
        let (cpython, forked) = (Some(cpython), Some(forked));
        let found = remedies_of(Observation { cpython, forked, managers, ..found });
        found.into_iter().filter_map(|remedy| remedy.row).collect()
    };
    assert_eq!(rows(0), ["cpython/collect"]);
    assert!(rows(50).is_empty());
}

/// The measured gains: row, subject, MiB before, MiB predicted or `-`, MiB after.
const GAINS: &str = include_str!("../../../../bench/remedies/gains.tsv");

#[test]
fn a_row_that_predicts_exactly_was_measured_within_a_quarter() {
    let measured = |name: &str| -> Vec<(f64, f64)> {
        let lines = GAINS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let of_row = lines.filter(|words| words[0] == name);
        let figures = of_row.map(|words| [2, 3, 4].map(|at| words.get(at)?.parse::<f64>().ok()));
        figures
            .filter_map(|figures| match figures {
                [Some(before), Some(predicted), Some(after)] => Some((before - after, predicted)),
                _ => None,
            })
            .collect()
    };
    for row in table::rows().filter(|row| row.is_exact) {
        assert!(!measured(row.name).is_empty(), "{} was not measured", row.name);
        for (gain, predicted) in measured(row.name) {
            let is_near = (gain - predicted).abs() <= predicted / 4.0;
            assert!(is_near, "{}: {predicted} MiB predicted, {gain} MiB gained", row.name);
        }
    }
}

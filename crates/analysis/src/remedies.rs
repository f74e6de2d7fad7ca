//! Remedies that would lower a process's memory, with the predicted effect.

use std::cmp::Reverse;

use crate::evidence::{Evidence, NOTABLE};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Human;
use lowtide_model::inspection::{
    CPythonHeap, CPythonSizeClass, HeapPrediction, Linkage, Runtime, WalkedHeap,
};
use lowtide_model::ledger::Owner;
use lowtide_model::remedy::{Remedy, RemedyKind};
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_model::verdict::{Verdict, VerdictKind};

/// Minimum gain of a remedy of the heap, in bytes.
const MIN_BYTES: u64 = 64 << 10;
/// Minimum number of arenas with free chunks for which fewer arenas are recommended.
const MANY_ARENAS: usize = 8;
/// glibc's own trim threshold, in bytes (`DEFAULT_TRIM_THRESHOLD`).
const TRIM_THRESHOLD: u64 = 128 << 10;

/// Returns the remedies that would lower RSS, the most effective first.
pub(crate) fn remedies(facts: &Evidence<'_>, verdict: &Verdict) -> Vec<Remedy> {
    let mut found = Vec::new();
    if let Some(heap) = facts.heap {
        found.extend(releases(heap, facts.pid));
        found.extend(facts.heaps.iter().filter_map(|heap| purge(heap, facts)));
    }
    let managed: u64 = facts.ledger.bytes(Owner::Runtime);
    let in_use = facts.ledger.bytes(Owner::Allocated) + managed;
    if let Some(connections) = facts.sockets_established.filter(|n| *n > 0)
        && facts.share(in_use) >= 0.5
    {
        let how = format!(
            "{connections} connections are open: their memory is in use until they close (at most {} \
             each)",
            Human(in_use / connections)
        );
        found.push(Remedy::new(RemedyKind::CloseConnections, None, how));
    }
    found.extend(settings(facts));
    let fragmented = facts.ledger.bytes(Owner::Fragmented);
    if verdict.kind == VerdictKind::Fragmentation && fragmented >= facts.free_in_cpython() {
        found.push(Remedy::new(RemedyKind::Allocator, None, against_fragmentation(facts)));
    }
    found.extend(of_managers(facts));
    found.extend(of_named_runtimes(facts));
    found
}

/// Returns advice for the runtimes of which only the name is known, if much memory is where they
/// keep their objects.
fn of_named_runtimes(facts: &Evidence<'_>) -> Vec<Remedy> {
    let named = facts.runtimes.iter().filter_map(|runtime| RuntimeKind::parse(&runtime.name));
    let notable = named.filter(|kind| {
        let bytes = |owners: &[Owner]| owners.iter().map(|owner| facts.ledger.bytes(*owner)).sum();
        let bytes: u64 = match kind {
            RuntimeKind::PyPy | RuntimeKind::R => bytes(&[Owner::Allocated]),
            RuntimeKind::JavaScriptCore => bytes(&[Owner::Allocated, Owner::Runtime]),
            _ => bytes(&[Owner::AnonymousOther]),
        };
        kind.is_named_only() && facts.share(bytes) >= NOTABLE
    });
    notable
        .map(|kind| {
            let how = format!("{}: {}", kind.name(), for_runtime(kind));
            Remedy::new(RemedyKind::Runtime, None, how)
        })
        .collect()
}

/// Returns the advice against fragmentation, for the allocator whose heap has most of it.
fn against_fragmentation(facts: &Evidence<'_>) -> String {
    let most = facts.heaps.iter().max_by_key(|heap| heap.fragmented_bytes);
    let scattered = "free memory is scattered between blocks in use, and no release can return it";
    match most.map(|heap| &heap.allocator) {
        _ if most.is_some_and(WalkedHeap::is_of_cpython) => format!(
            "{scattered}: this is the mimalloc that CPython contains (PYTHONMALLOC=mimalloc), which no other malloc \
             replaces; PYTHONMALLOC=pymalloc uses CPython's arenas instead, and PYTHONMALLOC=malloc the malloc of the \
             process (a free-threaded build ignores both)"
        ),
        Some(kind) if *kind != AllocatorKind::Glibc => format!(
            "{scattered}: {kind} separates sizes, but blocks of one size that live long keep the pages of those \
             that do not; allocate long-lived blocks before the others, or from an arena or pool of their own"
        ),
        _ => format!(
            "{scattered}: an allocator that separates sizes and returns its free pages may hold less; try \
             lowtide study -a glibc,jemalloc,mimalloc -t jemalloc/background_thread -p none,adaptive"
        ),
    }
}

/// Returns the remedies that return free memory of a walked heap.
fn releases(heap: HeapPrediction, pid: u32) -> Vec<Remedy> {
    let release = heap.release_bytes.filter(|bytes| *bytes >= MIN_BYTES);
    // Locked memory at the end of the main heap is returned by a trim only.
    let trim = heap.trim_bytes.filter(|bytes| release.is_some() || *bytes >= MIN_BYTES);
    let release = release.map(|bytes| {
        let tops = trim.map_or(0, |trim_bytes| bytes.saturating_sub(trim_bytes));
        let tops = match tops >= MIN_BYTES {
            true => format!(", including the top chunks of thread heaps ({})", Human(tops)),
            false => String::new(),
        };
        let how =
            format!("returns every whole free page{tops}, in short pauses: lowtide release {pid}");
        Remedy::new(RemedyKind::Release, Some(bytes), how)
    });
    let trim = trim.map(|bytes| {
        let how = format!(
            "a call to malloc_trim(0) in the program; it holds each arena's lock while it trims it (threads of \
             process {pid} that need the arena wait)"
        );
        Remedy::new(RemedyKind::MallocTrim, Some(bytes), how)
    });
    release.into_iter().chain(trim).collect()
}

/// Returns the remedy by which a program returns the free memory of a heap of jemalloc, mimalloc or
/// gperftools.
fn purge(heap: &WalkedHeap, facts: &Evidence<'_>) -> Option<Remedy> {
    let bytes = heap.prediction.purge_bytes.filter(|bytes| *bytes >= MIN_BYTES)?;
    if heap.is_of_cpython() {
        // No Python program can call it, and its setting leaves the fragmented pages.
        return None;
    }
    let kind = &heap.allocator;
    let program = facts.command.first().map(String::as_str).unwrap_or_default();
    let is_redis = ["redis-server", "valkey-server"].iter().any(|name| program.contains(name));
    let is_python = |runtime: &Runtime| runtime.name == RuntimeKind::Python.name();
    let has_python = facts.runtimes.iter().any(is_python);
    let place = heap.library.as_deref().unwrap_or("the program");
    let call = match kind {
        _ if has_python && place.contains("arrow") => {
            "pyarrow.default_memory_pool().release_unused()".to_owned()
        }
        AllocatorKind::Mimalloc => format!("mi_collect(true) in {place}"),
        AllocatorKind::Gperftools => format!("MallocExtension_ReleaseFreeMemory() in {place}"),
        _ if is_redis => "MEMORY PURGE".to_owned(),
        _ => format!("mallctl(\"arena.4096.purge\") in {place}"),
    };
    let (advice, setting) = (kind.facts().advice?, kind.facts().setting);
    // tikv-jemallocator has its own name for the variable.
    let is_static = facts.allocator.as_ref().is_some_and(|a| a.linkage == Some(Linkage::Static));
    let is_prefixed = (is_static || heap.library.is_some()) && *kind == AllocatorKind::Jemalloc;
    let variable = if is_prefixed { " (_RJEM_MALLOC_CONF for Rust)" } else { "" };
    let own = facts.arenas.iter().filter_map(|arena| arena.jemalloc());
    let slabs: u64 = own.map(|own| own.slab_free_pages_bytes).sum();
    let slabs = match slabs >= MIN_BYTES {
        true => format!("; {} more are whole pages of slabs, which no purge returns", Human(slabs)),
        false => String::new(),
    };
    let how = format!("{call}; {advice}{variable}{slabs}");
    let remedy = Remedy::new(RemedyKind::Purge, Some(bytes), how);
    Some(match setting.filter(|_| !is_prefixed) {
        Some((name, value)) => remedy.with_setting(name, value),
        None => remedy,
    })
}

/// Returns remedies by settings of glibc's allocator.
fn settings(facts: &Evidence<'_>) -> Vec<Remedy> {
    let mut found = Vec::new();
    let of_glibc = facts.heaps.iter().filter(|heap| heap.allocator == AllocatorKind::Glibc);
    let free: u64 = of_glibc
        .map(|heap| heap.reclaimable_bytes + heap.locked_bytes + heap.fragmented_bytes)
        .sum();
    let Some(tunables) = facts.tunables_in_force.as_ref().filter(|_| facts.share(free) >= NOTABLE)
    else {
        return found;
    };
    let arenas = facts.arenas.iter().filter(|arena| arena.is_of_glibc());
    let holding = arenas.filter(|arena| arena.free_bytes + arena.top_bytes > MIN_BYTES).count();
    if tunables.arena_max.is_none() && holding >= MANY_ARENAS {
        let how = format!(
            "{holding} arenas hold free blocks: MALLOC_ARENA_MAX=2 makes threads share them; try it with \
             lowtide study -t glibc/arena_max=2"
        );
        found.push(
            Remedy::new(RemedyKind::ArenaMax, None, how).with_setting("MALLOC_ARENA_MAX", "2"),
        );
    }
    // Only the top of the main heap is trimmed.
    let main = facts.arenas.iter().find(|arena| arena.is_of_glibc() && arena.id == 0);
    let has_top = main.is_some_and(|main| main.top_bytes >= free / 2);
    if tunables.trim_threshold_bytes > 64 * TRIM_THRESHOLD && has_top {
        let how = format!(
            "the main heap returns only free memory beyond {} at its top (trim_threshold has grown with freed \
             blocks, or was set): try lowtide study -t glibc/trim_threshold",
            Human(tunables.trim_threshold_bytes)
        );
        let remedy = Remedy::new(RemedyKind::TrimThreshold, None, how);
        found.push(remedy.with_setting("MALLOC_TRIM_THRESHOLD_", &TRIM_THRESHOLD.to_string()));
    }
    found
}

/// Returns a remedy for each runtime and allocator that manages a notable part, and for
/// PostgreSQL's shared memory.
fn of_managers(facts: &Evidence<'_>) -> Vec<Remedy> {
    let is_notable = |bytes: u64| facts.share(bytes) >= NOTABLE;
    let managers = facts.managers.iter().filter(|manager| is_notable(manager.bytes));
    let shared = facts.shared.iter().filter(|shared| is_notable(shared.bytes));
    let names = managers.map(|m| m.name.as_str()).chain(shared.map(|s| s.name.as_str()));
    names
        .filter_map(|name| {
            let (how, setting) = advice(name)?;
            let how = match &facts.cpython {
                Some(heap) if name == RuntimeKind::Python.name() => for_cpython(heap),
                _ if name == RuntimeKind::HotSpot.name() => for_hotspot(&facts.command).to_owned(),
                _ => how.to_owned(),
            };
            let mut remedy = Remedy::new(RemedyKind::Runtime, None, format!("{name}: {how}"));
            if let Some((name, value)) = setting {
                remedy = remedy.with_setting(name, value);
            }
            let is_python = |runtime: &Runtime| runtime.name == RuntimeKind::Python.name();
            if name == AllocatorKind::Mimalloc.name() && facts.runtimes.iter().any(is_python) {
                remedy.how +=
                    "; if it is pyarrow's, pyarrow.default_memory_pool().release_unused()";
            }
            Some(remedy)
        })
        .collect()
}

type Variable = (&'static str, &'static str);

/// Returns the advice that reduces the memory of a manager, and the variable that applies it.
fn advice(manager: &str) -> Option<(&'static str, Option<Variable>)> {
    if manager.starts_with(RuntimeKind::Postgres.name()) {
        return Some((for_runtime(RuntimeKind::Postgres), None));
    }
    match RuntimeKind::parse(manager) {
        Some(runtime) => Some((for_runtime(runtime), None)),
        None => {
            let facts = AllocatorKind::parse(manager).facts();
            facts.advice.map(|advice| (advice, facts.setting))
        }
    }
}

/// Returns the advice that reduces CPython's heap: `gc.collect()` only helps if blocks are in use.
fn for_cpython(heap: &CPythonHeap) -> String {
    let free_bytes = heap.free_block_bytes + heap.free_pool_bytes();
    if heap.allocated_bytes >= free_bytes {
        return "most of its memory is in use: gc.collect() frees objects that only reference cycles keep alive".to_owned();
    }
    let mut sizes: Vec<_> = heap.sizes.iter().filter(|size| size.mostly_free_arenas > 0).collect();
    sizes.sort_by_key(|size| Reverse(size.mostly_free_arenas));
    let kept = |size: &&CPythonSizeClass| {
        format!("blocks of {} keep {}", Human(size.block_bytes), size.mostly_free_arenas)
    };
    let kept: Vec<String> = sizes.iter().take(2).map(kept).collect();
    let kept = match kept.is_empty() {
        true => String::new(),
        false => format!(
            " ({} of {} arenas are less than a quarter full: {})",
            heap.mostly_free_arenas,
            heap.arenas,
            kept.join(", ")
        ),
    };
    format!(
        "an arena is returned once none of its blocks is in use{kept}: create long-lived objects apart from \
         short-lived ones, or run work that needs much memory in a separate process"
    )
}

/// Returns the advice that reduces HotSpot's heap, for the collector that its command line selects.
fn for_hotspot(command: &[String]) -> &'static str {
    let has = |flag: &str| command.iter().any(|word| word == flag);
    if has("-XX:+UseZGC") {
        "ZGC returns free memory by itself, unless -XX:-ZUncommit forbids it; a shorter -XX:ZUncommitDelay (default \
         300 s) returns it sooner, and -XX:SoftMaxHeapSize makes it keep less; before JDK 23, RSS counts each page \
         of its heap up to three times, PSS once"
    } else if has("-XX:+UseShenandoahGC") {
        "Shenandoah returns free memory by itself: a shorter -XX:ShenandoahUncommitDelay returns it sooner; -Xmx \
         bounds the heap"
    } else {
        for_runtime(RuntimeKind::HotSpot)
    }
}

fn for_runtime(runtime: RuntimeKind) -> &'static str {
    match runtime {
        RuntimeKind::Python => {
            "an arena is returned when every object in it is freed: gc.collect(), fewer long-lived objects \
             created among short-lived ones"
        }
        RuntimeKind::Node | RuntimeKind::V8 => {
            "V8 returns memory that a collection frees, and collects when its heap has grown: a smaller \
             --max-old-space-size makes it collect earlier (for Node.js also in NODE_OPTIONS), and a heap \
             snapshot shows what is in use"
        }
        RuntimeKind::Go => "debug.FreeOSMemory(), or GOMEMLIMIT, makes Go return free memory",
        RuntimeKind::HotSpot => {
            "jcmd PID GC.run, or -XX:+UseG1GC with -XX:G1PeriodicGCInterval; -Xmx bounds the heap"
        }
        RuntimeKind::Ruby => {
            "a page is returned when all of its slots are free: GC.compact before a fork or after the start, \
             fewer long-lived objects created among short-lived ones"
        }
        RuntimeKind::Php => {
            "pm.max_requests restarts a worker of PHP-FPM now and then; gc_mem_caches() returns only chunks of \
             2 MiB that are free as a whole"
        }
        RuntimeKind::Erlang => {
            "recon_alloc:memory(usage) shows how full the carriers are; +MBas aobf and smaller carriers \
             (+MBlmbcs) leave less unused"
        }
        RuntimeKind::LuaJit => {
            "it maps memory of its own: collectgarbage(\"count\") says how many KiB its objects use, and \
             collectgarbage() frees those that nothing refers to"
        }
        RuntimeKind::PyPy => {
            "it takes memory for its objects from malloc in large pieces, which count as in use, also where they \
             are free: gc.get_stats() says how much its objects use"
        }
        RuntimeKind::Mono => {
            "it maps memory of its own: GC.GetTotalMemory(true) says how much its objects use after a collection, \
             and MONO_GC_PARAMS=max-heap-size=SIZE bounds it"
        }
        RuntimeKind::R => {
            "it keeps small objects in pages from malloc, which count as in use until all objects in them are \
             freed: gc() frees objects, and says how much the others use"
        }
        RuntimeKind::Boehm => {
            "it maps memory of its own: GC_get_heap_size() and GC_get_free_bytes() say how much of it is free, and \
             GC_gcollect_and_unmap() returns free blocks"
        }
        RuntimeKind::JavaScriptCore => {
            "in Bun, Bun.gc(true) collects, and heapStats() of bun:jsc says what its objects use"
        }
        RuntimeKind::InnoDb => {
            "innodb_buffer_pool_size sets the size of the buffer pool, which is kept full on purpose"
        }
        RuntimeKind::Postgres => {
            "shared_buffers sets its size; every server process counts the part that it has touched, so \
             only PSS adds up"
        }
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::inspection::{Arena, Observation, Tunables};
    use lowtide_model::ledger::Ledger;

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
        let allocators = ["PartitionAlloc", "jemalloc", "mimalloc", "gperftools"];
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
            found.arenas = vec![Arena { top_bytes, ..Arena::default() }];
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
        let prediction =
            HeapPrediction { purge_bytes: Some(890 * MIB), ..HeapPrediction::default() };
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
        assert!(
            purge.how.starts_with("pyarrow.default_memory_pool().release_unused();"),
            "{purge:?}"
        );
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
}

//! The table of remedies: who holds the memory, and in which state it is; what lowers it, by which
//! setting, and where that is set; the documentation that it rests on.
//!
//! The gain of each row was measured with a real program, or the row says why not:
//! `bench/remedies` has the programs, and `.ci/matrix` runs them again. In a text, a word in braces
//! stands for a value of the process.

use lowtide_model::remedy::RemedyKind;
use lowtide_model::runtime_kind::RuntimeKind;

use crate::evidence::{Evidence, NAMED, NOTABLE};

/// The state of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryState {
    /// Free, in whole pages.
    Free,
    /// Free, and kept by threads for themselves.
    Cached,
    /// Free, between blocks in use.
    Scattered,
    /// In use.
    InUse,
    /// Free or in use: lowtide does not divide it.
    Undivided,
}

/// Where a setting is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the environment of the program.
    Environment,
    /// On its command line.
    CommandLine,
    /// In its configuration.
    Configuration,
}

/// A setting that applies a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowSetting {
    /// Its name.
    pub(super) name: &'static str,
    /// Its value.
    pub(super) value: &'static str,
    /// Where it is set.
    pub(super) place: Place,
}

const fn environment(name: &'static str, value: &'static str) -> Option<RowSetting> {
    Some(RowSetting { name, value, place: Place::Environment })
}

const fn command_line(name: &'static str, value: &'static str) -> Option<RowSetting> {
    Some(RowSetting { name, value, place: Place::CommandLine })
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Its name, which `bench/remedies` uses as well.
    pub(super) name: &'static str,
    /// Who holds the memory: the name of an allocator or of a runtime.
    pub(super) holder: &'static str,
    /// In which state it is.
    pub(super) state: MemoryState,
    /// The kind of the remedy.
    pub(super) kind: RemedyKind,
    /// A condition besides holder and state.
    pub(super) when: fn(&Evidence<'_>) -> bool,
    /// What to do, in a few words.
    pub(super) brief: &'static str,
    /// What to do, and what it does.
    pub(super) how: &'static str,
    /// The setting that does it.
    pub(super) setting: Option<RowSetting>,
    /// The page of documentation, or the file of the source, that it rests on, and what that says.
    pub(super) source: (&'static str, &'static str),
    /// Whether its prediction was within a quarter of the measured gain; a prediction of any other
    /// row is marked as an estimate.
    pub(super) is_exact: bool,
}

const fn always(_: &Evidence<'_>) -> bool {
    true
}

fn has(facts: &Evidence<'_>, flag: &str) -> bool {
    facts.command.iter().any(|word| word == flag)
}

fn is_cpython_mostly_free(facts: &Evidence<'_>) -> bool {
    facts
        .cpython
        .as_ref()
        .is_some_and(|heap| heap.allocated_bytes < heap.free_block_bytes + heap.free_pool_bytes())
}

fn is_v8_mostly_free(facts: &Evidence<'_>) -> bool {
    facts.share(facts.free_in_v8()) >= NOTABLE
}

/// Returns a row without a setting and without a condition.
const fn row(
    name: &'static str,
    holder: &'static str,
    state: MemoryState,
    kind: RemedyKind,
    brief: &'static str,
    how: &'static str,
    source: (&'static str, &'static str),
) -> Row {
    Row {
        name,
        holder,
        state,
        kind,
        when: always,
        brief,
        how,
        setting: None,
        source,
        is_exact: false,
    }
}

const fn in_runtime(
    name: &'static str,
    kind: RuntimeKind,
    brief: &'static str,
    how: &'static str,
    source: (&'static str, &'static str),
) -> Row {
    row(name, kind.name(), MemoryState::Undivided, RemedyKind::Runtime, brief, how, source)
}

const fn huge(
    name: &'static str,
    brief: &'static str,
    how: &'static str,
    source: (&'static str, &'static str),
) -> Row {
    row(name, HUGE_PAGES, MemoryState::InUse, RemedyKind::HugePages, brief, how, source)
}

/// The holder of memory that processes shared after a fork.
pub(super) const FORKED: &str = "forked processes";
/// The holder of memory that only huge pages made resident.
pub(super) const HUGE_PAGES: &str = "huge pages";

const fn forked(
    name: &'static str,
    brief: &'static str,
    how: &'static str,
    source: (&'static str, &'static str),
) -> Row {
    row(name, FORKED, MemoryState::InUse, RemedyKind::Fork, brief, how, source)
}

/// The table.
pub(super) static TABLE: &[Row] = &[
    // Free memory of walked heaps, in whole pages.
    Row {
        setting: environment("MALLOC_ARENA_MAX", "2"),
        ..row(
            "glibc/arena_max",
            "glibc",
            MemoryState::Free,
            RemedyKind::ArenaMax,
            "{arenas} arenas hold free blocks: MALLOC_ARENA_MAX=2",
            "{arenas} arenas hold free blocks: MALLOC_ARENA_MAX=2 makes threads share them; try it with lowtide \
             study -t glibc/arena_max=2",
            (
                "mallopt(3), M_ARENA_MAX",
                "a limit on the number of arenas: fewer arenas hold less memory, and threads wait more for each \
                 other",
            ),
        )
    },
    Row {
        setting: environment("MALLOC_TRIM_THRESHOLD_", "131072"),
        is_exact: true,
        ..row(
            "glibc/trim_threshold",
            "glibc",
            MemoryState::Free,
            RemedyKind::TrimThreshold,
            "MALLOC_TRIM_THRESHOLD_=131072 (it is {threshold})",
            "the main heap returns only free memory beyond {threshold} at its top (trim_threshold has grown with \
             freed blocks, or was set): MALLOC_TRIM_THRESHOLD_=131072 keeps it small; try it with lowtide study -t \
             glibc/trim_threshold",
            (
                "mallopt(3), M_TRIM_THRESHOLD",
                "when the contiguous free memory at the top of the heap exceeds it, free() returns that memory with \
                 sbrk(2); the threshold adapts upwards unless it is set",
            ),
        )
    },
    Row {
        setting: environment(
            "MALLOC_CONF",
            "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0",
        ),
        is_exact: true,
        ..row(
            "jemalloc/background_thread",
            "jemalloc",
            MemoryState::Free,
            RemedyKind::Purge,
            "{call}; background_thread:true and a short decay in {variable}",
            "{call}; {variable}=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns free memory, \
             also while the program is idle",
            (
                "jemalloc's TUNING.md, background_thread and dirty_decay_ms",
                "background threads purge unused memory, also while the application is idle; a shorter decay time \
                 purges sooner, for more CPU time",
            ),
        )
    },
    Row {
        setting: environment("MIMALLOC_PURGE_DELAY", "0"),
        is_exact: true,
        ..row(
            "mimalloc/purge_delay",
            "mimalloc",
            MemoryState::Free,
            RemedyKind::Purge,
            "{call}; MIMALLOC_PURGE_DELAY=0",
            "{call}; MIMALLOC_PURGE_DELAY=0 returns a page as soon as it is free",
            (
                "mimalloc's readme, MIMALLOC_PURGE_DELAY",
                "the delay after which unused OS pages are purged; 0 purges at once, which lowers memory use and \
                 costs performance",
            ),
        )
    },
    Row {
        setting: environment("TCMALLOC_AGGRESSIVE_DECOMMIT", "1"),
        is_exact: true,
        ..row(
            "gperftools/aggressive_decommit",
            "gperftools",
            MemoryState::Free,
            RemedyKind::Purge,
            "{call}; TCMALLOC_AGGRESSIVE_DECOMMIT=1",
            "{call}; TCMALLOC_RELEASE_RATE=10 returns free memory sooner, TCMALLOC_AGGRESSIVE_DECOMMIT=1 at once",
            (
                "gperftools' docs/tcmalloc.adoc, TCMALLOC_RELEASE_RATE and TCMALLOC_AGGRESSIVE_DECOMMIT",
                "the rate at which unused memory is returned with madvise; aggressive decommit returns a span as \
                 soon as it is freed",
            ),
        )
    },
    // Freed blocks that threads keep for themselves.
    Row {
        setting: environment("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"),
        ..row(
            "glibc/tcache_count",
            "glibc",
            MemoryState::Cached,
            RemedyKind::ThreadCaches,
            "GLIBC_TUNABLES=glibc.malloc.tcache_count=0, or fewer threads",
            "each thread keeps freed blocks for itself until it ends: GLIBC_TUNABLES=glibc.malloc.tcache_count=0 turns \
             that off, for more CPU time; fewer threads keep less",
            (
                "glibc's manual, Memory Allocation Tunables, glibc.malloc.tcache_count",
                "the maximum number of chunks of each size in a thread's cache; 0 disables the cache",
            ),
        )
    },
    Row {
        setting: environment(
            "MALLOC_CONF",
            "tcache:false,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0",
        ),
        ..row(
            "jemalloc/tcache",
            "jemalloc",
            MemoryState::Cached,
            RemedyKind::ThreadCaches,
            "tcache:false and a short decay in {variable}",
            "each thread keeps freed blocks for itself, also while it is idle: {variable}=tcache:false turns that off, \
             for more CPU time, and background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns what is free \
             then; mallctl(\"thread.tcache.flush\") in a thread empties its cache",
            (
                "jemalloc(3), opt.tcache and thread.tcache.flush",
                "with thread-specific caching, many allocations need no synchronization, at the expense of more memory",
            ),
        )
    },
    row(
        "mimalloc/collect",
        "mimalloc",
        MemoryState::Cached,
        RemedyKind::ThreadCaches,
        "mi_collect(true) in the thread that allocated the blocks",
        "blocks that another thread freed wait for the thread that allocated them: its next allocations of that size \
         take them, and mi_collect(true) in that thread, or its end, returns their pages; another thread cannot",
        (
            "mimalloc, src/page.c, _mi_heap_delayed_free_all and _mi_page_free_collect; bench/remedies",
            "a thread takes the blocks that others freed when it allocates or collects",
        ),
    ),
    row(
        "gperftools/thread_caches",
        "gperftools",
        MemoryState::Cached,
        RemedyKind::ThreadCaches,
        "MallocExtension_MarkThreadIdle(), or fewer threads",
        "threads keep freed blocks for themselves: MallocExtension_MarkThreadIdle() in a thread empties its cache; \
         TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES bounds all of them (default 32 MiB), but each thread may always keep 512 \
         KiB; fewer threads keep less",
        (
            "gperftools' docs/tcmalloc.adoc, TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES; src/common.h, kMinThreadCacheSize",
            "a bound on the total bytes of thread caches, which is not strict: each may have 512 KiB",
        ),
    ),
    // Free memory of walked heaps, between blocks in use.
    row(
        "glibc/another_allocator",
        "glibc",
        MemoryState::Scattered,
        RemedyKind::Allocator,
        "no release can return it; another allocator may hold less",
        "{scattered}: an allocator that separates sizes and returns its free pages may hold less; try lowtide study \
         -a glibc,jemalloc,mimalloc -t jemalloc/background_thread -p none,adaptive",
        (
            "jemalloc's TUNING.md; malloc(3) of glibc",
            "glibc returns free memory at the top of a heap, and whole pages only in malloc_trim(3)",
        ),
    ),
    row(
        "separated/lifetimes",
        "jemalloc",
        MemoryState::Scattered,
        RemedyKind::Allocator,
        "no release can return it: keep long-lived blocks apart",
        "{scattered}: {allocator} separates sizes, but blocks of one size that live long keep the pages of those \
         that do not; allocate long-lived blocks before the others, or from an arena or pool of their own",
        (
            "jemalloc(3), arenas.create and MALLOCX_ARENA; mimalloc's readme, mi_heap_new",
            "an arena or heap of its own separates blocks by what they are for",
        ),
    ),
    row(
        "cpython/mimalloc",
        RuntimeKind::Python.name(),
        MemoryState::Scattered,
        RemedyKind::Allocator,
        "PYTHONMALLOC=pymalloc or malloc instead of its mimalloc",
        "{scattered}: this is the mimalloc that CPython contains (PYTHONMALLOC=mimalloc), which no other malloc \
         replaces; PYTHONMALLOC=pymalloc uses CPython's arenas instead, and PYTHONMALLOC=malloc the malloc of the \
         process (a free-threaded build ignores both)",
        (
            "Python's documentation, Command line and environment, PYTHONMALLOC",
            "mimalloc, pymalloc or malloc for all domains; a free-threaded build supports mimalloc only",
        ),
    ),
    // Memory of runtimes, and of allocators that are not walked.
    Row {
        when: is_cpython_mostly_free,
        ..row(
            "cpython/arenas",
            RuntimeKind::Python.name(),
            MemoryState::Scattered,
            RemedyKind::Runtime,
            "create long-lived objects apart from the others",
            "an arena is returned once none of its blocks is in use{kept}: create long-lived objects apart from \
             short-lived ones, or run work that needs much memory in a separate process",
            (
                "Python's documentation, Memory management, The pymalloc allocator",
                "arenas of 1 MiB (256 KiB before 3.10) for objects of up to 512 bytes; an arena is freed when all of \
                 its pools are",
            ),
        )
    },
    Row {
        // A collection in a forked process copies the pages that it shares.
        when: |facts| {
            let is_forked = !facts.forked_memory().is_empty();
            facts.cpython.is_some() && !is_cpython_mostly_free(facts) && !is_forked
        },
        ..row(
            "cpython/collect",
            RuntimeKind::Python.name(),
            MemoryState::InUse,
            RemedyKind::Runtime,
            "gc.collect() frees what only reference cycles keep",
            "most of its memory is in use: gc.collect() frees objects that only reference cycles keep alive",
            (
                "Python's documentation, gc.collect",
                "runs a full collection, which frees unreachable reference cycles",
            ),
        )
    },
    Row {
        when: |facts| facts.cpython.is_none(),
        ..in_runtime(
            "cpython/not_walked",
            RuntimeKind::Python,
            "gc.collect(), and fewer long-lived objects",
            "an arena is returned when every object in it is freed: gc.collect(), fewer long-lived objects created \
             among short-lived ones",
            (
                "Python's documentation, Memory management",
                "an arena is freed when all of its pools are",
            ),
        )
    },
    in_runtime(
        "v8/old_space",
        RuntimeKind::Node,
        "a smaller --max-old-space-size: earlier collections",
        "V8 returns memory that a collection frees, and collects when its heap has grown: a smaller \
         --max-old-space-size makes it collect earlier (for Node.js also in NODE_OPTIONS), and a heap snapshot shows \
         what is in use",
        (
            "Node.js documentation, Command-line API, --max-old-space-size",
            "as memory use approaches the limit, V8 spends more time on collections, to free unused memory",
        ),
    ),
    Row {
        when: |facts| !is_v8_mostly_free(facts),
        ..in_runtime(
            "v8/old_space",
            RuntimeKind::V8,
            "a smaller --max-old-space-size: earlier collections",
            "V8 returns memory that a collection frees, and collects when its heap has grown: a smaller \
             --max-old-space-size makes it collect earlier (for Node.js also in NODE_OPTIONS), and a heap snapshot \
             shows what is in use",
            (
                "Node.js documentation, Command-line API, --max-old-space-size",
                "as memory use approaches the limit, V8 spends more time on collections, to free unused memory",
            ),
        )
    },
    Row {
        when: |facts| {
            is_v8_mostly_free(facts) && facts.share(facts.free_in_space("new_space")) >= NAMED
        },
        setting: command_line("--max-semi-space-size", "1"),
        ..row(
            "v8/semi_space",
            RuntimeKind::V8.name(),
            MemoryState::Free,
            RemedyKind::Runtime,
            "--max-semi-space-size=1 bounds the new space ({new})",
            "the new space ({new}) keeps the size that a burst needed: --max-semi-space-size=1 bounds each half to 1 \
             MiB (for Node.js also in NODE_OPTIONS), for more frequent short collections",
            (
                "Node.js documentation, Command-line API, --max-semi-space-size",
                "the maximum size of a semi-space in MiB; a larger one may improve throughput, at the cost of more \
                 memory",
            ),
        )
    },
    Row {
        when: |facts| {
            let others = facts.free_in_v8().saturating_sub(facts.free_in_space("new_space"));
            is_v8_mostly_free(facts) && facts.share(others) >= NAMED
        },
        setting: command_line("--optimize-for-size", ""),
        ..row(
            "v8/optimize_for_size",
            RuntimeKind::V8.name(),
            MemoryState::Free,
            RemedyKind::Runtime,
            "--optimize-for-size keeps less, for more CPU time",
            "--optimize-for-size on its command line (not in NODE_OPTIONS; for Deno in --v8-flags) makes it collect \
             earlier and keep fewer free chunks, for more CPU time",
            (
                "V8, src/flags/flag-definitions.h, optimize_for_size",
                "enables optimizations which favor memory size over execution speed",
            ),
        )
    },
    in_runtime(
        "go/free_os_memory",
        RuntimeKind::Go,
        "debug.FreeOSMemory(), or GOMEMLIMIT",
        "debug.FreeOSMemory(), or GOMEMLIMIT, makes Go return free memory",
        (
            "Go's documentation, runtime/debug, FreeOSMemory and SetMemoryLimit",
            "forces a collection, and returns as much memory to the OS as possible; a limit makes the runtime collect \
             and return memory to stay below it",
        ),
    ),
    Row {
        when: |facts| !has(facts, "-XX:+UseZGC") && !has(facts, "-XX:+UseShenandoahGC"),
        ..in_runtime(
            "hotspot/g1",
            RuntimeKind::HotSpot,
            "jcmd PID GC.run, or G1 with -XX:G1PeriodicGCInterval",
            "jcmd PID GC.run, or -XX:+UseG1GC with -XX:G1PeriodicGCInterval; -Xmx bounds the heap",
            (
                "JEP 346 and java(1), -XX:G1PeriodicGCInterval",
                "G1 collects after this many idle milliseconds, and returns unused heap to the OS",
            ),
        )
    },
    Row {
        when: |facts| has(facts, "-XX:+UseZGC") && !has(facts, "-XX:-ZUncommit"),
        setting: command_line("-XX:SoftMaxHeapSize", "SIZE"),
        ..in_runtime(
            "hotspot/zgc",
            RuntimeKind::HotSpot,
            "-XX:SoftMaxHeapSize=SIZE makes it keep less",
            "ZGC returns free memory by itself after -XX:ZUncommitDelay (default 300 s); -XX:SoftMaxHeapSize=SIZE \
             makes it keep less, also later: jcmd PID VM.set_flag SoftMaxHeapSize BYTES; before JDK 23, RSS counts \
             each page of its heap up to three times, PSS once",
            (
                "JEP 351 and java(1), -XX:ZUncommitDelay and -XX:SoftMaxHeapSize",
                "ZGC uncommits memory that was unused for this time; it collects to keep the heap below the soft \
                 limit, which is manageable at run time",
            ),
        )
    },
    Row {
        when: |facts| has(facts, "-XX:+UseZGC") && has(facts, "-XX:-ZUncommit"),
        ..in_runtime(
            "hotspot/zgc_uncommit",
            RuntimeKind::HotSpot,
            "remove -XX:-ZUncommit, and set -XX:SoftMaxHeapSize",
            "-XX:-ZUncommit on its command line forbids ZGC to return free memory: remove it, and set \
             -XX:SoftMaxHeapSize; before JDK 23, RSS counts each page of its heap up to three times, PSS once",
            (
                "JEP 351 and java(1), -XX:+ZUncommit",
                "uncommitting unused heap memory is enabled by default, unless -Xms equals -Xmx",
            ),
        )
    },
    Row {
        when: |facts| has(facts, "-XX:+UseShenandoahGC"),
        ..in_runtime(
            "hotspot/shenandoah",
            RuntimeKind::HotSpot,
            "jcmd PID GC.run; a shorter ShenandoahUncommitDelay",
            "Shenandoah returns regions that have been empty for -XX:ShenandoahUncommitDelay (default 300000 ms), and \
             collects in an idle program only every -XX:ShenandoahGuaranteedGCInterval (default 300000 ms): shorter \
             times, after -XX:+UnlockExperimentalVMOptions, return memory sooner; jcmd PID GC.run collects now; -Xmx \
             bounds the heap",
            (
                "OpenJDK, shenandoah_globals.hpp, ShenandoahUncommitDelay and ShenandoahGuaranteedGCInterval",
                "both are experimental flags, in milliseconds: without the unlock flag before them, the JVM does not \
                 start",
            ),
        )
    },
    in_runtime(
        "ruby/compact",
        RuntimeKind::Ruby,
        "GC.compact before a fork or after the start",
        "a page is returned when all of its slots are free: GC.compact before a fork or after the start, fewer \
         long-lived objects created among short-lived ones",
        ("Ruby's documentation, GC.compact", "moves objects together, so that pages become free"),
    ),
    Row {
        setting: Some(RowSetting {
            name: "pm.max_requests",
            value: "500",
            place: Place::Configuration,
        }),
        ..in_runtime(
            "php/max_requests",
            RuntimeKind::Php,
            "pm.max_requests restarts its workers now and then",
            "pm.max_requests restarts a worker of PHP-FPM now and then; gc_mem_caches() returns only chunks of 2 MiB \
             that are free as a whole",
            (
                "PHP's manual, FPM configuration, pm.max_requests; gc_mem_caches()",
                "the number of requests after which a child is replaced",
            ),
        )
    },
    in_runtime(
        "beam/carriers",
        RuntimeKind::Erlang,
        "smaller carriers: ERL_FLAGS=\"+MHsmbcs 64 +MHlmbcs 256\"",
        "recon_alloc:memory(usage) shows how full the carriers are; smaller ones leave less unused: for the heaps of \
         processes ERL_FLAGS=\"+MHsmbcs 64 +MHlmbcs 256\" (KiB)",
        (
            "erts_alloc(3), +M<S>smbcs and +M<S>lmbcs",
            "the smallest and the largest size of carriers of several blocks: a carrier is returned when all of its \
             blocks are freed",
        ),
    ),
    in_runtime(
        "luajit/collect",
        RuntimeKind::LuaJit,
        "collectgarbage() frees what nothing refers to",
        "it maps memory of its own: collectgarbage(\"count\") says how many KiB its objects use, and collectgarbage() \
         frees those that nothing refers to",
        ("Lua 5.1 Reference Manual, collectgarbage", "\"collect\" runs a full collection"),
    ),
    Row {
        state: MemoryState::InUse,
        ..in_runtime(
            "pypy/get_stats",
            RuntimeKind::PyPy,
            "gc.get_stats() says how much its objects use",
            "it takes memory for its objects from malloc in large pieces, which count as in use, also where they are \
             free: gc.get_stats() says how much its objects use",
            (
                "PyPy's documentation, Garbage collector, gc.get_stats",
                "memory used and allocated by the collector",
            ),
        )
    },
    in_runtime(
        "mono/max_heap",
        RuntimeKind::Mono,
        "MONO_GC_PARAMS=max-heap-size=SIZE bounds it",
        "it maps memory of its own: GC.GetTotalMemory(true) says how much its objects use after a collection, and \
         MONO_GC_PARAMS=max-heap-size=SIZE bounds it",
        ("mono(1), MONO_GC_PARAMS", "max-heap-size: the maximum size of the heap"),
    ),
    Row {
        state: MemoryState::InUse,
        ..in_runtime(
            "r/gc",
            RuntimeKind::R,
            "gc() frees objects, and says how much others use",
            "it keeps small objects in pages from malloc, which count as in use until all objects in them are freed: \
             gc() frees objects, and says how much the others use",
            ("R's documentation, gc and Memory", "a collection, with a report of memory in use"),
        )
    },
    in_runtime(
        "boehm/unmap",
        RuntimeKind::Boehm,
        "GC_gcollect_and_unmap() returns free blocks",
        "it maps memory of its own: GC_get_heap_size() and GC_get_free_bytes() say how much of it is free, and \
         GC_gcollect_and_unmap() returns free blocks",
        ("gc.h, GC_gcollect_and_unmap", "a full collection that unmaps as much as possible"),
    ),
    Row {
        state: MemoryState::InUse,
        ..in_runtime(
            "jsc/collect",
            RuntimeKind::JavaScriptCore,
            "Bun.gc(true) collects, in Bun",
            "in Bun, Bun.gc(true) collects, and heapStats() of bun:jsc says what its objects use",
            (
                "Bun's documentation, Bun.gc and bun:jsc",
                "runs the collector; statistics of the heap",
            ),
        )
    },
    // Memory that forked processes no longer share.
    forked(
        "fork/cpython",
        "gc.freeze() right before the fork; fewer processes",
        "collections write to every object that they visit, which copies its page: gc.disable() before the data is \
         loaded, gc.freeze() right before the fork, and gc.enable() in the children leave what was loaded before the \
         fork shared, but for reference counts; fewer processes, with threads, copy less",
        (
            "Python's documentation, gc.freeze",
            "ignore all current objects in future collections: gc.disable() early, gc.freeze() right before fork(), \
             gc.enable() early in children maximize sharing",
        ),
    ),
    forked(
        "fork/ruby_compact",
        "GC.compact right before the fork; fewer processes",
        "the first collections after a fork write to all objects, which copies their pages: GC.compact right before \
         the fork (before_fork of Puma and Unicorn) leaves them shared; fewer processes, with \
         threads, copy less",
        (
            "Ruby's documentation, GC.compact; bench/remedies",
            "moves objects together, after full collections that make the survivors old",
        ),
    ),
    forked(
        "fork/ruby_warmup",
        "Process.warmup right before the fork; fewer processes",
        "the first collections after a fork write to all objects, which copies their pages: Process.warmup right \
         before the fork leaves them shared; fewer processes, with threads, copy less",
        (
            "Ruby's documentation, Process.warmup",
            "a major collection, compaction, and promotion of all surviving objects to the old generation, before a \
             fork",
        ),
    ),
    forked(
        "fork/fewer",
        "fewer processes, with threads, have fewer copies",
        "each process has its own copy of what it writes to: fewer processes, with threads, have fewer copies; what is \
         only read stays shared",
        ("fork(2), NOTES", "pages are copied on write"),
    ),
    // Memory that only huge pages made resident.
    huge(
        "huge_pages/variable",
        "{variable} makes it ask for no huge pages",
        "without huge pages, only what is written becomes resident: {variable} makes it ask for none",
        (
            "glibc's manual, Memory Allocation Tunables, glibc.malloc.hugetlb; jemalloc(3), opt.thp; NumPy's \
             documentation, Global Configuration Options",
            "hugetlb=1 makes malloc call madvise(MADV_HUGEPAGE); thp:always makes jemalloc do it; NumPy does it for \
             large arrays, unless NUMPY_MADVISE_HUGEPAGE is 0",
        ),
    ),
    huge(
        "huge_pages/hotspot",
        "remove -XX:+UseTransparentHugePages",
        "without huge pages, only what is written becomes resident: -XX:+UseTransparentHugePages on its command line \
         asks for them",
        ("java(1), -XX:+UseTransparentHugePages", "enables the use of large pages that can grow"),
    ),
    huge(
        "huge_pages/asked",
        "prctl(PR_SET_THP_DISABLE) forbids huge pages to it",
        "without huge pages, only what is written becomes resident: the program or a library asks for them \
         (madvise(MADV_HUGEPAGE)), and prctl(PR_SET_THP_DISABLE) forbids them to a whole process and its children",
        (
            "the kernel's Documentation/admin-guide/mm/transhuge.rst; PR_SET_THP_DISABLE(2const)",
            "with madvise, only regions that a program names get huge pages; the prctl disables them for a process",
        ),
    ),
    huge(
        "huge_pages/always",
        "prctl(PR_SET_THP_DISABLE) forbids huge pages to it",
        "without huge pages, only what is written becomes resident: this system grants them to all memory; madvise \
         in /sys/kernel/mm/transparent_hugepage/enabled grants them where a program asks, and \
         prctl(PR_SET_THP_DISABLE) forbids them to this process and its children",
        (
            "the kernel's Documentation/admin-guide/mm/transhuge.rst; PR_SET_THP_DISABLE(2const)",
            "an application may map a large region and touch one byte of it: 2 MiB are allocated then; madvise avoids \
             that",
        ),
    ),
    in_runtime(
        "innodb/buffer_pool",
        RuntimeKind::InnoDb,
        "innodb_buffer_pool_size sets it; it is kept full",
        "innodb_buffer_pool_size sets the size of the buffer pool, which is kept full on purpose",
        (
            "MySQL's manual, innodb_buffer_pool_size",
            "the size of the buffer pool; it can be resized online",
        ),
    ),
    in_runtime(
        "postgres/shared_buffers",
        RuntimeKind::Postgres,
        "shared_buffers sets its size; only PSS adds up",
        "shared_buffers sets its size; every server process counts the part that it has touched, so only PSS adds up",
        (
            "PostgreSQL's documentation, shared_buffers",
            "the memory for shared buffers, set at the start",
        ),
    ),
    row(
        "tcmalloc/release",
        "tcmalloc",
        MemoryState::Undivided,
        RemedyKind::Runtime,
        "MallocExtension::ReleaseMemoryToSystem(n) in it",
        "no variable of the environment makes it return memory: the program has to call \
         MallocExtension::ReleaseMemoryToSystem(n), after SetSkipSubreleaseShortInterval and …LongInterval of 0, \
         because it keeps what was in demand lately",
        (
            "Google's tcmalloc, docs/tuning.md, Memory releasing; malloc_extension.h",
            "ReleaseMemoryToSystem asks for the release of so many bytes, from the page heap only; the intervals say \
             which recent demand it keeps memory for",
        ),
    ),
    row(
        "snmalloc/lazy_free",
        "snmalloc",
        MemoryState::Undivided,
        RemedyKind::Runtime,
        "no setting: the kernel takes what is freed lazily",
        "it has no setting: what it returns, it returns with MADV_FREE, which counts in RSS until the kernel needs it \
         (freed lazily)",
        (
            "snmalloc, src/snmalloc/pal/pal_linux.h, and its issue 846",
            "unused memory is given to madvise(MADV_FREE), so RSS falls under memory pressure only",
        ),
    ),
    row(
        "rpmalloc/none",
        "rpmalloc",
        MemoryState::Undivided,
        RemedyKind::Runtime,
        "no setting; rpmalloc_thread_collect() in a thread",
        "it has no setting: a thread returns its caches with rpmalloc_thread_collect(), or when it ends",
        (
            "rpmalloc.h, rpmalloc_thread_collect",
            "performs deferred deallocations of the calling thread's heap",
        ),
    ),
    row(
        "scudo/purge",
        "Scudo",
        MemoryState::Undivided,
        RemedyKind::Runtime,
        "mallopt(M_PURGE, 0) in the program returns free pages",
        "mallopt(M_PURGE, 0) in the program returns free pages, M_PURGE_ALL all of them; by itself it returns some \
         when blocks are freed, every release_to_os_interval_ms (SCUDO_OPTIONS)",
        (
            "LLVM's documentation, Scudo Hardened Allocator, mallopt and release_to_os_interval_ms",
            "M_PURGE forces immediate reclaiming, M_PURGE_ALL of all memory; the interval is checked when memory is \
             freed",
        ),
    ),
    row(
        "partition_alloc/own",
        "PartitionAlloc",
        MemoryState::Undivided,
        RemedyKind::Runtime,
        "it returns free pages by itself within seconds",
        "it returns free pages by itself a few seconds after they were freed, and under memory pressure",
        (
            "Chromium's partition_alloc/memory_reclaimer.h",
            "a periodic reclaimer decommits empty slot spans; memory pressure triggers it as well",
        ),
    ),
    Row {
        when: |facts| !crate::remedies::is_static(facts),
        ..row(
            "musl/preload",
            "musl",
            MemoryState::Undivided,
            RemedyKind::Allocator,
            "no setting; preload an allocator built for musl",
            "it has no setting and no malloc_trim; another allocator can be preloaded (LD_PRELOAD), if it was built \
             for musl: jemalloc with MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns \
             free pages while the program is idle; the defaults of jemalloc and mimalloc keep them",
            (
                "musl's wiki, Functional differences from glibc; bench/release-musl",
                "no mallopt and no malloc_trim; LD_PRELOAD works; idle programs kept 73 MB with these settings, and more \
                 than with musl with the defaults",
            ),
        )
    },
    Row {
        when: crate::remedies::is_static,
        ..row(
            "musl/link",
            "musl",
            MemoryState::Undivided,
            RemedyKind::Allocator,
            "no setting; link it with another allocator",
            "it has no setting and no malloc_trim; a static program has to be linked with another allocator (in Rust: \
             #[global_allocator])",
            ("musl's wiki, Functional differences from glibc", "no mallopt and no malloc_trim"),
        )
    },
    row(
        "jemalloc/not_walked",
        "jemalloc",
        MemoryState::Undivided,
        RemedyKind::Runtime,
        "background_thread:true in MALLOC_CONF",
        "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns free memory, also while the \
         program is idle",
        ("jemalloc's TUNING.md, background_thread", "see jemalloc/background_thread"),
    ),
    Row {
        setting: environment("MIMALLOC_PURGE_DELAY", "0"),
        ..row(
            "mimalloc/not_walked",
            "mimalloc",
            MemoryState::Undivided,
            RemedyKind::Runtime,
            "MIMALLOC_PURGE_DELAY=0 returns free pages at once",
            "MIMALLOC_PURGE_DELAY=0 returns a page as soon as it is free{arrow}",
            ("mimalloc's readme, MIMALLOC_PURGE_DELAY", "see mimalloc/purge_delay"),
        )
    },
    Row {
        setting: environment("TCMALLOC_AGGRESSIVE_DECOMMIT", "1"),
        ..row(
            "gperftools/not_walked",
            "gperftools",
            MemoryState::Undivided,
            RemedyKind::Runtime,
            "TCMALLOC_AGGRESSIVE_DECOMMIT=1",
            "TCMALLOC_RELEASE_RATE=10 returns free memory sooner, TCMALLOC_AGGRESSIVE_DECOMMIT=1 at once",
            ("gperftools' docs/tcmalloc.adoc", "see gperftools/aggressive_decommit"),
        )
    },
];

/// Returns the row with a name.
pub(super) fn named(name: &str) -> &'static Row {
    TABLE.iter().find(|row| row.name == name).expect("a name in the table")
}

/// Returns the row for the free memory of a walked heap, of an allocator with a purge.
pub(super) fn of_purge(allocator: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.kind == RemedyKind::Purge && row.holder == allocator)
}

/// Returns the row for the freed blocks that threads of an allocator keep for themselves.
pub(super) fn of_caches(allocator: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.state == MemoryState::Cached && row.holder == allocator)
}

/// Returns the rows for memory that a runtime, or an allocator that is not walked, manages.
pub(super) fn of_manager(name: &str) -> impl Iterator<Item = &'static Row> {
    let is_managed = |row: &&Row| {
        matches!(row.state, MemoryState::Undivided | MemoryState::InUse)
            || row.kind == RemedyKind::Runtime
    };
    TABLE.iter().filter(is_managed).filter(move |row| row.holder == name)
}

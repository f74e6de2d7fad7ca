//! Memory that runtimes manage, and the buffers of databases.

use lowtide_model::ledger::{State, WalkedRuntime};
use lowtide_model::remedy::RemedyKind;
use lowtide_model::runtime_kind::RuntimeKind;

use super::{Case, MemoryState, Place, Row, RowSetting, command_line, row};
use crate::evidence::{Evidence, NAMED, NOTABLE};

/// The memory of a runtime, whose parts are not known.
const fn runtime(kind: RuntimeKind) -> Case {
    Case(kind.name(), MemoryState::Undivided, RemedyKind::Runtime)
}

fn has(facts: &Evidence<'_>, flag: &str) -> bool {
    facts.command.iter().any(|word| word == flag)
}

/// Returns whether a collector could return memory of the Java heap: some of it is free, or may be.
/// `collector` is its name; `None` stands for one that is not known.
fn has_free_java_heap(facts: &Evidence<'_>, collector: Option<&str>) -> bool {
    let kind = RuntimeKind::HotSpot;
    let free = facts.ledger.bytes_of(WalkedRuntime::HotSpot, State::Free);
    let is_free = !facts.is_walked(kind) || facts.share(free) >= NAMED;
    is_free && facts.java_collector() == collector
}

/// Returns whether a notable part of a runtime's memory is outside of its walked heap.
fn is_outside(facts: &Evidence<'_>, kind: RuntimeKind) -> bool {
    facts.is_walked(kind) && facts.share(facts.bytes_outside(kind)) >= NOTABLE
}

/// Returns whether the objects of V8 are a notable part, or not divided.
fn has_objects_in_v8(facts: &Evidence<'_>) -> bool {
    let in_use = facts.ledger.bytes_of(WalkedRuntime::V8, State::Allocated);
    !facts.is_walked(RuntimeKind::V8) || facts.share(in_use) >= NAMED
}

/// Returns whether a process of PHP is one of PHP-FPM, by its name or title.
fn is_php_fpm(facts: &Evidence<'_>) -> bool {
    let program = facts.command.first().map(String::as_str).unwrap_or_default();
    program.rsplit('/').next().is_some_and(|name| name.starts_with("php-fpm"))
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

/// Returns the row for objects of V8 in a walked heap, or in one that is not divided.
const fn v8_old_space(kind: RuntimeKind) -> Row {
    row(
        "v8/old_space",
        runtime(kind),
        "a smaller --max-old-space-size, if it is garbage",
        "V8 returns memory that a collection frees, and collects when its heap has grown: if part of it is \
         garbage, a smaller --max-old-space-size makes V8 collect it earlier (for Node.js also in NODE_OPTIONS); \
         a heap snapshot shows what is in use",
        (
            "Node.js documentation, Command-line API, --max-old-space-size",
            "as memory use approaches the limit, V8 spends more time on collections, to free unused memory",
        ),
    )
}

/// Returns the row for memory of V8 outside of its walked spaces.
const fn v8_outside(kind: RuntimeKind) -> Row {
    row(
        "v8/outside",
        runtime(kind),
        "process.memoryUsage(): external and arrayBuffers",
        "it is outside of V8's spaces, whose limits and collections leave it: in Node.js, process.memoryUsage() \
         shows external and arrayBuffers, which count memories of WebAssembly and buffers; such memory is freed \
         once its object is",
        (
            "Node.js documentation, process.memoryUsage",
            "external is memory of C++ objects bound to JavaScript objects; arrayBuffers is that of ArrayBuffers \
             and SharedArrayBuffers, included in external",
        ),
    )
}

pub(super) static ROWS: &[Row] = &[
    Row {
        when: is_cpython_mostly_free,
        ..row(
            "cpython/arenas",
            Case(RuntimeKind::Python.name(), MemoryState::Scattered, RemedyKind::Runtime),
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
            Case(RuntimeKind::Python.name(), MemoryState::InUse, RemedyKind::Runtime),
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
        ..row(
            "cpython/not_walked",
            runtime(RuntimeKind::Python),
            "gc.collect(), and fewer long-lived objects",
            "an arena is returned when every object in it is freed: gc.collect(), fewer long-lived objects created \
             among short-lived ones",
            (
                "Python's documentation, Memory management",
                "an arena is freed when all of its pools are",
            ),
        )
    },
    Row { when: |facts| !facts.is_walked(RuntimeKind::Node), ..v8_old_space(RuntimeKind::Node) },
    Row { when: |facts| is_outside(facts, RuntimeKind::Node), ..v8_outside(RuntimeKind::Node) },
    Row { when: |facts| is_outside(facts, RuntimeKind::V8), ..v8_outside(RuntimeKind::V8) },
    Row {
        when: |facts| !is_v8_mostly_free(facts) && has_objects_in_v8(facts),
        ..v8_old_space(RuntimeKind::V8)
    },
    Row {
        when: |facts| {
            is_v8_mostly_free(facts) && facts.share(facts.free_in_space("new_space")) >= NAMED
        },
        setting: command_line("--max-semi-space-size", "1"),
        ..row(
            "v8/semi_space",
            Case(RuntimeKind::V8.name(), MemoryState::Free, RemedyKind::Runtime),
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
            Case(RuntimeKind::V8.name(), MemoryState::Free, RemedyKind::Runtime),
            "--optimize-for-size keeps less, for more CPU time",
            "--optimize-for-size on its command line (not in NODE_OPTIONS; for Deno in --v8-flags) makes it collect \
             earlier and keep fewer free chunks, for more CPU time",
            (
                "V8, src/flags/flag-definitions.h, optimize_for_size",
                "enables optimizations which favor memory size over execution speed",
            ),
        )
    },
    row(
        "go/free_os_memory",
        runtime(RuntimeKind::Go),
        "runtime/metrics divides it; GOMEMLIMIT if it is free",
        "runtime/metrics says what it is: /memory/classes/heap/objects (in use, and garbage), heap/stacks (of \
         goroutines) and heap/free; debug.FreeOSMemory(), or GOMEMLIMIT, makes Go collect garbage and return free \
         memory; stacks stay as long as their goroutines, which a goroutine profile (pprof) shows",
        (
            "Go's documentation, runtime/debug, FreeOSMemory and SetMemoryLimit; runtime/metrics",
            "forces a collection, and returns as much memory to the OS as possible; a limit makes the runtime collect \
             and return memory to stay below it; the metrics divide all memory of the runtime into classes",
        ),
    ),
    Row {
        when: |facts| has_free_java_heap(facts, Some("G1")),
        ..row(
            "hotspot/g1",
            runtime(RuntimeKind::HotSpot),
            "jcmd PID GC.run, or -XX:G1PeriodicGCInterval=60000",
            "jcmd PID GC.run, or -XX:G1PeriodicGCInterval, which collects while the program is idle; -Xmx bounds the \
             heap",
            (
                "JEP 346 and java(1), -XX:G1PeriodicGCInterval",
                "G1 collects after this many idle milliseconds, and returns unused heap to the OS",
            ),
        )
    },
    Row {
        when: |facts| has_free_java_heap(facts, None),
        ..row(
            "hotspot/unknown",
            runtime(RuntimeKind::HotSpot),
            "G1 with -XX:G1PeriodicGCInterval; -Xmx bounds it",
            "-XX:+UseG1GC with -XX:G1PeriodicGCInterval returns free memory while the program is idle; jcmd PID GC.run \
             does with G1 and Shenandoah, and next to nothing with Serial, Parallel and ZGC; -Xmx bounds the heap",
            (
                "JEP 346 and java(1), -XX:G1PeriodicGCInterval; docs/runtimes.md",
                "G1 collects after this many idle milliseconds, and returns unused heap to the OS",
            ),
        )
    },
    Row {
        when: |facts| has_free_java_heap(facts, Some("Serial")),
        setting: command_line("-XX:+UseG1GC", ""),
        ..row(
            "hotspot/serial",
            runtime(RuntimeKind::HotSpot),
            "-XX:+UseG1GC; or -XX:-ShrinkHeapInSteps and -Xms16m",
            "the serial collector returns memory in steps over several collections, and keeps its heap as large as at \
             the start (-Xms, or a 64th of the machine's memory): with a small -Xms and -XX:-ShrinkHeapInSteps, jcmd \
             PID GC.run returns it; -XX:+UseG1GC with -XX:G1PeriodicGCInterval does by itself; -Xmx bounds the heap",
            (
                "java(1), -XX:-ShrinkHeapInSteps and -Xms; docs/runtimes.md",
                "reduces the heap to its target size at the next full collection, not over several ones",
            ),
        )
    },
    Row {
        when: |facts| has_free_java_heap(facts, Some("Parallel")),
        setting: command_line("-XX:+UseG1GC", ""),
        ..row(
            "hotspot/parallel",
            runtime(RuntimeKind::HotSpot),
            "-XX:+UseG1GC with -XX:G1PeriodicGCInterval",
            "the parallel collector returned next to nothing with one collection: -XX:+UseG1GC with \
             -XX:G1PeriodicGCInterval returns free memory while the program is idle; -Xmx bounds the heap",
            (
                "JEP 346 and java(1), -XX:G1PeriodicGCInterval; docs/runtimes.md",
                "G1 collects after this many idle milliseconds, and returns unused heap to the OS",
            ),
        )
    },
    Row {
        when: |facts| facts.java_collector() == Some("Epsilon"),
        ..row(
            "hotspot/epsilon",
            runtime(RuntimeKind::HotSpot),
            "Epsilon never collects: another collector does",
            "Epsilon (-XX:+UseEpsilonGC) never collects: another collector does; -Xmx bounds the heap",
            (
                "JEP 318",
                "Epsilon handles memory allocation, and does not implement any reclamation",
            ),
        )
    },
    Row {
        when: |facts| is_outside(facts, RuntimeKind::HotSpot),
        ..row(
            "hotspot/outside",
            runtime(RuntimeKind::HotSpot),
            "jcmd PID VM.metaspace, or Compiler.codecache",
            "outside of its Java heap, jcmd PID VM.metaspace shows what classes need, and jcmd PID Compiler.codecache \
             compiled code; classes are freed with their loaders; -XX:MaxMetaspaceSize and \
             -XX:ReservedCodeCacheSize bound them",
            (
                "jcmd(1), VM.metaspace and Compiler.codecache",
                "statistics of metaspace by class loader, and the bounds and use of the code cache",
            ),
        )
    },
    Row {
        when: |facts| {
            facts.is_walked(RuntimeKind::HotSpot)
                && !is_outside(facts, RuntimeKind::HotSpot)
                && !has_free_java_heap(facts, facts.java_collector())
        },
        ..row(
            "hotspot/in_use",
            runtime(RuntimeKind::HotSpot),
            "jcmd PID GC.class_histogram shows what is in use",
            "most of its Java heap was in use after the last collection: jcmd PID GC.class_histogram shows the \
             objects by class; -Xmx bounds the heap",
            ("jcmd(1), GC.class_histogram", "statistics about the heap usage by class"),
        )
    },
    Row {
        when: |facts| has_free_java_heap(facts, Some("ZGC")) && !has(facts, "-XX:-ZUncommit"),
        setting: command_line("-XX:SoftMaxHeapSize", "SIZE"),
        ..row(
            "hotspot/zgc",
            runtime(RuntimeKind::HotSpot),
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
        when: |facts| has_free_java_heap(facts, Some("ZGC")) && has(facts, "-XX:-ZUncommit"),
        ..row(
            "hotspot/zgc_uncommit",
            runtime(RuntimeKind::HotSpot),
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
        when: |facts| has_free_java_heap(facts, Some("Shenandoah")),
        ..row(
            "hotspot/shenandoah",
            runtime(RuntimeKind::HotSpot),
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
    row(
        "ruby/compact",
        runtime(RuntimeKind::Ruby),
        "GC.compact before a fork or after the start",
        "a page is returned when all of its slots are free: GC.compact before a fork or after the start, fewer \
         long-lived objects created among short-lived ones",
        ("Ruby's documentation, GC.compact", "moves objects together, so that pages become free"),
    ),
    Row {
        when: |facts| !is_php_fpm(facts),
        ..row(
            "php/memory_usage",
            runtime(RuntimeKind::Php),
            "memory_get_usage(true) less memory_get_usage(): free",
            "memory_get_usage(true) less memory_get_usage() is free in PHP; gc_mem_caches() returns only chunks of 2 \
             MiB that are free as a whole, and the end of the process all of it: a worker of a queue can end after a \
             number of jobs",
            (
                "PHP's manual, memory_get_usage() and gc_mem_caches()",
                "with true, the memory allocated from the system, including unused pages; without, that in use",
            ),
        )
    },
    Row {
        when: is_php_fpm,
        setting: Some(RowSetting {
            name: "pm.max_requests",
            value: "500",
            place: Place::Configuration,
        }),
        ..row(
            "php/max_requests",
            runtime(RuntimeKind::Php),
            "pm.max_requests restarts its workers now and then",
            "pm.max_requests restarts a worker of PHP-FPM now and then; gc_mem_caches() returns only chunks of 2 MiB \
             that are free as a whole",
            (
                "PHP's manual, FPM configuration, pm.max_requests; gc_mem_caches()",
                "the number of requests after which a child is replaced",
            ),
        )
    },
    row(
        "beam/carriers",
        runtime(RuntimeKind::Erlang),
        "smaller carriers: ERL_FLAGS=\"+MHsmbcs 64 +MHlmbcs 256\"",
        "recon_alloc:memory(usage) shows how full the carriers are; smaller ones leave less unused: for the heaps of \
         processes ERL_FLAGS=\"+MHsmbcs 64 +MHlmbcs 256\" (KiB)",
        (
            "erts_alloc(3), +M<S>smbcs and +M<S>lmbcs",
            "the smallest and the largest size of carriers of several blocks: a carrier is returned when all of its \
             blocks are freed",
        ),
    ),
    row(
        "luajit/collect",
        runtime(RuntimeKind::LuaJit),
        "collectgarbage() frees what nothing refers to",
        "it maps memory of its own: collectgarbage(\"count\") says how many KiB its objects use, and collectgarbage() \
         frees those that nothing refers to",
        ("Lua 5.1 Reference Manual, collectgarbage", "\"collect\" runs a full collection"),
    ),
    Row {
        state: MemoryState::InUse,
        ..row(
            "pypy/get_stats",
            runtime(RuntimeKind::PyPy),
            "gc.get_stats() says how much its objects use",
            "it takes memory for its objects from malloc in large pieces, which count as in use, also where they are \
             free: gc.get_stats() says how much its objects use",
            (
                "PyPy's documentation, Garbage collector, gc.get_stats",
                "memory used and allocated by the collector",
            ),
        )
    },
    row(
        "mono/max_heap",
        runtime(RuntimeKind::Mono),
        "MONO_GC_PARAMS=max-heap-size=SIZE bounds it",
        "it maps memory of its own: GC.GetTotalMemory(true) says how much its objects use after a collection, and \
         MONO_GC_PARAMS=max-heap-size=SIZE bounds it",
        ("mono(1), MONO_GC_PARAMS", "max-heap-size: the maximum size of the heap"),
    ),
    Row {
        state: MemoryState::InUse,
        ..row(
            "r/gc",
            runtime(RuntimeKind::R),
            "gc() frees objects, and says how much others use",
            "it keeps small objects in pages from malloc, which count as in use until all objects in them are freed: \
             gc() frees objects, and says how much the others use",
            ("R's documentation, gc and Memory", "a collection, with a report of memory in use"),
        )
    },
    row(
        "boehm/unmap",
        runtime(RuntimeKind::Boehm),
        "GC_gcollect_and_unmap() returns free blocks",
        "it maps memory of its own: GC_get_heap_size() and GC_get_free_bytes() say how much of it is free, and \
         GC_gcollect_and_unmap() returns free blocks",
        ("gc.h, GC_gcollect_and_unmap", "a full collection that unmaps as much as possible"),
    ),
    Row {
        state: MemoryState::InUse,
        ..row(
            "jsc/collect",
            runtime(RuntimeKind::JavaScriptCore),
            "Bun.gc(true) collects, in Bun",
            "in Bun, Bun.gc(true) collects, and heapStats() of bun:jsc says what its objects use",
            (
                "Bun's documentation, Bun.gc and bun:jsc",
                "runs the collector; statistics of the heap",
            ),
        )
    },
    row(
        "innodb/buffer_pool",
        runtime(RuntimeKind::InnoDb),
        "innodb_buffer_pool_size sets it; it is kept full",
        "innodb_buffer_pool_size sets the size of the buffer pool, which is kept full on purpose",
        (
            "MySQL's manual, innodb_buffer_pool_size",
            "the size of the buffer pool; it can be resized online",
        ),
    ),
    row(
        "postgres/shared_buffers",
        runtime(RuntimeKind::Postgres),
        "shared_buffers sets its size; only PSS adds up",
        "shared_buffers sets its size; every server process counts the part that it has touched, so only PSS adds up",
        (
            "PostgreSQL's documentation, shared_buffers",
            "the memory for shared buffers, set at the start",
        ),
    ),
];

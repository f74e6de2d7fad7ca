//! Free memory of heaps that are walked: in whole pages, in the caches of threads, and between
//! blocks in use.

use lowtide_model::remedy::RemedyKind;
use lowtide_model::runtime_kind::RuntimeKind;

use super::{Case, MemoryState, Row, environment, has_old_mimalloc, row};

pub(super) static ROWS: &[Row] = &[
    // Free memory of walked heaps, in whole pages.
    Row {
        setting: environment("MALLOC_ARENA_MAX", "2"),
        ..row(
            "glibc/arena_max",
            Case("glibc", MemoryState::Free, RemedyKind::ArenaMax),
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
            Case("glibc", MemoryState::Free, RemedyKind::TrimThreshold),
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
            Case("jemalloc", MemoryState::Free, RemedyKind::Purge),
            "{call}background_thread:true and a short decay in {variable}",
            "{call}{variable}=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns free memory, \
             also while the program is idle",
            (
                "jemalloc's TUNING.md, background_thread and dirty_decay_ms",
                "background threads purge unused memory, also while the application is idle; a shorter decay time \
                 purges sooner, for more CPU time",
            ),
        )
    },
    Row {
        when: has_old_mimalloc,
        setting: environment("MIMALLOC_DECOMMIT_DELAY", "0"),
        ..row(
            "mimalloc/decommit_delay",
            Case("mimalloc", MemoryState::Free, RemedyKind::Purge),
            "MIMALLOC_DECOMMIT_DELAY=0 returns free pages at once",
            "MIMALLOC_DECOMMIT_DELAY=0 returns a page as soon as it is free (its name in version 2.0; \
             MIMALLOC_PURGE_DELAY from 2.1 on)",
            (
                "mimalloc 2.0.9, src/options.c, decommit_delay; bench/remedies",
                "the delay in milliseconds after which unused memory is decommitted",
            ),
        )
    },
    Row {
        when: |facts| !has_old_mimalloc(facts),
        setting: environment("MIMALLOC_PURGE_DELAY", "0"),
        is_exact: true,
        ..row(
            "mimalloc/purge_delay",
            Case("mimalloc", MemoryState::Free, RemedyKind::Purge),
            "{call}MIMALLOC_PURGE_DELAY=0",
            "{call}MIMALLOC_PURGE_DELAY=0 returns a page as soon as it is free",
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
            Case("gperftools", MemoryState::Free, RemedyKind::Purge),
            "{call}TCMALLOC_AGGRESSIVE_DECOMMIT=1",
            "{call}TCMALLOC_RELEASE_RATE=10 returns free memory sooner, TCMALLOC_AGGRESSIVE_DECOMMIT=1 at once",
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
            Case("glibc", MemoryState::Cached, RemedyKind::ThreadCaches),
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
            Case("jemalloc", MemoryState::Cached, RemedyKind::ThreadCaches),
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
        Case("mimalloc", MemoryState::Cached, RemedyKind::ThreadCaches),
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
        Case("gperftools", MemoryState::Cached, RemedyKind::ThreadCaches),
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
        Case("glibc", MemoryState::Scattered, RemedyKind::Allocator),
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
        Case("jemalloc", MemoryState::Scattered, RemedyKind::Allocator),
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
        Case(RuntimeKind::Python.name(), MemoryState::Scattered, RemedyKind::Allocator),
        "PYTHONMALLOC=pymalloc or malloc instead of its mimalloc",
        "{scattered}: this is the mimalloc that CPython contains (PYTHONMALLOC=mimalloc), which no other malloc \
         replaces; PYTHONMALLOC=pymalloc uses CPython's arenas instead, and PYTHONMALLOC=malloc the malloc of the \
         process (a free-threaded build ignores both)",
        (
            "Python's documentation, Command line and environment, PYTHONMALLOC",
            "mimalloc, pymalloc or malloc for all domains; a free-threaded build supports mimalloc only",
        ),
    ),
];

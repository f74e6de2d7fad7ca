//! Memory of allocators that are not walked.

use lowtide_model::remedy::RemedyKind;

use super::{Case, MemoryState, Row, environment, has_old_mimalloc, row};

pub(super) static ROWS: &[Row] = &[
    row(
        "tcmalloc/release",
        Case("tcmalloc", MemoryState::Undivided, RemedyKind::Runtime),
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
        Case("snmalloc", MemoryState::Undivided, RemedyKind::Runtime),
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
        Case("rpmalloc", MemoryState::Undivided, RemedyKind::Runtime),
        "no setting; rpmalloc_thread_collect() in a thread",
        "it has no setting: a thread returns its caches with rpmalloc_thread_collect(), or when it ends",
        (
            "rpmalloc.h, rpmalloc_thread_collect",
            "performs deferred deallocations of the calling thread's heap",
        ),
    ),
    row(
        "scudo/purge",
        Case("Scudo", MemoryState::Undivided, RemedyKind::Runtime),
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
        Case("PartitionAlloc", MemoryState::Undivided, RemedyKind::Runtime),
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
            Case("musl", MemoryState::Undivided, RemedyKind::Allocator),
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
            Case("musl", MemoryState::Undivided, RemedyKind::Allocator),
            "no setting; link it with another allocator",
            "it has no setting and no malloc_trim; a static program has to be linked with another allocator (in Rust: \
             #[global_allocator])",
            ("musl's wiki, Functional differences from glibc", "no mallopt and no malloc_trim"),
        )
    },
    row(
        "jemalloc/not_walked",
        Case("jemalloc", MemoryState::Undivided, RemedyKind::Runtime),
        "background_thread:true in MALLOC_CONF",
        "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 returns free memory, also while the \
         program is idle",
        ("jemalloc's TUNING.md, background_thread", "see jemalloc/background_thread"),
    ),
    Row {
        when: has_old_mimalloc,
        setting: environment("MIMALLOC_DECOMMIT_DELAY", "0"),
        ..row(
            "mimalloc/not_walked_2_0",
            Case("mimalloc", MemoryState::Undivided, RemedyKind::Runtime),
            "MIMALLOC_DECOMMIT_DELAY=0 returns free pages at once",
            "MIMALLOC_DECOMMIT_DELAY=0 returns a page as soon as it is free",
            ("mimalloc 2.0.9, src/options.c, decommit_delay", "see mimalloc/decommit_delay"),
        )
    },
    Row {
        when: |facts| !has_old_mimalloc(facts),
        setting: environment("MIMALLOC_PURGE_DELAY", "0"),
        ..row(
            "mimalloc/not_walked",
            Case("mimalloc", MemoryState::Undivided, RemedyKind::Runtime),
            "MIMALLOC_PURGE_DELAY=0 returns free pages at once",
            "MIMALLOC_PURGE_DELAY=0 returns a page as soon as it is free{arrow}",
            ("mimalloc's readme, MIMALLOC_PURGE_DELAY", "see mimalloc/purge_delay"),
        )
    },
    Row {
        setting: environment("TCMALLOC_AGGRESSIVE_DECOMMIT", "1"),
        ..row(
            "gperftools/not_walked",
            Case("gperftools", MemoryState::Undivided, RemedyKind::Runtime),
            "TCMALLOC_AGGRESSIVE_DECOMMIT=1",
            "TCMALLOC_RELEASE_RATE=10 returns free memory sooner, TCMALLOC_AGGRESSIVE_DECOMMIT=1 at once",
            ("gperftools' docs/tcmalloc.adoc", "see gperftools/aggressive_decommit"),
        )
    },
];

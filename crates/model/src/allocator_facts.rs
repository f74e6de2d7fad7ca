//! The table of what lowtide can do with each allocator, and by which names it knows it.

use crate::allocator_kind::AllocatorKind;

/// What lowtide can do with an allocator, and the names of its functions and settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocatorFacts {
    /// Whether its heap is walked, if its structures are found.
    pub is_walked: bool,
    /// The versions whose memory is released: the torture test ran with them. Empty if no version's
    /// is.
    pub released: &'static [&'static str],
    /// Whether its memory is also released if its version is unknown: its structures and its lock
    /// are found by what they contain, and are the same in all of its versions.
    pub proves_itself: bool,
    /// How its own function returns its free memory; `None` if it has no such function.
    pub purge: Option<PurgeFunction>,
    /// Symbols that only this allocator defines.
    pub own_symbols: &'static [&'static str],
    /// Its allocation functions besides those of C, in groups.
    pub allocation_functions: &'static [&'static [&'static str]],
}

/// How an allocator returns its free memory by a function of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeFunction {
    /// The names of the function, of which a build exports one. The first is its usual name.
    pub functions: &'static [&'static str],
    /// What it is called with.
    pub calls: PurgeCalls,
}

/// The calls of a purge, each with one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeCalls {
    /// A call for each arena, with the text `arena.N.purge` (jemalloc's `mallctl`).
    EachArena,
    /// Calls with a number of bytes to return, of which each but the last returns at least
    /// `min_bytes` (gperftools). Bytes that a call has returned in excess are credited to the next.
    Parts {
        /// The number of bytes of each call but the last.
        min_bytes: u64,
    },
    /// One call with a number. `mi_collect(1)` of mimalloc is forced: it returns the free memory of
    /// the arenas, and of the heap of the thread that calls it.
    Once {
        /// The number.
        argument: u64,
    },
}

/// The forms of C++'s `operator new` that return a null pointer without memory. The other forms
/// throw an exception. It cannot unwind through a probed function, whose return address is changed,
/// so it would end the process.
const NEW: [&str; 4] = [
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
];

const NONE: AllocatorFacts = AllocatorFacts {
    is_walked: false,
    released: &[],
    proves_itself: false,
    purge: None,
    own_symbols: &[],
    allocation_functions: &[],
};

const GLIBC: AllocatorFacts = AllocatorFacts {
    is_walked: true,
    released: &["2.27", "2.31", "2.35", "2.36", "2.39", "2.41", "2.42", "2.43", "2.44"],
    ..NONE
};

/// Its own interface is prefixed in its own builds (`je_`), and in Rust's (`_rjem_`, `_rjem_je_`).
const JEMALLOC: AllocatorFacts = AllocatorFacts {
    is_walked: true,
    // Commits between versions may have other structures. 5.2.1 is that of Debian 11 and of Ubuntu
    // 20.04 and 22.04; 5.1.0 is that of jemalloc-sys 0.3, 5.2.1-2 and 5.3.0-1 are those of
    // tikv-jemalloc-sys 0.4 and 0.6.
    released: &["5.1.0", "5.2.1", "5.2.1-2", "5.3.0", "5.3.0-1", "5.3.1"],
    purge: Some(PurgeFunction {
        functions: &["mallctl", "je_mallctl", "_rjem_mallctl"],
        calls: PurgeCalls::EachArena,
    }),
    own_symbols: &["_rjem_malloc", "_rjem_mallctl", "je_malloc", "je_mallctl", "mallctl"],
    allocation_functions: &[
        &NEW,
        &[
            "je_malloc",
            "je_calloc",
            "je_realloc",
            "je_aligned_alloc",
            "je_mallocx",
            "je_rallocx",
            "_rjem_malloc",
            "_rjem_calloc",
            "_rjem_realloc",
            "_rjem_aligned_alloc",
            "_rjem_mallocx",
            "_rjem_rallocx",
            "_rjem_je_malloc",
            "_rjem_je_calloc",
            "_rjem_je_realloc",
            "_rjem_je_aligned_alloc",
            "_rjem_je_mallocx",
            "_rjem_je_rallocx",
        ],
    ],
    ..NONE
};

const MIMALLOC: AllocatorFacts = AllocatorFacts {
    is_walked: true,
    released: &["2.1.7", "2.2.4", "2.3.2", "3.1.5", "3.3.0", "3.3.1", "3.3.2"],
    purge: Some(PurgeFunction {
        functions: &["mi_collect"],
        calls: PurgeCalls::Once { argument: 1 },
    }),
    own_symbols: &["mi_malloc", "mi_malloc_aligned"],
    allocation_functions: &[
        &NEW,
        &[
            "mi_malloc",
            "mi_calloc",
            "mi_zalloc",
            "mi_realloc",
            "mi_malloc_aligned",
            "mi_zalloc_aligned",
            "mi_realloc_aligned",
            "mi_malloc_small",
            "mi_zalloc_small",
        ],
    ],
    ..NONE
};

const GPERFTOOLS: AllocatorFacts = AllocatorFacts {
    is_walked: true,
    // Debian 11, 12 and 13 have 2.8.1, 2.10 and 2.16, Ubuntu 22.04 and 24.04 have 2.9.1 and 2.15.
    released: &["2.8.1", "2.9", "2.9.1", "2.10", "2.11", "2.15", "2.16", "2.17.2", "2.18.1"],
    purge: Some(PurgeFunction {
        functions: &["MallocExtension_ReleaseToSystem"],
        calls: PurgeCalls::Parts { min_bytes: 1 << 20 },
    }),
    own_symbols: &["tc_malloc"],
    allocation_functions: &[&NEW, &["tc_malloc", "tc_calloc", "tc_realloc", "tc_memalign"]],
    ..NONE
};

/// A static program does not contain its version.
const MUSL: AllocatorFacts = AllocatorFacts {
    is_walked: true,
    released: &["1.2.2", "1.2.3", "1.2.5", "1.2.6"],
    proves_itself: true,
    ..NONE
};

const TCMALLOC: AllocatorFacts =
    AllocatorFacts { own_symbols: &["TCMallocInternalMalloc"], ..NONE };

const SNMALLOC: AllocatorFacts = AllocatorFacts { own_symbols: &["sn_rust_alloc"], ..NONE };

const RPMALLOC: AllocatorFacts = AllocatorFacts { own_symbols: &["rpmalloc"], ..NONE };

/// Programs that define `__scudo_default_options` configure it.
const SCUDO: AllocatorFacts = AllocatorFacts {
    own_symbols: &["__scudo_print_stats", "__scudo_allocate_hook", "__scudo_default_options"],
    ..NONE
};

impl AllocatorKind {
    /// Returns what lowtide can do with the allocator, and its names.
    pub fn facts(&self) -> &'static AllocatorFacts {
        match self {
            Self::Glibc => &GLIBC,
            Self::Jemalloc => &JEMALLOC,
            Self::Mimalloc => &MIMALLOC,
            Self::Gperftools => &GPERFTOOLS,
            Self::Tcmalloc => &TCMALLOC,
            Self::Snmalloc => &SNMALLOC,
            Self::Rpmalloc => &RPMALLOC,
            Self::Scudo => &SCUDO,
            Self::Musl => &MUSL,
            Self::PartitionAlloc | Self::Other(_) | Self::Unknown => &NONE,
        }
    }

    /// Returns whether releases were tested with a version of the allocator. Of glibc, only the
    /// first two numbers are compared. An unknown version is one that was tested only of an
    /// allocator that proves itself.
    pub fn is_tested(&self, version: Option<&str>) -> bool {
        let Some(version) = version else { return self.facts().proves_itself };
        let is_same = match self {
            Self::Glibc => |version: &str, tested: &str| {
                let numbers = |text: &str| {
                    let mut parts =
                        text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
                    Some((parts.next()?.ok()?, parts.next()?.ok()?))
                };
                numbers(version).is_some_and(|wanted| numbers(tested) == Some(wanted))
            },
            // `5.3.0-0-g54eaed1d8b56` is 5.3.0; `5.3.0-145-g…` is 145 commits later. `2.10.0` is
            // what CMake makes of gperftools 2.10.
            _ => |version: &str, tested: &str| {
                let rest = version.strip_prefix(tested);
                rest.is_some_and(|rest| matches!(rest, "" | "-0" | ".0") || rest.starts_with("-0-"))
            },
        };
        self.facts().released.iter().any(|tested| is_same(version, tested))
    }

    /// Returns whether a release knows the locks that the allocator takes in a program with this C
    /// library: those of glibc, and of musl's own `malloc`.
    pub fn has_known_locks(&self, c_library: &str) -> bool {
        match self {
            Self::Musl => c_library == "musl",
            _ => c_library == "glibc",
        }
    }

    /// Returns the allocators whose memory can be released, in some version.
    pub fn releasable() -> impl Iterator<Item = Self> {
        Self::NAMED.into_iter().filter(|kind| !kind.facts().released.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_compared_by_their_first_two_numbers() {
        let is_tested = |version| AllocatorKind::Glibc.is_tested(Some(version));
        for version in ["2.36", "2.36-9+deb12u14", "2.31.9000", "2.44"] {
            assert!(is_tested(version), "{version}");
        }
        for version in ["2.3", "2.360", "2.30", "3.36", "2", "", "2.", "x", "99999999999.1"] {
            assert!(!is_tested(version), "{version:?}");
        }
        assert!(!AllocatorKind::Glibc.is_tested(None));
    }

    #[test]
    fn a_version_of_another_allocator_is_compared_in_full() {
        let is_tested = |version| AllocatorKind::Gperftools.is_tested(Some(version));
        for version in ["2.8.1", "2.9.1", "2.9.0", "2.10", "2.10.0", "2.16"] {
            assert!(is_tested(version), "{version}");
        }
        for version in ["2.1", "2.10.80", "2.10.00", "2.7", "2.100", "2.15.90", "2.9.2", ""] {
            assert!(!is_tested(version), "{version:?}");
        }
        assert!(!AllocatorKind::Gperftools.is_tested(None));
    }

    #[test]
    fn an_allocator_is_released_only_if_its_heap_is_walked() {
        let released: Vec<AllocatorKind> = AllocatorKind::releasable().collect();
        assert_eq!(released.len(), 5);
        assert!(released.iter().all(|kind| kind.facts().is_walked));
    }

    #[test]
    fn a_symbol_is_evidence_of_one_allocator() {
        let symbols = |kind: &AllocatorKind| kind.facts().own_symbols;
        for (place, kind) in AllocatorKind::NAMED.iter().enumerate() {
            for other in &AllocatorKind::NAMED[place + 1..] {
                assert!(!symbols(kind).iter().any(|symbol| symbols(other).contains(symbol)));
            }
        }
    }
}

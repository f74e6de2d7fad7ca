//! What the caches of an allocator can hold back of freed blocks.

use super::GroupSums;

/// Size of a page of the kernel that a bound counts with, in bytes.
const PAGE: u64 = 4 << 10;

/// What the caches of an allocator can hold back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of bytes; `None` if there is no known bound.
    pub held_back_bytes: Option<u64>,
    /// Sentences that explain it.
    pub because: Vec<String>,
}

impl Bounds {
    /// Computes the bounds of some groups that `threads` threads free.
    pub fn new(groups: &[&GroupSums], threads: u64) -> Self {
        let mut bounds = Self { held_back_bytes: Some(0), because: Vec::new() };
        let mut named = Vec::new();
        for group in groups {
            let held_back_bytes = held_back_bytes(group, threads);
            bounds.held_back_bytes =
                bounds.held_back_bytes.zip(held_back_bytes).map(|(a, b)| a + b);
            if !named.contains(&group.allocator) {
                named.push(group.allocator);
                bounds.because.extend(because(group.allocator).map(str::to_owned));
            }
        }
        if named.contains(&"cpython")
            && let Some(bytes) = &mut bounds.held_back_bytes
        {
            *bytes += CPYTHON_ARENA;
        }
        bounds
    }
}

/// Size of an arena of CPython 3.10 and newer, in bytes; older ones are smaller.
const CPYTHON_ARENA: u64 = 1 << 20;
/// Maximum number of blocks of a size in the cache of a thread: glibc's default up to 2.41, and
/// jemalloc's (`lg_tcache_nslots_mul`, `tcache_nslots_small_max`).
const GLIBC_CACHED: u64 = 7;
const JEMALLOC_CACHED: u64 = 200;
/// Maximum size of a cached block, in bytes.
const GLIBC_LARGEST: u64 = 1040;
/// Size of the largest page of mimalloc with blocks of a size, in bytes.
const MIMALLOC_PAGE: u64 = 64 << 10;
const MIMALLOC_MEDIUM_PAGE: u64 = 512 << 10;
/// Size of the largest block in a small page, in bytes.
const MIMALLOC_SMALL: u64 = 8 << 10;

fn held_back_bytes(group: &GroupSums, threads: u64) -> Option<u64> {
    // A block of a page or less can begin before a page and end after its begin.
    let pages = group.size_bytes.div_ceil(PAGE) + 1;
    let in_caches = |count: u64| (threads * count).min(group.blocks) * pages * PAGE;
    match group.allocator {
        "glibc" if group.size_bytes <= GLIBC_LARGEST => Some(in_caches(GLIBC_CACHED)),
        "glibc" | "cpython" => Some(0),
        "jemalloc" => Some(in_caches(JEMALLOC_CACHED)),
        "mimalloc" if group.size_bytes <= MIMALLOC_SMALL => Some(threads * MIMALLOC_PAGE),
        "mimalloc" => Some(threads * MIMALLOC_MEDIUM_PAGE),
        _ => None,
    }
}

fn because(allocator: &str) -> Option<&'static str> {
    match allocator {
        "glibc" => Some(
            "up to 7 blocks of each size stay in the cache of each thread that frees them \
             (tcache_count; more from glibc 2.42 on)",
        ),
        "jemalloc" => {
            Some("up to 200 blocks of each size stay in the cache of each thread that frees them")
        }
        "mimalloc" => Some("mimalloc keeps one page of each size and thread for a while"),
        "cpython" => Some("CPython keeps one free arena"),
        "gperftools" => Some(
            "freed blocks first go to the caches of threads, which may hold back all of them \
             (TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES)",
        ),
        _ => None,
    }
}

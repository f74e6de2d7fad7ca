//! What the caches of an allocator can hold back of freed blocks.

use lowtide_model::inspection::Tunables;

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
    /// Computes the bounds of some groups that `threads` threads free. `tunables` are the settings
    /// of glibc, if they are known.
    pub fn new(groups: &[&GroupSums], threads: u64, tunables: Option<&Tunables>) -> Self {
        let tcache = Tcache::new(tunables);
        let mut bounds = Self { held_back_bytes: Some(0), because: Vec::new() };
        let mut named = Vec::new();
        for group in groups {
            let held_back_bytes = held_back_bytes(group, threads, tcache);
            bounds.held_back_bytes =
                bounds.held_back_bytes.zip(held_back_bytes).map(|(a, b)| a + b);
            if !named.contains(&group.allocator) {
                named.push(group.allocator);
                bounds.because.extend(because(group.allocator, tcache));
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
/// Maximum number of blocks of a size in the cache of a thread of jemalloc
/// (`lg_tcache_nslots_mul`, `tcache_nslots_small_max`).
const JEMALLOC_CACHED: u64 = 200;
/// Size of the largest page of mimalloc with blocks of a size, in bytes.
const MIMALLOC_PAGE: u64 = 64 << 10;
const MIMALLOC_MEDIUM_PAGE: u64 = 512 << 10;
/// Size of the largest block in a small page, in bytes.
const MIMALLOC_SMALL: u64 = 8 << 10;

/// The caches of threads of glibc.
#[derive(Debug, Clone, Copy)]
struct Tcache {
    /// Maximum number of blocks of a size.
    count: u64,
    /// Size of the largest block, in bytes, with its head.
    largest_bytes: u64,
}

impl Tcache {
    /// Reads the settings in force; without them, the defaults up to glibc 2.41.
    fn new(tunables: Option<&Tunables>) -> Self {
        const HEAD: u64 = 16;
        let count = tunables.map(|found| found.tcache_count);
        let largest = tunables.map(|found| found.tcache_max_bytes);
        Self { count: count.unwrap_or(7), largest_bytes: largest.unwrap_or(1032) + HEAD }
    }
}

fn held_back_bytes(group: &GroupSums, threads: u64, tcache: Tcache) -> Option<u64> {
    // A block of a page or less can begin before a page and end after its begin.
    let pages = group.size_bytes.div_ceil(PAGE) + 1;
    let in_caches = |count: u64| (threads * count).min(group.blocks) * pages * PAGE;
    match group.allocator {
        "glibc" if group.size_bytes <= tcache.largest_bytes => Some(in_caches(tcache.count)),
        "glibc" | "cpython" => Some(0),
        "jemalloc" => Some(in_caches(JEMALLOC_CACHED)),
        "mimalloc" if group.size_bytes <= MIMALLOC_SMALL => Some(threads * MIMALLOC_PAGE),
        "mimalloc" => Some(threads * MIMALLOC_MEDIUM_PAGE),
        _ => None,
    }
}

fn because(allocator: &str, tcache: Tcache) -> Option<String> {
    if allocator == "glibc" {
        let count = tcache.count;
        return Some(format!(
            "up to {count} blocks of each size stay in the cache of each thread that frees them (tcache_count)"
        ));
    }
    let sentence = match allocator {
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
    };
    sentence.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(allocator: &'static str, size_bytes: u64, blocks: u64) -> GroupSums {
        GroupSums { allocator, size_bytes, blocks, ..GroupSums::default() }
    }

    #[test]
    fn caches_hold_back_a_bounded_number_of_blocks_for_each_thread_and_never_more_than_there_are() {
        let bytes =
            |group: &GroupSums, threads| Bounds::new(&[group], threads, None).held_back_bytes;
        assert_eq!(bytes(&group("glibc", 64, 1000), 2), Some(2 * 7 * 2 * PAGE));
        assert_eq!(bytes(&group("glibc", 64, 3), 2), Some(3 * 2 * PAGE));
        assert_eq!(bytes(&group("glibc", 2048, 1000), 2), Some(0));
        assert_eq!(bytes(&group("mimalloc", 64, 1000), 3), Some(3 * MIMALLOC_PAGE));
        assert_eq!(bytes(&group("cpython", 64, 1000), 3), Some(CPYTHON_ARENA));
        assert_eq!(bytes(&group("gperftools", 64, 1000), 1), None);
    }

    #[test]
    fn the_settings_in_force_decide_how_much_glibc_caches() {
        let tunables = Tunables {
            arena_max: None,
            trim_threshold_bytes: 0,
            top_pad_bytes: 0,
            mmap_threshold_bytes: 0,
            mmap_threshold_dynamic: false,
            tcache_count: 200,
            tcache_max_bytes: 100,
        };
        let of = |bytes| Bounds::new(&[&group("glibc", bytes, 1000)], 1, Some(&tunables));
        assert_eq!(of(112).held_back_bytes, Some(200 * 2 * PAGE));
        assert_eq!(of(128).held_back_bytes, Some(0));
        assert!(of(112).because[0].starts_with("up to 200 blocks"));
    }
}

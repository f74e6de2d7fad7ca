//! What the caches of an allocator can hold back of freed blocks.

use lowtide_model::inspection::Tunables;

use super::GroupSums;

/// What the caches of an allocator can hold back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum number of bytes; `None` if there is no known bound.
    pub held_back_bytes: Option<u64>,
    /// Sentences that explain it.
    pub because: Vec<String>,
}

impl Bounds {
    /// Computes the bounds of some groups that `threads` threads free. `tunables` are the settings
    /// of glibc, if they are known; `page_bytes` is the size of a page of the kernel.
    pub(crate) fn new(
        groups: &[&GroupSums],
        threads: u64,
        page_bytes: u64,
        tunables: Option<&Tunables>,
    ) -> Self {
        let tcache = Tcache::new(tunables);
        let mut bounds = Self { held_back_bytes: Some(0), because: Vec::new() };
        let mut named = Vec::new();
        for group in groups {
            let held_back_bytes = held_back_bytes(group, threads, page_bytes, tcache);
            bounds.because.extend(free_list(group).map(|list| list.sentence()));
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

/// Maximum number of slots of a group of musl.
const MUSL_SLOTS: u64 = 32;

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

fn held_back_bytes(group: &GroupSums, threads: u64, page: u64, tcache: Tcache) -> Option<u64> {
    // A block of a page or less can begin before a page and end after its begin.
    let pages = group.size_bytes[1].div_ceil(page) + 1;
    let in_caches = |count: u64| {
        let cached = threads.saturating_mul(count).saturating_mul(group.sizes);
        cached.min(group.blocks).saturating_mul(pages * page)
    };
    match group.allocator {
        "glibc" if group.size_bytes[0] <= tcache.largest_bytes => Some(in_caches(tcache.count)),
        "glibc" => Some(0),
        "cpython" => Some(free_list(group).map_or(0, |list| list.held_back_bytes(group))),
        "jemalloc" => Some(in_caches(JEMALLOC_CACHED)),
        "mimalloc" if group.size_bytes[1] <= MIMALLOC_SMALL => {
            Some(threads * group.sizes * MIMALLOC_PAGE)
        }
        "mimalloc" => Some(threads * group.sizes * MIMALLOC_MEDIUM_PAGE),
        "musl" => {
            Some(group.size_bytes[1].saturating_mul(MUSL_SLOTS).saturating_mul(group.sizes) + page)
        }
        _ => None,
    }
}

/// The free objects that CPython keeps of a type.
#[derive(Debug, Clone, Copy)]
struct FreeList {
    name: &'static str,
    /// Maximum number of objects of one size.
    count: u64,
}

/// The types with a list of free objects, up to CPython 3.14.
const FREE_LISTS: [FreeList; 4] = [
    FreeList { name: "tuple", count: 2000 },
    FreeList { name: "float", count: 100 },
    FreeList { name: "list", count: 80 },
    FreeList { name: "dict", count: 80 },
];

impl FreeList {
    /// Returns what arenas the free objects of a group can hold back.
    fn held_back_bytes(self, group: &GroupSums) -> u64 {
        (self.count * group.sizes).min(group.blocks) * CPYTHON_ARENA
    }

    fn sentence(self) -> String {
        let Self { name, count } = self;
        format!(
            "CPython keeps up to {count} freed objects of type {name} of each length in a list, until gc.collect() \
             empties it"
        )
    }
}

fn free_list(group: &GroupSums) -> Option<FreeList> {
    let name = group.block_type.as_deref().filter(|_| group.allocator == "cpython")?;
    let name = name.strip_prefix("Python ")?;
    FREE_LISTS.into_iter().find(|list| list.name == name)
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
        "musl" => {
            Some("musl keeps one free group of a size that was often allocated and freed in turn")
        }
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

    const PAGE: u64 = 4 << 10;

    fn group(allocator: &'static str, size_bytes: u64, blocks: u64) -> GroupSums {
        let size_bytes = [size_bytes; 2];
        GroupSums { allocator, size_bytes, sizes: 1, blocks, ..GroupSums::default() }
    }

    #[test]
    fn caches_hold_back_a_bounded_number_of_blocks_for_each_thread_and_never_more_than_there_are() {
        let bytes =
            |group: &GroupSums, threads| Bounds::new(&[group], threads, PAGE, None).held_back_bytes;
        assert_eq!(bytes(&group("glibc", 64, 1000), 2), Some(2 * 7 * 2 * PAGE));
        assert_eq!(bytes(&group("glibc", 64, 3), 2), Some(3 * 2 * PAGE));
        assert_eq!(bytes(&group("glibc", 2048, 1000), 2), Some(0));
        assert_eq!(bytes(&group("mimalloc", 64, 1000), 3), Some(3 * MIMALLOC_PAGE));
        assert_eq!(bytes(&group("cpython", 64, 1000), 3), Some(CPYTHON_ARENA));
        assert_eq!(bytes(&group("gperftools", 64, 1000), 1), None);
        assert_eq!(bytes(&group("musl", 64, 1000), 3), Some(32 * 64 + PAGE));
    }

    #[test]
    fn a_cached_block_holds_back_the_pages_of_the_kernel_whatever_their_size_is() {
        let bytes =
            |page, size| Bounds::new(&[&group("glibc", size, 1000)], 1, page, None).held_back_bytes;
        for page in [4 << 10, 16 << 10, 64 << 10] {
            assert_eq!(bytes(page, 64), Some(7 * 2 * page));
        }
    }

    #[test]
    fn the_caches_of_a_group_with_several_sizes_hold_back_blocks_of_each() {
        let strings = GroupSums { sizes: 10, ..group("glibc", 208, 5000) };
        let bounds = Bounds::new(&[&strings], 1, PAGE, None);
        assert_eq!(bounds.held_back_bytes, Some(10 * 7 * 2 * PAGE));
    }

    #[test]
    fn free_lists_of_cpython_can_hold_back_an_arena_for_each_tuple() {
        let typed = |name: &str, blocks| GroupSums {
            block_type: Some(format!("Python {name}")),
            ..group("cpython", 64, blocks)
        };
        let bounds = Bounds::new(&[&typed("tuple", 3000)], 1, PAGE, None);
        assert_eq!(bounds.held_back_bytes, Some(2001 * CPYTHON_ARENA));
        assert!(bounds.because[0].contains("gc.collect()"), "{:?}", bounds.because);
        let few = Bounds::new(&[&typed("dict", 3)], 1, PAGE, None);
        assert_eq!(few.held_back_bytes, Some(4 * CPYTHON_ARENA));
        let other = Bounds::new(&[&typed("Node", 3000)], 1, PAGE, None);
        assert_eq!(other.held_back_bytes, Some(CPYTHON_ARENA));
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
        let of = |bytes| Bounds::new(&[&group("glibc", bytes, 1000)], 1, PAGE, Some(&tunables));
        assert_eq!(of(112).held_back_bytes, Some(200 * 2 * PAGE));
        assert_eq!(of(128).held_back_bytes, Some(0));
        assert!(of(112).because[0].starts_with("up to 200 blocks"));
    }
}

//! What would cure memory that is pinned: sentences for people.

use super::GroupSums;
use super::bounds::Bounds;

/// Returns the remedies for groups that pin memory together, and what limits their effect.
pub(crate) fn of_set(groups: &[&GroupSums], bounds: &Bounds) -> Vec<String> {
    let mut found = Vec::new();
    let mut allocators: Vec<&str> = groups.iter().map(|group| group.allocator).collect();
    allocators.dedup();
    for allocator in allocators {
        found.extend(own_memory(allocator).map(str::to_owned));
        found.extend(who_frees(allocator).map(str::to_owned));
    }
    found.extend(bounds.because.iter().cloned());
    found
}

/// Returns the change of code that gives long-lived blocks memory of their own.
fn own_memory(allocator: &str) -> Option<&'static str> {
    match allocator {
        "glibc" => Some(
            "change of code: allocate them from memory of their own, such as a pool for this type or a \
             std::pmr resource, or before the burst that surrounds them",
        ),
        "jemalloc" => Some(
            "change of code: allocate them in an arena of their own (mallctl arenas.create, then mallocx with \
             MALLOCX_ARENA), or before the burst; another allocator that separates sizes mixes them as well",
        ),
        "mimalloc" => Some(
            "change of code: allocate them in a heap of their own (mi_heap_new, then mi_heap_malloc), or before \
             the burst; another allocator that separates sizes mixes them as well",
        ),
        "gperftools" | "musl" => Some(
            "change of code: allocate them from a pool of their own, or before the burst; another allocator that \
             separates sizes mixes them as well",
        ),
        "cpython" => Some(
            "change of code: create the objects that stay before the burst, or run the burst in a process of its \
             own; an arena is returned only as a whole",
        ),
        _ => None,
    }
}

/// Returns who has to free the blocks for their memory to return.
fn who_frees(allocator: &str) -> Option<&'static str> {
    match allocator {
        "mimalloc" => Some(
            "if another thread frees them, their memory returns only after the thread that allocated them \
             collects (mi_collect) or ends; with mimalloc 2, another thread must then call mi_collect(true)",
        ),
        _ => None,
    }
}

/// Returns the remedy for blocks in the caches of threads.
pub(crate) fn of_caches(allocator: &str) -> Option<&'static str> {
    match allocator {
        "glibc" => Some("setting: GLIBC_TUNABLES=glibc.malloc.tcache_count=0, or a smaller count"),
        "jemalloc" => {
            Some("setting: MALLOC_CONF=tcache:false, or a call of mallctl thread.tcache.flush")
        }
        "gperftools" => Some("setting: TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES, a smaller one"),
        _ => None,
    }
}

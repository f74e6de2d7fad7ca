//! The arenas of a heap, and what only one allocator has.

use serde::{Deserialize, Serialize};

/// One arena of a heap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arena {
    /// Its position in the ring; 0 is the main arena.
    pub id: u64,
    /// Number of heaps in it.
    pub heaps: u64,
    /// Memory that it obtained from the system, in bytes.
    pub system_bytes: u64,
    /// Blocks in use by the program, including those that threads cache, in bytes.
    pub allocated_bytes: u64,
    /// Free blocks; of glibc, excluding those in fast bins and the top chunk.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Free resident memory in whole pages, in bytes.
    pub reclaimable_bytes: u64,
    /// Free resident memory, in bytes. Most of the free blocks and the top chunk may be address
    /// space without pages.
    pub free_resident_bytes: u64,
    /// The largest free block, in bytes.
    pub largest_free_bytes: u64,
    /// Whether the walked bytes agree with the arena's own count of its memory.
    pub whole: bool,
    /// Its free blocks by size; empty classes are left out.
    pub bins: Vec<Bin>,
    /// Metrics that only this allocator has.
    #[serde(flatten)]
    pub detail: ArenaDetail,
}

/// What only one allocator has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "DetailKeys", into = "DetailKeys")]
pub enum ArenaDetail {
    /// An arena of glibc.
    Glibc(GlibcArena),
    /// An arena of jemalloc.
    Jemalloc(JemallocArena),
    /// A thread's part of a heap of mimalloc.
    Mimalloc(MimallocThread),
    /// The heap of gperftools' tcmalloc, which has no arenas.
    Gperftools(GperftoolsHeap),
}

impl Default for ArenaDetail {
    fn default() -> Self {
        Self::Glibc(GlibcArena::default())
    }
}

/// The detail as the keys of an arena: those of glibc stand beside the keys that all arenas have,
/// and are 0 for other allocators, each of which has an object of its own.
#[derive(Default, Serialize, Deserialize)]
struct DetailKeys {
    #[serde(flatten)]
    glibc: GlibcArena,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jemalloc: Option<JemallocArena>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mimalloc: Option<MimallocThread>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gperftools: Option<GperftoolsHeap>,
}

impl From<ArenaDetail> for DetailKeys {
    fn from(detail: ArenaDetail) -> Self {
        match detail {
            ArenaDetail::Glibc(glibc) => Self { glibc, ..Self::default() },
            ArenaDetail::Jemalloc(arena) => Self { jemalloc: Some(arena), ..Self::default() },
            ArenaDetail::Mimalloc(thread) => Self { mimalloc: Some(thread), ..Self::default() },
            ArenaDetail::Gperftools(heap) => Self { gperftools: Some(heap), ..Self::default() },
        }
    }
}

impl From<DetailKeys> for ArenaDetail {
    fn from(keys: DetailKeys) -> Self {
        let DetailKeys { glibc, jemalloc, mimalloc, gperftools } = keys;
        let other = jemalloc.map(Self::Jemalloc).or(mimalloc.map(Self::Mimalloc));
        other.or(gperftools.map(Self::Gperftools)).unwrap_or(Self::Glibc(glibc))
    }
}

impl Arena {
    /// Returns the number of its free blocks, including those in fast bins.
    pub fn all_free_count(&self) -> u64 {
        self.free_count.saturating_add(self.glibc().map_or(0, |glibc| glibc.fast_count))
    }

    /// Returns the bytes of its free blocks, including those in fast bins.
    pub fn all_free_bytes(&self) -> u64 {
        self.free_bytes.saturating_add(self.glibc().map_or(0, |glibc| glibc.fast_bytes))
    }

    /// Returns the size of its top chunk, in bytes; 0 if its allocator has none.
    pub fn top_bytes(&self) -> u64 {
        self.glibc().map_or(0, |glibc| glibc.top_bytes)
    }

    /// Returns whether it is an arena of glibc.
    pub fn is_of_glibc(&self) -> bool {
        self.glibc().is_some()
    }

    /// Returns what only an arena of glibc has.
    pub fn glibc(&self) -> Option<&GlibcArena> {
        match &self.detail {
            ArenaDetail::Glibc(detail) => Some(detail),
            _ => None,
        }
    }

    /// Returns what only an arena of jemalloc has.
    pub fn jemalloc(&self) -> Option<&JemallocArena> {
        match &self.detail {
            ArenaDetail::Jemalloc(detail) => Some(detail),
            _ => None,
        }
    }

    /// Returns what only a thread's part of a heap of mimalloc has.
    pub fn mimalloc(&self) -> Option<&MimallocThread> {
        match &self.detail {
            ArenaDetail::Mimalloc(detail) => Some(detail),
            _ => None,
        }
    }

    /// Returns what only the heap of gperftools' tcmalloc has.
    pub fn gperftools(&self) -> Option<&GperftoolsHeap> {
        match &self.detail {
            ArenaDetail::Gperftools(detail) => Some(detail),
            _ => None,
        }
    }
}

/// What only an arena of glibc has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlibcArena {
    /// Blocks in fast bins.
    pub fast_count: u64,
    /// Their bytes.
    pub fast_bytes: u64,
    /// Size of the top chunk, in bytes.
    pub top_bytes: u64,
}

/// The heap of gperftools' tcmalloc, in the terms of `MallocExtension::GetNumericProperty`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GperftoolsHeap {
    /// Number of large blocks. Each is one span.
    pub large_count: u64,
    /// Their bytes.
    pub large_bytes: u64,
    /// Spans that are cut into blocks of one size.
    pub small_spans: u64,
    /// Free blocks in the central free lists, and remainders of spans that are too small for a
    /// block, in bytes (`tcmalloc.central_cache_free_bytes`).
    pub central_free_bytes: u64,
    /// Free blocks in the transfer caches, in bytes (`tcmalloc.transfer_cache_free_bytes`).
    pub transfer_cache_bytes: u64,
    /// Free blocks in the caches of threads, in bytes (`tcmalloc.thread_cache_free_bytes`).
    pub thread_cache_bytes: u64,
    /// Number of caches of threads.
    pub thread_caches: u64,
    /// Free spans, in bytes (`tcmalloc.pageheap_free_bytes`).
    pub page_heap_free_bytes: u64,
    /// Free spans that were returned to the kernel, in bytes (`tcmalloc.pageheap_unmapped_bytes`).
    pub page_heap_returned_bytes: u64,
}

/// A thread's part of a heap of mimalloc.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MimallocThread {
    /// The address of the thread's storage, by which mimalloc identifies the thread; 0 if no thread
    /// owns these pages.
    pub thread: u64,
    /// Pages: rows of blocks of one size.
    pub pages: u64,
    /// Pages whose blocks are all free.
    pub empty_pages: u64,
    /// Free spans between the pages of a thread, in bytes (version 2). Only this thread can use or
    /// return them.
    pub free_spans_bytes: u64,
    /// The resident part of them, in bytes.
    pub free_spans_resident_bytes: u64,
}

/// An arena of jemalloc, in the terms of jemalloc's own statistics (`stats.arenas.<i>`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JemallocArena {
    /// Extents in use, in bytes (`pactive`, which counts pages).
    pub active_bytes: u64,
    /// Free extents whose pages are resident, in bytes (`pdirty`).
    pub dirty_bytes: u64,
    /// Free extents whose pages the kernel may reclaim, in bytes (`pmuzzy`).
    pub muzzy_bytes: u64,
    /// Free extents whose pages were returned, in bytes (`retained`).
    pub retained_bytes: u64,
    /// Slabs: extents of small regions of one size.
    pub slabs: u64,
    /// Free regions in slabs, in bytes.
    pub slab_free_bytes: u64,
    /// Resident pages of slabs whose regions are all free, in bytes. A purge does not return them.
    pub slab_free_pages_bytes: u64,
    /// Large allocations.
    pub large_count: u64,
    /// Their bytes (`large.allocated`).
    pub large_bytes: u64,
}

/// Blocks of similar size, in use or free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// The smallest size of the class, in bytes.
    pub from: u64,
    /// The first size above the class.
    pub to: u64,
    /// Number of blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Bin {
    /// Merges the bins of two heaps with the same size classes.
    pub fn join(mut these: Vec<Self>, others: &[Self]) -> Vec<Self> {
        for other in others {
            match these.iter_mut().find(|bin| bin.from == other.from) {
                Some(same) => {
                    same.count += other.count;
                    same.bytes += other.bytes;
                }
                None => these.push(*other),
            }
        }
        these.sort_by_key(|bin| bin.from);
        these
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_read_back_with_the_details_of_its_allocator() {
        let glibc = GlibcArena { fast_count: 1, fast_bytes: 32, top_bytes: 4096 };
        for (detail, keys) in [
            (ArenaDetail::Glibc(glibc), [("fast_bytes", 32), ("top_bytes", 4096)]),
            (
                ArenaDetail::Jemalloc(JemallocArena::default()),
                [("fast_bytes", 0), ("top_bytes", 0)],
            ),
            (ArenaDetail::Mimalloc(MimallocThread::default()), [("fast_count", 0), ("id", 3)]),
            (ArenaDetail::Gperftools(GperftoolsHeap::default()), [("fast_count", 0), ("id", 3)]),
        ] {
            let arena = Arena { id: 3, detail, ..Arena::default() };
            let value = serde_json::to_value(&arena).unwrap();
            assert!(keys.iter().all(|(key, number)| value[*key] == *number), "{value}");
            let of_others = ["jemalloc", "mimalloc", "gperftools"];
            let count = of_others.iter().filter(|key| value.get(**key).is_some()).count();
            assert_eq!(count, usize::from(!arena.is_of_glibc()), "{value}");
            assert_eq!(serde_json::from_value::<Arena>(value).unwrap(), arena);
        }
    }
}

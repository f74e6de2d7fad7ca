//! glibc's allocator, from 2.26 on.
//!
//! [`Layout::find`] finds the arenas and their layout. [`walk`] visits every chunk of the main
//! heap, the heaps of the other arenas and the mmapped chunks, and computes how much
//! `malloc_trim(0)` would return. The rules are those of glibc's `malloc/malloc.c` and `arena.c`.

mod allocator;
mod arenas;
mod caches;
pub(crate) mod chunk;
mod effort;
mod layout;
mod lists;
mod malloc_info;
mod position;
mod stretch_tally;
mod tally;
mod walk;
mod window;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::blocks::Visitor;
use crate::memory::Memory;

pub use caches::{Caches, is_size_of_cache};
pub use layout::{Layout, MallocParams};
pub use lists::{Links, fast_links};
pub use malloc_info::{MallocInfo, malloc_info};
pub use tally::{CLASSES, Class, ResidentTally, Tally};

/// Alignment of the heaps of thread arenas, in bytes (`HEAP_MAX_SIZE`).
pub(crate) const HEAP_BYTES: u64 = 64 << 20;

/// A mapping that may contain a part of the heap: private, writable and anonymous.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapMapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether its end is moved by `brk`.
    pub is_brk: bool,
}

/// Free pages that a walk has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreePages {
    /// The address of the arena whose lock guards them.
    pub arena: u64,
    /// The kind of chunk that contains them.
    pub kind: FreeKind,
    /// The free chunk including its head, or the top chunk.
    pub chunk: Range<u64>,
    /// The whole pages inside that contain no data of the allocator.
    pub pages: Range<u64>,
    /// Number of resident bytes in them. None of them is locked.
    pub resident_bytes: u64,
}

/// The kind of chunk that contains free pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeKind {
    /// A free chunk that is in a bin.
    Chunk,
    /// The top chunk of an arena.
    Top,
}

/// The heap of the allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heap {
    /// The arenas. The main arena is the first.
    pub arenas: Vec<WalkedArena>,
    /// Mmapped chunks.
    pub mmapped: Mmapped,
    /// The blocks in thread caches. The arenas count them as used.
    pub caches: Caches,
    /// The addresses of the heap, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// Number of rereads of inconsistent memory.
    pub rereads: u64,
    /// Number of returns of the walk to a checkpoint.
    pub returns: u64,
}

/// A walked arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedArena {
    /// The address of its `malloc_state`.
    pub address: u64,
    /// Number of its parts.
    pub heaps: u64,
    /// Number of bytes that it has from the system, by its own counter.
    pub system_bytes: u64,
    /// Number of bytes that were walked.
    pub walked_bytes: u64,
    /// The sums over its chunks.
    pub tally: Tally,
}

impl WalkedArena {
    /// Returns whether the walked bytes equal the arena's own count, so that no part is missing and
    /// none was guessed.
    pub fn is_whole(&self) -> bool {
        self.walked_bytes == self.system_bytes && self.tally.unwalked_bytes == 0
    }

    /// Returns whether a release should consolidate the chunks in fast bins with their neighbours
    /// first, as `malloc_trim` always does. If that frees less than a page for every 1024 chunks,
    /// it is not worth the time.
    pub fn is_worth_joining(&self) -> bool {
        const BYTES_A_BLOCK: u64 = 4;
        let all = self.tally.resident.reclaimable_bytes;
        let gain = all.saturating_sub(self.tally.single_bytes);
        gain > 0 && gain >= self.tally.fast_count * BYTES_A_BLOCK
    }

    /// Returns the number of resident bytes that a release returns: those in whole free pages,
    /// including the top chunk.
    pub fn release_bytes(&self) -> u64 {
        if self.is_worth_joining() {
            self.tally.resident.reclaimable_bytes
        } else {
            self.tally.single_bytes
        }
    }
}

/// Mmapped chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mmapped {
    /// Number of chunks.
    pub count: u64,
    /// Size of their mappings, in bytes.
    pub bytes: u64,
    /// Number of those bytes that are resident.
    pub resident_bytes: u64,
    /// Whether the allocator's own counters agree: exactly in number (`n_mmaps`), and within 1 % in
    /// bytes (`mmapped_mem`). `false` also if its counters were not found.
    pub is_whole: bool,
}

/// The resident bytes of a heap by owner. They are disjoint, and their sum is the resident bytes of
/// [`Heap::areas`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owners {
    /// Blocks that the program has, with their heads.
    pub allocated_bytes: u64,
    /// Whole free pages, which can be returned to the OS.
    pub reclaimable_bytes: u64,
    /// Whole free pages that are locked.
    pub locked_bytes: u64,
    /// Free bytes on pages that something else retains.
    pub fragmented_bytes: u64,
    /// Free blocks in thread caches.
    pub cached_bytes: u64,
    /// The allocator's own structures, and pages that only the head of a free chunk retains.
    pub metadata_bytes: u64,
    /// Memory that could not be walked.
    pub unwalked_bytes: u64,
}

impl Heap {
    /// Returns the sums over all arenas.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for arena in &self.arenas {
            total.add(&arena.tally);
        }
        total
    }

    /// Returns the number of resident bytes that `malloc_trim(0)` would return.
    pub fn trim_bytes(&self) -> u64 {
        self.arenas.iter().map(|arena| arena.tally.trim_bytes).sum()
    }

    /// Returns the number of resident bytes that a release returns: those in whole free pages,
    /// including the top chunks of thread heaps.
    pub fn release_bytes(&self) -> u64 {
        self.arenas.iter().map(WalkedArena::release_bytes).sum()
    }

    /// Returns whether all memory that the allocator counts was walked.
    pub fn is_whole(&self) -> bool {
        self.arenas.iter().all(WalkedArena::is_whole) && self.mmapped.is_whole
    }

    /// Returns the resident bytes by owner.
    pub fn owners(&self) -> Owners {
        let resident = self.total().resident;
        let used = resident.used_bytes + self.mmapped.resident_bytes;
        let structures = self.caches.structures_resident_bytes;
        Owners {
            allocated_bytes: used.saturating_sub(self.caches.resident_bytes + structures),
            reclaimable_bytes: resident.reclaimable_bytes,
            locked_bytes: resident.locked_bytes,
            fragmented_bytes: resident.fragmented_bytes,
            cached_bytes: self.caches.resident_bytes,
            metadata_bytes: resident.metadata_bytes + structures,
            unwalked_bytes: resident.unwalked_bytes,
        }
    }
}

impl Owners {
    /// Returns the sum of all rows.
    pub fn total(&self) -> u64 {
        self.allocated_bytes
            + self.reclaimable_bytes
            + self.locked_bytes
            + self.fragmented_bytes
            + self.cached_bytes
            + self.metadata_bytes
            + self.unwalked_bytes
    }
}

/// Walks the heap of the allocator. `mappings` are those that may contain a part of it, in order of
/// address.
///
/// The memory may change meanwhile. Memory that cannot be walked is counted separately.
/// [`Heap::is_whole`] and [`WalkedArena::is_whole`] return whether the walk is complete.
pub fn walk(memory: &impl Memory, layout: &Layout, mappings: &[HeapMapping]) -> Heap {
    arenas::HeapWalk::new(memory, layout, mappings, None, None).walk()
}

/// Walks the heap like [`walk()`], and passes on the blocks in use.
pub(crate) fn walk_blocks<'m>(
    memory: &'m impl Memory,
    layout: &'m Layout,
    mappings: &[HeapMapping],
    visitor: Visitor<'m>,
) -> Heap {
    arenas::HeapWalk::new(memory, layout, mappings, None, visitor).walk()
}

/// Walks the heap like [`walk()`], and reports free pages as it finds them, those of the main arena
/// last. The memory may change meanwhile, and the data that was read may be torn: the caller must
/// verify the pages under the arena's lock before it acts on them. Some pages may be reported
/// twice.
pub fn walk_and_visit<'m>(
    memory: &'m impl Memory,
    layout: &'m Layout,
    mappings: &[HeapMapping],
    found: &'m mut dyn FnMut(FreePages),
) -> Heap {
    arenas::HeapWalk::new(memory, layout, mappings, Some(found), None).walk()
}

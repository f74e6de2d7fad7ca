//! glibc's allocator, from 2.26 on.
//!
//! [`Layout::find`] finds the arenas and how they are laid out, [`walk`] goes over every chunk of the
//! main heap, the heaps of the other arenas and the blocks with a mapping of their own, and says what
//! `malloc_trim(0)` would return. The rules are those of glibc's `malloc/malloc.c` and `arena.c`.

mod arenas;
mod caches;
mod chunk;
mod effort;
mod layout;
mod lists;
mod malloc_info;
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

/// Heaps of thread arenas begin at multiples of this (`HEAP_MAX_SIZE`), in bytes.
pub(crate) const HEAP_BYTES: u64 = 64 << 20;

/// A mapping that may hold a part of the heap: private, writable, of no file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapMapping {
    /// Where it is.
    pub range: Range<u64>,
    /// Whether it is the one that `brk` moves the end of.
    pub is_brk: bool,
}

/// Free pages that a walk has come by: where they are, and what they are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreePages {
    /// The arena whose lock they are under.
    pub arena: u64,
    /// What they are in.
    pub kind: FreeKind,
    /// The free block, from its head on, or the top.
    pub chunk: Range<u64>,
    /// The whole pages inside that hold nothing of the allocator.
    pub pages: Range<u64>,
    /// How many bytes of them are resident.
    pub resident_bytes: u64,
}

/// What free pages are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeKind {
    /// A free block that stands in a bin.
    Chunk,
    /// The top of an arena.
    Top,
}

/// Everything that the allocator holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heap {
    /// The arenas; the main one first.
    pub arenas: Vec<WalkedArena>,
    /// Blocks that have a mapping of their own.
    pub mmapped: Mmapped,
    /// What the threads hold back for themselves; the arenas count it as used.
    pub caches: Caches,
    /// The addresses that belong to it all, in order and apart from each other.
    pub areas: Vec<Range<u64>>,
    /// How often something had to be read again because it did not make sense.
    pub rereads: u64,
    /// How often the walk went back to an earlier place.
    pub returns: u64,
}

/// One arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedArena {
    /// Where its `malloc_state` is.
    pub address: u64,
    /// The pieces that it consists of.
    pub heaps: u64,
    /// What it has got from the system by its own account, in bytes.
    pub system_bytes: u64,
    /// What was walked of it, in bytes.
    pub walked_bytes: u64,
    /// What it holds.
    pub tally: Tally,
}

impl WalkedArena {
    /// Returns whether what was walked is what the arena itself says that it has got, so that
    /// nothing is missing and nothing was guessed.
    pub fn is_whole(&self) -> bool {
        self.walked_bytes == self.system_bytes && self.tally.unwalked_bytes == 0
    }

    /// Returns whether a release first joins the blocks in fast bins with their neighbours, as
    /// `malloc_trim` always does: where that gives less than a page for every 1024 blocks, it is
    /// not worth the time.
    pub fn is_worth_joining(&self) -> bool {
        const BYTES_A_BLOCK: u64 = 4;
        let all = self.tally.trim_bytes + self.tally.more_bytes;
        let gain = all.saturating_sub(self.tally.single_bytes);
        gain > 0 && gain >= self.tally.fast_count * BYTES_A_BLOCK
    }

    /// Resident bytes that a release returns: those in whole free pages, the top included.
    pub fn release_bytes(&self) -> u64 {
        if self.is_worth_joining() {
            self.tally.trim_bytes + self.tally.more_bytes
        } else {
            self.tally.single_bytes
        }
    }
}

/// Blocks that have a mapping of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mmapped {
    /// How many.
    pub count: u64,
    /// Bytes of their mappings.
    pub bytes: u64,
    /// How many of those bytes are resident.
    pub resident_bytes: u64,
    /// Whether the allocator itself counts as many (`n_mmaps`), and within 1 % as much
    /// (`mmapped_mem`). `false` too where its count was not found.
    pub is_whole: bool,
}

/// The resident bytes of a heap by owner: apart from each other, and together what is resident of
/// [`Heap::areas`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owners {
    /// Blocks that the program has, with their heads.
    pub allocated_bytes: u64,
    /// Whole free pages, which can go back.
    pub reclaimable_bytes: u64,
    /// Free bytes on pages that something else keeps.
    pub fragmented_bytes: u64,
    /// Free blocks that threads hold back.
    pub cached_bytes: u64,
    /// The allocator's own structures, and pages that only the head of a free block keeps.
    pub metadata_bytes: u64,
    /// Could not be walked.
    pub unwalked_bytes: u64,
}

impl Heap {
    /// What all arenas hold together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for arena in &self.arenas {
            total.add(&arena.tally);
        }
        total
    }

    /// Resident bytes that `malloc_trim(0)` would return.
    pub fn trim_bytes(&self) -> u64 {
        self.arenas.iter().map(|arena| arena.tally.trim_bytes).sum()
    }

    /// Resident bytes that a release returns: those in whole free pages, the tops of thread heaps
    /// included.
    pub fn release_bytes(&self) -> u64 {
        self.arenas.iter().map(WalkedArena::release_bytes).sum()
    }

    /// Returns whether everything was walked that the allocator says it has.
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
            fragmented_bytes: resident.fragmented_bytes,
            cached_bytes: self.caches.resident_bytes,
            metadata_bytes: resident.metadata_bytes + structures,
            unwalked_bytes: resident.unwalked_bytes,
        }
    }
}

impl Owners {
    /// Returns all of them.
    pub fn total(&self) -> u64 {
        self.allocated_bytes
            + self.reclaimable_bytes
            + self.fragmented_bytes
            + self.cached_bytes
            + self.metadata_bytes
            + self.unwalked_bytes
    }
}

/// Walks everything that the allocator holds. `mappings` are those that may hold a part of it, in order
/// of their addresses.
///
/// The memory may change meanwhile. What cannot be walked is counted as such; [`Heap::is_whole`] and
/// [`WalkedArena::is_whole`] say whether anything is missing.
pub fn walk(memory: &impl Memory, layout: &Layout, mappings: &[HeapMapping]) -> Heap {
    arenas::HeapWalk::new(memory, layout, mappings, None, None).walk()
}

/// Does the same, and passes on the blocks in use.
pub fn walk_blocks<'m>(
    memory: &'m impl Memory,
    layout: &'m Layout,
    mappings: &[HeapMapping],
    visitor: Visitor<'m>,
) -> Heap {
    arenas::HeapWalk::new(memory, layout, mappings, None, visitor).walk()
}

/// Does the same, and tells of free pages as it comes by them, the main arena's last. The memory may
/// change meanwhile, and what was read may be torn: whoever acts on them must see for himself, under
/// the arena's lock. Some may be told of twice.
pub fn walk_and_tell<'m>(
    memory: &'m impl Memory,
    layout: &'m Layout,
    mappings: &[HeapMapping],
    found: &'m mut dyn FnMut(FreePages),
) -> Heap {
    arenas::HeapWalk::new(memory, layout, mappings, Some(found), None).walk()
}

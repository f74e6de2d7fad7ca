//! Free pages of an allocator, with what must hold at the moment at which they are dropped.
//!
//! A walk sees a range that is free. Until the pages are dropped, the program may allocate it and write to it. So code in the
//! process takes the guard of the range first, and then verifies every check. Only then are the pages certainly free.

use std::ops::Range;

/// A free range of whole pages that nothing reads before it is written again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Droppable {
    /// Its pages.
    pub pages: Range<u64>,
    /// How many bytes of them are resident.
    pub resident_bytes: u64,
    /// What prevents the program from allocating them meanwhile.
    pub guard: Guard,
    /// What must hold while the guard is held. At most [`MAX_CHECKS`].
    pub checks: Vec<Check>,
}

/// Maximum number of checks of a range.
pub const MAX_CHECKS: usize = 16;

/// What prevents a program from allocating a free range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guard {
    /// A lock of 32 bits at this address, in the protocol of glibc's `lll_lock`: 0 is free, 1 is held, 2 is held and may have
    /// waiters, which wait for its futex.
    Lock(u64),
    /// Bits of a bitmap, a set bit for each free slice. Whoever clears a bit by an atomic operation has the slice.
    Claim {
        /// The address of the word of 64 bits.
        word: u64,
        /// The address of the slice of its lowest bit.
        base: u64,
        /// Bytes of a slice.
        slice_bytes: u64,
        /// The address of a word in which bits say that this word may have free slices; they are set again after the bits of
        /// the slices.
        summary: u64,
        /// These bits.
        summary_bits: u64,
    },
    /// Only one thread allocates it: the pages are dropped in that thread, while it waits outside of the allocator.
    Owner {
        /// The address of the thread's own data, which is the base of its segment register `fs`.
        thread: u64,
        /// The list in which the free block is, if it is one.
        list: Option<List>,
    },
}

/// A list of free blocks, of which each begins with the address of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct List {
    /// The address of the word with the address of the first block.
    pub head: u64,
    /// Where the blocks begin.
    pub start: u64,
    /// Where they end.
    pub end: u64,
    /// The block that must be in the list.
    pub block: u64,
}

/// A condition on an aligned word of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The address of the word.
    pub at: u64,
    /// The bits that are compared.
    pub mask: u64,
    /// Their value.
    pub value: u64,
    /// Whether the bits must have this value, or another.
    pub holds: Holds,
}

/// How a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// The bits must be equal to the value.
    Equal,
    /// They must differ from it.
    Differs,
}

impl Check {
    /// All bits of the word must have this value.
    pub fn word(at: u64, value: u64) -> Self {
        Self::bits(at, u64::MAX, value)
    }

    /// These bits of the word must have this value.
    pub fn bits(at: u64, mask: u64, value: u64) -> Self {
        Self { at, mask, value: value & mask, holds: Holds::Equal }
    }

    /// These bits of the word must have another value.
    pub fn not_bits(at: u64, mask: u64, value: u64) -> Self {
        Self { at, mask, value: value & mask, holds: Holds::Differs }
    }
}

/// Why the free pages of a heap cannot be dropped safely, as the end of a sentence that begins with "because".
pub type Unguarded = &'static str;

/// The sums of a walk over free ranges, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Resident bytes of the ranges that were given.
    pub guarded_bytes: u64,
    /// Free resident bytes without a guard that is known, or in ranges that changed while they were read.
    pub unguarded_bytes: u64,
}

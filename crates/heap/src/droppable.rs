//! Free pages of an allocator, with the conditions under which they may be dropped.
//!
//! A walk finds a free range. Before its pages are dropped, the program may allocate the range and
//! write to it. Code in the process therefore takes the guard of the range first, and then verifies
//! every check. Only then are the pages certainly free.

use std::ops::Range;

/// A free range of whole pages. The contents are not read before they are written again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Droppable {
    /// Its pages.
    pub pages: Range<u64>,
    /// Number of resident bytes in the pages.
    pub resident_bytes: u64,
    /// The guard, which prevents the program from allocating the pages while they are dropped.
    pub guard: Guard,
    /// The conditions to verify while the guard is held. At most [`MAX_CHECKS`].
    pub checks: Vec<Check>,
}

/// Maximum number of checks of a range.
pub const MAX_CHECKS: usize = 16;

/// A mechanism that prevents a program from allocating a free range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Guard {
    /// A lock of 32 bits at this address, in the protocol of glibc's `lll_lock`: 0 is free, 1 is
    /// held, 2 is held and may have waiters on its futex.
    Lock(u64),
    /// Bits of a bitmap, with a set bit for each free slice. A thread that clears a bit by an
    /// atomic operation owns the slice.
    Claim {
        /// The address of the word of 64 bits.
        word: u64,
        /// The address of the slice that belongs to the lowest bit.
        base: u64,
        /// Size of a slice, in bytes.
        slice_bytes: u64,
        /// The address of a word with bits that mark this word as having free slices; they are set
        /// again after the bits of the slices.
        summary: u64,
        /// These bits.
        summary_bits: u64,
    },
    /// The lock of musl's `malloc`, in the protocol of its `__lock`: 0 is free; the highest bit is
    /// set while it is held, and the others count the threads that hold it or wait for it. It stops
    /// the program only if it is held by a thread that musl counts: as long as musl counts one
    /// thread, no thread takes locks.
    MuslLock {
        /// The address of the lock.
        lock: u64,
        /// The address of a word of 64 bits with the state of all locks (`struct __libc`): in byte
        /// 3, whether they are taken, as a signed number; from byte 4 on, the number of threads
        /// besides the first.
        threads: u64,
    },
    /// The process has one thread. That thread drops the pages, while it waits outside of the
    /// allocator.
    OnlyThread,
    /// The range belongs to one thread. That thread drops the pages, while it waits outside of the
    /// allocator.
    Owner {
        /// The address of the thread's control block, which is the base of its segment register
        /// `fs`.
        thread: u64,
        /// The list that contains the free block, if the range is a block.
        list: Option<List>,
    },
}

/// The threads that may drop the free pages of a heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Droppers {
    /// Any thread, also one of another program's making.
    Any,
    /// For each range, the thread that owns it ([`Guard::Owner`]).
    Owners,
    /// A thread of the process that musl counts ([`Guard::MuslLock`]), or its only thread.
    Counted {
        /// The address of musl's word with the number of threads; `None` if it is not known: then
        /// only the only thread ([`Guard::OnlyThread`]).
        threads: Option<u64>,
    },
}

/// A list of free blocks. Each block begins with the address of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct List {
    /// The address of the word that contains the address of the first block.
    pub head: u64,
    /// Lower bound of the addresses of blocks.
    pub start: u64,
    /// Upper bound of the addresses of blocks.
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
    /// The value to compare them with.
    pub value: u64,
    /// Whether the bits must have this value, or a different one.
    pub holds: Holds,
}

/// The kind of comparison of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// The bits must be equal to the value.
    Equal,
    /// They must differ from it.
    Differs,
}

impl Check {
    /// Creates a check that the word has this value.
    pub fn word(at: u64, value: u64) -> Self {
        Self::bits(at, u64::MAX, value)
    }

    /// Creates a check that these bits of the word have this value.
    pub fn bits(at: u64, mask: u64, value: u64) -> Self {
        Self { at, mask, value: value & mask, holds: Holds::Equal }
    }

    /// Creates a check that these bits of the word have a different value.
    pub(crate) fn not_bits(at: u64, mask: u64, value: u64) -> Self {
        Self { at, mask, value: value & mask, holds: Holds::Differs }
    }
}

/// The reason why the free pages of a heap cannot be dropped safely, as the end of a sentence after
/// "because".
pub type Unguarded = &'static str;

/// The reason in a process with other threads than its C library counts. It may pass: the library
/// counts a thread before that exists, and no longer counts one that is about to end.
pub const UNCOUNTED_THREADS: Unguarded =
    "it has other threads than musl counts, and those take no locks";

/// The sums of a walk over free ranges, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Resident bytes of the ranges that the walk has passed on.
    pub guarded_bytes: u64,
    /// Those that are locked, and were not passed on.
    pub locked_bytes: u64,
    /// Free resident bytes without a known guard, or in ranges that changed while they were read.
    pub unguarded_bytes: u64,
}

//! The memory in which blocks share pages, and the rule by which blocks hold a page.
//!
//! A *room* is memory that an allocator cuts into blocks: a stretch of chunks of glibc, a slab of
//! jemalloc, a page of mimalloc, a span of gperftools, an arena of CPython, a group of musl. Its
//! unit is the memory that is returned to the OS as a whole: a page, or the room. Blocks *hold* a
//! unit if they overlap its window. After all blocks that hold a unit are freed, and are in no
//! cache, the allocator or a release can return it, in whatever order they are freed.
//!
//! A walker reports each of its rooms with
//! [`BlockVisitor::room`](crate::blocks::BlockVisitor::room), after the blocks in it.

use std::ops::Range;

use crate::ptmalloc::chunk::{LIST_BYTES, USER_AT};

/// A kind of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoomKind {
    /// Chunks of glibc, from the first of a stretch up to its fenceposts or to the end of its top
    /// chunk.
    GlibcStretch,
    /// A slab of jemalloc.
    JemallocSlab,
    /// A page of mimalloc.
    MimallocPage,
    /// A span of gperftools that is cut into blocks.
    GperftoolsSpan,
    /// An arena of CPython.
    CPythonArena,
    /// A group of slots of musl, with the groups in its slots.
    MuslGroup,
}

/// A room of a heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Its addresses.
    pub range: Range<u64>,
    /// Its kind.
    pub kind: RoomKind,
}

impl RoomKind {
    /// Returns the name of its allocator.
    pub fn allocator(self) -> &'static str {
        match self {
            Self::GlibcStretch => "glibc",
            Self::JemallocSlab => "jemalloc",
            Self::MimallocPage => "mimalloc",
            Self::GperftoolsSpan => "gperftools",
            Self::CPythonArena => "cpython",
            Self::MuslGroup => "musl",
        }
    }

    /// Returns whether the room is its only unit. Otherwise, each page is one.
    pub fn is_one_unit(self) -> bool {
        !matches!(self, Self::GlibcStretch | Self::JemallocSlab)
    }

    /// Returns the number of bytes before a page that belong to its window. In glibc, the fields of
    /// a free chunk that begins there would extend into the page.
    pub fn bytes_before_page(self) -> u64 {
        if self == Self::GlibcStretch { LIST_BYTES } else { 0 }
    }

    /// Returns the distance from the beginning of a block to the address that the program gets.
    pub fn user_at(self) -> u64 {
        if self == Self::GlibcStretch { USER_AT } else { 0 }
    }
}

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

/// What of a room is returned to the OS as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Each of its pages.
    Page,
    /// The room.
    Room,
}

/// Defines the kinds of rooms, each by its allocator and its unit.
macro_rules! room_kinds {
    ($($(#[$doc:meta])* $kind:ident = $allocator:literal, $unit:ident;)*) => {
        /// A kind of room.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RoomKind {
            $($(#[$doc])* $kind,)*
        }

        impl RoomKind {
            const ALL: &[Self] = &[$(Self::$kind),*];

            /// Returns the name of its allocator.
            pub fn allocator(self) -> &'static str {
                match self {
                    $(Self::$kind => $allocator,)*
                }
            }

            fn unit(self) -> Unit {
                match self {
                    $(Self::$kind => Unit::$unit,)*
                }
            }
        }
    };
}

// Heap files contain the place of a kind in this list, so a new one comes last.
room_kinds! {
    /// Chunks of glibc, from the first of a stretch up to its fenceposts or to the end of its top
    /// chunk.
    GlibcStretch = "glibc", Page;
    /// A slab of jemalloc.
    JemallocSlab = "jemalloc", Page;
    /// A page of mimalloc.
    MimallocPage = "mimalloc", Room;
    /// A span of gperftools that is cut into blocks.
    GperftoolsSpan = "gperftools", Room;
    /// An arena of CPython.
    CPythonArena = "cpython", Room;
    /// A group of slots of musl, with the groups in its slots.
    MuslGroup = "musl", Room;
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
    /// Returns its number in files.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// Returns the kind with a number; `None` if there is none.
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns whether the room is its only unit. Otherwise, each page is one.
    pub fn is_one_unit(self) -> bool {
        self.unit() == Unit::Room
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_kind_leads_back_to_it_and_stays_what_it_was_in_older_files() {
        for kind in RoomKind::ALL {
            assert_eq!(RoomKind::of_number(kind.number()), Some(*kind));
        }
        assert_eq!(RoomKind::of_number(RoomKind::ALL.len() as u64), None);
        let first = [0, 1, 2, 3, 4, 5].map(|number| RoomKind::of_number(number).unwrap());
        let allocators = first.map(RoomKind::allocator);
        assert_eq!(allocators, ["glibc", "jemalloc", "mimalloc", "gperftools", "cpython", "musl"]);
    }
}

//! A summary of a heap in a few numbers: its arenas, and the free memory in them.

use serde::{Deserialize, Serialize};

use crate::inspection::Arena;

/// The arenas of one glibc heap, or of the heaps of several processes together. Free blocks are
/// counted by their size, whether their pages are resident or not, so a release does not change
/// these numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapSummary {
    /// Number of arenas.
    pub arenas: u64,
    /// Memory that they obtained from the system, in bytes.
    pub system_bytes: u64,
    /// Free blocks, excluding those in fast bins and the top chunks.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// The largest of them, in bytes.
    pub largest_free_bytes: u64,
    /// Size of the top chunks, in bytes.
    pub top_bytes: u64,
}

impl HeapSummary {
    /// Sums up the arenas of glibc in a process; `None` if it has none.
    pub fn from_arenas(arenas: &[Arena]) -> Option<Self> {
        arenas.iter().filter(|arena| arena.is_of_glibc()).map(Self::from_arena).reduce(Self::join)
    }

    fn from_arena(arena: &Arena) -> Self {
        Self {
            arenas: 1,
            system_bytes: arena.system_bytes,
            free_count: arena.free_count,
            free_bytes: arena.free_bytes,
            largest_free_bytes: arena.largest_free_bytes,
            top_bytes: arena.top_bytes(),
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            arenas: self.arenas + other.arenas,
            system_bytes: self.system_bytes.saturating_add(other.system_bytes),
            free_count: self.free_count.saturating_add(other.free_count),
            free_bytes: self.free_bytes.saturating_add(other.free_bytes),
            largest_free_bytes: self.largest_free_bytes.max(other.largest_free_bytes),
            top_bytes: self.top_bytes.saturating_add(other.top_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspection::{ArenaDetail, GlibcArena};

    #[test]
    fn a_heap_summary_adds_up_arenas_and_takes_the_largest_free_block() {
        let arena = |id, free_bytes, largest_free_bytes| Arena {
            id,
            heaps: 1,
            system_bytes: 1000,
            free_count: 2,
            free_bytes,
            largest_free_bytes,
            detail: ArenaDetail::Glibc(GlibcArena { top_bytes: 10, ..GlibcArena::default() }),
            ..Arena::default()
        };
        assert_eq!(HeapSummary::from_arenas(&[]), None);
        let both = HeapSummary::from_arenas(&[arena(0, 900, 800), arena(1, 300, 200)]);
        let expected = HeapSummary {
            arenas: 2,
            system_bytes: 2000,
            free_count: 4,
            free_bytes: 1200,
            largest_free_bytes: 800,
            top_bytes: 20,
        };
        assert_eq!(both, Some(expected));
    }
}

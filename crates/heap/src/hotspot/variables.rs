//! The ranges of memory that HotSpot's own variables contain.
//!
//! HotSpot describes its variables and types for debuggers in a table (`vmStructs.hpp`), so no
//! version is assumed.

use std::ops::Range;

use crate::memory::{Memory, word};

/// Offsets in an entry of the table, in bytes (`VMStructEntry`; the same since JDK 6): offset of a
/// field in an object, address of a variable.
const OFFSET: u64 = 32;
const ADDRESS: u64 = 40;
/// Maximum offset of a field, in bytes.
const MAX_OFFSET: u64 = 64 << 10;
/// Size of a word of the heap (`HeapWord`), in bytes.
const HEAP_WORD: u64 = 8;

/// The addresses of entries of the table in a process. HotSpot fills in the entries when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variables {
    /// The variable `Universe::_collectedHeap`, a pointer to the heap's structure.
    pub collected_heap: u64,
    /// The field `CollectedHeap::_reserved` of that structure, the reserved range.
    pub reserved: u64,
    /// The field `MemRegion::_start` of a range.
    pub start: u64,
    /// The field `MemRegion::_word_size` of a range.
    pub words: u64,
    /// The variables `CodeCache::_low_bound` and `_high_bound`; absent before JDK 9.
    pub code: Option<[u64; 2]>,
    /// The variables `MetaspaceObj::_shared_metaspace_base` and `_top`, the bounds of the archive
    /// of classes; absent before JDK 12.
    pub archive: Option<[u64; 2]>,
}

/// The heap of Java objects, as HotSpot's variables describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JavaHeap {
    /// It is this reserved range.
    Reserved(Range<u64>),
    /// It has no reserved range. ZGC keeps its heap in a memory file.
    InFile,
}

impl Variables {
    /// Returns the entries of a file that is loaded at an address, from their addresses in the
    /// file; `None` if one of them has no such address.
    pub fn loaded_at(self, load_address: u64) -> Option<Self> {
        let at = |address: u64| load_address.checked_add(address);
        let both = |[low, high]: [u64; 2]| Some([at(low)?, at(high)?]);
        Some(Self {
            collected_heap: at(self.collected_heap)?,
            reserved: at(self.reserved)?,
            start: at(self.start)?,
            words: at(self.words)?,
            code: self.code.and_then(both),
            archive: self.archive.and_then(both),
        })
    }

    /// Returns the heap; `None` if the entries or variables cannot be read, if the heap does not
    /// exist yet, or if they contain no possible range. The caller checks that the process has
    /// mapped the range.
    pub fn heap(&self, memory: &impl Memory) -> Option<JavaHeap> {
        let reserved =
            variable(memory, self.collected_heap)?.checked_add(offset(memory, self.reserved)?)?;
        let field = |entry| word(memory, reserved.checked_add(offset(memory, entry)?)?);
        let (start, words) = (field(self.start)?, field(self.words)?);
        if (start, words) == (0, 0) {
            return Some(JavaHeap::InFile);
        }
        let end = start.checked_add(words.checked_mul(HEAP_WORD)?)?;
        possible(memory, start..end).map(JavaHeap::Reserved)
    }

    /// Returns the code cache and the archive of classes, as far as they can be read, in order of
    /// address.
    pub fn code_and_archive(&self, memory: &impl Memory) -> Vec<Range<u64>> {
        let range = |[low, high]: [u64; 2]| {
            possible(memory, variable(memory, low)?..variable(memory, high)?)
        };
        let mut found: Vec<Range<u64>> =
            [self.code, self.archive].into_iter().flatten().filter_map(range).collect();
        found.sort_unstable_by_key(|range| range.start);
        found
    }
}

/// Returns the value of the variable of an entry.
fn variable(memory: &impl Memory, entry: u64) -> Option<u64> {
    word(memory, word(memory, entry.checked_add(ADDRESS)?)?)
}

/// Returns the offset of the field of an entry.
pub(super) fn offset(memory: &impl Memory, entry: u64) -> Option<u64> {
    word(memory, entry.checked_add(OFFSET)?).filter(|offset| *offset <= MAX_OFFSET)
}

/// Returns a range if it consists of whole pages.
fn possible(memory: &impl Memory, range: Range<u64>) -> Option<Range<u64>> {
    let page = memory.page_bytes();
    let are_pages = range.start.is_multiple_of(page) && range.end.is_multiple_of(page);
    (are_pages && 0 < range.start && range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;

    const TABLE: u64 = 0x1000;
    /// Address of the heap's structure, and offset of the reserved range in it.
    const HEAP: u64 = 0x1800;
    const RESERVED: u64 = 0x20;
    const VARIABLES: Variables = Variables {
        collected_heap: TABLE,
        reserved: TABLE + 48,
        start: TABLE + 96,
        words: TABLE + 144,
        code: Some([TABLE + 192, TABLE + 240]),
        archive: Some([TABLE + 288, TABLE + 336]),
    };

    /// Returns a table whose variables have these values, and memory with these words.
    fn memory(values: [u64; 5], words: &[(u64, u64)]) -> Saved {
        let mut all = vec![(TABLE + 48 + OFFSET, RESERVED), (TABLE + 144 + OFFSET, 8)];
        for (place, value) in values.into_iter().enumerate() {
            let entry = if place == 0 { TABLE } else { TABLE + 144 + 48 * place as u64 };
            let variable = 0x1700 + 8 * place as u64;
            all.extend([(entry + ADDRESS, variable), (variable, value)]);
        }
        let mut bytes = vec![0; 4096];
        for (at, word) in all.iter().chain(words) {
            bytes[(at - TABLE) as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        Saved::new(vec![(TABLE, bytes)])
    }

    fn heap(start: u64, words: u64) -> Option<JavaHeap> {
        let words = [(HEAP + RESERVED, start), (HEAP + RESERVED + 8, words)];
        VARIABLES.heap(&memory([HEAP, 0, 0, 0, 0], &words))
    }

    #[test]
    fn the_reserved_range_of_the_heap_is_found_by_the_variables() {
        let reserved = JavaHeap::Reserved(0xfc00_0000..0x1_0000_0000);
        assert_eq!(heap(0xfc00_0000, 8 << 20), Some(reserved));
        assert_eq!(heap(0, 0), Some(JavaHeap::InFile));
        assert_eq!(VARIABLES.heap(&memory([0; 5], &[])), None, "before it exists");
    }

    #[test]
    fn impossible_ranges_are_rejected() {
        let no_pages = heap(0xfc00_0010, 512);
        let overflows = [heap(0xfc00_0000, u64::MAX), heap(u64::MAX - 4095, 512)];
        assert!(std::iter::once(&no_pages).chain(&overflows).all(Option::is_none));
        let at = |address| VARIABLES.heap(&memory([address, 0, 0, 0, 0], &[]));
        assert_eq!([at(u64::MAX), at(0x9000)], [None, None]);
        let far = memory([HEAP, 0, 0, 0, 0], &[(TABLE + 48 + OFFSET, u64::MAX)]);
        assert_eq!(VARIABLES.heap(&far), None);
    }

    #[test]
    fn code_and_archive_are_found_in_order_without_impossible_ranges() {
        let bounds = [0, 0x20_0000, 0x30_0000, 0x4000, 0x8000];
        let found = VARIABLES.code_and_archive(&memory(bounds, &[]));
        assert_eq!(found, [0x4000..0x8000, 0x20_0000..0x30_0000]);
        let reversed = [0, 0x30_0000, 0x20_0000, 0, 0];
        assert!(VARIABLES.code_and_archive(&memory(reversed, &[])).is_empty());
    }
}

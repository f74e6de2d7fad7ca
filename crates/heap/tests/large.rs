//! A heap as large as one in production, synthesised as it is read.

use std::cell::Cell;
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{HeapMapping, Layout, walk};

const HEAP: u64 = 64 << 20;
const ARENAS: u64 = 96;
const HEAPS_OF_EACH: u64 = 22;
/// Number of pairs in each heap: a used block of 48 bytes, followed by a free one.
const PAIRS: u64 = 242;
const USED: u64 = 48;
const FREE: u64 = (HEAP - FIRST - 0x1000) / PAIRS / 16 * 16 - USED;
/// Start of the pairs in each heap, and end of the last pair, in bytes.
const FIRST: u64 = 0x1000;
const LAST: u64 = FIRST + PAIRS * (USED + FREE);
/// Size of the head before the bins of an arena, up to 2.42, and of the head of a heap before the
/// arena, in bytes.
const ARENA_HEAD: u64 = 112;
const HEAP_HEAD: u64 = 48;
/// Place of `next`, after the bins of an arena, in bytes.
const NEXT: u64 = ARENA_HEAD + 127 * 16 + 16;
const ARENA: u64 = NEXT + 40;
const MAIN: u64 = 0x5555_0000_0000;
const BASE: u64 = 0x7000_0000_0000;

/// Synthetic memory: every page is resident, and none is stored.
struct MadeUp {
    reads: Cell<u64>,
}

impl MadeUp {
    fn arena(number: u64) -> u64 {
        BASE + number * HEAPS_OF_EACH * HEAP + HEAP_HEAD
    }

    fn ring(number: u64) -> u64 {
        if number < ARENAS { Self::arena(number) } else { MAIN }
    }

    fn word(address: u64) -> u64 {
        if (MAIN..MAIN + ARENA).contains(&address) {
            return Self::arena_word(address - MAIN, 0, 0, 0);
        }
        if address < BASE {
            return 0;
        }
        let number = (address - BASE) / HEAP;
        let (arena, heap) = (number / HEAPS_OF_EACH, number % HEAPS_OF_EACH);
        let start = BASE + number * HEAP;
        let at = address - start;
        let first = if heap == 0 { HEAP_HEAD + ARENA } else { HEAP_HEAD }.next_multiple_of(16);
        let is_last = heap + 1 == HEAPS_OF_EACH;
        match at {
            0 => Self::arena(arena),
            8 if heap > 0 => start - HEAP,
            16 => HEAP,
            HEAP_HEAD.. if heap == 0 && at < HEAP_HEAD + ARENA => {
                let top = BASE + (arena + 1) * HEAPS_OF_EACH * HEAP - HEAP + LAST;
                Self::arena_word(at - HEAP_HEAD, top, Self::ring(arena + 1), HEAPS_OF_EACH * HEAP)
            }
            // One used block before the pairs, and one after them.
            _ if at == first + 8 => (FIRST - first) | 1,
            FIRST..LAST => match (at - FIRST) % (USED + FREE) {
                0 if at > FIRST => FREE,
                8 => USED | u64::from(at == FIRST + 8),
                x if x == USED + 8 => FREE | 1,
                _ => 0,
            },
            LAST => FREE,
            x if x == LAST + 8 && is_last => HEAP - LAST,
            x if x == LAST + 8 => HEAP - 32 - LAST,
            x if x == HEAP - 24 && !is_last => 16 | 1,
            x if x == HEAP - 8 && !is_last => 1,
            _ => 0,
        }
    }

    fn arena_word(at: u64, top: u64, next: u64, system: u64) -> u64 {
        match at {
            x if x == ARENA_HEAD - 16 => top,
            NEXT if top == 0 => Self::ring(0),
            NEXT => next,
            x if x == NEXT + 24 => system,
            _ => 0,
        }
    }
}

impl Memory for MadeUp {
    fn page_bytes(&self) -> u64 {
        4096
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.reads.set(self.reads.get() + 1);
        for (number, bytes) in buffer.chunks_mut(8).enumerate() {
            let word = Self::word(address + number as u64 * 8).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        buffer.len()
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let all = [MAIN..MAIN + 0x1000, BASE..BASE + ARENAS * HEAPS_OF_EACH * HEAP];
        let cut = |r: &Range<u64>| r.start.max(range.start)..r.end.min(range.end);
        all.iter().map(cut).filter(|r| r.start < r.end).collect()
    }
}

#[test]
fn half_a_million_free_blocks_in_96_arenas_are_counted_without_reading_them() {
    let memory = MadeUp { reads: Cell::new(0) };
    let arenas = std::iter::once(MAIN).chain((0..ARENAS).map(MadeUp::arena)).collect();
    let layout = Layout { arenas, head_bytes: ARENA_HEAD, settings: None };
    let mappings: Vec<_> = (0..ARENAS)
        .map(|n| BASE + n * HEAPS_OF_EACH * HEAP)
        .map(|at| HeapMapping { range: at..at + HEAPS_OF_EACH * HEAP, is_brk: false })
        .collect();
    let heap = walk(&memory, &layout, &mappings);
    assert!(heap.arenas.iter().all(lowtide_heap::ptmalloc::WalkedArena::is_whole));
    let total = heap.total();
    let blocks = ARENAS * HEAPS_OF_EACH * PAIRS;
    assert_eq!(total.free_count, blocks);
    assert_eq!(total.free_bytes, blocks * FREE);
    assert!(
        blocks >= 511_104 && total.free_bytes > 137_000_000_000,
        "{blocks} {}",
        total.free_bytes
    );
    // All but one or two pages of each block.
    assert!(total.trim_bytes > total.free_bytes - blocks * 8192);
    assert_eq!(heap.owners().total(), ARENAS * HEAPS_OF_EACH * HEAP);
    // The head of each block must be read separately.
    assert!(memory.reads.get() < 3 * blocks, "{}", memory.reads.get());
}

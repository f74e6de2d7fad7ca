//! Walks of memory that a hostile program has written: the number of resident bytes bounds each
//! walk, which counts each byte once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::Cell;
use std::ops::Range;
use std::slice;
use std::time::Duration;

use lowtide_heap::memory::{Memory, Saved};
use lowtide_heap::ptmalloc::{HeapMapping, Layout, walk};
use lowtide_heap::residency::Residency;
use lowtide_heap::{gperftools, jemalloc, mimalloc, musl, pymalloc, ruby, zend};
use proptest::prelude::*;

/// Addresses of the data of the C library, the main heap and the heaps of threads.
const DATA: u64 = 0x7f00_0000_0000;
const BRK: u64 = 0x5555_0000_0000;
const THREADS: u64 = 0x7e00_0000_0000;
const PAGE: u64 = Saved::PAGE;

/// Maximum number of reads of any heap, of which a quarter of a million are rereads, and maximum
/// number of additional reads for each resident 16 bytes: one in each of at most ten walks of an
/// arena, and some for lists.
const READS: u64 = 300_000;
const READS_OF_16_BYTES: u64 = 12;

/// Memory that counts reads, and can change the data between reads.
struct Hostile {
    memory: Saved,
    reads: Cell<u64>,
    changes: bool,
}

impl Hostile {
    fn resident_bytes(&self) -> u64 {
        self.memory.blocks.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

impl Memory for Hostile {
    fn page_bytes(&self) -> u64 {
        PAGE
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let count = self.reads.get() + 1;
        self.reads.set(count);
        let length = self.memory.read(address, buffer);
        if self.changes && count.is_multiple_of(7) && length > 0 {
            let place = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % length;
            buffer[place] ^= 1 << (count % 8);
        }
        length
    }

    fn read_resident(&self, address: u64, buffer: &mut [u8]) -> usize {
        let range = address..address + buffer.len() as u64;
        let known: u64 = self.resident(range.clone()).iter().map(|run| run.end - run.start).sum();
        assert_eq!(known, buffer.len() as u64, "{range:x?} is not resident, and would become so");
        self.read(address, buffer)
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.memory.resident(range)
    }

    fn wait(&self, _: Duration) -> bool {
        true
    }
}

/// Returns a word that is relevant to a walk: a size with flags, an address in the memory, or an
/// arbitrary value.
fn word() -> impl Strategy<Value = u64> {
    let place = |base: u64, bytes: u64| (0..bytes / 16).prop_map(move |n| base + n * 16);
    prop_oneof![
        8 => (0_u64..80, 0_u64..8).prop_map(|(n, flags)| (n * 16) | flags),
        2 => (0_u64..1 << 16, 0_u64..8).prop_map(|(n, flags)| (n * 16) | flags),
        4 => place(BRK, 64 * PAGE),
        2 => place(THREADS, 64 * PAGE),
        1 => (0_u64..4).prop_map(|n| THREADS + n * (64 << 20)),
        1 => place(DATA, 4 * PAGE),
        1 => Just(0),
        1 => any::<u64>(),
    ]
}

/// Returns words, of which a few are repeated everywhere: rings, chunks of one size, lists that
/// lead into each other.
fn bytes(pages: Range<u64>) -> impl Strategy<Value = Vec<u8>> {
    let words = proptest::collection::vec(word(), 1..64);
    (pages, words, any::<u64>(), 0_u32..4).prop_map(|(pages, words, seed, order)| {
        let mut state = seed | 1;
        let count = pages * PAGE / 8;
        let of = |place: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let chosen = if order == 0 { place } else { state } % words.len() as u64;
            words[usize::try_from(chosen).unwrap()]
        };
        (0..count).map(of).flat_map(u64::to_le_bytes).collect()
    })
}

/// Returns a heap with the layout of a glibc, in which every word is arbitrary.
fn heap() -> impl Strategy<Value = (Saved, Layout, Vec<HeapMapping>)> {
    let threads = proptest::collection::vec(bytes(1..32), 0..4);
    (bytes(1..4), bytes(1..96), threads, prop_oneof![Just(24_u64), Just(112)]).prop_map(
        |(data, brk, threads, head_bytes)| {
            let mut arenas = vec![DATA];
            let mut mappings = vec![mapping(BRK, brk.len(), true)];
            let mut blocks = vec![(BRK, brk)];
            for (number, bytes) in threads.into_iter().enumerate() {
                let at = THREADS + number as u64 * (64 << 20);
                arenas.push(at + 48);
                mappings.push(mapping(at, bytes.len(), false));
                blocks.push((at, bytes));
            }
            blocks.push((DATA, data));
            blocks.sort_by_key(|block| block.0);
            mappings.sort_by_key(|mapping| mapping.range.start);
            (Saved::new(blocks), Layout { arenas, head_bytes, settings: None }, mappings)
        },
    )
}

fn mapping(at: u64, bytes: usize, is_brk: bool) -> HeapMapping {
    HeapMapping { range: at..at + bytes as u64, is_brk }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_of_arbitrary_bytes_stays_within_its_read_limit(
        (memory, layout, mappings) in heap(),
        changes in any::<bool>(),
    ) {
        let memory = Hostile { memory, reads: Cell::new(0), changes };
        let heap = walk(&memory, &layout, &mappings);
        let most = READS + memory.resident_bytes() / 16 * READS_OF_16_BYTES;
        prop_assert!(memory.reads.get() <= most, "{} reads", memory.reads.get());
        let mut residency = Residency::new(&memory);
        let resident: u64 = heap.areas.iter().map(|area| residency.bytes(area.clone())).sum();
        prop_assert_eq!(heap.owners().total(), resident);
    }

    #[test]
    fn a_search_for_arenas_in_arbitrary_bytes_stays_within_its_read_limit(
        (memory, _, _) in heap(),
        changes in any::<bool>(),
    ) {
        let memory = Hostile { memory, reads: Cell::new(0), changes };
        let data: Vec<_> =
            memory.memory.blocks.iter().map(|(at, b)| *at..*at + b.len() as u64).collect();
        Layout::find(&memory, &data);
        prop_assert!(memory.reads.get() <= READS, "{} reads", memory.reads.get());
    }

    #[test]
    fn a_search_for_other_allocators_in_arbitrary_bytes_stays_within_its_read_limit(
        (memory, _, _) in heap(),
        changes in any::<bool>(),
    ) {
        let memory = Hostile { memory, reads: Cell::new(0), changes };
        let ranges: Vec<_> =
            memory.memory.blocks.iter().map(|(at, b)| *at..*at + b.len() as u64).collect();
        // The same bytes as zeroed data, and as whole regions around them.
        let regions = [BRK..BRK + (64 << 20), THREADS..THREADS + (1 << 31)];
        let finders: [&dyn Fn() -> Vec<Range<u64>>; 8] = [
            &|| jemalloc::areas(&memory, &ranges, &regions),
            &|| gperftools::spans(&memory, &ranges, &regions),
            &|| mimalloc::areas(&memory, &regions),
            &|| pymalloc::pools(&memory, &regions),
            &|| {
                let found = pymalloc::Layout::find(&memory, &ranges, &regions, &regions);
                found.map_or(Vec::new(), |layout| pymalloc::walk(&memory, &layout, &regions, None).areas)
            },
            &|| ruby::pages(&memory, &regions),
            &|| zend::chunks(&memory, &regions),
            &|| {
                let found = musl::Layout::find(&memory, &ranges);
                found.map_or(Vec::new(), |layout| musl::walk(&memory, &layout, &regions, None).areas)
            },
        ];
        for find in finders {
            memory.reads.set(0);
            let found = find();
            let most = READS + memory.resident_bytes() / 8 * READS_OF_16_BYTES;
            prop_assert!(memory.reads.get() <= most, "{} reads", memory.reads.get());
            prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start), "{found:x?}");
            let is_inside = |r: &Range<u64>| regions.iter().any(|all| all.start <= r.start && r.end <= all.end);
            prop_assert!(found.iter().all(is_inside), "{found:x?}");
        }
    }
}

/// Pointers in data lead to 3 MiB that are no part of a jemalloc: as in the data of many programs,
/// whose words are numbers and text.
#[test]
fn a_search_for_jemalloc_leaves_memory_at_the_first_word_that_its_tree_cannot_have() {
    const POINTERS: u64 = 2048;
    let data = (0..POINTERS).flat_map(|place| (BRK + place * 64).to_le_bytes()).collect();
    let other = 1_u64.to_le_bytes().repeat((3 << 20) / 8);
    let memory = Hostile {
        memory: Saved::new(vec![(BRK, other), (DATA, data)]),
        reads: Cell::new(0),
        changes: false,
    };
    let (data, region) = (DATA..DATA + POINTERS * 8, BRK..BRK + (3 << 20));
    assert_eq!(jemalloc::areas(&memory, slice::from_ref(&data), slice::from_ref(&region)), []);
    // One for each of the four layouts, and few for the rest.
    assert!(memory.reads.get() < POINTERS * 5, "{} reads", memory.reads.get());
}

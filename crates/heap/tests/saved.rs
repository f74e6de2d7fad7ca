//! Saved heaps of several glibc versions, intact and damaged. They are created by `cargo run -p
//! lowtide-probe --example save_heaps`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lowtide_heap::memory::{ADDRESS_END, Memory, Saved};
use lowtide_heap::ptmalloc::{Class, Heap, Layout, walk};
use lowtide_heap::residency::Residency;
use lowtide_heap::saved::SavedHeap;
use proptest::prelude::*;
use serde_json::Value;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/saved/ptmalloc")
}

fn names() -> Vec<String> {
    let entries = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let heaps = entries.filter(|path| path.extension().is_some_and(|e| e == "heap"));
    let mut names: Vec<_> =
        heaps.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    names
}

fn load(name: &str) -> SavedHeap {
    let bytes = std::fs::read(directory().join(format!("{name}.heap"))).unwrap();
    SavedHeap::from_bytes(&bytes).unwrap()
}

fn walked(saved: &SavedHeap) -> Option<Heap> {
    let layout = Layout::find(&saved.memory, &saved.data)?;
    Some(walk(&saved.memory, &layout, &saved.mappings))
}

#[test]
fn walked_heaps_match_the_statistics_of_their_allocator() {
    for name in names() {
        let text = std::fs::read_to_string(directory().join(format!("{name}.json"))).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let saved = load(&name);
        let heap = walked(&saved).expect("an arena");
        assert!(heap.is_whole(), "{name}");
        let arenas = expected["arenas"].as_array().unwrap();
        assert_eq!(heap.arenas.len(), arenas.len(), "{name}");
        for (mine, theirs) in heap.arenas.iter().zip(arenas) {
            let figure = |key: &str| theirs[key].as_u64().unwrap();
            assert_eq!(mine.system_bytes, figure("system_bytes"), "{name}");
            assert_eq!(mine.tally.fast_count, figure("fast_count"), "{name}");
            assert_eq!(mine.tally.fast_bytes, figure("fast_bytes"), "{name}");
            assert_eq!(mine.tally.free_count + 1, figure("rest_count"), "{name}");
            let over = figure("rest_bytes") - mine.tally.free_bytes - mine.tally.top_bytes;
            assert!(over == 0 || over == mine.tally.free_count, "{name}: {over}");
        }
        adds_up(&heap, &saved.memory);
        assert_eq!(heap.release_bytes(), heap.owners().reclaimable_bytes, "{name}");
        assert_eq!(heap.mmapped.count, expected["mmapped_count"].as_u64().unwrap(), "{name}");
        assert_eq!(heap.trim_bytes(), expected["returned_bytes"].as_u64().unwrap(), "{name}");
    }
}

#[test]
fn free_and_used_blocks_are_counted_in_the_classes_of_their_sizes() {
    for name in names() {
        let total = walked(&load(&name)).unwrap().total();
        let count = |classes: &[Class]| {
            classes.iter().fold((0, 0), |sum, c| (sum.0 + c.count, sum.1 + c.bytes))
        };
        assert_eq!(count(&total.free_classes), (total.free_count, total.free_bytes), "{name}");
        assert_eq!(count(&total.used_classes), (total.used_count, total.used_bytes), "{name}");
        for (power, class) in total.free_classes.iter().enumerate().filter(|(_, c)| c.count > 0) {
            let mean = class.bytes / class.count;
            let (least, beyond) = Class::bounds(power);
            let is_in = mean >= least && beyond.is_none_or(|beyond| mean < beyond);
            assert!(is_in, "{name}: {power} {class:?}");
        }
    }
}

#[test]
fn a_corrupted_part_is_reported_and_the_rest_is_walked() {
    for name in names().iter().filter(|name| name.ends_with("log-uniform")) {
        let mut saved = load(name);
        let before = walked(&saved).unwrap();
        let area = before.areas.iter().max_by_key(|area| area.end - area.start).unwrap();
        let middle = area.start + (area.end - area.start) / 2;
        let (start, bytes) =
            saved.memory.blocks.iter_mut().rfind(|(start, _)| *start <= middle).unwrap();
        let place = (middle - *start) as usize;
        bytes[place..place + (256 << 10)].fill(0xff);
        let after = walked(&saved).unwrap();
        assert!(!after.is_whole(), "{name}");
        assert_eq!(after.arenas.iter().filter(|a| !a.is_whole()).count(), 1, "{name}");
        let (before, after) = (before.total(), after.total());
        assert!((256 << 10..1 << 20).contains(&after.unwalked_bytes), "{name}: {after:?}");
        assert!(after.used_count > before.used_count / 2, "{name}: {after:?}");
        adds_up(&walked(&saved).unwrap(), &saved.memory);
    }
}

/// Memory in which a thread is in the middle of a change, and must run several times to complete
/// it.
struct InTheMiddle {
    now: Saved,
    then: Saved,
    turns: Cell<u32>,
}

impl Memory for InTheMiddle {
    fn page_bytes(&self) -> u64 {
        self.now.page_bytes()
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let memory = if self.turns.get() > 0 { &self.now } else { &self.then };
        memory.read(address, buffer)
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.now.resident(range)
    }

    fn wait(&self, _: Duration) -> bool {
        self.turns.set(self.turns.get().saturating_sub(1));
        true
    }
}

#[test]
fn a_walk_waits_for_a_thread_to_finish_a_change() {
    for name in names().iter().filter(|name| name.ends_with("log-uniform")) {
        let saved = load(name);
        let whole = walked(&saved).unwrap();
        let area = whole.areas.iter().max_by_key(|area| area.end - area.start).unwrap();
        let middle = area.start + (area.end - area.start) / 2;
        let mut now = saved.memory.clone();
        let (start, bytes) = now.blocks.iter_mut().rfind(|(start, _)| *start <= middle).unwrap();
        bytes[(middle - *start) as usize..][..256 << 10].fill(0xff);
        let memory = InTheMiddle { now, then: saved.memory.clone(), turns: Cell::new(3) };
        let layout = Layout::find(&memory, &saved.data).unwrap();
        let heap = walk(&memory, &layout, &saved.mappings);
        assert_eq!(memory.turns.get(), 0, "{name}");
        assert!(heap.is_whole(), "{name}");
        assert_eq!(heap.total(), whole.total(), "{name}");
    }
}

/// Checks that the rows by owner are disjoint and complete.
fn adds_up(heap: &Heap, memory: &impl Memory) {
    let mut residency = Residency::new(memory);
    let resident: u64 = heap.areas.iter().map(|area| residency.bytes(area.clone())).sum();
    assert_eq!(heap.owners().total(), resident);
}

/// Damage to a heap: overwritten words, missing pages, and shortened mappings.
#[derive(Debug, Clone)]
enum Damage {
    Word { at: prop::sample::Index, value: u64 },
    Flip { at: prop::sample::Index, bit: u8 },
    Page { at: prop::sample::Index },
    HeapMapping { at: prop::sample::Index, bytes: u64 },
}

fn damage() -> impl Strategy<Value = Damage> {
    let value = prop_oneof![
        any::<u64>(),
        0_u64..1 << 20,
        Just(0),
        Just(u64::MAX),
        Just(u64::MAX - 15),
        (0..ADDRESS_END).prop_map(|v| v & !15),
    ];
    let at = any::<prop::sample::Index>;
    prop_oneof![
        8 => (at(), value).prop_map(|(at, value)| Damage::Word { at, value }),
        8 => (at(), 0_u8..64).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        1 => at().prop_map(|at| Damage::Page { at }),
        1 => (at(), 0_u64..1 << 22).prop_map(|(at, bytes)| Damage::HeapMapping { at, bytes }),
    ]
}

/// Returns the places of nonzero words: most words of a saved heap are zero.
fn words(saved: &SavedHeap) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    for (number, (_, block)) in saved.memory.blocks.iter().enumerate() {
        let words = block.chunks_exact(8).enumerate();
        let set = words.filter(|(_, w)| w.iter().any(|b| *b != 0) && w != &[0x5a; 8]);
        places.extend(set.map(|(word, _)| (number, word * 8)));
    }
    places
}

fn apply(saved: &mut SavedHeap, words: &[(usize, usize)], damage: &Damage) {
    let mut change = |at: &prop::sample::Index, f: &dyn Fn(u64) -> u64| {
        let (block, place) = words[at.index(words.len())];
        if let Some(bytes) = saved.memory.blocks[block].1.get_mut(place..place + 8) {
            let word = u64::from_le_bytes(bytes.try_into().unwrap());
            bytes.copy_from_slice(&f(word).to_le_bytes());
        }
    };
    match damage {
        Damage::Word { at, value } => change(at, &|_| *value),
        Damage::Flip { at, bit } => change(at, &|word| word ^ (1 << bit)),
        Damage::Page { at } => {
            // Everything after a place in its block is missing.
            let (block, place) = words[at.index(words.len())];
            saved.memory.blocks[block].1.truncate(place / 4096 * 4096);
        }
        Damage::HeapMapping { at, bytes } => {
            let place = at.index(saved.mappings.len());
            let range = &mut saved.mappings[place].range;
            range.end = range.end.saturating_sub(*bytes).max(range.start);
        }
    }
}

/// Returns the number of damaged heaps to try: few by default, more with `PROPTEST_CASES`.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_walk_of_a_damaged_heap_terminates_and_adds_up(
        heap in any::<prop::sample::Index>(),
        damages in proptest::collection::vec(damage(), 1..12),
    ) {
        let names = names();
        let name = &names[heap.index(names.len())];
        let mut saved = load(name);
        let words = words(&saved);
        for damage in &damages {
            apply(&mut saved, &words, damage);
        }
        if let Some(heap) = walked(&saved) {
            // Whatever the result, no byte is counted twice.
            adds_up(&heap, &saved.memory);
        }
    }
}

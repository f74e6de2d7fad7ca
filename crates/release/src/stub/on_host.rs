//! Runs the code of targets, compiled for this machine, over saved heaps at their own addresses:
//! intact, damaged, changed since the walk, and with wrong operations.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::collections::HashSet;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lowtide_heap::droppable_heap::{DroppableHeap, FreeRange};
use lowtide_heap::guarded::{GuardedHeap, Module};
use lowtide_heap::layout::{HeapLayout, Places};
use lowtide_heap::memory::{Memory, Saved, word};
use lowtide_heap::ptmalloc::{Heap, Layout, Links, fast_links, walk, walk_and_visit};
use lowtide_heap::saved::SavedHeap;
use lowtide_model::allocator_kind::AllocatorKind;

use super::Op;
use super::contract::SlotWords;
use crate::plan::Batch;
use crate::releasable;
use crate::releasable::ReleasableHeap;

const PAGE: u64 = Saved::PAGE;
/// Alignment of the heaps of thread arenas.
const HEAP_MAX: u64 = 64 << 20;
const PREV_INUSE: u64 = 1;

/// The compiled program. Dropping it removes its directory.
struct Stub {
    _home: tempfile::TempDir,
    program: PathBuf,
}

/// The results of a run.
struct Done {
    returned: u64,
    skipped: u64,
    busy: u64,
    consolidated: u64,
    drops: Vec<Range<u64>>,
    /// The heap afterwards.
    memory: Saved,
}

impl Stub {
    /// Compiles the build for the heap of glibc.
    fn new() -> Self {
        Self::build(&[])
    }

    /// Compiles the build for the heaps of other allocators.
    fn guarded() -> Self {
        Self::build(&["-DLOWTIDE_GUARDED"])
    }

    fn build(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("stub_on_host");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stub_on_host.c");
        let source = source.display().to_string();
        // At this address it overlaps no heap: some were saved from programs at the usual address.
        let place = "-Wl,-Ttext-segment=0x10000000";
        let numbers = format!("-I{}/stub/x86_64", env!("CARGO_MANIFEST_DIR"));
        let all = [&numbers, "-O1", "-static", "-no-pie", place, "-fno-strict-aliasing", &source];
        lowtide_testing::compile(&program, all.iter().chain(flags));
        Self { _home: home, program }
    }

    /// Runs operations on a heap. The code must terminate, and touch only the heap.
    fn run(&self, memory: &Saved, layout: &Layout, links: Links, ops: &[SlotWords]) -> Done {
        let words = [layout.arenas[0], layout.head_bytes, (links == Links::Mixed).into()];
        self.run_with(memory, words, ops)
    }

    /// Runs operations with the main arena, the offset of its bins, and whether links are mixed.
    fn run_with(&self, memory: &Saved, words: [u64; 3], ops: &[SlotWords]) -> Done {
        let mut input = Vec::new();
        let mut put = |word: u64| input.extend(word.to_le_bytes());
        words.into_iter().for_each(&mut put);
        put(memory.blocks.len() as u64);
        put(ops.len() as u64);
        for (at, bytes) in &memory.blocks {
            put(*at);
            put(bytes.len() as u64);
        }
        ops.iter().flatten().for_each(|word| input.extend(word.to_le_bytes()));
        memory.blocks.iter().for_each(|(_, bytes)| input.extend_from_slice(bytes));
        /// Maximum number of attempts: the kernel may place the program's own mappings over the
        /// heap.
        const MAX_ATTEMPTS: usize = 5;
        for _ in 0..MAX_ATTEMPTS {
            let mut child = Command::new(&self.program)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            // It reads everything before it writes. If it ends early, its exit code shows this.
            let _ = stdin.write_all(&input);
            drop(stdin);
            let mut output = Vec::new();
            child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
            let status = child.wait().unwrap();
            match status.code() {
                Some(0) => return Done::parse(&output, memory),
                Some(4) => panic!("the code has touched unmapped memory"),
                Some(5) => {}
                _ => panic!("{status}"),
            }
        }
        panic!("a block of the heap cannot be mapped");
    }
}

impl Done {
    fn parse(output: &[u8], before: &Saved) -> Self {
        let (head, mut rest) = output.split_at(40);
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
        };
        let head = words(head);
        let (drops, tail) = rest.split_at(head[4] as usize * 16);
        rest = tail;
        let drops = words(drops).chunks_exact(2).map(|drop| drop[0]..drop[0] + drop[1]).collect();
        let mut memory = Saved::default();
        for (at, bytes) in &before.blocks {
            let (block, tail) = rest.split_at(bytes.len());
            memory.blocks.push((*at, block.to_vec()));
            rest = tail;
        }
        assert!(rest.is_empty());
        Self {
            returned: head[0],
            skipped: head[1],
            busy: head[2],
            consolidated: head[3],
            drops,
            memory,
        }
    }
}

/// A saved heap, its free pages, and the operations that drop them.
struct HostHeap {
    name: String,
    saved: SavedHeap,
    layout: Layout,
    heap: Heap,
    links: Links,
    /// Free whole pages, sorted.
    free: Vec<Range<u64>>,
    ops: Vec<Op>,
}

fn walked(memory: &Saved, saved: &SavedHeap, layout: &Layout) -> (Heap, Vec<Range<u64>>, Vec<Op>) {
    let (mut free, mut ops, mut batch) = (Vec::new(), Vec::new(), Batch::default());
    let mut submit = |part: &[Op]| {
        ops.extend_from_slice(part);
        Ok(())
    };
    let heap = walk_and_visit(memory, layout, &saved.mappings, &mut |found| {
        free.push(found.pages.clone());
        batch.add(&FreeRange::Chunk(found), memory, &mut submit).unwrap();
    });
    batch.flush(&mut submit).unwrap();
    free.sort_by_key(|pages| pages.start);
    (heap, free, ops)
}

fn slots(ops: &[Op]) -> Vec<SlotWords> {
    ops.iter().flat_map(Op::slots).collect()
}

fn subjects() -> Vec<HostHeap> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../heap/tests/saved/ptmalloc");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let heaps = files.filter(|path| path.extension().is_some_and(|e| e == "heap"));
    let subjects: Vec<HostHeap> = heaps
        .map(|path| {
            let saved = SavedHeap::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
            let layout = Layout::find(&saved.memory, &saved.data).unwrap();
            let (heap, free, ops) = walked(&saved.memory, &saved, &layout);
            let links = fast_links(&saved.memory, &layout).unwrap_or(Links::Plain);
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            HostHeap { name, saved, layout, heap, links, free, ops }
        })
        .collect();
    assert!(subjects.len() >= 15);
    subjects
}

impl HostHeap {
    fn run(&self, stub: &Stub, memory: &Saved, ops: &[Op]) -> Done {
        stub.run(memory, &self.layout, self.links, &slots(ops))
    }

    /// Runs operations, and asserts that only free pages were dropped and nothing else has changed.
    fn run_and_check(&self, stub: &Stub, memory: &Saved, ops: &[SlotWords]) -> Done {
        let done = stub.run(memory, &self.layout, self.links, ops);
        for range in &done.drops {
            assert!(self.is_free(range), "{}: {range:x?} is in use", self.name);
        }
        let mut expected = memory.clone();
        set_to_zero(&mut expected, &done.drops);
        assert!(done.memory.blocks == expected.blocks, "{}", self.name);
        done
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        let place = self.free.partition_point(|pages| pages.start <= range.start);
        let pages = place.checked_sub(1).map(|place| &self.free[place]);
        pages.is_some_and(|pages| range.start < range.end && range.end <= pages.end)
    }

    /// Returns the allocated blocks as the program sees them: from the end of the chunk's head to
    /// the start of the next head, without those in fast bins. Arenas in several parts are skipped.
    fn in_use(&self) -> Vec<Range<u64>> {
        let (memory, layout) = (&self.saved.memory, &self.layout);
        let word = |at: u64| word(memory, at).unwrap();
        let mut found = Vec::new();
        for arena in &layout.arenas {
            let mut fast = HashSet::new();
            for bin in layout.fast_bins(*arena).unwrap_or_default().step_by(8) {
                let mut chunk = word(bin);
                while chunk != 0 {
                    fast.insert(chunk);
                    let key = if self.links == Links::Mixed { (chunk + 16) >> 12 } else { 0 };
                    chunk = word(chunk + 16) ^ key;
                }
            }
            let brk = self.saved.mappings.iter().find(|mapping| mapping.is_brk);
            let first = match *arena == layout.arenas[0] {
                true => brk.map(|brk| brk.range.start),
                false => Some(layout.end(*arena).next_multiple_of(16)),
            };
            let (Some(mut at), top) = (first, word(layout.top_at(*arena))) else { continue };
            if !(at..at + HEAP_MAX).contains(&top) {
                continue;
            }
            while at < top {
                let next = at + (word(at + 8) & !7);
                if word(next + 8) & PREV_INUSE != 0 && !fast.contains(&at) {
                    found.push(at + 16..next + 8);
                }
                at = next;
            }
            assert_eq!(at, top, "{}", self.name);
        }
        found
    }
}

/// A generator of random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

fn block_of(memory: &mut Saved, at: u64) -> (&mut Vec<u8>, usize) {
    let place = memory.blocks.partition_point(|(start, _)| *start <= at) - 1;
    let (start, bytes) = &mut memory.blocks[place];
    (bytes, (at - *start) as usize)
}

fn change(memory: &mut Saved, at: u64, to: impl Fn(u64) -> u64) {
    let before = word(memory, at).unwrap();
    let (bytes, place) = block_of(memory, at);
    bytes[place..place + 8].copy_from_slice(&to(before).to_le_bytes());
}

/// Fills ranges with zeros where they are resident, as a drop does.
fn set_to_zero(memory: &mut Saved, ranges: &[Range<u64>]) {
    let resident: Vec<_> = ranges.iter().flat_map(|range| memory.resident(range.clone())).collect();
    for range in resident {
        let (bytes, place) = block_of(memory, range.start);
        bytes[place..place + (range.end - range.start) as usize].fill(0);
    }
}

/// Returns the addresses of words that are neither zero nor filler.
fn words(memory: &Saved) -> Vec<u64> {
    let blocks = memory.blocks.iter();
    blocks
        .flat_map(|(at, bytes)| {
            let words = bytes.chunks_exact(8).enumerate();
            words
                .filter(|(_, word)| *word != [0; 8] && *word != [0x5a; 8])
                .map(move |(place, _)| at + place as u64 * 8)
        })
        .collect()
}

fn flip(memory: &mut Saved, words: &[u64], dice: &mut Dice) {
    for _ in 0..=dice.below(12) {
        let (at, bit) = (words[dice.below(words.len() as u64) as usize], dice.below(64));
        change(memory, at, |word| word ^ (1 << bit));
    }
}

/// Returns the number of wrong variants of each operation.
fn cases() -> u64 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(4)
}

/// Returns the number of damaged variants of each heap: all of them with `LOWTIDE_TEST_EXHAUSTIVE`.
fn damages() -> u64 {
    if std::env::var_os("LOWTIDE_TEST_EXHAUSTIVE").is_some() {
        cases()
    } else {
        cases().div_ceil(4)
    }
}

#[test]
fn every_free_page_that_a_walk_finds_is_dropped_and_nothing_else_changes() {
    let stub = Stub::new();
    let mut kinds = [0, 0];
    for subject in subjects() {
        let memory = &subject.saved.memory;
        let done = subject.run(&stub, memory, &subject.ops);
        assert_eq!((done.skipped, done.busy, done.consolidated), (0, 0, 0), "{}", subject.name);
        let named: Vec<_> = subject.ops.iter().map(Op::pages).collect();
        assert_eq!(done.drops, named, "{}", subject.name);
        assert_eq!(done.returned, named.iter().map(|drop| drop.end - drop.start).sum::<u64>());
        let mut expected = memory.clone();
        set_to_zero(&mut expected, &named);
        assert!(done.memory.blocks == expected.blocks, "{}", subject.name);
        let after = walk(&done.memory, &subject.layout, &subject.saved.mappings);
        assert_eq!(after.total(), subject.heap.total(), "{}", subject.name);
        for op in &subject.ops {
            kinds[usize::from(matches!(op, Op::Top { .. }))] += 1;
        }
    }
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[test]
fn consolidation_keeps_the_heap_consistent_and_block_contents_unchanged() {
    let stub = Stub::new();
    let mut all = 0;
    for subject in subjects() {
        let memory = &subject.saved.memory;
        let name = &subject.name;
        let consolidations: Vec<Op> = subject
            .heap
            .arenas
            .iter()
            .flat_map(|arena| releasable::consolidations(arena, &subject.layout))
            .collect();
        let done = subject.run(&stub, memory, &consolidations);
        let before = subject.heap.total();
        let (heap, free, ops) = walked(&done.memory, &subject.saved, &subject.layout);
        let after = heap.total();
        // Only in glibc 2.26 are the bins at an unknown place.
        let expected = if consolidations.is_empty() { 0 } else { before.fast_count };
        assert_eq!((done.skipped, done.busy, done.consolidated), (0, 0, expected), "{name}");
        assert!(done.drops.is_empty() && heap.is_whole(), "{name}");
        assert_eq!(after.fast_count, before.fast_count - expected, "{name}");
        assert_eq!(
            (after.used_count, after.used_bytes),
            (before.used_count, before.used_bytes),
            "{name}"
        );
        let free_bytes =
            |t: &lowtide_heap::ptmalloc::Tally| t.free_bytes + t.top_bytes + t.fast_bytes;
        assert_eq!(free_bytes(&after), free_bytes(&before), "{name}");
        for block in subject.in_use() {
            let length = (block.end - block.start) as usize;
            let (mut then, mut now) = (vec![0; length], vec![1; length]);
            memory.read(block.start, &mut then);
            done.memory.read(block.start, &mut now);
            assert!(then == now, "{name}: {block:x?}");
        }
        // The consolidated chunks are like any other free chunk.
        let again = subject.run(&stub, &done.memory, &ops);
        assert_eq!((again.skipped, again.busy), (0, 0), "{name}");
        assert_eq!(again.drops.len(), ops.len(), "{name}");
        assert!(free.len() >= subject.free.len() || done.consolidated > 0, "{name}");
        all += done.consolidated;
    }
    assert!(all > 1000, "{all}");
}

#[test]
fn a_chunk_that_was_allocated_since_the_walk_is_not_dropped() {
    type Change = fn(&mut Saved, &Range<u64>);
    let ways: [(&str, Change); 8] = [
        ("the next one says that it is in use", |memory, chunk| {
            change(memory, chunk.end + 8, |head| head | PREV_INUSE);
        }),
        ("it is in no list, forward", |memory, chunk| {
            let next = word(memory, chunk.start + 16).unwrap();
            change(memory, next + 24, |_| next);
        }),
        ("it is in no list, backward", |memory, chunk| {
            let previous = word(memory, chunk.start + 24).unwrap();
            change(memory, previous + 16, |_| previous);
        }),
        ("it is smaller", |memory, chunk| change(memory, chunk.start + 8, |head| head - 16)),
        ("the next one says that it is smaller", |memory, chunk| {
            change(memory, chunk.end, |size| size - 16);
        }),
        ("it has a mapping of its own", |memory, chunk| {
            change(memory, chunk.start + 8, |head| head | 2)
        }),
        // Its lower bits are those of a page that the code knows by then.
        ("its list leads to where no program has memory", |memory, chunk| {
            change(memory, chunk.start + 16, |_| chunk.start | 1 << 50);
        }),
        ("its list leads out of the heap", |memory, chunk| {
            change(memory, chunk.start + 16, |_| 0x1_0000_0000);
        }),
    ];
    let stub = Stub::new();
    let mut tried = 0;
    for subject in subjects() {
        let chunks = subject.ops.iter().filter_map(|op| match op {
            Op::Chunk { chunk, chunk_bytes, .. } => Some((op, *chunk..chunk + chunk_bytes)),
            _ => None,
        });
        // One at a time: the changes would interfere.
        for (op, chunk) in chunks.take(3) {
            for (way, change) in ways {
                let mut memory = subject.saved.memory.clone();
                change(&mut memory, &chunk);
                let done = subject.run(&stub, &memory, std::slice::from_ref(op));
                assert!(done.drops.is_empty(), "{}: {way}: {op:x?}", subject.name);
                assert_eq!(done.skipped, 1, "{}: {way}", subject.name);
                assert!(done.memory.blocks == memory.blocks, "{}: {way}", subject.name);
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn wrong_operations_drop_no_memory_in_use() {
    let stub = Stub::new();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut dropped, mut skipped) = (0, 0);
    for subject in subjects() {
        let mut wrong = Vec::new();
        for op in &subject.ops {
            for _ in 0..cases() {
                let mut op = op.head();
                let some = |dice: &mut Dice, unit: u64| {
                    unit.wrapping_mul(dice.below(9)).wrapping_sub(unit * 4)
                };
                let [arena, chunk, size, from, bytes, kind] = &mut op;
                match dice.below(7) {
                    0 => *chunk = chunk.wrapping_add(some(&mut dice, 16)),
                    1 => *size = size.wrapping_add(some(&mut dice, 16)),
                    2 => *from = from.wrapping_add(some(&mut dice, PAGE)),
                    3 => *bytes = bytes.wrapping_add(some(&mut dice, PAGE)),
                    // A free chunk and the top chunk.
                    4 => *kind = 1 - *kind,
                    5 => {
                        *arena = subject.layout.arenas
                            [dice.below(subject.layout.arenas.len() as u64) as usize]
                    }
                    _ => {
                        let other = &subject.ops[dice.below(subject.ops.len() as u64) as usize];
                        [.., *from, *bytes, _] = other.head();
                    }
                }
                wrong.push(op);
            }
        }
        let done = subject.run_and_check(&stub, &subject.saved.memory, &wrong);
        dropped += done.drops.len();
        skipped += done.skipped;
    }
    // Both happen: some changes leave an operation as it was, or select other free pages.
    assert!(dropped > 100 && skipped > 100, "{dropped} {skipped}");
}

#[test]
fn operations_on_a_damaged_heap_drop_no_memory_in_use_and_touch_only_the_heap() {
    let stub = Stub::new();
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let (mut dropped, mut skipped) = (0, 0);
    for subject in subjects() {
        let words = words(&subject.saved.memory);
        for _ in 0..damages() {
            let mut memory = subject.saved.memory.clone();
            flip(&mut memory, &words, &mut dice);
            // The operations from before the damage, and those of a walk that the damage leads
            // astray.
            let (_, _, astray) = walked(&memory, &subject.saved, &subject.layout);
            let ops = slots(&[subject.ops.clone(), astray].concat());
            let done = subject.run_and_check(&stub, &memory, &ops);
            dropped += done.drops.len();
            skipped += done.skipped;
        }
    }
    assert!(dropped > 0 && skipped > 0, "{dropped} {skipped}");
}

#[test]
fn consolidation_of_a_damaged_heap_terminates_and_touches_only_the_heap() {
    let stub = Stub::new();
    let mut dice = Dice(0xd134_2543_de82_ef95);
    let (mut consolidated, mut skipped) = (0, 0);
    for subject in subjects().into_iter().filter(|subject| subject.heap.total().fast_count > 0) {
        let words = words(&subject.saved.memory);
        let consolidations: Vec<Op> = subject
            .heap
            .arenas
            .iter()
            .flat_map(|arena| releasable::consolidations(arena, &subject.layout))
            .collect();
        for _ in 0..cases() {
            let mut memory = subject.saved.memory.clone();
            flip(&mut memory, &words, &mut dice);
            let done = subject.run(&stub, &memory, &consolidations);
            assert!(done.drops.is_empty(), "{}", subject.name);
            consolidated += done.consolidated;
            skipped += done.skipped;
        }
    }
    assert!(consolidated > 0 && skipped > 0, "{consolidated} {skipped}");
}

/// Returns a saved heap of another allocator, and the operations that drop its free pages.
fn guarded(kind: &AllocatorKind, name: &str) -> (Saved, Vec<Op>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../heap/tests/saved");
    let file = directory.join(kind.name()).join(format!("{name}.heap"));
    let saved = SavedHeap::from_bytes(&std::fs::read(file).unwrap()).unwrap();
    let places = Places { data: &saved.data, zeroed_data: &saved.data, mappings: &saved.mappings };
    let layout = HeapLayout::find(kind, &saved.memory, &places).unwrap();
    let module = Module::unknown(Some(name));
    let heap = GuardedHeap::find(layout, &saved.memory, &saved.mappings, &module);
    let heap = ReleasableHeap::Dropped(DroppableHeap::Guarded(heap.unwrap()));
    let (mut ops, mut batch) = (Vec::new(), Batch::default());
    let mut submit = |part: &[Op]| {
        ops.extend_from_slice(part);
        Ok(())
    };
    heap.walk(&saved.memory, &saved.mappings, &mut |found| {
        batch.add(found, &saved.memory, &mut submit).unwrap();
    })
    .unwrap();
    batch.flush(&mut submit).unwrap();
    (saved.memory, ops)
}

const GUARDED: [(AllocatorKind, &str); 11] = [
    (AllocatorKind::Jemalloc, "5.0.1"),
    (AllocatorKind::Jemalloc, "5.1.0"),
    (AllocatorKind::Jemalloc, "5.2.1-57"),
    (AllocatorKind::Jemalloc, "5.3.0"),
    (AllocatorKind::Jemalloc, "5.3.1"),
    (AllocatorKind::Mimalloc, "3.3.2"),
    (AllocatorKind::Mimalloc, "2.0.9"),
    (AllocatorKind::Mimalloc, "2.3.2"),
    (AllocatorKind::Gperftools, "2.16"),
    (AllocatorKind::Musl, "1.2.3"),
    (AllocatorKind::Musl, "1.2.3-static"),
];

/// Returns whether the code is told that the process has one thread.
fn is_alone(kind: &AllocatorKind) -> u64 {
    u64::from(*kind == AllocatorKind::Musl)
}

#[test]
fn every_free_page_of_another_allocator_is_dropped_and_nothing_else_changes() {
    let stub = Stub::guarded();
    for (kind, name) in GUARDED {
        let (memory, ops) = guarded(&kind, name);
        let done = stub.run_with(&memory, [0, is_alone(&kind), 0], &slots(&ops));
        assert_eq!((done.skipped, done.busy), (0, 0), "{kind} {name}");
        let named: Vec<_> = ops.iter().map(Op::pages).collect();
        assert_eq!(done.drops, named, "{kind} {name}");
        let mut expected = memory.clone();
        set_to_zero(&mut expected, &named);
        assert!(done.memory.blocks == expected.blocks, "{kind} {name}");
    }
}

#[test]
fn no_page_is_dropped_when_one_condition_no_longer_holds_or_the_lock_is_held() {
    /// Number of operations of each heap.
    const OPS: usize = 12;
    let stub = Stub::guarded();
    for (kind, name) in GUARDED {
        let (memory, ops) = guarded(&kind, name);
        for op in ops.iter().step_by(ops.len().div_ceil(OPS)) {
            let in_thread = |thread: u64, damaged: &Saved, busy: u64, what: &str| {
                let words = [thread, is_alone(&kind), 0];
                let done = stub.run_with(damaged, words, &slots(std::slice::from_ref(op)));
                let what = format!("{kind} {name}: {what} of {op:x?}");
                assert_eq!((done.skipped, done.busy), (1 - busy, busy), "{what}");
                assert!(done.drops.is_empty() && done.memory.blocks == damaged.blocks, "{what}");
            };
            let is_left_alone =
                |damaged: &Saved, busy, what: &str| in_thread(0, damaged, busy, what);
            let (is_claim, is_owned) =
                (matches!(op, Op::Claim { .. }), matches!(op, Op::Owned { .. }));
            let is_listed = matches!(op, Op::Owned { block: 1.., .. });
            for [at, mask, value] in op.checks().iter().skip(usize::from(is_claim || is_listed)) {
                let mut damaged = memory.clone();
                let differs = at & 1 == 1;
                let lowest = mask & mask.wrapping_neg();
                change(&mut damaged, at & !1, |word| match differs {
                    true => word & !mask | value,
                    false => word ^ lowest,
                });
                is_left_alone(&damaged, 0, "a check");
            }
            // The lock of musl has a test of its own.
            if matches!(op, Op::Musl { .. }) {
                continue;
            }
            if is_owned {
                in_thread(op.guard() + 64, &memory, 0, "the owner");
                if is_listed {
                    let mut damaged = memory.clone();
                    change(&mut damaged, op.checks()[0][0], |_| 0);
                    is_left_alone(&damaged, 0, "the list");
                }
                continue;
            }
            let mut damaged = memory.clone();
            let busy = match op {
                Op::Claim { word, bits, .. } => {
                    let bit = bits & bits.wrapping_neg();
                    change(&mut damaged, *word, |word| word & !bit);
                    0
                }
                Op::Locked { lock, .. } => {
                    change(&mut damaged, lock & !7, |word| word | 1 << (lock % 8 * 8));
                    1
                }
                _ => panic!("{op:x?}"),
            };
            is_left_alone(&damaged, busy, "the guard");
        }
    }
}

/// The word with the state of all locks of musl (`struct __libc`), and the lock of its `malloc`.
const MUSL_THREADS: u64 = 0x10_0000;
const MUSL_LOCK: u64 = MUSL_THREADS + 0x40;

/// Runs an operation under the lock of musl, in a process whose words are these. Returns the counts
/// of ranges that were dropped, skipped and busy, and the lock afterwards.
fn under_musl_lock(stub: &Stub, takes: i8, others: i32, lock: u32) -> ([u64; 3], u32) {
    let (mut memory, ops) = guarded(&AllocatorKind::Musl, "1.2.3-static");
    let mut block = vec![0; PAGE as usize];
    block[3] = takes.to_le_bytes()[0];
    block[4..8].copy_from_slice(&others.to_le_bytes());
    block[0x40..0x44].copy_from_slice(&lock.to_le_bytes());
    memory.blocks.insert(0, (MUSL_THREADS, block));
    let Op::Musl { checks, from, bytes, .. } = ops[0].clone() else { panic!("{:x?}", ops[0]) };
    let op = Op::Musl { lock: MUSL_LOCK, threads: MUSL_THREADS, checks, from, bytes };
    let done = stub.run_with(&memory, [0; 3], &slots(&[op]));
    let after = word(&done.memory, MUSL_LOCK).unwrap() as u32;
    ([done.drops.len() as u64, done.skipped, done.busy], after)
}

#[test]
fn pages_of_musl_are_dropped_only_while_musl_takes_its_locks() {
    /// The lock as the one thread has it that holds it.
    const HELD: u32 = 0x8000_0001;
    let stub = Stub::guarded();
    let run = |takes, others, lock| under_musl_lock(&stub, takes, others, lock);
    assert_eq!(run(1, 1, 0), ([1, 0, 0], 0));
    // Others wait for it: they stay counted.
    assert_eq!(run(1, 7, 3), ([1, 0, 0], 3));
    assert_eq!(run(1, 7, HELD), ([0, 0, 1], HELD));
    assert_eq!(run(1, 7, HELD + 2), ([0, 0, 1], HELD + 2));
    // The other threads have ended, and musl takes no locks, or is about to cease to: this thread
    // was not seen to be the only one.
    for (takes, others) in [(0, 0), (-1, 0), (0, 3), (-1, 3), (1, 0), (1, -1)] {
        assert_eq!(run(takes, others, 0), ([0, 0, 1], 0), "{takes} {others}");
    }
}

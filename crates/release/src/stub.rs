//! The code that runs in the target (`stub/stub.c`), and its interface.
//!
//! It fits one page. The shared block follows it; lowtide reads and writes the block through the
//! target's memory file.

use std::ops::Range;
use std::time::Duration;

use crate::clock::WorkerClock;

pub(crate) mod contract;

pub(crate) use contract::Op;
use contract::*;

/// A build of the code. Empty for architectures that it was not written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(&'static [u8]);

impl Code {
    /// For the heap of glibc.
    pub(crate) const PTMALLOC: Self =
        Self(include_bytes!(concat!(env!("OUT_DIR"), "/ptmalloc.bin")));
    /// For the heaps of other allocators.
    pub(crate) const GUARDED: Self = Self(include_bytes!(concat!(env!("OUT_DIR"), "/guarded.bin")));

    /// Returns its instructions.
    pub(crate) fn bytes(self) -> &'static [u8] {
        self.0
    }

    /// The starts of former builds, which an older lowtide may have left in a process.
    const FORMER: [[u8; 64]; 1] = [
        // Up to November 2026: it has system call instructions of its own.
        *b"\x0f\x05\x85\xc0\x78\x4c\x48\x8d\x1d\xf3\x0f\x00\x00\x48\x8d\xa3\
        \x00\xc0\x03\x00\x31\xed\xfc\x83\x7b\x34\x01\x75\x26\xb8\x38\x00\
        \x00\x00\x48\x8b\x7b\x38\x48\x8d\xb3\x00\x00\x04\x00\x48\x8d\x53\
        \x50\x49\x89\xd2\x4c\x8b\x43\x48\x0f\x05\x48\x85\xc0\x74\x2c\x48",
    ];

    /// Returns whether any build, present or former, starts with these bytes.
    pub(crate) fn begins_with(bytes: &[u8]) -> bool {
        let builds = [Self::PTMALLOC.0, Self::GUARDED.0].into_iter();
        builds
            .chain(Self::FORMER.iter().map(|start| &start[..]))
            .any(|code| code.starts_with(bytes))
    }
}

const _: () = {
    assert!(Code::PTMALLOC.0.len() as u64 <= CODE_BYTES);
    assert!(Code::GUARDED.0.len() as u64 <= CODE_BYTES);
};

/// Size of the shared block in bytes, including the stacks of both threads.
pub(crate) const BLOCK_BYTES: u64 = THREAD_STACK_END;
/// Name of both mappings in `/proc/PID/maps`.
pub(crate) const NAME: &str = "lowtide";

/// Maximum number of slots of the operations in one batch.
pub(crate) const MAX_SLOTS: usize = ((OPS_END - OPS) / OP_BYTES) as usize;
/// Maximum number of bytes that one operation drops: a slice ends after an operation. It is a
/// multiple of every size of pages.
pub(crate) const BYTES_PER_OP: u64 = 512 << 10;
/// Maximum number of pages of 4 KiB that are dropped during one lock hold, whatever the size of the
/// kernel's pages is; the code enforces the same limit.
pub(crate) const PAGES_PER_HOLD: u64 = MAX_PAGES;

/// Maximum time of a lock hold, apart from the operation in progress.
pub(crate) const MAX_HOLD: Duration = Duration::from_micros(60);

/// Splits operations into parts of which each fits the table.
pub(crate) fn parts(mut ops: &[Op]) -> impl Iterator<Item = &[Op]> {
    std::iter::from_fn(move || {
        let mut slots = 0;
        let fits = |op: &&Op| {
            slots += op.slot_count();
            slots <= MAX_SLOTS
        };
        let (part, rest) = ops.split_at(ops.iter().take_while(fits).count());
        ops = rest;
        (!part.is_empty()).then_some(part)
    })
}

impl Op {
    /// Returns its slots in the table: its own, and its checks, two to a slot.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotWords> {
        let checks = self.checks().chunks(2).map(|two| {
            let ([a, b, c], [d, e, f]) = (two[0], two.get(1).copied().unwrap_or_default());
            [a, b, c, d, e, f]
        });
        std::iter::once(self.head()).chain(checks)
    }

    /// Returns the number of its slots.
    pub(crate) fn slot_count(&self) -> usize {
        1 + self.checks().len().div_ceil(2)
    }

    /// Encodes its slots.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.slots().flatten().flat_map(u64::to_le_bytes)
    }

    /// Returns what guards its memory: successive operations with the same guard share lock holds.
    pub(crate) fn guard(&self) -> u64 {
        self.head()[0]
    }

    /// Returns the thread that must run it, by the address of its own data.
    pub(crate) fn owner(&self) -> Option<u64> {
        match self {
            Self::Owned { thread, .. } => Some(*thread),
            _ => None,
        }
    }

    /// Returns the pages that it drops; an empty range if it drops none.
    pub(crate) fn pages(&self) -> Range<u64> {
        match self {
            Self::Consolidate { .. } => 0..0,
            Self::Chunk { from, bytes, .. }
            | Self::Top { from, bytes, .. }
            | Self::Locked { from, bytes, .. }
            | Self::Claim { from, bytes, .. }
            | Self::Musl { from, bytes, .. }
            | Self::Owned { from, bytes, .. } => *from..from + bytes,
        }
    }
}

/// What was submitted to the code: the limits of its counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Submitted {
    /// Number of operations.
    ops: u64,
    /// Bytes to drop.
    bytes: u64,
    /// Chunks to consolidate.
    chunks: u64,
}

impl Submitted {
    /// Adds operations.
    pub(crate) fn add(&mut self, ops: &[Op]) {
        self.ops += ops.len() as u64;
        for op in ops {
            let pages = op.pages();
            self.bytes = self.bytes.saturating_add(pages.end - pages.start);
            if let Op::Consolidate { max_chunks, .. } = op {
                self.chunks = self.chunks.saturating_add(*max_chunks);
            }
        }
    }
}

/// The counts of the code.
#[derive(Debug, Clone, Default)]
pub(crate) struct StubCounts {
    pub(crate) lock_holds: u64,
    pub(crate) returned_bytes: u64,
    pub(crate) skipped: u64,
    pub(crate) busy: u64,
    pub(crate) consolidated: u64,
    pub(crate) longest: Duration,
    /// Whether a count was not possible, and was limited.
    pub(crate) is_limited: bool,
    classes: Vec<u64>,
    clock: WorkerClock,
}

impl StubCounts {
    /// Offset of the counts in the block.
    pub(crate) const OFFSET: u64 = field::LOCK_HOLDS.offset;
    /// Their size in bytes.
    pub(crate) const BYTES: usize = (field::INJECTOR.offset - Self::OFFSET) as usize;

    /// Parses the counts as they are in the block, where times are in ticks of a clock.
    pub(crate) fn parse(bytes: &[u8], clock: WorkerClock) -> Self {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
            .collect();
        let place = |offset: u64| ((offset - Self::OFFSET) / 8) as usize;
        let word = |field: Field<u64>| words.get(place(field.offset)).copied().unwrap_or(0);
        Self {
            lock_holds: word(field::LOCK_HOLDS),
            returned_bytes: word(field::RETURNED),
            skipped: word(field::SKIPPED),
            busy: word(field::BUSY),
            consolidated: word(field::CONSOLIDATED),
            longest: clock.time(word(field::LONGEST_TICKS)),
            is_limited: false,
            classes: words.get(place(field::CLASSES.offset)..).unwrap_or_default().into(),
            clock,
        }
    }

    /// Limits the counts to what is possible, because the target could have written them: no count
    /// decreases, and none exceeds what was submitted, and what `elapsed` permits.
    pub(crate) fn within(
        mut self,
        before: &Self,
        submitted: &Submitted,
        elapsed: Duration,
    ) -> Self {
        // An operation that needs several lock holds uses the whole time of all but the last one.
        let longest_holds = elapsed.as_nanos() / MAX_HOLD.as_nanos();
        let max_holds =
            submitted.ops.saturating_add(u64::try_from(longest_holds).unwrap_or(u64::MAX));
        let mut is_limited = before.is_limited;
        let mut limit = |count: &mut u64, before: u64, max: u64| {
            is_limited |= *count < before || *count > max;
            *count = (*count).min(max).max(before);
        };
        limit(&mut self.lock_holds, before.lock_holds, max_holds);
        limit(&mut self.returned_bytes, before.returned_bytes, submitted.bytes);
        limit(&mut self.skipped, before.skipped, submitted.ops);
        limit(&mut self.busy, before.busy, submitted.ops);
        limit(&mut self.consolidated, before.consolidated, submitted.chunks);
        is_limited |= self.longest < before.longest || self.longest > elapsed;
        self.longest = self.longest.min(elapsed).max(before.longest);
        self.is_limited = is_limited;
        self
    }

    /// Returns the 99th percentile of the lock hold times, up to a class's width (an eighth).
    pub(crate) fn p99(&self) -> Duration {
        let total: u128 = self.classes.iter().copied().map(u128::from).sum();
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += u128::from(*count);
            if total > 0 && seen * 100 >= total * 99 {
                return self.clock.time(end_of(class)).min(self.longest);
            }
        }
        Duration::ZERO
    }
}

/// Returns the exclusive upper limit of a class, in ticks.
fn end_of(class: usize) -> u64 {
    let (power, eighth) = ((class / 8) as u32, (class % 8) as u64);
    (9 + eighth).checked_shl(power).unwrap_or(u64::MAX)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod on_host;

#[cfg(test)]
mod tests {
    use super::*;

    /// Classifies like `record_hold` in stub.c.
    fn class_of(ns: u64) -> usize {
        let power = 63 - u64::from((ns | 8).leading_zeros());
        ((power - 3) * 8 + (ns >> (power - 3) & 7)) as usize
    }

    #[test]
    fn the_upper_limit_of_a_class_exceeds_its_times_by_at_most_an_eighth() {
        for ns in (8..1000).chain([12_345, 99_999, 1_000_000, 37_000_001]) {
            let end = end_of(class_of(ns));
            assert!(ns < end && end <= ns + ns / 8 + 1, "{ns} {end}");
        }
    }

    #[test]
    fn the_99th_percentile_is_the_upper_limit_of_its_class() {
        let mut classes = vec![0; CLASSES as usize];
        classes[class_of(1000)] = 98;
        classes[class_of(50_000)] = 1;
        classes[class_of(900_000)] = 1;
        let longest = Duration::from_nanos(900_000);
        let counts = StubCounts { classes, longest, ..StubCounts::default() };
        assert!((50_000..=57_000).contains(&counts.p99().as_nanos()), "{:?}", counts.p99());
    }

    #[test]
    fn code_of_a_former_version_is_recognised() {
        for start in Code::FORMER {
            assert!(Code::begins_with(&start));
            assert!(!Code::PTMALLOC.bytes().starts_with(&start));
        }
        assert!(!Code::begins_with(&[0; 64]));
    }

    #[test]
    fn counts_are_limited_to_plausible_values() {
        let submitted = Submitted { ops: 5, bytes: 8192, chunks: 7 };
        let elapsed = Duration::from_millis(6);
        for clock in [WorkerClock::KERNEL, WorkerClock::of_rate(2.5)] {
            let most = StubCounts::parse(&[0xff; StubCounts::BYTES], clock);
            let before =
                StubCounts { returned_bytes: 4096, lock_holds: 3, ..StubCounts::default() };
            let kept = most.within(&before, &submitted, elapsed);
            assert_eq!((kept.returned_bytes, kept.lock_holds, kept.consolidated), (8192, 105, 7));
            assert_eq!((kept.skipped, kept.busy), (5, 5));
            assert!(kept.p99() <= kept.longest && kept.longest <= elapsed && kept.is_limited);
            let none = StubCounts::parse(&[0; StubCounts::BYTES], clock);
            let none = none.within(&before, &submitted, elapsed);
            assert_eq!((none.returned_bytes, none.lock_holds, none.is_limited), (4096, 3, true));
            let possible = kept.clone().within(&StubCounts::default(), &submitted, elapsed);
            assert!(!possible.is_limited);
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_stub_fits_into_its_page_and_has_no_system_call_instruction() {
        for code in [Code::PTMALLOC, Code::GUARDED] {
            assert!(code.bytes().len() as u64 <= CODE_BYTES);
        }
        // The one is for programs that release their own memory.
        let source = include_str!("../stub/x86_64/code.h");
        assert_eq!(source.matches("\"syscall\"").count(), 1);
        assert_eq!(source.matches("    syscall").count(), 0);
        assert!(OPS + MAX_SLOTS as u64 * OP_BYTES <= OPS_END);
    }
}

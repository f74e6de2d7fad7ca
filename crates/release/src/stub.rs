//! The code that runs in the target (`stub/stub.c`), and its interface.
//!
//! It fits one page. The shared block follows it; lowtide reads and writes that through the target's memory file.

use std::time::Duration;

/// Constants generated from `stub/shared.h`.
#[allow(dead_code)]
pub(crate) mod numbers {
    include!(concat!(env!("OUT_DIR"), "/numbers.rs"));
}

use numbers::*;

/// The code. Empty for architectures that it was not written for.
pub(crate) const CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.bin"));

/// Size of the shared block in bytes, including the stacks of both threads.
pub(crate) const BLOCK_BYTES: u64 = THREAD_STACK_END;
/// Name of both mappings in `/proc/PID/maps`, and of the worker thread in its `comm`.
pub(crate) const NAME: &str = "lowtide";
/// Length of the instruction `syscall`, over which the kernel steps back to restart a call.
pub(crate) const SYSCALL_BYTES: u64 = 2;

/// Maximum number of operations in one batch.
pub(crate) const MAX_OPS: usize = ((OPS_END - OFF_OPS) / OP_BYTES) as usize;
/// Maximum number of pages that one operation drops: a slice ends after an operation.
pub(crate) const PAGES_PER_OP: u64 = 128;
/// Maximum number of pages that are dropped during one lock hold; the code enforces the same limit.
pub(crate) const PAGES_PER_HOLD: u64 = MAX_PAGES;

/// One operation of the code in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    /// The arena whose lock it needs.
    pub(crate) arena: u64,
    /// The free chunk, or the fast bin.
    pub(crate) chunk: u64,
    /// The chunk's size, or that of the chunks in the bin.
    pub(crate) size: u64,
    /// Start of the pages.
    pub(crate) from: u64,
    /// Their size in bytes, or the maximum number of chunks to consolidate.
    pub(crate) bytes: u64,
    /// `OP_…`.
    pub(crate) kind: u64,
}

impl Op {
    /// Returns its fields in the order of `struct op`.
    pub(crate) fn words(&self) -> [u64; OP_BYTES as usize / 8] {
        [self.arena, self.chunk, self.size, self.from, self.bytes, self.kind]
    }

    /// Encodes it in the layout of `struct op`.
    pub(crate) fn bytes(&self) -> [u8; OP_BYTES as usize] {
        let mut bytes = [0; OP_BYTES as usize];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
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
    classes: Vec<u64>,
}

impl StubCounts {
    /// Size of the counts in the block, from [`OFF_LOCK_HOLDS`] on.
    pub(crate) const BYTES: usize = (OFF_INJECTOR - OFF_LOCK_HOLDS) as usize;

    /// Parses the counts as they are in the block.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
            .collect();
        let word = |at: u64| words.get(((at - OFF_LOCK_HOLDS) / 8) as usize).copied().unwrap_or(0);
        Self {
            lock_holds: word(OFF_LOCK_HOLDS),
            returned_bytes: word(OFF_RETURNED),
            skipped: word(OFF_SKIPPED),
            busy: word(OFF_BUSY),
            consolidated: word(OFF_CONSOLIDATED),
            longest: Duration::from_nanos(word(OFF_LONGEST_NS)),
            classes: words
                .get(((OFF_CLASSES - OFF_LOCK_HOLDS) / 8) as usize..)
                .unwrap_or_default()
                .into(),
        }
    }

    /// Limits the counts to plausible values, because the target could have written them: no count decreases, and no
    /// more was returned than was requested.
    pub(crate) fn within(mut self, before: &Self, requested_bytes: u64) -> Self {
        let Self { lock_holds, returned_bytes, skipped, busy, consolidated, longest, .. } =
            &mut self;
        *lock_holds = (*lock_holds).max(before.lock_holds);
        *returned_bytes = (*returned_bytes).min(requested_bytes).max(before.returned_bytes);
        *skipped = (*skipped).max(before.skipped);
        *busy = (*busy).max(before.busy);
        *consolidated = (*consolidated).max(before.consolidated);
        *longest = (*longest).max(before.longest);
        self
    }

    /// Returns the 99th percentile of the lock hold times, up to a class's width (an eighth).
    pub(crate) fn p99(&self) -> Duration {
        let total: u128 = self.classes.iter().copied().map(u128::from).sum();
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += u128::from(*count);
            if total > 0 && seen * 100 >= total * 99 {
                return Duration::from_nanos(end_of(class)).min(self.longest);
            }
        }
        Duration::ZERO
    }
}

/// Returns the exclusive upper limit of a class, in ns.
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
    fn a_time_is_shorter_than_the_end_of_its_class_by_an_eighth_at_most() {
        for ns in (8..1000).chain([12_345, 99_999, 1_000_000, 37_000_001]) {
            let end = end_of(class_of(ns));
            assert!(ns < end && end <= ns + ns / 8 + 1, "{ns} {end}");
        }
    }

    #[test]
    fn the_99th_percentile_is_the_end_of_its_class() {
        let mut classes = vec![0; CLASSES as usize];
        classes[class_of(1000)] = 98;
        classes[class_of(50_000)] = 1;
        classes[class_of(900_000)] = 1;
        let longest = Duration::from_nanos(900_000);
        let counts = StubCounts { classes, longest, ..StubCounts::default() };
        assert!((50_000..=57_000).contains(&counts.p99().as_nanos()), "{:?}", counts.p99());
    }

    #[test]
    fn counts_are_limited_to_plausible_values() {
        let most = StubCounts::parse(&[0xff; StubCounts::BYTES]);
        let before = StubCounts { returned_bytes: 4096, lock_holds: 3, ..StubCounts::default() };
        let kept = most.within(&before, 8192);
        assert_eq!(kept.returned_bytes, 8192);
        assert!(kept.p99() <= kept.longest);
        let none = StubCounts::parse(&[0; StubCounts::BYTES]).within(&before, 8192);
        assert_eq!((none.returned_bytes, none.lock_holds), (4096, 3));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_code_fits_its_page_and_begins_with_a_call() {
        assert!(CODE.len() as u64 <= CODE_BYTES);
        assert_eq!(CODE[..2], [0x0f, 0x05]);
        assert!(OFF_OPS + MAX_OPS as u64 * OP_BYTES <= OPS_END);
    }
}

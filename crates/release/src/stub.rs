//! The code that runs in the target (`stub/stub.c`), and what is told to it and by it.
//!
//! It takes one page; right behind it stands the shared block, which is written and read from outside
//! through the target's memory.

use std::time::Duration;

/// The numbers of `stub/shared.h`.
#[allow(dead_code)]
pub(crate) mod numbers {
    include!(concat!(env!("OUT_DIR"), "/numbers.rs"));
}

use numbers::*;

/// The code. Empty for processors that it was not written for.
pub(crate) const CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.bin"));

pub(crate) use numbers::CODE_BYTES;
/// Bytes of the shared block, with the stacks of both threads.
pub(crate) const BLOCK_BYTES: u64 = THREAD_STACK_END;
/// What both mappings are called in `/proc/PID/maps`, and the thread in its `comm`.
pub(crate) const NAME: &str = "lowtide";
/// What code that asks the kernel to restart a call begins with: `syscall`.
pub(crate) const SYSCALL_BYTES: u64 = 2;

/// So many acts fit into one batch.
pub(crate) const MOST_OPS: usize = ((OPS_END - OFF_OPS) / OP_BYTES) as usize;
/// One act drops so many pages at most: a slice ends behind an act.
pub(crate) const PAGES_PER_OP: u64 = 128;
/// A lock is held for so many pages at most; the code itself allows no more.
pub(crate) const PAGES_PER_HOLD: u64 = MOST_PAGES;

/// One act of the code in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    /// The arena under whose lock it is done.
    pub(crate) arena: u64,
    /// The free chunk, or the fast bin.
    pub(crate) chunk: u64,
    /// The chunk's size, or that of the chunks in the bin.
    pub(crate) size: u64,
    /// Where the pages begin.
    pub(crate) from: u64,
    /// Their bytes, or how many chunks are joined.
    pub(crate) bytes: u64,
    /// `OP_…`.
    pub(crate) kind: u64,
}

impl Op {
    /// As the code reads it.
    pub(crate) fn bytes(&self) -> [u8; OP_BYTES as usize] {
        let words = [self.arena, self.chunk, self.size, self.from, self.bytes, self.kind];
        let mut bytes = [0; OP_BYTES as usize];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// What the code has counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) holds: u64,
    pub(crate) returned_bytes: u64,
    pub(crate) skipped: u64,
    pub(crate) busy: u64,
    pub(crate) joined: u64,
    pub(crate) longest: Duration,
    classes: Vec<u64>,
}

impl Counts {
    /// Bytes that are read for it, from [`OFF_HOLDS`] on.
    pub(crate) const BYTES: usize = (OFF_OWNER - OFF_HOLDS) as usize;

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
            .collect();
        let word = |at: u64| words.get(((at - OFF_HOLDS) / 8) as usize).copied().unwrap_or(0);
        Self {
            holds: word(OFF_HOLDS),
            returned_bytes: word(OFF_RETURNED),
            skipped: word(OFF_SKIPPED),
            busy: word(OFF_BUSY),
            joined: word(OFF_JOINED),
            longest: Duration::from_nanos(word(OFF_LONGEST_NS)),
            classes: words
                .get(((OFF_CLASSES - OFF_HOLDS) / 8) as usize..)
                .unwrap_or_default()
                .into(),
        }
    }

    /// The same, as far as it can be true: the target could have written there. No count becomes less than it
    /// was, and no more was returned than was asked for.
    pub(crate) fn within(mut self, before: &Self, asked_bytes: u64) -> Self {
        let Self { holds, returned_bytes, skipped, busy, joined, longest, .. } = &mut self;
        *holds = (*holds).max(before.holds);
        *returned_bytes = (*returned_bytes).min(asked_bytes).max(before.returned_bytes);
        *skipped = (*skipped).max(before.skipped);
        *busy = (*busy).max(before.busy);
        *joined = (*joined).max(before.joined);
        *longest = (*longest).max(before.longest);
        self
    }

    /// So long that 99 of 100 holds were shorter, up to a class's width (an eighth).
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

/// The first time that is too long for a class, in ns.
fn end_of(class: usize) -> u64 {
    let (power, eighth) = ((class / 8) as u32, (class % 8) as u64);
    (9 + eighth).checked_shl(power).unwrap_or(u64::MAX)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod on_host;

#[cfg(test)]
mod tests {
    use super::*;

    /// As `record` in stub.c counts.
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
    fn the_time_that_99_of_100_stay_below_is_told() {
        let mut classes = vec![0; CLASSES as usize];
        classes[class_of(1000)] = 98;
        classes[class_of(50_000)] = 1;
        classes[class_of(900_000)] = 1;
        let longest = Duration::from_nanos(900_000);
        let counts = Counts { classes, longest, ..Counts::default() };
        assert!((50_000..=57_000).contains(&counts.p99().as_nanos()), "{:?}", counts.p99());
    }

    #[test]
    fn counts_that_the_target_has_written_there_are_kept_within_what_can_be_true() {
        let most = Counts::of(&[0xff; Counts::BYTES]);
        let before = Counts { returned_bytes: 4096, holds: 3, ..Counts::default() };
        let kept = most.within(&before, 8192);
        assert_eq!(kept.returned_bytes, 8192);
        assert!(kept.p99() <= kept.longest);
        let none = Counts::of(&[0; Counts::BYTES]).within(&before, 8192);
        assert_eq!((none.returned_bytes, none.holds), (4096, 3));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_code_fits_its_page_and_begins_with_a_call() {
        assert!(CODE.len() as u64 <= CODE_BYTES);
        assert_eq!(CODE[..2], [0x0f, 0x05]);
        assert!(OFF_OPS + MOST_OPS as u64 * OP_BYTES <= OPS_END);
    }
}

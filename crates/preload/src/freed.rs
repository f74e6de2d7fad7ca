//! The counter in the memory of a program. Its layout is that of `freed.h`.

use crate::numbers;

/// Size of the counter in the memory of a program, in bytes.
pub const FREED_BYTES: usize = 64;

/// Bytes that a thread frees before it adds them to the counter: the greatest error per live
/// thread.
pub const STEP_BYTES: u64 = numbers::STEP;

/// The counter of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// Bytes that the program has freed since it started, accurate to [`STEP_BYTES`] per live
    /// thread. A child after a `fork` continues the count of its parent.
    pub freed_bytes: u64,
    /// Freed bytes after which the library calls `malloc_trim`, if the threshold is set.
    pub trim_at_bytes: Option<u64>,
    /// Number of times that it has called `malloc_trim`.
    pub trims: u64,
    /// The reason why it does not count, if it does not.
    pub inactive: Option<Inactive>,
    /// The reason why it does not trim although [`crate::TRIM_AT`] is set.
    pub trim_error: Option<TrimError>,
    /// Whether another object defines `free` before the library. Frees that the object does not
    /// pass on are not counted; in a program with an allocator linked in, these are all frees.
    pub is_preceded: bool,
    /// Whether the allocator has an `operator delete` of its own: frees by C++ code are not
    /// counted.
    pub misses_delete: bool,
}

/// A reason why the library counts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inactive {
    /// The program has a sanitizer.
    Sanitizer,
    /// The program runs with more privileges than its caller.
    Privileged,
    /// The object that serves `free` does not report the size of a block, or serves only a part of
    /// `malloc`'s family.
    Allocator,
}

/// A reason why the library never trims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimError {
    /// The threshold is not a number of bytes.
    Malformed,
    /// The allocator has no `malloc_trim`.
    Unsupported,
}

impl Freed {
    /// Reads the bytes at [`crate::find_counter`]. Returns `None` if they are not a counter of this
    /// version, or if the program has not started to count yet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let words = bytes.get(..FREED_BYTES)?.as_chunks::<8>().0;
        let word = |index: usize| words.get(index).map(|word| u64::from_ne_bytes(*word));
        let (version, flags) = split(*words.get(1)?);
        if word(0)? != numbers::MAGIC || u64::from(version) != numbers::VERSION || flags == 0 {
            return None;
        }
        let has = |flag: u64| u64::from(flags) & flag != 0;
        let inactive = match () {
            () if has(numbers::COUNTS) => None,
            () if has(numbers::SANITIZED) => Some(Inactive::Sanitizer),
            () if has(numbers::PRIVILEGED) => Some(Inactive::Privileged),
            () => Some(Inactive::Allocator),
        };
        let trim_error = match () {
            () if has(numbers::BAD_THRESHOLD) => Some(TrimError::Malformed),
            () if has(numbers::NO_TRIM) => Some(TrimError::Unsupported),
            () => None,
        };
        Some(Self {
            freed_bytes: word(2)?,
            trim_at_bytes: word(3).filter(|_| has(numbers::TRIMS)),
            trims: word(4)?,
            inactive,
            trim_error,
            is_preceded: has(numbers::PRECEDED),
            misses_delete: has(numbers::OWN_DELETE),
        })
    }
}

/// Splits a word into the two halves that C stores one after the other.
fn split(word: [u8; 8]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word;
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(magic: u64, version: u32, flags: u64, freed: u64) -> Vec<u8> {
        let mut bytes = magic.to_ne_bytes().to_vec();
        bytes.extend(version.to_ne_bytes());
        bytes.extend((flags as u32).to_ne_bytes());
        bytes.extend([freed, 7, 8, 0, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_valid_counter_is_parsed() {
        let flags = numbers::COUNTS | numbers::TRIMS | numbers::OWN_DELETE;
        let freed = Freed::parse(&counter(numbers::MAGIC, 1, flags, 123)).unwrap();
        assert_eq!(
            (freed.freed_bytes, freed.trim_at_bytes, freed.trims, freed.inactive),
            (123, Some(7), 8, None)
        );
        assert!(freed.misses_delete && !freed.is_preceded);
    }

    #[test]
    fn an_invalid_counter_is_rejected() {
        let right = counter(numbers::MAGIC, 1, numbers::COUNTS, 0);
        assert!(Freed::parse(&right).is_some());
        assert_eq!(right.len(), FREED_BYTES);
        assert_eq!(Freed::parse(&right[..FREED_BYTES - 1]), None);
        assert_eq!(Freed::parse(&counter(numbers::MAGIC + 1, 1, numbers::COUNTS, 0)), None);
        assert_eq!(Freed::parse(&counter(numbers::MAGIC, 2, numbers::COUNTS, 0)), None);
        assert_eq!(Freed::parse(&counter(numbers::MAGIC, 1, 0, 0)), None);
    }

    #[test]
    fn a_library_that_does_not_count_reports_the_reason() {
        let of = |flags| Freed::parse(&counter(numbers::MAGIC, 1, flags, 0)).unwrap();
        assert_eq!(of(numbers::SANITIZED).inactive, Some(Inactive::Sanitizer));
        assert_eq!(of(numbers::PRIVILEGED).inactive, Some(Inactive::Privileged));
        assert_eq!(of(numbers::NO_SIZES).inactive, Some(Inactive::Allocator));
        let flags = numbers::COUNTS | numbers::BAD_THRESHOLD;
        assert_eq!(of(flags).trim_error, Some(TrimError::Malformed));
    }
}

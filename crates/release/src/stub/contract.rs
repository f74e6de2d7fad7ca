//! The contract with the code in the target, generated from `stub/shared.h` and `stub/contract.def`
//! by `build/contract.rs`: numbers, the fields of the shared block, operations, and system calls.

#![allow(dead_code, reason = "some numbers and fields are for the code in the target only")]

use std::marker::PhantomData;

include!(concat!(env!("OUT_DIR"), "/contract.rs"));

/// A field of the shared block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<T> {
    /// Its offset in the block, in bytes.
    pub(crate) offset: u64,
    value: PhantomData<T>,
}

impl<T> Field<T> {
    const fn at(offset: u64) -> Self {
        Self { offset, value: PhantomData }
    }
}

/// The type of a field.
pub(crate) trait FieldValue: Copy {
    /// Its bytes.
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Default;
    /// Encodes it as the block has it.
    fn to_bytes(self) -> Self::Bytes;
    /// Decodes it.
    fn from_bytes(bytes: &Self::Bytes) -> Self;
}

impl FieldValue for u32 {
    type Bytes = [u8; 4];
    fn to_bytes(self) -> Self::Bytes {
        self.to_le_bytes()
    }
    fn from_bytes(bytes: &Self::Bytes) -> Self {
        Self::from_le_bytes(*bytes)
    }
}

impl FieldValue for u64 {
    type Bytes = [u8; 8];
    fn to_bytes(self) -> Self::Bytes {
        self.to_le_bytes()
    }
    fn from_bytes(bytes: &Self::Bytes) -> Self {
        Self::from_le_bytes(*bytes)
    }
}

impl FieldValue for [u64; 3] {
    type Bytes = [u8; 24];
    fn to_bytes(self) -> Self::Bytes {
        let mut bytes = [0; 24];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self) {
            *place = word.to_le_bytes();
        }
        bytes
    }
    fn from_bytes(bytes: &Self::Bytes) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        std::array::from_fn(|place| u64::from_le_bytes(words[place]))
    }
}

/// Values for fields of the block. Adjacent ones are written at once.
#[derive(Debug, Default)]
pub(crate) struct FieldValues {
    /// Offset and bytes of each run.
    runs: Vec<(u64, Vec<u8>)>,
}

impl FieldValues {
    /// Adds a value.
    pub(crate) fn with<T: FieldValue>(mut self, field: Field<T>, value: T) -> Self {
        let bytes = value.to_bytes();
        match self.runs.last_mut() {
            Some((start, run)) if *start + run.len() as u64 == field.offset => {
                run.extend_from_slice(bytes.as_ref());
            }
            _ => self.runs.push((field.offset, bytes.as_ref().to_vec())),
        }
        self
    }

    /// Returns the offset and the bytes of each run of adjacent values.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.runs.iter().map(|(offset, bytes)| (*offset, &bytes[..]))
    }
}

/// The words of a slot in the table of operations.
pub(crate) type SlotWords = [u64; OP_BYTES as usize / 8];

/// A condition on the bits of a word: its address, the bits, and their value, as `struct check`.
/// The lowest bit of the address means that they must have another value.
pub(crate) type CheckWords = [u64; 3];

/// A system call of the code in the target.
#[derive(Debug)]
pub(crate) struct StubCall {
    /// The name of the call.
    pub(crate) name: &'static str,
    /// Its number.
    pub(crate) number: u64,
    /// Its arguments.
    pub(crate) args: [Argument; 6],
    /// Whether only a borrowed thread makes it, never the worker thread.
    pub(crate) is_of_borrowed: bool,
}

/// An argument of a system call of the code.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument {
    /// It is always the same.
    Constant(u64),
    /// An address in the block or in the program's memory.
    Address,
    /// The expected value of a futex.
    Value,
    /// A size in bytes.
    Length,
    /// The number of a signal.
    SignalNumber,
    /// The flags of `clone`.
    CloneFlags,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_by_which_code_of_an_older_lowtide_is_found_keep_their_places() {
        let places = [field::TID.offset, field::HEARTBEAT.offset, field::INJECTOR.offset];
        assert_eq!(places, [80, 144, 2368]);
        assert_eq!((CODE_BYTES, THREAD_STACK_END), (4096, 0x40000));
    }

    #[test]
    fn adjacent_values_are_written_at_once() {
        let values = FieldValues::default()
            .with(field::COUNT, 1)
            .with(field::NEXT, 2)
            .with(field::BATCH, 3)
            .with(field::DONE, 4);
        let runs: Vec<(u64, usize)> = values.runs().map(|(at, bytes)| (at, bytes.len())).collect();
        assert_eq!(runs, [(256, 16), (136, 8)]);
    }

    #[test]
    fn the_worker_thread_makes_only_calls_of_any_program_with_threads() {
        // It reads the clock only if it may not read the time stamp counter.
        let usual = [NR_FUTEX, NR_MADVISE, NR_RT_SIGPROCMASK, NR_EXIT, NR_CLOCK_GETTIME];
        let calls = CALLS.iter().filter(|call| !call.is_of_borrowed);
        let (made, others): (Vec<_>, Vec<_>) = calls.partition(|call| usual.contains(&call.number));
        assert!(made.len() > 6 && others.is_empty(), "{others:?}");
    }
}

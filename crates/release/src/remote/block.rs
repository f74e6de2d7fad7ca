//! The shared block of our code in the target.

use std::ops::Range;

use super::leftovers::Injector;
use super::target_io::TargetIo;
use crate::error::{Abort, failed};
use crate::stub::BLOCK_BYTES;
use crate::stub::contract::{CODE_BYTES, Field, FieldValue, FieldValues, field};

/// The addresses of our code and of the shared block after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedBlock {
    code: u64,
    /// This process, once the block has it.
    pub(super) injector: Option<Injector>,
}

impl SharedBlock {
    /// Creates it for code that is mapped at an address.
    pub(super) fn new(code: u64) -> Self {
        Self { code, injector: None }
    }

    /// Returns the address range of the code.
    pub(super) fn code(self) -> Range<u64> {
        self.code..self.code + CODE_BYTES
    }

    /// Returns the address of a field.
    pub(super) fn address<T>(self, field: Field<T>) -> u64 {
        self.address_at(field.offset)
    }

    /// Returns the address of an offset in the block.
    pub(super) fn address_at(self, offset: u64) -> u64 {
        self.code + CODE_BYTES + offset
    }

    /// Checks that the block still is the one that this process has mapped.
    ///
    /// # Errors
    /// Fails if it is not, or cannot be read: a release that saw no heartbeat for long may have
    /// unmapped it.
    pub(super) fn check_owner(self, io: &TargetIo<'_>) -> Result<(), Abort> {
        let seen = self.get(io, field::INJECTOR);
        match self.injector {
            Some(own) if seen == Some(own.words()) => Ok(()),
            _ => Err(io.because("another release has removed the code of lowtide from it")),
        }
    }

    /// Writes to the block.
    ///
    /// # Errors
    /// Fails if that would exceed the block: no other memory in the target is ours.
    pub(super) fn write(
        self,
        io: &mut TargetIo<'_>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Abort> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > BLOCK_BYTES) {
            return Err(failed("lowtide would have written outside of its own block"));
        }
        io.write(self.address_at(offset), bytes)
    }

    /// Writes fields.
    pub(super) fn set(self, io: &mut TargetIo<'_>, values: &FieldValues) -> Result<(), Abort> {
        values.runs().try_for_each(|(offset, bytes)| self.write(io, offset, bytes))
    }

    /// Reads a field; `None` if the block is not mapped any more.
    pub(super) fn get<T: FieldValue>(self, io: &TargetIo<'_>, field: Field<T>) -> Option<T> {
        let mut bytes = T::Bytes::default();
        io.read(self.address(field), bytes.as_mut()).ok()?;
        Some(T::from_bytes(&bytes))
    }
}

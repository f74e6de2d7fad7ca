//! The shared block of our code in the target.

use std::ops::Range;

use super::leftovers::Injector;
use super::mapping::Injected;
use super::target_io::TargetIo;
use crate::error::{Abort, failed};
use crate::stub::BLOCK_BYTES;
use crate::stub::numbers::{CODE_BYTES, OFF_INJECTOR};

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
    pub(super) fn address(self, offset: u64) -> u64 {
        self.code + CODE_BYTES + offset
    }

    /// Checks that the block still is the one that this process has mapped.
    ///
    /// # Errors
    /// Fails if it is not, or cannot be read: a release that saw no heartbeat for long may have
    /// unmapped it.
    pub(super) fn check_owner(self, io: &TargetIo<'_>) -> Result<(), Abort> {
        let mut bytes = [0; 24];
        let is_read = io.read(self.address(OFF_INJECTOR), &mut bytes).is_ok();
        match self.injector {
            Some(own) if is_read && bytes == own.bytes() => Ok(()),
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
        io.write(self.address(offset), bytes)
    }

    /// Writes a word of 64 bits.
    pub(super) fn put(self, io: &mut TargetIo<'_>, offset: u64, word: u64) -> Result<(), Abort> {
        self.write(io, offset, &word.to_le_bytes())
    }
}

/// Access to the block while it is mapped.
impl Injected<'_, '_> {
    /// Returns the address of a field.
    pub(crate) fn address_of(&self, offset: u64) -> u64 {
        self.block.address(offset)
    }

    /// Writes to the block.
    ///
    /// # Errors
    /// Fails if that would exceed the block, or if the target has ended.
    pub(crate) fn write_block(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Abort> {
        self.block.write(&mut self.borrower.io, offset, bytes)
    }

    /// Writes a word of 64 bits.
    pub(crate) fn put(&mut self, offset: u64, word: u64) -> Result<(), Abort> {
        self.block.put(&mut self.borrower.io, offset, word)
    }

    /// Writes a word of 32 bits.
    pub(crate) fn put_half(&mut self, offset: u64, half: u64) -> Result<(), Abort> {
        self.write_block(offset, &(half as u32).to_le_bytes())
    }

    /// Reads from the block; `None` if it is not mapped any more.
    pub(crate) fn read_block(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        self.borrower.io.read(self.block.address(offset), bytes).ok()
    }

    /// Reads a word of 64 bits.
    pub(crate) fn get(&self, offset: u64) -> Option<u64> {
        self.borrower.io.word(self.block.address(offset))
    }

    /// Reads a word of 32 bits.
    pub(crate) fn half(&self, offset: u64) -> Option<u64> {
        let mut bytes = [0; 4];
        self.read_block(offset, &mut bytes)?;
        Some(u32::from_le_bytes(bytes).into())
    }
}

//! Access to the shared block while it is mapped.

use super::mapping::Injected;
use crate::error::Abort;
use crate::stub::StubCounts;
use crate::stub::contract::{Field, FieldValue, FieldValues, OPS};

impl Injected<'_, '_> {
    /// Returns the address of the table of operations.
    pub(crate) fn ops_at(&self) -> u64 {
        self.block.address_at(OPS)
    }

    /// Writes to the table of operations.
    ///
    /// # Errors
    /// Fails if that would exceed the block, or if the target has ended.
    pub(crate) fn write_ops(&mut self, bytes: &[u8]) -> Result<(), Abort> {
        self.block.write(&mut self.borrower.io, OPS, bytes)
    }

    /// Writes fields.
    pub(crate) fn set(&mut self, values: &FieldValues) -> Result<(), Abort> {
        self.block.set(&mut self.borrower.io, values)
    }

    /// Writes a field.
    pub(crate) fn put<T: FieldValue>(&mut self, field: Field<T>, value: T) -> Result<(), Abort> {
        self.set(&FieldValues::default().with(field, value))
    }

    /// Reads a field; `None` if the block is not mapped any more.
    pub(crate) fn get<T: FieldValue>(&self, field: Field<T>) -> Option<T> {
        self.block.get(&self.borrower.io, field)
    }

    /// Reads the counts of the code, as the block has them.
    pub(crate) fn read_counts(&self) -> Option<[u8; StubCounts::BYTES]> {
        let mut bytes = [0; StubCounts::BYTES];
        self.borrower.io.read(self.block.address_at(StubCounts::OFFSET), &mut bytes).ok()?;
        Some(bytes)
    }
}

//! Machine code of x86-64 that is searched for the addresses of variables.

use crate::memory::half_in;

/// A part of the code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Code<'c> {
    /// The address of its first byte.
    pub(crate) at: u64,
    pub(crate) bytes: &'c [u8],
}

impl<'c> Code<'c> {
    /// Returns the parts that were read, each with its address.
    pub(crate) fn parts(read: &'c [(u64, Vec<u8>)]) -> Vec<Self> {
        read.iter().map(|(at, bytes)| Code { at: *at, bytes }).collect()
    }

    /// Returns the address to which the last four bytes of an instruction lead.
    pub(crate) fn relative(&self, place: usize) -> Option<u64> {
        let distance = half_in(self.bytes, place)?.cast_signed();
        self.at.checked_add(place as u64 + 4)?.checked_add_signed(distance.into())
    }
}

/// Returns whether the operand of an instruction is relative to its end.
pub(crate) fn is_relative(modrm: u8) -> bool {
    modrm & 0xc7 == 5
}

#[cfg(test)]
pub(crate) mod assembled {
    /// The address of the code.
    pub(crate) const AT: u64 = 0x40_0000;

    /// Code that is put together of instructions.
    #[derive(Default)]
    pub(crate) struct Assembled(pub(crate) Vec<u8>);

    impl Assembled {
        pub(crate) fn plain(&mut self, bytes: &[u8]) -> &mut Self {
            self.0.extend(bytes);
            self
        }

        /// Adds an instruction, which is followed by an address relative to its end.
        pub(crate) fn relative(&mut self, bytes: &[u8], to: u64) -> &mut Self {
            self.0.extend(bytes);
            let end = AT + self.0.len() as u64 + 4;
            let distance = to.wrapping_sub(end) as u32;
            self.0.extend(distance.to_le_bytes());
            self
        }

        /// Returns the address of the next instruction.
        pub(crate) fn at(&self) -> u64 {
            AT + self.0.len() as u64
        }
    }
}

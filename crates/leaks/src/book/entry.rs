//! A block in the book.

use lowtide_heap::blocks::{Block, PLACE};

/// A block of less than [`PLACE`] bytes in 8 bytes: offset in its place and size in units of 8
/// bytes, print, cohort, whether no pointer to it was found, and whether the last snapshot saw it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedEntry(u64);

pub(super) const UNIT: u64 = 8;
const UNITS: u32 = (PLACE / UNIT).ilog2();

impl PackedEntry {
    pub(super) fn new(block: &Block, cohort: u8) -> Self {
        let offset = block.at % PLACE / UNIT;
        let size = block.bytes / UNIT;
        let head = offset << UNITS | size;
        Self((head << 16 | u64::from(block.print)) << 16 | u64::from(cohort) << 8 | 1)
    }

    pub(super) fn offset(self) -> u64 {
        (self.0 >> (32 + UNITS)) * UNIT
    }

    pub(super) fn bytes(self) -> u64 {
        (self.0 >> 32 & (PLACE / UNIT - 1)) * UNIT
    }

    pub(super) fn print(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub(super) fn cohort(self) -> u8 {
        (self.0 >> 8) as u8
    }

    pub(super) fn is_seen(self) -> bool {
        self.0 & 1 == 1
    }

    pub(super) fn with_cohort(self, cohort: u8) -> Self {
        Self(self.0 & !0xff00 | u64::from(cohort) << 8)
    }

    pub(super) fn is_lost(self) -> bool {
        self.0 & 2 == 2
    }

    pub(super) fn with_lost(self, is_lost: bool) -> Self {
        Self(self.0 & !2 | u64::from(is_lost) << 1)
    }

    pub(super) fn with_seen(self, is_seen: bool) -> Self {
        Self(self.0 & !1 | u64::from(is_seen))
    }

    /// Returns whether two entries of the same offset are the same block.
    pub(super) fn is_same(self, other: Self) -> bool {
        self.bytes() == other.bytes() && prints_agree(self.print(), other.print())
    }
}

/// Returns whether two prints may be of the same content: 0 stands for content that was not read.
pub(super) fn prints_agree(one: u16, other: u16) -> bool {
    one == other || one == 0 || other == 0
}

//! A group: up to 32 slots of one size. Most groups have a mapping of their own; small ones are in
//! a slot of another group.

use std::ops::Range;

use crate::memory::word_in;

/// Size of a record (`struct meta`), in bytes.
pub(super) const META_BYTES: u64 = 40;
/// Alignment and unit of slots, and size of the head of a group, in bytes (`UNIT`).
pub(super) const UNIT: u64 = 16;
/// Number of bytes before a block that belong to it, and at the end of a slot to the next (`IB`).
pub(super) const IN_BAND: u64 = 4;
/// Unit of the size of a mapping in a record, in bytes.
const MAPPED_UNIT: u64 = 4096;
/// The class of blocks that have a mapping of their own.
const LONE: usize = 63;

/// Number of size classes.
pub(super) const CLASSES: usize = 48;
/// Sizes of slots by class, in units (`__malloc_size_classes`).
const SIZES: [u16; CLASSES] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];

/// The place of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// A mapping of its own.
    Mapped,
    /// A slot of another group.
    Nested,
    /// A gap between the parts of a program or library, which the loader has given to the
    /// allocator. Its pages are of a file.
    Donated,
}

/// The words of a record that prove that slots are still free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupWords {
    /// Its address.
    pub(super) at: u64,
    /// The masks of free slots: those that can be allocated, and in the upper half those that were
    /// freed since.
    pub(super) masks: u64,
    /// The number of slots, the class and the size of the mapping.
    pub(super) bits: u64,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Its record.
    pub(super) record: GroupWords,
    /// Its addresses: the head, the slots, and the rest of the mapping.
    pub(super) range: Range<u64>,
    /// Its place.
    pub(super) location: Location,
    /// Size of a slot, in bytes.
    pub(super) stride: u64,
    /// Number of slots, at most 32.
    pub(super) count: u32,
    /// The free slots, one bit each.
    pub(super) free: u32,
    /// The class, if it is not that of blocks with a mapping of their own.
    pub(super) class: Option<usize>,
}

impl Group {
    /// Returns whether a record has a group.
    pub(super) fn is_used(record: &[u8]) -> bool {
        word_in(record, 16).is_some_and(|at| at != 0)
    }

    /// Reads the record at an address; `None` if it is unused, or cannot be one of a group.
    pub(super) fn parse(record_at: u64, record: &[u8]) -> Option<Self> {
        let (at, bits) = (word_in(record, 16)?, word_in(record, 32)?);
        let masks = word_in(record, 24)?;
        let free = masks as u32 | (masks >> 32) as u32;
        let count = (bits & 31) as u32 + 1;
        let (is_freeable, class) = (bits >> 5 & 1 == 1, (bits >> 6 & 63) as usize);
        let mapped_bytes = (bits >> 12).checked_mul(MAPPED_UNIT)?;
        let location = match (mapped_bytes, is_freeable) {
            (0, false) => Location::Donated,
            (0, true) => Location::Nested,
            _ => Location::Mapped,
        };
        let (class, stride) = match (SIZES.get(class), mapped_bytes) {
            (None, bytes) if class == LONE && bytes > 0 && count == 1 => (None, bytes - UNIT),
            (None, _) => return None,
            (Some(_), bytes) if count == 1 && bytes > 0 => (Some(class), bytes - UNIT),
            (Some(size), _) => (Some(class), u64::from(*size) * UNIT),
        };
        let bytes = UNIT + stride * u64::from(count);
        let bytes = if location == Location::Mapped { mapped_bytes } else { bytes };
        let is_aligned = at.is_multiple_of(if mapped_bytes > 0 { MAPPED_UNIT } else { UNIT });
        let fits = UNIT + stride * u64::from(count) <= bytes;
        let range = at..at.checked_add(bytes)?;
        let free = free & mask(count);
        (at > 0 && is_aligned && fits).then_some(Self {
            record: GroupWords { at: record_at, masks, bits },
            range,
            location,
            stride,
            count,
            free,
            class,
        })
    }

    /// Returns the size of the slots of a class, in bytes.
    pub(super) fn class_bytes(class: usize) -> u64 {
        SIZES.get(class).map_or(0, |size| u64::from(*size) * UNIT)
    }

    /// Returns the addresses of a slot. The four bytes before it belong to it, and the last four
    /// to the next.
    pub(super) fn slot(&self, index: u32) -> Range<u64> {
        let start = self.range.start + UNIT + self.stride * u64::from(index);
        start..start + self.stride
    }

    /// Returns the index of the slot in use that contains a range.
    pub(super) fn used_slot_of(&self, range: &Range<u64>) -> Option<u32> {
        let index = range.start.checked_sub(self.range.start + UNIT)? / self.stride;
        let index = u32::try_from(index).ok().filter(|index| *index < self.count)?;
        (!self.is_free(index) && range.end <= self.slot(index).end).then_some(index)
    }

    pub(super) fn is_free(&self, index: u32) -> bool {
        self.free >> index & 1 == 1
    }

    /// Returns the runs of free slots.
    pub(super) fn free_runs(&self) -> impl Iterator<Item = Range<u32>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            at += (self.free.checked_shr(at)?).trailing_zeros();
            let length = (!self.free.checked_shr(at)?).trailing_zeros();
            let run = at..(at + length).min(self.count);
            at = run.end;
            (run.start < run.end).then_some(run)
        })
    }

    /// Returns the whole pages of a run of free slots. They contain neither the head of the group
    /// nor a byte of a slot in use.
    pub(super) fn free_pages(&self, run: Range<u32>, page_bytes: u64) -> Range<u64> {
        let first = self.slot(run.start).start;
        let start = if run.start == 0 { first } else { first - IN_BAND };
        let end = match run.end == self.count {
            true => self.range.end,
            false => self.slot(run.end).start - IN_BAND,
        };
        let start = start.next_multiple_of(page_bytes);
        start..(end - end % page_bytes).max(start)
    }
}

/// Returns the mask of some first bits.
fn mask(count: u32) -> u32 {
    u32::MAX >> (32 - count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7000_0000_0000;
    /// The address of a record.
    const RECORD: u64 = 0x5555_0000_0018;
    /// A class of 4080 bytes.
    const CLASS: u64 = 27;

    fn record(at: u64, free: u32, bits: u64) -> Vec<u8> {
        let masks = u64::from(free & 0x5555_5555) | u64::from(free & 0xaaaa_aaaa) << 32;
        [0, 0, at, masks, bits].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn group(count: u64, free: u32, pages: u64) -> Group {
        Group::parse(
            RECORD,
            &record(AT, free, (count - 1) | (1 << 5) | (CLASS << 6) | (pages << 12)),
        )
        .unwrap()
    }

    #[test]
    fn whole_pages_of_free_slots_exclude_the_head_and_the_slots_in_use() {
        let found = group(7, 0b110_0110, 7);
        assert_eq!(found.stride, 4080);
        let runs: Vec<_> = found.free_runs().collect();
        assert_eq!(runs, [1..3, 5..7]);
        // The slots 1 and 2 are 0x1000 to 0x2fe0, without four bytes; the last is followed by the
        // rest of the mapping.
        assert_eq!(found.free_pages(1..3, 4096), AT + 0x1000..AT + 0x2000);
        assert_eq!(found.free_pages(5..7, 4096), AT + 0x5000..AT + 0x7000);
        assert_eq!(group(7, 0b1, 7).free_pages(0..1, 4096), AT + 0x1000..AT + 0x1000);
        let runs = |free| group(7, free, 7).free_runs().collect::<Vec<_>>();
        let all = 0..7;
        assert!(runs(0).is_empty() && runs(0x7f) == std::slice::from_ref(&all));
    }

    #[test]
    fn all_32_slots_of_a_group_can_be_free() {
        let of =
            |free| Group::parse(RECORD, &record(AT, free, 31 | 1 << 5 | 1 << 6 | 1 << 12)).unwrap();
        assert_eq!(of(u32::MAX).free_runs().collect::<Vec<_>>(), vec![0..32]);
        assert_eq!(of(1 << 31).free_runs().collect::<Vec<_>>(), vec![31..32]);
    }

    #[test]
    fn a_record_that_cannot_be_of_a_group_is_rejected() {
        let parse = |at, bits| Group::parse(RECORD, &record(at, 0, bits));
        assert!(parse(0, 1 << 5 | 1 << 12).is_none(), "unused");
        assert!(parse(AT + 16, 1 << 5 | 1 << 12).is_none(), "a mapping begins with a page");
        assert!(parse(AT, 1 << 5 | 50 << 6 | 1 << 12).is_none(), "there are 48 classes");
        assert!(parse(AT, 31 | 1 << 5 | 47 << 6 | 1 << 12).is_none(), "larger than its mapping");
        assert!(parse(AT, u64::MAX).is_none(), "more than the address space");
        assert!(parse(u64::MAX - 15, 1 << 5).is_none(), "it ends beyond all addresses");
        assert_eq!(parse(AT + 16, 1 << 6).unwrap().location, Location::Donated);
        assert_eq!(parse(AT, 1 << 5 | 63 << 6 | 9 << 12).unwrap().stride, 9 * 4096 - 16);
    }

    #[test]
    fn a_group_is_nested_only_in_one_slot_in_use() {
        let found = group(4, 0b10, 7);
        let slot = found.slot(2);
        assert_eq!(found.used_slot_of(&(slot.start + 16..slot.end)), Some(2));
        assert_eq!(found.used_slot_of(&(slot.start..slot.end + 1)), None);
        assert_eq!(found.used_slot_of(&found.slot(1)), None);
        assert_eq!(found.used_slot_of(&(AT..AT + 32)), None);
        assert_eq!(found.used_slot_of(&(AT + 0x6000..AT + 0x6010)), None);
    }
}

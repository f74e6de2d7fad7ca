//! A page of mimalloc: a row of blocks of one size (`mi_page_t`).

use std::ops::Range;

use crate::droppable::Check;
use crate::memory::Memory;
use crate::scattered::Scattered;

/// Bytes of the longest record.
pub(super) const RECORD_BYTES: u64 = 96;

/// The blocks of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    /// Bytes of a block.
    pub(super) block_bytes: u64,
    /// Number of blocks that the program has.
    pub(super) live: u64,
    /// Number of blocks that have been handed out at least once, or are in a free list.
    pub(super) capacity: u64,
    /// Number of blocks that fit.
    pub(super) reserved: u64,
    /// Number of blocks that other threads have freed. They wait for the thread of the page.
    pub(super) freed_elsewhere: u64,
}

/// The lists of the blocks that other threads have freed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreedElsewhere<'a> {
    /// Maximum number of entries of the list of a page.
    pub(super) max_listed: u64,
    /// The blocks in the lists of heaps, in order.
    pub(super) of_heaps: &'a [u64],
}

impl FreedElsewhere<'_> {
    /// Returns the blocks in the lists of heaps that are in a range.
    fn within(&self, blocks: &Range<u64>) -> &[u64] {
        let place = |address| self.of_heaps.partition_point(|block| *block < address);
        &self.of_heaps[place(blocks.start)..place(blocks.end)]
    }
}

/// Places of the fields of a page's record, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    used: u64,
    is_used_long: bool,
    capacity: u64,
    block_bytes: u64,
    is_size_short: bool,
    freed_elsewhere: u64,
    /// The lists of free blocks of the page's own thread (`free`, `local_free`).
    free: [u64; 2],
    /// Start of the first block (`page_start`); not in all versions.
    start: Option<u64>,
}

/// Version 3 (`types.h`): `{ thread, free, u16 used, capacity, reserved, …, local_free,
/// thread_free, block_size }`.
pub(super) const V3: Fields = Fields {
    used: 16,
    is_used_long: false,
    capacity: 18,
    block_bytes: 40,
    is_size_short: false,
    freed_elsewhere: 32,
    free: [8, 24],
    start: Some(48),
};
/// Version 2 with records of 96 bytes, from 2.1.9 on.
pub(super) const V2: Fields = Fields {
    used: 32,
    is_used_long: false,
    capacity: 10,
    block_bytes: 40,
    is_size_short: false,
    freed_elsewhere: 56,
    free: [16, 24],
    start: Some(48),
};
/// Version 2 with records of 80 bytes.
pub(super) const V2_SHORT: Fields = Fields {
    used: 24,
    is_used_long: true,
    capacity: 10,
    block_bytes: 28,
    is_size_short: true,
    freed_elsewhere: 40,
    free: [16, 32],
    start: None,
};

impl Fields {
    /// Reads the size of a block, in bytes. A span that is not a page has the size 0.
    pub(super) fn block_bytes<M: Memory>(
        self,
        words: &mut Scattered<'_, M>,
        record: u64,
    ) -> Option<u64> {
        number(words, record.checked_add(self.block_bytes)?, if self.is_size_short { 4 } else { 8 })
    }

    /// Returns the check that the blocks of a page have this size.
    pub(super) fn check_of_block_bytes(self, record: u64, bytes: u64) -> Check {
        match self.is_size_short {
            true => Check::bits(record + self.block_bytes - 4, 0xffff_ffff << 32, bytes << 32),
            false => Check::word(record + self.block_bytes, bytes),
        }
    }

    /// Returns the check that the same numbers of blocks of a page were handed out, and fit.
    pub(super) fn check_of_blocks(self, record: u64, page: &Page) -> Check {
        let place = self.capacity % 8;
        let value = (page.capacity | page.reserved << 16) << (8 * place);
        Check::bits(record + self.capacity - place, 0xffff_ffff << (8 * place), value)
    }

    /// Returns the check that a span is not a page: it has no blocks (`mi_segment_page_clear`).
    pub(super) fn check_of_no_blocks(self, record: u64) -> Check {
        let place = self.capacity % 8;
        Check::bits(record + self.capacity - place, 0xffff_ffff << (8 * place), 0)
    }

    /// Returns whether a span has no blocks. In records of another form, a page could have the size
    /// 0.
    pub(super) fn has_no_blocks<M: Memory>(
        self,
        words: &mut Scattered<'_, M>,
        record: u64,
    ) -> bool {
        let at = record.checked_add(self.capacity);
        let numbers = at.map(|at| [number(words, at, 2), number(words, at + 2, 2)]);
        numbers == Some([Some(0), Some(0)])
    }

    /// Returns the address of the heap of a page; 0 if there is none. It follows the list of blocks
    /// that other threads have freed (`xheap`, version 2).
    pub(super) fn heap<M: Memory>(self, words: &mut Scattered<'_, M>, record: u64) -> Option<u64> {
        words.word(record.checked_add(self.freed_elsewhere + 8)?)
    }

    /// Returns the addresses of the heads of the lists of free blocks that only the page's own
    /// thread changes.
    pub(super) fn own_lists(self, record: u64) -> [u64; 2] {
        self.free.map(|place| record + place)
    }

    /// Returns the start of the first block of a page. `blocks` is the range of the blocks.
    pub(super) fn first_block<M: Memory>(
        self,
        words: &mut Scattered<'_, M>,
        record: u64,
        page: &Page,
        blocks: &Range<u64>,
    ) -> Option<u64> {
        match self.start {
            Some(place) => number(words, record.checked_add(place)?, 8),
            None => first_block(page, blocks),
        }
    }

    /// Returns the start of the first block of a page, and the addresses of its free blocks in
    /// order, or `None` if the lists of free blocks contradict the record.
    pub(super) fn free_blocks<M: Memory>(
        self,
        words: &mut Scattered<'_, M>,
        record: u64,
        page: &Page,
        blocks: &Range<u64>,
        lists: FreedElsewhere<'_>,
    ) -> Option<(u64, Vec<u64>)> {
        let count = page.capacity - page.live;
        let mut free = lists.within(blocks).to_vec();
        let heads = [self.free[0], self.free[1], self.freed_elsewhere];
        for head in heads {
            // Two bits of the list of other threads are flags.
            let mut next = number(words, record.checked_add(head)?, 8)? & !3;
            while next != 0 {
                if !blocks.contains(&next) || free.len() as u64 >= count {
                    return None;
                }
                free.push(next);
                next = words.word(next)?;
            }
        }
        if free.len() as u64 != count {
            return None;
        }
        free.sort_unstable();
        let start = self.first_block(words, record, page, blocks)?;
        let end = start.checked_add(page.block_bytes * page.capacity)?;
        let is_sound = blocks.start <= start
            && end <= blocks.end
            && free.iter().all(|at| *at >= start && (at - start) % page.block_bytes == 0);
        is_sound.then_some((start, free))
    }
}

/// Returns the start of the first block of a page whose record does not contain it. The distance
/// from the page's start follows one of two rules (`_mi_segment_page_start_from_slice` up to 2.1.1,
/// and since), and decides how many blocks fit.
fn first_block(page: &Page, blocks: &Range<u64>) -> Option<u64> {
    let size = page.block_bytes;
    let early = if (8..=1024).contains(&size) { 384 } else { 0 };
    let late = match size {
        8..=64 => 3 * size,
        65..=512 => size,
        _ => 0,
    };
    let bytes = blocks.end - blocks.start;
    let fits = |offset: &u64| bytes.checked_sub(*offset).map(|b| b / size) == Some(page.reserved);
    [early, late].into_iter().find(fits).map(|offset| blocks.start + offset)
}

/// Reads a number of 2, 4 or 8 bytes.
fn number<M: Memory>(words: &mut Scattered<'_, M>, address: u64, bytes: u64) -> Option<u64> {
    let word = words.word(address - address % 8)? >> (8 * (address % 8));
    Some(if bytes == 8 { word } else { word & ((1 << (8 * bytes)) - 1) })
}

impl Page {
    /// Reads a page from its record. Its blocks lie in `blocks`. The blocks that other threads have
    /// freed are in the list of the page, and in `lists`; without that, they count as live. Returns
    /// `None` if the record is inconsistent.
    pub(super) fn read<M: Memory>(
        words: &mut Scattered<'_, M>,
        fields: Fields,
        at: u64,
        blocks: &Range<u64>,
        lists: Option<FreedElsewhere<'_>>,
    ) -> Option<Self> {
        let mut number = |place: u64, bytes: u64| number(words, at.checked_add(place)?, bytes);
        let used = number(fields.used, if fields.is_used_long { 4 } else { 2 })?;
        let capacity = number(fields.capacity, 2)?;
        let reserved = number(fields.capacity + 2, 2)?;
        let list = number(fields.freed_elsewhere, 8)? & !3;
        let block_bytes = fields.block_bytes(words, at)?;
        let is_sound = used <= capacity
            && capacity <= reserved
            && block_bytes > 0
            && block_bytes.is_multiple_of(8)
            && block_bytes.checked_mul(reserved)? <= blocks.end - blocks.start;
        if !is_sound {
            return None;
        }
        // Blocks that other threads have freed still count as used.
        let (mut freed_elsewhere, mut block) = (0, list);
        while block != 0
            && let Some(lists) = lists
        {
            if !blocks.contains(&block) || freed_elsewhere >= used.min(lists.max_listed) {
                return None;
            }
            freed_elsewhere += 1;
            block = words.word(block)?;
        }
        let in_heaps = lists.map_or(0, |lists| lists.within(blocks).len() as u64);
        // The owner may have taken them since their list was read.
        freed_elsewhere = used.min(freed_elsewhere + in_heaps);
        Some(Self {
            block_bytes,
            live: used - freed_elsewhere,
            capacity,
            reserved,
            freed_elsewhere,
        })
    }
}

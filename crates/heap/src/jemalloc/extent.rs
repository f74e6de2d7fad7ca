//! The record of an extent: `edata_t` (`edata.h`), `extent_t` before 5.3 (`extent_structs.h`).

use std::ops::Range;

/// The smallest page of a jemalloc, in bytes. Builds for systems with larger pages have pages of 16
/// or 64 KiB (`--with-lg-page`), and run on systems with smaller ones, too.
pub(super) const MIN_PAGE_BYTES: u64 = 1 << 12;

/// The greatest number of a shard of a bin, which is also the mask of the number.
const MAX_SHARD: u64 = 0x3f;
/// Place of the bitmap of a slab in its record, in all versions.
const BITMAP_AT: u64 = 64;
/// Maximum number of words of the bitmap of a slab: a page of 64 KiB has 8,192 regions of 8 bytes
/// (`SC_LG_SLAB_MAXREGS`). A bitmap of more than 8 words is the lowest level of a tree of bits,
/// whose higher levels follow it (`BITMAP_USE_TREE`).
pub(super) const MAX_BITMAP_WORDS: usize = 128;

/// The layouts of the first word of a record (`e_bits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BitsLayout {
    /// 5.0.
    V50,
    /// 5.1 and 5.2. In 5.1, the number of a shard is a part of the serial number.
    V52,
    /// From 5.3 on.
    V53,
}

impl BitsLayout {
    pub(super) const ALL: [Self; 3] = [Self::V50, Self::V52, Self::V53];

    /// Returns whether it is that of 5.3 or newer.
    pub(super) fn is_since_53(self) -> bool {
        self == Self::V53
    }

    /// Returns the place of the state.
    fn state_at(self) -> u32 {
        match self {
            Self::V50 => 15,
            Self::V52 => 16,
            Self::V53 => 17,
        }
    }

    fn state_width(self) -> u32 {
        if self.is_since_53() { 3 } else { 2 }
    }

    /// Returns the place of the size class, which follows the state.
    fn class_at(self) -> u32 {
        self.state_at() + self.state_width()
    }
}

/// Number of bits of a size class.
const CLASS_WIDTH: u32 = 8;

/// The state of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The program has it, or a part of it.
    Active,
    /// It is free and resident.
    Dirty,
    /// It is free, and the kernel may take its pages.
    Muzzy,
    /// It is free, and its pages were returned.
    Retained,
    /// It is changing, or its state belongs to a later version.
    Other,
}

/// The layout of the first word of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) version: BitsLayout,
    /// Bytes of a page of jemalloc.
    pub(super) page_bytes: u64,
}

/// The first word of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits {
    word: u64,
    format: Format,
}

impl Bits {
    pub(super) fn new(word: u64, format: Format) -> Self {
        Self { word, format }
    }

    pub(super) fn version(self) -> BitsLayout {
        self.format.version
    }

    fn field(self, place: u32, width: u32) -> u64 {
        self.word >> place & ((1 << width) - 1)
    }

    pub(super) fn arena(self) -> u64 {
        self.field(0, 12)
    }

    pub(super) fn is_slab(self) -> bool {
        self.field(12, 1) == 1
    }

    /// Returns whether it belongs to the allocator of huge pages (`opt.hpa`), whose free pages have
    /// no records.
    pub(super) fn is_of_huge_pages(self) -> bool {
        self.version().is_since_53() && self.field(14, 1) == 1
    }

    pub(super) fn state(self) -> State {
        match self.field(self.version().state_at(), self.version().state_width()) {
            0 => State::Active,
            1 => State::Dirty,
            2 => State::Muzzy,
            3 => State::Retained,
            _ => State::Other,
        }
    }

    /// Returns the index of the size class.
    pub(super) fn class(self) -> usize {
        self.field(self.version().class_at(), CLASS_WIDTH) as usize
    }

    /// Returns the shard of the bin of a slab.
    pub(super) fn shard(self) -> u64 {
        self.word >> self.shard_at() & MAX_SHARD
    }

    /// Returns whether inaccessible pages surround it.
    pub(super) fn is_guarded(self) -> bool {
        self.version().is_since_53() && self.field(16, 1) == 1
    }

    /// Returns the mask of the bits that identify a free extent: its arena, whether it is a slab,
    /// its page allocator, whether it is guarded, and its state.
    pub(super) fn free_extent_mask(self) -> u64 {
        match self.version() {
            BitsLayout::V50 => 0x1fff | 0b11 << 15,
            BitsLayout::V52 => 0x1fff | 0b11 << 16,
            BitsLayout::V53 => 0x1fff | 1 << 14 | 1 << 16 | 0b111 << 17,
        }
    }

    /// Returns the mask of the same bits, and those of the size class and the shard.
    pub(super) fn slab_mask(self) -> u64 {
        let class = 0xff << self.version().class_at();
        self.free_extent_mask() | class | MAX_SHARD << self.shard_at()
    }

    /// Returns the mask of the number of free regions of a slab.
    pub(super) fn free_regions_mask(self) -> u64 {
        ((1 << self.free_regions_width()) - 1) << self.free_regions_at()
    }

    /// Returns a word with only this number of free regions.
    pub(super) fn with_free_regions(self, count: u64) -> u64 {
        count << self.free_regions_at()
    }

    fn free_regions_at(self) -> u32 {
        self.version().class_at() + CLASS_WIDTH
    }

    /// Returns the number of bits of the number of free regions: a page may have a region for every
    /// 8 bytes (`EDATA_BITS_NFREE_WIDTH`).
    fn free_regions_width(self) -> u32 {
        (self.format.page_bytes / 8).ilog2() + 1
    }

    fn shard_at(self) -> u32 {
        self.free_regions_at() + self.free_regions_width()
    }

    /// Returns the number of free regions of a slab.
    pub(super) fn free_regions(self) -> u64 {
        (self.word & self.free_regions_mask()) >> self.free_regions_at()
    }
}

/// The record of an extent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// Its address.
    pub(super) at: u64,
    /// Its first word.
    pub(super) word: u64,
    /// The address of the extent.
    pub(super) address: u64,
    /// Distance from there to the program's memory, for a large allocation: jemalloc varies it
    /// within the first page (`extent_addr_randomize`).
    pub(super) offset: u64,
    /// Size of the extent in bytes, in whole pages.
    pub(super) bytes: u64,
    /// Bytes of a page of jemalloc.
    pub(super) page_bytes: u64,
}

impl Record {
    pub(super) fn first_page(&self) -> u64 {
        self.address / self.page_bytes
    }

    pub(super) fn last_page(&self) -> u64 {
        (self.address + self.bytes - 1) / self.page_bytes
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes
    }

    /// Returns the mask of its size in the word at +16. The other bits are a serial number.
    pub(super) fn bytes_mask(&self) -> u64 {
        !(self.page_bytes - 1)
    }

    /// Returns the addresses of the words of its bitmap.
    pub(super) fn bitmap(&self) -> impl Iterator<Item = u64> {
        let at = self.at + BITMAP_AT;
        (0..MAX_BITMAP_WORDS as u64).map(move |word| at + 8 * word)
    }
}

//! The heap of mimalloc: versions 2.0.9 and newer, page by page.
//!
//! - `find`: the segments of version 2 and the arenas of version 3.
//! - `segment`, `arena`: their pages and free parts.
//! - `page`: rows of blocks of one size.
//! - `delayed`: blocks that wait for the thread that allocated them (version 2).
//! - `droppable`: free slices of version 3, with the bits that claim them.
//! - `owned`: free memory of version 2, with the thread that owns it.
//! - `tally`: the sums.
//!
//! Free blocks can be anywhere in a page. So resident bytes of a page with live blocks count as
//! fragmented, except for the live blocks. A page whose blocks are all free is reclaimable, and so
//! are free slices. If other threads have freed some of its blocks, the page waits for its own
//! thread, like a block in the cache of a thread.
//!
//! Sources: mimalloc 2.0.9 to 2.4.1 and 3.0.10 to 3.4.3, `include/mimalloc/types.h` and
//! `src/arena.c`.

mod allocator;
mod arena;
mod delayed;
mod droppable;
mod find;
mod owned;
mod page;
mod segment;
mod tally;

use std::ops::Range;

use crate::blocks::{BlockCollector, Visitor};
use crate::droppable::Unguarded;
use crate::memory::Memory;
use crate::ranges::{gaps, union};
use crate::residency::Residency;
use crate::rewalk::least_torn;
use crate::rooms::RoomKind;
use crate::scattered::Scattered;
pub use droppable::each_droppable;
use find::{Place, SLICE};
use page::{FreedElsewhere, Page};
pub use tally::{Heap, Resident, Tally};

/// Maximum number of times that an inconsistent page is read again.
const REREADS: u32 = 3;
/// The same for all pages of a walk.
const MAX_REREADS: u32 = 4 << 10;

/// The places of the segments or arenas.
#[derive(Debug)]
pub struct Layout {
    places: Vec<Place>,
}

impl Layout {
    /// Finds a mimalloc. `anonymous` are the private writable anonymous mappings in order, adjacent
    /// ones merged.
    pub fn find(memory: &impl Memory, anonymous: &[Range<u64>]) -> Option<Self> {
        let places = find::places(memory, anonymous);
        (!places.is_empty()).then_some(Self { places })
    }

    /// Returns the addresses of mimalloc's own records, in order and disjoint.
    pub fn records(&self) -> Vec<Range<u64>> {
        let heads: Vec<Range<u64>> = self.places.iter().map(Place::head).collect();
        union(heads)
    }
}

impl Layout {
    /// Returns whether its free memory belongs to threads, as in version 2.
    pub fn is_owned(&self) -> bool {
        self.places.iter().any(|place| matches!(place, Place::Segment(_)))
    }

    /// Checks that all segments and arenas can belong to a version. A process may have more than
    /// one mimalloc, such as that inside CPython, whose records have other fields.
    ///
    /// # Errors
    /// Fails with the reason if it cannot.
    pub fn check_version(&self, version: Option<&str>) -> Result<(), Unguarded> {
        const OTHERS: Unguarded = "the process also has the heap of another mimalloc";
        /// Place of the descriptions of the slices of a segment in version 2.3.2, and size of a
        /// description, in bytes.
        const OF_2_3_2: (u64, u64) = (288, 96);
        let of_2 = self.places.iter().filter_map(|place| match place {
            Place::Segment(segment) => Some((segment.slices_at, segment.stride)),
            _ => None,
        });
        let has_arenas = self.places.iter().any(|place| matches!(place, Place::Arena(_)));
        let major = version.and_then(|version| version.split('.').next());
        let is_of_version = match major {
            Some("2") => !has_arenas,
            Some("3") => !self.is_owned(),
            _ => !(has_arenas && self.is_owned()),
        };
        let is_known = version != Some("2.3.2") || of_2.into_iter().all(|shape| shape == OF_2_3_2);
        if is_of_version && is_known { Ok(()) } else { Err(OTHERS) }
    }
}

/// Returns the addresses that belong to mimalloc, in order and disjoint. The result is empty if
/// there are none. The arguments are those of [`Layout::find`].
pub fn areas(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Range<u64>> {
    areas_of(&find::places(memory, anonymous))
}

fn areas_of(places: &[Place]) -> Vec<Range<u64>> {
    let ranges: Vec<Range<u64>> = places.iter().map(Place::range).collect();
    union(ranges)
}

/// Walks the heap.
pub fn walk(memory: &impl Memory, layout: &Layout, visitor: Visitor<'_>) -> Heap {
    least_torn(memory, visitor, |blocks| walk_once(memory, layout, blocks), Heap::torn_share)
}

fn walk_once(memory: &impl Memory, layout: &Layout, blocks: BlockCollector<'_>) -> Heap {
    let mut heap =
        Heap { areas: areas_of(&layout.places), structures: layout.records(), ..Heap::default() };
    let mut walker = Walker::new(memory, blocks);
    walker.delayed = delayed::blocks(&mut walker.words, &layout.places, &heap.areas);
    let (mut segments, mut reserved) = (Vec::new(), Vec::new());
    for place in &layout.places {
        match place {
            Place::Segment(found) => {
                segments.push(place.range());
                segment::walk(&mut walker, &mut heap, found);
            }
            Place::Arena(found) => arena::walk(&mut walker, &mut heap, found),
            Place::Reserved { .. } => reserved.push(place.range()),
        }
    }
    // Between the segments of a reserved range, there are others that were not recognised, or freed
    // ones.
    for range in gaps(reserved.into_iter(), &segments) {
        let bytes = walker.residency.bytes(range.clone());
        heap.unknown_bytes += bytes;
        if bytes > 0 {
            walker.blocks.unknown(range);
        }
    }
    heap.structures = union(heap.structures);
    heap
}

/// Reads a heap.
struct Walker<'m, 'v, M> {
    words: Scattered<'m, M>,
    residency: Residency<'m, M>,
    /// The blocks that wait in the lists of heaps, in order.
    delayed: Vec<u64>,
    /// Number of rereads of pages that are left.
    rereads: u32,
    memory: &'m M,
    blocks: BlockCollector<'v>,
}

impl<'m, 'v, M: Memory> Walker<'m, 'v, M> {
    fn new(memory: &'m M, blocks: BlockCollector<'v>) -> Self {
        Self {
            words: Scattered::new(memory),
            residency: Residency::new(memory),
            delayed: Vec::new(),
            rereads: MAX_REREADS,
            memory,
            blocks,
        }
    }

    /// Returns whether the record of a page of version 2 has no room for blocks: `capacity` and
    /// `reserved` are 0.
    fn has_no_blocks(&mut self, record: u64) -> bool {
        self.words.word(record + 8).is_some_and(|word| word >> 16 & 0xffff_ffff == 0)
    }

    /// Adds a page. `record` is the address of its record, `blocks` the range of its blocks, or a
    /// longer one: `bytes_of` returns the size of the page in bytes. Returns this size.
    fn add_page(
        &mut self,
        tally: &mut Tally,
        fields: page::Fields,
        record: u64,
        blocks: Range<u64>,
        bytes_of: impl Fn(&Page) -> u64,
    ) -> u64 {
        let bytes = blocks.end - blocks.start;
        for _ in 0..=REREADS {
            let lists = freed_elsewhere(&mut self.residency, &self.delayed, &blocks);
            let read = Page::read(&mut self.words, fields, record, &blocks, Some(lists));
            if let Some(page) = read {
                let bytes = bytes_of(&page).min(bytes);
                let resident = self.residency.free_bytes(blocks.start..blocks.start + bytes);
                tally.add_page(&page, resident);
                if self.blocks.is_on() && page.live > 0 {
                    self.collect(fields, record, &blocks, bytes);
                }
                self.blocks.room(RoomKind::MimallocPage, blocks.start..blocks.start + bytes);
                return bytes;
            }
            if self.rereads == 0 {
                break;
            }
            self.rereads -= 1;
            // It may have changed since the memory around its record was read.
            self.words.forget_page(record);
            self.words.forget_page(record + page::RECORD_BYTES);
        }
        tally.torn_bytes += bytes;
        tally.resident.torn_bytes += self.residency.bytes(blocks.clone());
        self.blocks.unknown(blocks);
        bytes
    }

    /// Collects the blocks in use of a page of `bytes` bytes.
    fn collect(&mut self, fields: page::Fields, record: u64, blocks: &Range<u64>, bytes: u64) {
        let lists = freed_elsewhere(&mut self.residency, &self.delayed, blocks);
        let found = (0..=REREADS).find_map(|_| {
            let page = Page::read(&mut self.words, fields, record, blocks, Some(lists))?;
            let free = fields.free_blocks(&mut self.words, record, &page, blocks, lists);
            if free.is_none() {
                self.words.forget_page(record);
                self.words.forget_page(record + page::RECORD_BYTES);
                self.words.forget_page(blocks.start);
            }
            Some((page, free?))
        });
        match found {
            Some((page, (start, free))) => {
                let size = page.block_bytes;
                self.blocks.row(self.memory, start, size, page.capacity, |index| {
                    free.binary_search(&(start + index * size)).is_err()
                });
            }
            None => self.blocks.unknown(blocks.start..blocks.start + bytes),
        }
    }
}

/// Returns the lists of the blocks of a page that other threads have freed.
fn freed_elsewhere<'a, M: Memory>(
    residency: &mut Residency<'_, M>,
    delayed: &'a [u64],
    blocks: &Range<u64>,
) -> FreedElsewhere<'a> {
    // A free block has a word that leads to the next one.
    FreedElsewhere { max_listed: residency.bytes(blocks.clone()) / 8, of_heaps: delayed }
}

/// Returns the number of slices of a range.
fn slices(range: &Range<u64>) -> u64 {
    (range.end - range.start) / SLICE
}

//! The heap of jemalloc, from 5.0 to 5.3, extent by extent.
//!
//! - `rtree`: the tree that leads to all extents.
//! - `extent`: their records.
//! - `extents`: what each of them adds to the sums.
//! - `slab`: extents of small regions.
//! - `tcache`: the caches of threads.
//! - `locks`: the locks that guard free memory.
//! - `droppable`: free memory with its locks.
//! - `tally`: the sums.
//!
//! The program is not stopped. An extent may change while it is read: its record then contradicts
//! the tree, or the bits of a slab contradict their count. Such an extent is *torn*. If too much is
//! torn, the heap is walked again.
//!
//! Sources: jemalloc 5.0.1, 5.1.0, 5.2.0, 5.2.1, 5.3.0 and 5.3.1, `include/jemalloc/internal/`.

mod allocator;
mod droppable;
mod extent;
mod extents;
mod locks;
mod rtree;
mod size_class;
mod slab;
mod tally;
mod tcache;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::blocks::{BlockCollector, Visitor};
use crate::memory::Memory;
use crate::ranges::{gaps, joined, union};
use crate::residency::Residency;
use crate::rewalk::least_torn;
pub use droppable::each_droppable;
use extent::{Bits, BitsLayout, Format, State};
use extents::{Extent, ExtentSums, large_bytes};
pub use locks::{Locks, locks};
use rtree::{Found, Next, Root, Rtree};
pub use tally::{ClassCount, Heap, Resident, Tally};
use tcache::InCache;

/// Number of entries that decide the version.
const DECIDING: u32 = 4000;
/// The place of the tree of a jemalloc, and the layout of its records.
#[derive(Debug)]
pub struct Layout {
    root: Root,
    format: Format,
    /// Padding after each large allocation (`sz_large_pad`), in bytes: a page, or none in builds
    /// without `cache_oblivious`.
    padding: u64,
}

impl Layout {
    /// Finds a jemalloc in `data`, the zeroed data of a program or library. `anonymous` are the
    /// private writable anonymous mappings in order, adjacent ones merged.
    pub fn find(
        memory: &impl Memory,
        data: &[Range<u64>],
        anonymous: &[Range<u64>],
    ) -> Option<Self> {
        let mut tree = Rtree::new(memory, anonymous);
        let root = data.iter().find_map(|range| tree.root(range))?;
        let format = format(&mut tree, root);
        let padding = padding(&mut tree, root, format);
        Some(Self { root, format, padding })
    }

    /// Returns the fields of the first word of a record.
    fn bits(&self, word: u64) -> Bits {
        Bits::new(word, self.format)
    }
}

/// Returns the addresses of extents and of jemalloc's own structures, in order and disjoint. The
/// result is empty if there is no jemalloc. The arguments are those of [`Layout::find`].
pub fn areas(
    memory: &impl Memory,
    data: &[Range<u64>],
    anonymous: &[Range<u64>],
) -> Vec<Range<u64>> {
    let mut tree = Rtree::new(memory, anonymous);
    let Some(root) = data.iter().find_map(|range| tree.root(range)) else { return Vec::new() };
    let (mut found, mut own) = (Vec::new(), BTreeSet::new());
    tree.each_extent(root, |_, extent| {
        found.push(extent.record.range());
        own.extend(extent.places());
        Next::Go
    });
    together(found, tree.base_blocks(&own))
}

/// Returns extents and base blocks in order, adjacent ones merged.
fn together(mut extents: Vec<Range<u64>>, blocks: Vec<Range<u64>>) -> Vec<Range<u64>> {
    extents.extend(blocks);
    union(extents)
}

/// Decides the version by the size classes of extents, which are in both the tree and the records.
fn format(tree: &mut Rtree<'_, impl Memory>, root: Root) -> Format {
    let formats = BitsLayout::ALL.map(|version| Format { version, page_bytes: root.page_bytes() });
    let (mut seen, mut agree) = (0, formats.map(|_| 0));
    tree.each_extent(root, |_, Found { entry, record, .. }| {
        seen += 1;
        for (format, agree) in formats.into_iter().zip(&mut agree) {
            let class = Bits::new(record.word, format).class() as u64;
            *agree += u32::from(entry.class(format.version) == class);
        }
        if seen < DECIDING { Next::Go } else { Next::Stop }
    });
    // Of equal ones the last, which is the newest.
    let most = formats.into_iter().zip(agree).max_by_key(|(_, agree)| *agree);
    most.map_or(formats[formats.len() - 1], |(format, _)| format)
}

/// Decides whether there is padding, by the sizes of large allocations.
fn padding(tree: &mut Rtree<'_, impl Memory>, root: Root, format: Format) -> u64 {
    let (mut seen, mut fits) = (0, [0, 0]);
    tree.each_extent(root, |_, Found { record, .. }| {
        let bits = Bits::new(record.word, format);
        let is_large = bits.class() >= size_class::small(format.page_bytes);
        if bits.state() == State::Active && !bits.is_slab() && is_large {
            seen += 1;
            for (fits, padding) in fits.iter_mut().zip([0, format.page_bytes]) {
                *fits += u32::from(large_bytes(record, bits.class(), padding).is_some());
            }
        }
        if seen < DECIDING { Next::Go } else { Next::Stop }
    });
    if fits[0] > fits[1] { 0 } else { format.page_bytes }
}

/// Walks the heap. `mappings` are the private writable anonymous mappings, in order.
pub fn walk(
    memory: &impl Memory,
    layout: &Layout,
    mappings: &[Range<u64>],
    visitor: Visitor<'_>,
) -> Heap {
    let anonymous = joined(mappings.to_vec());
    let mut tree = Rtree::new(memory, &anonymous);
    let walk = |mut blocks: BlockCollector<'_>| {
        tree.forget();
        walk_once(memory, &mut tree, layout, mappings, &mut blocks)
    };
    // A heap with huge pages is not used.
    let torn_share = |heap: &Heap| if heap.has_huge_pages { 0.0 } else { heap.torn_share() };
    least_torn(memory, visitor, walk, torn_share)
}

/// Active extents, in order: the address of the first block, the end, and the size class.
struct Classes(Vec<(u64, u64, u8)>);

impl Classes {
    /// Returns the size class of an address, and the start of the block that contains it.
    fn find(&self, address: u64) -> Option<(usize, u64)> {
        let place = self.0.partition_point(|(_, end, _)| *end <= address);
        let (start, _, class) = self.0.get(place)?;
        let size = size_class::size(usize::from(*class)).unwrap_or(u64::MAX);
        let from = address.checked_sub(*start)?;
        Some((usize::from(*class), address - from % size))
    }

    fn of(&self, address: u64) -> Option<usize> {
        self.find(address).map(|(class, _)| class)
    }
}

fn walk_once<M: Memory>(
    memory: &M,
    tree: &mut Rtree<'_, M>,
    layout: &Layout,
    mappings: &[Range<u64>],
    blocks: &mut BlockCollector<'_>,
) -> Heap {
    let mut sums = ExtentSums::new(memory, layout.padding, blocks);
    let (mut extents, mut classes) = (Vec::new(), Classes(Vec::new()));
    let mut own = BTreeSet::new();
    tree.each_extent(layout.root, |tree, found| {
        let record = found.record;
        let bits = layout.bits(record.word);
        if bits.is_of_huge_pages() {
            sums.heap.has_huge_pages = true;
            return Next::Stop;
        }
        let extent = Extent { entry: found.entry, record, bits };
        let is_sound = found.agrees && sums.add(tree, &extent);
        if !is_sound && !found.is_last {
            return Next::Again;
        }
        if !is_sound {
            sums.add_torn(&extent);
        } else if bits.state() == State::Active {
            let first = record.address + record.offset;
            classes.0.push((first, record.address + record.bytes, bits.class() as u8));
        }
        extents.push(record.range());
        own.extend(found.places());
        if memory.is_over() { Next::Stop } else { Next::Go }
    });
    let ExtentSums { mut heap, mut residency, blocks, .. } = sums;
    if heap.has_huge_pages {
        return heap;
    }
    let extents = joined(extents);
    let base = joined(tree.base_blocks(&own));
    heap.structures = gaps(base.iter().cloned(), &extents);
    heap.metadata_bytes = residency.bytes_in(&heap.structures);
    heap.areas = together(extents, base);
    let class_of = |at| classes.of(at);
    let mut regions = Vec::new();
    let version = layout.format.version;
    let mut stacks = Vec::new();
    let cached = tcache::count(memory, version, mappings, &heap.areas, class_of, |found| {
        match found {
            InCache::Region(class, at) => {
                blocks.is_free(at);
                if class_of(at) == Some(class) {
                    regions.push((at, size_class::size(class).unwrap_or(0)));
                }
            }
            // It is not a block of the program. Its pointers lead to free regions, or are stale.
            InCache::Stacks(range) => {
                if let Some((_, block)) = classes.find(range.start) {
                    blocks.is_free(block);
                    stacks.push(range);
                }
            }
        }
    });
    heap.structures.extend(stacks);
    heap.structures = union(heap.structures);
    heap.add_cached(&cached, not_resident(&mut residency, regions));
    heap
}

/// Returns the bytes of regions that are not resident: a cache takes many regions of a new slab at
/// once, to which nothing was written yet.
fn not_resident(residency: &mut Residency<'_, impl Memory>, mut regions: Vec<(u64, u64)>) -> u64 {
    // Residency is read in order of address.
    regions.sort_unstable();
    regions.dedup();
    let absent =
        |(at, bytes): (u64, u64)| bytes - residency.bytes(at..at.saturating_add(bytes)).min(bytes);
    regions.into_iter().map(absent).sum()
}

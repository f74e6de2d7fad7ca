//! Free extents and whole free pages of slabs, with the locks that guard them.
//!
//! - A dirty, muzzy or retained extent leaves its state only under the lock of the cache of its
//!   arena (`extent_recycle`, `ecache_evict`). Its contents are never read: dirty and muzzy extents
//!   are not treated as zeroed.
//! - A region of a slab is taken only under the lock of the slab's bin (`arena_slab_reg_alloc`).
//!   One exception is `experimental.batch_alloc`, which takes regions of a slab of which none is in
//!   use yet. Such a slab is in no bin, so a slab without a region in use is skipped. The bits that
//!   mark free regions are outside of the slab, and regions of allocations that must be zero are
//!   filled with zeros.
//!
//! By the time that the lock is held, another extent may occupy the same place, of another arena or
//! size class with another lock. So the checks include the arena, and for a slab its size class and
//! its shard.

use std::ops::Range;

use super::Layout;
use super::extent::{Bits, State};
use super::locks::Locks;
use super::rtree::{Found, Next, Rtree};
use super::slab::Slab;
use crate::droppable::{Check, Droppable, Guard, MAX_CHECKS, Sums};
use crate::memory::Memory;
use crate::ranges::joined;
use crate::residency::Residency;

/// Passes the resident free ranges to `visit`, and returns their sums. `mappings` are the private
/// writable anonymous mappings, in order.
pub fn each_droppable(
    memory: &impl Memory,
    layout: &Layout,
    locks: &Locks,
    mappings: &[Range<u64>],
    visit: &mut dyn FnMut(Droppable),
) -> Sums {
    let anonymous = joined(mappings.to_vec());
    let mut tree = Rtree::new(memory, &anonymous);
    let mut walk = Walk { residency: Residency::new(memory), sums: Sums::default(), visit };
    tree.each_extent(layout.root, |tree, found| {
        let bits = layout.bits(found.record.word);
        let is_sound = found.agrees
            && match bits.state() {
                State::Dirty | State::Muzzy | State::Retained => {
                    walk.add_extent(locks, found, bits);
                    true
                }
                State::Active if bits.is_slab() => walk.add_slab(tree, locks, found, bits),
                State::Active | State::Other => true,
            };
        match is_sound || found.is_last {
            _ if memory.is_over() => Next::Stop,
            true => Next::Go,
            false => Next::Again,
        }
    });
    walk.sums
}

struct Walk<'m, 't, M> {
    residency: Residency<'m, M>,
    sums: Sums,
    visit: &'t mut dyn FnMut(Droppable),
}

impl<M: Memory> Walk<'_, '_, M> {
    /// Adds a free extent.
    fn add_extent(&mut self, locks: &Locks, found: &Found, bits: Bits) {
        let pages = found.record.range();
        let resident_bytes = self.residency.bytes(pages.clone());
        if resident_bytes == 0 {
            return;
        }
        let is_plain = !bits.is_guarded() && !bits.is_of_huge_pages();
        match locks.of_extents(bits.arena(), bits.state()).filter(|_| is_plain) {
            Some(lock) => {
                let mut checks = checks_of(found, bits.free_extent_mask());
                checks.extend(locks.check_of(bits.arena()));
                self.give(pages, resident_bytes, lock, checks);
            }
            None => self.sums.unguarded_bytes += resident_bytes,
        }
    }

    /// Adds the whole free pages of a slab. Returns `false` if the slab is inconsistent.
    fn add_slab(
        &mut self,
        tree: &mut Rtree<'_, M>,
        locks: &Locks,
        found: &Found,
        bits: Bits,
    ) -> bool {
        let (record, class) = (&found.record, bits.class());
        let free_regions = bits.free_regions();
        if free_regions == 0 {
            return true;
        }
        let Some(slab) = tree.slab(record, class).filter(|slab| slab.free() == free_regions) else {
            return false;
        };
        // A slab without a region in use is in no bin.
        let lock = locks.of_slabs(bits.arena(), class);
        let lock = lock.filter(|_| bits.shard() == 0 && free_regions < slab.count);
        let lock = lock.zip(locks.check_of(bits.arena()));
        let mut from = 0;
        let page = tree.memory().page_bytes().min(record.page_bytes);
        while let Some(pages) = slab.free_pages(from, record.bytes, page) {
            from = pages.end;
            let pages = record.address + pages.start..record.address + pages.end;
            self.add_pages(found, bits, &slab, lock, pages);
        }
        true
    }

    /// Adds consecutive free pages of a slab.
    fn add_pages(
        &mut self,
        found: &Found,
        bits: Bits,
        slab: &Slab,
        lock: Option<(u64, Check)>,
        pages: Range<u64>,
    ) {
        let resident_bytes = self.residency.bytes(pages.clone());
        if resident_bytes == 0 {
            return;
        }
        let mut checks = checks_of(found, bits.slab_mask());
        checks.push(Check::not_bits(
            found.record.at,
            bits.free_regions_mask(),
            bits.with_free_regions(slab.count),
        ));
        let from = pages.start - found.record.address;
        let to = (pages.end - found.record.address).min(slab.count * slab.region);
        for (number, at) in found.record.bitmap().enumerate() {
            let mask = slab.mask_of(number as u64, from..to);
            if mask != 0 {
                checks.push(Check::bits(at, mask, mask));
            }
        }
        checks.extend(lock.map(|(_, check)| check));
        match lock.filter(|_| checks.len() <= MAX_CHECKS) {
            Some((lock, _)) => self.give(pages, resident_bytes, lock, checks),
            None => self.sums.unguarded_bytes += resident_bytes,
        }
    }

    fn give(&mut self, pages: Range<u64>, resident_bytes: u64, lock: u64, checks: Vec<Check>) {
        self.sums.guarded_bytes += resident_bytes;
        (self.visit)(Droppable { pages, resident_bytes, guard: Guard::Lock(lock), checks });
    }
}

/// Returns the checks of an extent: the bits of a mask in the first word of its record, its place,
/// its size, and the entry of its first page.
fn checks_of(found: &Found, mask: u64) -> Vec<Check> {
    let record = &found.record;
    let mut checks = vec![
        Check::bits(record.at, mask, record.word),
        Check::bits(record.at + 8, record.bytes_mask(), record.address),
        Check::bits(record.at + 16, record.bytes_mask(), record.bytes),
    ];
    checks.extend(found.entry_words().map(|(at, word)| Check::word(at, word)));
    checks
}

//! The free whole pages of groups, which the lock of `malloc` guards.
//!
//! `malloc` takes a slot by its bit, under the lock, and writes to it later. `free` sets the bit of
//! a slot without the lock. So a slot that is free while the lock is held stays free as long, and
//! its group stays mapped: the first and the last `free` of a group take the lock, and clear the
//! record before the group is unmapped. Zeros in place of a free slot are what a fresh slot has.
//!
//! musl takes locks only while it counts more than one thread, so only a thread that it counts may
//! hold the lock: otherwise it would go on without it once the other threads have ended, and its
//! next `unlock` would release the lock of the foreign thread (`__lock.c`).

use std::ops::Range;

use super::Layout;
use super::lock::Lock;
use crate::allocator::Module;
use crate::droppable::{Check, Droppable, Droppers, Guard, Sums, UNCOUNTED_THREADS, Unguarded};
use crate::memory::Memory;
use crate::residency::Residency;

/// Maximum share of the groups that may contradict others, because the heap changes while it is
/// read. In a version of musl with other records, it would be most of them.
const MAX_CONTRADICTORY_SHARE: f64 = 0.25;

/// What guards the free pages.
#[derive(Debug, Clone, Copy)]
pub enum Guards {
    /// The lock of `malloc`.
    Lock(Lock),
    /// The process has one thread, and the lock is not known.
    OnlyThread,
}

impl Guards {
    /// Finds the guards of a heap.
    ///
    /// # Errors
    /// Fails with the reason if there are none.
    pub(super) fn find(
        memory: &impl Memory,
        layout: &Layout,
        mappings: &[Range<u64>],
        module: &Module<'_>,
    ) -> Result<Self, Unguarded> {
        if layout.contradictory_share(memory, mappings) > MAX_CONTRADICTORY_SHARE {
            return Err("its groups contradict each other");
        }
        let lock = Lock::find(memory, &layout.context, &layout.data, &(module.code)());
        match lock {
            Some(lock) if counts_all(memory, lock, module) => Ok(Self::Lock(lock)),
            Some(_) => Err(UNCOUNTED_THREADS),
            None if (module.threads)() == 1 => Ok(Self::OnlyThread),
            None => Err(
                "its code does not show where the lock of malloc is, and it has several threads",
            ),
        }
    }

    /// Returns which threads may drop the pages.
    pub(super) fn droppers(&self) -> Droppers {
        let threads = match self {
            Self::Lock(lock) => Some(lock.threads),
            Self::OnlyThread => None,
        };
        Droppers::Counted { threads }
    }

    fn guard(self) -> Guard {
        match self {
            Self::Lock(lock) => Guard::MuslLock { lock: lock.at, threads: lock.threads },
            Self::OnlyThread => Guard::OnlyThread,
        }
    }
}

/// Returns whether musl counts all threads of the process. It counts a new one before that exists,
/// and no longer counts one that ends.
fn counts_all(memory: &impl Memory, lock: Lock, module: &Module<'_>) -> bool {
    const ATTEMPTS: usize = 20;
    let is_same = |_: usize| lock.counted(memory) == Some((module.threads)() as u64);
    (0..ATTEMPTS).any(is_same)
}

/// Passes the resident free ranges to `visit`, and returns their sums. `mappings` are the private
/// writable anonymous mappings in order, adjacent ones merged.
pub(super) fn each_droppable(
    memory: &impl Memory,
    layout: &Layout,
    guards: Guards,
    mappings: &[Range<u64>],
    visit: &mut dyn FnMut(Droppable),
) -> Sums {
    let (mut sums, mut residency) = (Sums::default(), Residency::new(memory));
    let (tree, _) = layout.tree(memory, mappings);
    for group in tree.mapped.iter().map(|tree| &tree.group) {
        if memory.is_over() {
            break;
        }
        for run in group.free_runs() {
            let pages = group.free_pages(run.clone(), memory.page_bytes());
            let resident_bytes = residency.bytes(pages.clone());
            if resident_bytes == 0 {
                continue;
            }
            let record = &group.record;
            let masks = u64::from(slots(&run));
            let checks = vec![
                Check::word(record.at + 16, group.range.start),
                Check::word(record.at + 32, record.bits),
                Check::bits(record.at + 24, masks | masks << 32, record.masks),
            ];
            sums.guarded_bytes += resident_bytes;
            visit(Droppable { pages, resident_bytes, guard: guards.guard(), checks });
        }
    }
    sums
}

/// Returns the bits of a run of slots.
fn slots(run: &Range<u32>) -> u32 {
    let below = |end: u32| u32::MAX.checked_shr(32 - end).unwrap_or(0);
    below(run.end) & !below(run.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_slots_has_one_bit_for_each() {
        assert_eq!(slots(&(0..1)), 1);
        assert_eq!(slots(&(1..3)), 0b110);
        assert_eq!(slots(&(0..32)), u32::MAX);
        assert_eq!(slots(&(31..32)), 1 << 31);
        assert_eq!(slots(&(4..4)), 0);
    }
}

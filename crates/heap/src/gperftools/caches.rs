//! Free blocks outside of the lists of spans: in the caches of threads (`ThreadCache`), and in the
//! slots through which they move between threads (`CentralFreeList::tc_slots_`).

use std::collections::HashSet;
use std::ops::Range;

use super::Layout;
use super::page_map::is_pointer;
use super::size_class::CLASSES;
use crate::memory::{Memory, each_word, half_in, word_in};
use crate::scattered::Scattered;

/// Bytes of a list of a thread's cache: `list_`, `length_`, `lowater_`, `max_length_`,
/// `length_overages_`, `size_`.
const LIST: usize = 32;
/// Bytes of the lists of a thread's cache.
const LISTS: usize = LIST * CLASSES;
/// Number of bytes after the lists that are searched for links to other caches.
const LINKS: usize = 256;
/// Maximum number of caches, and of words that are tried as the address of one.
const MAX_CACHES: usize = 64 << 10;
const MAX_TRIED: usize = 64 << 10;
/// Maximum number of cached blocks whose addresses are passed on.
const MAX_LISTED: u64 = 4 << 20;
/// Maximum number of blocks in a list, more than any cache may have.
const MAX_LENGTH: u64 = 1 << 20;

/// Places in a central list: `size_class_`, `used_slots_`.
const CLASS_AT: u64 = 8;
const SLOTS_AT: u64 = 128;
const USED_SLOTS_AT: u64 = 1152;
/// Bytes of a slot: the first and the last block of a list (`TCEntry`).
const SLOT: u64 = 16;
/// Slots of a central list (`kMaxNumTransferEntries`).
const SLOTS: u64 = 64;
/// Distances between central lists that are tried. A list has at least 1,168 bytes, and is padded
/// to a cache line.
const STRIDES: [u64; 4] = [1216, 1280, 1344, 1408];
/// Maximum number of blocks in a slot (`kDefaultTransferNumObjecs`), and bytes that they should not
/// exceed. A slot has at least two blocks.
const MAX_MOVED: u64 = 32;
const MOVED_BYTES: u64 = 64 << 10;

/// Free blocks that are cached, by the index of their size class.
#[derive(Debug, Default)]
pub(super) struct CachedBlocks {
    /// Number of threads' caches.
    pub(super) threads: u64,
    /// Number of blocks in threads' caches.
    pub(super) of_threads: Vec<u64>,
    /// Number of blocks that move between threads.
    pub(super) moved: Vec<u64>,
    /// The address of each list of cached blocks, its first block, and the number of its blocks.
    lists: Vec<(u64, u64, u64)>,
    /// The addresses of the threads' caches.
    pub(super) records: Vec<Range<u64>>,
}

impl CachedBlocks {
    pub(super) fn read(memory: &impl Memory, layout: &Layout) -> Self {
        let classes = layout.sizes.len();
        let mut found =
            Self { of_threads: vec![0; classes], moved: vec![0; classes], ..Self::default() };
        found.read_threads(memory, layout);
        found.read_slots(memory, layout);
        found
    }

    /// Passes on the addresses of the cached blocks.
    pub(super) fn each_block<M: Memory>(
        &self,
        words: &mut Scattered<'_, M>,
        mut each: impl FnMut(u64),
    ) {
        let mut left = MAX_LISTED;
        let mut blocks = Vec::new();
        for (head, first, count) in &self.lists {
            if *count > left {
                break;
            }
            left -= count;
            blocks.clear();
            let mut next = *first;
            while (blocks.len() as u64) < *count && is_pointer(next) {
                blocks.push(next);
                next = words.word(next).unwrap_or(0);
            }
            // If the thread has taken a block meanwhile, the pointer to the next one may be
            // overwritten by the program.
            words.forget_page(*head);
            if blocks.len() as u64 == *count && words.word(*head) == Some(*first) {
                blocks.iter().for_each(|block| each(*block));
            }
        }
    }

    /// Reads the caches that a variable points to (`thread_heaps_`), and those that are linked with
    /// them.
    fn read_threads(&mut self, memory: &impl Memory, layout: &Layout) {
        let (mut next, mut tried) = (Vec::new(), HashSet::new());
        for range in &layout.data {
            each_word(memory, range.clone(), |_, word| {
                if is_pointer(word) && word.is_multiple_of(16) && tried.insert(word) {
                    next.push(word);
                }
                tried.len() < MAX_TRIED
            });
        }
        let mut bytes = vec![0; LISTS + LINKS];
        while let Some(at) = next.pop() {
            let length = memory.read(at, &mut bytes);
            let Some(counts) = counts(&bytes[..length], &layout.sizes) else { continue };
            for (sum, count) in self.of_threads.iter_mut().zip(&counts) {
                *sum += count;
            }
            self.threads += 1;
            for (class, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let head = at + (LIST * class) as u64;
                let first = word_in(&bytes, LIST * class);
                self.lists.extend(first.map(|first| (head, first, *count)));
            }
            self.records.push(at..at + LISTS as u64);
            if self.records.len() >= MAX_CACHES {
                return;
            }
            let links = bytes[LISTS..].chunks_exact(8).filter_map(|word| word_in(word, 0));
            next.extend(
                links.filter(|w| is_pointer(*w) && w.is_multiple_of(16) && tried.insert(*w)),
            );
        }
    }

    /// Reads the slots of the central lists, which have consecutive class numbers.
    fn read_slots(&mut self, memory: &impl Memory, layout: &Layout) {
        let word = |at: u64| crate::memory::word(memory, at);
        let mut first = None;
        for range in &layout.data {
            each_word(memory, range.clone(), |slot, class| {
                if class != 1 {
                    return true;
                }
                let is_row = |stride: &u64| {
                    (2..6).all(|class| word(slot + stride * (class - 1)) == Some(class))
                };
                let stride = STRIDES.into_iter().find(is_row);
                first = stride.map(|stride| (slot - CLASS_AT, stride));
                first.is_none()
            });
        }
        let Some((first, stride)) = first else { return };
        for (class, size) in layout.sizes.iter().enumerate().skip(1) {
            let list = first + stride * (class as u64 - 1);
            let used = word(list + USED_SLOTS_AT).map_or(0, |word| word & 0xffff_ffff);
            if used <= SLOTS {
                let in_slot = (MOVED_BYTES / size).clamp(2, MAX_MOVED);
                self.moved[class] = used * in_slot;
                let heads = (0..used).map(|slot| list + SLOTS_AT + SLOT * slot);
                self.lists.extend(heads.filter_map(|head| Some((head, word(head)?, in_slot))));
            }
        }
    }
}

/// Returns the number of blocks in each list of a thread's cache, or `None` if the bytes are not a
/// cache.
fn counts(bytes: &[u8], sizes: &[u64]) -> Option<Vec<u64>> {
    // The first list has no blocks. The first word of a freed cache points to another freed cache.
    if bytes.len() < LISTS || word_in(bytes, 0) != Some(0) {
        return None;
    }
    let list = |class: usize| {
        let at = LIST * class;
        let (first, length) = (word_in(bytes, at)?, u64::from(half_in(bytes, at + 8)?));
        let size = u64::from(half_in(bytes, at + 24)?);
        let is_sound = size == sizes[class]
            && length <= MAX_LENGTH
            && (first == 0 || is_pointer(first))
            && (first == 0) == (length == 0);
        is_sound.then_some(length)
    };
    std::iter::once(Some(0)).chain((1..sizes.len()).map(list)).collect()
}

//! The sizes of blocks (`SizeMap::class_to_size_`): a table in the zeroed data, which is filled
//! when the program starts.

use std::ops::Range;

use crate::memory::{Memory, each_word, half_in};

/// Entries of the table (`kClassSizesMax`).
pub(super) const CLASSES: usize = 128;
/// Lower bound of the largest size of a small block, in bytes (`kMaxSize` is 256 KiB, or 32 KiB if
/// spans are small).
const MIN_LARGEST: u64 = 32 << 10;
const MAX_SIZE: u64 = 256 << 10;
/// Minimum number of sizes in use.
const MIN_CLASSES: usize = 20;

/// Finds the table. Returns the sizes in use, of which the first is 0.
pub(super) fn find(memory: &impl Memory, data: &[Range<u64>]) -> Option<Vec<u64>> {
    let mut found = None;
    for range in data {
        each_word(memory, range.clone(), |slot, word| {
            // It begins with 0 and 8. The table may begin in the middle of a word.
            let (low, high) = (word & 0xffff_ffff, word >> 32);
            let start = match (low, high) {
                (0, 8) => Some(slot),
                (8, 16) => slot.checked_sub(4),
                _ => None,
            };
            found = start.and_then(|start| read(memory, start));
            found.is_none()
        });
        if found.is_some() {
            break;
        }
    }
    found
}

fn read(memory: &impl Memory, at: u64) -> Option<Vec<u64>> {
    let mut bytes = [0; 4 * CLASSES];
    (memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
    let mut sizes = vec![0];
    for class in 1..CLASSES {
        let size = u64::from(half_in(&bytes, 4 * class)?);
        if size <= sizes[class - 1] || size > MAX_SIZE {
            break;
        }
        sizes.push(size);
    }
    let is_sound = sizes.len() >= MIN_CLASSES
        && sizes[1] == 8
        && sizes[2] == 16
        && sizes.last().is_some_and(|largest| *largest >= MIN_LARGEST);
    is_sound.then_some(sizes)
}

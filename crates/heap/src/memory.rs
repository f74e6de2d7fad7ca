//! Memory that can be read without changing it.

use std::ops::Range;
use std::time::Duration;

/// The end of the addresses that programs have, unless they ask for higher ones: 47 bits on x86-64
/// (Documentation/arch/x86/x86_64/5level-paging.rst), 48 bits on aarch64 with pages of 4 KiB
/// (Documentation/arch/arm64/memory.rst).
pub const ADDRESS_END: u64 = if cfg!(target_arch = "aarch64") { 1 << 48 } else { 1 << 47 };

/// The smallest page of all processors, in bytes. Every page is a multiple of it, so it also serves
/// as the unit of caches. The size of a process's pages is [`Memory::page_bytes`].
pub const MIN_PAGE_BYTES: u64 = 4096;

/// The memory of a process.
pub trait Memory {
    /// Returns the size of a page in bytes, a power of two.
    fn page_bytes(&self) -> u64;

    /// Reads from `address`, and returns the number of bytes read. Reading stops before the first
    /// page that is not resident, which is not touched.
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize;

    /// Reads memory that [`Memory::resident`] has just reported, without checking the residency
    /// again. Returns the number of bytes read.
    fn read_resident(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.read(address, buffer)
    }

    /// Returns the resident pages between two addresses: whole pages, in order, disjoint. Pages
    /// that are swapped out or were never written to are not included.
    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>>;

    /// Returns the locked ranges (`mlock`, `mlockall`), in order and disjoint. The kernel refuses
    /// to drop their pages.
    fn locked(&self) -> &[Range<u64>] {
        &[]
    }

    /// Lets the program run for a while. Returns `false` immediately if waiting has no effect.
    fn wait(&self, _time: Duration) -> bool {
        false
    }

    /// Returns whether reading should stop, because a deadline has passed or the result is no
    /// longer needed. From then on, no memory can be read.
    fn is_over(&self) -> bool {
        false
    }
}

/// Returns a word of memory, if it is resident.
pub fn word(memory: &impl Memory, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (memory.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// Calls `each` with the address and the value of each nonzero resident word of a range, until it
/// returns `false`.
pub(crate) fn each_word(
    memory: &impl Memory,
    range: Range<u64>,
    mut each: impl FnMut(u64, u64) -> bool,
) {
    const PART: u64 = 16 << 10;
    let mut bytes = [0; PART as usize];
    for run in memory.resident(range.clone()) {
        let end = run.end.min(range.end);
        let mut at = run.start.max(range.start);
        while at < end {
            let part = &mut bytes[..(end - at).min(PART) as usize];
            let length = memory.read_resident(at, part);
            for (place, word) in part[..length].chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                if word != 0 && !each(at + place as u64 * 8, word) {
                    return;
                }
            }
            at += part.len() as u64;
        }
    }
}

/// Returns how many resident words of some data lie in areas, which are in order and disjoint.
pub fn pointers_into(memory: &impl Memory, data: &[Range<u64>], areas: &[Range<u64>]) -> u64 {
    let mut found = 0;
    for range in data {
        each_word(memory, range.clone(), |_, word| {
            let place = areas.partition_point(|area| area.end <= word);
            found += u64::from(areas.get(place).is_some_and(|area| area.start <= word));
            true
        });
    }
    found
}

/// Returns the multiples of an alignment in a range that are in resident pages.
pub(crate) fn resident_places(
    memory: &impl Memory,
    range: &Range<u64>,
    alignment: u64,
) -> impl Iterator<Item = u64> {
    let range = range.clone();
    memory.resident(range.clone()).into_iter().flat_map(move |run| {
        let from = run.start.max(range.start).next_multiple_of(alignment);
        (from..run.end.min(range.end)).step_by(alignment as usize)
    })
}

/// Returns a word of bytes that were read.
pub(crate) fn word_in(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Returns half a word of bytes that were read.
pub(crate) fn half_in(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Saved or synthetic memory: blocks of resident bytes.
#[derive(Debug, Clone, Default)]
pub struct Saved {
    /// Address and bytes of each block, in order and disjoint. Blocks are whole pages.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// The locked ranges, in order and disjoint.
    pub locked: Vec<Range<u64>>,
}

impl Saved {
    /// Size of a page, in bytes.
    pub const PAGE: u64 = MIN_PAGE_BYTES;

    /// Returns memory with these blocks, and nothing locked.
    pub fn new(blocks: Vec<(u64, Vec<u8>)>) -> Self {
        Self { blocks, locked: Vec::new() }
    }
}

impl Memory for Saved {
    fn page_bytes(&self) -> u64 {
        Self::PAGE
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let at = address.wrapping_add(done as u64);
            let place = self.blocks.partition_point(|(start, _)| *start <= at);
            let Some((start, bytes)) = place.checked_sub(1).and_then(|p| self.blocks.get(p)) else {
                break;
            };
            let Some(rest) = usize::try_from(at - start).ok().and_then(|o| bytes.get(o..)) else {
                break;
            };
            if rest.is_empty() {
                break;
            }
            let count = rest.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        done
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let first =
            self.blocks.partition_point(|(start, bytes)| start + bytes.len() as u64 <= range.start);
        self.blocks[first..]
            .iter()
            .take_while(|(start, _)| *start < range.end)
            .map(|(start, bytes)| *start..start + bytes.len() as u64)
            .map(|block| block.start.max(range.start)..block.end.min(range.end))
            .filter(|part| part.start < part.end)
            .collect()
    }

    fn locked(&self) -> &[Range<u64>] {
        &self.locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_memory_is_read_up_to_the_first_hole() {
        let saved = Saved::new(vec![(0x1000, vec![1; 4096]), (0x2000, vec![2; 4096])]);
        let mut bytes = [0; 8];
        assert_eq!(saved.read(0x1ffc, &mut bytes), 8);
        assert_eq!(bytes, [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(saved.read(0x2ffc, &mut bytes), 4);
        assert_eq!(saved.read(0x10, &mut bytes), 0);
        assert_eq!(saved.resident(0x1800..0x2800), [0x1800..0x2000, 0x2000..0x2800]);
        assert_eq!(word(&saved, 0x1000), Some(0x0101_0101_0101_0101));
    }
}

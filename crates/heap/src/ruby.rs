//! The memory of Ruby's objects (`gc.c`): pages of slots, each of which begins with a pointer to
//! its record, and the transient heap, whose blocks lead to each other.

use std::collections::VecDeque;
use std::ops::Range;

use crate::memory::{ADDRESS_END, Memory, resident_places, word_in};
use crate::scattered::Scattered;

/// Size and alignment of a page, in bytes (`HEAP_PAGE_SIZE`): up to 3.1, and from 3.2 on.
const PAGES: [u64; 2] = [16 << 10, 64 << 10];
/// Number of words of a record that are searched for the address of the first slot of its page
/// (`struct heap_page`).
const RECORD: u64 = 12;
/// Maximum distance of the first slot from the beginning of the page, in bytes.
const FIRST_SLOT: u64 = 512;

/// Size and alignment of a block of the transient heap, in bytes (`TRANSIENT_HEAP_BLOCK_SIZE`).
const BLOCK: u64 = 32 << 10;
/// Number of its blocks, all of which are in one range of 32 MiB (`TRANSIENT_HEAP_BLOCK_NUM`).
const BLOCKS: usize = 1024;
/// Size of the range, in bytes (`TRANSIENT_HEAP_TOTAL_SIZE`).
const ARENA: u64 = BLOCK * BLOCKS as u64;
/// Place of the pointer to the next block in the head of a block, in bytes (`next_block`).
const NEXT: u64 = 8;
/// Minimum number of blocks that lead to another one: each that is not the last of a list does.
const LINKED: usize = BLOCKS / 2;

/// Returns the transient heap in some ranges of anonymous memory, in which Ruby 2.6 to 3.2 keeps
/// the contents of young arrays, hashes and structs (`transient_heap.c`); `None` if there is none.
///
/// Ruby links all blocks when it starts, so the head of each is resident. The contents do not prove
/// anything, but no other memory has 1,024 such heads in a row that lead to each other.
pub fn transient_heap(memory: &impl Memory, anonymous: &[Range<u64>]) -> Option<Range<u64>> {
    let mut words = Scattered::new(memory);
    let mut row: VecDeque<(u64, u64)> = VecDeque::new();
    let mut linked = 0;
    let places = anonymous.iter().flat_map(|range| resident_places(memory, range, BLOCK));
    for at in places {
        let is_near = |next: &u64| *next == 0 || next.abs_diff(at) < ARENA;
        let next = words.word(at + NEXT).filter(|next| next.is_multiple_of(BLOCK) && is_near(next));
        if next.is_none() || row.back().is_some_and(|(last, _)| last + BLOCK != at) {
            row.clear();
            linked = 0;
        }
        let Some(next) = next else { continue };
        row.push_back((at, next));
        linked += usize::from(next != 0);
        if row.len() > BLOCKS && row.pop_front().is_some_and(|(_, next)| next != 0) {
            linked -= 1;
        }
        let arena = (at + BLOCK).saturating_sub(ARENA)..at + BLOCK;
        let is_inside = |(_, next): &(u64, u64)| *next == 0 || arena.contains(next);
        if row.len() == BLOCKS && linked >= LINKED && row.iter().all(is_inside) {
            return Some(arena);
        }
    }
    None
}

/// Returns the pages of slots in some ranges of anonymous memory, in order, adjacent ones merged.
pub fn pages(memory: &impl Memory, anonymous: &[Range<u64>]) -> Vec<Range<u64>> {
    let [small, large] = PAGES;
    let mut words = Scattered::new(memory);
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in anonymous {
        for run in memory.resident(range.clone()) {
            let mut at = run.start.max(range.start).next_multiple_of(small);
            while at + small <= range.end && at < run.end {
                let end = match is_page(memory, &mut words, at) {
                    false => None,
                    // A page of the larger size contains no other page.
                    true if at.is_multiple_of(large)
                        && at + large <= range.end
                        && !is_page(memory, &mut words, at + small) =>
                    {
                        Some(at + large)
                    }
                    true => Some(at + small),
                };
                if let Some(end) = end {
                    match found.last_mut().filter(|last| last.end == at) {
                        Some(last) => last.end = end,
                        None => found.push(at..end),
                    }
                }
                at = end.unwrap_or(at + small);
            }
        }
    }
    found
}

fn is_page<M: Memory>(memory: &M, words: &mut Scattered<'_, M>, at: u64) -> bool {
    let mut head = [0; 8];
    if memory.read(at, &mut head) != head.len() {
        return false;
    }
    let record = word_in(&head, 0).filter(|word| word.is_multiple_of(8) && *word > FIRST_SLOT);
    record.filter(|record| *record < ADDRESS_END).is_some_and(|record| {
        (0..RECORD).any(|place| {
            let first = words.word(record + place * 8).unwrap_or(0);
            (at + 8..at + FIRST_SLOT).contains(&first)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Saved;

    /// Returns memory with `blocks` blocks from an address on, each of which leads to the one
    /// before it, as Ruby links them when it starts; `more` are other links.
    fn blocks(start: u64, blocks: u64, more: &[(u64, u64)]) -> Saved {
        let page = |index: u64| {
            let at = start + index * BLOCK;
            let next = if index == 0 { 0 } else { at - BLOCK };
            let next =
                more.iter().find(|(place, _)| *place == index).map_or(next, |(_, next)| *next);
            let mut page = vec![0; 4096];
            page[2..4].copy_from_slice(&(-1_i16).to_le_bytes());
            page[NEXT as usize..][..8].copy_from_slice(&next.to_le_bytes());
            (at, page)
        };
        Saved::new((0..blocks).map(page).collect())
    }

    #[test]
    fn the_transient_heap_is_found_by_its_blocks_that_lead_to_each_other() {
        let start = 0x7f00_0000_8000;
        let private = start - BLOCK..start + 2 * ARENA;
        let find = |memory: &Saved| transient_heap(memory, std::slice::from_ref(&private));
        assert_eq!(find(&blocks(start, 1024, &[])), Some(start..start + ARENA));
        // Blocks in use are in other lists, each of which has an end.
        let lists = [(5, start + 700 * BLOCK), (9, 0), (700, 0)];
        assert_eq!(find(&blocks(start, 1024, &lists)), Some(start..start + ARENA));
        assert_eq!(find(&blocks(start, 1023, &[])), None);
        assert_eq!(find(&blocks(start, 1024, &[(500, start + 2 * ARENA)])), None);
        assert_eq!(find(&blocks(start, 1024, &[(500, start + 8)])), None);
    }

    #[test]
    fn memory_without_links_is_no_transient_heap() {
        let start = 0x7f00_0000_0000;
        let zeros = (0..1024).map(|index| (start + index * BLOCK, vec![0; 4096])).collect();
        let private = start..start + ARENA;
        let found = transient_heap(&Saved::new(zeros), std::slice::from_ref(&private));
        assert_eq!(found, None);
    }
}

//! The memory of Ruby's objects (`gc.c`): pages of slots, each of which begins with a pointer to
//! its record.

use std::ops::Range;

use crate::memory::{ADDRESS_END, Memory, word_in};
use crate::scattered::Scattered;

/// Size and alignment of a page, in bytes (`HEAP_PAGE_SIZE`): up to 3.1, and from 3.2 on.
const PAGES: [u64; 2] = [16 << 10, 64 << 10];
/// Number of words of a record that are searched for the address of the first slot of its page
/// (`struct heap_page`).
const RECORD: u64 = 12;
/// Maximum distance of the first slot from the beginning of the page, in bytes.
const FIRST_SLOT: u64 = 512;

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

//! Where the memory of gperftools' tcmalloc is, from 2.10 on.
//!
//! It keeps a map from page numbers to its spans (`TCMalloc_PageMap2`), whose root is in the zeroed data of the
//! program or library. The root is recognised by its leaves: the entry of a page leads to a span
//! (`Span`) that begins with the same page number. Its pages have 8 KiB, as it is built by default.

use std::collections::HashSet;
use std::ops::Range;

use crate::memory::{Memory, each_word};
use crate::ranges::joined;
use crate::scattered::Scattered;

/// Bits of an address within a page (`kPageShift`).
const PAGE_BITS: u32 = 13;
/// A leaf has 2 to this power entries, and the root as many as 48 bits of address ask for.
const LEAF_BITS: u32 = 18;
const ROOT_BITS: u32 = 48 - PAGE_BITS - LEAF_BITS;
const LEAF_BYTES: u64 = 8 << LEAF_BITS;
const ROOT_BYTES: u64 = 8 << ROOT_BITS;
/// Addresses of user space end here.
const HIGHEST: u64 = 1 << 47;
/// A span has at most so many pages: 128 GiB.
const MAX_PAGES: u64 = 1 << 24;
/// Maximum number of words that are tried as pointers to a leaf, and of spans that are read.
const MAX_TRIED: usize = 64 << 10;
const MAX_SPANS: u64 = 4 << 20;
/// So many entries of a leaf must agree with their spans; of so many in a row, at least one.
const AGREEING: u64 = 8;
const IN_A_ROW: u64 = 600;

/// The addresses that belong to tcmalloc, in order and apart from each other; nothing where there is none.
/// `data` are the ranges of zeroed data of the program and its libraries, `anonymous` the private writable
/// mappings of no file in order, neighbours joined.
pub fn spans(
    memory: &impl Memory,
    data: &[Range<u64>],
    anonymous: &[Range<u64>],
) -> Vec<Range<u64>> {
    let mut map = PageMap { words: Scattered::new(memory), memory, anonymous, spans: 0 };
    let mut found = Vec::new();
    for range in data.iter().filter(|range| range.end - range.start >= ROOT_BYTES) {
        if let Some(root) = map.root(range) {
            map.spans_below(root, &mut found);
        }
    }
    found.sort_unstable_by_key(|range| range.start);
    joined(found)
}

struct PageMap<'m, M> {
    words: Scattered<'m, M>,
    memory: &'m M,
    anonymous: &'m [Range<u64>],
    spans: u64,
}

impl<M: Memory> PageMap<'_, M> {
    fn is_anonymous(&self, range: Range<u64>) -> bool {
        let place = self.anonymous.partition_point(|known| known.end <= range.start);
        let known = self.anonymous.get(place);
        known.is_some_and(|known| known.start <= range.start && range.end <= known.end)
    }

    fn root(&mut self, data: &Range<u64>) -> Option<u64> {
        let mut tried = HashSet::new();
        let mut found = None;
        each_word(self.memory, data.clone(), |slot, leaf| {
            let is_new = is_pointer(leaf)
                && self.is_anonymous(leaf..leaf.saturating_add(LEAF_BYTES))
                && tried.insert(leaf);
            let key = is_new.then(|| self.key_of_leaf(leaf)).flatten();
            let root = key.and_then(|key| slot.checked_sub(key * 8));
            found = root.filter(|root| data.start <= *root && root + ROOT_BYTES <= data.end);
            found.is_none() && tried.len() <= MAX_TRIED
        });
        found
    }

    /// The high bits that all pages of a leaf share, if it is one. Entries within a span may be out of date.
    fn key_of_leaf(&mut self, leaf: u64) -> Option<u64> {
        let (mut key, mut agree, mut seen) = (None, 0, 0);
        let mut is_sound = true;
        each_word(self.memory, leaf..leaf + LEAF_BYTES, |slot, span| {
            seen += 1;
            is_sound = is_pointer(span);
            if let Some((first, _)) = self.span(span)
                && first & ((1 << LEAF_BITS) - 1) == (slot - leaf) / 8
            {
                agree += 1;
                is_sound &= key.replace(first >> LEAF_BITS).is_none_or(|k| k == first >> LEAF_BITS);
            }
            is_sound && agree < AGREEING && (agree > 0 || seen < IN_A_ROW)
        });
        key.filter(|_| is_sound && agree >= AGREEING)
    }

    /// First page and number of pages of a span, if it can be one.
    fn span(&mut self, at: u64) -> Option<(u64, u64)> {
        self.spans += 1;
        if !is_pointer(at) || self.spans > MAX_SPANS {
            return None;
        }
        let (first, pages) = self.words.pair(at)?;
        let end = first.checked_add(pages)?;
        let is_sound = (1..MAX_PAGES).contains(&pages) && end <= HIGHEST >> PAGE_BITS;
        (is_sound && self.is_anonymous(first << PAGE_BITS..end << PAGE_BITS))
            .then_some((first, pages))
    }

    fn spans_below(&mut self, root: u64, found: &mut Vec<Range<u64>>) {
        let mut leaves = Vec::new();
        each_word(self.memory, root..root + ROOT_BYTES, |slot, leaf| {
            if is_pointer(leaf) && self.is_anonymous(leaf..leaf.saturating_add(LEAF_BYTES)) {
                leaves.push(((slot - root) / 8, leaf));
            }
            true
        });
        for (key, leaf) in leaves {
            let mut known = 0;
            each_word(self.memory, leaf..leaf + LEAF_BYTES, |slot, span| {
                let page = (key << LEAF_BITS) | ((slot - leaf) / 8);
                if page >= known
                    && let Some((first, pages)) = self.span(span)
                    && first == page
                {
                    known = first + pages;
                    found.push(first << PAGE_BITS..known << PAGE_BITS);
                }
                true
            });
        }
    }
}

fn is_pointer(word: u64) -> bool {
    (1 << 16..HIGHEST).contains(&word) && word.is_multiple_of(8)
}

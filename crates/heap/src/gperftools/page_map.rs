//! The map from page numbers to spans (`TCMalloc_PageMap2`), whose root is in the zeroed data of
//! the program or library. The root is recognised by its leaves: the entry of a page leads to a
//! span that begins with the same page number. Pages have 8 KiB, as the library is built by
//! default.

use std::collections::HashSet;
use std::ops::Range;

use crate::memory::{ADDRESS_END, Memory, each_word};
use crate::ranges::{hold, keep_disjoint};
use crate::scattered::Scattered;

/// Bits of an address within a page (`kPageShift`).
pub(super) const PAGE_BITS: u32 = 13;
/// Base-2 logarithm of the number of entries of a leaf. The root covers the rest of 48 address
/// bits.
pub(super) const LEAF_BITS: u32 = 18;
const ROOT_BITS: u32 = 48 - PAGE_BITS - LEAF_BITS;
pub(super) const LEAF_BYTES: u64 = 8 << LEAF_BITS;
pub(super) const ROOT_BYTES: u64 = 8 << ROOT_BITS;
/// Maximum number of pages of a span: 128 GiB.
const MAX_PAGES: u64 = 1 << 24;
/// Maximum number of words that are tried as pointers to a leaf, and of spans that are read.
const MAX_TRIED: usize = 64 << 10;
const MAX_SPANS: u64 = 4 << 20;
/// Number of entries of a leaf that must agree with their spans, and number of entries of which at
/// least one must agree.
const AGREEING: u64 = 8;
const IN_A_ROW: u64 = 600;

/// A span of consecutive pages (`Span`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// The address of its record.
    pub(super) record: u64,
    /// Its first page.
    pub(super) first: u64,
    /// Number of its pages.
    pub(super) pages: u64,
    /// Number of its blocks that are not in its own list (`refcount`).
    pub(super) out: u64,
    /// The index of the size class of its blocks; 0 if the span is one block.
    pub(super) class: usize,
    pub(super) location: SpanLocation,
}

/// The location of a span (`location`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanLocation {
    /// The program has it, or it is cut into blocks.
    InUse,
    /// Free (`ON_NORMAL_FREELIST`).
    Free,
    /// Free, and returned to the kernel (`ON_RETURNED_FREELIST`).
    Returned,
}

/// Bytes of a span's record.
pub(super) const RECORD: u64 = 48;

impl Span {
    pub(super) fn is_free(&self) -> bool {
        self.location == SpanLocation::Free
    }

    /// Returns its last page.
    pub(super) fn last(&self) -> u64 {
        self.first + self.pages - 1
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.first << PAGE_BITS..(self.first + self.pages) << PAGE_BITS
    }
}

/// Reads the page map.
pub(super) struct PageMap<'m, M> {
    words: Scattered<'m, M>,
    memory: &'m M,
    anonymous: &'m [Range<u64>],
    spans: u64,
}

impl<'m, M: Memory> PageMap<'m, M> {
    pub(super) fn new(memory: &'m M, anonymous: &'m [Range<u64>]) -> Self {
        Self { words: Scattered::new(memory), memory, anonymous, spans: 0 }
    }

    /// Returns whether a range is in a private writable anonymous mapping.
    pub(super) fn is_anonymous(&self, range: Range<u64>) -> bool {
        hold(self.anonymous, &range)
    }

    /// Finds the root in a range of zeroed data.
    pub(super) fn root(&mut self, data: &Range<u64>) -> Option<u64> {
        if data.end - data.start < ROOT_BYTES {
            return None;
        }
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

    /// Returns the high bits that all pages of a leaf share, or `None` if it is not a leaf. Entries
    /// within a span may be out of date.
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

    /// Returns the first page and the number of pages of a span, if it can be one.
    fn span(&mut self, at: u64) -> Option<(u64, u64)> {
        self.spans += 1;
        if !is_pointer(at) || self.spans > MAX_SPANS {
            return None;
        }
        let (first, pages) = self.words.pair(at)?;
        let end = first.checked_add(pages)?;
        let is_sound = (1..MAX_PAGES).contains(&pages) && end <= ADDRESS_END >> PAGE_BITS;
        (is_sound && self.is_anonymous(first << PAGE_BITS..end << PAGE_BITS))
            .then_some((first, pages))
    }

    /// Returns the leaves below a root, in order of their pages.
    pub(super) fn leaves(&self, root: u64) -> Vec<(u64, u64)> {
        let mut leaves = Vec::new();
        each_word(self.memory, root..root + ROOT_BYTES, |slot, leaf| {
            if is_pointer(leaf) && self.is_anonymous(leaf..leaf.saturating_add(LEAF_BYTES)) {
                leaves.push(((slot - root) / 8, leaf));
            }
            true
        });
        keep_disjoint(&mut leaves, LEAF_BYTES);
        leaves
    }

    /// Returns the spans of leaves, in order of address and disjoint.
    pub(super) fn spans(&mut self, leaves: &[(u64, u64)]) -> Vec<Span> {
        let mut found = Vec::new();
        for (key, leaf) in leaves {
            let mut known = 0;
            each_word(self.memory, *leaf..leaf + LEAF_BYTES, |slot, record| {
                let page = (key << LEAF_BITS) | ((slot - leaf) / 8);
                // Entries within a span may be out of date.
                if page >= known
                    && let Some(span) = self.whole_span(record)
                    && span.first == page
                {
                    known = span.first + span.pages;
                    found.push(span);
                }
                self.spans <= MAX_SPANS
            });
        }
        found.sort_unstable_by_key(|span: &Span| span.first);
        let mut end = 0;
        found.retain(|span| {
            let is_apart = span.first >= end;
            end = end.max(span.first + span.pages);
            is_apart
        });
        found
    }

    fn whole_span(&mut self, record: u64) -> Option<Span> {
        let (first, pages) = self.span(record)?;
        // After `next`, `prev` and `objects`: `refcount` of 16 bits, `sizeclass` of 8, `location`
        // of 2.
        let bits = self.words.word(record + 40)?;
        let location = match bits >> 24 & 3 {
            0 => SpanLocation::InUse,
            1 => SpanLocation::Free,
            2 => SpanLocation::Returned,
            _ => return None,
        };
        let class = (bits >> 16 & 0xff) as usize;
        Some(Span { record, first, pages, out: bits & 0xffff, class, location })
    }
}

pub(super) fn is_pointer(word: u64) -> bool {
    (1 << 16..ADDRESS_END).contains(&word) && word.is_multiple_of(8)
}

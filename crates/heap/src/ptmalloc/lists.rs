//! The lists of free blocks that the chunks themselves do not tell of: fast bins, and the caches of the
//! threads.

use std::collections::HashMap;
use std::ops::Range;

use super::layout::Layout;
use super::walk::SMALLEST;
use crate::memory::{Memory, half_in, word_in};

/// More blocks than any list holds; a list that is torn may turn in a circle.
const MOST_LISTED: usize = 1 << 26;
const PAGE: u64 = 4096;
/// So many pages are remembered.
const REMEMBERED: usize = 4096;

/// Reads scattered words, a page at a time.
pub(super) struct Pages<'m, M> {
    memory: &'m M,
    pages: HashMap<u64, Vec<u8>>,
}

impl<'m, M: Memory> Pages<'m, M> {
    pub(super) fn new(memory: &'m M) -> Self {
        Self { memory, pages: HashMap::new() }
    }

    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        word_in(self.page(address), (address % PAGE) as usize)
    }

    fn page(&mut self, address: u64) -> &[u8] {
        if self.pages.len() >= REMEMBERED {
            self.pages.clear();
        }
        let memory = self.memory;
        self.pages.entry(address / PAGE).or_insert_with(|| {
            let mut bytes = vec![0; PAGE as usize];
            let length = memory.read(address - address % PAGE, &mut bytes);
            bytes.truncate(length);
            bytes
        })
    }
}

/// How a pointer of a list is written: plainly, or mixed with its own address (from 2.32 on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Plain,
    Mixed,
}

impl Links {
    const BOTH: [Self; 2] = [Self::Mixed, Self::Plain];

    fn decode(self, at: u64, word: u64) -> u64 {
        match self {
            Self::Plain => word,
            Self::Mixed => word ^ (at >> 12),
        }
    }
}

/// All chunks that stand in the fast bins of the arenas, in order of their addresses.
pub(super) fn fast_chunks(memory: &impl Memory, layout: &Layout) -> Vec<u64> {
    let mut pages = Pages::new(memory);
    let mut found = Vec::new();
    for arena in &layout.arenas {
        let Some(heads) = layout.fast_bins(*arena) else { continue };
        for (class, head) in heads.step_by(8).enumerate() {
            let size = SMALLEST + class as u64 * 16;
            let Some(first) = pages.word(head).filter(|first| *first != 0) else { continue };
            // Both ways are tried; on the wrong one, the second chunk makes no sense.
            let lists = Links::BOTH.map(|links| list(&mut pages, first, 0, Some(size), links));
            let [mixed, plain] = lists;
            let longer =
                if plain.1 && !mixed.1 || (plain.1 == mixed.1 && plain.0.len() > mixed.0.len()) {
                    plain.0
                } else {
                    mixed.0
                };
            found.extend(longer);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Follows a list of chunks; the pointers lead to chunks, or `offset` bytes behind their beginning.
/// Gives the chunks that are sound, and whether the list came to its end.
fn list<M: Memory>(
    pages: &mut Pages<'_, M>,
    first: u64,
    offset: u64,
    size: Option<u64>,
    links: Links,
) -> (Vec<u64>, bool) {
    let mut chunks = Vec::new();
    let mut next = first;
    while next != 0 {
        let Some(chunk) = next.checked_sub(offset).filter(|c| c % 16 == 0) else {
            return (chunks, false);
        };
        let Some(head) = pages.word(chunk + 8) else { return (chunks, false) };
        if size.is_some_and(|size| head & !7 != size) || chunks.len() >= MOST_LISTED {
            return (chunks, false);
        }
        chunks.push(chunk);
        let at = chunk + 16;
        let Some(word) = pages.word(at) else { return (chunks, false) };
        next = links.decode(at, word);
    }
    (chunks, true)
}

/// What the threads hold back for themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caches {
    /// Caches that hold something.
    pub caches: u64,
    /// Blocks in them.
    pub count: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// The chunks of the caches themselves.
    pub(super) structures: Vec<Range<u64>>,
    /// The blocks.
    pub(super) blocks: Vec<Range<u64>>,
}

/// A form that a thread's cache has had.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Size of its chunk.
    chunk: u64,
    /// Size classes.
    bins: u64,
    /// Bytes of a count.
    count: u64,
}

/// 2.26 to 2.29, 2.30 to 2.41, from 2.42 on.
const FORMS: [Form; 4] = [
    Form { chunk: 0x250, bins: 64, count: 1 },
    Form { chunk: 0x290, bins: 64, count: 2 },
    Form { chunk: 0x300, bins: 76, count: 2 },
    Form { chunk: 0x310, bins: 76, count: 2 },
];

/// Sizes of chunks that may be a thread's cache.
pub(super) const CACHE_SIZES: [u64; 4] = [0x250, 0x290, 0x300, 0x310];

/// Finds out which of the chunks are caches of threads, and what is in them.
pub(super) fn caches(memory: &impl Memory, suspects: &[u64]) -> Caches {
    let mut found = Caches::default();
    let mut pages = Pages::new(memory);
    for chunk in suspects {
        let mut bytes = vec![0; 0x310];
        let length = memory.read(*chunk, &mut bytes);
        bytes.truncate(length);
        let Some(size) = word_in(&bytes, 8).map(|head| head & !7) else { continue };
        for form in FORMS.iter().filter(|form| form.chunk == size) {
            if let Some(blocks) = cache(&mut pages, &bytes[16..], *form) {
                found.caches += 1;
                found.count += blocks.len() as u64;
                found.bytes += blocks.iter().map(|b| b.end - b.start).sum::<u64>();
                found.blocks.extend(blocks);
                found.structures.push(*chunk..*chunk + size);
                break;
            }
        }
    }
    found.blocks.sort_unstable_by_key(|b| b.start);
    found.structures.sort_unstable_by_key(|b| b.start);
    found
}

/// The blocks in a cache, if it is one: every list must have the size of its class and come to its end,
/// and have the length that is counted.
fn cache<M: Memory>(pages: &mut Pages<'_, M>, bytes: &[u8], form: Form) -> Option<Vec<Range<u64>>> {
    let lists_at = (form.bins * form.count).next_multiple_of(8) as usize;
    'links: for links in Links::BOTH {
        let mut blocks = Vec::new();
        let mut lengths = Vec::new();
        for class in 0..form.bins {
            let first = word_in(bytes, lists_at + class as usize * 8)?;
            let size = (class < 64).then_some(SMALLEST + class * 16);
            let (chunks, whole) = list(pages, first, 16, size, links);
            if !whole || chunks.len() > usize::from(u16::MAX) {
                continue 'links;
            }
            for chunk in &chunks {
                let size = pages.word(chunk + 8)? & !7;
                blocks.push(*chunk..*chunk + size);
            }
            lengths.push(chunks.len() as u64);
        }
        if !blocks.is_empty() && counts_agree(bytes, form, &lengths) {
            return Some(blocks);
        }
    }
    None
}

/// Whether the lists have the lengths that are counted; from 2.42 on, what is left of the most that a
/// list may have is counted.
fn counts_agree(bytes: &[u8], form: Form, lengths: &[u64]) -> bool {
    let count = |class: u64| -> Option<u64> {
        let at = (class * form.count) as usize;
        let half = half_in(bytes, at - at % 4)? >> (at % 4 * 8);
        Some(u64::from(if form.count == 1 { half & 0xff } else { half & 0xffff }))
    };
    let Some(counts) = (0..form.bins).map(count).collect::<Option<Vec<u64>>>() else {
        return false;
    };
    if form.bins == 64 {
        return counts == lengths;
    }
    let most = counts.iter().zip(lengths).map(|(left, length)| left + length).max().unwrap_or(0);
    let agree = |(left, length): (&u64, &u64)| left + length == most || *length == 0;
    counts.iter().zip(lengths).all(agree)
}

//! The output of `malloc_info(3)`, computed from outside the process.
//!
//! The text is that of glibc's `__malloc_info` (malloc/malloc.c), as of 2.31 and newer: for each
//! arena the fast bins and bins by the sizes of their chunks, and the bytes that it has from the
//! system. 2.27 does not count the top of an arena among its free blocks. No function is called in
//! the process.

use std::fmt::Write as _;

use super::HEAP_BYTES;
use super::chunk::{FLAGS, SMALLEST};
use super::layout::{BIN, BINS, Layout};
use super::lists::{Links, fast_links};
use crate::memory::{ADDRESS_END, Memory, word};
use crate::scattered::Scattered;

/// Maximum number of chunks and heaps that are inspected in total, and of bytes of the text.
const MAX_STEPS: u64 = 16 << 20;
const MAX_TEXT: usize = 64 << 20;
/// Bytes of the smallest heap.
const MIN_HEAP: u64 = 4096;
/// Maximum number of times that an arena is read if it changes meanwhile.
const TRIES: u32 = 5;

/// The text, and the number of inconsistent arenas in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MallocInfo {
    /// The XML.
    pub text: String,
    /// Number of arenas that changed each time that they were read, or of which a part could not be
    /// read.
    pub torn_arenas: u64,
}

/// Chunks of a bin.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    from: u64,
    to: u64,
    total: u64,
    count: u64,
}

/// The sums over an arena, or over all arenas.
#[derive(Debug, Clone, Copy, Default)]
struct InfoTotals {
    /// Absent from 2.43 on, which has no fast bins.
    fast: Option<Sizes>,
    rest: Sizes,
    system_bytes: u64,
    max_system_bytes: u64,
    /// Bytes of its heaps, and the part of them that is readable and writable.
    space_bytes: u64,
    usable_bytes: u64,
}

/// Computes the text. Returns `None` if the settings, which contain the number of mmapped chunks,
/// were not found, if the arenas cannot be read, or if there are too many.
pub fn malloc_info(memory: &impl Memory, layout: &Layout) -> Option<MallocInfo> {
    read(memory, layout, MAX_STEPS)
}

fn read(memory: &impl Memory, layout: &Layout, steps: u64) -> Option<MallocInfo> {
    let settings = layout.settings.as_ref()?;
    let mut info = MallocInfo { text: "<malloc version=\"1\">\n".to_owned(), torn_arenas: 0 };
    let links = fast_links(memory, layout).unwrap_or(Links::Plain);
    let mut reader = Reader { memory, layout, links, words: Scattered::new(memory), left: steps };
    let mut all = InfoTotals::default();
    for (number, arena) in layout.arenas.iter().enumerate() {
        let (text, totals, is_torn) = reader.arena(*arena, number)?;
        info.text.push_str(&text);
        all.add(&totals);
        info.torn_arenas += u64::from(is_torn);
        if info.text.len() > MAX_TEXT {
            return None;
        }
    }
    let text = &mut info.text;
    totals(text, &all);
    let _ = writeln!(
        text,
        "<total type=\"mmap\" count=\"{}\" size=\"{}\"/>",
        settings.mmapped_count, settings.mmapped_bytes
    );
    system(text, &all);
    space(text, &all);
    text.push_str("</malloc>\n");
    Some(info)
}

struct Reader<'m, M> {
    memory: &'m M,
    layout: &'m Layout,
    links: Links,
    words: Scattered<'m, M>,
    /// Number of chunks and heaps that may still be inspected.
    left: u64,
}

impl<M: Memory> Reader<'_, M> {
    /// Reads an arena, and again if it changed meanwhile. The last result counts. Returns its text,
    /// and whether it is inconsistent.
    fn arena(&mut self, arena: u64, number: usize) -> Option<(String, InfoTotals, bool)> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.words.forget();
            let before = self.heads(arena);
            let (text, totals, is_whole) = self.arena_once(arena, number)?;
            if is_whole && before.is_some() && self.heads(arena) == before {
                return Some((text, totals, false));
            }
            if tries >= TRIES || self.left == 0 || self.memory.is_over() {
                return Some((text, totals, true));
            }
        }
    }

    /// Returns the fields that change when chunks are allocated or freed: the heads of all lists,
    /// the top, and the bytes from the system.
    fn heads(&self, arena: u64) -> Option<Vec<u8>> {
        let end = self.layout.end(arena);
        let mut bytes = vec![0; usize::try_from(end.checked_sub(arena)?).ok()?];
        (self.memory.read(arena, &mut bytes) == bytes.len()).then_some(bytes)
    }

    /// Reads an arena. Returns its text, and whether all its lists ended as such lists do.
    fn arena_once(&mut self, arena: u64, number: usize) -> Option<(String, InfoTotals, bool)> {
        let mut text = format!("<heap nr=\"{number}\">\n<sizes>\n");
        let mut is_whole = true;
        let mut found = InfoTotals {
            system_bytes: self.layout.system_bytes(self.memory, arena)?,
            max_system_bytes: self.layout.max_system_bytes(self.memory, arena)?,
            ..InfoTotals::default()
        };
        if let Some(heads) = self.layout.fast_bins(arena) {
            let mut fast = Sizes::default();
            for head in heads.step_by(8) {
                let (sizes, is_list) = self.fast_bin(head);
                fast.add(&sizes);
                is_whole &= is_list;
                size(&mut text, "size", &sizes);
            }
            found.fast = Some(fast);
        }
        let top = word(self.memory, self.layout.top_at(arena))?;
        let top_size = top.checked_add(8).and_then(|at| self.words.word(at));
        is_whole &= top_size.is_some();
        found.rest = Sizes { count: 1, total: top_size.unwrap_or(0) & !FLAGS, ..Sizes::default() };
        let mut unsorted = Sizes::default();
        for number in 0..BINS {
            let (sizes, is_list) = self.bin(self.layout.bins(arena) + number * BIN);
            found.rest.add(&sizes);
            is_whole &= is_list;
            match number {
                0 => unsorted = sizes,
                _ => size(&mut text, "size", &sizes),
            }
        }
        size(&mut text, "unsorted", &unsorted);
        text.push_str("</sizes>\n");
        // The free bytes cannot exceed the bytes that the arena has.
        let fast = found.fast.unwrap_or_default();
        is_whole &= fast.total.saturating_add(found.rest.total) <= found.system_bytes;
        totals(&mut text, &found);
        system(&mut text, &found);
        if number == 0 {
            found.space_bytes = found.system_bytes;
            found.usable_bytes = found.system_bytes;
            space(&mut text, &found);
        } else {
            let (heaps, is_list) = self.heaps(top, &mut found);
            is_whole &= is_list;
            space(&mut text, &found);
            let _ = writeln!(text, "<aspace type=\"subheaps\" size=\"{heaps}\"/>");
        }
        text.push_str("</heap>\n");
        Some((text, found, is_whole))
    }

    fn take(&mut self) -> bool {
        let next = self.left.checked_sub(1);
        self.left = next.unwrap_or(0);
        next.is_some()
    }

    /// Follows a fast bin, whose chunks have one size. Returns whether it ended as such lists do.
    fn fast_bin(&mut self, head: u64) -> (Sizes, bool) {
        let mut sizes = Sizes::default();
        let Some(mut chunk) = word(self.memory, head) else { return (sizes, false) };
        while chunk != 0 {
            let Some((size, link)) = chunk.checked_add(8).and_then(|at| self.words.pair(at)) else {
                return (sizes, false);
            };
            let size = size & !FLAGS;
            if sizes.count == 0 {
                sizes = Sizes { from: size.saturating_sub(15), to: size, total: 0, count: 0 };
            }
            if size != sizes.to || size < SMALLEST || !self.take() {
                return (sizes, false);
            }
            sizes.count += 1;
            sizes.total = sizes.total.saturating_add(size);
            chunk = self.links.decode(chunk + 16, link);
            if !chunk.is_multiple_of(16) || chunk >= ADDRESS_END {
                return (sizes, false);
            }
        }
        (sizes, true)
    }

    /// Follows a bin. Returns whether each chunk pointed back to the one before, as it does unless
    /// the list changes.
    fn bin(&mut self, bin: u64) -> (Sizes, bool) {
        let mut sizes = Sizes::default();
        let header = bin - BIN;
        let Some(mut chunk) = word(self.memory, bin) else { return (sizes, false) };
        // Bins that were never used are zeros.
        if chunk == 0 {
            return (sizes, true);
        }
        let mut before = header;
        while chunk != header {
            let link = chunk.checked_add(16).and_then(|at| self.words.pair(at));
            let size = chunk.checked_add(8).and_then(|at| self.words.word(at));
            let (Some((next, back)), Some(size)) = (link, size) else { return (sizes, false) };
            if back != before || size < SMALLEST || !self.take() {
                return (sizes, false);
            }
            // The flags are counted with the size, as the library does.
            let from = if sizes.count == 0 { size } else { sizes.from.min(size) };
            sizes.count += 1;
            sizes.total = sizes.total.saturating_add(size);
            sizes = Sizes { from, to: sizes.to.max(size), ..sizes };
            before = chunk;
            chunk = next;
        }
        (sizes, true)
    }

    /// Adds the heaps of an arena, from the one with its top chunk. Returns their number, and
    /// whether the chain of heaps ended properly.
    fn heaps(&mut self, top: u64, found: &mut InfoTotals) -> (u64, bool) {
        let most = found.system_bytes / MIN_HEAP + 1;
        let mut heap = top - top % HEAP_BYTES;
        let mut count = 0;
        while heap != 0 {
            // `ar_ptr`, `prev`, `size` and `mprotect_size` (`struct _heap_info`).
            let [previous, bytes, usable] =
                [8, 16, 24].map(|field| heap.checked_add(field).and_then(|at| self.words.word(at)));
            let (Some(previous), Some(bytes), Some(usable)) = (previous, bytes, usable) else {
                return (count, false);
            };
            if count >= most || !heap.is_multiple_of(HEAP_BYTES) || !self.take() {
                return (count, false);
            }
            found.space_bytes = found.space_bytes.saturating_add(bytes);
            found.usable_bytes = found.usable_bytes.saturating_add(usable);
            heap = previous;
            count += 1;
        }
        (count, true)
    }
}

impl Sizes {
    /// Adds the number and the bytes of others.
    fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.total = self.total.saturating_add(other.total);
    }
}

impl InfoTotals {
    fn add(&mut self, other: &Self) {
        if let Some(other) = &other.fast {
            self.fast.get_or_insert_default().add(other);
        }
        self.rest.add(&other.rest);
        for (sum, one) in [
            (&mut self.system_bytes, other.system_bytes),
            (&mut self.max_system_bytes, other.max_system_bytes),
            (&mut self.space_bytes, other.space_bytes),
            (&mut self.usable_bytes, other.usable_bytes),
        ] {
            *sum = sum.saturating_add(one);
        }
    }
}

fn size(text: &mut String, element: &str, sizes: &Sizes) {
    let Sizes { from, to, total, count } = sizes;
    if *count > 0 {
        let _ = writeln!(
            text,
            "  <{element} from=\"{from}\" to=\"{to}\" total=\"{total}\" count=\"{count}\"/>"
        );
    }
}

fn totals(text: &mut String, found: &InfoTotals) {
    let totals = [("fast", found.fast), ("rest", Some(found.rest))];
    for (name, sizes) in totals {
        let Some(Sizes { count, total, .. }) = sizes else { continue };
        let _ = writeln!(text, "<total type=\"{name}\" count=\"{count}\" size=\"{total}\"/>");
    }
}

fn system(text: &mut String, found: &InfoTotals) {
    let (now, most) = (found.system_bytes, found.max_system_bytes);
    let _ = writeln!(text, "<system type=\"current\" size=\"{now}\"/>");
    let _ = writeln!(text, "<system type=\"max\" size=\"{most}\"/>");
}

fn space(text: &mut String, found: &InfoTotals) {
    let (all, usable) = (found.space_bytes, found.usable_bytes);
    let _ = writeln!(text, "<aspace type=\"total\" size=\"{all}\"/>");
    let _ = writeln!(text, "<aspace type=\"mprotect\" size=\"{usable}\"/>");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::layout::MallocParams;
    use super::*;
    use crate::memory::Saved;

    const BASE: u64 = 0x7000_0000_0000;
    const PAGES: usize = 3;

    fn layout() -> Layout {
        let settings = MallocParams {
            range: 0..0,
            trim_threshold_bytes: 1 << 17,
            top_pad_bytes: 1 << 17,
            mmap_threshold_bytes: 1 << 17,
            mmap_threshold_dynamic: true,
            arena_max: None,
            mmapped_count: 0,
            mmapped_bytes: 0,
            sbrk_base: 0,
            tcache_bins: 64,
            tcache_max_bytes: 1032,
            tcache_count: 7,
            thp_page_bytes: 0,
        };
        // The second arena is in the same memory.
        Layout { arenas: vec![BASE, BASE + 0x20], head_bytes: 112, settings: Some(settings) }
    }

    fn memory(words: &[u64]) -> Saved {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Saved::new(vec![(BASE, bytes)])
    }

    /// Returns words that point to each other, sizes of all kinds, and arbitrary values.
    fn words() -> impl Strategy<Value = Vec<u64>> {
        let word = prop_oneof![
            4 => (0..PAGES as u64 * 256).prop_map(|place| BASE + place * 16),
            2 => 0..4096_u64,
            1 => Just(0_u64),
            1 => Just(u64::MAX),
            1 => Just(u64::MAX - 7),
            1 => any::<u64>(),
        ];
        proptest::collection::vec(word, PAGES * 512..=PAGES * 512)
    }

    proptest! {
        #[test]
        fn reading_arbitrary_memory_terminates(words in words()) {
            let _ = read(&memory(&words), &layout(), 10_000);
        }
    }

    #[test]
    fn an_arena_with_a_circular_list_is_torn() {
        let mut words = vec![0; PAGES * 512];
        let layout = layout();
        let place = |at: u64| ((at - BASE) / 8) as usize;
        // Chunks of a fast bin: the first leads to one of two that lead to each other.
        let [first, a, b] = [0x2000, 0x2100, 0x2200].map(|offset| BASE + offset);
        words[place(layout.fast_bins(BASE).unwrap().start)] = first;
        for (chunk, next) in [(first, a), (a, b), (b, a)] {
            words[place(chunk + 8)] = 0x21;
            words[place(chunk + 16)] = next;
        }
        words[place(layout.top_at(BASE))] = BASE + 0x2800;
        let layout = Layout { arenas: vec![BASE], ..layout };
        let found = read(&memory(&words), &layout, 1000).unwrap();
        assert_eq!(found.torn_arenas, 1, "{}", found.text);
    }
}

//! What `malloc_info(3)` prints, from outside.
//!
//! The text is that of glibc's `__malloc_info` (malloc/malloc.c), as it is since 2.31: of each arena its fast bins and bins by the
//! sizes of the chunks in them, and what it has got from the system. 2.27 does not count the top of an arena among its free
//! blocks. Nothing is called in the process.

use std::fmt::Write as _;

use super::HEAP_BYTES;
use super::layout::Layout;
use super::lists::Links;
use crate::memory::{Memory, word};
use crate::scattered::Scattered;

/// Bits of a chunk's size that are not of its size.
const FLAGS: u64 = 7;
/// Maximum number of chunks in the lists of an arena that are followed.
const MAX_CHUNKS: u64 = 64 << 20;
/// Maximum number of heaps of an arena: as many as there is room for.
const MAX_HEAPS: u64 = (1 << 47) / HEAP_BYTES;
/// Number of times that a list is followed that changes meanwhile.
const TRIES: u32 = 5;
/// Number of bins, and the place of the first one: that of chunks that were not sorted yet.
const BINS: u64 = 127;

/// The text, and how much of it is of different moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MallocInfo {
    /// The XML.
    pub text: String,
    /// Number of arenas of which a list changed each time that it was followed.
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

/// What an arena holds, or all together.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// Absent from 2.43 on, which has no fast bins.
    fast: Option<Sizes>,
    rest: Sizes,
    system_bytes: u64,
    max_system_bytes: u64,
    /// Bytes of its heaps, and of those that may be used.
    space_bytes: u64,
    usable_bytes: u64,
}

/// Reads the text. `None` if the settings, which have the number of mapped blocks, were not found, or if an arena cannot be
/// read.
pub fn malloc_info(memory: &impl Memory, layout: &Layout) -> Option<MallocInfo> {
    let settings = layout.settings.as_ref()?;
    let mut info = MallocInfo { text: "<malloc version=\"1\">\n".to_owned(), torn_arenas: 0 };
    let mut reader = Reader { memory, layout, words: Scattered::new(memory) };
    let mut all = Totals::default();
    for (number, arena) in layout.arenas.iter().enumerate() {
        let is_torn = reader.arena(*arena, number, &mut all, &mut info.text)?;
        info.torn_arenas += u64::from(is_torn);
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
    words: Scattered<'m, M>,
}

impl<M: Memory> Reader<'_, M> {
    /// Adds an arena. Returns whether a list of it changed while it was read.
    fn arena(
        &mut self,
        arena: u64,
        number: usize,
        all: &mut Totals,
        text: &mut String,
    ) -> Option<bool> {
        let _ = writeln!(text, "<heap nr=\"{number}\">\n<sizes>");
        let mut is_torn = false;
        let mut found = Totals::default();
        let mut left = MAX_CHUNKS;
        if let Some(heads) = self.layout.fast_bins(arena) {
            let fast = found.fast.insert(Sizes::default());
            for head in heads.step_by(8) {
                let sizes =
                    self.until_still(&mut is_torn, |reader| reader.fast_bin(head, &mut left));
                fast.count += sizes.count;
                fast.total += sizes.total;
                size(text, "size", &sizes);
            }
        }
        let top = word(self.memory, self.layout.top_at(arena))?;
        self.words.forget();
        found.rest.count = 1;
        found.rest.total = self.words.word(top.checked_add(8)?)? & !FLAGS;
        let mut unsorted = Sizes::default();
        for number in 0..BINS {
            let bin = self.layout.bins(arena) + number * 16;
            let sizes = self.until_still(&mut is_torn, |reader| reader.bin(bin, &mut left));
            found.rest.count += sizes.count;
            found.rest.total += sizes.total;
            match number {
                0 => unsorted = sizes,
                _ => size(text, "size", &sizes),
            }
        }
        size(text, "unsorted", &unsorted);
        text.push_str("</sizes>\n");
        found.system_bytes = self.layout.system_bytes(self.memory, arena)?;
        found.max_system_bytes = self.layout.max_system_bytes(self.memory, arena)?;
        totals(text, &found);
        system(text, &found);
        if number == 0 {
            found.space_bytes = found.system_bytes;
            found.usable_bytes = found.system_bytes;
            space(text, &found);
        } else {
            let heaps = self.heaps(top, &mut found)?;
            space(text, &found);
            let _ = writeln!(text, "<aspace type=\"subheaps\" size=\"{heaps}\"/>");
        }
        text.push_str("</heap>\n");
        all.add(&found);
        Some(is_torn)
    }

    /// Follows a list again if it changed meanwhile. The last result counts.
    fn until_still(
        &mut self,
        is_torn: &mut bool,
        mut follow: impl FnMut(&mut Self) -> (Sizes, bool),
    ) -> Sizes {
        for tries in 1.. {
            let (sizes, is_whole) = follow(self);
            if is_whole {
                return sizes;
            }
            if tries >= TRIES || self.memory.is_over() {
                *is_torn = true;
                return sizes;
            }
            self.words.forget();
        }
        Sizes::default()
    }

    /// Follows a fast bin, whose chunks have one size. Returns whether it ended as such lists do.
    fn fast_bin(&mut self, head: u64, left: &mut u64) -> (Sizes, bool) {
        let mut sizes = Sizes::default();
        let Some(mut chunk) = word(self.memory, head) else { return (sizes, false) };
        let first = chunk;
        let mut links = None;
        while chunk != 0 {
            let Some((size, link)) = chunk.checked_add(8).and_then(|at| self.words.pair(at)) else {
                return (sizes, false);
            };
            let size = size & !FLAGS;
            if sizes.count == 0 {
                sizes = Sizes { from: size.saturating_sub(15), to: size, total: 0, count: 0 };
            }
            if size != sizes.to || !take(left) {
                return (sizes, false);
            }
            sizes.count += 1;
            sizes.total += size;
            let next = |links: Links| links.decode(chunk + 16, link);
            let is_next = |next: u64| next == 0 || (next.is_multiple_of(16) && next < 1 << 47);
            // Only one of the two ways gives an address, but for the last one of a plain list.
            let known = links.or_else(|| Links::BOTH.into_iter().find(|way| is_next(next(*way))));
            let Some(way) = known.filter(|way| is_next(next(*way))) else { return (sizes, false) };
            links = Some(way);
            chunk = next(way);
            if chunk == first {
                return (sizes, false);
            }
        }
        (sizes, true)
    }

    /// Follows a bin. Returns whether each chunk pointed back to the one before, as it does unless the list changes.
    fn bin(&mut self, bin: u64, left: &mut u64) -> (Sizes, bool) {
        let mut sizes = Sizes { from: u64::MAX, ..Sizes::default() };
        let header = bin - 16;
        let Some(mut chunk) = word(self.memory, bin) else { return (Sizes::default(), false) };
        let mut before = header;
        while chunk != header && chunk != 0 {
            let link = chunk.checked_add(16).and_then(|at| self.words.pair(at));
            let size = chunk.checked_add(8).and_then(|at| self.words.word(at));
            let (Some((next, back)), Some(size)) = (link, size) else {
                return (sizes.or_none(), false);
            };
            if back != before || !take(left) {
                return (sizes.or_none(), false);
            }
            // The flags are counted with the size, as the library does.
            sizes.count += 1;
            sizes.total = sizes.total.saturating_add(size);
            sizes.from = sizes.from.min(size);
            sizes.to = sizes.to.max(size);
            before = chunk;
            chunk = next;
        }
        (sizes.or_none(), true)
    }

    /// Adds the heaps of an arena, from the one that its top is in. Returns their number.
    fn heaps(&mut self, top: u64, found: &mut Totals) -> Option<u64> {
        let mut heap = top - top % HEAP_BYTES;
        let mut count = 0;
        while heap != 0 && count < MAX_HEAPS {
            // `ar_ptr`, `prev`, `size` and `mprotect_size` (`struct _heap_info`).
            let [previous, bytes, usable] =
                [8, 16, 24].map(|field| heap.checked_add(field).and_then(|at| self.words.word(at)));
            found.space_bytes = found.space_bytes.saturating_add(bytes?);
            found.usable_bytes = found.usable_bytes.saturating_add(usable?);
            heap = previous?;
            count += 1;
        }
        Some(count)
    }
}

impl Sizes {
    /// The same; zeros if there is no chunk.
    fn or_none(self) -> Self {
        if self.count == 0 { Self::default() } else { self }
    }
}

impl Totals {
    fn add(&mut self, other: &Self) {
        if let Some(other) = other.fast {
            let fast = self.fast.get_or_insert_default();
            fast.count += other.count;
            fast.total = fast.total.saturating_add(other.total);
        }
        self.rest.count += other.rest.count;
        self.rest.total = self.rest.total.saturating_add(other.rest.total);
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

fn take(left: &mut u64) -> bool {
    let next = left.checked_sub(1);
    *left = next.unwrap_or(0);
    next.is_some()
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

fn totals(text: &mut String, found: &Totals) {
    let totals = [("fast", found.fast), ("rest", Some(found.rest))];
    for (name, sizes) in totals {
        let Some(Sizes { count, total, .. }) = sizes else { continue };
        let _ = writeln!(text, "<total type=\"{name}\" count=\"{count}\" size=\"{total}\"/>");
    }
}

fn system(text: &mut String, found: &Totals) {
    let (now, most) = (found.system_bytes, found.max_system_bytes);
    let _ = writeln!(text, "<system type=\"current\" size=\"{now}\"/>");
    let _ = writeln!(text, "<system type=\"max\" size=\"{most}\"/>");
}

fn space(text: &mut String, found: &Totals) {
    let (all, usable) = (found.space_bytes, found.usable_bytes);
    let _ = writeln!(text, "<aspace type=\"total\" size=\"{all}\"/>");
    let _ = writeln!(text, "<aspace type=\"mprotect\" size=\"{usable}\"/>");
}

//! Chunks: the memory that V8 maps, aligned to 256 KiB.

use std::ops::Range;

use super::version::Version;
use crate::memory::{ADDRESS_END, MIN_PAGE_BYTES, Memory, word_in};
use crate::ranges::hold;

/// Alignment of chunks, and the size of all but those of large objects, in bytes
/// (`kPageSizeBits`).
pub(super) const ALIGNMENT: u64 = 256 << 10;
/// Maximum number of bytes before the objects of a chunk. In code space before 12.9, there is a
/// guard page.
const MAX_HEADER: u64 = 16 << 10;
/// Flags of the chunks of the two semi-spaces: of the one that was evacuated last, and of the one
/// that is allocated from.
const FROM: u64 = 1 << 3;
const TO: u64 = 1 << 4;

/// A chunk, as V8 describes it.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// Its addresses.
    pub(super) range: Range<u64>,
    /// The address of its description, by which lists refer to it.
    pub(super) described_at: u64,
    /// The addresses of its objects.
    pub(super) area: Range<u64>,
    /// Bytes of objects: of a chunk of a semi-space, all of the area.
    pub(super) allocated_bytes: u64,
    /// The address of its space; 0 of read-only memory that isolates share.
    pub(super) owner: u64,
    /// The address of the heap of its isolate; 0 of read-only memory that isolates share.
    pub(super) heap: u64,
    /// The address of the next chunk of its space.
    pub(super) next: u64,
    flags: u64,
}

impl Chunk {
    /// Reads the chunk at a resident address; `None` if there is none that lies in `ranges`, which
    /// are in order, disjoint and not adjacent.
    pub(super) fn read(
        memory: &impl Memory,
        version: &Version,
        at: u64,
        ranges: &[Range<u64>],
    ) -> Option<Self> {
        let fields = version.fields;
        let mut bytes = vec![0; version.described_bytes()];
        let head = if fields.are_outside { &mut bytes[..16] } else { &mut bytes[..] };
        (memory.read_resident(at, head) == head.len()).then_some(())?;
        let flags = word_in(&bytes, fields.flags as usize)?;
        let described_at = if fields.are_outside { word_in(&bytes, 8)? } else { at };
        if fields.are_outside {
            let is_address = described_at.is_multiple_of(8) && described_at < ADDRESS_END;
            (is_address && described_at != 0).then_some(())?;
            (memory.read(described_at, &mut bytes) == bytes.len()).then_some(())?;
        }
        let word = |place: u64| word_in(&bytes, place as usize);
        let [start, end] = fields.area;
        let chunk = Self {
            range: at..at.checked_add(word(fields.size)?)?,
            described_at,
            area: word(start)?..word(end)?,
            allocated_bytes: word(fields.allocated)?,
            owner: word(fields.owner)?,
            heap: word(fields.heap)?,
            next: word(version.node)?,
            flags,
        };
        // The reservation is that of the chunk, except for read-only memory.
        let is_named = !fields.are_outside || word(8)? == at || chunk.is_read_only();
        (is_named && chunk.is_sound() && hold(ranges, &chunk.range)).then_some(chunk)
    }

    /// Returns whether its addresses fit each other. No other memory was found in which they do.
    fn is_sound(&self) -> bool {
        let (range, area) = (&self.range, &self.area);
        let size = range.end - range.start;
        let is_whole = size > 0 && size.is_multiple_of(MIN_PAGE_BYTES);
        let is_inside = range.start < area.start && area.start <= area.end && area.end <= range.end;
        is_whole && is_inside && area.start - range.start <= MAX_HEADER
    }

    /// Returns whether it is read-only memory that isolates share.
    pub(super) fn is_read_only(&self) -> bool {
        self.owner == 0 && self.heap == 0
    }

    /// Returns whether it is of the semi-space that was evacuated last, and holds nothing.
    pub(super) fn is_evacuated(&self) -> bool {
        self.flags & (FROM | TO) == FROM
    }

    /// Returns whether it is of the semi-space that is allocated from.
    pub(super) fn is_allocated_from(&self) -> bool {
        self.flags & (FROM | TO) == TO
    }

    /// Returns its size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

//! The headers of an ELF core: its segments, and where its notes are.

use std::fs::File;
use std::os::unix::fs::FileExt;

use lowtide_heap::memory::ADDRESS_END;

use super::CoreError;

/// The first bytes of an ELF file, and of the formats in which cores are compressed.
pub(super) const ELF: &[u8] = b"\x7fELF";
const COMPRESSED: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
    (b"\x04\x22\x4d\x18", "lz4 -d"),
    (b"\xfd7zXZ\0", "xz -d"),
    (b"\x1f\x8b", "gzip -d"),
];
/// Size of the header of a file, of a segment and of a section, in bytes.
const HEADER: usize = 64;
const SEGMENT_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
/// Maximum number of segments: the kernel permits 65,530 mappings by default.
const MAX_SEGMENTS: u64 = 1 << 20;
/// The number of segments that says that the real one is in the first section (`PN_XNUM`).
const MANY: u64 = 0xffff;
/// The architecture for which this program is built, and its name (`e_machine`).
const OWN: (u16, &str) =
    if cfg!(target_arch = "aarch64") { (183, "aarch64") } else { (62, "x86_64") };

/// A part of the memory of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// First address.
    pub(super) start: u64,
    /// First address after it.
    pub(super) end: u64,
    /// Its place in the core, in bytes.
    pub(super) offset: u64,
    /// Number of bytes that were written for it; the rest of it was left out.
    pub(super) dumped_bytes: u64,
    /// The part of these bytes that the file has.
    pub(super) file_bytes: u64,
    /// Whether it may be read, written and executed.
    pub(super) access: [bool; 3],
}

/// The headers of a core.
#[derive(Debug, Default)]
pub(super) struct Headers {
    /// The memory, in order of address and disjoint.
    pub(super) segments: Vec<Segment>,
    /// The places of the notes: offset and size, in bytes.
    pub(super) notes: Vec<(u64, u64)>,
    /// Number of bytes that were to be written, and are not in the file.
    pub(super) missing_bytes: u64,
}

/// Returns whether a file that begins with some bytes is a core, or one that was compressed.
pub(super) fn is_core(first: &[u8]) -> bool {
    const CORE: &[u8] = b"\x04\0";
    first.starts_with(ELF) && first.get(16..18) == Some(CORE) || compressed_by(first).is_some()
}

fn compressed_by(first: &[u8]) -> Option<&'static str> {
    COMPRESSED.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, with)| *with)
}

impl Headers {
    /// Reads the headers of a file of `length` bytes.
    pub(super) fn read(file: &File, length: u64) -> Result<Self, CoreError> {
        let mut header = [0; HEADER];
        let known = file.read_at(&mut header, 0)?;
        if let Some(with) = compressed_by(&header[..known]) {
            return Err(CoreError::Compressed(with));
        }
        if known < HEADER || !is_core(&header) {
            return Err(CoreError::Format);
        }
        const CLASS_64: u8 = 2;
        const LITTLE_ENDIAN: u8 = 1;
        if header[4] != CLASS_64 {
            return Err(CoreError::Bits);
        }
        let machine = half(&header, 18);
        if header[5] != LITTLE_ENDIAN || machine != OWN.0 {
            return Err(CoreError::Machine(machine, OWN.1));
        }
        let (at, size) = (word(&header, 32), u64::from(half(&header, 54)));
        let count = match u64::from(half(&header, 56)) {
            MANY => many(file, word(&header, 40))?,
            count => count,
        };
        if size != SEGMENT_HEADER as u64 || count > MAX_SEGMENTS {
            return Err(CoreError::Damaged);
        }
        let mut bytes = vec![0; count as usize * SEGMENT_HEADER];
        file.read_exact_at(&mut bytes, at).map_err(|_| CoreError::NoHeaders)?;
        Self::default().with_all(&bytes, length)
    }

    fn with_all(mut self, headers: &[u8], length: u64) -> Result<Self, CoreError> {
        for header in headers.chunks_exact(SEGMENT_HEADER) {
            const LOAD: u32 = 1;
            const NOTE: u32 = 4;
            match word(header, 0) as u32 {
                LOAD => self.add(header, length)?,
                NOTE => self.notes.push((word(header, 8), word(header, 32))),
                _ => {}
            }
        }
        self.segments.sort_unstable_by_key(|segment| segment.start);
        let is_disjoint = self.segments.windows(2).all(|two| two[0].end <= two[1].start);
        // Segments that share bytes of the file could make a small file as large as memory.
        let file_bytes = || self.segments.iter().map(|segment| segment.file_bytes).sum::<u64>();
        match is_disjoint && file_bytes() <= length {
            true => Ok(self),
            false => Err(CoreError::Damaged),
        }
    }

    fn add(&mut self, header: &[u8], length: u64) -> Result<(), CoreError> {
        let flags = word(header, 0) >> 32;
        let [offset, start, _, dumped_bytes, bytes] =
            [8, 16, 24, 32, 40].map(|at| word(header, at));
        // The kernel's own page above all addresses is the same in every process.
        if start >= ADDRESS_END || bytes == 0 {
            return Ok(());
        }
        let end = start.checked_add(bytes).filter(|end| *end <= ADDRESS_END);
        let end = end.ok_or(CoreError::Damaged)?;
        if dumped_bytes > bytes {
            return Err(CoreError::Damaged);
        }
        let file_bytes = dumped_bytes.min(length.saturating_sub(offset));
        let access = [4, 2, 1].map(|flag| flags & flag != 0);
        self.segments.push(Segment { start, end, offset, dumped_bytes, file_bytes, access });
        Ok(())
    }
}

impl Headers {
    /// Limits the segments to whole pages, so that none is known in part.
    pub(super) fn in_pages(mut self, page: u64) -> Result<Self, CoreError> {
        for segment in &mut self.segments {
            if !segment.start.is_multiple_of(page) || !segment.end.is_multiple_of(page) {
                return Err(CoreError::Damaged);
            }
            segment.file_bytes -= segment.file_bytes % page;
            self.missing_bytes += segment.dumped_bytes - segment.file_bytes;
        }
        Ok(self)
    }
}

/// Returns the number of segments from the first section.
fn many(file: &File, at: u64) -> Result<u64, CoreError> {
    let mut section = [0; SECTION_HEADER];
    file.read_exact_at(&mut section, at).map_err(|_| CoreError::NoHeaders)?;
    Ok(word(&section, 40) >> 32)
}

/// Returns a word of some bytes, or 0 after their end.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let word = at.checked_add(8).and_then(|end| bytes.get(at..end)?.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// Returns half a word of some bytes, or 0 after their end.
pub(super) fn half_word(bytes: &[u8], at: usize) -> u32 {
    let word = at.checked_add(4).and_then(|end| bytes.get(at..end)?.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    half_word(bytes, at) as u16
}

//! The headers of an ELF core: its segments, and where its notes are.

use std::fs::File;
use std::os::unix::fs::FileExt;

use lowtide_heap::memory::ADDRESS_END;
use object::elf::{self, FileHeader64, Machine, PN_XNUM, ProgramHeader64, SectionHeader64};
use object::{LittleEndian, pod};

use super::CoreError;

type FileHeader = FileHeader64<LittleEndian>;
type SegmentHeader = ProgramHeader64<LittleEndian>;
type SectionHeader = SectionHeader64<LittleEndian>;

/// The first bytes of an ELF file, and of the formats in which cores are compressed.
pub(super) const ELF: &[u8] = &elf::ELFMAG;
const COMPRESSED: [(&[u8], &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
    (b"\x04\x22\x4d\x18", "lz4 -d"),
    (b"\xfd7zXZ\0", "xz -d"),
    (b"\x1f\x8b", "gzip -d"),
];
/// The headers are read as words, which are aligned as these are, and have the same sizes.
const WORD: usize = size_of::<u64>();
/// Maximum number of segments: the kernel permits 65,530 mappings by default.
const MAX_SEGMENTS: u64 = 1 << 20;
/// The architecture for which this program is built, and its name.
const OWN: (Machine, &str) = if cfg!(target_arch = "aarch64") {
    (elf::EM_AARCH64, "aarch64")
} else {
    (elf::EM_X86_64, "x86_64")
};

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
        let mut first = [0; size_of::<FileHeader>()];
        let known = file.read_at(&mut first, 0)?;
        if let Some(with) = compressed_by(&first[..known]) {
            return Err(CoreError::Compressed(with));
        }
        if known < first.len() || !is_core(&first) {
            return Err(CoreError::Format);
        }
        let words = read_words(file, 0, first.len())?;
        let header = headers::<FileHeader>(&words).first().ok_or(CoreError::Format)?;
        if header.e_ident.class != elf::ELFCLASS64 {
            return Err(CoreError::Bits);
        }
        let machine = header.e_machine.get(LittleEndian);
        if header.e_ident.data != elf::ELFDATA2LSB || machine != OWN.0 {
            return Err(CoreError::Machine(machine.0, OWN.1));
        }
        let count = match header.e_phnum.get(LittleEndian) {
            PN_XNUM => many(file, header.e_shoff.get(LittleEndian))?,
            count => u64::from(count),
        };
        let size = size_of::<SegmentHeader>();
        if usize::from(header.e_phentsize.get(LittleEndian)) != size || count > MAX_SEGMENTS {
            return Err(CoreError::Damaged);
        }
        let words = read_words(file, header.e_phoff.get(LittleEndian), count as usize * size)?;
        Self::default().with_all(headers(&words), length)
    }

    fn with_all(mut self, headers: &[SegmentHeader], length: u64) -> Result<Self, CoreError> {
        for header in headers {
            let [offset, file_bytes] =
                [header.p_offset, header.p_filesz].map(|field| field.get(LittleEndian));
            match header.p_type.get(LittleEndian) {
                elf::PT_LOAD => self.add(header, length)?,
                elf::PT_NOTE => self.notes.push((offset, file_bytes)),
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

    fn add(&mut self, header: &SegmentHeader, length: u64) -> Result<(), CoreError> {
        let [offset, start, dumped_bytes, bytes] =
            [header.p_offset, header.p_vaddr, header.p_filesz, header.p_memsz]
                .map(|field| field.get(LittleEndian));
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
        let flags = header.p_flags.get(LittleEndian);
        let access = [elf::PF_R, elf::PF_W, elf::PF_X].map(|flag| flags.contains(flag));
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
    let words = read_words(file, at, size_of::<SectionHeader>())?;
    let section = headers::<SectionHeader>(&words).first().ok_or(CoreError::NoHeaders)?;
    Ok(section.sh_info.get(LittleEndian).into())
}

/// Reads the bytes of headers.
fn read_words(file: &File, at: u64, bytes: usize) -> Result<Vec<u64>, CoreError> {
    let mut words = vec![0; bytes / WORD];
    let all = pod::bytes_of_slice_mut(&mut words);
    file.read_exact_at(all, at).map_err(|_| CoreError::NoHeaders)?;
    Ok(words)
}

/// Returns the headers in some words; none if they are no whole headers.
fn headers<T: pod::Pod>(words: &[u64]) -> &[T] {
    pod::slice_from_all_bytes(pod::bytes_of_slice(words)).unwrap_or_default()
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

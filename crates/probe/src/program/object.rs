//! A program or library that a process has mapped, as an ELF file: its segments, sections and
//! symbols. Everything that reads ELF files of processes reads them here, so that the same limits
//! hold everywhere.
//!
//! A big program has hundreds of thousands of symbols. Their names are therefore read in large
//! parts: reading them one by one costs a system call each, and reading all of them takes megabytes
//! of memory.

use std::ops::Range;

use ::object::elf::{FileHeader64, ProgramHeader64, SectionHeader64};
use ::object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use ::object::{Endianness, SectionIndex, SymbolIndex, elf};

use super::source::{Cached, Elf, Source};

/// Maximum number of symbols in a table. The table is read completely.
const MAX_SYMBOLS: u64 = 16 << 20;
/// Size of the part of the names that is read at once, in bytes,
const PART_BYTES: usize = 1 << 20;
/// and maximum length of a name that starts in it: a longer one is cut off.
const MAX_NAME: usize = 64 << 10;

type ElfSymbols<'c> = object::read::elf::SymbolTable<'c, FileHeader64<Endianness>, Cached<'c>>;

/// An ELF file with 64-bit addresses.
#[derive(Clone, Copy)]
pub struct MappedObject<'c> {
    source: Cached<'c>,
    endian: Endianness,
    segments: &'c [ProgramHeader64<Endianness>],
    sections: SectionTable<'c, FileHeader64<Endianness>, Cached<'c>>,
}

/// A segment that the loader maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its offset in the file.
    pub offset: u64,
    /// Its size in the file, in bytes.
    pub file_bytes: u64,
    /// The address that the file requests for it.
    pub address: u64,
    /// Its size in memory, in bytes.
    pub memory_bytes: u64,
    /// Whether it contains code.
    pub is_code: bool,
}

/// A section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The addresses that the file requests for it.
    pub addresses: Range<u64>,
    /// Its offset in the file, and its size there in bytes; `None` if the file does not contain it.
    pub file_range: Option<(u64, u64)>,
    /// Whether it is compressed.
    pub is_compressed: bool,
}

/// A symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymbolTable {
    /// Symbols for other objects (`.dynsym`).
    Dynamic,
    /// All symbols, unless it was stripped (`.symtab`).
    All,
}

/// A symbol that a file defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Its address, as the file requests it.
    pub address: u64,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Offset of its name in the table of names.
    pub name_at: u32,
    /// Whether it is a function.
    pub is_function: bool,
    /// Whether it is a variable.
    pub is_variable: bool,
    /// Whether other files cannot refer to it.
    pub is_local: bool,
}

impl Segment {
    fn new(header: &ProgramHeader64<Endianness>, endian: Endianness) -> Option<Self> {
        (header.p_type(endian) == elf::PT_LOAD).then(|| Self {
            offset: header.p_offset(endian),
            file_bytes: header.p_filesz(endian),
            address: header.p_vaddr(endian),
            memory_bytes: header.p_memsz(endian),
            is_code: header.p_flags(endian) & elf::PF_X != elf::ProgramFlags::default(),
        })
    }

    /// Returns the offset in the file of an address, if the segment contains it.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let within =
            address.checked_sub(self.address).filter(|within| *within < self.file_bytes)?;
        self.offset.checked_add(within)
    }

    /// Returns the address of an offset in the file, if the segment contains it.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let within = offset.checked_sub(self.offset).filter(|within| *within < self.file_bytes)?;
        self.address.checked_add(within)
    }
}

impl<'c> MappedObject<'c> {
    /// Reads the header of a file; `None` if it is not ELF with 64-bit addresses, or damaged.
    pub fn parse(source: &'c Source<'c>) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(source).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, source).ok()?;
        let sections = header.sections(endian, source).ok()?;
        Some(Self { source, endian, segments, sections })
    }

    /// Returns the object of a file that was parsed before.
    pub(super) fn of(elf: &Elf<'c>, source: Cached<'c>) -> Self {
        Self {
            source,
            endian: elf.endian(),
            segments: elf.elf_program_headers(),
            sections: *elf.elf_section_table(),
        }
    }

    /// Returns whether its numbers are little-endian.
    pub fn is_little_endian(&self) -> bool {
        self.endian == Endianness::Little
    }

    /// Returns the segments that the loader maps.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        self.segments.iter().filter_map(|header| Segment::new(header, self.endian))
    }

    /// Returns the addresses of its segments, from the first byte to after the last.
    pub fn addresses(&self) -> Option<(u64, u64)> {
        self.segments()
            .map(|one| (one.address, one.address.saturating_add(one.memory_bytes)))
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Returns the offset in the file of an address.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments().find_map(|segment| segment.offset_of(address))
    }

    /// Returns the sections, each with its name.
    pub fn sections(&self) -> impl Iterator<Item = (&'c [u8], Section)> {
        self.sections.iter().filter_map(|header| {
            let name = self.sections.section_name(self.endian, header).ok()?;
            Some((name, self.section_of(header)?))
        })
    }

    /// Returns a section by its name.
    pub fn section(&self, name: &str) -> Option<Section> {
        let (_, header) = self.sections.section_by_name(self.endian, name.as_bytes())?;
        self.section_of(header)
    }

    fn section_of(&self, header: &SectionHeader64<Endianness>) -> Option<Section> {
        let (address, size) = (header.sh_addr(self.endian), header.sh_size(self.endian));
        let is_compressed =
            header.sh_flags(self.endian) & elf::SHF_COMPRESSED != elf::SectionFlags::default();
        Some(Section {
            addresses: address..address.checked_add(size)?,
            file_range: header.file_range(self.endian),
            is_compressed,
        })
    }

    /// Reads the bytes of a section that the file contains.
    pub fn bytes(&self, section: &Section) -> Option<&'c [u8]> {
        let (offset, size) = section.file_range?;
        object::read::ReadRef::read_bytes_at(self.source, offset, size).ok()
    }

    /// Passes the name and the symbol of each symbol that the file defines to `visit`, in the order
    /// of the names, until `visit` returns `false`.
    pub fn each_symbol(&self, table: SymbolTable, mut visit: impl FnMut(&[u8], &Symbol) -> bool) {
        let Some(table) = self.table(table) else { return };
        let Some((offset, size)) = self.names(&table) else { return };
        let defined = table.enumerate().filter(|(_, s)| is_defined(s, self.endian));
        let mut places: Vec<(u32, u32)> = defined
            .filter_map(|(index, s)| Some((s.st_name(self.endian), u32::try_from(index.0).ok()?)))
            .collect();
        places.sort_unstable();
        let (mut part, mut begin) = (Vec::new(), 0);
        for (at, index) in places {
            let place = (at as usize).wrapping_sub(begin);
            if part.is_empty() || place >= PART_BYTES {
                begin = at as usize;
                let left = size.saturating_sub(u64::from(at));
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                let read = offset.checked_add(u64::from(at)).and_then(|offset| {
                    self.source.read_once(offset, left.min(PART_BYTES + MAX_NAME))
                });
                // The names are in order: none follow the end of their table.
                let Some(read) = read.filter(|read| !read.is_empty()) else { return };
                part = read;
            }
            let Some(rest) = part.get(at as usize - begin..) else { continue };
            let name = &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())];
            let Ok(symbol) = table.symbol(SymbolIndex(index as usize)) else { continue };
            if !name.is_empty() && !visit(name, &symbol_of(symbol, self.endian)) {
                return;
            }
        }
    }

    /// Returns the symbols that the file defines, and the offset of the table of their names;
    /// `None` if there is no table, or if it has more than `most` entries.
    pub fn symbols(&self, table: SymbolTable, most: usize) -> Option<(Vec<Symbol>, u64)> {
        let bytes = |header: &SectionHeader64<Endianness>| header.sh_size(self.endian);
        let mut sizes = self.headers(table).map(bytes);
        if sizes.any(|bytes| bytes / size_of::<elf::Sym64<Endianness>>() as u64 > most as u64) {
            return None;
        }
        let table = self.table(table)?;
        let names = self.sections.section(table.string_section()).ok()?.sh_offset(self.endian);
        let defined = table.iter().filter(|symbol| is_defined(symbol, self.endian));
        Some((defined.map(|symbol| symbol_of(symbol, self.endian)).collect(), names))
    }

    fn headers(&self, table: SymbolTable) -> impl Iterator<Item = &'c SectionHeader64<Endianness>> {
        let kind = match table {
            SymbolTable::Dynamic => elf::SHT_DYNSYM,
            SymbolTable::All => elf::SHT_SYMTAB,
        };
        self.sections.iter().filter(move |header| header.sh_type(self.endian) == kind)
    }

    fn table(&self, table: SymbolTable) -> Option<ElfSymbols<'c>> {
        let entry = size_of::<elf::Sym64<Endianness>>() as u64;
        if self.headers(table).any(|header| header.sh_size(self.endian) > MAX_SYMBOLS * entry) {
            return None;
        }
        let kind = match table {
            SymbolTable::Dynamic => elf::SHT_DYNSYM,
            SymbolTable::All => elf::SHT_SYMTAB,
        };
        let found = self.sections.symbols(self.endian, self.source, kind).ok()?;
        (!found.is_empty() && found.string_section() != SectionIndex(0)).then_some(found)
    }

    /// Returns the offset and size of the names of a table in the file.
    fn names(&self, table: &ElfSymbols<'c>) -> Option<(u64, u64)> {
        self.sections.section(table.string_section()).ok()?.file_range(self.endian)
    }
}

fn is_defined(symbol: &elf::Sym64<Endianness>, endian: Endianness) -> bool {
    symbol.st_shndx(endian) != elf::SHN_UNDEF
}

fn symbol_of(symbol: &elf::Sym64<Endianness>, endian: Endianness) -> Symbol {
    Symbol {
        address: symbol.st_value(endian),
        bytes: symbol.st_size(endian),
        name_at: symbol.st_name(endian),
        is_function: symbol.st_type() == elf::STT_FUNC,
        is_variable: symbol.st_type() == elf::STT_OBJECT,
        is_local: symbol.st_bind() == elf::STB_LOCAL,
    }
}

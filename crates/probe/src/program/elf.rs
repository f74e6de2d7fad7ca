//! What a program or library file tells about allocators.
//!
//! A big program has hundreds of thousands of names. A table of names is therefore read in large parts:
//! one by one, they cost a system call each, and as a whole, megabytes of memory.

use std::fs::File;
use std::io;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, Object, ObjectSection, SectionIndex, SymbolIndex, elf};
use thiserror::Error;

use lowtide_model::allocator_kind::AllocatorKind;

use super::markers::{EmbeddedCode, allocator_of, embedded_code_of};
use super::source::Source;
use super::texts;

/// Why a file could not be read as a program or library.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// It could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not an ELF file, or a damaged one.
    #[error("it is not a program or library that can be read ({0})")]
    Format(String),
}

impl From<object::Error> for ObjectError {
    fn from(error: object::Error) -> Self {
        Self::Format(error.to_string())
    }
}

/// What is of interest in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Its class. Of a 32-bit file, nothing below the next two is known.
    pub is_64_bit: bool,
    /// Its instruction set.
    pub architecture: object::Architecture,
    /// Whether it is a shared object (or a position-independent program).
    pub is_shared: bool,
    /// Whether it exports a `malloc` of its own.
    pub defines_malloc: bool,
    /// Where glibc's loader keeps its `_r_debug`, relative to where it is loaded.
    pub debug_symbol: Option<u64>,
    /// Where musl's loader keeps the pointer to the same.
    pub debug_pointer: Option<u64>,
    /// The libraries that it asks for (`DT_NEEDED`), as it names them.
    pub needed: Vec<String>,
    /// The name by which others ask for it (`DT_SONAME`).
    pub soname: Option<String>,
    /// The allocator whose own names it exports.
    pub allocator: Option<AllocatorKind>,
    /// Of which runtimes and sanitizers it is, or holds, the code.
    pub evidence: Vec<EmbeddedCode>,
    /// Where in the file its constant texts are (`.rodata`): offset and size in bytes.
    pub texts: Option<(u64, u64)>,
    /// The addresses that its segments ask for, from its first to behind its last byte: with what a
    /// file does not hold of them, the data that begin as zeros.
    pub addresses: Option<(u64, u64)>,
    /// Where in the file an exported symbol lies that tells a version: CPython's `Py_Version`, Ruby's
    /// `ruby_version`, or mimalloc's `mi_version`.
    pub version_at: Option<u64>,
}

/// An allocator that is compiled into a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltIn {
    /// Which one.
    pub kind: AllocatorKind,
}

type Cached<'c> = &'c Source<'c>;
type Elf<'c> = ElfFile64<'c, Endianness, Cached<'c>>;

impl ObjectFacts {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is not ELF.
    pub fn read(file: &File) -> Result<Self, ObjectError> {
        let cache = Source::new(file);
        let object = object::File::parse(&cache)?;
        if object.format() != object::BinaryFormat::Elf {
            return Err(ObjectError::Format("not ELF".to_owned()));
        }
        let mut facts = Self {
            is_64_bit: object.is_64(),
            architecture: object.architecture(),
            is_shared: object.kind() == object::ObjectKind::Dynamic,
            defines_malloc: false,
            debug_symbol: None,
            debug_pointer: None,
            needed: Vec::new(),
            soname: None,
            allocator: None,
            evidence: Vec::new(),
            texts: rodata(&object),
            addresses: None,
            version_at: None,
        };
        if let object::File::Elf64(elf) = &object {
            facts.addresses = addresses(elf);
            facts.read_dynamic(elf);
            facts.read_names(elf, &cache);
            if [".go.buildinfo", ".gopclntab"].iter().any(|s| elf.section_by_name(s).is_some()) {
                facts.evidence.push(EmbeddedCode::Go);
            }
        }
        Ok(facts)
    }

    fn read_dynamic(&mut self, elf: &Elf<'_>) {
        // A static program has none.
        let Ok(table) = elf.elf_dynamic_table() else { return };
        for entry in &table {
            let text = || {
                let name = table.string(entry).ok()?;
                Some(String::from_utf8_lossy(name).into_owned())
            };
            if entry.tag == elf::DT_NEEDED {
                self.needed.extend(text());
            } else if entry.tag == elf::DT_SONAME {
                self.soname = text();
            }
        }
    }

    fn read_names<'c>(&mut self, elf: &Elf<'c>, cache: Cached<'c>) {
        each_name(elf, cache, SymbolTable::Dynamic, |name, symbol| {
            let address = symbol.st_value(elf.endian());
            match name {
                b"malloc" => self.defines_malloc = true,
                b"_r_debug" => self.debug_symbol = Some(address),
                b"_dl_debug_addr" => self.debug_pointer = Some(address),
                b"Py_Version" | b"mi_version" | b"ruby_version" => {
                    self.version_at = file_offset(elf, address);
                }
                _ => {}
            }
            if let Some(found) = embedded_code_of(name)
                && !self.evidence.contains(&found)
            {
                self.evidence.push(found);
            }
            self.allocator = self.allocator.take().or_else(|| allocator_of(name));
            true
        });
    }
}

impl BuiltIn {
    /// Finds the allocator that is compiled into a program: by its symbol names, or by its texts if the
    /// program is stripped.
    ///
    /// # Errors
    /// When the file cannot be read, or is not ELF.
    pub fn find(file: &File) -> Result<Option<Self>, ObjectError> {
        let cache = Source::new(file);
        let object = object::File::parse(&cache)?;
        let object::File::Elf64(elf) = &object else { return Ok(None) };
        let found = built_in(elf, &cache, file);
        // CPython carries mimalloc from 3.13 on, and does not use it unless it is told to.
        let is_python = || {
            let mut found = false;
            each_name(elf, &cache, SymbolTable::Dynamic, |name, _| {
                found = name == b"Py_BytesMain";
                !found
            });
            found
        };
        Ok(found
            .filter(|kind| *kind != AllocatorKind::Mimalloc || !is_python())
            .map(|kind| Self { kind }))
    }
}

fn built_in<'c>(elf: &Elf<'c>, cache: Cached<'c>, file: &File) -> Option<AllocatorKind> {
    if elf.section_by_name(".gopclntab").is_some() {
        return Some(AllocatorKind::Other("the Go runtime".to_owned()));
    }
    let mut found = None;
    let mut has_local_functions = false;
    for table in [SymbolTable::All, SymbolTable::Dynamic] {
        each_name(elf, cache, table, |name, symbol| {
            has_local_functions |=
                symbol.st_type() == elf::STT_FUNC && symbol.st_bind() == elf::STB_LOCAL;
            found = allocator_of(name);
            found.is_none()
        });
        if found.is_some() {
            return found;
        }
    }
    // Local functions are named only where nothing was stripped; then the names were enough.
    if has_local_functions {
        return None;
    }
    let range = elf.section_by_name(".rodata")?.file_range()?;
    texts::allocator(file, range)
}

/// Where a symbol of the table of all names lies in a file; `None` when it is not named there.
pub(crate) fn offset_of_symbol(file: &File, wanted: &[u8]) -> Option<u64> {
    let cache = Source::new(file);
    let object = object::File::parse(&cache).ok()?;
    let object::File::Elf64(elf) = &object else { return None };
    let mut address = None;
    each_name(elf, &cache, SymbolTable::All, |name, symbol| {
        address = (name == wanted).then(|| symbol.st_value(elf.endian()));
        address.is_none()
    });
    file_offset(elf, address?)
}

/// The address of a name that a file defines for others, as the file counts, and the address of the
/// page at which its first segment begins; `None` where it does not define it.
pub fn symbol(file: &File, wanted: &str) -> Option<(u64, u64)> {
    let cache = Source::new(file);
    let object = object::File::parse(&cache).ok()?;
    let object::File::Elf64(elf) = &object else { return None };
    let mut found = None;
    for table in [SymbolTable::Dynamic, SymbolTable::All] {
        each_name(elf, &cache, table, |name, symbol| {
            found = found.or((name == wanted.as_bytes()).then(|| symbol.st_value(elf.endian())));
            found.is_none()
        });
    }
    let (first, _) = addresses(elf)?;
    Some((found?, first - first % 4096))
}

/// Where a section lies in a file, and its size, in bytes.
pub(crate) fn section(file: &File, name: &str) -> Option<(u64, u64)> {
    let cache = Source::new(file);
    object::File::parse(&cache).ok()?.section_by_name(name)?.file_range()
}

fn rodata<'c>(object: &object::File<'c, Cached<'c>>) -> Option<(u64, u64)> {
    object.section_by_name(".rodata")?.file_range()
}

fn addresses(elf: &Elf<'_>) -> Option<(u64, u64)> {
    let endian = elf.endian();
    let loaded = elf.elf_program_headers().iter().filter(|p| p.p_type(endian) == elf::PT_LOAD);
    let range = |p: &<FileHeader64<Endianness> as FileHeader>::ProgramHeader| {
        (p.p_vaddr(endian), p.p_vaddr(endian).saturating_add(p.p_memsz(endian)))
    };
    loaded.map(range).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

fn file_offset(elf: &Elf<'_>, address: u64) -> Option<u64> {
    let endian = elf.endian();
    elf.elf_program_headers().iter().filter(|p| p.p_type(endian) == elf::PT_LOAD).find_map(|p| {
        let inside = address.checked_sub(p.p_vaddr(endian))?;
        (inside < p.p_filesz(endian)).then(|| p.p_offset(endian) + inside)
    })
}

/// A table of names.
#[derive(Clone, Copy)]
enum SymbolTable {
    /// What others may use (`.dynsym`).
    Dynamic,
    /// Everything, unless it was stripped (`.symtab`).
    All,
}

/// Size of the part of a table of names that is read at once, in bytes,
const PART_BYTES: usize = 1 << 20;
/// and maximum length of a name that begins in it: a longer one is cut off.
const MAX_NAME: usize = 64 << 10;

/// Gives each name that a file defines to `visit`, in the order of the table of names, until that returns `false`.
fn each_name<'c>(
    elf: &Elf<'c>,
    cache: Cached<'c>,
    table: SymbolTable,
    mut visit: impl FnMut(&[u8], &elf::Sym64<Endianness>) -> bool,
) {
    let endian = elf.endian();
    let symbols = match table {
        SymbolTable::Dynamic => elf.elf_dynamic_symbol_table(),
        SymbolTable::All => elf.elf_symbol_table(),
    };
    if symbols.is_empty() || symbols.string_section() == SectionIndex(0) {
        return;
    }
    let strings = elf.elf_section_table().section(symbols.string_section());
    let Some((offset, size)) = strings.ok().and_then(|section| section.file_range(endian)) else {
        return;
    };
    let defined = symbols.enumerate().filter(|(_, s)| s.st_shndx(endian) != elf::SHN_UNDEF);
    let mut places: Vec<(u32, u32)> = defined
        .filter_map(|(index, s)| Some((s.st_name(endian), u32::try_from(index.0).ok()?)))
        .collect();
    places.sort_unstable();
    let (mut part, mut begin) = (Vec::new(), 0);
    for (at, index) in places {
        let place = (at as usize).wrapping_sub(begin);
        if part.is_empty() || place >= PART_BYTES {
            begin = at as usize;
            let left = usize::try_from(size.saturating_sub(u64::from(at))).unwrap_or(usize::MAX);
            let read = offset
                .checked_add(u64::from(at))
                .and_then(|offset| cache.read_once(offset, left.min(PART_BYTES + MAX_NAME)));
            // The names are in order: there are none behind the end of their table.
            let Some(read) = read.filter(|read| !read.is_empty()) else { return };
            part = read;
        }
        let Some(rest) = part.get(at as usize - begin..) else { continue };
        let name = &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())];
        let Ok(symbol) = symbols.symbol(SymbolIndex(index as usize)) else { continue };
        if !name.is_empty() && !visit(name, symbol) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_file_is_not_a_library() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"#!/bin/sh\n").unwrap();
        assert!(matches!(ObjectFacts::read(&file), Err(ObjectError::Format(_))));
    }

    #[test]
    fn we_do_not_take_ourselves_for_a_program_with_an_allocator_of_its_own() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let facts = ObjectFacts::read(&file).unwrap();
        assert_eq!(facts.is_64_bit, cfg!(target_pointer_width = "64"));
        assert_eq!(BuiltIn::find(&file).unwrap(), None);
    }

    #[test]
    fn what_we_need_and_where_our_texts_are_is_known() {
        let facts =
            ObjectFacts::read(&File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(facts.needed.iter().any(|n| n.starts_with("libc.so")), "{:?}", facts.needed);
        assert!(facts.texts.is_some_and(|(_, size)| size > 0));
        assert_eq!((facts.soname, facts.allocator, facts.evidence), (None, None, vec![]));
    }
}

//! The facts about allocators in a program or library file.
//!
//! A big program has hundreds of thousands of symbols. A symbol table is therefore read in large
//! parts: reading symbols one by one costs a system call each, and reading the whole table takes
//! megabytes of memory.

use std::io;

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, Object, ObjectSection, SectionIndex, SymbolIndex, elf};
use thiserror::Error;

use lowtide_heap::hotspot;
use lowtide_model::allocator_kind::AllocatorKind;

use super::markers::{EmbeddedCode, allocator_of, embedded_code_of};
use super::source::{Cached, Elf, Source, file_offset};
use super::{texts, vm_structs};
use crate::mapped::MappedFile;

/// The reason why a file could not be read as a program or library.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// It could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not an ELF file, or a damaged one.
    #[error("it is not a readable program or library ({0})")]
    Format(String),
}

impl From<object::Error> for ObjectError {
    fn from(error: object::Error) -> Self {
        Self::Format(error.to_string())
    }
}

/// The relevant facts about one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Whether it is a 64-bit file. For a 32-bit file, only the next two fields are known.
    pub is_64_bit: bool,
    /// Instruction set.
    pub architecture: object::Architecture,
    /// Whether it is a shared object (or a position-independent program).
    pub is_shared: bool,
    /// Whether it exports a `malloc` of its own.
    pub defines_malloc: bool,
    /// Address of `_r_debug` of glibc's loader, relative to its load address.
    pub debug_symbol: Option<u64>,
    /// Address of musl's pointer to `_r_debug`, relative to its load address.
    pub debug_pointer: Option<u64>,
    /// The libraries that it needs (`DT_NEEDED`), by the names in the file.
    pub needed: Vec<String>,
    /// The name by which others request it (`DT_SONAME`).
    pub soname: Option<String>,
    /// The allocator whose specific symbols it exports.
    pub allocator: Option<AllocatorKind>,
    /// The runtimes and sanitizers whose code it contains.
    pub evidence: Vec<EmbeddedCode>,
    /// Offset and size of its constant texts (`.rodata`) in the file, in bytes.
    pub texts: Option<(u64, u64)>,
    /// The addresses of its segments, from the first byte to after the last. They include the
    /// zeroed data, which the file does not contain.
    pub addresses: Option<(u64, u64)>,
    /// Offset in the file of an exported symbol with a version: CPython's `Py_Version`, Ruby's
    /// `ruby_version`, or mimalloc's `mi_version`.
    pub version_at: Option<u64>,
    /// The table of HotSpot's variables, if it contains one. The addresses are relative to its load
    /// address.
    pub hotspot: Option<hotspot::Variables>,
}

/// An allocator that is compiled into a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltIn {
    /// Kind of the allocator.
    pub kind: AllocatorKind,
}

impl ObjectFacts {
    /// Reads a file.
    ///
    /// # Errors
    /// Fails if it cannot be read, or is not ELF.
    pub fn read(file: &MappedFile) -> Result<Self, ObjectError> {
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
            hotspot: None,
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
        // A static program has no dynamic table.
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
        let mut vm_structs = None;
        each_name(elf, cache, SymbolTable::Dynamic, |name, symbol| {
            let address = symbol.st_value(elf.endian());
            match name {
                b"malloc" => self.defines_malloc = true,
                b"_r_debug" => self.debug_symbol = Some(address),
                b"_dl_debug_addr" => self.debug_pointer = Some(address),
                b"Py_Version" | b"mi_version" | b"ruby_version" => {
                    self.version_at = file_offset(elf, address);
                }
                b"gHotSpotVMStructs" => vm_structs = Some(address),
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
        self.hotspot = vm_structs.and_then(|address| vm_structs::read(elf, cache, address));
    }
}

impl BuiltIn {
    /// Finds the allocator that is compiled into a program: by its symbol names, or by its texts if
    /// the program is stripped.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not ELF.
    pub fn find(file: &MappedFile) -> Result<Option<Self>, ObjectError> {
        let cache = Source::new(file);
        let object = object::File::parse(&cache)?;
        let object::File::Elf64(elf) = &object else { return Ok(None) };
        let found = built_in(elf, &cache, file);
        // CPython contains mimalloc since 3.13, and does not use it by default.
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

fn built_in<'c>(elf: &Elf<'c>, cache: Cached<'c>, file: &MappedFile) -> Option<AllocatorKind> {
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
    // Local functions have names only if nothing was stripped; then the names were sufficient.
    if has_local_functions {
        return None;
    }
    let range = elf.section_by_name(".rodata")?.file_range()?;
    texts::allocator(file, range)
}

/// Returns the file offset of a symbol in the full symbol table; `None` if it is not there.
pub(crate) fn offset_of_symbol(file: &MappedFile, wanted: &[u8]) -> Option<u64> {
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

/// Returns the address of an exported symbol, relative to the file, and the address of the page at
/// which its first segment starts; `None` if the file does not define the symbol.
///
/// # Errors
/// Fails if the file cannot be read, or is not ELF.
pub fn symbol(file: &MappedFile, wanted: &str) -> Result<Option<(u64, u64)>, ObjectError> {
    let cache = Source::new(file);
    let object = object::File::parse(&cache)?;
    let object::File::Elf64(elf) = &object else { return Ok(None) };
    let mut found = None;
    for table in [SymbolTable::Dynamic, SymbolTable::All] {
        each_name(elf, &cache, table, |name, symbol| {
            found = found.or((name == wanted.as_bytes()).then(|| symbol.st_value(elf.endian())));
            found.is_none()
        });
    }
    let page = rustix::param::page_size() as u64;
    let first = addresses(elf).map(|(first, _)| first - first % page);
    Ok(found.zip(first))
}

/// Returns the offset and size of a section in a file, in bytes.
pub(crate) fn section(file: &MappedFile, name: &str) -> Option<(u64, u64)> {
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

/// A symbol table.
#[derive(Clone, Copy)]
enum SymbolTable {
    /// Symbols for other objects (`.dynsym`).
    Dynamic,
    /// All symbols, unless it was stripped (`.symtab`).
    All,
}

/// Size of the part of a symbol table that is read at once, in bytes,
const PART_BYTES: usize = 1 << 20;
/// and maximum length of a name that starts in it: a longer one is cut off.
const MAX_NAME: usize = 64 << 10;

/// Passes each symbol name that a file defines to `visit`, in the order of the symbol table, until
/// `visit` returns `false`.
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
            // The names are in order: none follow the end of their table.
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
        assert!(matches!(ObjectFacts::read(&file.into()), Err(ObjectError::Format(_))));
    }

    fn own_program() -> MappedFile {
        std::fs::File::open(std::env::current_exe().unwrap()).unwrap().into()
    }

    #[test]
    fn no_built_in_allocator_is_found_in_our_own_program() {
        let file = own_program();
        let facts = ObjectFacts::read(&file).unwrap();
        assert_eq!(facts.is_64_bit, cfg!(target_pointer_width = "64"));
        assert_eq!(BuiltIn::find(&file).unwrap(), None);
    }

    #[test]
    fn the_needed_libraries_and_rodata_of_our_own_program_are_found() {
        let facts = ObjectFacts::read(&own_program()).unwrap();
        assert!(facts.needed.iter().any(|n| n.starts_with("libc.so")), "{:?}", facts.needed);
        assert!(facts.texts.is_some_and(|(_, size)| size > 0));
        assert_eq!((facts.soname, facts.allocator, facts.evidence), (None, None, vec![]));
    }
}

//! The facts about allocators in a program or library file.

use std::io;

use object::{Object, elf};
use thiserror::Error;

use lowtide_heap::hotspot;
use lowtide_model::allocator_kind::AllocatorKind;

use super::markers::{EmbeddedCode, allocator_of, embedded_code_of};
use super::object::{MappedObject, SymbolTable};
use super::source::{Cached, Elf, Source};
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
    /// Address of CPython's `Py_IsInitialized`, relative to its load address.
    pub is_initialized: Option<u64>,
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
            texts: None,
            addresses: None,
            version_at: None,
            is_initialized: None,
            hotspot: None,
        };
        if let object::File::Elf64(elf) = &object {
            let sections = MappedObject::of(elf, &cache);
            facts.texts = sections.section(".rodata").and_then(|section| section.file_range);
            facts.addresses = sections.addresses();
            facts.read_dynamic(elf);
            facts.read_names(elf, &cache);
            if [".go.buildinfo", ".gopclntab"].iter().any(|name| sections.section(name).is_some()) {
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
        let object = MappedObject::of(elf, cache);
        object.each_symbol(SymbolTable::Dynamic, |name, symbol| {
            let address = symbol.address;
            match name {
                b"malloc" => self.defines_malloc = true,
                b"_r_debug" => self.debug_symbol = Some(address),
                b"_dl_debug_addr" => self.debug_pointer = Some(address),
                b"Py_Version" | b"mi_version" | b"ruby_version" => {
                    self.version_at = object.offset_of(address);
                }
                b"Py_IsInitialized" => self.is_initialized = Some(address),
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
        let parsed = object::File::parse(&cache)?;
        let object::File::Elf64(elf) = &parsed else { return Ok(None) };
        let object = MappedObject::of(elf, &cache);
        let found = built_in(&object, file);
        // CPython contains mimalloc since 3.13, and does not use it by default.
        let is_python = || {
            let mut found = false;
            object.each_symbol(SymbolTable::Dynamic, |name, _| {
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

fn built_in(object: &MappedObject<'_>, file: &MappedFile) -> Option<AllocatorKind> {
    if object.section(".gopclntab").is_some() {
        return Some(AllocatorKind::Other("the Go runtime".to_owned()));
    }
    let mut found = None;
    let mut has_local_functions = false;
    for table in [SymbolTable::All, SymbolTable::Dynamic] {
        object.each_symbol(table, |name, symbol| {
            has_local_functions |= symbol.is_function && symbol.is_local;
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
    texts::allocator(file, object.section(".rodata")?.file_range?)
}

/// Returns the file offset of a symbol in the full symbol table; `None` if it is not there.
pub(crate) fn offset_of_symbol(file: &MappedFile, wanted: &[u8]) -> Option<u64> {
    let source = Source::new(file);
    let object = MappedObject::parse(&source)?;
    let mut address = None;
    object.each_symbol(SymbolTable::All, |name, symbol| {
        address = (name == wanted).then_some(symbol.address);
        address.is_none()
    });
    object.offset_of(address?)
}

/// Returns the address of an exported symbol, relative to the file, and the address of the page at
/// which its first segment starts; `None` if the file does not define the symbol.
///
/// # Errors
/// Fails if the file cannot be read, or is not ELF.
pub fn symbol(file: &MappedFile, wanted: &str) -> Result<Option<(u64, u64)>, ObjectError> {
    let source = Source::new(file);
    let parsed = object::File::parse(&source)?;
    let object::File::Elf64(elf) = &parsed else { return Ok(None) };
    let object = MappedObject::of(elf, &source);
    let mut found = None;
    for table in [SymbolTable::Dynamic, SymbolTable::All] {
        object.each_symbol(table, |name, symbol| {
            found = found.or((name == wanted.as_bytes()).then_some(symbol.address));
            found.is_none()
        });
    }
    let page = rustix::param::page_size() as u64;
    let first = object.addresses().map(|(first, _)| first - first % page);
    Ok(found.zip(first))
}

/// Returns the offset and size of a section in a file, in bytes.
pub(crate) fn section(file: &MappedFile, name: &str) -> Option<(u64, u64)> {
    let source = Source::new(file);
    MappedObject::parse(&source)?.section(name)?.file_range
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

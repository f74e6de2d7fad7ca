//! What a program or library file tells about allocators.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memchr::memmem;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSymbol};
use thiserror::Error;

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

/// What is of interest in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Its class.
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
}

/// An allocator that is compiled into a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
}

/// Names that only an allocator defines. Where a program uses one under a prefix of its own, as
/// Rust does for jemalloc, that prefix is a name too.
const SYMBOLS: [(&str, &str); 10] = [
    ("_rjem_malloc", "jemalloc"),
    ("_rjem_mallctl", "jemalloc"),
    ("je_malloc", "jemalloc"),
    ("je_mallctl", "jemalloc"),
    ("mi_malloc", "mimalloc"),
    ("mi_malloc_aligned", "mimalloc"),
    ("tc_malloc", "gperftools tcmalloc"),
    ("TCMallocInternalMalloc", "Google's tcmalloc"),
    ("sn_rust_alloc", "snmalloc"),
    ("rpmalloc", "rpmalloc"),
];

/// Texts that are left when the symbols were stripped; in two parts, so that they do not stand in
/// the program that looks for them.
const TEXTS: [(&str, &str, &str); 2] =
    [("<jemal", "loc>", "jemalloc"), ("mimal", "loc: ", "mimalloc")];

impl ObjectFacts {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is not ELF.
    pub fn read(file: &File) -> Result<Self, ObjectError> {
        let format = |error: object::Error| ObjectError::Format(error.to_string());
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).map_err(format)?;
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
        };
        for symbol in object.dynamic_symbols().filter(ObjectSymbol::is_definition) {
            match symbol.name() {
                Ok("malloc") => facts.defines_malloc = true,
                Ok("_r_debug") => facts.debug_symbol = Some(symbol.address()),
                Ok("_dl_debug_addr") => facts.debug_pointer = Some(symbol.address()),
                _ => {}
            }
        }
        Ok(facts)
    }
}

impl BuiltIn {
    /// Looks for an allocator that is compiled into a program: among its names, and where it has none
    /// any more, among its texts.
    ///
    /// # Errors
    /// When the file cannot be read, or is not ELF.
    pub fn look(file: &File) -> Result<Option<Self>, ObjectError> {
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).map_err(|e| ObjectError::Format(e.to_string()))?;
        let found = built_in(&object, file);
        // CPython carries mimalloc from 3.13 on, and does not use it unless it is told to.
        let is_python = || {
            let mut names = object.dynamic_symbols().filter(ObjectSymbol::is_definition);
            names.any(|symbol| symbol.name() == Ok("Py_BytesMain"))
        };
        Ok(found.filter(|b| b.name != "mimalloc" || !is_python()))
    }
}

fn built_in<'d>(object: &impl Object<'d>, file: &File) -> Option<BuiltIn> {
    if object.section_by_name(".gopclntab").is_some() {
        return Some(BuiltIn { name: "the Go runtime" });
    }
    let symbols = object.symbols().chain(object.dynamic_symbols());
    let mut any = false;
    for symbol in symbols.filter(ObjectSymbol::is_definition) {
        any |= symbol.kind() == object::SymbolKind::Text && !symbol.is_global();
        let Ok(name) = symbol.name() else { continue };
        if let Some((_, allocator)) = SYMBOLS.iter().find(|(known, _)| *known == name) {
            return Some(BuiltIn { name: allocator });
        }
    }
    // Local functions are named only where nothing was stripped; then the names were enough.
    if any {
        return None;
    }
    let range = object.section_by_name(".rodata")?.file_range()?;
    text_of_an_allocator(file, range)
}

fn text_of_an_allocator(file: &File, (offset, size): (u64, u64)) -> Option<BuiltIn> {
    const BLOCK: u64 = 1 << 20;
    const OVERLAP: u64 = 16;
    let texts: Vec<(Vec<u8>, &'static str)> =
        TEXTS.iter().map(|(a, b, name)| ([a.as_bytes(), b.as_bytes()].concat(), *name)).collect();
    let mut block = vec![0; (BLOCK + OVERLAP) as usize];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(BLOCK + OVERLAP) as usize;
        file.read_exact_at(&mut block[..length], offset + at).ok()?;
        for (text, name) in &texts {
            if memmem::find(&block[..length], text).is_some() {
                return Some(BuiltIn { name });
            }
        }
        at += BLOCK;
    }
    None
}

/// The version of a glibc, from its own file.
pub fn c_library_version(library: &Path) -> Option<String> {
    version_of(library, "stable release version ")
        .or_else(|| version_of(library, "development release version "))
}

/// The version that stands behind a text in a file: `gperftools 2.10` holds `2.10`.
pub fn version_of(library: &Path, text: &str) -> Option<String> {
    let bytes = std::fs::read(library).ok()?;
    memmem::find_iter(&bytes, text).find_map(|at| {
        let rest = &bytes[at + text.len()..];
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(rest.len());
        let version = std::str::from_utf8(&rest[..end]).ok()?.trim_end_matches('.');
        (!version.is_empty()).then(|| version.to_owned())
    })
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
        assert_eq!(BuiltIn::look(&file).unwrap(), None);
    }

    #[test]
    fn the_version_behind_a_text_is_read_up_to_its_last_digit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\0a stable release version 2.36.\nmore").unwrap();
        assert_eq!(c_library_version(file.path()).as_deref(), Some("2.36"));
        std::fs::write(file.path(), b"stable release version ").unwrap();
        assert_eq!(c_library_version(file.path()), None);
    }
}

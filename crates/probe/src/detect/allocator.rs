//! The identity of an allocator: name, version and linkage.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Detector, LoadedObject, partition_alloc};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::{CLibrary, Linkage};

use crate::mapped::MappedFile;
use crate::proc::maps::Mapping;
use crate::program::{EmbeddedCode, LoadedFile, ProgramFacts, Provider, elf, texts};
use crate::source::ProcessSource;

/// An allocator in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedAllocator {
    /// Kind of the allocator; [`AllocatorKind::Unknown`] if the program exports a `malloc` that
    /// nothing identifies.
    pub kind: AllocatorKind,
    /// Version, if its file contains it.
    pub version: Option<String>,
    /// Its linkage into the process.
    pub linkage: Linkage,
    /// The file that contains it, as the process sees it.
    pub path: PathBuf,
}

impl Detector {
    /// Returns the allocator that serves `malloc`.
    pub(super) fn malloc(
        &mut self,
        source: ProcessSource<'_>,
        maps: &[Mapping],
        program_facts: &ProgramFacts,
        objects: &[LoadedObject<'_>],
    ) -> Option<DetectedAllocator> {
        let (file, of_file) = match &program_facts.provider {
            Provider::Library(file) => {
                let object = objects.iter().find(|o| o.mapping.file == file.id)?;
                (
                    file,
                    (self.kind_of_library(source, file, object), linkage(objects, object), object),
                )
            }
            Provider::Executable(file) => {
                let program = objects.first()?;
                let built_in = program_facts.built_in.as_ref().map(|b| b.kind.clone());
                let known = program.facts.allocator.clone().or(built_in);
                let kind = known.unwrap_or_else(|| unknown(program, maps));
                (file, (kind, Linkage::Static, program))
            }
            Provider::Static(file) => {
                let program = objects.first()?;
                (file, (self.kind_of_static(source, maps, program)?, Linkage::Static, program))
            }
        };
        let (kind, linkage, object) = of_file;
        let version = self.version_of(source, &kind, object);
        Some(DetectedAllocator { kind, version, linkage, path: file.path.clone() })
    }

    /// Returns the allocator that the program contains for its own allocations.
    pub(super) fn own(
        &mut self,
        source: ProcessSource<'_>,
        program_facts: &ProgramFacts,
        objects: &[LoadedObject<'_>],
    ) -> Option<DetectedAllocator> {
        let program = objects.first()?;
        // A static program has one C library, whose malloc may be this allocator.
        let kind = program_facts.built_in.as_ref()?.kind.clone();
        let is_go = program.facts.evidence.contains(&EmbeddedCode::Go);
        if is_go || matches!(program_facts.provider, Provider::Executable(_)) {
            return None;
        }
        let version = self.version_of(source, &kind, program);
        let path = PathBuf::from(&program.mapping.name);
        Some(DetectedAllocator { kind, version, linkage: Linkage::Static, path })
    }

    /// Returns the C library, independent of the allocator that serves `malloc`; `None` for a
    /// program that has none, or whose own parts cannot be distinguished from it.
    pub(super) fn c_library(
        &mut self,
        source: ProcessSource<'_>,
        maps: &[Mapping],
        program_facts: &ProgramFacts,
        objects: &[LoadedObject<'_>],
    ) -> Option<(CLibrary, PathBuf)> {
        let of_name = |object: &&LoadedObject<'_>| {
            let path = PathBuf::from(&object.mapping.name);
            LoadedFile { id: object.mapping.file, path }.is_c_library()
        };
        let (object, kind) = match &program_facts.provider {
            Provider::Static(_) => {
                let program = objects.first()?;
                (program, self.kind_of_static(source, maps, program)?)
            }
            _ => {
                let object = objects.iter().find(of_name)?;
                let is_musl = object.facts.debug_pointer.is_some();
                (object, if is_musl { AllocatorKind::Musl } else { AllocatorKind::Glibc })
            }
        };
        let name = match kind {
            AllocatorKind::Glibc => "glibc",
            AllocatorKind::Musl => "musl",
            _ => return None,
        };
        let version = self.version_of(source, &kind, object);
        Some((CLibrary { name, version }, PathBuf::from(&object.mapping.name)))
    }

    fn kind_of_library(
        &mut self,
        source: ProcessSource<'_>,
        file: &LoadedFile,
        object: &LoadedObject<'_>,
    ) -> AllocatorKind {
        let name = file_name(&file.path);
        if let Some(known) = &object.facts.allocator {
            known.clone()
        } else if object.facts.debug_pointer.is_some() {
            // musl's loader and library are one file, which may have the name of any C library.
            AllocatorKind::Musl
        } else if file.is_c_library() {
            AllocatorKind::Glibc
        } else {
            let by_text = self.version(source, object.mapping, "allocator", |opened| {
                let found = texts::allocator(opened, object.facts.texts?)?;
                Some(found.name().to_owned())
            });
            by_text.map_or_else(
                || AllocatorKind::parse(stem(&name)),
                |name| AllocatorKind::parse(&name),
            )
        }
    }

    /// Returns the C library of a static program; `None` for a program without a visible `malloc`,
    /// such as one in Go.
    fn kind_of_static(
        &mut self,
        source: ProcessSource<'_>,
        maps: &[Mapping],
        program: &LoadedObject<'_>,
    ) -> Option<AllocatorKind> {
        let found = self.c_libraries.entry(program.mapping.file).or_insert_with(|| {
            let file = source.open(program.mapping).ok()?;
            texts::static_c_library(&file, program.facts.texts?)
        });
        let found = found.clone();
        let is_go = program.facts.evidence.contains(&EmbeddedCode::Go);
        match found {
            Some(kind) => Some(kind),
            None if has_guarded_heap(maps) => Some(AllocatorKind::Musl),
            None if is_go => None,
            None => Some(unknown(program, maps)),
        }
    }

    /// Returns the version of an allocator that a mapped file contains, if the file shows it.
    pub(crate) fn version_in(
        &mut self,
        source: ProcessSource<'_>,
        mapping: &Mapping,
        kind: &AllocatorKind,
    ) -> Option<String> {
        let facts = self.reader.object(source, mapping).ok()?.clone();
        self.version_of(source, kind, &LoadedObject { mapping, facts })
    }

    /// Returns the variable from which the jemalloc in a mapped file reads its settings, if the
    /// file shows it.
    pub(crate) fn jemalloc_variable(
        &mut self,
        source: ProcessSource<'_>,
        mapping: &Mapping,
    ) -> Option<String> {
        let texts = self.reader.object(source, mapping).ok()?.texts?;
        self.version(source, mapping, "jemalloc's variable", |file| {
            texts::jemalloc_variable(file, texts)
        })
    }

    fn version_of(
        &mut self,
        source: ProcessSource<'_>,
        kind: &AllocatorKind,
        object: &LoadedObject<'_>,
    ) -> Option<String> {
        let texts = object.facts.texts?;
        let at = object.facts.version_at;
        self.version(source, object.mapping, kind.name(), |file| match kind {
            AllocatorKind::Glibc => texts::glibc_version(file, texts),
            // A static program does not contain it, but may contain numbers of other libraries.
            AllocatorKind::Musl if object.facts.debug_pointer.is_some() => {
                texts::whole_number(file, texts, "1.", 2)
            }
            AllocatorKind::Jemalloc => texts::jemalloc_version(file, texts),
            AllocatorKind::Gperftools => texts::number_behind(file, texts, "gperftools "),
            AllocatorKind::Mimalloc => mimalloc_version(file, at),
            AllocatorKind::Musl
            | AllocatorKind::Tcmalloc
            | AllocatorKind::Snmalloc
            | AllocatorKind::Rpmalloc
            | AllocatorKind::Scudo
            | AllocatorKind::PartitionAlloc
            | AllocatorKind::Other(_)
            | AllocatorKind::Unknown => None,
        })
    }
}

/// Reads the version of mimalloc. `mi_version()` only returns a constant.
fn mimalloc_version(file: &MappedFile, at: Option<u64>) -> Option<String> {
    let at = at.or_else(|| elf::offset_of_symbol(file, b"mi_version"))?;
    let mut code = [0; 16];
    file.read_exact_at(&mut code, at).ok()?;
    mimalloc_number(constant_of(&code)?)
}

/// Returns the constant that a function with this code returns.
fn constant_of(code: &[u8; 16]) -> Option<u32> {
    let word = |at: usize| u32::from_le_bytes(code[at..at + 4].try_into().unwrap_or_default());
    // x86-64: optionally `endbr64`, then `mov $n, %eax`.
    let from = if word(0) == 0xfa1e_0ff3 { 4 } else { 0 };
    if code[from] == 0xb8 {
        return Some(word(from + 1));
    }
    // aarch64: optionally `bti c`, then `mov w0, #n`.
    let from = if word(0) == 0xd503_245f { 4 } else { 0 };
    (word(from) & 0xffe0_001f == 0x5280_0000).then(|| word(from) >> 5 & 0xffff)
}

/// Formats mimalloc's `MI_MALLOC_VERSION`: 212 was 2.1.2; since two digits are needed, 30302 is
/// 3.3.2.
fn mimalloc_number(number: u32) -> Option<String> {
    let base = match number {
        100..1000 => 10,
        10000..100_000 => 100,
        _ => return None,
    };
    Some(format!("{}.{}.{}", number / base / base, number / base % base, number % base))
}

/// Returns whether the heap starts with a guard page. Only musl's mallocng keeps its metadata at
/// the start of the heap, after an inaccessible page (alloc_meta in src/malloc/mallocng/malloc.c).
fn has_guarded_heap(maps: &[Mapping]) -> bool {
    let heap = maps.iter().find(|m| m.name == "[heap]");
    heap.is_some_and(|m| m.permissions.starts_with("---"))
}

/// Returns the kind of a `malloc` whose address alone is known.
fn unknown(object: &LoadedObject<'_>, maps: &[Mapping]) -> AllocatorKind {
    if !partition_alloc::super_pages(maps).is_empty() {
        return AllocatorKind::PartitionAlloc;
    }
    let sanitizer = object.facts.evidence.iter().find_map(|e| match e {
        EmbeddedCode::Sanitizer(sanitizer) => Some(sanitizer.name()),
        _ => None,
    });
    sanitizer.map_or(AllocatorKind::Unknown, |name| AllocatorKind::Other(name.to_owned()))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the stem of a library's name: `libfoo` for `libfoo.so.1.2`.
fn stem(name: &str) -> &str {
    name.split(".so").next().unwrap_or(name)
}

/// Returns the linkage of a library. It was requested if a path of needed libraries leads from the
/// program to it.
fn linkage(objects: &[LoadedObject<'_>], library: &LoadedObject<'_>) -> Linkage {
    let mut wanted: HashSet<&str> = HashSet::new();
    let mut next: Vec<&LoadedObject<'_>> = objects.first().into_iter().collect();
    let mut seen: HashSet<u64> = next.iter().map(|o| o.mapping.start).collect();
    while let Some(object) = next.pop() {
        wanted.extend(object.facts.needed.iter().map(|n| n.rsplit('/').next().unwrap_or(n)));
        let asked = |o: &&LoadedObject<'_>| {
            let file = o.mapping.name.rsplit('/').next().unwrap_or_default();
            o.facts.soname.as_deref().is_some_and(|name| wanted.contains(name))
                || wanted.contains(file)
        };
        for object in objects.iter().filter(asked) {
            if seen.insert(object.mapping.start) {
                next.push(object);
            }
        }
    }
    if seen.contains(&library.mapping.start) { Linkage::Dynamic } else { Linkage::Preloaded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mimalloc_version_is_decoded_from_its_machine_code() {
        let code = |head: &[u8]| {
            let mut code = [0xcc; 16];
            code[..head.len()].copy_from_slice(head);
            constant_of(&code)
        };
        assert_eq!(code(&[0xb8, 0x5e, 0x76, 0, 0, 0xc3]), Some(30302));
        assert_eq!(code(&[0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 0xd4, 0, 0, 0, 0xc3]), Some(212));
        assert_eq!(code(&(0x5280_0000_u32 | 30302 << 5).to_le_bytes()), Some(30302));
        assert_eq!(code(&[0x55]), None);
        assert_eq!(mimalloc_number(30302).as_deref(), Some("3.3.2"));
        assert_eq!(mimalloc_number(212).as_deref(), Some("2.1.2"));
        assert_eq!(mimalloc_number(7), None);
    }

    #[test]
    fn an_unknown_library_is_named_by_its_file_stem() {
        assert_eq!(stem("libscudo.so.1"), "libscudo");
        assert_eq!(stem("mine"), "mine");
    }
}

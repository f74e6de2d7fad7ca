//! The managers of a process's memory: its allocator, and runtimes with memory of their own.
//!
//! - [`DetectedAllocator`]: name, version and linkage.
//! - [`DetectedRuntime`]: Go, CPython, V8, HotSpot, Ruby, PHP, Erlang and InnoDB, whose memory
//!   bypasses `malloc`.
//! - [`Sanitizer`]: a build whose heap must be left alone.
//! - [`stacks()`]: the stacks of threads.
//! - [`areas()`]: the memory of each of them.
//! - [`Claim`]: a claim on memory, and the rule that decides between claims.
//!
//! Everything is read from the process's own files, through `/proc/PID/map_files` or its own root.

mod allocator;
mod areas;
mod claims;
mod partition_alloc;
mod python;
mod runtime;
mod stacks;

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use lowtide_heap::hotspot;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::CLibrary;
use lowtide_model::runtime_kind::RuntimeKind;

use crate::mapped::MappedFile;
use crate::proc::maps::{FileId, Mapping};
use crate::program::{EmbeddedCode, ObjectFacts, ProgramError, ProgramReader, Provider, Sanitizer};
use crate::source::ProcessSource;

pub use allocator::DetectedAllocator;
pub(crate) use areas::is_java_heap_file;
pub(crate) use areas::is_private_memory;
pub use areas::{Area, AreaOwner, WalkedHeaps, areas, java_heap};
pub use claims::{Claim, proven, resolve};
pub use runtime::{DetectedRuntime, OwnMemory};
pub use stacks::{Stack, stack_pointers, stacks};

/// Maximum number of libraries that are named because they could not be read.
const MAX_UNREAD: usize = 32;

/// The managers of a process's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detected {
    /// The allocator that serves `malloc`; `None` if the program has none, like a Go program
    /// without C.
    pub malloc: Option<DetectedAllocator>,
    /// An allocator that the program contains for its own allocations, which bypass `malloc`
    /// (Rust's `#[global_allocator]`, redis with its own jemalloc).
    pub own: Option<DetectedAllocator>,
    /// The C library.
    pub c_library: Option<CLibrary>,
    /// The file that contains it, as the process sees it.
    pub c_library_path: Option<PathBuf>,
    /// Whether the program is static: it and its C library are one file.
    pub is_static: bool,
    /// Runtimes whose memory does not come from `malloc`.
    pub runtimes: Vec<DetectedRuntime>,
    /// The table of HotSpot's variables, which prove the addresses of its memory.
    pub hotspot: Option<hotspot::Variables>,
    /// The sanitizer that the program was built with, or runs under.
    pub sanitizer: Option<Sanitizer>,
    /// The zeroed data of program and libraries (`.bss`), which are not contained in their files:
    /// whole pages, in order of address. The kernel may have merged them with the mappings after
    /// them.
    pub zeroed_data: Vec<Range<u64>>,
    /// The paths of the loaded libraries whose files could not be read, at most 32: a runtime in
    /// them is not detected.
    pub unread_libraries: Vec<String>,
}

impl Detected {
    /// Returns the allocator that serves the program itself.
    pub fn allocator(&self) -> Option<&DetectedAllocator> {
        self.own.as_ref().or(self.malloc.as_ref())
    }

    /// Returns the allocator that serves `malloc`, and the one of the program's own allocations.
    pub fn allocators(&self) -> impl Iterator<Item = &DetectedAllocator> {
        [&self.malloc, &self.own].into_iter().flatten()
    }

    /// Returns whether `malloc` is glibc's. Then its heap can be walked, even if it is small
    /// because the program has an allocator of its own.
    pub fn has_glibc_heap(&self) -> bool {
        self.malloc.as_ref().is_some_and(|malloc| malloc.kind == AllocatorKind::Glibc)
    }

    /// Returns the zeroed data of the file that contains an allocator, with the page that it shares
    /// with the file's own data.
    pub fn zeroed_data_of(
        &self,
        allocator: &DetectedAllocator,
        maps: &[Mapping],
        page_bytes: u64,
    ) -> Vec<Range<u64>> {
        let path = allocator.path.to_string_lossy();
        let of_file = maps.iter().filter(|m| m.has_file() && m.name == path);
        let ends: Vec<u64> = of_file.map(|m| m.end).collect();
        let data = self.zeroed_data.iter().filter(|data| ends.contains(&data.start));
        data.map(|range| range.start.saturating_sub(page_bytes)..range.end).collect()
    }

    /// Returns whether a runtime of this kind was detected.
    pub fn has(&self, kind: RuntimeKind) -> bool {
        self.runtimes.iter().any(|runtime| runtime.kind == kind)
    }
}

/// Detects the managers of memory, and caches the files that it has read.
#[derive(Debug, Clone, Default)]
pub struct Detector {
    reader: ProgramReader,
    versions: HashMap<(FileId, String), Option<String>>,
    c_libraries: HashMap<FileId, Option<AllocatorKind>>,
}

/// A loaded object: its mapping and the facts from its file.
struct LoadedObject<'m> {
    mapping: &'m Mapping,
    facts: ObjectFacts,
}

impl Detector {
    /// Detects the managers of the memory of a process, which is neither stopped nor written to, or
    /// of a core. `maps` are its mappings.
    ///
    /// # Errors
    /// Fails if its files or the loader's list cannot be read, or if it is still being loaded.
    pub fn detect<'s>(
        &mut self,
        source: impl Into<ProcessSource<'s>>,
        maps: &[Mapping],
    ) -> Result<Detected, ProgramError> {
        let source = source.into();
        let (program_facts, mappings) = self.reader.read_with_mappings(source, maps)?;
        let (mut objects, mut unread_libraries) = (Vec::with_capacity(mappings.len()), Vec::new());
        for (place, mapping) in mappings.into_iter().enumerate() {
            match self.reader.object(source, mapping) {
                Ok(facts) => objects.push(LoadedObject { mapping, facts: facts.clone() }),
                // If the program itself cannot be read, nothing can be detected. A library whose
                // file is gone is not recognised.
                Err(error) if place == 0 => return Err(error),
                Err(_) if unread_libraries.len() >= MAX_UNREAD => {}
                Err(_) if unread_libraries.contains(&mapping.name) => {}
                Err(_) => unread_libraries.push(mapping.name.clone()),
            }
        }
        let c_library = self.c_library(source, maps, &program_facts, &objects);
        let (c_library, c_library_path) = c_library.unzip();
        Ok(Detected {
            malloc: self.malloc(source, maps, &program_facts, &objects),
            own: self.own(source, &program_facts, &objects),
            c_library,
            c_library_path,
            is_static: matches!(program_facts.provider, Provider::Static(_)),
            runtimes: self.runtimes(source, maps, &objects),
            hotspot: objects
                .iter()
                .find_map(|o| o.facts.hotspot?.loaded_at(load_address(maps, o)?)),
            sanitizer: sanitizer(maps, &objects),
            zeroed_data: zeroed_data(maps, &objects),
            unread_libraries,
        })
    }

    /// Returns a version from the file of a mapping, and caches it.
    fn version(
        &mut self,
        source: ProcessSource<'_>,
        mapping: &Mapping,
        of: &str,
        read: impl FnOnce(&MappedFile) -> Option<String>,
    ) -> Option<String> {
        self.versions
            .entry((mapping.file, of.to_owned()))
            .or_insert_with(|| source.open(mapping).ok().and_then(|file| read(&file)))
            .clone()
    }
}

/// Returns the address to which the addresses in an object's file are relative.
fn load_address(maps: &[Mapping], object: &LoadedObject<'_>) -> Option<u64> {
    load_address_of(maps, object.mapping.file, object.facts.addresses?.0)
}

/// Returns the address to which the addresses in a file are relative. `first` is the address of its
/// first segment.
pub(crate) fn load_address_of(maps: &[Mapping], file: FileId, first: u64) -> Option<u64> {
    let page = rustix::param::page_size() as u64;
    // A file can be mapped twice (Node maps its own code again). The loader's mapping is the first
    // one that starts at the start of the file.
    let base = maps.iter().find(|m| m.file == file && m.offset == 0)?.start;
    base.checked_sub(first - first % page)
}

fn zeroed_data(maps: &[Mapping], objects: &[LoadedObject<'_>]) -> Vec<Range<u64>> {
    let page = rustix::param::page_size() as u64;
    let of_object = |object: &LoadedObject<'_>| {
        let (first, end) = object.facts.addresses?;
        let load_address = load_address(maps, object)?;
        let base = load_address.checked_add(first - first % page)?;
        let end = load_address.checked_add(end)?.next_multiple_of(page);
        let file_end = maps
            .iter()
            .filter(|m| m.file == object.mapping.file && base <= m.start && m.end <= end)
            .map(|m| m.end)
            .max()?;
        (file_end < end).then_some(file_end..end)
    };
    let mut found: Vec<_> = objects.iter().filter_map(of_object).collect();
    found.sort_unstable_by_key(|range| range.start);
    found
}

/// Start address of AddressSanitizer's shadow on x86-64, including the page before it
/// (`SHADOW_OFFSET` is 0x7fff8000 in compiler-rt's asan_mapping.h). In a program built with it,
/// nothing else can be mapped there.
const ASAN_SHADOW: u64 = 0x7fff_7000;

fn sanitizer(maps: &[Mapping], objects: &[LoadedObject<'_>]) -> Option<Sanitizer> {
    let named = objects.iter().flat_map(|o| &o.facts.evidence).filter_map(|e| match e {
        EmbeddedCode::Sanitizer(sanitizer) => Some(*sanitizer),
        _ => None,
    });
    // LeakSanitizer is also part of other sanitizers.
    named.max_by_key(|s| *s != Sanitizer::Leak).or_else(|| sanitizer_of_maps(maps))
}

/// Returns the sanitizer that the mappings alone show, if neither names nor libraries show one.
fn sanitizer_of_maps(maps: &[Mapping]) -> Option<Sanitizer> {
    let file = |m: &Mapping| m.name.rsplit('/').next().unwrap_or_default().to_owned();
    if maps.iter().any(|m| m.has_file() && file(m).starts_with("vgpreload_")) {
        return Some(Sanitizer::Valgrind);
    }
    let is_shadow = |m: &Mapping| !m.has_file() && m.start == ASAN_SHADOW && m.size() >= 1 << 28;
    maps.iter().any(is_shadow).then_some(Sanitizer::Address)
}

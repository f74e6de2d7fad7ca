//! Allocators that libraries contain for their own use, under any names: their heaps are found by
//! their structures.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use lowtide_heap::layout::{HeapLayout, Places};
use lowtide_heap::memory::{Memory, pointers_into};
use lowtide_heap::ptmalloc::HeapMapping;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::Linkage;

use crate::detect::{Detected, DetectedAllocator, Detector};
use crate::heap;
use crate::proc::maps::{FileId, Mapping};

/// Size of the smallest root of a tree from pages to extents, in bytes (jemalloc's, for addresses
/// of 57 bits). A library with less zeroed data has no jemalloc.
const MIN_ROOT_BYTES: u64 = 256 << 10;
/// Maximum number of libraries whose mappings are collected, and of libraries that are searched for
/// a root.
const MAX_LIBRARIES: usize = 8 << 10;
const MAX_SEARCHED: usize = 64;
/// Placeholder for the library of an allocator, if it is not known.
const UNKNOWN_LIBRARY: &str = "a library";

/// The heap of an allocator that a library contains.
#[derive(Debug)]
pub struct LibraryHeap {
    /// The allocator.
    pub kind: AllocatorKind,
    /// The library, as the process sees it; `None` if it is not known.
    pub path: Option<PathBuf>,
    /// The places of the heap.
    pub layout: HeapLayout,
}

impl LibraryHeap {
    /// Returns the name of the library's file.
    pub fn library(&self) -> &str {
        let name = self.path.as_deref().and_then(|path| path.file_name()?.to_str());
        name.unwrap_or(UNKNOWN_LIBRARY)
    }

    /// Returns the allocator, with its version from the library; `None` if the library is not
    /// known. `detector` remembers the files that it has read.
    pub fn allocator(
        &self,
        pid: u32,
        maps: &[Mapping],
        detector: &mut Detector,
    ) -> Option<DetectedAllocator> {
        let path = self.path.clone()?;
        let mapping = heap::library(maps, path.to_str()?)?;
        let version = detector.version_in(pid.into(), mapping, &self.kind);
        Some(DetectedAllocator { kind: self.kind.clone(), version, linkage: Linkage::Static, path })
    }
}

/// The files of a process that have writable data, except those of the program's allocators.
#[derive(Debug)]
pub struct Libraries<'m>(Vec<Library<'m>>);

impl<'m> Libraries<'m> {
    /// Collects them from the mappings of a process.
    pub fn find(maps: &'m [Mapping], detected: &Detected) -> Self {
        Self(libraries(maps, detected))
    }

    /// Finds the heaps of each library's jemalloc.
    pub fn jemallocs(&self, memory: &impl Memory, mappings: &[HeapMapping]) -> Vec<LibraryHeap> {
        let is_large = |data: &Range<u64>| data.end - data.start >= MIN_ROOT_BYTES;
        let may_have_root =
            self.0.iter().filter(|library| library.zeroed_data.iter().any(is_large));
        let find = |library: &Library<'m>| {
            // The data may begin in the last page of the file's own data.
            let page = memory.page_bytes();
            let zeroed_data = library.zeroed_data.iter().map(|data| data.start - page..data.end);
            let zeroed_data: Vec<Range<u64>> = zeroed_data.collect();
            let places = Places { data: &[], zeroed_data: &zeroed_data, mappings };
            let kind = AllocatorKind::Jemalloc;
            let layout = HeapLayout::find(&kind, memory, &places)?;
            Some(LibraryHeap { kind, path: Some(PathBuf::from(library.path)), layout })
        };
        may_have_root.take(MAX_SEARCHED).filter_map(find).collect()
    }

    /// Finds the heap of a library's mimalloc; `None` if the program has one, whose heap cannot be
    /// distinguished from it.
    pub fn mimalloc(
        &self,
        memory: &impl Memory,
        detected: &Detected,
        mappings: &[HeapMapping],
    ) -> Option<LibraryHeap> {
        let kind = AllocatorKind::Mimalloc;
        if detected.allocators().any(|found| found.kind == kind) {
            return None;
        }
        let places = Places { data: &[], zeroed_data: &[], mappings };
        let layout = HeapLayout::find(&kind, memory, &places)?;
        let path = library_that_leads_to(memory, &self.0, &layout.records()).map(PathBuf::from);
        Some(LibraryHeap { kind, path, layout })
    }
}

/// A library, or the program, with its variables.
#[derive(Debug)]
struct Library<'m> {
    path: &'m str,
    /// Its writable mappings.
    data: Vec<Range<u64>>,
    /// The zeroed data after them.
    zeroed_data: Vec<Range<u64>>,
}

/// Returns the files that have writable data, except those of the program's allocators.
fn libraries<'m>(maps: &'m [Mapping], detected: &Detected) -> Vec<Library<'m>> {
    let of_program: Vec<&str> =
        detected.allocators().filter_map(|allocator| allocator.path.to_str()).collect();
    let zeroed: HashMap<u64, &Range<u64>> =
        detected.zeroed_data.iter().map(|range| (range.start, range)).collect();
    let mut places: HashMap<FileId, usize> = HashMap::new();
    let mut found: Vec<Library<'_>> = Vec::new();
    for mapping in maps.iter().filter(|m| m.has_file() && m.permissions.starts_with("rw")) {
        if mapping.permissions.ends_with('s') || of_program.contains(&mapping.name.as_str()) {
            continue;
        }
        let place = *places.entry(mapping.file).or_insert(found.len());
        if place == found.len() {
            if place == MAX_LIBRARIES {
                break;
            }
            found.push(Library { path: &mapping.name, data: Vec::new(), zeroed_data: Vec::new() });
        }
        found[place].data.push(mapping.start..mapping.end);
        // The memory after it may be another mapping.
        found[place].zeroed_data.extend(zeroed.get(&mapping.end).map(|range| (*range).clone()));
    }
    found
}

/// Returns the path of the library with the most pointers to an allocator's own records; `None` if
/// no library has more than the others.
fn library_that_leads_to<'m>(
    memory: &impl Memory,
    libraries: &[Library<'m>],
    records: &[Range<u64>],
) -> Option<&'m str> {
    let pointers = |library: &Library<'m>| {
        let of = |ranges: &[Range<u64>]| pointers_into(memory, ranges, records);
        (of(&library.data) + of(&library.zeroed_data), library.path)
    };
    let mut found: Vec<(u64, &str)> = libraries.iter().map(pointers).collect();
    found.sort_by_key(|(count, _)| Reverse(*count));
    match found[..] {
        [(most, library), (second, _), ..] if most > second => Some(library),
        [(1.., library)] => Some(library),
        _ => None,
    }
}

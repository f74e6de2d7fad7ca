//! The places in a process where a heap can be, and the guards of its free pages.

use std::ops::Range;

use lowtide_heap::droppable::Unguarded;
use lowtide_heap::droppable_heap::DroppableHeap;
use lowtide_heap::guarded::{GuardedHeap, Module};
use lowtide_heap::layout::HeapLayout;
use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::HeapMapping;

use crate::detect::DetectedAllocator;
use crate::mapped::code_of;
use crate::proc::maps::{self, FileId};
use crate::proc::task;

/// Returns the writable data of a library, or of a static executable: the mappings of its file, and
/// the anonymous mappings right after them, which contain the zeroed data.
pub fn data_of(maps: &[maps::Mapping], file: FileId) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut end_of_file = None;
    for mapping in maps {
        let is_of_file = mapping.file == file;
        let is_behind = !mapping.has_file() && end_of_file == Some(mapping.start);
        if is_of_file || (is_behind && mapping.name.is_empty()) {
            if mapping.permissions.starts_with("rw") {
                match found.last_mut().filter(|last| last.end == mapping.start) {
                    Some(last) => last.end = mapping.end,
                    None => found.push(mapping.start..mapping.end),
                }
            }
            end_of_file = Some(mapping.end);
        } else {
            end_of_file = None;
        }
    }
    found
}

/// Returns the first mapping of a file, by its path as the process sees it.
pub fn library<'m>(maps: &'m [maps::Mapping], path: &str) -> Option<&'m maps::Mapping> {
    maps.iter().find(|m| m.has_file() && m.name == path)
}

/// Finds what guards the free pages of a heap. `mappings` are those that may contain a part of it,
/// in order of address.
///
/// # Errors
/// Fails with the reason if the pages cannot be dropped safely.
pub fn droppable(
    pid: u32,
    maps: &[maps::Mapping],
    allocator: &DetectedAllocator,
    layout: HeapLayout,
    memory: &impl Memory,
    mappings: &[HeapMapping],
) -> Result<DroppableHeap, Unguarded> {
    let layout = match layout {
        HeapLayout::Ptmalloc(layout) => return Ok(DroppableHeap::Ptmalloc(*layout)),
        layout => layout,
    };
    let library = library(maps, &allocator.path.to_string_lossy());
    let file = library.ok_or("the file that contains it is not mapped")?.file;
    let of_file = || maps.iter().filter(|m| m.file == file);
    let ranges: Vec<Range<u64>> = of_file().map(|m| m.start..m.end).collect();
    let code = || {
        let executable = of_file().filter(|m| m.permissions.contains('x'));
        executable.map(|m| (m.start, code_of(pid, m).0)).collect()
    };
    let threads = || task::program_threads(pid).map_or(0, |threads| threads.len());
    let version = allocator.version.as_deref();
    let module = Module { ranges: &ranges, version, code: &code, threads: &threads };
    GuardedHeap::find(layout, memory, mappings, &module).map(DroppableHeap::Guarded)
}

/// Returns the mappings that may contain a part of the heap: private, writable, not backed by a
/// file, and not a stack's.
pub fn mappings(maps: &[maps::Mapping]) -> Vec<HeapMapping> {
    maps.iter().filter_map(mapping).collect()
}

/// Returns a mapping if it may contain a part of the heap.
pub fn mapping(m: &maps::Mapping) -> Option<HeapMapping> {
    let is_private = m.permissions.starts_with("rw") && m.permissions.ends_with('p');
    let is_named_so = m.name.is_empty() || m.name == "[heap]" || m.given_name().is_some();
    (is_private && !m.has_file() && is_named_so)
        .then(|| HeapMapping { range: m.start..m.end, is_brk: m.name == "[heap]" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        00400000-00401000 rw-p 00002000 fe:01 10       /srv/program\n\
        00a00000-00a21000 rw-p 00000000 00:00 0        [heap]\n\
        7f1200000000-7f1200021000 rw-p 00000000 00:00 0 \n\
        7f1200021000-7f1204000000 ---p 00000000 00:00 0 \n\
        7f1300000000-7f1300004000 r--p 00100000 fe:01 11   /lib/libc.so.6\n\
        7f1300004000-7f1300006000 rw-p 00104000 fe:01 11   /lib/libc.so.6\n\
        7f1300006000-7f1300013000 rw-p 00000000 00:00 0 \n\
        7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0    [stack]\n";

    #[test]
    fn the_data_of_a_library_includes_the_zeroed_data_after_its_file_mapping() {
        let maps = maps::parse(MAPS).unwrap();
        let data = data_of(&maps, FileId { device: (0xfe, 1), inode: 11 });
        assert_eq!((data.len(), data[0].clone()), (1, 0x7f13_0000_4000..0x7f13_0001_3000));
    }

    #[test]
    fn stacks_files_and_read_only_mappings_are_not_heap() {
        let found = mappings(&maps::parse(MAPS).unwrap());
        assert_eq!(found.len(), 3);
        assert!(found[0].is_brk && !found[1].is_brk);
    }
}

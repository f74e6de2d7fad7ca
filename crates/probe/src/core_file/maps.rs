//! The mappings of the process, as far as a core shows them: `/proc/PID/maps` is not in it.
//!
//! A core has the addresses and permissions of the mappings, and the files of those with one. Which
//! of them was the heap of `brk`, or the stack of the first thread, follows from where the kernel
//! puts them (`load_elf_binary` in fs/binfmt_elf.c).

use super::elf::{Segment, half_word, word};
use super::notes::{FilePart, Notes};
use crate::proc::maps::{FileId, Mapping, Permissions};

/// Keys of the auxiliary vector (linux/auxvec.h).
const PROGRAM_HEADERS: u64 = 3;
const HEADER_BYTES: u64 = 4;
const HEADER_COUNT: u64 = 5;
const RANDOM: u64 = 25;
const VDSO: u64 = 33;
/// Maximum distance of the heap of `brk` from the end of the program: 1 GiB at random, after the
/// program's own end (`arch_randomize_brk`).
const MAX_TO_BRK: u64 = (1 << 30) + (1 << 20);
/// How the names of shared memory begin; a core does not distinguish shared from private mappings.
const SHARED: [&str; 4] = ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"];

/// Returns the mappings, in order of address. `read` reads the memory of the core.
pub(super) fn of_core(
    segments: &[Segment],
    notes: &Notes,
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> Vec<Mapping> {
    let mut maps = with_files(segments, notes);
    name_at(&mut maps, notes.value(RANDOM), "[stack]");
    name_at(&mut maps, notes.value(VDSO), "[vdso]");
    name_heap(&mut maps, notes, read);
    maps
}

/// Returns the file of a mapping by the place of its path.
fn file_id(path: usize) -> FileId {
    FileId { device: (0, 0), inode: path as u64 + 1 }
}

/// Returns the mappings of the segments, and those of files that were left out as a whole.
fn with_files(segments: &[Segment], notes: &Notes) -> Vec<Mapping> {
    let mut maps = Vec::new();
    let mut files = notes.files.iter().peekable();
    let mut at = 0;
    for segment in segments {
        at = segment.start.max(at);
        while let Some(part) = files.next_if(|part| part.start < segment.end) {
            if part.start < segment.start {
                // gdb leaves out what the core needs not: mostly code.
                let range = part.start.max(maps.last().map_or(0, |m: &Mapping| m.end));
                maps.extend(of_file(notes, part, range..part.end.min(segment.start), "r-xp"));
            }
            let start = part.start.max(at);
            maps.extend(anonymous(segment, at..start));
            let end = part.end.min(segment.end);
            maps.extend(of_file(notes, part, start..end, &permissions(segment)));
            at = end.max(at);
        }
        maps.extend(anonymous(segment, at..segment.end));
        at = segment.end;
    }
    for part in files {
        let start = part.start.max(maps.last().map_or(0, |m: &Mapping| m.end));
        maps.extend(of_file(notes, part, start..part.end, "r-xp"));
    }
    maps
}

fn permissions(segment: &Segment) -> String {
    let [read, write, execute] = segment.access;
    let of = |has: bool, name: char| if has { name } else { '-' };
    [of(read, 'r'), of(write, 'w'), of(execute, 'x'), 'p'].into_iter().collect()
}

fn of_file(
    notes: &Notes,
    part: &FilePart,
    range: std::ops::Range<u64>,
    permissions: &str,
) -> Option<Mapping> {
    let name = notes.paths.get(part.path)?;
    let is_shared = SHARED.iter().any(|begin| name.starts_with(begin));
    let mut text = permissions.to_owned();
    if is_shared {
        text.replace_range(3.., "s");
    }
    (range.start < range.end).then_some(Mapping {
        start: range.start,
        end: range.end,
        permissions: Permissions::parse(&text)?,
        offset: part.offset.checked_add(range.start - part.start)?,
        file: file_id(part.path),
        name: name.clone(),
    })
}

fn anonymous(segment: &Segment, range: std::ops::Range<u64>) -> Option<Mapping> {
    (range.start < range.end).then_some(Mapping {
        start: range.start,
        end: range.end,
        permissions: Permissions::parse(&permissions(segment))?,
        offset: 0,
        file: FileId::default(),
        name: String::new(),
    })
}

/// Names the mapping without a file that contains an address.
fn name_at(maps: &mut [Mapping], address: Option<u64>, name: &str) {
    let found = maps.iter_mut().find(|m| address.is_some_and(|at| m.contains(at)));
    if let Some(mapping) = found.filter(|m| !m.has_file()) {
        name.clone_into(&mut mapping.name);
    }
}

/// Returns the first mapping of the program.
pub(super) fn program<'m>(maps: &'m [Mapping], notes: &Notes) -> Option<&'m Mapping> {
    let headers = notes.value(PROGRAM_HEADERS)?;
    let file = maps.iter().find(|m| m.contains(headers) && m.has_file())?.file;
    maps.iter().find(|m| m.file == file)
}

/// Names the heap of `brk`: the first memory without a file after the program and its zeroed data.
fn name_heap(maps: &mut [Mapping], notes: &Notes, read: impl Fn(u64, &mut [u8]) -> usize) {
    let Some(program) = program(maps, notes) else { return };
    let (file, start) = (program.file, program.start);
    let Some(last) = maps.iter().rposition(|m| m.file == file) else { return };
    let file_end = maps[last].end;
    let end = end_of_program(notes, start, read).unwrap_or(file_end).max(file_end);
    let follow = maps[last + 1..].iter_mut().take_while(|m| !m.has_file());
    let near = follow.take_while(|m| m.start < end.saturating_add(MAX_TO_BRK));
    let mut is_heap = near.filter(|m| m.permissions == "rw-p" && m.name.is_empty());
    if let Some(heap) = is_heap.find(|m| m.end > end) {
        "[heap]".clone_into(&mut heap.name);
    }
}

/// Returns the first address after the program and its zeroed data, from its program headers.
fn end_of_program(
    notes: &Notes,
    start: u64,
    read: impl Fn(u64, &mut [u8]) -> usize,
) -> Option<u64> {
    const HEADER: u64 = 56;
    const MAX_HEADERS: u64 = 256;
    const LOAD: u32 = 1;
    const PAGE: u64 = 4096;
    let count = notes.value(HEADER_COUNT)?.min(MAX_HEADERS);
    if notes.value(HEADER_BYTES)? != HEADER {
        return None;
    }
    let mut bytes = vec![0; (count * HEADER) as usize];
    if read(notes.value(PROGRAM_HEADERS)?, &mut bytes) < bytes.len() {
        return None;
    }
    let loaded = || bytes.chunks_exact(HEADER as usize).filter(|h| half_word(h, 0) == LOAD);
    let first = loaded().map(|h| word(h, 16)).min()?;
    let ends = loaded().filter_map(|h| word(h, 16).checked_add(word(h, 40)));
    let end = ends.max()?.checked_sub(first - first % PAGE)?;
    start.checked_add(end)?.checked_next_multiple_of(PAGE)
}

//! ELF cores: the memory of a process in a file, written by the kernel when a signal ends it, by
//! systemd-coredump, or by `gcore`.
//!
//! - `elf`: the headers of the file.
//! - `notes`: the process, its threads, its mapped files and its auxiliary vector.
//! - `maps`: the mappings that follow from them.
//! - `content`: the pages that hold anything but zeros.
//! - `disk`: the files that the process had mapped, by their build ID.
//!
//! A core can come from anyone. It may be cut off anywhere, and its values may be impossible: what
//! is read is limited by the size of the file, not by what the file says about itself.

mod content;
mod disk;
mod elf;
mod maps;
mod notes;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::UNIX_EPOCH;

use lowtide_heap::memory::MIN_PAGE_BYTES;
use lowtide_heap::ranges::{bytes, overlaps};
use thiserror::Error;

use crate::memory::{PageKind, Pages};
use crate::proc::maps::Mapping;
use elf::Headers;
use notes::Notes;

pub use notes::CoreThread;

/// Number of first bytes by which a core is recognised.
pub const FIRST_BYTES: usize = 18;

/// The reason why a file is not read as a core.
#[derive(Debug, Error)]
pub enum CoreError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It does not begin like one.
    #[error("it is not an ELF core")]
    Format,
    /// It is compressed.
    #[error(
        "it is compressed: {0} decompresses it; coredumpctl dump -o FILE PID writes a core of systemd-coredump"
    )]
    Compressed(&'static str),
    /// It is of a 32-bit program.
    #[error("it is the core of a 32-bit program, whose heap lowtide does not read")]
    Bits,
    /// It is of another processor: its number in ELF, and the processor of this program.
    #[error(
        "it is the core of a program for another processor (ELF machine {0}): a lowtide for that one reads it, and \
         this one is for {1}"
    )]
    Machine(u16, &'static str),
    /// It ends before its headers.
    #[error("it was cut off within its headers, so nothing of it can be read")]
    NoHeaders,
    /// Its headers contradict each other.
    #[error("its headers are damaged")]
    Damaged,
}

/// A process as a core has it.
#[derive(Debug)]
pub struct CoreFile {
    file: File,
    /// Time at which it was written last, in seconds since 1970.
    unix_s: f64,
    headers: Headers,
    notes: Notes,
    maps: Vec<Mapping>,
    content: Vec<Range<u64>>,
    page: u64,
}

/// Returns whether a file that begins with some bytes is a core, compressed or not.
pub fn is_core(first: &[u8]) -> bool {
    elf::is_core(first)
}

impl CoreFile {
    /// Reads a core, except for the memory of the process.
    ///
    /// # Errors
    /// Fails if it is not the core of a 64-bit program for this processor, if it cannot be read, or
    /// if its headers are damaged.
    pub fn from_file(file: File) -> Result<Self, CoreError> {
        let meta = file.metadata()?;
        let written = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let headers = Headers::read(&file, meta.len())?;
        let notes = Notes::read(&file, &headers.notes);
        let page = page_bytes(&notes);
        let headers = headers.in_pages(page)?;
        let content = content::pages(&file, &headers.segments, page)?;
        let unix_s = written.map_or(0.0, |since| since.as_secs_f64());
        let mut core = Self { file, unix_s, headers, notes, maps: Vec::new(), content, page };
        core.maps =
            maps::of_core(&core.headers.segments, &core.notes, |at, bytes| core.read(at, bytes));
        Ok(core)
    }

    /// Returns the PID of the process.
    pub fn pid(&self) -> u32 {
        self.notes.pid
    }

    /// Returns its command line, of which the kernel keeps 80 bytes.
    pub fn command(&self) -> &[String] {
        &self.notes.command
    }

    /// Returns the time at which the core was written, in seconds since 1970.
    pub fn unix_s(&self) -> f64 {
        self.unix_s
    }

    /// Returns the signal that ended the process; `None` if none did.
    pub fn signal(&self) -> Option<u32> {
        Some(self.notes.signal).filter(|signal| *signal != 0)
    }

    /// Returns its threads.
    pub fn threads(&self) -> &[CoreThread] {
        &self.notes.threads
    }

    /// Returns the stack pointers of its threads, in order.
    pub fn stack_pointers(&self) -> Vec<u64> {
        let mut pointers: Vec<u64> = self.threads().iter().map(CoreThread::stack_pointer).collect();
        pointers.sort_unstable();
        pointers
    }

    /// Returns the size of its pages, in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.page
    }

    /// Returns its mappings, in order of address, as far as the core shows them.
    pub fn maps(&self) -> &[Mapping] {
        &self.maps
    }

    /// Returns the bytes that were to be written to the core, and are not in it: it was cut off.
    pub fn missing_bytes(&self) -> u64 {
        self.headers.missing_bytes
    }

    /// Returns the memory that the kernel did not write to the core: never used, or left out on
    /// request (`MADV_DONTDUMP`, `coredump_filter`), in bytes. It is the writable memory of no
    /// file, and all shared memory.
    pub fn left_out_bytes(&self) -> u64 {
        self.not_dumped(|m| !m.has_file() && m.permissions.starts_with("rw"))
            + self.left_out_shared_bytes()
    }

    /// Returns the part of it in shared memory. Mapped files of a disk do not count.
    pub fn left_out_shared_bytes(&self) -> u64 {
        self.not_dumped(|m| m.has_file() && m.permissions.ends_with('s'))
    }

    fn not_dumped(&self, is_wanted: impl Fn(&Mapping) -> bool) -> u64 {
        let memory = self.maps.iter().filter(|m| is_wanted(m));
        memory.map(|m| m.size().saturating_sub(self.dumped(m.start..m.end))).sum()
    }

    /// Returns whether the core has private memory: its `coredump_filter` may leave it out.
    pub fn has_private_memory(&self) -> bool {
        let stack = self.maps.iter().find(|m| m.name == "[stack]");
        stack.is_some_and(|stack| self.dumped(stack.start..stack.end) > 0)
    }

    /// Returns the pages with content between two addresses, in order.
    pub fn content(&self, range: Range<u64>) -> Vec<Range<u64>> {
        overlaps(range, &self.content).collect()
    }

    /// Returns the same pages by their kind. Of a file, those that the process may have changed
    /// count, as all of them are in the core.
    pub(crate) fn pages(&self, range: Range<u64>) -> Vec<Pages> {
        let mut found = Vec::new();
        let first = self.maps.partition_point(|m| m.end <= range.start);
        for mapping in self.maps[first..].iter().take_while(|m| m.start < range.end) {
            let within = mapping.start.max(range.start)..mapping.end.min(range.end);
            let is_private = mapping.permissions.ends_with('p');
            let size = within.end - within.start;
            // The kernel writes the first page of a file for its build ID, whether it was resident
            // or not.
            if mapping.has_file() && is_private && self.dumped(within.clone()) < size {
                continue;
            }
            let kind = if is_private { PageKind::Anonymous } else { PageKind::File };
            found.extend(self.content(within).into_iter().map(|range| Pages { range, kind }));
        }
        found
    }

    /// Returns the number of bytes of a range that were written to the core, whether it was cut off
    /// or not.
    fn dumped(&self, range: Range<u64>) -> u64 {
        let segments = &self.headers.segments;
        let first = segments.partition_point(|segment| segment.end <= range.start);
        let within = segments[first..].iter().take_while(|segment| segment.start < range.end);
        let dumped =
            within.map(|s| s.start.max(range.start)..(s.start + s.dumped_bytes).min(range.end));
        dumped.map(|part| part.end.saturating_sub(part.start)).sum()
    }

    /// Reads memory. Returns the number of bytes read: up to the first one that the core lacks.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let segments = &self.headers.segments;
        let mut done = 0;
        while done < buffer.len() {
            let Some(at) = address.checked_add(done as u64) else { break };
            let place = segments.partition_point(|segment| segment.end <= at);
            let Some(segment) = segments.get(place).filter(|segment| segment.start <= at) else {
                break;
            };
            let before = at - segment.start;
            let left = segment.file_bytes.saturating_sub(before);
            let count = (buffer.len() - done).min(usize::try_from(left).unwrap_or(usize::MAX));
            let part = &mut buffer[done..done + count];
            if count == 0 || self.file.read_exact_at(part, segment.offset + before).is_err() {
                break;
            }
            done += count;
        }
        done
    }

    /// Returns all bytes with content.
    pub fn content_bytes(&self) -> u64 {
        bytes(&self.content)
    }

    /// Returns the auxiliary vector, as in `/proc/PID/auxv`.
    pub(crate) fn auxiliary_vector(&self) -> &[u8] {
        &self.notes.vector
    }

    /// Returns the first mapping of the program.
    pub(crate) fn program<'m>(&self, maps: &'m [Mapping]) -> Option<&'m Mapping> {
        maps::program(maps, &self.notes)
    }
}

/// Returns the size of the pages of the process, in bytes.
fn page_bytes(notes: &Notes) -> u64 {
    const PAGE_BYTES: u64 = 6;
    const MAX_PAGE_BYTES: u64 = 64 << 10;
    let known = notes.value(PAGE_BYTES).filter(|page| page.is_power_of_two());
    known.filter(|page| (MIN_PAGE_BYTES..=MAX_PAGE_BYTES).contains(page)).unwrap_or(MIN_PAGE_BYTES)
}

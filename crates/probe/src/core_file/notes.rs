//! The notes of a core: the process, its threads, its mapped files and its auxiliary vector.

use std::collections::HashMap;
use std::fs::File;
use std::iter;
use std::os::unix::fs::FileExt;

use lowtide_heap::memory::{ADDRESS_END, MIN_PAGE_BYTES};

use super::elf::{half_word, word};

/// Maximum size of all notes that are read, in bytes: those of a thread take 4 KiB.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of threads and of mapped files that are kept.
const MAX_THREADS: usize = 64 << 10;
const MAX_FILES: usize = 1 << 20;

/// Types of notes (linux/elf.h).
const PRSTATUS: u32 = 1;
const PRPSINFO: u32 = 3;
const AUXV: u32 = 6;
const FILE: u32 = 0x4649_4c45;

/// Offset of the registers in `struct elf_prstatus`, their number, and the place of the stack
/// pointer among them.
const REGISTERS_AT: usize = 112;
#[cfg(not(target_arch = "aarch64"))]
const REGISTERS: (usize, usize) = (27, 19);
#[cfg(target_arch = "aarch64")]
const REGISTERS: (usize, usize) = (34, 31);

/// A note.
pub(super) struct Note<'b> {
    /// Its name, with padding.
    pub(super) name: &'b [u8],
    pub(super) kind: u32,
    /// Its content, as far as it was not cut off.
    pub(super) content: &'b [u8],
    pub(super) is_whole: bool,
}

/// Divides bytes into notes, up to one that is damaged.
pub(super) fn notes(mut bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    const HEAD: usize = 12;
    iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let [name, size, kind] = [0, 4, 8].map(|at| half_word(head, at));
        let [padded_name, padded] = [name, size].map(|size| (size as usize).next_multiple_of(4));
        let (name, value) = rest.split_at_checked(padded_name)?;
        let size = size as usize;
        bytes = value.get(padded..).unwrap_or_default();
        let (content, is_whole) = (&value[..value.len().min(size)], value.len() >= size);
        Some(Note { name, kind, content, is_whole })
    })
}

/// A thread of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreThread {
    /// All of its registers.
    pub registers: Vec<u64>,
}

impl CoreThread {
    /// Returns its stack pointer.
    pub(super) fn stack_pointer(&self) -> u64 {
        self.registers.get(REGISTERS.1).copied().unwrap_or(0)
    }
}

/// A part of a file that the process had mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePart {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset in the file, in bytes.
    pub(super) offset: u64,
    /// Place of its path among [`Notes::paths`].
    pub(super) path: usize,
}

/// What the notes contain.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) pid: u32,
    /// The command line, of which the kernel keeps 80 bytes.
    pub(super) command: Vec<String>,
    pub(super) threads: Vec<CoreThread>,
    /// The signal that ended the process; 0 if none did.
    pub(super) signal: u32,
    /// The auxiliary vector, as in `/proc/PID/auxv`.
    pub(super) vector: Vec<u8>,
    /// The mapped files, in order of address.
    pub(super) files: Vec<FilePart>,
    pub(super) paths: Vec<String>,
}

impl Notes {
    /// Reads the notes at some places of a core. What was cut off or is damaged is left out.
    pub(super) fn read(file: &File, places: &[(u64, u64)]) -> Self {
        let (mut notes, mut left) = (Self::default(), MAX_BYTES);
        let length = file.metadata().map_or(0, |found| found.len());
        for (offset, size) in places {
            let size = (*size).min(left).min(length.saturating_sub(*offset));
            left -= size;
            let mut bytes = vec![0; size as usize];
            if file.read_exact_at(&mut bytes, *offset).is_ok() {
                notes.add_all(&bytes);
            }
        }
        notes
    }

    fn add_all(&mut self, bytes: &[u8]) {
        for note in notes(bytes) {
            self.add(note.kind, note.content);
        }
    }

    fn add(&mut self, kind: u32, content: &[u8]) {
        match kind {
            PRSTATUS if self.threads.len() < MAX_THREADS => {
                if self.threads.is_empty() {
                    self.signal = half_word(content, 0);
                }
                let at = |place: usize| word(content, REGISTERS_AT + place * 8);
                self.threads.push(CoreThread { registers: (0..REGISTERS.0).map(at).collect() });
            }
            PRPSINFO => {
                self.pid = half_word(content, 24);
                self.command = command(content);
            }
            AUXV => self.vector = content.to_vec(),
            FILE => self.add_files(content),
            _ => {}
        }
    }

    /// Adds the mapped files: their number and the unit of their offsets, their addresses and
    /// offsets, and then their paths.
    fn add_files(&mut self, content: &[u8]) {
        const HEAD: usize = 16;
        const ENTRY: usize = 24;
        let (count, unit) = (word(content, 0) as usize, word(content, 8));
        let size = count.checked_mul(ENTRY).and_then(|size| size.checked_add(HEAD));
        let Some(mut paths) = size.and_then(|size| content.get(size..)) else { return };
        if count > MAX_FILES {
            return;
        }
        let mut known: HashMap<String, usize> = HashMap::new();
        for entry in content[HEAD..].chunks_exact(ENTRY).take(count) {
            let Some(end) = paths.iter().position(|byte| *byte == 0) else { break };
            let path = String::from_utf8_lossy(&paths[..end]).into_owned();
            paths = &paths[end + 1..];
            let place = *known.entry(path).or_insert_with_key(|path| {
                self.paths.push(path.clone());
                self.paths.len() - 1
            });
            let [start, end, pages] = [0, 8, 16].map(|at| word(entry, at));
            let offset = pages.saturating_mul(unit);
            if is_possible(start, end, offset) {
                self.files.push(FilePart { start, end, offset, path: place });
            }
        }
        self.files.sort_unstable_by_key(|part| part.start);
    }

    /// Returns a value of the auxiliary vector.
    pub(super) fn value(&self, key: u64) -> Option<u64> {
        let mut pairs = self.vector.chunks_exact(16);
        pairs.find(|pair| word(pair, 0) == key).map(|pair| word(pair, 8))
    }
}

/// Returns whether the kernel can map a part of a file there: whole pages, with offsets that are
/// no larger than a file can be.
fn is_possible(start: u64, end: u64, offset: u64) -> bool {
    let is_whole = |at: u64| at.is_multiple_of(MIN_PAGE_BYTES);
    let file_end = end.checked_sub(start).and_then(|bytes| bytes.checked_add(offset));
    start < end
        && end <= ADDRESS_END
        && [start, end, offset].into_iter().all(is_whole)
        && file_end.is_some_and(|end| i64::try_from(end).is_ok())
}

/// Returns the command line of `struct elf_prpsinfo`, or the name of the program in brackets.
fn command(content: &[u8]) -> Vec<String> {
    let text = |from: usize, to: usize| {
        let bytes = content.get(from..to.min(content.len())).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let words: Vec<String> = text(56, 136).split_whitespace().map(str::to_owned).collect();
    if words.is_empty() { vec![format!("[{}]", text(40, 56))] } else { words }
}

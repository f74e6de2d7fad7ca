//! The files of a core on this machine: only those that the process had mapped, by their build ID.
//!
//! A core can come from anyone, and name any path. A file is opened as
//! [`mapped`](crate::mapped) opens those of processes: only a regular file, on a local file system,
//! without symbolic links.

use std::io;

use object::Object;

use super::CoreFile;
use super::elf::{half_word, word};
use super::notes::{Note, notes};
use crate::mapped::{self, MappedFile};
use crate::mounts::is_of_kind_for_programs;
use crate::proc::maps::Mapping;
use crate::program::Source;

/// Maximum number of program headers, and maximum size of a note, in bytes.
const MAX_HEADERS: u16 = 256;
const MAX_NOTE: u64 = 4096;

impl CoreFile {
    /// Opens the file of a mapping, if this machine has it.
    ///
    /// # Errors
    /// Fails if the core does not contain its build ID, if there is no local file with this path,
    /// or if that has another build ID.
    pub(crate) fn open_mapped(&self, mapping: &Mapping) -> io::Result<MappedFile> {
        let wanted = self.build_id(mapping).ok_or_else(|| {
            io::Error::other(
                "the core does not contain its build ID, by which a file is recognised",
            )
        })?;
        let place = mapped::located_in_root(std::process::id(), &mapping.name)?;
        // A live process has mapped its files, so they can be opened without effect. Files of the
        // kernel, such as those in /proc, act when they are opened or read.
        if !is_of_kind_for_programs(&place) {
            return Err(io::Error::other("it is not on a disk of this machine"));
        }
        let file = MappedFile::from(mapped::reopen(place)?);
        if build_id_of(&file).as_ref() != Some(&wanted) {
            return Err(io::Error::other("the file on this machine has another build ID"));
        }
        Ok(file)
    }

    /// Returns the build ID of a mapped file, from its notes in memory.
    fn build_id(&self, mapping: &Mapping) -> Option<Vec<u8>> {
        const HEADER: usize = 56;
        const NOTE: u32 = 4;
        let start = self.maps.iter().find(|m| m.file == mapping.file && m.offset == 0)?.start;
        let mut head = [0; 64];
        if self.read(start, &mut head) < head.len() || !head.starts_with(super::elf::ELF) {
            return None;
        }
        let count = (half_word(&head, 56) as u16).min(MAX_HEADERS);
        let mut headers = vec![0; usize::from(count) * HEADER];
        let length = self.read(start.checked_add(word(&head, 32))?, &mut headers);
        let mut notes = headers[..length].chunks_exact(HEADER).filter(|h| half_word(h, 0) == NOTE);
        notes.find_map(|header| {
            // The first segment of a file begins with the file.
            let at = start.checked_add(word(header, 8))?;
            let mut note = vec![0; word(header, 32).min(MAX_NOTE) as usize];
            let length = self.read(at, &mut note);
            build_id_in(&note[..length])
        })
    }
}

fn build_id_in(bytes: &[u8]) -> Option<Vec<u8>> {
    const BUILD_ID: u32 = 3;
    let is_build_id = |note: &Note<'_>| note.kind == BUILD_ID && note.name == b"GNU\0";
    let found = notes(bytes).find(|note| is_build_id(note) && !note.content.is_empty())?;
    found.is_whole.then(|| found.content.to_vec())
}

fn build_id_of(file: &MappedFile) -> Option<Vec<u8>> {
    let source = Source::new(file);
    let parsed = object::File::parse(&source).ok()?;
    Some(parsed.build_id().ok()??.to_vec())
}

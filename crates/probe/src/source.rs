//! Where a process is read: from the kernel while it lives, or from its core.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::core_file::CoreFile;
use crate::mapped::{MappedFile, open_mapped};
use crate::proc::environ;
use crate::proc::is_gone;
use crate::proc::maps::{FileId, Mapping};

/// A process, or the core of one.
#[derive(Debug, Clone, Copy)]
pub enum ProcessSource<'c> {
    /// The process with this PID.
    Process(u32),
    /// A core.
    Core(&'c CoreFile),
}

impl From<u32> for ProcessSource<'_> {
    fn from(pid: u32) -> Self {
        Self::Process(pid)
    }
}

impl<'c> From<&'c CoreFile> for ProcessSource<'c> {
    fn from(core: &'c CoreFile) -> Self {
        Self::Core(core)
    }
}

impl<'c> ProcessSource<'c> {
    /// Opens a file that the process has, or had, mapped.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or if it is not the one that is mapped.
    pub fn open(self, mapping: &Mapping) -> io::Result<MappedFile> {
        match self {
            Self::Process(pid) => open_mapped(pid, mapping),
            Self::Core(core) => core.open_mapped(mapping),
        }
    }

    /// Returns a mapping of its program; `None` if there is none yet.
    ///
    /// # Errors
    /// Fails if the process has ended, or may not be inspected.
    pub fn program(self, maps: &[Mapping]) -> io::Result<Option<&Mapping>> {
        match self {
            Self::Process(pid) => {
                let file = FileId::of(&format!("/proc/{pid}/exe"))?;
                let found = maps.iter().find(|m| m.file == file);
                Ok(found.or_else(|| find_by_path(maps, pid)))
            }
            Self::Core(core) => match core.program(maps) {
                Some(program) => Ok(Some(program)),
                None => Err(io::Error::other("the core does not show which file is its program")),
            },
        }
    }

    /// Reads the auxiliary vector that the kernel passed to the program at its start.
    ///
    /// # Errors
    /// Fails if it may not be read.
    pub(crate) fn auxiliary_vector(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Process(pid) => fs::read(format!("/proc/{pid}/auxv")),
            Self::Core(core) => Ok(core.auxiliary_vector().to_vec()),
        }
    }

    /// Opens the memory, to read a few words of it, resident or not.
    ///
    /// # Errors
    /// Fails if it may not be read.
    pub(crate) fn words(self) -> io::Result<SourceWords<'c>> {
        match self {
            Self::Process(pid) => Ok(SourceWords::Process(File::open(format!("/proc/{pid}/mem"))?)),
            Self::Core(core) => Ok(SourceWords::Core(core)),
        }
    }

    /// Reads the environment that the program was started with, as far as it is known.
    pub(crate) fn environment(self) -> Vec<u8> {
        match self {
            Self::Process(pid) => environ::read(pid, environ::MAX_BYTES).unwrap_or_default(),
            Self::Core(_) => Vec::new(),
        }
    }

    /// Returns whether the process has ended, so that it can no longer be read.
    pub(crate) fn has_ended(self) -> bool {
        match self {
            Self::Process(pid) => {
                fs::read_link(format!("/proc/{pid}/exe")).is_err_and(|error| is_gone(&error))
            }
            Self::Core(_) => false,
        }
    }
}

/// The memory of a process, of which a few words are read.
#[derive(Debug)]
pub(crate) enum SourceWords<'c> {
    Process(File),
    Core(&'c CoreFile),
}

impl SourceWords<'_> {
    /// Fills a buffer with the bytes at an address.
    ///
    /// # Errors
    /// Fails if not all of them can be read.
    pub(crate) fn read_exact_at(&self, bytes: &mut [u8], address: u64) -> io::Result<()> {
        match self {
            Self::Process(memory) => memory.read_exact_at(bytes, address),
            Self::Core(core) if core.read(address, bytes) == bytes.len() => Ok(()),
            Self::Core(_) => Err(io::Error::other("the core lacks memory of the loader")),
        }
    }
}

/// Finds the mapping by its path: on some file systems (overlayfs, btrfs), a mapping has another
/// device than the file.
fn find_by_path(maps: &[Mapping], pid: u32) -> Option<&Mapping> {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    maps.iter().find(|m| Path::new(&m.name) == exe)
}

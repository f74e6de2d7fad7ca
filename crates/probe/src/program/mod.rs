//! The object that serves a process's `malloc`.
//!
//! The dynamic loader resolves a symbol to the first object in its list that defines it: the
//! executable, then preloaded objects, then the libraries. This module reads the same list from the
//! process (`_r_debug`, as debuggers do), and searches the files in the same order. It uses only
//! the symbols that the loader itself needs, so that stripped programs work the same way.

pub(crate) mod elf;
mod link_map;
mod markers;
mod object;
mod source;
pub(crate) mod texts;
mod vm_structs;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;

use thiserror::Error;

use crate::mapped::MappedFile;
use crate::proc::is_gone;
use crate::proc::maps::{self, FileId, Mapping};
use crate::source::ProcessSource;

pub use elf::{BuiltIn, ObjectError, ObjectFacts, symbol};
pub use markers::{EmbeddedCode, Sanitizer};
pub use object::{MappedObject, Section, Segment, Symbol, SymbolTable};
pub use source::Source;
pub use texts::{c_library_version, version_of};
pub(crate) use vm_structs::flags;

/// The facts about a process's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFacts {
    /// The object whose `malloc` the process calls.
    pub provider: Provider,
    /// An allocator that is compiled into the executable: it may serve the program's own
    /// allocations, whichever object provides `malloc`.
    pub built_in: Option<BuiltIn>,
    /// Whether it runs with other privileges than its user's (`AT_SECURE`): the loader then ignores
    /// `LD_PRELOAD`.
    pub is_secure: bool,
}

/// The object whose `malloc` a process calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// A library.
    Library(LoadedFile),
    /// The executable exports a `malloc` of its own.
    Executable(LoadedFile),
    /// The executable is linked statically: its `malloc` cannot be interposed.
    Static(LoadedFile),
}

/// A file that a process has mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedFile {
    /// Its path, as the process sees it.
    pub path: PathBuf,
    /// Identity of the file.
    pub id: FileId,
}

impl LoadedFile {
    /// Returns whether this is the C library itself.
    pub fn is_c_library(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libc.so") || name.starts_with("libc-2.") || name.starts_with("ld-musl")
    }
}

/// The reason why the facts could not be determined.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// The loader has not finished: try again in a moment.
    #[error("it is still being loaded")]
    NotYet,
    /// The process has ended.
    #[error("it ended before it could be inspected")]
    Gone,
    /// It may not be inspected.
    #[error(
        "lowtide is not permitted to inspect it: run lowtide as the user of the process, or with CAP_SYS_PTRACE"
    )]
    NotPermitted,
    /// Something else.
    #[error("{0}")]
    Unknown(String),
}

impl From<io::Error> for ProgramError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted,
            // The memory of a process that has just ended is empty.
            io::ErrorKind::UnexpectedEof => Self::Gone,
            _ if is_gone(&error) => Self::Gone,
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// Examines processes, and caches the files that it has read.
#[derive(Debug, Clone, Default)]
pub struct ProgramReader {
    objects: HashMap<FileId, ObjectFacts>,
    /// The allocators that are compiled into the programs.
    built_in: HashMap<FileId, Option<BuiltIn>>,
}

impl ProgramReader {
    /// Finds the object that serves the `malloc` of a process.
    ///
    /// # Errors
    /// Fails if that cannot be determined, or not yet.
    pub fn read(&mut self, pid: u32) -> Result<ProgramFacts, ProgramError> {
        let text = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
        let maps = maps::read_all(text)?;
        Ok(self.read_with_mappings(pid.into(), &maps)?.0)
    }

    /// Does the same with mappings that were read before. Also returns a mapping of each loaded
    /// object, in the order in which symbols are looked up. The first is the program.
    pub(crate) fn read_with_mappings<'m>(
        &mut self,
        source: ProcessSource<'_>,
        maps: &'m [Mapping],
    ) -> Result<(ProgramFacts, Vec<&'m Mapping>), ProgramError> {
        if maps.is_empty() {
            return Err(ProgramError::Gone);
        }
        let exe = source.program(maps)?.ok_or(ProgramError::NotYet)?;
        let program = self.object(source, exe)?.clone();
        if !program.is_64_bit {
            let reason = "it is a 32-bit program, into which a 64-bit library cannot be loaded";
            return Err(ProgramError::Unknown(reason.to_owned()));
        }
        let vector = link_map::AuxiliaryVector::read(source)?;
        let is_secure = vector.is_secure;
        let Some(debug) = self.loader(source, vector.base, maps, exe, &program)? else {
            let provider = Provider::Static(loaded(exe));
            let built_in = self.built_in(source, exe)?;
            return Ok((ProgramFacts { provider, built_in, is_secure }, vec![exe]));
        };
        let objects = link_map::objects(source, debug)?;
        let mapped: Vec<Option<&Mapping>> = objects
            .iter()
            .map(|o| maps.iter().find(|m| m.contains(o.dynamic_section) && m.has_file()))
            .collect();
        let provider = self.first_that_defines_malloc(source, &mapped)?;
        let built_in = match mapped.first() {
            Some(Some(program)) => self.built_in(source, program)?,
            _ => None,
        };
        let program_facts = ProgramFacts { provider, built_in, is_secure };
        Ok((program_facts, mapped.into_iter().flatten().collect()))
    }

    /// Returns the location of the loader's list; `None` if there is no loader.
    fn loader(
        &mut self,
        source: ProcessSource<'_>,
        base: u64,
        maps: &[Mapping],
        exe: &Mapping,
        program: &ObjectFacts,
    ) -> Result<Option<link_map::DebugAt>, ProgramError> {
        let (base, facts) = if base != 0 {
            let Some(mapping) = maps.iter().find(|m| m.contains(base)) else {
                return Err(ProgramError::NotYet);
            };
            (base, self.object(source, mapping)?.clone())
        } else {
            // The program is static, or it is the loader itself, started by the user.
            (exe.start.wrapping_sub(exe.offset), program.clone())
        };
        match (facts.debug_symbol, facts.debug_pointer) {
            (Some(at), _) => Ok(Some(link_map::DebugAt::Address(base.wrapping_add(at)))),
            (None, Some(at)) => Ok(Some(link_map::DebugAt::Pointer(base.wrapping_add(at)))),
            (None, None) if base == exe.start.wrapping_sub(exe.offset) => Ok(None),
            (None, None) => {
                let reason = "its loader does not report the loaded libraries";
                Err(ProgramError::Unknown(reason.to_owned()))
            }
        }
    }

    /// Returns the first object of the list that defines `malloc`.
    fn first_that_defines_malloc(
        &mut self,
        source: ProcessSource<'_>,
        objects: &[Option<&Mapping>],
    ) -> Result<Provider, ProgramError> {
        for (place, mapping) in objects.iter().enumerate() {
            let Some(mapping) = mapping else { continue };
            if self.object(source, mapping)?.defines_malloc {
                return Ok(match place {
                    0 => Provider::Executable(loaded(mapping)),
                    _ => Provider::Library(loaded(mapping)),
                });
            }
        }
        // Libraries are mapped one by one before any of them is bound.
        Err(ProgramError::NotYet)
    }

    /// Returns the facts from the file of a mapping.
    pub(crate) fn object(
        &mut self,
        source: ProcessSource<'_>,
        mapping: &Mapping,
    ) -> Result<&ObjectFacts, ProgramError> {
        match self.objects.entry(mapping.file) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                Ok(place.insert(read_mapped(source, mapping, ObjectFacts::read)?))
            }
        }
    }

    fn built_in(
        &mut self,
        source: ProcessSource<'_>,
        exe: &Mapping,
    ) -> Result<Option<BuiltIn>, ProgramError> {
        match self.built_in.entry(exe.file) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => {
                Ok(place.insert(read_mapped(source, exe, BuiltIn::find)?).clone())
            }
        }
    }
}

fn loaded(mapping: &Mapping) -> LoadedFile {
    LoadedFile { path: PathBuf::from(&mapping.name), id: mapping.file }
}

/// Reads something from a mapped file.
fn read_mapped<T>(
    source: ProcessSource<'_>,
    mapping: &Mapping,
    read: impl FnOnce(&MappedFile) -> Result<T, ObjectError>,
) -> Result<T, ProgramError> {
    let found = source.open(mapping).map_err(ObjectError::from).and_then(|file| read(&file));
    found.map_err(|error| {
        // A missing file may have been deleted, or the process may have ended.
        if source.has_ended() {
            ProgramError::Gone
        } else {
            ProgramError::Unknown(format!("{}: {error}", mapping.name))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_malloc_comes_from_the_c_library() {
        let found = ProgramReader::default().read(std::process::id()).unwrap();
        match found.provider {
            Provider::Library(file) => assert!(file.is_c_library(), "{file:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(found.built_in, None);
    }

    #[test]
    fn a_process_that_has_ended_is_reported_as_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(matches!(ProgramReader::default().read(child.id()), Err(ProgramError::Gone)));
    }
}

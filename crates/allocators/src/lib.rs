//! The allocators bundled with lowtide, so that `cargo install lowtide` is enough to compare them.
//!
//! They are built from the sources in their `-sys` crates, packed into the binary, and unpacked to
//! the user's cache directory when they are first used. A memfd is not used instead of a file: a
//! program that closes file descriptors before it starts another would lose it, and its children
//! would run with a different allocator than their parent.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lowtide_record::files::{self, UnsafePath};
use thiserror::Error;

/// A library that is packed into the binary.
struct Packed {
    name: &'static str,
    version: &'static str,
    size: usize,
    hash: &'static str,
    bytes: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));

/// A bundled allocator.
#[derive(Clone, Copy)]
pub struct Bundled {
    packed: &'static Packed,
}

impl std::fmt::Debug for Bundled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

/// The reason why a library could not be unpacked.
#[derive(Debug, Error)]
pub enum UnpackError {
    /// A file could not be written or read.
    #[error("{} could not be written ({error}): set XDG_CACHE_HOME to a directory of your own", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
    /// Other users could replace the library.
    #[error("other users may change {}: remove it, or set XDG_CACHE_HOME to a directory of your own", .0.display())]
    NotOurs(PathBuf),
    /// The bytes in the binary are damaged.
    #[error("the {0} that the binary carries is damaged: install lowtide again")]
    Damaged(&'static str),
}

/// Returns all bundled allocators.
pub fn bundled() -> impl Iterator<Item = Bundled> {
    TABLE.iter().map(|packed| Bundled { packed })
}

impl Bundled {
    /// Returns the name: `jemalloc`, `mimalloc`, `mimalloc2`.
    pub fn name(self) -> &'static str {
        self.packed.name
    }

    /// Returns the version.
    pub fn version(self) -> &'static str {
        self.packed.version
    }

    /// Writes the library to the user's cache directory, unless it is already there, and returns
    /// its path.
    ///
    /// # Errors
    /// Fails if it cannot be written, or if the directory is not the user's own.
    pub fn unpack(self) -> Result<PathBuf, UnpackError> {
        self.unpack_into(&library_directory()?)
    }

    /// Writes the library to a directory, unless it is already there, and returns its path.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn unpack_into(self, directory: &Path) -> Result<PathBuf, UnpackError> {
        let Packed { name, version, size, hash, bytes } = *self.packed;
        let library = miniz_oxide::inflate::decompress_to_vec_with_limit(bytes, size)
            .map_err(|_| UnpackError::Damaged(name))?;
        write_library(directory, &format!("lib{name}-{version}-{hash}.so"), &library)
    }
}

/// Writes a library to a directory, unless the same bytes are already there, and returns its path.
/// The path never refers to a partly written file.
///
/// # Errors
/// Fails if it cannot be written, or if other users may change the directory.
pub fn write_library(directory: &Path, name: &str, library: &[u8]) -> Result<PathBuf, UnpackError> {
    let path = directory.join(name);
    files::check_private_path(&path).map_err(|error| error_at(&path, error))?;
    // A file that was truncated by a full disk must not be preloaded, so the bytes are compared.
    if fs::read(&path).is_ok_and(|present| present == library) {
        return Ok(path);
    }
    files::replace_library(&path, library).map_err(|error| error_at(&path, error))?;
    Ok(path)
}

/// Returns lowtide's directory for data that can be recreated: `$XDG_CACHE_HOME/lowtide`, else
/// `~/.cache/lowtide`, else a directory of the user's own in the system's temporary directory.
/// Creates it if necessary.
///
/// # Errors
/// Fails if it cannot be created, or if other users may write to it.
pub fn cache_directory() -> Result<PathBuf, UnpackError> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let user = rustix::process::geteuid().as_raw();
    let wanted = absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("lowtide"));
    if let Some(directory) = wanted.filter(|d| is_loadable(d) && make(d, 0o700).is_ok())
        && is_writable(&directory)
    {
        return Ok(directory);
    }
    let fallback = env::temp_dir().join(format!("lowtide-{user}"));
    make(&fallback, 0o700).map_err(|error| error_at(&fallback, error))?;
    Ok(fallback)
}

/// Returns the directory to which lowtide unpacks the libraries that programs load. For root, it is
/// `/var/cache/lowtide`, unless `XDG_CACHE_HOME` is set: a program may drop root's privileges and
/// then execute another, which must be able to load the libraries. Otherwise, or if that directory
/// cannot be used, it is [`cache_directory`].
///
/// # Errors
/// Fails like [`cache_directory`].
pub fn library_directory() -> Result<PathBuf, UnpackError> {
    let directory = PathBuf::from("/var/cache/lowtide");
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || env::var_os("XDG_CACHE_HOME").is_some() {
        return cache_directory();
    }
    // The mode is set regardless of the umask.
    let for_all = fs::Permissions::from_mode(0o755);
    if make(&directory, 0o755).is_ok()
        && is_writable(&directory)
        && fs::set_permissions(&directory, for_all).is_ok()
    {
        Ok(directory)
    } else {
        cache_directory()
    }
}

/// Returns whether the loader accepts a path in this directory: its list of preloads is separated
/// by blanks and colons.
fn is_loadable(directory: &Path) -> bool {
    !directory.to_string_lossy().contains([' ', ':'])
}

/// Returns whether the user can write to a directory. One that root created in the user's home is
/// not writable.
fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Creates a directory, and checks that other users cannot replace the libraries in it: programs
/// load them. That of the caller's home is not the caller's own under `sudo -E`.
fn make(directory: &Path, mode: u32) -> io::Result<()> {
    files::create_directories(directory, mode)?;
    files::check_private_path(&directory.join("library"))
}

fn error_at(path: &Path, error: io::Error) -> UnpackError {
    match UnsafePath::of(&error) {
        Some(_) => UnpackError::NotOurs(path.to_owned()),
        None => UnpackError::Io { path: path.to_owned(), error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_versions_match_the_documentation() {
        let carried: Vec<String> = bundled().map(|b| format!("{b:?}")).collect();
        assert_eq!(carried, ["jemalloc 5.3.1", "mimalloc 3.3.2", "mimalloc2 2.3.2"]);
    }

    #[test]
    fn all_addresses_are_resolved_when_a_library_is_loaded() {
        use object::elf::{DF_1_NOW, DF_BIND_NOW, DT_FLAGS, DT_FLAGS_1, FileHeader64};
        use object::read::elf::{Dyn, FileHeader, SectionHeader};
        let directory = tempfile::tempdir().unwrap();
        for library in bundled() {
            let bytes = fs::read(library.unpack_into(directory.path()).unwrap()).unwrap();
            let data = bytes.as_slice();
            let header = FileHeader64::<object::Endianness>::parse(data).unwrap();
            let endian = header.endian().unwrap();
            let sections = header.section_headers(endian, data).unwrap();
            let entries = |section: &object::elf::SectionHeader64<_>| section.dynamic(endian, data);
            let dynamic = sections.iter().find_map(|section| entries(section).unwrap()).unwrap().0;
            let flag = |tag, bit: u64| {
                dynamic.iter().any(|entry| entry.tag(endian) == tag && entry.val(endian) & bit != 0)
            };
            let is_bound = flag(DT_FLAGS, DF_BIND_NOW.0) || flag(DT_FLAGS_1, DF_1_NOW.0);
            assert!(is_bound, "{library:?}");
        }
    }

    #[test]
    fn a_truncated_cache_file_is_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let any = bundled().next().unwrap();
        let path = any.unpack_into(directory.path()).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(any.unpack_into(directory.path()).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn an_unpack_error_contains_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a file");
        fs::write(&file, "").unwrap();
        let error = bundled().next().unwrap().unpack_into(&file).unwrap_err();
        assert!(error.to_string().contains("a file/libjemalloc-5.3.1"), "{error}");
    }
}

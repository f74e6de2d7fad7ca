//! A directory of files that one program writes for a long time.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, statat, unlinkat};

use super::directory::Parent;
use super::{create_in, create_or_open};

/// Mode of a directory that is created.
const MODE: u32 = 0o750;

/// An open directory in which only root and the caller may create and replace files. Its path is
/// not followed again.
#[derive(Debug)]
pub struct PrivateDirectory(Parent);

impl PrivateDirectory {
    /// Opens a directory, and creates it, and those above it, if it does not exist.
    ///
    /// # Errors
    /// Fails if it cannot be opened or created, or if other users may change it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = Parent::open_directory(path, MODE)?;
        directory.check_private()?;
        Ok(Self(directory))
    }

    /// Creates a file that does not exist yet.
    ///
    /// # Errors
    /// Fails if it exists, or cannot be created.
    pub fn create_new(&self, name: &OsStr) -> io::Result<File> {
        create_in(&self.0.of(name)?, OFlags::WRONLY)
    }

    /// Creates a file, or opens the one that exists.
    ///
    /// # Errors
    /// Fails if it cannot be opened, or is unsafe to write to.
    pub(crate) fn create_or_open(&self, name: &OsStr) -> io::Result<File> {
        create_or_open(&self.0.of(name)?, OFlags::WRONLY)
    }

    /// Renames a file. A file of the new name is replaced.
    ///
    /// # Errors
    /// Fails if it cannot be renamed.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Returns the time of the last write to a file, in seconds since 1970.
    ///
    /// # Errors
    /// Fails if the file does not exist.
    pub fn modified(&self, name: &OsStr) -> io::Result<f64> {
        let stat = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_mtime as f64)
    }

    /// Returns the names of its files. Names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = Dir::new(openat(&self.0, ".", flags, Mode::empty())?)?;
        let name = |entry: io::Result<rustix::fs::DirEntry>| {
            Some(entry.ok()?.file_name().to_str().ok()?.to_owned())
        };
        let entries = directory.map(|entry| entry.map_err(io::Error::from));
        Ok(entries.filter_map(name).filter(|name| name != "." && name != "..").collect())
    }
}

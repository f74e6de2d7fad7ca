//! The log of acts: one JSON line per act.
//!
//! The file is opened again when its path leads to another file, as after a rotation. A line that
//! cannot be written, as on a full disk, is dropped; supervision continues.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lowtide_model::act::Act;
use lowtide_record::files::{self, UnsafePath};
use thiserror::Error;

/// Errors of a log that cannot be opened.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error("{} could not be opened ({error}): name another file", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// Other users may change the file or its directory.
    #[error(
        "{} is not safe to write to ({reason}): name a file of your own, in a directory that only you may write to",
        path.display()
    )]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: UnsafePath,
    },
}

impl LogError {
    pub(crate) fn new(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match UnsafePath::of(&error) {
            Some(reason) => Self::Unsafe { path, reason },
            None => Self::Io { path, error },
        }
    }
}

/// The log of acts.
#[derive(Debug)]
pub struct ActLog {
    path: PathBuf,
    file: Option<File>,
    /// Whether the last line could not be written.
    has_failed: bool,
}

impl ActLog {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, is not a regular file, or may be replaced by other
    /// users.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let file = files::append_private(path).map_err(|error| LogError::new(path, error))?;
        Ok(Self { path: path.to_owned(), file: Some(file), has_failed: false })
    }

    /// Writes a line. Returns the reason if it could not be written and the line before could.
    pub fn write(&mut self, act: &Act) -> Option<String> {
        let written = self.try_write(act);
        let was_failing = std::mem::replace(&mut self.has_failed, written.is_err());
        let error = written.err().filter(|_| !was_failing)?;
        Some(format!(
            "{} could not be written ({error}): lines are lost until it is writable",
            self.path.display()
        ))
    }

    fn try_write(&mut self, act: &Act) -> io::Result<()> {
        let mut line = serde_json::to_vec(act)?;
        line.push(b'\n');
        if !self.file.as_ref().is_some_and(|file| leads_to(&self.path, file)) {
            self.file = Some(files::append_private(&self.path)?);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let before = file.metadata()?.len();
        // Half a line on a full disk would make the next one unreadable too.
        file.write_all(&line).inspect_err(|_| drop(file.set_len(before)))
    }
}

/// Returns whether a path leads to an open file.
fn leads_to(path: &Path, file: &File) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    fs::symlink_metadata(path).ok().zip(file.metadata().ok()).is_some_and(|(a, b)| same(a, b))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::acts::fixtures::act;

    fn lines(path: &Path) -> usize {
        fs::read_to_string(path).unwrap().lines().count()
    }

    #[test]
    fn a_rotated_log_continues_in_a_new_file() {
        let home = tempfile::tempdir().unwrap();
        let [path, old] = ["acts.jsonl", "acts.jsonl.1"].map(|name| home.path().join(name));
        let mut log = ActLog::open(&path).unwrap();
        assert_eq!(log.write(&act()), None);
        fs::rename(&path, &old).unwrap();
        assert_eq!(log.write(&act()), None);
        assert_eq!(log.write(&act()), None);
        assert_eq!((lines(&old), lines(&path)), (1, 2));
    }

    #[test]
    fn a_full_disk_is_reported_once_and_leaves_no_partial_lines() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("acts.jsonl");
        let mut log = ActLog::open(&path).unwrap();
        // A directory stands for a disk that accepts no data.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(log.write(&act()).unwrap().contains("lines are lost"));
        assert_eq!(log.write(&act()), None);
        fs::remove_dir(&path).unwrap();
        assert_eq!(log.write(&act()), None);
        assert_eq!(lines(&path), 1);
    }

    #[test]
    fn a_log_directory_that_other_users_may_write_to_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = ActLog::open(&home.path().join("acts.jsonl")).unwrap_err();
        assert!(error.to_string().contains("other users may write"), "{error}");
    }
}

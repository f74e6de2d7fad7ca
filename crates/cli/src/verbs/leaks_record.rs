//! The files that `lowtide leaks` writes: the record, which has a line for each snapshot and one
//! for the result, and the profile.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use lowtide_model::leaks::LeakReport;
use lowtide_record::files::create_new;

use crate::failure::exit::Failure;

/// A file that is being written.
pub(crate) struct LeaksRecord {
    path: PathBuf,
    file: File,
}

impl LeaksRecord {
    /// Creates the file, which must not exist.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = create_new(path).map_err(|error| Failure::record_not_created(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds the report after a snapshot.
    pub(crate) fn write(&mut self, report: &LeakReport) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(report).map_err(Failure::failed)?;
        line.push(b'\n');
        self.write_bytes(&line)
    }

    /// Adds bytes.
    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::io(&self.path, &error))
    }

    /// Completes the file, and returns its path.
    pub(crate) fn finish(self) -> Result<PathBuf, Failure> {
        self.file.sync_all().map_err(|error| Failure::io(&self.path, &error))?;
        Ok(self.path)
    }
}

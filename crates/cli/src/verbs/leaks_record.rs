//! The record of `lowtide leaks`: a line for each snapshot, and one for the result.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use lowtide_model::leaks::LeakReport;

use crate::exit::Failure;

/// A record that is being written.
pub(crate) struct LeaksRecord {
    path: PathBuf,
    file: File,
}

impl LeaksRecord {
    /// Creates the file, which must not exist.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let opened = OpenOptions::new().write(true).create_new(true).open(path);
        let file = opened.map_err(|error| {
            let failure = Failure::failed(format!("{} was not created: {error}", path.display()));
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    failure.next("choose another file for --output")
                }
                _ => failure,
            }
        })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds what is known after a snapshot.
    pub(crate) fn write(&mut self, report: &LeakReport) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(report).map_err(Failure::failed)?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|error| {
            Failure::failed(format!("{} was not written: {error}", self.path.display()))
        })
    }

    /// Completes the file, and returns its path.
    pub(crate) fn finish(self) -> Result<PathBuf, Failure> {
        let synced = self.file.sync_all();
        synced.map_err(|error| {
            Failure::failed(format!("{} was not written: {error}", self.path.display()))
        })?;
        Ok(self.path)
    }
}

//! The directory of a black box: a ring for each process that is recorded, and those of processes
//! that have ended.
//!
//! ```text
//! lock                                                 held by the lowtide that records
//! live-4711-8899.box                                   a process that runs: PID, start time
//! 2026-11-27T03-00-12.345Z-4711-oom_kill.box           a process that has ended
//! ```
//!
//! All files together have a maximum size. If a new one does not fit, finished ones are removed:
//! first those of processes that ended by themselves or whose end was not seen, then those that a
//! signal ended, then those with an OOM kill of another process, then OOM kills, and of each the
//! oldest first.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::lines::Cause;
use super::ring::RingWriter;
use crate::files::PrivateDirectory;

/// Maximum size of a directory, in bytes.
pub const MAX_BYTES: u64 = 64 << 20;
/// Suffix of all rings.
const SUFFIX: &str = ".box";
const LIVE: &str = "live-";
const LOCK: &str = "lock";

/// The directory of a black box, which one lowtide at a time writes.
#[derive(Debug)]
pub struct Store {
    directory: PrivateDirectory,
    ring_bytes: usize,
    max_bytes: u64,
    _lock: File,
}

/// A ring of a process that runs.
#[derive(Debug)]
pub struct LiveRing {
    /// The writer.
    pub writer: RingWriter,
    name: String,
}

impl Store {
    /// Opens a directory, and creates it if it does not exist. Rings that a killed lowtide has left
    /// are kept as those of processes whose end was not seen.
    ///
    /// # Errors
    /// Fails if it cannot be written to, if other users may change it, or, with
    /// [`io::ErrorKind::WouldBlock`], if another lowtide writes it.
    pub fn open(path: &Path, ring_bytes: usize, max_bytes: u64) -> io::Result<Self> {
        let directory = PrivateDirectory::open(path)?;
        let lock = directory.create_or_open(OsStr::new(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let store = Self { directory, ring_bytes, max_bytes, _lock: lock };
        for name in store.names()?.into_iter().filter(|name| name.starts_with(LIVE)) {
            let pid = name.split('-').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or(0);
            store.rename(&name, &finished_name(store.age_of(&name), pid, Cause::Peak))?;
        }
        Ok(store)
    }

    /// Returns the number of processes that can be recorded at a time. A part of the space is for
    /// those that have ended.
    pub fn max_live(&self) -> usize {
        let all = self.max_bytes / self.ring_bytes.max(1) as u64;
        usize::try_from(all / 2).unwrap_or(usize::MAX).max(1)
    }

    /// Starts a ring.
    ///
    /// # Errors
    /// Fails if the disk has no space left for it.
    pub fn start(&self, pid: u32, start_ticks: u64) -> io::Result<LiveRing> {
        self.make_room()?;
        let name = format!("{LIVE}{pid}-{start_ticks}{SUFFIX}");
        let file = self.directory.create_new(OsStr::new(&name))?;
        match RingWriter::new(file, self.ring_bytes) {
            Ok(writer) => Ok(LiveRing { writer, name }),
            Err(error) => {
                let _ = self.directory.remove(OsStr::new(&name));
                Err(error)
            }
        }
    }

    /// Keeps a ring under the name of the end of its process. Returns this name.
    ///
    /// # Errors
    /// Fails if it cannot be renamed. It stays under the name of a process that runs.
    pub fn finish(
        &self,
        ring: LiveRing,
        unix_s: f64,
        pid: u32,
        cause: Cause,
    ) -> io::Result<String> {
        let mut name = finished_name(unix_s, pid, cause);
        if self.names()?.contains(&name) {
            name = finished_name(unix_s + 0.001, pid, cause);
        }
        self.rename(&ring.name, &name)?;
        ring.writer.sync();
        Ok(name)
    }

    /// Drops a ring whose process is not recorded any more.
    pub fn discard(&self, ring: &LiveRing) {
        let _ = self.directory.remove(OsStr::new(&ring.name));
    }

    /// Removes finished rings until another one fits.
    fn make_room(&self) -> io::Result<()> {
        let mut names = self.names()?;
        let all = |names: &Vec<String>| names.len() as u64 * self.ring_bytes as u64;
        names.sort_by_key(|name| (worth(name), name.clone()));
        let mut finished: Vec<String> =
            names.iter().filter(|name| !name.starts_with(LIVE)).rev().cloned().collect();
        while all(&names) + self.ring_bytes as u64 > self.max_bytes {
            let Some(least) = finished.pop() else { break };
            self.directory.remove(OsStr::new(&least))?;
            names.retain(|name| *name != least);
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.rename(OsStr::new(from), OsStr::new(to))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(rings(self.directory.names()?))
    }

    /// Returns the time of the last write to a file, in seconds since 1970.
    fn age_of(&self, name: &str) -> f64 {
        self.directory.modified(OsStr::new(name)).unwrap_or(0.0)
    }
}

/// Returns the order in which finished rings are removed.
fn worth(name: &str) -> Cause {
    let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
    let end = stem.rsplit('-').next();
    let all = [Cause::OomKill, Cause::GroupOomKill, Cause::Signal, Cause::Exit];
    all.into_iter().find(|cause| end == Some(cause.name())).unwrap_or_default()
}

fn rings(names: Vec<String>) -> Vec<String> {
    names.into_iter().filter(|name| name.ends_with(SUFFIX)).collect()
}

/// Returns whether a file has the name of a ring.
pub fn is_ring(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(SUFFIX.as_bytes()))
}

/// Returns whether a directory looks like that of a black box, also without a ring: it has the file
/// that its writer locks.
pub fn is_store(directory: &Path) -> bool {
    directory.join(LOCK).is_file()
}

/// Returns the name of the ring of a process that has ended.
fn finished_name(unix_s: f64, pid: u32, cause: Cause) -> String {
    let time = crate::black_box::time(unix_s).replace(':', "-");
    format!("{time}-{pid}-{}{SUFFIX}", cause.name())
}

/// Returns the rings in a directory, the most important first: OOM kills, then ends by a signal,
/// then the others; of each, the newest first.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn rings_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.flatten();
    let mut names =
        rings(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect());
    // Names of rings that are live begin with a letter, after the digits of dates.
    names.sort_by_key(|name| std::cmp::Reverse((worth(name), name.clone())));
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

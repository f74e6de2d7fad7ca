//! The files of a tmpfs that a process sees.
//!
//! The process chooses what is mounted, and can change it meanwhile. So each path is resolved
//! without symbolic links and without entering another mount, and only below mounts of which none
//! is on a network or of a FUSE server ([`located_in_root`]).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};

use crate::mapped::located_in_root;
use crate::mounts::located_mount;
use crate::proc::mountinfo::Mount;

/// Maximum number of entries of a search.
pub(super) const MAX_ENTRIES: usize = 50_000;

/// The limits of a search in all tmpfs.
#[derive(Debug)]
pub(super) struct SearchLimits {
    pub(super) entries: usize,
    pub(super) end: Instant,
}

impl SearchLimits {
    pub(super) fn is_reached(&self) -> bool {
        self.entries >= MAX_ENTRIES || Instant::now() > self.end
    }
}

/// Calls a function with the path of each regular file of a tmpfs that has memory.
///
/// # Errors
/// Fails if the mount cannot be reached, or is covered by another one.
pub(super) fn walk(
    pid: u32,
    mount: &Mount,
    limits: &mut SearchLimits,
    mut each: impl FnMut(PathBuf, &Stat),
) -> io::Result<()> {
    let top = located_in_root(pid, &mount.point)?;
    if located_mount(&top) != Some(mount.id) {
        return Err(io::Error::other("another mount covers it"));
    }
    let mut next = vec![PathBuf::from(".")];
    while let Some(directory) = next.pop() {
        let Ok(listed) = within(&top, &directory, OFlags::RDONLY | OFlags::DIRECTORY) else {
            continue;
        };
        for entry in Dir::new(listed)?.flatten() {
            if limits.is_reached() {
                return Ok(());
            }
            limits.entries += 1;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = directory.join(OsStr::from_bytes(name));
            match entry.file_type() {
                FileType::Directory => next.push(path),
                FileType::RegularFile => {
                    let file = within(&top, &path, OFlags::PATH | OFlags::NOFOLLOW);
                    let found = file.and_then(|file| Ok(fstat(&file)?));
                    if let Some(found) = found.ok().filter(|found| found.st_blocks > 0) {
                        let below = path.strip_prefix(".").unwrap_or(&path);
                        each(Path::new(&mount.point).join(below), &found);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn within(top: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    Ok(openat2(top, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens a file of a tmpfs by its path in the mount namespace of a process, without any access to
/// its content.
///
/// # Errors
/// Fails if the file was removed.
pub(super) fn find_file(pid: u32, path: &Path) -> io::Result<OwnedFd> {
    located_in_root(pid, &path.to_string_lossy())
}

/// Returns the file in memory that a link in `/proc` leads to; `None` if it is empty or no file, or
/// if the link leads elsewhere by now: `is_there` tells by the number of the mount.
pub(crate) fn file_in_memory(link: &Path, is_there: impl Fn(u64) -> bool) -> Option<Stat> {
    let place = open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    located_mount(&place).filter(|mount| is_there(*mount))?;
    let stat = fstat(&place).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    (is_file && stat.st_blocks > 0).then_some(stat)
}

/// Returns the memory of a file in memory, in bytes.
pub(crate) fn bytes_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

//! The mapped files of a process, opened so that the process cannot mislead the opener.
//!
//! A process chooses the names of its mappings, and what exists at these paths later: another file, a FIFO
//! that blocks `open` forever, a device, a symbolic link into the opener's root. This module opens regular
//! files only, and only the file that is mapped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open, openat};

use crate::proc::maps::{FileId, Mapping};

/// Magic numbers of file systems whose files have another device number in `maps` than for `stat`
/// (linux/magic.h): btrfs gives each subvolume its own, overlayfs shows the lower file.
const OTHER_DEVICE: [i64; 2] = [0x9123_683e, 0x794c_7630];

/// Opens the file that is mapped, even if its path now leads to another one.
///
/// # Errors
/// Fails if it cannot be found, is not a regular file, or was replaced by another one.
pub fn open_mapped(pid: u32, mapping: &Mapping) -> io::Result<File> {
    let place = by_range(pid, mapping).or_else(|_| by_path(pid, mapping))?;
    reopen(&place)
}

/// Opens it by its addresses, which requires `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`.
fn by_range(pid: u32, mapping: &Mapping) -> io::Result<OwnedFd> {
    let range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    Ok(open(range, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens it by its path in the root of the process: in `maps`, no part of a path is a symbolic link.
fn by_path(pid: u32, mapping: &Mapping) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut place = open(format!("/proc/{pid}/root"), flags | OFlags::DIRECTORY, Mode::empty())?;
    // Part by part, as `openat2` would with RESOLVE_NO_SYMLINKS: its flags are in memory, where the seccomp
    // filter of the exporter cannot check that a file is opened for reading.
    for part in mapping.name.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            return Err(io::Error::other("its path contains `..`"));
        }
        place = openat(&place, part, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&place)?.st_mode) == FileType::Symlink {
            return Err(io::Error::other("its path contains a symbolic link"));
        }
    }
    if is_same(&place, mapping.file)? { Ok(place) } else { Err(another()) }
}

fn is_same(place: &OwnedFd, wanted: FileId) -> io::Result<bool> {
    let stat = fstat(place)?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let has_device = device == wanted.device || OTHER_DEVICE.contains(&fstatfs(place)?.f_type);
    Ok(stat.st_ino == wanted.inode && has_device)
}

/// Opens a located file for reading. Opening anything but a regular file can block or have side effects.
fn reopen(place: &OwnedFd) -> io::Result<File> {
    if FileType::from_raw_mode(fstat(place.as_fd())?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(format!("/proc/self/fd/{}", place.as_raw_fd()), flags, Mode::empty())?.into())
}

fn another() -> io::Error {
    io::Error::other("its path leads to another file now")
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::proc::maps::Permissions;

    /// Returns a mapping with the name of a file at a path.
    fn mapping(path: &Path, file: FileId) -> Mapping {
        Mapping {
            start: 0x1000,
            end: 0x2000,
            permissions: Permissions::parse("r-xp").unwrap(),
            offset: 0,
            file,
            name: path.to_string_lossy().into_owned(),
        }
    }

    fn id_of(path: &Path) -> FileId {
        FileId::from_metadata(&path.metadata().unwrap())
    }

    fn opened(path: &Path, file: FileId) -> Result<File, String> {
        open_mapped(std::process::id(), &mapping(path, file)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_at_a_path_is_opened_only_if_it_is_the_mapped_file() {
        let directory = tempfile::tempdir().unwrap();
        let [library, other] = ["library", "other"].map(|name| directory.path().join(name));
        std::fs::write(&library, "library").unwrap();
        std::fs::write(&other, "other").unwrap();
        let id = id_of(&library);
        assert_eq!(FileId::from_metadata(&opened(&library, id).unwrap().metadata().unwrap()), id);
        assert_eq!(opened(&other, id).unwrap_err(), "its path leads to another file now");
    }

    #[test]
    fn a_fifo_in_place_of_a_library_is_an_error_and_does_not_block() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("x.so (deleted)");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        // Not even if the FIFO has reused its inode number.
        assert_eq!(opened(&fifo, id_of(&fifo)).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn a_device_is_not_opened() {
        let null = Path::new("/dev/null");
        assert_eq!(opened(null, id_of(null)).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("library");
        std::fs::write(&library, "library").unwrap();
        let link = directory.path().join("link");
        symlink(&library, &link).unwrap();
        symlink(directory.path(), directory.path().join("here")).unwrap();
        for path in [link, directory.path().join("here/library")] {
            let error = opened(&path, id_of(&library)).unwrap_err();
            assert!(error.contains("symbolic link"), "{error}");
        }
    }
}

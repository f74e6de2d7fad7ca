//! Files that lowtide creates, perhaps as root and in a directory that other users may write to.
//!
//! No symbolic link of another user is followed, only regular files of root and of the caller are
//! written to, and other users cannot read them (0640). `directory` and `existing` have these
//! rules; every file that lowtide writes goes through this module.

mod directory;
mod existing;
mod private;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, chmod, fchmod, fstat, linkat, openat,
    renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use thiserror::Error;

pub use directory::create_directories;
pub use private::PrivateDirectory;

use directory::Parent;

const MODE: u32 = 0o640;
const MODE_FOR_ALL: u32 = 0o644;
const MODE_OF_LIBRARY: u32 = 0o755;
const MODE_OF_SOCKET: u32 = 0o666;

/// The reason why lowtide does not write to a path, as the end of a sentence about the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnsafePath {
    /// A device, a FIFO, a socket, a directory or a symbolic link.
    #[error("the path is not a regular file")]
    NotRegular,
    /// The file has several names, and one of them may be a file of another user.
    #[error("the file has further hard links")]
    HardLinks,
    /// The file belongs to a user other than root and the caller.
    #[error("the file belongs to another user")]
    ForeignFile,
    /// Other users may write to the file.
    #[error("other users may write to the file: run chmod go-w on it")]
    SharedFile,
    /// A file of /proc, /sys or the like, where writing is an order to the kernel.
    #[error("the file is an interface of the kernel")]
    KernelFile,
    /// The path leads through a symbolic link of a user other than root and the caller.
    #[error("the path leads through a symbolic link of another user")]
    ForeignLink,
    /// The directory belongs to a user other than root and the caller.
    #[error("another user owns its directory")]
    ForeignDirectory,
    /// Other users may write to the directory.
    #[error("other users may write to its directory")]
    SharedDirectory,
}

impl UnsafePath {
    /// Returns the reason in an error of this module, if it has one.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<UnsafePath> for io::Error {
    fn from(reason: UnsafePath) -> Self {
        Self::other(reason)
    }
}

/// Creates a file, or truncates an existing one.
///
/// # Errors
/// Fails if it cannot be created, or if it exists and is unsafe to write to.
pub fn create(path: &Path) -> io::Result<File> {
    let file = create_or_open(&Parent::open(path)?, OFlags::WRONLY)?;
    file.set_len(0)?;
    Ok(file)
}

/// Creates a file that does not exist yet.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the path exists; otherwise fails if the file cannot be
/// created.
pub fn create_new(path: &Path) -> io::Result<File> {
    create_in(&Parent::open(path)?, OFlags::WRONLY)
}

/// Opens a file to append to it, and creates it if it does not exist. Only root and the caller may
/// replace files in its directory, so that a program that runs for weeks always finds its own file.
///
/// # Errors
/// Fails if it cannot be opened, or if the file or its directory is unsafe to write to.
pub fn append_private(path: &Path) -> io::Result<File> {
    let parent = Parent::open(path)?;
    parent.check_private()?;
    create_or_open(&parent, OFlags::WRONLY | OFlags::APPEND)
}

/// Opens an existing file to read it and to append to it.
///
/// # Errors
/// Fails if it cannot be opened, or is unsafe to write to.
pub(crate) fn open_existing(path: &Path) -> io::Result<File> {
    open_checked(&Parent::open(path)?, OFlags::RDWR | OFlags::APPEND)
}

/// Opens a file to read it.
///
/// # Errors
/// Fails if it cannot be opened, or is not a regular file.
pub fn open_read(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(UnsafePath::NotRegular.into()) }
}

/// Checks that only root and the caller may replace files in the directory of a path.
///
/// # Errors
/// Returns an [`UnsafePath`] if others may, and fails if the directory cannot be examined.
pub fn check_private(path: &Path) -> io::Result<()> {
    Parent::open(path)?.check_private()
}

/// Checks that only the owner of the directory of a file can replace it, for a file that a process
/// of that user writes.
///
/// # Errors
/// Fails if others can, or if the directory cannot be examined.
pub fn check_unshared(path: &Path) -> io::Result<()> {
    Parent::open(path)?.check_unshared()
}

/// Checks in addition that no other user can put another directory in the place of this one or of
/// one above it. Programs may then open the file by its path, as the loader does with a library.
///
/// # Errors
/// Like [`check_private`].
pub fn check_private_path(path: &Path) -> io::Result<()> {
    Parent::open(path)?.check_private_path()
}

/// Writes a whole file. The old contents stay until the new contents are complete. Without
/// `replace`, the file must not exist yet.
///
/// # Errors
/// Fails if it cannot be written; [`io::ErrorKind::AlreadyExists`] if the path exists and may not
/// be replaced.
pub fn write_whole(path: &Path, bytes: &[u8], replace: bool) -> io::Result<()> {
    write(&Parent::open(path)?, bytes, replace, MODE, File::sync_all)
}

/// Writes a whole file in a directory in which only root and the caller may replace files, and
/// replaces an existing file. All users may read it, as far as the umask permits: programs that
/// read metrics have users of their own. It does not wait for the disk.
///
/// # Errors
/// If it cannot be written, if other users may change the directory, or if something other than a
/// regular file exists there.
pub fn replace_for_all(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = Parent::open(path)?;
    parent.check_private()?;
    write(&parent, bytes, true, MODE_FOR_ALL, |_| Ok(()))
}

/// Writes a whole library, and replaces an existing file. All users may load it, whatever the
/// umask.
///
/// # Errors
/// If it cannot be written, or if [`check_private_path`] fails.
pub fn replace_library(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = Parent::open(path)?;
    parent.check_private_path()?;
    let for_all = |file: &File| Ok(fchmod(file, Mode::from_raw_mode(MODE_OF_LIBRARY))?);
    write(&parent, bytes, true, MODE_OF_LIBRARY, for_all)
}

/// Permits all users to connect to a socket of the caller, as far as they have access to its
/// directory.
///
/// # Errors
/// Fails if the path is not a socket of the caller, as after another user has replaced it.
pub fn share_socket(path: &Path) -> io::Result<()> {
    let parent = Parent::open(path)?;
    let socket = open_in(&parent, parent.name(), OFlags::PATH, 0)?;
    let stat = fstat(&socket)?;
    let caller = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || stat.st_uid != caller {
        return Err(Errno::NOTSOCK.into());
    }
    // fchmod needs more than such a file. This link leads to the socket itself, wherever its path
    // leads now.
    let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
    Ok(chmod(link, Mode::from_raw_mode(MODE_OF_SOCKET))?)
}

/// Creates a file, or opens the one that exists.
fn create_or_open(parent: &Parent, flags: OFlags) -> io::Result<File> {
    match create_in(parent, flags) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_checked(parent, flags),
        created => created,
    }
}

fn create_in(parent: &Parent, flags: OFlags) -> io::Result<File> {
    open_in(parent, parent.name(), flags | OFlags::CREATE | OFlags::EXCL, MODE)
}

/// Opens an existing file, and checks that it is safe to write to.
fn open_checked(parent: &Parent, flags: OFlags) -> io::Result<File> {
    let file = open_in(parent, parent.name(), flags, 0)?;
    existing::check(&file)?;
    Ok(file)
}

/// Opens a file in a directory. This follows no symbolic link and never blocks.
fn open_in(parent: &Parent, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<File> {
    let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(parent, name, flags | safe, Mode::from_raw_mode(mode)) {
        // A symbolic link, or a FIFO that no process reads, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => Err(UnsafePath::NotRegular.into()),
        opened => Ok(opened?.into()),
    }
}

fn write(
    parent: &Parent,
    bytes: &[u8],
    replace: bool,
    mode: u32,
    finish: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    match statat(parent, parent.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) if !replace => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(found) if !existing::is_regular(&found) => return Err(UnsafePath::NotRegular.into()),
        _ => {}
    }
    let part = part_of(parent.name());
    let written = open_in(parent, &part, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| finish(&file)))
        .and_then(|()| put(parent, &part, replace));
    if written.is_err() {
        let _ = unlinkat(parent, &part, AtFlags::empty());
    }
    written
}

/// Renames the complete file to its final name.
fn put(parent: &Parent, part: &OsStr, replace: bool) -> io::Result<()> {
    let (at, name) = (parent.as_fd(), parent.name());
    if replace {
        return Ok(renameat(at, part, at, name)?);
    }
    match renameat_with(at, part, at, name, RenameFlags::NOREPLACE) {
        // The file system does not support this atomically.
        Err(Errno::INVAL | Errno::NOSYS) => {
            linkat(at, part, at, name, AtFlags::empty())?;
            Ok(unlinkat(at, part, AtFlags::empty())?)
        }
        done => Ok(done?),
    }
}

/// Returns the name of a file while it is being written. Several threads may write the same file.
fn part_of(name: &OsStr) -> OsString {
    static PARTS: AtomicU64 = AtomicU64::new(0);
    let number = PARTS.fetch_add(1, Ordering::Relaxed);
    let mut part = OsString::from(".");
    part.push(name);
    part.push(format!(".{}-{number}.part", std::process::id()));
    part
}

#[cfg(test)]
mod tests;

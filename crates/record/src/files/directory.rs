//! The directory of a path: opened so that other users cannot redirect lowtide, and examined for
//! who may change it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use super::UnsafePath;

/// Maximum number of symbolic links in a path, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Mode bits: the group or all users may write.
pub(super) const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The open directory that contains a file, and the name of the file in it.
#[derive(Debug)]
pub(super) struct Parent {
    directory: OwnedFd,
    name: OsString,
}

impl Parent {
    /// Opens the directory of a path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let directory = walk(path.parent().unwrap_or(Path::new("")), IfMissing::Fail)?;
        Ok(Self { directory, name })
    }

    /// Opens a directory itself, and creates it if it does not exist. Files in it are named by
    /// [`Parent::of`].
    pub(super) fn open_directory(path: &Path, mode: u32) -> io::Result<Self> {
        let directory = walk(path, IfMissing::Create(mode))?;
        Ok(Self { directory, name: OsString::new() })
    }

    /// Returns the same directory with the name of a file in it.
    pub(super) fn of(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, name: name.to_owned() })
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Checks that only root and the caller may create and replace files in the directory.
    ///
    /// The directories above it may belong to others, as /var/lib/prometheus of Debian does to the
    /// user `prometheus`. Their owner can put another directory in its place, and no more: this
    /// check is part of each opening, and [`walk`] follows no link of such a user.
    pub(super) fn check_private(&self) -> io::Result<()> {
        self.check_unshared()?;
        TrustedUsers::new()?.check_directory(&fstat(self)?)
    }

    /// Checks that only its owner may create and replace files in the directory.
    pub(super) fn check_unshared(&self) -> io::Result<()> {
        match fstat(self)?.st_mode & WRITABLE_BY_OTHERS {
            0 => Ok(()),
            _ => Err(UnsafePath::SharedDirectory.into()),
        }
    }

    /// Checks in addition that no other user can put another directory in its place, for a file
    /// that other programs open by its path.
    ///
    /// A directory above it may have a sticky bit, as /tmp has: other users cannot rename what is
    /// not theirs. It may also be writable by its group, as /var/log is for the group `syslog` of
    /// Ubuntu.
    pub(super) fn check_private_path(&self) -> io::Result<()> {
        self.check_private()?;
        let owners = TrustedUsers::new()?;
        let (mut directory, mut stat) = (self.directory.try_clone()?, fstat(self)?);
        loop {
            directory = openat(&directory, "..", FLAGS, Mode::empty())?;
            let above = fstat(&directory)?;
            if (above.st_dev, above.st_ino) == (stat.st_dev, stat.st_ino) {
                return Ok(());
            }
            owners.check_directory(&above)?;
            if above.st_mode & (WRITABLE_BY_ALL | STICKY) == WRITABLE_BY_ALL {
                return Err(UnsafePath::SharedDirectory.into());
            }
            stat = above;
        }
    }
}

impl AsFd for Parent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Creates a directory and those above it, as far as they do not exist, with a mode, which the
/// umask restricts. This follows no symbolic link of another user.
///
/// # Errors
/// Fails if one cannot be created or opened.
pub fn create_directories(path: &Path, mode: u32) -> io::Result<()> {
    walk(path, IfMissing::Create(mode)).map(drop)
}

/// The users whose files and links are trusted.
pub(super) struct TrustedUsers([u32; 3]);

impl TrustedUsers {
    pub(super) fn new() -> io::Result<Self> {
        let caller = rustix::process::geteuid().as_raw();
        // In a user namespace, the host's root has another number. / belongs to it.
        let of_root_directory = fstat(openat(CWD, "/", FLAGS, Mode::empty())?)?.st_uid;
        Ok(Self([0, caller, of_root_directory]))
    }

    pub(super) fn own(&self, stat: &Stat) -> bool {
        self.0.contains(&stat.st_uid)
    }

    fn check_directory(&self, stat: &Stat) -> io::Result<()> {
        if self.own(stat) { Ok(()) } else { Err(UnsafePath::ForeignDirectory.into()) }
    }
}

/// What happens to a directory that does not exist.
#[derive(Clone, Copy)]
enum IfMissing {
    Create(u32),
    Fail,
}

impl IfMissing {
    fn make(self, directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let Self::Create(mode) = self else { return Err(Errno::NOENT.into()) };
        match mkdirat(directory, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

const FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory, one component of its path after the other. A symbolic link is followed only
/// if it belongs to root or to the caller, as the kernel does in /tmp (`fs.protected_symlinks`).
/// `openat2` can only refuse all links, and needs Linux 5.6.
fn walk(path: &Path, missing: IfMissing) -> io::Result<OwnedFd> {
    let mut rest = parts(path);
    let mut directory = start(path)?;
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        match openat(&directory, &name, FLAGS, Mode::empty()) {
            Ok(next) => directory = next,
            Err(Errno::NOENT) => {
                missing.make(&directory, &name)?;
                rest.push_front(name);
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = target_of_link(&directory, &name)?;
                if target.is_absolute() {
                    directory = start(&target)?;
                }
                parts(&target).into_iter().rev().for_each(|part| rest.push_front(part));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(directory)
}

/// Opens the directory at which a path starts.
fn start(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, if path.is_absolute() { "/" } else { "." }, FLAGS, Mode::empty())?)
}

/// Returns the names in a path after its start.
fn parts(path: &Path) -> VecDeque<OsString> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(named).map(|part| part.as_os_str().to_owned()).collect()
}

/// Returns the target of a symbolic link of root or of the caller.
fn target_of_link(directory: &OwnedFd, name: &OsStr) -> io::Result<PathBuf> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(directory, name, flags, Mode::empty())?;
    let stat = fstat(&link)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Err(Errno::NOTDIR.into());
    }
    if !TrustedUsers::new()?.own(&stat) {
        return Err(UnsafePath::ForeignLink.into());
    }
    let target = readlinkat(&link, "", Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

//! The files of a tmpfs that a process sees.
//!
//! The process chooses what is mounted, and can change it meanwhile. So each path is resolved
//! without symbolic links and without entering another mount, and only below mounts of which none
//! is on a network or of a FUSE server.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};

use crate::mapped::is_remote_type;
use crate::proc::mountinfo::{self, Mount};
use crate::proc::{links, pids};

/// Maximum number of entries of a search.
pub(super) const MAX_ENTRIES: usize = 50_000;
/// Maximum length of a `mountinfo` that is searched, in bytes.
const MAX_MOUNTINFO: usize = 4 << 20;

/// Maximum number of mount namespaces that are searched for the mount of an open file, and the
/// maximum time for it.
const MAX_NAMESPACES: usize = 1000;
const MAX_NAMESPACES_TIME: Duration = Duration::from_millis(500);

/// Types of file systems whose files have no pages in the page cache, or pages that do not belong
/// to the file.
const WITHOUT_CACHE: [&str; 19] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// What a file system keeps its files in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// In shared memory: tmpfs, or the kernel's own.
    SharedMemory,
    /// On a disk of this machine, or in the page cache alone (ramfs).
    Local,
    /// Elsewhere: on a network, in a FUSE server, or nowhere.
    Other,
}

impl FileSystem {
    fn of_mount(mount: &Mount) -> Self {
        match mount.of_type.as_str() {
            "tmpfs" => Self::SharedMemory,
            of_type if is_remote_type(of_type) || WITHOUT_CACHE.contains(&of_type) => Self::Other,
            _ => Self::Local,
        }
    }
}

/// The mounts that a process sees.
#[derive(Debug, Default)]
pub(super) struct Mounts(BTreeMap<u64, Mount>);

impl Mounts {
    pub(super) fn read(pid: u32) -> Self {
        let text = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_MOUNTINFO)]);
        Self(mountinfo::mounts(&text).map(|mount| (mount.id, mount)).collect())
    }

    /// Returns the kind of file system of a mount; `None` if the process does not see it.
    pub(super) fn file_system(&self, id: u64) -> Option<FileSystem> {
        self.0.get(&id).map(FileSystem::of_mount)
    }

    /// Returns the kinds of file system of all mounts of the machine that some process sees, by
    /// the numbers of the mounts, which differ between namespaces.
    pub(super) fn of_machine() -> BTreeMap<u64, FileSystem> {
        let end = Instant::now() + MAX_NAMESPACES_TIME;
        let (mut namespaces, mut found) = (HashSet::new(), BTreeMap::new());
        for pid in pids().into_iter().flatten().flatten() {
            if namespaces.len() >= MAX_NAMESPACES || Instant::now() > end {
                break;
            }
            let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt"));
            if namespace.is_ok_and(|namespace| namespaces.insert(namespace)) {
                let mounts = Self::read(pid).0.into_values();
                found.extend(mounts.map(|mount| (mount.id, FileSystem::of_mount(&mount))));
            }
        }
        found
    }

    pub(super) fn tmpfs(&self) -> impl Iterator<Item = &Mount> {
        self.0.values().filter(|mount| mount.of_type == "tmpfs")
    }

    /// Returns whether the way to a mount leads over local file systems only.
    fn is_reached_locally(&self, mount: &Mount) -> bool {
        let mut at = mount;
        for _ in 0..self.0.len() {
            let Some(parent) = self.0.get(&at.parent).filter(|parent| parent.id != at.id) else {
                return true;
            };
            if is_remote_type(&parent.of_type) {
                return false;
            }
            at = parent;
        }
        false
    }
}

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
    mounts: &Mounts,
    mount: &Mount,
    limits: &mut SearchLimits,
    mut each: impl FnMut(PathBuf, &Stat),
) -> io::Result<()> {
    if !mounts.is_reached_locally(mount) {
        return Err(io::Error::other("it is below a network or FUSE file system"));
    }
    let top = in_root(pid, &mount.point, OFlags::DIRECTORY)?;
    if mount_id("self", top.as_raw_fd()) != Some(mount.id) {
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

/// Opens a path in the mount namespace of a process, without any access to its content.
fn in_root(pid: u32, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(links::link_to_root(pid), directory, Mode::empty())?;
    let path = path.trim_start_matches('/');
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(&root, path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
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
    in_root(pid, &path.to_string_lossy(), OFlags::NOFOLLOW)
}

/// Returns the file in memory that a link in `/proc` leads to; `None` if it is empty or no file.
pub(crate) fn file_in_memory(link: &Path) -> Option<Stat> {
    let stat = rustix::fs::stat(link).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    (is_file && stat.st_blocks > 0).then_some(stat)
}

/// Returns the memory of a file in memory, in bytes.
pub(crate) fn bytes_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// Returns the number of the mount of a descriptor, as in `mountinfo`.
pub(super) fn mount_id(pid: &str, descriptor: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

//! The mounts that a process sees, and the kinds of their file systems.
//!
//! Only lists of the kernel are read, which ask no file system for anything: one on a network or of
//! a FUSE server may never answer. A process can mount another file system at any moment. So a file
//! is located first (`O_PATH`), which asks nothing of its own file system; its mount is then
//! looked up in a list that is read later; and only then is the file system asked for something.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, Mode, OFlags, Stat, fstat, memfd_create, open};

use crate::proc::mountinfo::{self, Mount};
use crate::proc::pids;

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
pub(crate) struct Mounts(BTreeMap<u64, Mount>);

impl Mounts {
    /// Reads the mounts that a process sees. A list that cannot be read counts as empty.
    pub(crate) fn read(pid: u32) -> Self {
        let text = mountinfo::read(&pid.to_string()).unwrap_or_default();
        Self(mountinfo::mounts(&text).map(|mount| (mount.id, mount)).collect())
    }

    /// Returns the kind of file system of a mount; `None` if the process does not see it.
    pub(crate) fn file_system(&self, id: u64) -> Option<FileSystem> {
        self.0.get(&id).map(FileSystem::of_mount)
    }

    /// Returns the kinds of file system of all mounts of the machine that some process sees, by
    /// the numbers of the mounts, which differ between namespaces.
    pub(crate) fn of_machine() -> BTreeMap<u64, FileSystem> {
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

    pub(crate) fn tmpfs(&self) -> impl Iterator<Item = &Mount> {
        self.0.values().filter(|mount| mount.of_type == "tmpfs")
    }

    /// Returns whether a mount is listed, and neither on a network nor of a FUSE server.
    pub(crate) fn is_local(&self, id: u64) -> bool {
        self.0.get(&id).is_some_and(|mount| !is_remote_type(&mount.of_type))
    }
}

/// Returns the number of the mount of a descriptor, as in `mountinfo`.
pub(crate) fn mount_id(pid: &str, descriptor: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Returns whether a file system of this type may be slow, or may not answer: it is on a network,
/// or of a FUSE server; or another program mounts what is below it (autofs).
pub(crate) fn is_remote_type(name: &str) -> bool {
    const NAMES: [&str; 16] = [
        "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "fuse", "fuseblk", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs",
    ];
    NAMES.contains(&name) || name.starts_with("fuse.") || name.starts_with("fuseblk.")
}

/// Returns the state of the file that a link of a process leads to, such as `/proc/PID/fd/3`.
///
/// # Errors
/// Fails if its file system is remote, or is none that the process sees.
pub fn stat_local(pid: u32, link: &Path) -> io::Result<Stat> {
    let place = open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match located_mount(&place).is_some_and(|id| Mounts::read(pid).is_local(id)) {
        true => Ok(fstat(&place)?),
        false => Err(io::Error::other("it may be on a network or FUSE file system")),
    }
}

/// Returns the number of the mount of a file of lowtide. As long as it is open, no other mount has
/// this number.
pub(crate) fn located_mount(file: &OwnedFd) -> Option<u64> {
    mount_id("self", file.as_raw_fd())
}

/// Returns the number of the kernel's own mount of shared memory.
pub(crate) fn kernels_mount() -> Option<u64> {
    let file = memfd_create("lowtide", MemfdFlags::CLOEXEC).ok()?;
    located_mount(&file)
}

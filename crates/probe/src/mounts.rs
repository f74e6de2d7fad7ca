//! The mounts that a process sees, and the kinds of their file systems.
//!
//! Only lists of the kernel are read, which ask no file system for anything: one on a network or of
//! a FUSE server may never answer. A process can mount another file system at any moment. So a file
//! is located first (`O_PATH`), which asks nothing of a FUSE server; its mount is then
//! looked up in a list that is read later; and only then is the file system asked for something.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
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
            of_type if WITHOUT_CACHE.contains(&of_type) => Self::Other,
            _ => Self::Local,
        }
    }
}

/// The mounts that a process sees.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    by_id: BTreeMap<u64, Mount>,
    /// Whether the file system of a device (major and minor number) is remote.
    remote: BTreeMap<(u32, u32), bool>,
}

impl Mounts {
    /// Reads the mounts that a process sees. A list that cannot be read counts as empty.
    pub(crate) fn read(pid: u32) -> Self {
        Self::parse(&mountinfo::read(&pid.to_string()).unwrap_or_default())
    }

    pub(crate) fn parse(mountinfo: &str) -> Self {
        let mut mounts = Self::default();
        let all: Vec<Mount> = mountinfo::mounts(mountinfo).collect();
        let remote = remote_devices(&all);
        for mount in all {
            mounts.remote.insert(mount.device, remote.contains(&mount.device));
            mounts.by_id.insert(mount.id, mount);
        }
        mounts
    }

    /// Returns the kind of file system of a mount; `None` if the process does not see it.
    pub(crate) fn file_system(&self, id: u64) -> Option<FileSystem> {
        let mount = self.by_id.get(&id)?;
        let is_remote = self.is_remote_device(mount.device) == Some(true);
        Some(if is_remote { FileSystem::Other } else { FileSystem::of_mount(mount) })
    }

    /// Returns the mounts of the machine that some process sees. Their numbers differ between
    /// namespaces.
    pub(crate) fn of_machine() -> Self {
        let end = Instant::now() + MAX_NAMESPACES_TIME;
        let (mut namespaces, mut found) = (HashSet::new(), Self::default());
        for pid in pids().into_iter().flatten().flatten() {
            if namespaces.len() >= MAX_NAMESPACES || Instant::now() > end {
                break;
            }
            let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt"));
            if namespace.is_ok_and(|namespace| namespaces.insert(namespace)) {
                let Self { by_id, remote } = Self::read(pid);
                found.by_id.extend(by_id);
                for (device, is_remote) in remote {
                    *found.remote.entry(device).or_default() |= is_remote;
                }
            }
        }
        found
    }

    pub(crate) fn tmpfs(&self) -> impl Iterator<Item = &Mount> {
        self.by_id.values().filter(|mount| mount.of_type == "tmpfs")
    }

    /// Returns whether a mount is neither on a network nor of a FUSE server; `None` if it is not
    /// listed. `own` are the mounts that lowtide sees.
    fn is_local(&self, id: u64, own: &Self) -> Option<bool> {
        let device = self.by_id.get(&id)?.device;
        is_remote(device, [own, self]).map(|is_remote| !is_remote)
    }

    /// Returns whether the file system of a device is on a network or of a FUSE server; `None` if
    /// the process sees no mount of it.
    fn is_remote_device(&self, device: (u32, u32)) -> Option<bool> {
        self.remote.get(&device).copied()
    }
}

/// Returns whether the file system of a device is on a network or of a FUSE server, by the first of
/// two lists that has it: that of lowtide, and that of a process. The paths of the layers of an
/// overlay are those of the program that mounted it, and a container does not see all of them.
pub(crate) fn is_remote(device: (u32, u32), [own, of_process]: [&Mounts; 2]) -> Option<bool> {
    own.is_remote_device(device).or_else(|| of_process.is_remote_device(device))
}

/// Returns whether a mount that a file of a process is on, and that an open file holds, is neither
/// on a network nor of a FUSE server. A process in a root directory of its own (`chroot`) sees no
/// mount above it, so others are asked as well: no two mounts of a machine have the same number.
pub(crate) fn is_local_mount(pid: u32, id: u64) -> bool {
    let own = Mounts::read(std::process::id());
    let known = own.is_local(id, &own).or_else(|| Mounts::read(pid).is_local(id, &own));
    known.or_else(|| Mounts::of_machine().is_local(id, &own)).unwrap_or(false)
}

/// Returns whether a located file is on a file system that programs and libraries are on: a disk of
/// this machine, or shared memory.
pub(crate) fn is_of_kind_for_programs(place: &OwnedFd) -> bool {
    let kind = located_mount(place).and_then(|id| Mounts::read(std::process::id()).file_system(id));
    kind.is_some_and(|kind| kind != FileSystem::Other)
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

/// Returns the devices of a list of mounts that may be slow, or may not answer: those of such file
/// systems, and of overlays with a layer on one of them. A layer whose mount is in no list any
/// more, or is listed at another path, is not recognised.
fn remote_devices(all: &[Mount]) -> BTreeSet<(u32, u32)> {
    /// Maximum number of directories above a layer. The program that mounts an overlay chooses it.
    const MAX_DEPTH: usize = 128;
    let of_type = all.iter().filter(|mount| is_remote_type(&mount.of_type));
    let mut remote: BTreeSet<(u32, u32)> = of_type.map(|mount| mount.device).collect();
    // The last mount at a point covers those before it.
    let at_point: HashMap<&Path, (u32, u32)> =
        all.iter().map(|mount| (Path::new(&mount.point), mount.device)).collect();
    let overlays = all.iter().filter(|mount| mount.of_type == "overlay");
    let overlays: BTreeMap<(u32, u32), &Mount> = overlays.map(|m| (m.device, m)).collect();
    // An overlay can be a layer of another one, but not of a third (FILESYSTEM_MAX_STACK_DEPTH).
    for _ in 0..2 {
        let is_remote_layer = |path: &String| {
            let path = Path::new(path);
            let place = || path.ancestors().find_map(|above| at_point.get(above));
            path.components().nth(MAX_DEPTH).is_some()
                || place().is_some_and(|device| remote.contains(device))
        };
        let is_above = |mount: &&&Mount| mount.layers().iter().any(is_remote_layer);
        let above: Vec<(u32, u32)> = overlays.values().filter(is_above).map(|m| m.device).collect();
        remote.extend(above);
    }
    remote
}

/// Returns the state of the file that a link of a process leads to, such as `/proc/PID/fd/3`.
///
/// # Errors
/// Fails if its file system is remote, or is none that the process sees.
pub fn stat_local(pid: u32, link: &Path) -> io::Result<Stat> {
    let place = open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match located_mount(&place).is_some_and(|id| is_local_mount(pid, id)) {
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
    static NUMBER: OnceLock<Option<u64>> = OnceLock::new();
    let find = || located_mount(&memfd_create("lowtide", MemfdFlags::CLOEXEC).ok()?);
    *NUMBER.get_or_init(find)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_process_that_shows_none_is_found_in_other_lists() {
        let place = open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mount = located_mount(&place).unwrap();
        let nobody = u32::MAX;
        let own = Mounts::read(std::process::id());
        assert!(Mounts::read(nobody).is_local(mount, &own).is_none());
        let of_machine = Mounts::of_machine().is_local(mount, &own);
        assert_eq!(Some(is_local_mount(nobody, mount)), of_machine);
        assert!(!is_local_mount(nobody, u64::MAX));
    }

    #[test]
    fn a_file_is_read_only_if_its_mount_is_local() {
        let own = std::process::id();
        assert!(stat_local(own, Path::new("/proc/self/exe")).is_ok());
        let pipe = std::io::pipe().unwrap().0;
        // The kernel's own mount of pipes is in no list.
        let link = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        assert!(stat_local(own, Path::new(&link)).is_err());
    }

    #[test]
    fn an_overlay_is_remote_if_one_of_its_layers_is() {
        let text = "22 1 254:0 / / rw - ext4 /dev/root rw\n\
            23 22 0:50 / /mnt/a\\040b rw - fuse x rw\n\
            24 22 254:1 / /mnt/a\\040b/disk rw - ext4 /dev/disk rw\n\
            25 22 0:51 / /above rw - overlay overlay ro,lowerdir=/usr:/mnt/a\\040b/x,redirect_dir=on\n\
            26 22 0:52 / /twice rw - overlay overlay rw,lowerdir=/usr,upperdir=/above/u,workdir=/w\n\
            27 22 0:53 / /beside rw - overlay overlay rw,lowerdir+=/mnt/a\\040b/disk/x,lowerdir+=l/x\n\
            28 22 0:54 / /added rw - overlay overlay ro,lowerdir+=/usr,lowerdir+=/mnt/a\\040b\n";
        let all: Vec<Mount> = mountinfo::mounts(text).collect();
        assert_eq!(remote_devices(&all), [50, 51, 52, 54].map(|minor| (0, minor)).into());
    }

    #[test]
    fn the_layers_of_an_overlay_that_lowtide_sees_are_those_of_its_list() {
        let overlay = "overlay rw,lowerdir=/images/a";
        let own = format!(
            "22 1 0:50 / /images rw - fuse x rw\n25 1 0:51 / /root rw - overlay {overlay}\n"
        );
        let own = Mounts::parse(&own);
        let of_container = Mounts::parse(&format!("70 1 0:51 / / rw - overlay {overlay}\n"));
        assert_eq!(of_container.is_local(70, &Mounts::default()), Some(true));
        assert_eq!(of_container.is_local(70, &own), Some(false));
    }

    #[test]
    fn network_and_fuse_file_systems_are_remote() {
        for name in ["nfs4", "fuse.sshfs", "fuse", "cifs", "autofs"] {
            assert!(is_remote_type(name), "{name}");
        }
        for name in ["ext4", "overlay", "fusectl", "tmpfs"] {
            assert!(!is_remote_type(name), "{name}");
        }
    }
}

//! The directory of a cgroup in the hierarchy that accounts for memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lowtide_model::cgroup::{CgroupEvents, CgroupLimit};
use thiserror::Error;

use crate::pressure::{NO_LIMIT, field, stall_percent};
use crate::proc::cgroup::Groups;
use crate::proc::hierarchy::{GroupDirectory, Hierarchy, HierarchyMount};

/// A cgroup that has an account of memory.
#[derive(Debug, Clone)]
pub struct CgroupDirectory {
    /// Its path, as in `/proc/PID/cgroup`.
    pub path: String,
    /// Version of its hierarchy: 1 or 2.
    pub version: u32,
    pub(super) directory: PathBuf,
    mount: HierarchyMount,
}

/// Why a cgroup has no ledger.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CgroupError {
    /// The kernel accounts for memory in a hierarchy of version 1, which is not mounted.
    #[error("the cgroup hierarchy that accounts for memory (version 1) is not mounted here")]
    NotMounted,
    /// The kernel does not account for memory.
    #[error("the kernel does not account for memory: it was started with cgroup_disable=memory")]
    Disabled,
    /// No hierarchy with the controller of memory is mounted.
    #[error("no mounted cgroup hierarchy accounts for memory")]
    NoController,
    /// It is above the root of the mounts, or beside it.
    #[error(
        "the cgroup {0} is outside of the hierarchy that is mounted here: run lowtide in its container or on the host, or mount /sys/fs/cgroup of the host"
    )]
    Outside(String),
    /// It does not exist.
    #[error("there is no memory cgroup {0}: it may have been removed")]
    Missing(String),
    /// The root has no account.
    #[error("the root cgroup has no account of its memory: name a cgroup below it")]
    Root,
    /// The controller is not enabled for it.
    #[error("the memory controller is not enabled for the cgroup {0}; it is for {1}")]
    NotEnabled(String, String),
    /// A file may not be read.
    #[error("the account of the cgroup {0} cannot be read ({1})")]
    Unreadable(String, String),
}

impl CgroupError {
    /// Returns whether no cgroup of this machine has a ledger.
    pub fn is_of_machine(&self) -> bool {
        matches!(self, Self::NotMounted | Self::Disabled | Self::NoController)
    }
}

/// Why a text names no cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CgroupNameError {
    /// The process has ended.
    #[error("there is no process {0}: it may have ended")]
    NoProcess(u32),
    /// A directory in a hierarchy with other controllers, where other groups have the same paths.
    #[error(
        "{0} is in a cgroup hierarchy that does not account for memory: name a directory in the one that does, or a PID"
    )]
    OtherHierarchy(String),
    /// Neither a path nor a PID.
    #[error("write the path as in /proc/PID/cgroup, starting with /, or a PID")]
    NotAPath,
}

/// The mounted hierarchy that accounts for memory.
#[derive(Debug, Clone)]
pub struct MemoryHierarchy(Hierarchy);

impl MemoryHierarchy {
    /// Finds it in lowtide's mount namespace.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn read() -> Result<Self, CgroupError> {
        Hierarchy::read("memory").map(Self).ok_or_else(|| {
            let own = Groups::read(std::process::id()).unwrap_or_default();
            match own.path("memory") {
                Some(_) => CgroupError::NotMounted,
                None => without_controller(),
            }
        })
    }

    /// Finds the directory of a path as in `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// Fails if it has no account of memory.
    pub fn find(&self, path: &str) -> Result<CgroupDirectory, CgroupError> {
        let Hierarchy { version, .. } = self.0;
        let found = self.0.directory(path).ok_or_else(|| CgroupError::Outside(path.to_owned()))?;
        let GroupDirectory { directory, mount } = found;
        let found = CgroupDirectory { path: path.to_owned(), version, directory, mount };
        if !found.directory.is_dir() {
            return Err(found.removed());
        }
        // The topmost group has no parent, and no such account.
        if found.directory == found.mount.point && found.mount.is_topmost(version) {
            return Err(CgroupError::Root);
        }
        match found.has(found.charge()) {
            true => Ok(found),
            false => Err(found.not_enabled()),
        }
    }

    /// Finds the cgroup that the memory of a process is charged to: the nearest one that has the
    /// controller.
    ///
    /// # Errors
    /// Fails if the process has ended, or no such group is visible here.
    pub(crate) fn find_of_process(&self, pid: u32) -> Result<CgroupDirectory, CgroupError> {
        let groups = Groups::read(pid).unwrap_or_default();
        let path = groups.memory_path().ok_or(CgroupError::NoController)?;
        match self.find(path) {
            Err(CgroupError::NotEnabled(_, above)) => self.find(&above),
            found => found,
        }
    }
}

/// Returns why no hierarchy accounts for memory.
fn without_controller() -> CgroupError {
    // `memory HIERARCHY GROUPS ENABLED`
    let is_disabled = fs::read_to_string("/proc/cgroups").is_ok_and(|controllers| {
        let memory = controllers.lines().find(|line| line.split('\t').next() == Some("memory"));
        memory.is_some_and(|line| line.ends_with("\t0"))
    });
    if is_disabled { CgroupError::Disabled } else { CgroupError::NoController }
}

/// Returns the path of the memory cgroup that a text names, as in `/proc/PID/cgroup`: a PID, a
/// directory below a mount point, or such a path.
///
/// # Errors
/// Fails for another text, or if the process has ended.
pub fn path_of(text: &str) -> Result<String, CgroupNameError> {
    if let Ok(pid) = text.parse() {
        let groups = Groups::read(pid).map_err(|_| CgroupNameError::NoProcess(pid))?;
        return groups.memory_path().map(str::to_owned).ok_or(CgroupNameError::NoProcess(pid));
    }
    if !text.starts_with('/') {
        return Err(CgroupNameError::NotAPath);
    }
    let below = MemoryHierarchy::read().ok().and_then(|memory| memory.0.path(Path::new(text)));
    match below {
        Some(path) => Ok(path),
        None if is_of_cgroups(text) => Err(CgroupNameError::OtherHierarchy(text.to_owned())),
        None => Ok(text.to_owned()),
    }
}

/// Returns whether a path is that of a directory in a cgroup file system.
fn is_of_cgroups(path: &str) -> bool {
    // Magic numbers of cgroup and cgroup2 (linux/magic.h).
    let is_cgroup = |found: rustix::fs::StatFs| matches!(found.f_type, 0x0027_e0eb | 0x6367_7270);
    rustix::fs::statfs(path).is_ok_and(is_cgroup)
}

impl CgroupDirectory {
    /// Finds the directory of a path as in `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// Fails if it has no account of memory.
    pub fn find(path: &str) -> Result<Self, CgroupError> {
        MemoryHierarchy::read()?.find(path)
    }

    fn not_enabled(&self) -> CgroupError {
        let above = self.ancestors().skip(1).find(|group| group.join(self.charge()).exists());
        match above {
            Some(above) => CgroupError::NotEnabled(self.path.clone(), self.name(&above)),
            None => without_controller(),
        }
    }

    /// Returns the directories from its own to the mount point.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = PathBuf> {
        self.mount.ancestors(&self.directory).into_iter()
    }

    /// Returns the path of a group, as in `/proc/PID/cgroup`.
    pub(super) fn name(&self, group: &Path) -> String {
        self.mount.path(group).unwrap_or_else(|| group.display().to_string())
    }

    pub(super) fn removed(&self) -> CgroupError {
        CgroupError::Missing(self.path.clone())
    }

    fn charge(&self) -> &'static str {
        if self.version == 1 { "memory.usage_in_bytes" } else { "memory.current" }
    }

    fn has(&self, file: &str) -> bool {
        self.directory.join(file).exists()
    }

    pub(super) fn text(&self, file: &str) -> Result<String, CgroupError> {
        fs::read_to_string(self.directory.join(file)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.removed(),
            // A removed group (ENODEV).
            _ if !self.directory.is_dir() => self.removed(),
            _ => CgroupError::Unreadable(self.path.clone(), error.to_string()),
        })
    }

    pub(super) fn number(&self, file: &str) -> Option<u64> {
        self.text(file).ok()?.trim().parse().ok()
    }

    pub(super) fn charged_bytes(&self) -> Result<u64, CgroupError> {
        let text = self.text(self.charge())?;
        let invalid = || CgroupError::Unreadable(self.path.clone(), "not a number".to_owned());
        text.trim().parse().map_err(|_| invalid())
    }

    /// Returns the limits of it and of the groups above it that have one.
    pub(crate) fn limits(&self) -> Vec<CgroupLimit> {
        let limit = |group: PathBuf| {
            let path = self.name(&group);
            let of = Self { directory: group, ..self.clone() };
            let bounded = |file| of.number(file).filter(|limit| *limit < NO_LIMIT);
            let file = if self.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
            let (limit_bytes, high_bytes) = (bounded(file), bounded("memory.high"));
            (limit_bytes.is_some() || high_bytes.is_some()).then(|| CgroupLimit {
                path,
                limit_bytes,
                high_bytes,
                charged_bytes: of.charged_bytes().ok(),
            })
        };
        self.ancestors().filter_map(limit).collect()
    }

    pub(super) fn removed_groups(&self) -> Option<u64> {
        field(&self.text("cgroup.stat").ok()?, "nr_dying_descendants")
    }

    pub(super) fn events(&self) -> CgroupEvents {
        if self.version == 1 {
            let control = self.text("memory.oom_control").unwrap_or_default();
            let oom_kill = field(&control, "oom_kill");
            return CgroupEvents { max: self.number("memory.failcnt"), oom_kill };
        }
        let events = self.text("memory.events").unwrap_or_default();
        CgroupEvents { max: field(&events, "max"), oom_kill: field(&events, "oom_kill") }
    }

    pub(super) fn stall_percent(&self) -> Option<f64> {
        stall_percent(&self.text("memory.pressure").ok()?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::proc::mountinfo::mounts;

    /// The hierarchy whose group `root` is mounted at a directory.
    pub(crate) fn hierarchy_at(version: u32, point: &Path, root: &str) -> MemoryHierarchy {
        let (kind, own) = match version {
            1 => ("cgroup cgroup rw,memory", "4:memory:/\n"),
            _ => ("cgroup2 cgroup2 rw", "0::/\n"),
        };
        let mount = format!("40 24 0:26 {root} {} rw - {kind}", point.display());
        let own = Groups::parse(own);
        MemoryHierarchy(Hierarchy::new(mounts(&mount).collect(), &own, "memory").unwrap())
    }

    #[test]
    fn groups_outside_of_the_mount_and_removed_ones_are_errors() {
        let home = tempfile::tempdir().unwrap();
        let find = |path| hierarchy_at(2, home.path(), "/docker/a").find(path).unwrap_err();
        assert!(matches!(find("/docker/b"), CgroupError::Outside(_)));
        assert!(matches!(find("/../x"), CgroupError::Outside(_)));
        assert!(matches!(find("/docker/a/no-such"), CgroupError::Missing(_)));
    }

    #[test]
    fn the_root_of_a_cgroup_namespace_is_a_group_like_others() {
        let home = tempfile::tempdir().unwrap();
        for (file, text) in [("cgroup.events", ""), ("memory.current", "8\n")] {
            fs::write(home.path().join(file), text).unwrap();
        }
        assert!(hierarchy_at(2, home.path(), "/").find("/").is_ok());
        fs::remove_file(home.path().join("cgroup.events")).unwrap();
        assert!(matches!(hierarchy_at(2, home.path(), "/").find("/"), Err(CgroupError::Root)));
    }

    #[test]
    fn what_names_no_memory_cgroup_is_an_error() {
        assert_eq!(path_of("4294967295"), Err(CgroupNameError::NoProcess(u32::MAX)));
        assert_eq!(path_of("docker"), Err(CgroupNameError::NotAPath));
        assert_eq!(path_of("/no/such"), Ok("/no/such".to_owned()));
    }

    #[test]
    fn a_group_without_the_controller_names_the_nearest_one_that_has_it() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("a/b")).unwrap();
        for (file, text) in [
            ("a/memory.current", "8192\n"),
            ("a/memory.max", "1048576\n"),
            ("a/memory.events", "max 3\noom_kill 1\n"),
        ] {
            fs::write(home.path().join(file), text).unwrap();
        }
        let find = |path: &str| hierarchy_at(2, home.path(), "/").find(path);
        let error = CgroupError::NotEnabled("/a/b".to_owned(), "/a".to_owned());
        assert_eq!(find("/a/b").unwrap_err(), error);
        assert_eq!(find("/").unwrap_err(), CgroupError::Root);
        let group = find("/a").unwrap();
        assert_eq!(group.charged_bytes(), Ok(8192));
        assert_eq!(group.events(), CgroupEvents { max: Some(3), oom_kill: Some(1) });
        assert_eq!(group.limits()[0].limit_bytes, Some(1 << 20));
        fs::remove_dir_all(home.path().join("a")).unwrap();
        assert_eq!(group.charged_bytes(), Err(CgroupError::Missing("/a".to_owned())));
    }
}

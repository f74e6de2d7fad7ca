//! The directory of a cgroup in the hierarchy that accounts for memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lowtide_model::cgroup::{CgroupEvents, CgroupLimit};
use thiserror::Error;

use super::account::Account;
use crate::pressure::{NO_LIMIT, field, stall_percent};
use crate::proc::cgroup::{Groups, inside};
use crate::proc::mountinfo;

/// A cgroup that has an account of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupDirectory {
    /// Its path, as in `/proc/PID/cgroup`.
    pub path: String,
    /// Version of its hierarchy: 1 or 2.
    pub version: u32,
    pub(super) directory: PathBuf,
    /// The mount point of the hierarchy.
    mount: PathBuf,
}

/// Why a cgroup has no ledger.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CgroupError {
    /// No hierarchy with the controller of memory is mounted.
    #[error("no mounted cgroup hierarchy accounts for memory")]
    NoController,
    /// It is above the root of lowtide's cgroup namespace or of the mount.
    #[error(
        "the cgroup {0} is outside of the hierarchy that is mounted here: run lowtide in its container, or on the host"
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

/// The mounted hierarchy that accounts for memory.
#[derive(Debug, Clone)]
pub struct MemoryHierarchy {
    mount: PathBuf,
    root: String,
    version: u32,
}

impl MemoryHierarchy {
    /// Finds it in lowtide's mount namespace.
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/mountinfo").ok()?)
    }

    /// Returns version 1 if it has the controller.
    fn parse(mountinfo: &str) -> Option<Self> {
        let mounts: Vec<_> = mountinfo::mounts(mountinfo).collect();
        let is_v1 = |mount: &&mountinfo::Mount| {
            mount.of_type == "cgroup" && mount.options.split(',').any(|option| option == "memory")
        };
        let v1 = mounts.iter().find(is_v1).map(|mount| (mount, 1));
        let v2 = || mounts.iter().find(|mount| mount.of_type == "cgroup2").map(|mount| (mount, 2));
        let (mount, version) = v1.or_else(v2)?;
        Some(Self { mount: mount.point.clone().into(), root: mount.root.clone(), version })
    }

    /// Finds the directory of a path as in `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// Fails if it has no account of memory.
    pub fn find(&self, path: &str) -> Result<CgroupDirectory, CgroupError> {
        let Self { mount, root, version } = self;
        let outside = || CgroupError::Outside(path.to_owned());
        let rest = Path::new(path).strip_prefix(root).map_err(|_| outside())?;
        let directory = inside(&mount.to_string_lossy(), &rest.to_string_lossy());
        let directory = directory.ok_or_else(outside)?;
        let (version, mount) = (*version, mount.clone());
        let found = CgroupDirectory { path: path.to_owned(), version, directory, mount };
        if !found.directory.is_dir() {
            return Err(found.removed());
        }
        // The topmost group has no parent, and no such account.
        if found.directory == found.mount && root == "/" && !found.has("memory.max") {
            return Err(CgroupError::Root);
        }
        match found.has(found.charge()) {
            true => Ok(found),
            false => Err(found.not_enabled()),
        }
    }
}

/// Returns the path of the memory cgroup that a text names, as in `/proc/PID/cgroup`: a PID, a
/// directory below the mount point, or such a path. `None` for another text, or if the process has
/// ended.
pub fn path_of(text: &str) -> Option<String> {
    if let Ok(pid) = text.parse() {
        let groups = Groups::read(pid).ok()?;
        return groups.path("memory").or_else(|| groups.path("")).map(str::to_owned);
    }
    if !text.starts_with('/') {
        return None;
    }
    let below = || {
        let MemoryHierarchy { mount, root, .. } = MemoryHierarchy::read()?;
        let rest = Path::new(text).strip_prefix(mount).ok()?;
        Some(Path::new(&root).join(rest).to_string_lossy().into_owned())
    };
    Some(below().unwrap_or_else(|| text.to_owned()))
}

impl CgroupDirectory {
    /// Finds the directory of a path as in `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// Fails if it has no account of memory.
    pub fn find(path: &str) -> Result<Self, CgroupError> {
        MemoryHierarchy::read().ok_or(CgroupError::NoController)?.find(path)
    }

    fn not_enabled(&self) -> CgroupError {
        let chain = self.directory.ancestors().take_while(|group| group.starts_with(&self.mount));
        let above = chain.skip(1).find(|group| group.join(self.charge()).exists());
        match above {
            Some(above) => CgroupError::NotEnabled(self.path.clone(), self.name(above)),
            None => CgroupError::NoController,
        }
    }

    /// Returns the directories from its own to the mount point.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = PathBuf> {
        let chain = self.directory.ancestors().take_while(|group| group.starts_with(&self.mount));
        chain.map(Path::to_owned).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn name(&self, group: &Path) -> String {
        let rest = group.strip_prefix(&self.mount).unwrap_or(group);
        format!("/{}", rest.display())
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
    pub(super) fn limits(&self) -> Vec<CgroupLimit> {
        let chain = self.directory.ancestors().take_while(|group| group.starts_with(&self.mount));
        let limit = |group: &Path| {
            let of = Self { directory: group.to_owned(), ..self.clone() };
            let bounded = |file| of.number(file).filter(|limit| *limit < NO_LIMIT);
            let file = if self.version == 1 { "memory.limit_in_bytes" } else { "memory.max" };
            let (limit_bytes, high_bytes) = (bounded(file), bounded("memory.high"));
            (limit_bytes.is_some() || high_bytes.is_some()).then(|| CgroupLimit {
                path: self.name(group),
                limit_bytes,
                high_bytes,
                charged_bytes: of.charged_bytes().ok(),
            })
        };
        chain.filter_map(limit).collect()
    }

    pub(super) fn removed_groups(&self) -> Option<u64> {
        field(&self.text("cgroup.stat").ok()?, "nr_dying_descendants")
    }

    pub(super) fn swap_bytes(&self, account: &Account) -> Option<u64> {
        if self.version == 1 { account.known("swap") } else { self.number("memory.swap.current") }
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
mod tests {
    use super::*;

    const HYBRID: &str = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        31 24 0:27 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        32 24 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";

    #[test]
    fn the_hierarchy_with_the_controller_is_found_beside_version_2() {
        let found = MemoryHierarchy::parse(HYBRID).unwrap();
        assert_eq!((found.version, found.root.as_str()), (1, "/docker/a"));
        let found = MemoryHierarchy::parse(HYBRID.lines().next().unwrap()).unwrap();
        assert_eq!(found.version, 2);
        assert!(MemoryHierarchy::parse("").is_none());
    }

    #[test]
    fn groups_outside_of_the_mount_and_removed_ones_are_errors() {
        let find = |path| MemoryHierarchy::parse(HYBRID).unwrap().find(path);
        assert!(matches!(find("/docker/b"), Err(CgroupError::Outside(_))));
        assert!(matches!(find("/../x"), Err(CgroupError::Outside(_))));
        assert!(matches!(find("/docker/a/no-such"), Err(CgroupError::Missing(_))));
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
        let find = |path: &str| {
            let (mount, root) = (home.path().to_owned(), "/".to_owned());
            MemoryHierarchy { mount, root, version: 2 }.find(path)
        };
        let error = CgroupError::NotEnabled("/a/b".to_owned(), "/a".to_owned());
        assert_eq!(find("/a/b"), Err(error));
        assert_eq!(find("/"), Err(CgroupError::Root));
        let group = find("/a").unwrap();
        assert_eq!(group.charged_bytes(), Ok(8192));
        assert_eq!(group.events(), CgroupEvents { max: Some(3), oom_kill: Some(1) });
        assert_eq!(group.limits()[0].limit_bytes, Some(1 << 20));
        fs::remove_dir_all(home.path().join("a")).unwrap();
        assert_eq!(group.charged_bytes(), Err(CgroupError::Missing("/a".to_owned())));
    }
}

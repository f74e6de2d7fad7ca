//! The mounts of a cgroup hierarchy, and the directories of groups in them.
//!
//! A controller belongs to one hierarchy: to one of version 1 if `/proc/self/cgroup` lists it, else
//! to that of version 2. A hierarchy can be mounted at several places, each with another group at
//! its top: that of a container, and that of the host in a container that mounts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::cgroup::Groups;
use super::group_path::GroupPath;
use super::maps::FileId;
use super::mountinfo::{self, Mount};

/// Maximum number of groups that are visited to find lowtide's own.
const MAX_GROUPS: usize = 20_000;
/// Maximum time to find it.
const MAX_TIME: Duration = Duration::from_secs(2);

/// A cgroup hierarchy.
#[derive(Debug, Clone)]
pub(crate) struct Hierarchy {
    /// Its version: 1 or 2.
    pub(crate) version: u32,
    mounts: Vec<HierarchyMount>,
}

/// A place where a hierarchy is mounted.
#[derive(Debug, Clone)]
pub(crate) struct HierarchyMount {
    /// The mount point.
    pub(crate) point: PathBuf,
    /// The group that is mounted there.
    root: GroupPath,
    /// The path of lowtide's own group.
    own: Option<GroupPath>,
    /// The names of the groups from `root` to the root of the cgroup namespace.
    to_namespace: OnceLock<Option<Vec<String>>>,
}

/// The directory of a group, and the mount that it is in.
#[derive(Debug, Clone)]
pub(crate) struct GroupDirectory {
    pub(crate) directory: PathBuf,
    pub(crate) mount: HierarchyMount,
}

impl Hierarchy {
    /// Finds the hierarchy of a controller in lowtide's mount namespace; the empty name means
    /// version 2. `None` if it is not mounted there.
    pub(crate) fn read(controller: &str) -> Option<Self> {
        let text = mountinfo::read("self").ok()?;
        let mounts = mountinfo::mounts(&text).filter(is_visible).collect();
        let own = Groups::read(std::process::id()).unwrap_or_default();
        Self::new(mounts, &own, controller)
    }

    /// Finds the hierarchy of a controller. `own` are lowtide's own groups.
    pub(crate) fn new(mounts: Vec<Mount>, own: &Groups, controller: &str) -> Option<Self> {
        let is_v1 = !controller.is_empty() && own.path(controller).is_some();
        let is_of = |mount: &Mount| match is_v1 {
            true => {
                mount.of_type == "cgroup" && mount.options.split(',').any(|name| name == controller)
            }
            false => mount.of_type == "cgroup2",
        };
        let own = own.path(if is_v1 { controller } else { "" }).and_then(GroupPath::parse);
        let mount = |mount: Mount| {
            let (point, root) = (PathBuf::from(mount.point), GroupPath::parse(&mount.root)?);
            Some(HierarchyMount { point, root, own: own.clone(), to_namespace: OnceLock::new() })
        };
        let mounts: Vec<_> = mounts.into_iter().filter(is_of).filter_map(mount).collect();
        (!mounts.is_empty()).then(|| Self { version: if is_v1 { 1 } else { 2 }, mounts })
    }

    /// Returns the directory of a group; `None` if it is in none of the mounts. The directory need
    /// not exist.
    pub(crate) fn directory(&self, path: &str) -> Option<GroupDirectory> {
        let path = GroupPath::parse(path)?;
        let in_mount = |mount: &HierarchyMount| {
            let directory = mount.directory(&path)?;
            Some(GroupDirectory { directory, mount: mount.clone() })
        };
        let mut found: Vec<GroupDirectory> = self.mounts.iter().filter_map(in_mount).collect();
        // The mount that shows most of the groups above it.
        found.sort_by_key(|found| std::cmp::Reverse(found.mount.root.above));
        let existing = found.iter().position(|found| found.directory.is_dir());
        found.into_iter().nth(existing.unwrap_or(0))
    }

    /// Returns the path of the group of a directory; `None` if it is in none of the mounts.
    pub(crate) fn path(&self, directory: &Path) -> Option<String> {
        let is_above = |mount: &&HierarchyMount| directory.starts_with(&mount.point);
        let mounts = self.mounts.iter().filter(is_above);
        mounts.max_by_key(|mount| mount.point.components().count())?.path(directory)
    }
}

/// Returns whether a mount is not covered by another one.
fn is_visible(mount: &Mount) -> bool {
    rustix::fs::stat(&mount.point).is_ok_and(|found| FileId::of_stat(&found).device == mount.device)
}

impl HierarchyMount {
    /// Returns the directory of a group in this mount, and those of the groups that contain it, up
    /// to the mount point.
    pub(crate) fn ancestors(&self, directory: &Path) -> Vec<PathBuf> {
        let chain = directory.ancestors().take_while(|group| group.starts_with(&self.point));
        chain.map(Path::to_owned).collect()
    }

    fn directory(&self, path: &GroupPath) -> Option<PathBuf> {
        let down = path.below(&self.root)?;
        let unnamed = match down.unnamed {
            0 => &[],
            levels => self.to_namespace()?.get(..levels)?,
        };
        Some(self.point.join(unnamed.iter().chain(&down.names).collect::<PathBuf>()))
    }

    /// Returns the path of the group of a directory, as the kernel prints it; `None` if it is not
    /// in this mount.
    pub(crate) fn path(&self, directory: &Path) -> Option<String> {
        let below = directory.strip_prefix(&self.point).ok()?;
        let rest = GroupPath::parse(&format!("/{}", below.display()))?;
        let mut path = self.root.clone();
        // The part of the way that leads towards the namespace has no names.
        let leads_down = path.above > 0 && path.names.is_empty() && !rest.names.is_empty();
        let towards = if leads_down { self.to_namespace() } else { None };
        let is_common = |(one, other): &(&String, &String)| one == other;
        let pairs = towards.into_iter().flatten().zip(&rest.names);
        let common = pairs.take_while(is_common).count();
        path.above -= common;
        path.names.extend(rest.names.into_iter().skip(common));
        Some(path.to_string())
    }

    /// Returns whether the topmost group of the hierarchy is mounted here.
    pub(crate) fn is_topmost(&self, version: u32) -> bool {
        // Files that only this group has, or only the others.
        match version {
            1 => self.point.join("release_agent").exists(),
            _ => !self.point.join("cgroup.events").exists(),
        }
    }

    /// Returns the names of the groups from the mounted one to the root of the cgroup namespace,
    /// which no file of the kernel contains: those of the group that has lowtide.
    fn to_namespace(&self) -> Option<&Vec<String>> {
        self.to_namespace.get_or_init(|| self.search_namespace()).as_ref()
    }

    fn search_namespace(&self) -> Option<Vec<String>> {
        let own = self.own.as_ref().filter(|own| own.above == 0)?;
        let (end, mut visited) = (Instant::now() + MAX_TIME, 0);
        let mut groups = vec![Vec::new()];
        for _ in 0..self.root.above {
            let mut next = Vec::new();
            for group in groups {
                let below = fs::read_dir(self.point.join(group.iter().collect::<PathBuf>()));
                for entry in below.into_iter().flatten().flatten() {
                    if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        continue;
                    }
                    visited += 1;
                    if visited > MAX_GROUPS || Instant::now() > end {
                        return None;
                    }
                    let name = entry.file_name().to_string_lossy().into_owned();
                    next.push(group.iter().cloned().chain([name]).collect());
                }
            }
            groups = next;
        }
        groups.into_iter().find(|group| self.has_lowtide(group, own))
    }

    /// Returns whether lowtide is in the group of a path, if the root of the namespace is `group`.
    fn has_lowtide(&self, group: &[String], own: &GroupPath) -> bool {
        let directory = self.point.join(group.iter().chain(&own.names).collect::<PathBuf>());
        let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        let pid = std::process::id().to_string();
        processes.lines().any(|line| line == pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1 for memory, version 2 beside it, in a container without a cgroup namespace.
    const HYBRID: &str = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        31 24 0:27 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        32 24 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";

    fn hierarchy(mountinfo: &str, own: &str, controller: &str) -> Option<Hierarchy> {
        Hierarchy::new(mountinfo::mounts(mountinfo).collect(), &Groups::parse(own), controller)
    }

    #[test]
    fn a_controller_belongs_to_the_hierarchy_that_lists_it() {
        let own = "4:memory:/docker/a\n3:pids:/\n0::/\n";
        let memory = hierarchy(HYBRID, own, "memory").unwrap();
        assert_eq!(memory.version, 1);
        let directory = |path: &str| Some(memory.directory(path)?.directory);
        assert_eq!(directory("/docker/a/b"), Some("/sys/fs/cgroup/memory/b".into()));
        for outside in ["/docker/b", "/docker/ab", "/../x", "/docker/a/../b", "docker/a"] {
            assert_eq!(directory(outside), None, "{outside}");
        }
        // Version 2 has it if no hierarchy of version 1 does.
        assert_eq!(hierarchy(HYBRID, "3:pids:/\n0::/\n", "memory").unwrap().version, 2);
        // That of version 1 is not mounted here. A group of this path in version 2 is another one.
        let v2 = HYBRID.lines().next().unwrap();
        assert!(hierarchy(v2, own, "memory").is_none());
        assert!(hierarchy("", own, "").is_none());
    }

    /// The groups of a host, the topmost of which is mounted at `host`, and that of a container of
    /// lowtide, at `own`.
    fn in_container(home: &Path) -> Hierarchy {
        let (host, own) = (home.join("host"), home.join("own"));
        for group in ["pods/pod1/a", "pods/pod2/b", "system/pod2/b"] {
            fs::create_dir_all(host.join(group)).unwrap();
            fs::write(host.join(group).join("cgroup.procs"), "0\n1\n").unwrap();
        }
        let pids = format!("1\n{}\n", std::process::id());
        fs::write(host.join("pods/pod1/a/cgroup.procs"), pids).unwrap();
        fs::create_dir_all(own.join("below")).unwrap();
        let mounts = format!(
            "40 24 0:26 / {} rw - cgroup2 cgroup2 rw\n\
             41 24 0:26 /../../.. {} rw - cgroup2 cgroup2 rw\n",
            own.display(),
            host.display()
        );
        hierarchy(&mounts, "0::/\n", "memory").unwrap()
    }

    #[test]
    fn groups_beside_the_container_are_found_in_the_hierarchy_of_the_host() {
        let home = tempfile::tempdir().unwrap();
        let found = in_container(home.path());
        for (path, directory) in [
            ("/below", "own/below"),
            ("/", "host/pods/pod1/a"),
            ("/../../pod2/b", "host/pods/pod2/b"),
            ("/../..", "host/pods"),
            ("/../../../system/pod2/b", "host/system/pod2/b"),
        ] {
            let directory = home.path().join(directory);
            assert_eq!(found.directory(path).unwrap().directory, directory, "{path}");
            let is_host = directory.starts_with(home.path().join("host"));
            assert!(!is_host || found.path(&directory).unwrap() == path, "{path}");
        }
        assert!(found.directory("/../../../../x").is_none());
        let mount = found.directory("/../../pod2/b").unwrap().mount;
        let parent = mount.path(&home.path().join("host/pods/pod2"));
        assert_eq!(parent.as_deref(), Some("/../../pod2"));
        assert_eq!(mount.path(&home.path().join("own")), None);
    }

    #[test]
    fn without_the_group_of_lowtide_only_named_groups_have_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let found = in_container(home.path());
        fs::write(home.path().join("host/pods/pod1/a/cgroup.procs"), "1\n").unwrap();
        assert!(found.directory("/../../pod2/b").is_none());
        let named = found.directory("/../../../pods/pod2/b").unwrap();
        assert_eq!(named.directory, home.path().join("host/pods/pod2/b"));
    }
}

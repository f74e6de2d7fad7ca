//! `/proc/PID/cgroup`: the control groups of a process.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Mount points of the hierarchies, by convention (cgroups(7)): version 2 by itself or beside
/// version 1.
const ROOTS_V2: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const FREEZER_V1: &str = "/sys/fs/cgroup/freezer";

/// The groups of one process, one for each hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups(Vec<Hierarchy>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// The controllers of the hierarchy, separated by commas. Empty for version 2.
    controllers: String,
    path: String,
}

impl Groups {
    /// Parses the text: a line `NUMBER:CONTROLLERS:PATH` for each hierarchy. Other lines are
    /// skipped.
    pub fn parse(text: &str) -> Self {
        let group = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?.to_owned(), fields.next()?.to_owned());
            Some(Hierarchy { controllers, path })
        };
        Self(text.lines().filter_map(group).collect())
    }

    /// Reads the groups of a process.
    ///
    /// # Errors
    /// Fails if it has ended, or may not be inspected.
    pub fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/cgroup"))?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Returns the path in the hierarchy of a controller. Version 2 has the empty name.
    pub fn path(&self, controller: &str) -> Option<&str> {
        let has = |group: &&Hierarchy| group.controllers.split(',').any(|name| name == controller);
        self.0.iter().find(has).map(|group| group.path.as_str())
    }

    /// Returns whether one of the paths is the given group or below it.
    pub fn is_within(&self, group: &str) -> bool {
        let group = group.trim_end_matches('/');
        self.0.iter().any(|own| {
            own.path
                .strip_prefix(group)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Returns whether the process is frozen by the freezer; `None` if the freezer's files do not
    /// exist.
    pub fn is_frozen(&self) -> Option<bool> {
        let read = |root: &str, path: &str, file: &str| {
            fs::read_to_string(inside(root, path)?.join(file)).ok()
        };
        let v1 = self.path("freezer").and_then(|path| read(FREEZER_V1, path, "freezer.state"));
        // A topmost group has no state: it cannot be frozen.
        let v1 = v1.map(|state| state.trim() != "THAWED");
        let v2 = self
            .path("")
            .and_then(|path| ROOTS_V2.iter().find_map(|root| read(root, path, "cgroup.events")));
        let v2 = v2.map(|events| events.lines().any(|line| line.trim() == "frozen 1"));
        match (v1, v2) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(false) || other.unwrap_or(false)),
        }
    }
}

/// Returns a group's directory below the mount point of its hierarchy; `None` if it is not below
/// it: the path of a process in another container begins with `/..` (cgroup_namespaces(7)).
pub fn inside(root: &str, path: &str) -> Option<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    is_below.then(|| Path::new(root).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_both_versions_are_parsed() {
        let groups = Groups::parse(
            "6:freezer:/jobs/a\n4:cpu,cpuacct:/x:y\n0::/system.slice/redis.service\nx\n",
        );
        assert_eq!(groups.path("freezer"), Some("/jobs/a"));
        assert_eq!(groups.path("cpuacct"), Some("/x:y"));
        assert_eq!(groups.path(""), Some("/system.slice/redis.service"));
        assert_eq!(groups.path("memory"), None);
    }

    #[test]
    fn the_group_of_another_container_has_no_directory_here() {
        assert_eq!(inside("/sys/fs/cgroup", "/a/b"), Some("/sys/fs/cgroup/a/b".into()));
        assert_eq!(inside("/sys/fs/cgroup", "/"), Some("/sys/fs/cgroup".into()));
        assert_eq!(inside("/sys/fs/cgroup", "/../other"), None);
        assert_eq!(inside("/sys/fs/cgroup", "/a/../../other"), None);
    }

    #[test]
    fn a_process_is_only_within_its_own_cgroup_and_the_ancestors_of_it() {
        let groups = Groups::parse("0::/system.slice/redis.service");
        for group in ["/system.slice", "/system.slice/", "/system.slice/redis.service", "/"] {
            assert!(groups.is_within(group), "{group}");
        }
        assert!(!groups.is_within("/system.slice/redis"));
        assert!(!groups.is_within("/redis.service"));
    }
}

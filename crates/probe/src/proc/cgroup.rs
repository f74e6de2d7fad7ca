//! `/proc/PID/cgroup`: the control groups of a process.

use std::fs;
use std::io;

use super::group_path::GroupPath;

/// The groups of one process, one for each hierarchy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups(Vec<Group>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
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
            Some(Group { controllers, path })
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
        let has = |group: &&Group| group.controllers.split(',').any(|name| name == controller);
        self.0.iter().find(has).map(|group| group.path.as_str())
    }

    /// Returns the path of the memory cgroup: the one in the hierarchy of version 1 that accounts
    /// for memory, else the one in version 2.
    pub fn memory_path(&self) -> Option<&str> {
        self.path("memory").or_else(|| self.path(""))
    }

    /// Returns whether one of the paths is the given group or below it. A group without a name,
    /// such as `/`, exists in each hierarchy, with other processes: that of memory counts.
    pub fn is_within(&self, group: &str) -> bool {
        let Some(group) = GroupPath::parse(group) else { return false };
        let is_below =
            |own: &str| GroupPath::parse(own).is_some_and(|own| own.below(&group).is_some());
        match group.names.is_empty() {
            true => self.memory_path().is_some_and(is_below),
            false => self.0.iter().any(|own| is_below(&own.path)),
        }
    }
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
    fn a_process_is_only_within_its_own_cgroup_and_the_ancestors_of_it() {
        let groups = Groups::parse("0::/system.slice/redis.service");
        for group in ["/system.slice", "/system.slice/", "/system.slice/redis.service", "/"] {
            assert!(groups.is_within(group), "{group}");
        }
        assert!(!groups.is_within("/system.slice/redis"));
        assert!(!groups.is_within("/redis.service"));
    }

    #[test]
    fn a_process_beside_the_namespace_is_within_the_groups_above_both() {
        let groups = Groups::parse("0::/../../pod2/b");
        for group in ["/../../pod2", "/../..", "/../../.."] {
            assert!(groups.is_within(group), "{group}");
        }
        for group in ["/", "/..", "/../pod2", "/pod2", "/../../pod", ""] {
            assert!(!groups.is_within(group), "{group}");
        }
        // Another hierarchy does not divide what the one of memory does.
        let groups = Groups::parse("4:memory:/../a\n3:cpu:/\n");
        assert!(!groups.is_within("/") && groups.is_within("/.."));
    }
}

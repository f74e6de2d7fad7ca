//! Groups processes by a common property, in a bounded number of groups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lowtide_model::cgroup::{pod_path, pod_uid};
use lowtide_model::text::printable;
use lowtide_survey::HostProcess;
use lowtide_survey::survey::CgroupOf;

/// The group of the processes beyond the maximum number of groups.
pub(crate) const OTHER: &str = "other";
/// Maximum length of the name of a group, in characters: a process chooses it.
const MAX_NAME: usize = 200;
/// Time for which a group without processes keeps its name.
const KEPT: Duration = Duration::from_secs(3600);

/// The property that the processes of a group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy {
    /// The path of the program.
    Exe,
    /// The short name.
    Comm,
    /// The memory cgroup.
    Cgroup,
    /// The Kubernetes pod, by its UID.
    Pod,
}

impl GroupBy {
    /// Returns the name of the group of a process.
    pub fn name(self, process: &HostProcess) -> String {
        let name = match self {
            Self::Exe => match &process.exe {
                // A program whose file was replaced by an update is still the same program.
                Some(exe) => exe.strip_suffix(" (deleted)").unwrap_or(exe).to_owned(),
                None => format!("[{}]", process.comm),
            },
            Self::Comm => process.comm.clone(),
            Self::Cgroup => process.cgroup().to_owned(),
            Self::Pod => pod(process.cgroup()).unwrap_or_else(|| "not in a pod".to_owned()),
        };
        printable(&name).chars().take(MAX_NAME).collect()
    }

    /// Returns the function for the cgroup of a process that has the charge of its group; `None` if
    /// groups are not cgroups.
    pub fn cgroup_of(self) -> Option<CgroupOf> {
        match self {
            Self::Exe | Self::Comm => None,
            Self::Cgroup => Some(|process| Some(process.cgroup().to_owned())),
            Self::Pod => Some(|process| pod_path(process.cgroup()).map(str::to_owned)),
        }
    }
}

/// Returns the UID of the pod in the path of a cgroup.
fn pod(cgroup: &str) -> Option<String> {
    cgroup.split('/').find_map(pod_uid)
}

/// The groups that have a name of their own.
#[derive(Debug)]
pub(crate) struct NamedGroups {
    by: GroupBy,
    max: usize,
    /// Time when each group last had a process.
    admitted: BTreeMap<String, Instant>,
}

impl NamedGroups {
    /// Returns a value without any groups.
    pub(crate) fn new(by: GroupBy, max: usize) -> Self {
        Self { by, max, admitted: BTreeMap::new() }
    }

    /// Returns the cgroup that has the charge of a group, which it shares with its first process.
    pub(crate) fn cgroup(&self, name: &str, processes: &[&HostProcess]) -> Option<String> {
        let cgroup_of = self.by.cgroup_of().filter(|_| name != OTHER)?;
        processes.first().and_then(|process| cgroup_of(process))
    }

    /// Divides processes into groups. Groups keep their names between calls. Names that become free
    /// go to the groups with the largest RSS. Returns the groups by name.
    pub(crate) fn divide<'p>(
        &mut self,
        processes: impl Iterator<Item = &'p HostProcess>,
        now: Instant,
    ) -> BTreeMap<String, Vec<&'p HostProcess>> {
        let mut all: BTreeMap<String, Vec<&HostProcess>> = BTreeMap::new();
        for process in processes {
            all.entry(self.by.name(process)).or_default().push(process);
        }
        self.admitted.retain(|_, seen| now.saturating_duration_since(*seen) < KEPT);
        let rss =
            |group: &[&HostProcess]| group.iter().map(|process| process.rss_bytes).sum::<u64>();
        let mut new: Vec<(u64, &String)> = all
            .iter()
            .filter(|(name, _)| !self.admitted.contains_key(*name))
            .map(|(name, group)| (rss(group), name))
            .collect();
        new.sort_by(|one, other| other.cmp(one));
        let free = self.max.saturating_sub(self.admitted.len());
        for (_, name) in new.into_iter().take(free) {
            self.admitted.insert(name.clone(), now);
        }
        let mut groups: BTreeMap<String, Vec<&HostProcess>> = BTreeMap::new();
        for (name, group) in all {
            match self.admitted.get_mut(&name) {
                Some(seen) => {
                    *seen = now;
                    groups.entry(name).or_default().extend(group);
                }
                None => groups.entry(OTHER.to_owned()).or_default().extend(group),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_uid_is_parsed_from_the_paths_of_both_cgroup_drivers() {
        let uid = "8f5c1d2e-aaaa-bbbb-cccc-0123456789ab";
        for path in [
            format!("/kubepods/burstable/pod{uid}/4f2a"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-4f2a.scope",
                uid.replace('-', "_")
            ),
            format!("/../../pod{uid}/4f2a"),
        ] {
            assert_eq!(pod(&path).as_deref(), Some(uid), "{path}");
        }
        // The UID of a static pod is a hash of 32 digits, without hyphens.
        let hash = "0123456789abcdef0123456789abcdef";
        assert_eq!(pod(&format!("/kubepods/pod{hash}")).as_deref(), Some(hash));
        for path in ["/", "/system.slice/podman.service", "/kubepods/burstable", "/podx/pod12"] {
            assert_eq!(pod(path), None, "{path}");
        }
    }
}

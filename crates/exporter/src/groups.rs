//! Groups processes by a common property, in a bounded number of groups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lowtide_model::text::printable;
use lowtide_survey::Process;

/// The group of the processes beyond the maximum number of groups.
pub const OTHER: &str = "other";
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
    pub fn name(self, process: &Process) -> String {
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
}

/// Returns the UID of the pod in the path of a cgroup: `/kubepods/burstable/pod8f5c…/…`, or, by
/// systemd, `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f5c_….slice/…`. A path
/// that is relative to a namespace (`/../../podUID/…`) has it, too. Sources:
/// pkg/kubelet/cm/cgroup_manager_linux.go and types.go in Kubernetes.
fn pod(cgroup: &str) -> Option<String> {
    /// The length of a UID (RFC 4122) without hyphens.
    const DIGITS: usize = 32;
    cgroup.split('/').find_map(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let uid = &part[part.rfind("pod")? + 3..];
        // systemd reserves the hyphen.
        let uid = uid.replace('_', "-");
        let digits = uid.chars().filter(char::is_ascii_hexdigit).count();
        let is_uid = uid.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-');
        (is_uid && digits >= DIGITS).then_some(uid)
    })
}

/// The groups that have a name of their own.
#[derive(Debug)]
pub struct Groups {
    by: GroupBy,
    max: usize,
    /// Time when each group last had a process.
    admitted: BTreeMap<String, Instant>,
}

impl Groups {
    /// Returns a value without any groups.
    pub fn new(by: GroupBy, max: usize) -> Self {
        Self { by, max, admitted: BTreeMap::new() }
    }

    /// Divides processes into groups. Groups keep their names between calls. Names that become free
    /// go to the groups with the largest RSS. Returns the groups by name.
    pub fn divide<'p>(
        &mut self,
        processes: impl Iterator<Item = &'p Process>,
        now: Instant,
    ) -> BTreeMap<String, Vec<&'p Process>> {
        let mut all: BTreeMap<String, Vec<&Process>> = BTreeMap::new();
        for process in processes {
            all.entry(self.by.name(process)).or_default().push(process);
        }
        self.admitted.retain(|_, seen| now.saturating_duration_since(*seen) < KEPT);
        let rss = |group: &[&Process]| group.iter().map(|process| process.rss_bytes).sum::<u64>();
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
        let mut groups: BTreeMap<String, Vec<&Process>> = BTreeMap::new();
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

//! The processes of a cgroup and of all groups below it.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of groups that are visited.
pub(super) const MAX_GROUPS: u64 = 20_000;
/// Maximum number of processes.
const MAX_PROCESSES: usize = 20_000;
/// Maximum time to visit the groups.
const MAX_TIME: Duration = Duration::from_secs(2);

/// A cgroup with all groups below it.
#[derive(Debug, Default)]
pub(super) struct CgroupTree {
    pub(super) processes: BTreeSet<u32>,
    pub(super) groups: u64,
    /// The inodes of their directories, by which the kernel names the owner of a page.
    pub(super) inodes: HashSet<u64>,
    /// Whether all groups were visited.
    pub(super) is_complete: bool,
}

impl CgroupTree {
    /// Visits the groups. A group that is removed meanwhile is skipped.
    pub(super) fn read(directory: &Path) -> Self {
        let end = Instant::now() + MAX_TIME;
        let mut tree = Self { is_complete: true, ..Self::default() };
        let mut next: Vec<PathBuf> = vec![directory.to_owned()];
        while let Some(group) = next.pop() {
            let is_full = tree.groups >= MAX_GROUPS || tree.processes.len() >= MAX_PROCESSES;
            if is_full || Instant::now() > end {
                tree.is_complete = false;
                break;
            }
            tree.groups += 1;
            tree.inodes.extend(fs::metadata(&group).ok().map(|found| found.ino()));
            // The processes of a threaded group (version 2) are listed by the group above it.
            let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            // A process of another PID namespace is listed as 0.
            let pids = text.lines().filter_map(|line| line.parse::<u32>().ok());
            let pids = pids.filter(|pid| *pid > 0);
            tree.processes.extend(pids.take(MAX_PROCESSES));
            let entries = fs::read_dir(&group).into_iter().flatten().flatten();
            let is_group = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_dir());
            next.extend(entries.filter(is_group).take(MAX_GROUPS as usize).map(|e| e.path()));
        }
        tree.processes.remove(&std::process::id());
        tree
    }
}

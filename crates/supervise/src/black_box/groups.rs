//! The memory cgroups of the recorded processes. Processes of one group share its readings.

use std::collections::{BTreeMap, VecDeque};

use lowtide_model::counters::GroupBytes;
use lowtide_probe::cgroup::{GroupCounters, counters_of};
use lowtide_record::black_box::GroupHead;

/// Maximum number of groups whose files are open.
const MAX_GROUPS: usize = 80;
/// Distance of the readings that are compared with the one after a kill, in seconds, and their
/// number: the count of reached limits rises shortly before.
const SPACING_S: f64 = 0.25;
const MAX_EARLIER: usize = 6;

/// All groups.
#[derive(Debug, Default)]
pub(super) struct RecordedCgroups(BTreeMap<String, RecordedCgroup>);

/// Returns whether a path of the kernel log is that of a group. The log has the path from the root
/// of all hierarchies, which a container does not see.
pub(super) fn is_path_of(logged: &str, own: &str) -> bool {
    own != "/" && logged.ends_with(own)
}

/// One group.
#[derive(Debug)]
struct RecordedCgroup {
    reader: GroupCounters,
    /// The last reading, and its time in seconds.
    last: (f64, GroupBytes),
    earlier: VecDeque<(f64, GroupBytes)>,
    /// Number of kills that ends of processes account for, or that happened before.
    claimed: Option<u64>,
    /// Time when an unclaimed kill was first seen, in seconds.
    unclaimed_s: Option<f64>,
    /// What it held before the first kill in any group that is unclaimed.
    before_kill: Option<GroupBytes>,
    is_removed: bool,
}

impl RecordedCgroups {
    /// Opens the groups of a process, from its own to the topmost. Returns their paths.
    pub(super) fn open(&mut self, pid: u32, t_s: f64, buffer: &mut Vec<u8>) -> Vec<GroupHead> {
        let mut heads = Vec::new();
        for reader in counters_of(pid) {
            let head = GroupHead { path: reader.path.clone(), version: reader.version };
            let is_known = self.0.get(&head.path).is_some_and(|group| !group.is_removed);
            if !is_known && self.0.len() < MAX_GROUPS {
                let bytes = reader.read(buffer).unwrap_or_default();
                let group = RecordedCgroup {
                    reader,
                    last: (t_s, bytes),
                    earlier: VecDeque::new(),
                    claimed: bytes.kills,
                    unclaimed_s: None,
                    before_kill: None,
                    is_removed: false,
                };
                self.0.insert(head.path.clone(), group);
            }
            heads.push(head);
        }
        heads
    }

    /// Drops the groups that no recorded process has.
    pub(super) fn retain(&mut self, is_used: impl Fn(&str) -> bool) {
        self.0.retain(|path, _| is_used(path));
    }

    /// Reads groups. A reading of the same round is used again.
    pub(super) fn read(
        &mut self,
        heads: &[GroupHead],
        t_s: f64,
        buffer: &mut Vec<u8>,
    ) -> Vec<GroupBytes> {
        let read = |head: &GroupHead| {
            let Some(group) = self.0.get_mut(&head.path) else { return GroupBytes::default() };
            group.read(t_s, buffer);
            group.last.1
        };
        heads.iter().map(read).collect()
    }

    /// Returns the readings from before a kill: the newest, with the older counts.
    pub(super) fn before(&self, heads: &[GroupHead]) -> Vec<GroupBytes> {
        let before = |head: &GroupHead| self.0.get(&head.path).map(RecordedCgroup::before);
        heads.iter().map(|head| before(head).unwrap_or_default()).collect()
    }

    /// Returns the number of kills in a group that are not accounted for; `None` if it has no such
    /// counter, or was removed.
    pub(super) fn unclaimed(&self, head: Option<&GroupHead>) -> Option<u64> {
        let group = self.0.get(&head?.path).filter(|group| !group.is_removed)?;
        Some(group.last.1.kills?.saturating_sub(group.claimed?))
    }

    /// Returns whether a group has a count of kills.
    pub(super) fn has_counter(&self, head: Option<&GroupHead>) -> bool {
        let group = head.and_then(|head| self.0.get(&head.path));
        group.is_some_and(|group| group.claimed.is_some())
    }

    /// Accounts for one kill.
    pub(super) fn claim(&mut self, head: Option<&GroupHead>) {
        if let Some(group) = head.and_then(|head| self.0.get_mut(&head.path)) {
            group.claimed = group.claimed.map(|claimed| claimed + 1);
            group.unclaimed_s = None;
        }
    }

    /// Accounts for all kills in a group. Returns the number of those that were not accounted for.
    pub(super) fn claim_all(&mut self, path: &str) -> u64 {
        let Some(group) = self.0.get_mut(path) else { return 0 };
        let kills = group.last.1.kills.zip(group.claimed);
        (group.claimed, group.unclaimed_s) = (group.last.1.kills, None);
        kills.map_or(0, |(kills, claimed)| kills.saturating_sub(claimed))
    }

    /// Returns the groups in which a process was killed that is not accounted for within a time, in
    /// seconds.
    pub(super) fn foreign_kills(&mut self, t_s: f64, patience_s: f64) -> Vec<String> {
        let mut found = Vec::new();
        for (path, group) in &mut self.0 {
            let kills = group.last.1.kills.zip(group.claimed);
            if kills.is_none_or(|(kills, claimed)| kills <= claimed) {
                group.unclaimed_s = None;
            } else if t_s - *group.unclaimed_s.get_or_insert(t_s) >= patience_s {
                found.push(path.clone());
            }
        }
        let has_unclaimed = self.0.values().any(|group| group.unclaimed_s.is_some());
        for group in self.0.values_mut() {
            let before = group.before_kill.or_else(|| Some(group.before()));
            group.before_kill = before.filter(|_| has_unclaimed);
        }
        found
    }

    /// Returns the PIDs of the processes of a group.
    pub(super) fn processes(&self, head: &GroupHead, buffer: &mut Vec<u8>) -> Vec<u32> {
        /// Maximum number of processes that are read.
        const MAX_PROCESSES: usize = 512;
        let group = self.0.get(&head.path);
        group.map_or_else(Vec::new, |group| group.reader.processes(MAX_PROCESSES, buffer))
    }
}

impl RecordedCgroup {
    fn read(&mut self, t_s: f64, buffer: &mut Vec<u8>) {
        if self.last.0 >= t_s {
            return;
        }
        match self.reader.read(buffer) {
            Ok(bytes) => {
                if self.earlier.back().is_none_or(|(at_s, _)| t_s - at_s >= SPACING_S) {
                    self.earlier.push_back(self.last);
                    if self.earlier.len() > MAX_EARLIER {
                        self.earlier.pop_front();
                    }
                }
                // The counts outlive the last reading of a group that is removed.
                let kills = bytes.kills.or(self.last.1.kills);
                self.last = (t_s, GroupBytes { kills, ..bytes });
            }
            Err(_) => self.is_removed = true,
        }
    }

    fn before(&self) -> GroupBytes {
        if let Some(before) = self.before_kill {
            return before;
        }
        let fullest = self.earlier.iter().rev().take(2).map(|(_, bytes)| *bytes);
        let fullest = fullest.max_by(|a, b| share(a).total_cmp(&share(b)));
        let bytes =
            fullest.filter(|bytes| share(bytes) > share(&self.last.1)).unwrap_or(self.last.1);
        let hits = self.earlier.front().map_or(bytes.hits, |(_, earliest)| earliest.hits);
        GroupBytes { hits, ..bytes }
    }
}

fn share(bytes: &GroupBytes) -> f64 {
    bytes.fullness().unwrap_or(0.0)
}

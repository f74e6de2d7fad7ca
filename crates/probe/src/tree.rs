//! A process and its descendants, as they start and end.
//!
//! The root is a subreaper (lowtide's keeper), so that a descendant whose parent ends, or that
//! starts its own session, becomes a child of the root and is not lost.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;

use crate::proc::pids;
use crate::proc::stat::Stat;

/// Finds the descendants of a process.
#[derive(Debug)]
pub struct Tree {
    root: u32,
    members: BTreeSet<u32>,
    /// The newest process of the machine at the last check.
    newest: Option<u64>,
    stale: bool,
}

impl Tree {
    /// Creates a tree of the descendants of `root`, without `root` itself.
    pub fn below(root: u32) -> Self {
        Self { root, members: BTreeSet::new(), newest: None, stale: true }
    }

    /// Returns the PIDs of all known descendants.
    pub fn members(&self) -> &BTreeSet<u32> {
        &self.members
    }

    /// Removes a process that has ended.
    pub fn remove(&mut self, pid: u32) {
        self.members.remove(&pid);
    }

    /// Searches for descendants if a process was created on the machine since the last check, or if
    /// `anyway` is set. Returns the new ones.
    pub fn refresh(&mut self, anyway: bool) -> Vec<u32> {
        let newest = newest_process();
        let changed = newest.is_none() || newest != self.newest;
        self.newest = newest;
        // A list of children may miss one while others end, so a change triggers two searches.
        if !(anyway || changed || self.stale) {
            return Vec::new();
        }
        self.stale = changed;
        let found = descendants_of(self.root);
        let new: Vec<u32> = found.difference(&self.members).copied().collect();
        self.members.extend(found);
        new
    }
}

/// Returns the current descendants of a process, without the process itself.
pub fn descendants_of(root: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    if descend(root, &mut found) { found } else { scan(root) }
}

/// Returns the PID that was assigned last, from the end of `/proc/loadavg`.
pub fn newest_process() -> Option<u64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().last()?.parse().ok()
}

/// Follows the kernel's lists of children. Returns `false` if the kernel has none
/// (`CONFIG_PROC_CHILDREN`).
fn descend(root: u32, found: &mut BTreeSet<u32>) -> bool {
    let mut queue = vec![root];
    while let Some(pid) = queue.pop() {
        let Some(children) = children_of(pid) else { return false };
        queue.extend(children.into_iter().filter(|child| found.insert(*child)));
    }
    true
}

/// Returns the children of a process; `None` if the kernel has no lists of them.
pub(crate) fn children_of(pid: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Some(found) };
    for task in tasks.flatten() {
        text.clear();
        match fs::File::open(task.path().join("children")) {
            Ok(mut file) => drop(file.read_to_string(&mut text)),
            // The thread has ended, or there are no such lists.
            Err(_) if task.path().exists() => return None,
            Err(_) => continue,
        }
        found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Some(found)
}

/// Reads the parent of every process of the machine.
fn scan(root: u32) -> BTreeSet<u32> {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for pid in pids().into_iter().flatten().flatten() {
        let Ok(bytes) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Ok(stat) = Stat::parse(&String::from_utf8_lossy(&bytes)) {
            parents.push((pid, stat.parent));
        }
    }
    descendants(root, &parents)
}

/// Returns all processes that descend from `root`.
fn descendants(root: u32, parents: &[(u32, u32)]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut queue = vec![root];
    while let Some(pid) = queue.pop() {
        for (child, _) in parents.iter().filter(|(child, parent)| *parent == pid && *child != root)
        {
            if found.insert(*child) {
                queue.push(*child);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn descendants_include_grandchildren_but_not_unrelated_processes() {
        let parents = [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)];
        assert_eq!(descendants(10, &parents), BTreeSet::from([11, 12]));
    }

    #[test]
    fn a_cycle_of_parents_does_not_loop_forever() {
        let parents = [(10, 11), (11, 10)];
        assert_eq!(descendants(10, &parents), BTreeSet::from([11]));
    }

    #[test]
    fn both_descend_and_scan_find_a_grandchild() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & read wait; kill $!; wait"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let grandchild = loop {
            let mut found = BTreeSet::new();
            assert!(descend(shell.id(), &mut found));
            if let Some(pid) = found.first() {
                break *pid;
            }
        };
        assert!(scan(std::process::id()).contains(&grandchild));
        let mut tree = Tree::below(std::process::id());
        let new = tree.refresh(false);
        assert!(new.contains(&grandchild) && new.contains(&shell.id()));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
